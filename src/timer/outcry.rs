//! Says loudly what goes wrong on the way out: that a message was diverted, that a target does not take what it is sent, and that a message
//! waits because its dead letter, or its way back, does not get through. No more often than a person can read; the metrics count each.

use super::flying::{Diverted, Stage};
use crate::broker::Failure;
use crate::health::Part;
use crate::limit::{AMISS_MAX, AMISS_SLACK, OUTCRY_INTERVAL};
use crate::model::{Offset, Reason, ShardId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;
use tokio::time::Instant;

/// One a route.
pub(crate) struct Outcry {
    health: Part,
    /// Messages that failed on their last way, and have not got through since. As many at most as are in flight.
    waiting: RefCell<BTreeSet<(ShardId, Offset)>>,
    next: Cell<Option<Instant>>,
    next_mention: Cell<Option<Instant>>,
    next_miss: Cell<Option<Instant>>,
    amiss: RefCell<BTreeMap<String, Amiss>>,
}

/// A target that does not take its messages, and until when that is worth a word: the last of them that is known of has been tried again.
struct Amiss {
    reason: Reason,
    until: Instant,
}

impl Outcry {
    pub(crate) fn new(health: Part) -> Self {
        health.ready();
        Self {
            health,
            waiting: RefCell::default(),
            next: Cell::default(),
            next_mention: Cell::default(),
            next_miss: Cell::default(),
            amiss: RefCell::default(),
        }
    }

    /// A message waits, for `way` does not take it.
    pub(crate) fn say(
        &self,
        (shard, offset): (&ShardId, Offset),
        way: impl Display,
        failure: &Failure,
    ) {
        let reason = format!(
            "a message of {shard} waits: {way} does not take it: {} ({})",
            failure.detail, failure.reason
        );
        self.waiting.borrow_mut().insert((shard.clone(), offset));
        self.health.not_ready(reason.clone());
        if is_time(&self.next) {
            tracing::error!(%shard, %offset, "{reason}");
        }
    }

    /// A message goes another way than to its target: named for the one who audits, one in [`OUTCRY_INTERVAL`] a route.
    pub(crate) fn mention(&self, shard: &ShardId, offset: Offset, diverted: &Diverted) {
        if is_time(&self.next_mention) {
            let Diverted {
                stage,
                reason,
                detail,
                ..
            } = diverted;
            let way = if matches!(stage, Stage::Back { .. }) {
                "is tried again later"
            } else {
                "goes to the dead letters"
            };
            tracing::warn!(%shard, %offset, %reason, "a message {way}: {detail} (others within {} s are only counted)", OUTCRY_INTERVAL.as_secs());
        }
    }

    /// A message got through. That others did says nothing about those that wait.
    pub(crate) fn calm(&self, shard: &ShardId, offset: Offset) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.is_empty() && waiting.remove(&(shard.clone(), offset)) && waiting.is_empty() {
            self.health.ready();
        }
    }

    /// The shard is not this process's any more, nor are its messages.
    pub(crate) fn leave(&self, left: &ShardId) {
        let mut waiting = self.waiting.borrow_mut();
        let before = waiting.len();
        waiting.retain(|(shard, _)| shard != left);
        if waiting.is_empty() && before > 0 {
            self.health.ready();
        }
    }

    /// A target does not take a message, and would hardly take another: noted in `/readyz`, though the process is as ready as it can be,
    /// and said once in [`OUTCRY_INTERVAL`] a route. `again`: how soon the message is tried again; `None`: it is a dead letter.
    pub(crate) fn miss(&self, target: &str, failure: &Failure, again: Option<Duration>) {
        let until = Instant::now() + again.unwrap_or_default() + AMISS_SLACK;
        let mut amiss = self.amiss.borrow_mut();
        if let Some(known) = amiss.get_mut(target) {
            *known = Amiss {
                reason: failure.reason,
                until: until.max(known.until),
            };
        } else if amiss.len() < AMISS_MAX {
            amiss.insert(
                target.to_owned(),
                Amiss {
                    reason: failure.reason,
                    until,
                },
            );
        }
        drop(amiss);
        self.note();
        if is_time(&self.next_miss) {
            let what = if again.is_some() {
                "are tried again later"
            } else {
                "go to the dead letters"
            };
            let Failure { reason, detail, .. } = failure;
            tracing::warn!(topic = target, %reason, "a target does not take its messages, which {what}: {detail}");
        }
    }

    /// Whether any target is amiss: else nobody need ask which it is that took a message.
    pub(crate) fn is_amiss(&self) -> bool {
        !self.amiss.borrow().is_empty()
    }

    /// A target took a message.
    pub(crate) fn reach(&self, target: &str) {
        let known = self.amiss.borrow_mut().remove(target);
        if known.is_some() {
            self.note();
        }
    }

    fn note(&self) {
        let (mut amiss, now) = (self.amiss.borrow_mut(), Instant::now());
        amiss.retain(|_, known| known.until > now);
        let Some(until) = amiss.values().map(|known| known.until).max() else {
            return self.health.clear_note();
        };
        let named: Vec<String> = amiss
            .iter()
            .map(|(target, known)| format!("`{target}` ({})", known.reason))
            .collect();
        self.health.note(
            format!("targets do not take their messages: {}", named.join(", ")),
            until,
        );
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::FailureKind;
    use crate::health::Health;
    use crate::model::Partition;

    const SECOND: Duration = Duration::from_secs(1);

    fn failure(reason: Reason) -> Failure {
        Failure {
            kind: FailureKind::NotNow,
            reason,
            detail: "said the broker".into(),
        }
    }

    fn notes(health: &Health) -> Vec<String> {
        assert_eq!(health.not_ready(), [], "other targets are served");
        health
            .degraded()
            .into_iter()
            .map(|complaint| complaint.reason)
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_that_is_missing_is_named_until_it_takes_a_message() {
        let health = Health::new();
        let outcry = Outcry::new(health.part("outlets"));
        outcry.miss("gone", &failure(Reason::UnknownTarget), Some(SECOND));
        outcry.miss("slow", &failure(Reason::TimedOut), Some(SECOND));
        assert_eq!(
            notes(&health),
            ["targets do not take their messages: `gone` (unknown_target), `slow` (timed_out)"]
        );
        outcry.reach("slow");
        outcry.reach("another");
        assert_eq!(
            notes(&health),
            ["targets do not take their messages: `gone` (unknown_target)"]
        );
        outcry.reach("gone");
        assert_eq!(notes(&health), [""; 0]);
        assert!(!outcry.is_amiss());
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_that_is_asked_for_no_more_is_forgotten() {
        let health = Health::new();
        let outcry = Outcry::new(health.part("outlets"));
        outcry.miss("gone", &failure(Reason::UnknownTarget), Some(60 * SECOND));
        outcry.miss("gone", &failure(Reason::UnknownTarget), None);
        tokio::time::advance(60 * SECOND).await;
        assert_eq!(
            notes(&health).len(),
            1,
            "a message of its is still to be tried again"
        );
        tokio::time::advance(AMISS_SLACK).await;
        assert_eq!(notes(&health), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn any_number_of_missing_targets_makes_a_short_note() {
        let health = Health::new();
        let outcry = Outcry::new(health.part("outlets"));
        for number in 0..1_000 {
            outcry.miss(
                &format!("gone-{number}"),
                &failure(Reason::UnknownTarget),
                Some(SECOND),
            );
        }
        assert_eq!(notes(&health)[0].matches("gone-").count(), AMISS_MAX);
    }

    fn shard(index: i32) -> ShardId {
        ShardId::new("orders", Partition::new("orders.delayed", index))
    }

    #[tokio::test(start_paused = true)]
    async fn the_process_is_not_ready_until_the_last_of_those_that_wait_got_through() {
        let health = Health::new();
        let outcry = Outcry::new(health.part("outlets"));
        outcry.say(
            (&shard(0), Offset(3)),
            "its dead-letter topic",
            &failure(Reason::UnknownTarget),
        );
        outcry.say(
            (&shard(1), Offset(3)),
            "its dead-letter topic",
            &failure(Reason::UnknownTarget),
        );
        outcry.say(
            (&shard(1), Offset(3)),
            "its dead-letter topic",
            &failure(Reason::UnknownTarget),
        );
        outcry.calm(&shard(0), Offset(4));
        outcry.calm(&shard(0), Offset(3));
        assert_eq!(health.not_ready().len(), 1, "one still waits");
        outcry.calm(&shard(1), Offset(3));
        assert_eq!(health.not_ready(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_of_a_shard_that_was_lost_is_another_process_trouble() {
        let health = Health::new();
        let outcry = Outcry::new(health.part("outlets"));
        outcry.say(
            (&shard(0), Offset(3)),
            "its source",
            &failure(Reason::UnknownTarget),
        );
        outcry.leave(&shard(1));
        assert_eq!(health.not_ready().len(), 1);
        outcry.leave(&shard(0));
        assert_eq!(health.not_ready(), []);
    }
}
