//! Measures for how long only the rate of its route has kept the due messages of a shard waiting.
//!
//! Time does not count if something else keeps the messages waiting: a slow target, an outage of the store, a
//! lost lease. Nor does it count while the bucket of the rate is full, because the shard could claim then.
//! A new owner of the shard starts at zero.

use crate::limit::RATE_HOLD_GAP_MAX;
use crate::model::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// For how long the rate has held a shard back, since a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldTime {
    from: Timestamp,
    /// Not more than the time that has passed since `from`.
    length: Duration,
}

impl Default for HeldTime {
    fn default() -> Self {
        Self {
            from: Timestamp::AT_ONCE,
            length: Duration::ZERO,
        }
    }
}

impl HeldTime {
    /// The part of the lateness of a message with this due time that the rate has caused. For a message that was
    /// due after `from` it may be too small, and is never too great: it counts as if the rate had held the
    /// shard back first, and everything else later.
    pub(crate) fn lateness(self, due: Timestamp) -> Duration {
        self.length.saturating_sub(due.since(self.from))
    }

    /// No wait may be longer than the time that has passed. The clock may have stepped back.
    fn limit_to(&mut self, wall: Timestamp) {
        self.from = self.from.min(wall);
        self.length = self.length.min(wall.since(self.from));
    }
}

#[derive(Default)]
pub(crate) struct RateHold {
    held: HeldTime,
    /// `None`: something else keeps the messages waiting.
    last: Option<LastSeen>,
}

struct LastSeen {
    /// When the rate was last seen to be the only reason. A claim does not show that.
    seen_at: Instant,
    /// The time before this was counted.
    counted_to: Instant,
    /// For how long the bucket was full until then.
    full_time: Duration,
}

impl RateHold {
    /// Only the rate keeps due messages of the shard from being claimed now. `first_due`: the least due time of a
    /// message that waits. `full_time`: for how long the bucket was full, in total.
    pub(crate) fn on_held(
        &mut self,
        first_due: Option<Timestamp>,
        wall: Timestamp,
        now: Instant,
        full_time: Duration,
    ) {
        self.count(wall, now, full_time);
        // None of the messages that wait would count any of it.
        if self.held.length.is_zero()
            || first_due.is_some_and(|due| self.held.lateness(due).is_zero())
        {
            self.held = HeldTime {
                from: wall,
                length: Duration::ZERO,
            };
        }
        self.last = Some(LastSeen {
            seen_at: now,
            counted_to: now,
            full_time,
        });
    }

    /// Counts the time since the last call.
    fn count(&mut self, wall: Timestamp, now: Instant, full_time: Duration) {
        let is_active = self.is_active(now);
        if let Some(last) = self.last.as_mut().filter(|_| is_active) {
            let was_full = full_time.saturating_sub(last.full_time);
            let passed = now.saturating_duration_since(last.counted_to);
            self.held.length += passed.saturating_sub(was_full);
            last.counted_to = now;
            last.full_time = full_time;
        }
        self.held.limit_to(wall);
    }

    /// Something else keeps the messages from being claimed.
    pub(crate) fn end(&mut self) {
        self.last = None;
    }

    /// Returns the time that counts for the messages of a claim.
    pub(crate) fn at_claim(
        &mut self,
        wall: Timestamp,
        now: Instant,
        full_time: Duration,
    ) -> HeldTime {
        self.count(wall, now, full_time);
        self.held
    }

    /// Returns whether only the rate keeps due messages waiting.
    pub(crate) fn is_active(&self, now: Instant) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|last| now <= last.seen_at + RATE_HOLD_GAP_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// A shard whose messages the rate keeps waiting from one time to another, in milliseconds.
    struct Shard {
        hold: RateHold,
        start: Instant,
        first_due: Option<Timestamp>,
        full_time: Duration,
    }

    impl Shard {
        fn new() -> Self {
            Self {
                hold: RateHold::default(),
                start: Instant::now(),
                first_due: None,
                full_time: Duration::ZERO,
            }
        }

        fn time(&self, millis: i64) -> Instant {
            self.start + Duration::from_millis(millis.unsigned_abs())
        }

        fn see(&mut self, millis: i64) {
            let now = self.time(millis);
            self.hold
                .on_held(self.first_due, at(millis), now, self.full_time);
        }

        fn hold(&mut self, from: i64, to: i64) {
            (from..=to).step_by(100).for_each(|millis| self.see(millis));
        }

        /// The lateness by the rate, in milliseconds, of a message that is claimed at `claimed`.
        fn lateness(&mut self, due: i64, claimed: i64) -> u128 {
            let now = self.time(claimed);
            let held = self.hold.at_claim(at(claimed), now, self.full_time);
            held.lateness(at(due)).as_millis()
        }
    }

