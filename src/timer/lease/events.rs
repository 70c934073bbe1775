//! The messages between the lease keeper and the dispatcher, and the signals that end a timer.

use super::LeaseDeadline;
use crate::model::{Lease, Progress, ShardId};
use crate::store::StoredShard;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A message to the dispatcher.
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

/// The dispatcher's reply for a shard that it had to hand over or stop.
#[derive(Debug)]
pub(crate) enum ReleaseResult {
    /// The shard has stopped, with this pair delivered.
    Ended { shard: ShardId, delivered: Progress },
    /// In-flight messages were not acknowledged in time. The shard stays on this worker for now.
    Postponed(ShardId),
}

/// The tokens that end a timer, and the tokens with which it reports its progress in ending.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownSignals {
    pub(super) stop: CancellationToken,
    pub(in crate::timer) give_up: CancellationToken,
    /// Reports that this timer has delivered its last message. Cancelled early if other workers
    /// continue the delivery.
    pub(super) timers_done: CancellationToken,
    /// Tells the dispatcher to finish: every shard that could be handed over was handed over.
    pub(in crate::timer) finish: CancellationToken,
}

impl ShutdownSignals {
    pub(crate) fn new(
        stop: CancellationToken,
        give_up: CancellationToken,
        timers_done: CancellationToken,
    ) -> Self {
        Self {
            stop,
            give_up,
            timers_done,
            finish: CancellationToken::new(),
        }
    }
}
