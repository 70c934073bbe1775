//! Reports delivery problems of one route in logs and readiness: rerouted messages, failing
//! targets, and blocked messages. Logs are rate-limited; metrics count every case.

use super::record::{Destination, Reroute};
use crate::broker::DeliveryFailure;
use crate::encryption::waits_for_key;
use crate::health::HealthPart;
use crate::limit::{
    DELIVERY_ALERT_INTERVAL, FAILING_TARGET_SHOWN_MARGIN, FAILING_TARGETS_SHOWN_MAX,
};
use crate::model::{DeadLetterReason, Offset, ShardId};
use crate::run::RunError;
use crate::timer::load::BlockedRun;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;
use tokio::time::Instant;

/// What blocks a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Blocker {
    Message(Offset),
    /// A run of a newer version, by its least offset.
    Run(Offset),
    Marker,
    /// The key of one or more runs is missing.
    MissingKey,
}

pub(crate) struct DeliveryAlerts {
    health: HealthPart,
    /// What blocks each shard. Bounded by the messages in flight and by the shards.
    blocked: RefCell<BTreeSet<(ShardId, Blocker)>>,
    next_blocked_log: Cell<Option<Instant>>,
    next_reroute_log: Cell<Option<Instant>>,
    next_record_log: Cell<Option<Instant>>,
    next_target_log: Cell<Option<Instant>>,
    /// Why a target does not accept messages, and how long `/readyz` shows it: until the last known
    /// message has been retried.
    failing_targets: RefCell<BTreeMap<String, (DeadLetterReason, Instant)>>,
}

impl DeliveryAlerts {
    pub(crate) fn new(health: HealthPart) -> Self {
        health.set_ready();
        Self {
            health,
            blocked: RefCell::default(),
            next_blocked_log: Cell::default(),
            next_reroute_log: Cell::default(),
            next_record_log: Cell::default(),
            next_target_log: Cell::default(),
            failing_targets: RefCell::default(),
        }
    }

    /// A message has no further destination to try. The process is not ready until it is delivered.
    pub(crate) fn on_blocked(
        &self,
        shard: &ShardId,
        offset: Offset,
        destination: impl Display,
        failure: &DeliveryFailure,
    ) {
        let reason = format!(
            "shard {shard} is blocked: {destination} refuses the message at offset {offset}: {} ({}). Create the topic, \
             or correct its limits or permissions",
            failure.detail, failure.reason
        );
        self.blocked
            .borrow_mut()
            .insert((shard.clone(), Blocker::Message(offset)));
        self.health.set_not_ready(reason.clone());
        if is_log_due(&self.next_blocked_log) {
            tracing::error!(%shard, %offset, "{reason}");
        }
    }

    /// The shard waits in front of a run of a newer version, or without its key. The process is not
    /// ready until another worker serves the shard.
    pub(crate) fn on_blocked_run(&self, shard: &ShardId, run: &BlockedRun) {
        let BlockedRun { name, why } = run;
        if *why == RunError::MissingKey {
            let reason = waits_for_key(shard, name.key());
            // Not logged here: the worker that reads the partition logs the missing key.
            let blocker = (shard.clone(), Blocker::MissingKey);
            self.blocked.borrow_mut().insert(blocker);
            return self.health.set_not_ready(reason);
        }
        self.on_newer(
            shard,
            Blocker::Run(name.least_offset()),
            &format!("the stored run {name}, {why}"),
        );
    }

    /// The message has a format of a newer version. Its shard waits for that version.
    pub(crate) fn on_newer_message(&self, shard: &ShardId, offset: Offset) {
        self.on_newer(
            shard,
            Blocker::Message(offset),
            "the stored message has an unknown format",
        );
    }

    /// The marker of the shard has a format of a newer version.
    pub(crate) fn on_newer_marker(&self, shard: &ShardId) {
        self.on_newer(
            shard,
            Blocker::Marker,
            "its delivered marker has an unknown format",
        );
    }

    /// The marker of the shard was read.
    pub(crate) fn on_marker_read(&self, shard: &ShardId) {
        self.unblock(shard, Blocker::Marker);
    }

    fn on_newer(&self, shard: &ShardId, blocker: Blocker, found: &str) {
        let reason =
            format!("shard {shard} waits for a newer version ({found}): run the newer version");
        self.on_waiting(shard, blocker, &reason);
    }

    /// Logs a reason once for each blocker.
    fn on_waiting(&self, shard: &ShardId, blocker: Blocker, reason: &str) {
        let is_new = self.blocked.borrow_mut().insert((shard.clone(), blocker));
        self.health.set_not_ready(reason);
        if is_new {
            tracing::error!(%shard, "{reason}");
        }
    }

