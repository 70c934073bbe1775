//! Measures for how long only the rate of its route has kept the due messages of a shard waiting.
//!
//! Other reasons end a span of time: a slow target, an outage of the store, a lost lease. Lateness in the
//! gaps between the spans is not by the rate. A new owner of the shard starts without spans.

use crate::limit::{RATE_HOLD_GAP_MAX, RATE_HOLD_SPANS_MAX};
use crate::model::Timestamp;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// A span of time in which only the rate has kept due messages waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldSpan {
    from: Timestamp,
    to: Timestamp,
}

#[derive(Default)]
pub(crate) struct RateHold {
    /// In the order of time.
    spans: VecDeque<HeldSpan>,
    /// When the rate was last seen to be the only reason. `None`: there was another one since.
    seen_at: Option<Instant>,
}

impl RateHold {
    /// Only the rate keeps due messages of the shard from being claimed now.
    pub(crate) fn on_held(&mut self, wall: Timestamp, now: Instant) {
        let is_held = self.is_active(now);
        match self
            .spans
            .back_mut()
            .filter(|last| is_held && last.to <= wall)
        {
            Some(last) => last.to = wall,
            None => self.start_span(wall),
        }
        self.seen_at = Some(now);
    }

    fn start_span(&mut self, wall: Timestamp) {
        // The clock may have stepped back.
        for span in &mut self.spans {
            *span = HeldSpan {
                from: span.from.min(wall),
                to: span.to.min(wall),
            };
        }
        let span = HeldSpan {
            from: wall,
            to: wall,
        };
        self.spans.push_back(span);
        if self.spans.len() > RATE_HOLD_SPANS_MAX {
            self.join_oldest();
        }
    }

    /// Moves the second span to the end of the first one. This never makes a wait longer.
    fn join_oldest(&mut self) {
        if let Some(first) = self.spans.pop_front()
            && let Some(second) = self.spans.front_mut()
        {
            let length = second.to.since(second.from);
            *second = HeldSpan {
                from: first.from,
                to: first.to.plus(length),
            };
        }
    }

    /// Something else keeps the messages from being claimed.
    pub(crate) fn end(&mut self) {
        self.seen_at = None;
    }

    /// The rate may have kept the messages waiting until this claim. Returns the spans before it.
    pub(crate) fn at_claim(&mut self, wall: Timestamp, now: Instant) -> Vec<HeldSpan> {
        if self.is_active(now) {
            self.on_held(wall, now);
        }
        self.spans.iter().copied().collect()
    }

    /// Returns whether only the rate keeps due messages waiting.
    pub(crate) fn is_active(&self, now: Instant) -> bool {
        self.seen_at
            .is_some_and(|seen_at| now <= seen_at + RATE_HOLD_GAP_MAX)
    }
}

/// The part of the lateness of a message that the rate has caused.
pub(crate) fn lateness_by_rate(spans: &[HeldSpan], due: Timestamp) -> Duration {
    let waits = spans.iter().map(|span| span.to.since(span.from.max(due)));
    waits.sum()
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
    }

    impl Shard {
        fn new() -> Self {
            let (hold, start) = (RateHold::default(), Instant::now());
            Self { hold, start }
        }

        fn time(&self, millis: i64) -> Instant {
            self.start + Duration::from_millis(millis.unsigned_abs())
        }

        fn hold(&mut self, from: i64, to: i64) {
            for millis in (from..=to).step_by(100) {
                self.hold.on_held(at(millis), self.time(millis));
            }
        }

        /// The lateness by the rate, in milliseconds, of a message that is claimed at `claimed`.
        fn lateness(&mut self, due: i64, claimed: i64) -> u128 {
            let now = self.time(claimed);
            let spans = self.hold.at_claim(at(claimed), now);
            lateness_by_rate(&spans, at(due)).as_millis()
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
    fn an_outage_is_not_by_the_rate_and_the_wait_before_it_is() {
        let mut shard = Shard::new();
        shard.hold(0, 10_000);
        // The store is away for a minute, without any claim.
        shard.hold(70_000, 72_000);
        assert_eq!(shard.lateness(0, 72_000), 12_000);
        assert_eq!(shard.lateness(10_000, 72_000), 2_000, "due as it began");
        assert_eq!(shard.lateness(60_000, 72_000), 2_000);
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
    fn the_number_of_spans_is_bounded_and_no_wait_gets_longer() {
        let mut shard = Shard::new();
        let spans: Vec<_> = (0..100)
            .map(|number| (number * 1_000, number * 1_000 + 300))
            .collect();
        for (from, to) in &spans {
            shard.hold(*from, *to);
            shard.hold.end();
        }
        assert_eq!(shard.hold.spans.len(), RATE_HOLD_SPANS_MAX);
        let end = 99_300;
        for due in (-500..end).step_by(50) {
            let true_waits = spans.iter().map(|(from, to)| (to - due.max(*from)).max(0));
            let true_wait = true_waits.sum::<i64>().unsigned_abs();
            let wait = shard.lateness(due, end);
            assert!(wait <= true_wait.into(), "due {due}: {wait} of {true_wait}");
        }
        assert_eq!(
            shard.lateness(0, end),
            30_000,
            "the oldest message keeps its wait"
        );
    }

    #[test]
    fn no_time_counts_twice_after_the_clock_has_stepped_back() {
        let mut shard = Shard::new();
        shard.hold(0, 1_000);
        shard.hold.on_held(at(500), shard.time(1_100));
        shard.hold.on_held(at(700), shard.time(1_300));
        let spans = shard.hold.at_claim(at(700), shard.time(1_300));
        assert_eq!(lateness_by_rate(&spans, at(600)).as_millis(), 100);
    }
}
