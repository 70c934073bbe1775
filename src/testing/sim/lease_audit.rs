//! The leases that one process knows of, the session that they last with, and which it has lost.

use crate::membership::silence_max;
use crate::model::{Lease, LeaseToken, ShardId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A reply is handled together with the other replies of a batch. The slowest one decides.
const REPLY_GRACE: Duration = Duration::from_millis(300);

/// The known leases of one process.
#[derive(Default)]
pub(crate) struct LeaseAudit {
    leases: RefCell<BTreeMap<ShardId, KnownLease>>,
    /// Since the last heartbeat that the store has recorded, and until when the session lasts by the
    /// monotonic clock.
    session: Cell<Option<(Instant, Instant)>>,
}

struct KnownLease {
    token: LeaseToken,
    lost: Option<Instant>,
}

impl LeaseAudit {
    pub(crate) fn granted(&self, lease: &Lease) {
        let (token, lost) = (lease.token, None);
        let known = KnownLease { token, lost };
        self.leases.borrow_mut().insert(lease.shard.clone(), known);
    }

    pub(crate) fn renewed(&self, asked: Instant, length: Duration) {
        self.session.set(Some((asked, asked + length)));
    }

    /// Another worker may end the session as soon as the next heartbeat is missing.
    pub(crate) fn heartbeat_failed(&self, length: Duration) {
        if let Some((asked, until)) = self.session.get() {
            let until = until.min(asked + silence_max(length));
            self.session.set(Some((asked, until)));
        }
    }

    /// The process has learned that its session has ended.
    pub(crate) fn session_ended(&self) {
        let mut leases = self.leases.borrow_mut();
        for known in leases.values_mut() {
            _ = known.lost.get_or_insert_with(Instant::now);
        }
    }

    pub(crate) fn lost(&self, lease: &Lease) {
        let mut leases = self.leases.borrow_mut();
        let known = leases.get_mut(&lease.shard);
        if let Some(known) = known.filter(|known| known.token == lease.token) {
            _ = known.lost.get_or_insert_with(Instant::now);
        }
    }

    pub(crate) fn released(&self, lease: &Lease) {
        let mut leases = self.leases.borrow_mut();
        leases.retain(|_, known| known.token != lease.token);
    }

    /// The process was frozen until now. It handles replies that arrived in the meantime now.
    pub(crate) fn on_wake(&self) {
        let mut leases = self.leases.borrow_mut();
        for known in leases.values_mut() {
            known.lost = known.lost.map(|_| Instant::now());
        }
    }

    /// The reason why the process must not act for the shard; `None` if it may.
    pub(crate) fn objection(&self, shard: &ShardId) -> Option<&'static str> {
        let (now, leases) = (Instant::now(), self.leases.borrow());
        let Some(known) = leases.get(shard) else {
            return Some("whose shard it does not hold");
        };
        let session = self.session.get();
        let is_over = session.is_none_or(|(_, until)| until <= now);
        match known.lost {
            _ if is_over => Some("although its session is over by its own clock"),
            Some(lost) if lost + REPLY_GRACE <= now => {
                Some("although it learned that another process holds it")
            }
            _ => None,
        }
    }
}