    /// A message is retried or dead-lettered. Logs one such message per interval, as an example.
    pub(crate) fn on_rerouted(&self, shard: &ShardId, offset: Offset, reroute: &Reroute) {
        if !is_log_due(&self.next_reroute_log) {
            return;
        }
        let Reroute { reason, detail, .. } = reroute;
        let action = match reroute.destination {
            Destination::RetryViaSource { .. } => "is retried later",
            Destination::Reschedule { .. } => "is rescheduled",
            Destination::Dropped => "is dropped",
            _ => "goes to the dead letters",
        };
        let interval = DELIVERY_ALERT_INTERVAL.as_secs();
        tracing::warn!(%shard, %offset, %reason,
            "a message {action}: {detail} (others within {interval} s are only counted)");
    }

    /// An outcome record was dropped. Logs one such record per interval, as an example.
    pub(crate) fn on_record_dropped(&self, topic: &str, why: &str) {
        if is_log_due(&self.next_record_log) {
            let (part, interval) = (self.health.name(), DELIVERY_ALERT_INTERVAL.as_secs());
            tracing::warn!(
                part,
                topic,
                "an outcome record is dropped: {why} (others within {interval} s are only counted)"
            );
        }
    }

    /// A message was acknowledged. This clears its alert, but not that of other blocked messages.
    pub(crate) fn on_delivered(&self, shard: &ShardId, offset: Offset) {
        self.unblock(shard, Blocker::Message(offset));
    }

    fn unblock(&self, shard: &ShardId, blocker: Blocker) {
        let mut blocked = self.blocked.borrow_mut();
        if !blocked.is_empty() && blocked.remove(&(shard.clone(), blocker)) && blocked.is_empty() {
            self.health.set_ready();
        }
    }

    /// This process no longer serves the shard, so it forgets its blocked messages.
    pub(crate) fn forget_shard(&self, forgotten: &ShardId) {
        let mut blocked = self.blocked.borrow_mut();
        let before = blocked.len();
        blocked.retain(|(shard, _)| shard != forgotten);
        if blocked.is_empty() && before > 0 {
            self.health.set_ready();
        }
    }

    /// A target rejected a message and will probably reject others. `/readyz` shows it as degraded,
    /// but the process stays ready. `retry_in` is `None` if the message was dead-lettered.
    pub(crate) fn on_target_failed(
        &self,
        target: &str,
        failure: &DeliveryFailure,
        retry_in: Option<Duration>,
    ) {
        let DeliveryFailure { reason, detail, .. } = failure;
        let until = Instant::now() + retry_in.unwrap_or_default() + FAILING_TARGET_SHOWN_MARGIN;
        let mut failing = self.failing_targets.borrow_mut();
        let known_until = failing.get(target).map(|(_, until)| *until);
        if known_until.is_some() || failing.len() < FAILING_TARGETS_SHOWN_MAX {
            let until = until.max(known_until.unwrap_or(until));
            failing.insert(target.to_owned(), (*reason, until));
        }
        drop(failing);
        self.update_health_note();
        if is_log_due(&self.next_target_log) {
            let action = match retry_in {
                Some(_) => "are retried later",
                None => "go to the dead letters",
            };
            tracing::warn!(part = self.health.name(), topic = target, %reason,
                "the target does not accept messages; the messages {action}: {detail}");
        }
    }

    /// If false, the target of an acknowledged message need not be looked up.
    pub(crate) fn has_failing_targets(&self) -> bool {
        !self.failing_targets.borrow().is_empty()
    }

    pub(crate) fn on_target_recovered(&self, target: &str) {
        let known = self.failing_targets.borrow_mut().remove(target);
        if known.is_some() {
            self.update_health_note();
        }
    }

    fn update_health_note(&self) {
        let now = Instant::now();
        let mut failing = self.failing_targets.borrow_mut();
        failing.retain(|_, (_, until)| *until > now);
        let Some(until) = failing.values().map(|(_, until)| *until).max() else {
            return self.health.clear_degraded();
        };
        let name = |(name, (reason, _)): (&String, &(DeadLetterReason, Instant))| {
            format!("`{name}` ({reason})")
        };
        let names: Vec<String> = failing.iter().map(name).collect();
        let note = format!("targets do not accept their messages: {}", names.join(", "));
        self.health.set_degraded(note, until);
    }
}

