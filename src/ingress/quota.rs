//! The quota of a route: how many messages and bytes may wait. Over it, the route stops reading (G6),
//! or makes dead letters of new messages.
//!
//! Each worker keeps to the share of the partitions that it reads, so the workers need no common
//! counter. A worker knows by the store checks how much waits, and adds the messages that it has read since.
//!
//! While a shard is behind the greatest watermark that is known, all shards of the worker are read, even
//! over the quota. The records below it were within the quota before the store lost them.

use super::read_loop::Ingress;
use crate::limit::{QUOTA_CALM_BELOW, QUOTA_NOTE_TIME, QUOTA_WARN_FROM};
use crate::store::StoredShard;
use tokio::time::Instant;

/// The most that may wait on a route. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) messages: Option<u64>,
    /// Compressed bytes of the stored runs.
    pub(crate) bytes: Option<u64>,
    /// New messages over the quota become dead letters. Otherwise the route stops reading.
    pub(crate) refuses: bool,
}

impl Quota {
    /// The used part of a share of the quota: 1 if all of it is used.
    fn used(self, waiting: Waiting, share: f64) -> f64 {
        let part = |used: u64, max: Option<u64>| match max {
            Some(max) if used > 0 => used as f64 / (max as f64 * share),
            _ => 0.0,
        };
        part(waiting.messages, self.messages).max(part(waiting.bytes, self.bytes))
    }
}

/// Messages that wait, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Waiting {
    pub(super) fn of(state: &StoredShard) -> Self {
        Self {
            messages: state.pending(),
            bytes: state.stored_bytes(),
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
        }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            messages: self.messages.saturating_sub(other.messages),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// The waiting messages of one partition. Exact after a store check. Until the next one, deliveries are
/// not known, and neither are appends whose reading has stopped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WaitingCount {
    /// By the last store check.
    found: Waiting,
    /// Everything that this worker has stored.
    stored: Waiting,
    /// `stored` when the last store check began.
    stored_at_check: Waiting,
    /// Sent to the appender, and not answered.
    appending: Waiting,
}

impl WaitingCount {
    pub(super) fn append_sent(&mut self, messages: Waiting) {
        self.appending = self.appending.plus(messages);
    }

    pub(super) fn append_answered(&mut self, messages: Waiting) {
        self.appending = self.appending.minus(messages);
        self.stored = self.stored.plus(messages);
    }

    /// The reading has stopped, so answers to its appends are ignored.
    pub(super) fn reading_stopped(&mut self) {
        self.appending = Waiting::default();
    }

    pub(super) fn stored_by_worker(&self) -> Waiting {
        self.stored
    }

    /// A store check has found this. `stored`: [`Self::stored_by_worker`] when it began.
    pub(super) fn checked(&mut self, found: Waiting, stored: Waiting) {
        (self.found, self.stored_at_check) = (found, stored);
    }

    pub(super) fn total(&self) -> Waiting {
        let since_check = self.stored.minus(self.stored_at_check);
        self.found.plus(since_check).plus(self.appending)
    }
}

/// The last logged state of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
pub(super) enum QuotaLevel {
    #[default]
    Calm,
    Near,
    Over,
}

impl QuotaLevel {
    /// The level at this use. It falls only well below the warning, so that a route at its quota does
    /// not log each second.
    fn next(self, used: f64) -> Self {
        match used {
            _ if used >= 1.0 => Self::Over,
            _ if used >= QUOTA_WARN_FROM && self == Self::Calm => Self::Near,
            _ if used < QUOTA_CALM_BELOW => Self::Calm,
            _ => self,
        }
    }
}

impl Ingress {
    fn quota(&self) -> Quota {
        *self.options.quota.borrow()
    }

    /// The used part of this worker's share of the quota.
    fn quota_used(&self) -> f64 {
        let own = self.partitions.len();
        // A partition may be assigned before all others are known.
        let share = own as f64 / self.route_partitions.max(own).max(1) as f64;
        self.quota().used(self.partitions.waiting(), share)
    }

    fn is_over_quota(&self) -> bool {
        self.quota_used() >= 1.0
    }

