//! The leases that one process knows of: until when each is valid by its monotonic clock, and which
//! it has lost.

use crate::model::{Lease, LeaseToken, ShardId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A reply is handled together with the other replies of a batch. The slowest one decides.
const REPLY_GRACE: Duration = Duration::from_millis(300);

/// The known leases of one process.
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
            _ = known.lost.get_or_insert_with(Instant::now);
        });
    }

    pub(crate) fn released(&self, lease: &Lease) {
        self.0
            .borrow_mut()
            .retain(|_, known| known.token != lease.token);
    }

    /// The process was frozen until now. It handles replies that arrived in the meantime now.
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

    /// The reason why the process must not act for the shard; `None` if it may.
    pub(crate) fn objection(&self, shard: &ShardId) -> Option<&'static str> {
        let (now, terms) = (Instant::now(), self.0.borrow());
        let Some(known) = terms.get(shard) else {
            return Some("whose shard it does not hold");
        };
        match known.lost {
            _ if known.until <= now => Some("although its lease has expired by its own clock"),
            Some(lost) if lost + REPLY_GRACE <= now => {
                Some("although it learned that another process holds it")
            }
            _ => None,
        }
    }
}