fn is_log_due(next: &Cell<Option<Instant>>) -> bool {
    let now = Instant::now();
    let is_due = next.get().is_none_or(|next| next <= now);
    if is_due {
        next.set(Some(now + DELIVERY_ALERT_INTERVAL));
    }
    is_due
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::FailureKind;
    use crate::health::Health;
    use crate::model::Partition;
    use crate::run::RunName;

    const SECOND: Duration = Duration::from_secs(1);

    fn failure(reason: DeadLetterReason) -> DeliveryFailure {
        DeliveryFailure {
            kind: FailureKind::NotDelivered,
            reason,
            detail: "said the broker".into(),
        }
    }

    fn unknown_target() -> DeliveryFailure {
        failure(DeadLetterReason::UnknownTarget)
    }

    fn notes(health: &Health) -> Vec<String> {
        assert_eq!(health.not_ready(), [], "other targets are served");
        health
            .degraded()
            .into_iter()
            .map(|complaint| complaint.reason)
            .collect()
    }

    fn shard(index: i32) -> ShardId {
        ShardId::new("orders", Partition::new("orders.delayed", index))
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_target_is_named_until_it_accepts_a_message() {
        let health = Health::new();
        let alerts = DeliveryAlerts::new(health.register("outlets"));
        alerts.on_target_failed("gone", &unknown_target(), Some(SECOND));
        let timed_out = failure(DeadLetterReason::TimedOut);
        alerts.on_target_failed("slow", &timed_out, Some(SECOND));
        assert_eq!(
            notes(&health),
            ["targets do not accept their messages: `gone` (unknown_target), `slow` (timed_out)"]
        );
        alerts.on_target_recovered("slow");
        alerts.on_target_recovered("another");
        assert_eq!(
            notes(&health),
            ["targets do not accept their messages: `gone` (unknown_target)"]
        );
        alerts.on_target_recovered("gone");
        assert_eq!(notes(&health), [""; 0]);
        assert!(!alerts.has_failing_targets());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_target_is_forgotten_after_its_last_retry() {
        let health = Health::new();
        let alerts = DeliveryAlerts::new(health.register("outlets"));
        alerts.on_target_failed("gone", &unknown_target(), Some(60 * SECOND));
        alerts.on_target_failed("gone", &unknown_target(), None);
        tokio::time::advance(60 * SECOND).await;
        assert_eq!(notes(&health).len(), 1, "a retry is still to come");
        tokio::time::advance(FAILING_TARGET_SHOWN_MARGIN).await;
        assert_eq!(notes(&health), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_failing_targets_make_a_short_note() {
        let health = Health::new();
        let alerts = DeliveryAlerts::new(health.register("outlets"));
        for number in 0..1_000 {
            let target = format!("gone-{number}");
            alerts.on_target_failed(&target, &unknown_target(), Some(SECOND));
        }
        assert_eq!(
            notes(&health)[0].matches("gone-").count(),
            FAILING_TARGETS_SHOWN_MAX
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_process_is_not_ready_until_the_last_blocked_message_is_delivered() {
        let health = Health::new();
        let alerts = DeliveryAlerts::new(health.register("outlets"));
        for index in [0, 1, 1] {
            alerts.on_blocked(
                &shard(index),
                Offset(3),
                "its dead-letter topic",
                &unknown_target(),
            );
        }
        alerts.on_delivered(&shard(0), Offset(4));
        alerts.on_delivered(&shard(0), Offset(3));
        assert_eq!(health.not_ready().len(), 1, "one is still blocked");
        alerts.on_delivered(&shard(1), Offset(3));
        assert_eq!(health.not_ready(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn the_process_is_not_ready_while_a_shard_waits_for_a_newer_version() {
        let health = Health::new();
        let alerts = DeliveryAlerts::new(health.register("deliveries"));
        let run = BlockedRun {
            name: RunName::new("1-1-1-7"),
            why: RunError::UnknownVersion(3),
        };
        alerts.on_blocked_run(&shard(0), &run);
        let reason = health.not_ready().remove(0).reason;
        assert!(
            reason.starts_with("shard orders/orders.delayed/0 waits for a newer version")
                && reason.ends_with("run the newer version"),
            "{reason}"
        );
        alerts.forget_shard(&shard(0));
        assert_eq!(health.not_ready(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn blocked_messages_of_a_lost_shard_do_not_affect_readiness() {
        let health = Health::new();
        let alerts = DeliveryAlerts::new(health.register("outlets"));
        alerts.on_blocked(&shard(0), Offset(3), "its source", &unknown_target());
        alerts.forget_shard(&shard(1));
        assert_eq!(health.not_ready().len(), 1);
        alerts.forget_shard(&shard(0));
        assert_eq!(health.not_ready(), []);
    }
}
