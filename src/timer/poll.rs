//! When a timer looks for what was appended to a shard: at once after news that is due soon, and behind the hints at a pace that slows down
//! while nothing happens.

use crate::limit::{TAIL_POLL_INTERVAL_MAX, TAIL_POLL_INTERVAL_MIN, URGENT_HINT_WITHIN};
use crate::model::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// See the module's page.
pub(super) struct TailPoll {
    in_flight: bool,
    /// What it will find was told: that somebody appends without telling is no more likely for it.
    hinted_before_poll: bool,
    /// The last one found something.
    found_last_time: bool,
    /// Something was appended since the poll that is under way began,
    hinted: bool,
    /// and it is due soon.
    urgent: bool,
    next_at: Instant,
    interval: Duration,
}

impl TailPoll {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            in_flight: false,
            hinted_before_poll: false,
            found_last_time: false,
            hinted: false,
            urgent: false,
            next_at: now,
            interval: TAIL_POLL_INTERVAL_MIN,
        }
    }

    /// When to look next; `None`: an answer is awaited.
    pub(super) fn next_at(&self) -> Option<Instant> {
        (!self.in_flight).then_some(self.next_at)
    }

    /// Whether it is time to look. In the company of others a little before it: all together cost the store less.
    pub(super) fn is_due(&self, now: Instant, in_company: bool) -> bool {
        let early = if in_company {
            self.interval / 4
        } else {
            Duration::ZERO
        };
        self.next_at().is_some_and(|at| at <= now + early)
    }

    /// Something was appended by this process. What is not due soon is found soon enough, together with what comes after it.
    pub(super) fn on_hint(&mut self, least_due: Timestamp, wall: Timestamp, now: Instant) {
        self.hinted = true;
        if least_due < wall.plus(URGENT_HINT_WITHIN) {
            self.urgent = true;
            self.next_at = self.next_at.min(now);
        }
    }

    pub(super) fn postpone(&mut self, until: Instant) {
        self.next_at = until;
    }

    /// Whether the next one is likely to find something.
    pub(super) fn is_likely_to_find(&self) -> bool {
        self.hinted || self.found_last_time
    }

    /// The store is being asked. Answers whether something is known to be there.
    pub(super) fn start(&mut self) -> bool {
        (
            self.in_flight,
            self.hinted_before_poll,
            self.hinted,
            self.urgent,
        ) = (true, self.hinted, false, false);
        self.hinted_before_poll
    }

    /// The store has answered.
    pub(super) fn finish(&mut self, is_news: bool, is_more: bool, now: Instant) {
        (self.in_flight, self.found_last_time) = (false, is_news);
        let is_surprise = is_news && !self.hinted_before_poll;
        self.interval = if is_surprise {
            TAIL_POLL_INTERVAL_MIN
        } else {
            (self.interval * 2).min(TAIL_POLL_INTERVAL_MAX)
        };
        self.next_at = if is_more || self.urgent {
            now
        } else {
            now + self.interval
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Timestamp = Timestamp::from_millis(1_000_000);

    /// A poll that has found nothing for so long that it is at its slowest.
    fn idle(now: Instant) -> TailPoll {
        let mut poll = TailPoll::new(now);
        for _ in 0..10 {
            poll.start();
            poll.finish(false, false, now);
        }
        assert_eq!(poll.next_at(), Some(now + TAIL_POLL_INTERVAL_MAX));
        poll
    }

    #[test]
    fn it_goes_along_with_others_a_little_before_its_time() {
        let now = Instant::now();
        let (idle, fast) = (
            idle(now),
            TailPoll {
                next_at: now + TAIL_POLL_INTERVAL_MIN,
                ..TailPoll::new(now)
            },
        );
        assert!(
            !idle.is_due(
                now + TAIL_POLL_INTERVAL_MAX - TAIL_POLL_INTERVAL_MAX / 4,
                false
            ) && idle.is_due(
                now + TAIL_POLL_INTERVAL_MAX - TAIL_POLL_INTERVAL_MAX / 4,
                true
            )
        );
        assert!(
            !idle.is_due(now + TAIL_POLL_INTERVAL_MAX / 2, true)
                && !fast.is_due(now + TAIL_POLL_INTERVAL_MIN / 2, true)
                && fast.is_due(now + TAIL_POLL_INTERVAL_MIN, false)
        );
    }

    #[test]
    fn it_slows_down_and_a_surprise_makes_it_fast() {
        let now = Instant::now();
        let mut poll = idle(now);
        poll.start();
        assert_eq!(poll.next_at(), None);
        poll.finish(true, false, now);
        assert_eq!(poll.next_at(), Some(now + TAIL_POLL_INTERVAL_MIN));
        poll.start();
        poll.finish(false, false, now);
        assert_eq!(poll.next_at(), Some(now + 2 * TAIL_POLL_INTERVAL_MIN));
        poll.start();
        poll.finish(false, true, now);
        assert_eq!(poll.next_at(), Some(now), "there is more of it");
    }

    #[test]
    fn it_looks_at_once_for_what_is_due_soon_and_no_sooner_for_the_rest() {
        let now = Instant::now();
        let mut poll = idle(now);
        poll.on_hint(WALL.plus(URGENT_HINT_WITHIN), WALL, now);
        assert_eq!(poll.next_at(), Some(now + TAIL_POLL_INTERVAL_MAX));
        poll.on_hint(WALL, WALL, now);
        assert_eq!(poll.next_at(), Some(now));
        poll.start();
        poll.finish(true, false, now);
        assert_eq!(
            poll.next_at(),
            Some(now + TAIL_POLL_INTERVAL_MAX),
            "what was told is no surprise"
        );
    }

    #[test]
    fn what_is_told_while_it_looks_is_looked_for_again() {
        let now = Instant::now();
        let mut poll = idle(now);
        poll.start();
        poll.on_hint(WALL, WALL, now);
        poll.finish(true, false, now);
        assert_eq!(poll.next_at(), Some(now));
    }
}
