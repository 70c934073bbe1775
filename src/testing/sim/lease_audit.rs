//! What a process of a simulated fleet knows of its leases: until when each surely holds, by its own monotonic clock, and which it was told to
//! have lost.

use crate::model::{Lease, LeaseToken, ShardId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// An answer is heard along with those to other questions that were asked at the same time: the slowest decides.
const REPLY_GRACE: Duration = Duration::from_millis(300);

/// See the module's page.
#[derive(Default)]
pub(crate) struct LeaseAudit(RefCell<BTreeMap<ShardId, KnownLease>>);

struct KnownLease {
    token: LeaseToken,
    until: Instant,
    lost: Option<Instant>,
}

impl LeaseAudit {
    pub(crate) fn granted(&self, lease: &Lease, until: Instant) {
        self.0.borrow_mut().insert(
            lease.shard.clone(),
            KnownLease {
                token: lease.token,
                until,
                lost: None,
            },
        );
    }

    pub(crate) fn renewed(&self, lease: &Lease, until: Instant) {
        self.update(lease, |known| known.until = until);
    }

    pub(crate) fn lost(&self, lease: &Lease) {
        self.update(lease, |known| {
            _ = known.lost.get_or_insert_with(Instant::now)
        });
    }

    pub(crate) fn released(&self, lease: &Lease) {
        self.0
            .borrow_mut()
            .retain(|_, known| known.token != lease.token);
    }

    /// It was frozen until now: what it was told meanwhile, or just before, it hears now.
    pub(crate) fn on_wake(&self) {
        self.0
            .borrow_mut()
            .values_mut()
            .for_each(|known| known.lost = known.lost.map(|_| Instant::now()));
    }

    fn update(&self, lease: &Lease, learn: impl FnOnce(&mut KnownLease)) {
        if let Some(known) = self
            .0
            .borrow_mut()
            .get_mut(&lease.shard)
            .filter(|known| known.token == lease.token)
        {
            learn(known);
        }
    }

    /// Why the process must not act for the shard; `None`: it may.
    pub(crate) fn objection(&self, shard: &ShardId) -> Option<&'static str> {
        let (now, terms) = (Instant::now(), self.0.borrow());
        let Some(known) = terms.get(shard) else {
            return Some("which it does not hold");
        };
        match known.lost {
            _ if known.until <= now => Some("though its lease has run out by its own clock"),
            Some(lost) if lost + REPLY_GRACE <= now => {
                Some("though it was told that another has it")
            }
            _ => None,
        }
    }
}
