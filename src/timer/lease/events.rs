//! Events, results and lease clocks between the lease keeper and the dispatcher.

use crate::clock::Clock;
use crate::membership::{SessionClock, StoreTime};
use crate::model::{Lease, Progress, SessionId, ShardId, Timestamp, Watermark};
use crate::store::StoredShard;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) enum LeaseEvent {
    /// The number of shards of each route, whichever worker owns them.
    ShardsCounted(BTreeMap<Arc<str>, usize>),
    Granted(Box<Grant>),
    /// These shards are assigned to this worker, but another worker still holds them.
    Contested(Vec<ShardId>),
    /// The shard is assigned to another worker: finish the claimed messages.
    HandOver(ShardId),
    /// The session of the lease has ended: stop the shard at once.
    Lost(ShardId),
}

/// A new lease, and the position at which delivery starts.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) lease: Lease,
    pub(crate) clock: LeaseClock,
    pub(crate) state: StoredShard,
    /// The greatest pair that is known to be delivered.
    pub(crate) start: Progress,
}

/// The dispatcher's report on a shard that it had to hand over or stop.
#[derive(Debug)]
pub(crate) enum ReleaseResult {
    /// The shard has stopped, with these pairs delivered and claimed, and this watermark seen.
    Ended {
        shard: ShardId,
        delivered: Progress,
        claimed: Progress,
        seen: Watermark,
        /// The lease was lost: this was no handover.
        is_lost: bool,
    },
    /// In-flight messages were not acknowledged in time. The shard stays on this worker for now.
    Postponed(ShardId),
}

/// A lease as its owner sees it: may it still deliver, and what time is it at the store?
#[derive(Clone, Debug)]
pub(crate) struct LeaseClock {
    clock: Rc<dyn Clock>,
    session: SessionId,
    session_clock: SessionClock,
}

impl LeaseClock {
    pub(crate) fn new(
        clock: Rc<dyn Clock>,
        session: SessionId,
        session_clock: SessionClock,
    ) -> Self {
        Self {
            clock,
            session,
            session_clock,
        }
    }

    /// The session of the lease had no heartbeat for its length.
    pub(crate) fn has_expired(&self, now: Instant) -> bool {
        self.session_clock.is_over(self.session, now, &*self.clock)
    }

    /// Another worker may have ended the session, and taken the lease.
    pub(crate) fn may_be_taken(&self, now: Instant) -> bool {
        let session = self.session;
        self.session_clock.may_be_over(session, now, &*self.clock)
    }

    /// A claim was refused, so the estimate of the store's time was wrong.
    pub(crate) fn set_store_time(&self, store: StoreTime) {
        self.session_clock.set_store_time(store);
    }

    pub(crate) fn store_time(&self, now: Instant) -> Timestamp {
        self.session_clock.store_time(now)
    }
}

#[cfg(test)]
impl LeaseClock {
    /// A lease of one hour. The store accepts every claim.
    pub(crate) fn for_test(now: Instant) -> Self {
        let store = StoreTime {
            time: Timestamp::MAX,
            answered: now,
        };
        let session = crate::model::LeaseToken::for_test(7).session;
        let session_clock = SessionClock::default();
        session_clock.renew(session, now, std::time::Duration::from_secs(3_600), store);
        Self::new(Rc::new(crate::clock::WallClock), session, session_clock)
    }
}