    #[test]
    fn the_whole_wait_is_by_the_rate_if_nothing_else_delays_the_message() {
        let mut shard = Shard::new();
        shard.hold(1_000, 5_000);
        assert_eq!(shard.lateness(2_000, 5_050), 3_050);
        assert_eq!(shard.lateness(500, 5_050), 4_050, "before it was held");
        assert_eq!(shard.lateness(6_000, 5_050), 0, "it is not due");
    }

    #[test]
    fn claims_alone_do_not_show_that_the_rate_holds_the_shard_back() {
        let mut shard = Shard::new();
        shard.see(0);
        for claimed in (100..10_000).step_by(100) {
            let most = RATE_HOLD_GAP_MAX.as_millis();
            assert!(shard.lateness(0, claimed) <= most, "at {claimed} ms");
        }
    }

    #[test]
    fn the_time_in_which_the_bucket_is_full_is_not_by_the_rate() {
        let mut shard = Shard::new();
        // Each call of the store takes 400 ms, and the bucket is full after 100 ms.
        for number in 0..=10 {
            shard.see(400 * number);
            shard.full_time += Duration::from_millis(300);
        }
        shard.full_time -= Duration::from_millis(300);
        assert_eq!(shard.lateness(0, 4_000), 1_000);
    }

    #[test]
    fn an_outage_is_not_by_the_rate_and_the_wait_before_it_is() {
        let mut shard = Shard::new();
        shard.hold(0, 10_000);
        // The store is away for a minute, without any claim.
        shard.hold(70_000, 72_000);
        assert_eq!(shard.lateness(0, 72_000), 12_000);
        assert_eq!(shard.lateness(10_000, 72_000), 2_000, "due as it began");
        assert_eq!(shard.lateness(60_000, 72_000), 0, "less than the truth");
    }

    #[test]
    fn another_reason_ends_the_hold_at_once() {
        let mut shard = Shard::new();
        shard.hold(0, 1_000);
        assert!(shard.hold.is_active(shard.time(1_200)));
        shard.hold.end();
        assert!(!shard.hold.is_active(shard.time(1_200)));
        shard.hold(1_300, 2_000);
        assert_eq!(shard.lateness(0, 2_000), 1_700);
    }

    #[test]
    fn a_later_backlog_counts_from_its_own_beginning() {
        let mut shard = Shard::new();
        shard.first_due = Some(at(0));
        shard.hold(0, 3_000);
        shard.first_due = Some(at(60_000));
        shard.hold(60_000, 62_000);
        assert_eq!(shard.lateness(60_000, 62_000), 2_000);
        assert_eq!(shard.lateness(0, 62_000), 2_000, "the earlier wait is lost");
    }

    #[test]
    fn no_message_counts_more_than_it_has_waited_for_the_rate() {
        let mut shard = Shard::new();
        let spans: Vec<_> = (0..100)
            .map(|number| (number * 1_000, number * 1_000 + 300))
            .collect();
        let end = 99_300;
        for first_due in [0, 20_000, 45_500, 90_000] {
            shard.first_due = Some(at(first_due));
            shard.hold = RateHold::default();
            for (from, to) in &spans {
                shard.hold(*from, *to);
                shard.hold.end();
            }
            for due in (first_due..end).step_by(50) {
                let waits = spans.iter().map(|(from, to)| (to - due.max(*from)).max(0));
                let wait = waits.sum::<i64>().unsigned_abs();
                let counted = shard.lateness(due, end);
                assert!(counted <= wait.into(), "due {due}: {counted} of {wait}");
            }
        }
        shard.first_due = Some(at(0));
        shard.hold = RateHold::default();
        for (from, to) in &spans {
            shard.hold(*from, *to);
            shard.hold.end();
        }
        assert_eq!(shard.lateness(0, end), 30_000, "the first one loses none");
    }

    #[test]
    fn no_time_counts_twice_after_the_clock_has_stepped_back() {
        let mut shard = Shard::new();
        shard.hold(0, 1_000);
        let none = Duration::ZERO;
        let time = |millis| shard.start + Duration::from_millis(millis);
        let (stepped, later) = (time(1_100), time(1_300));
        shard.hold.on_held(None, at(500), stepped, none);
        shard.hold.on_held(None, at(700), later, none);
        let held = shard.hold.at_claim(at(700), later, none);
        assert_eq!(held.lateness(at(600)).as_millis(), 100);
        assert_eq!(held.lateness(at(0)).as_millis(), 700);
    }
}
