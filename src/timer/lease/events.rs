//! Events, results and lease deadlines between the lease keeper and the dispatcher.

use crate::model::{Lease, Progress, ShardId};
use crate::store::StoredShard;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
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
    /// Another worker holds the lease, or the store lost it: stop the shard at once.
    Lost(ShardId),
}

/// A new lease, and the position at which delivery starts.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) lease: Lease,
    pub(crate) deadline: LeaseDeadline,
    pub(crate) state: StoredShard,
    /// The greatest pair that is known to be delivered.
    pub(crate) start: Progress,
}

/// The dispatcher's report on a shard that it had to hand over or stop.
#[derive(Debug)]
pub(crate) enum ReleaseResult {
    /// The shard has stopped, with this pair delivered.
    Ended { shard: ShardId, delivered: Progress },
    /// In-flight messages were not acknowledged in time. The shard stays on this worker for now.
    Postponed(ShardId),
}

/// The time until which a lease certainly holds, by this process's own monotonic clock. A process
/// that was frozen or lost the store stops delivering then, because another worker may hold the
/// shard. The lease keeper extends the shared deadline, the dispatcher reads it.
#[derive(Clone, Debug)]
pub(crate) struct LeaseDeadline(Rc<Cell<Instant>>);

impl LeaseDeadline {
    /// `asked` is the time at which the call was sent. The store starts the lease when it handles
    /// the call, which is never earlier.
    pub(crate) fn new(asked: Instant, length: Duration) -> Self {
        Self(Rc::new(Cell::new(asked + length)))
    }

    pub(crate) fn extend(&self, asked: Instant, length: Duration) {
        self.0.set(asked + length);
    }

    pub(crate) fn has_passed(&self, now: Instant) -> bool {
        self.0.get() <= now && !fault!(IgnoreLeaseExpiry)
    }
}