    /// Returns `true` if reading waits until messages are delivered. A paused shard delivers nothing, and
    /// a record that is not read yet resumes it.
    pub(super) fn waits_for_quota(&self) -> bool {
        let is_rebuilding = self.partitions.are_rebuilding() && !fault!(QuotaStopsRebuild);
        let is_used_up = !self.quota().refuses && !is_rebuilding && self.is_over_quota();
        is_used_up && !self.partitions.are_paused()
    }

    /// Returns `true` if new messages become dead letters.
    pub(super) fn refuses_for_quota(&self) -> bool {
        self.quota().refuses && self.is_over_quota()
    }

    /// Sets the gauge, logs a new level, and shows a used quota in the readiness.
    pub(super) fn report_quota(&mut self) {
        let (used, route) = (self.quota_used(), &self.options.route);
        self.ports.metric.quota_used.set(used);
        let level = self.quota_level.next(used);
        let Quota { refuses, .. } = self.quota();
        let effect = match refuses {
            true => "new messages become dead letters",
            false if self.partitions.are_paused() => "reading goes on, because the route is paused",
            false => "reading waits until messages are delivered",
        };
        if level > self.quota_level {
            let percent = (used * 100.0).round();
            match level {
                QuotaLevel::Over => {
                    tracing::warn!(%route, percent, "the quota max_waiting of the route is used up: {effect}");
                }
                _ => {
                    tracing::warn!(%route, percent, "the quota max_waiting of the route is nearly used up: raise it, or find out why so many messages wait");
                }
            }
        } else if level < self.quota_level {
            tracing::info!(%route, "the route is well below its quota max_waiting again");
        }
        self.quota_level = level;
        if used >= 1.0 {
            let reason = format!(
                "max_waiting of the route is used up: {effect}; raise it, or find out why so many messages wait"
            );
            let until = Instant::now() + QUOTA_NOTE_TIME;
            self.ports.health.source.set_degraded(reason, until);
        } else {
            self.ports.health.source.clear_degraded();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(messages: u64, bytes: u64) -> Waiting {
        Waiting { messages, bytes }
    }

    #[test]
    fn the_scarcer_of_messages_and_bytes_counts_and_each_worker_has_a_share() {
        let quota = |messages, bytes| Quota {
            messages,
            bytes,
            refuses: false,
        };
        for (quota, share, expected) in [
            (quota(Some(100), None), 1.0, 0.5),
            (quota(Some(100), Some(1_000)), 1.0, 0.9),
            (quota(None, Some(1_000)), 0.5, 1.8),
            (quota(None, None), 1.0, 0.0),
        ] {
            let used = quota.used(waiting(50, 900), share);
            assert!((used - expected).abs() < 1e-9, "{quota:?}: {used}");
        }
        let none = quota(Some(100), None).used(Waiting::default(), 0.0);
        assert!(none < 1.0, "a worker without partitions");
    }

    #[test]
    fn a_message_counts_from_its_append_until_a_check_that_began_later_does_not_find_it() {
        let mut count = WaitingCount::default();
        count.append_sent(waiting(10, 100));
        assert_eq!(count.total(), waiting(10, 100));
        let at_check = count.stored_by_worker();
        count.append_answered(waiting(10, 100));
        count.checked(waiting(10, 100), at_check);
        assert_eq!(
            count.total(),
            waiting(20, 200),
            "the check may have seen it"
        );
        count.checked(waiting(3, 30), count.stored_by_worker());
        assert_eq!(count.total(), waiting(3, 30));
        count.append_sent(waiting(1, 10));
        count.reading_stopped();
        assert_eq!(count.total(), waiting(3, 30), "it is read again");
    }

    #[test]
    fn a_level_is_logged_once_until_the_route_is_well_below_its_quota() {
        let mut level = QuotaLevel::default();
        for (used, expected) in [
            (0.79, QuotaLevel::Calm),
            (0.8, QuotaLevel::Near),
            (1.0, QuotaLevel::Over),
            (0.95, QuotaLevel::Over),
            (1.2, QuotaLevel::Over),
            (0.74, QuotaLevel::Calm),
            (1.0, QuotaLevel::Over),
        ] {
            level = level.next(used);
            assert_eq!(level, expected, "{used}");
        }
    }
}
