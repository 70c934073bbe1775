//! Says loudly what goes wrong on the way out: that a message was diverted, that a target does not take what it is sent, and that a message
//! waits because its dead letter, or its way back, does not get through. No more often than a person can read; the metrics count each.

use super::flying::{Destination, Reroute};
use crate::broker::DeliveryFailure;
use crate::health::HealthPart;
use crate::limit::{
    DELIVERY_ALERT_INTERVAL, FAILING_TARGET_SHOWN_MARGIN, FAILING_TARGETS_SHOWN_MAX,
};
use crate::model::{Offset, Reason, ShardId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;
use tokio::time::Instant;

/// One a route.
pub(crate) struct DeliveryAlerts {
    health: HealthPart,
    /// Messages that failed on their last way, and have not got through since. As many at most as are in flight.
    blocked: RefCell<BTreeSet<(ShardId, Offset)>>,
    next_blocked_log: Cell<Option<Instant>>,
    next_reroute_log: Cell<Option<Instant>>,
    next_target_log: Cell<Option<Instant>>,
    failing_targets: RefCell<BTreeMap<String, FailingTarget>>,
}

/// A target that does not take its messages, and until when that is worth a word: the last of them that is known of has been tried again.
struct FailingTarget {
    reason: Reason,
    until: Instant,
}

impl DeliveryAlerts {
    pub(crate) fn new(health: HealthPart) -> Self {
        health.set_ready();
        Self {
            health,
            blocked: RefCell::default(),
            next_blocked_log: Cell::default(),
            next_reroute_log: Cell::default(),
            next_target_log: Cell::default(),
            failing_targets: RefCell::default(),
        }
    }

    /// A message waits, for `way` does not take it.
    pub(crate) fn on_blocked(
        &self,
        (shard, offset): (&ShardId, Offset),
        way: impl Display,
        failure: &DeliveryFailure,
    ) {
        let reason = format!(
            "a message of {shard} waits: {way} does not take it: {} ({})",
            failure.detail, failure.reason
        );
        self.blocked.borrow_mut().insert((shard.clone(), offset));
        self.health.set_not_ready(reason.clone());
        if is_log_due(&self.next_blocked_log) {
            tracing::error!(%shard, %offset, "{reason}");
        }
    }

    /// A message goes another way than to its target: named for the one who audits, one in [`DELIVERY_ALERT_INTERVAL`] a route.
    pub(crate) fn on_rerouted(&self, shard: &ShardId, offset: Offset, diverted: &Reroute) {
        if is_log_due(&self.next_reroute_log) {
            let Reroute {
                destination: stage,
                reason,
                detail,
                ..
            } = diverted;
            let way = if matches!(stage, Destination::RetryViaSource { .. }) {
                "is tried again later"
            } else {
                "goes to the dead letters"
            };
            tracing::warn!(%shard, %offset, %reason, "a message {way}: {detail} (others within {} s are only counted)", DELIVERY_ALERT_INTERVAL.as_secs());
        }
    }

    /// A message got through. That others did says nothing about those that wait.
    pub(crate) fn on_delivered(&self, shard: &ShardId, offset: Offset) {
        let mut waiting = self.blocked.borrow_mut();
        if !waiting.is_empty() && waiting.remove(&(shard.clone(), offset)) && waiting.is_empty() {
            self.health.set_ready();
        }
    }

    /// The shard is not this process's any more, nor are its messages.
    pub(crate) fn forget_shard(&self, left: &ShardId) {
        let mut waiting = self.blocked.borrow_mut();
        let before = waiting.len();
        waiting.retain(|(shard, _)| shard != left);
        if waiting.is_empty() && before > 0 {
            self.health.set_ready();
        }
    }

    /// A target does not take a message, and would hardly take another: noted in `/readyz`, though the process is as ready as it can be,
    /// and said once in [`DELIVERY_ALERT_INTERVAL`] a route. `again`: how soon the message is tried again; `None`: it is a dead letter.
    pub(crate) fn on_target_failed(
        &self,
        target: &str,
        failure: &DeliveryFailure,
        again: Option<Duration>,
    ) {
        let until = Instant::now() + again.unwrap_or_default() + FAILING_TARGET_SHOWN_MARGIN;
        let mut amiss = self.failing_targets.borrow_mut();
        if let Some(known) = amiss.get_mut(target) {
            *known = FailingTarget {
                reason: failure.reason,
                until: until.max(known.until),
            };
        } else if amiss.len() < FAILING_TARGETS_SHOWN_MAX {
            amiss.insert(
                target.to_owned(),
                FailingTarget {
                    reason: failure.reason,
                    until,
                },
            );
        }
        drop(amiss);
        self.update_health_note();
        if is_log_due(&self.next_target_log) {
            let what = if again.is_some() {
                "are tried again later"
            } else {
                "go to the dead letters"
            };
            let DeliveryFailure { reason, detail, .. } = failure;
            tracing::warn!(topic = target, %reason, "a target does not take its messages, which {what}: {detail}");
        }
    }

    /// Whether any target is amiss: else nobody need ask which it is that took a message.
    pub(crate) fn has_failing_targets(&self) -> bool {
        !self.failing_targets.borrow().is_empty()
    }

    /// A target took a message.
    pub(crate) fn on_target_recovered(&self, target: &str) {
        let known = self.failing_targets.borrow_mut().remove(target);
        if known.is_some() {
            self.update_health_note();
        }
    }

    fn update_health_note(&self) {
        let (mut amiss, now) = (self.failing_targets.borrow_mut(), Instant::now());
        amiss.retain(|_, known| known.until > now);
        let Some(until) = amiss.values().map(|known| known.until).max() else {
            return self.health.clear_degraded();
        };
        let named: Vec<String> = amiss
            .iter()
            .map(|(target, known)| format!("`{target}` ({})", known.reason))
            .collect();
        self.health.set_degraded(
            format!("targets do not take their messages: {}", named.join(", ")),
            until,
        );
    }
}

/// Whether the time noted has come; then the next is one interval away.
fn is_log_due(next: &Cell<Option<Instant>>) -> bool {
    let now = Instant::now();
    let is_time = next.get().is_none_or(|next| next <= now);
    if is_time {
        next.set(Some(now + DELIVERY_ALERT_INTERVAL));
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

    fn failure(reason: Reason) -> DeliveryFailure {
        DeliveryFailure {
            kind: FailureKind::NotDelivered,
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
        let outcry = DeliveryAlerts::new(health.register("outlets"));
        outcry.on_target_failed("gone", &failure(Reason::UnknownTarget), Some(SECOND));
        outcry.on_target_failed("slow", &failure(Reason::TimedOut), Some(SECOND));
        assert_eq!(
            notes(&health),
            ["targets do not take their messages: `gone` (unknown_target), `slow` (timed_out)"]
        );
        outcry.on_target_recovered("slow");
        outcry.on_target_recovered("another");
        assert_eq!(
            notes(&health),
            ["targets do not take their messages: `gone` (unknown_target)"]
        );
        outcry.on_target_recovered("gone");
        assert_eq!(notes(&health), [""; 0]);
        assert!(!outcry.has_failing_targets());
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_that_is_asked_for_no_more_is_forgotten() {
        let health = Health::new();
        let outcry = DeliveryAlerts::new(health.register("outlets"));
        outcry.on_target_failed("gone", &failure(Reason::UnknownTarget), Some(60 * SECOND));
        outcry.on_target_failed("gone", &failure(Reason::UnknownTarget), None);
        tokio::time::advance(60 * SECOND).await;
        assert_eq!(
            notes(&health).len(),
            1,
            "a message of its is still to be tried again"
        );
        tokio::time::advance(FAILING_TARGET_SHOWN_MARGIN).await;
        assert_eq!(notes(&health), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn any_number_of_missing_targets_makes_a_short_note() {
        let health = Health::new();
        let outcry = DeliveryAlerts::new(health.register("outlets"));
        for number in 0..1_000 {
            outcry.on_target_failed(
                &format!("gone-{number}"),
                &failure(Reason::UnknownTarget),
                Some(SECOND),
            );
        }
        assert_eq!(
            notes(&health)[0].matches("gone-").count(),
            FAILING_TARGETS_SHOWN_MAX
        );
    }

    fn shard(index: i32) -> ShardId {
        ShardId::new("orders", Partition::new("orders.delayed", index))
    }

    #[tokio::test(start_paused = true)]
    async fn the_process_is_not_ready_until_the_last_of_those_that_wait_got_through() {
        let health = Health::new();
        let outcry = DeliveryAlerts::new(health.register("outlets"));
        outcry.on_blocked(
            (&shard(0), Offset(3)),
            "its dead-letter topic",
            &failure(Reason::UnknownTarget),
        );
        outcry.on_blocked(
            (&shard(1), Offset(3)),
            "its dead-letter topic",
            &failure(Reason::UnknownTarget),
        );
        outcry.on_blocked(
            (&shard(1), Offset(3)),
            "its dead-letter topic",
            &failure(Reason::UnknownTarget),
        );
        outcry.on_delivered(&shard(0), Offset(4));
        outcry.on_delivered(&shard(0), Offset(3));
        assert_eq!(health.not_ready().len(), 1, "one still waits");
        outcry.on_delivered(&shard(1), Offset(3));
        assert_eq!(health.not_ready(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_of_a_shard_that_was_lost_is_another_process_trouble() {
        let health = Health::new();
        let outcry = DeliveryAlerts::new(health.register("outlets"));
        outcry.on_blocked(
            (&shard(0), Offset(3)),
            "its source",
            &failure(Reason::UnknownTarget),
        );
        outcry.forget_shard(&shard(1));
        assert_eq!(health.not_ready().len(), 1);
        outcry.forget_shard(&shard(0));
        assert_eq!(health.not_ready(), []);
    }
}
