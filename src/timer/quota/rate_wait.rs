//! Measures how long the `rate` of its route has held a shard back.
//!
//! The sum begins with the first due message that waits, and ends when no due message is left. It is the
//! part of the lateness that the rate has caused. The store keeps it, so that a takeover continues it.

use crate::limit::RATE_WAIT_GAP_MAX;
use crate::model::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct RateWait {
    total: Duration,
    /// The rate held the shard back until this time.
    until: Option<Instant>,
    /// The sum that the store has, in milliseconds.
    stored: u64,
}

/// How long the rate had held a shard back when it claimed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBack {
    total: Duration,
    claimed_at: Timestamp,
}

impl HeldBack {
    pub(crate) const NOT: Self = Self {
        total: Duration::ZERO,
        claimed_at: Timestamp::AT_ONCE,
    };

    /// The part of the lateness of a message with this due time that the rate has caused.
    pub(crate) fn lateness(self, due: Timestamp) -> Duration {
        self.total.min(self.claimed_at.since(due))
    }
}

impl RateWait {
    /// `stored`: the sum that the previous owner has left in the store.
    pub(crate) fn new(stored: u64) -> Self {
        let known = if fault!(ForgetRateWait) { 0 } else { stored };
        Self {
            total: Duration::from_millis(known),
            until: None,
            stored,
        }
    }

    /// The rate holds due messages back from `now` until `until`. Two such times follow each other
    /// without a gap if the gap is short.
    pub(crate) fn hold(&mut self, now: Instant, until: Instant) {
        let from = self.until.filter(|_| self.holds(now)).unwrap_or(now);
        self.total += until.saturating_duration_since(from);
        self.until = Some(from.max(until));
    }

    /// No due message is left.
    pub(crate) fn end(&mut self) {
        self.total = Duration::ZERO;
        self.until = None;
    }

    /// True if nothing but the rate keeps due messages waiting.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        (self.until).is_some_and(|until| now < until + RATE_WAIT_GAP_MAX)
    }

    pub(crate) fn at_claim(&self, claimed_at: Timestamp) -> HeldBack {
        HeldBack {
            total: self.total,
            claimed_at,
        }
    }

    /// The sum in milliseconds, if the store does not have it.
    pub(crate) fn take_unstored(&mut self) -> Option<u64> {
        let millis = u64::try_from(self.total.as_millis()).unwrap_or(u64::MAX);
        let stored = std::mem::replace(&mut self.stored, millis);
        (stored != millis).then_some(millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_counts_what_the_rate_causes_and_no_outage() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut wait = RateWait::new(0);
        assert!(!wait.holds(start));
        wait.hold(at(0), at(50));
        wait.hold(at(20), at(50));
        assert_eq!(wait.total, Duration::from_millis(50), "counted once");
        // A claim takes some milliseconds.
        wait.hold(at(60), at(110));
        assert_eq!(wait.total, Duration::from_millis(110));
        assert!(wait.holds(at(1_000)) && !wait.holds(at(1_110)));
        // The store was away for ten seconds.
        wait.hold(at(10_000), at(10_050));
        assert_eq!(wait.total, Duration::from_millis(160));
        wait.end();
        wait.hold(at(10_060), at(10_080));
        assert_eq!(wait.total, Duration::from_millis(20), "another wait");
    }

    #[test]
    fn a_takeover_continues_the_wait_of_the_previous_owner() {
        let start = Instant::now();
        let mut wait = RateWait::new(7_000);
        assert_eq!(wait.take_unstored(), None);
        wait.hold(start, start + Duration::from_millis(40));
        assert_eq!(wait.take_unstored(), Some(7_040));
        assert_eq!(wait.take_unstored(), None);
        wait.end();
        assert_eq!(wait.take_unstored(), Some(0));
    }

    #[test]
    fn a_message_is_late_by_the_rate_at_most_from_its_due_time_to_its_claim() {
        let mut wait = RateWait::new(3_000);
        let claim = |wait: &RateWait| wait.at_claim(Timestamp::from_millis(10_000));
        let late = |held: HeldBack, due| held.lateness(Timestamp::from_millis(due)).as_millis();
        assert_eq!(late(claim(&wait), 1_000), 3_000, "6 s have another cause");
        assert_eq!(late(claim(&wait), 8_000), 2_000);
        assert_eq!(late(claim(&wait), 10_200), 0, "claimed ahead");
        wait.end();
        assert_eq!(late(claim(&wait), 1_000), 0);
        assert_eq!(late(HeldBack::NOT, 1_000), 0);
    }
}
