//! Says loudly that a shard waits because a dead letter, or a way back, does not get through; and no more often than a person can read.

use super::flying::Stage;
use crate::broker::Failure;
use crate::health::Part;
use crate::limit::OUTCRY_INTERVAL;
use crate::model::ShardId;
use std::cell::Cell;
use tokio::time::Instant;

/// One a route.
pub(crate) struct Outcry {
    health: Part,
    next: Cell<Option<Instant>>,
}

impl Outcry {
    pub(crate) fn new(health: Part) -> Self {
        health.ready();
        Self { health, next: Cell::new(None) }
    }

    pub(crate) fn say(&self, shard: &ShardId, stage: Stage, failure: &Failure) {
        let what = match stage {
            Stage::Target => "its target",
            Stage::Back { .. } => "its source, for a retry",
            Stage::DeadLetter | Stage::DeadLetterByReference => "its dead-letter target",
        };
        let reason = format!("shard {shard} waits: a message cannot be handed to {what}: {} ({})", failure.detail, failure.reason);
        self.health.not_ready(reason.clone());
        let now = Instant::now();
        if self.next.get().is_none_or(|next| next <= now) {
            self.next.set(Some(now + OUTCRY_INTERVAL));
            tracing::error!(%shard, "{reason}");
        }
    }

    /// Something that was diverted got through.
    pub(crate) fn calm(&self) {
        if self.next.take().is_some() {
            self.health.ready();
        }
    }
}
