//! Says loudly what goes wrong on the way out: that a message was diverted, and that one waits because its dead letter, or its way back, does
//! not get through. No more often than a person can read; the metrics count each.

use super::flying::{Diverted, Stage};
use crate::broker::Failure;
use crate::health::Part;
use crate::limit::OUTCRY_INTERVAL;
use crate::model::{Offset, ShardId};
use std::cell::Cell;
use tokio::time::Instant;

/// One a route.
pub(crate) struct Outcry {
    health: Part,
    next: Cell<Option<Instant>>,
    next_mention: Cell<Option<Instant>>,
}

impl Outcry {
    pub(crate) fn new(health: Part) -> Self {
        health.ready();
        Self { health, next: Cell::default(), next_mention: Cell::default() }
    }

    pub(crate) fn say(&self, shard: &ShardId, stage: Stage, failure: &Failure) {
        let what = match stage {
            Stage::Target => "its target",
            Stage::Back { .. } => "its source, for a retry",
            Stage::DeadLetter | Stage::DeadLetterByReference => "its dead-letter target",
        };
        let reason = format!("a message of {shard} waits, for {what} does not take it: {} ({})", failure.detail, failure.reason);
        self.health.not_ready(reason.clone());
        if is_time(&self.next) {
            tracing::error!(%shard, "{reason}");
        }
    }

    /// A message goes another way than to its target: named for the one who audits, one in [`OUTCRY_INTERVAL`] a route.
    pub(crate) fn mention(&self, shard: &ShardId, offset: Offset, diverted: &Diverted) {
        if is_time(&self.next_mention) {
            let Diverted { stage, reason, detail, .. } = diverted;
            let way = if matches!(stage, Stage::Back { .. }) { "is tried again later" } else { "goes to the dead letters" };
            tracing::warn!(%shard, %offset, %reason, "a message {way}: {detail} (others within {} s are only counted)", OUTCRY_INTERVAL.as_secs());
        }
    }

    /// Something that was diverted got through.
    pub(crate) fn calm(&self) {
        if self.next.take().is_some() {
            self.health.ready();
        }
    }
}

/// Whether the time noted has come; then the next is one interval away.
fn is_time(next: &Cell<Option<Instant>>) -> bool {
    let now = Instant::now();
    let is_time = next.get().is_none_or(|next| next <= now);
    if is_time {
        next.set(Some(now + OUTCRY_INTERVAL));
    }
    is_time
}
