//! When a timer looks for what was appended to a shard: at once after news that is due soon, and behind the hints at a pace that slows down
//! while nothing happens.

use crate::limit::{HINT_SPARE, POLL_MAX, POLL_MIN};
use crate::model::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// See the module's page.
pub(super) struct Poll {
    under_way: bool,
    /// What it will find was told: that somebody appends without telling is no more likely for it.
    expected: bool,
    /// The last one found something.
    was_news: bool,
    /// Something was appended since the poll that is under way began,
    hinted: bool,
    /// and it is due soon.
    urgent: bool,
    at: Instant,
    interval: Duration,
}

impl Poll {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            under_way: false,
            expected: false,
            was_news: false,
            hinted: false,
            urgent: false,
            at: now,
            interval: POLL_MIN,
        }
    }

    /// When to look next; `None`: an answer is awaited.
    pub(super) fn at(&self) -> Option<Instant> {
        (!self.under_way).then_some(self.at)
    }

    /// Whether it is time to look. In the company of others a little before it: all together cost the store less.
    pub(super) fn is_due(&self, now: Instant, in_company: bool) -> bool {
        let early = if in_company {
            self.interval / 4
        } else {
            Duration::ZERO
        };
        self.at().is_some_and(|at| at <= now + early)
    }

    /// Something was appended by this process. What is not due soon is found soon enough, together with what comes after it.
    pub(super) fn hint(&mut self, least_due: Timestamp, wall: Timestamp, now: Instant) {
        self.hinted = true;
        if least_due < wall.plus(HINT_SPARE) {
            self.urgent = true;
            self.at = self.at.min(now);
        }
    }

    pub(super) fn put_off(&mut self, until: Instant) {
        self.at = until;
    }

    /// Whether the next one is likely to find something.
    pub(super) fn is_promising(&self) -> bool {
        self.hinted || self.was_news
    }

    /// The store is being asked. Answers whether something is known to be there.
    pub(super) fn begin(&mut self) -> bool {
        (self.under_way, self.expected, self.hinted, self.urgent) =
            (true, self.hinted, false, false);
        self.expected
    }

    /// The store has answered.
    pub(super) fn end(&mut self, is_news: bool, is_more: bool, now: Instant) {
        (self.under_way, self.was_news) = (false, is_news);
        let is_surprise = is_news && !self.expected;
        self.interval = if is_surprise {
            POLL_MIN
        } else {
            (self.interval * 2).min(POLL_MAX)
        };
        self.at = if is_more || self.urgent {
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
    fn idle(now: Instant) -> Poll {
        let mut poll = Poll::new(now);
        for _ in 0..10 {
            poll.begin();
            poll.end(false, false, now);
        }
        assert_eq!(poll.at(), Some(now + POLL_MAX));
        poll
    }

    #[test]
    fn it_goes_along_with_others_a_little_before_its_time() {
        let now = Instant::now();
        let (idle, fast) = (
            idle(now),
            Poll {
                at: now + POLL_MIN,
                ..Poll::new(now)
            },
        );
        assert!(
            !idle.is_due(now + POLL_MAX - POLL_MAX / 4, false)
                && idle.is_due(now + POLL_MAX - POLL_MAX / 4, true)
        );
        assert!(
            !idle.is_due(now + POLL_MAX / 2, true)
                && !fast.is_due(now + POLL_MIN / 2, true)
                && fast.is_due(now + POLL_MIN, false)
        );
    }

    #[test]
    fn it_slows_down_and_a_surprise_makes_it_fast() {
        let now = Instant::now();
        let mut poll = idle(now);
        poll.begin();
        assert_eq!(poll.at(), None);
        poll.end(true, false, now);
        assert_eq!(poll.at(), Some(now + POLL_MIN));
        poll.begin();
        poll.end(false, false, now);
        assert_eq!(poll.at(), Some(now + 2 * POLL_MIN));
        poll.begin();
        poll.end(false, true, now);
        assert_eq!(poll.at(), Some(now), "there is more of it");
    }

    #[test]
    fn it_looks_at_once_for_what_is_due_soon_and_no_sooner_for_the_rest() {
        let now = Instant::now();
        let mut poll = idle(now);
        poll.hint(WALL.plus(HINT_SPARE), WALL, now);
        assert_eq!(poll.at(), Some(now + POLL_MAX));
        poll.hint(WALL, WALL, now);
        assert_eq!(poll.at(), Some(now));
        poll.begin();
        poll.end(true, false, now);
        assert_eq!(
            poll.at(),
            Some(now + POLL_MAX),
            "what was told is no surprise"
        );
    }

    #[test]
    fn what_is_told_while_it_looks_is_looked_for_again() {
        let now = Instant::now();
        let mut poll = idle(now);
        poll.begin();
        poll.hint(WALL, WALL, now);
        poll.end(true, false, now);
        assert_eq!(poll.at(), Some(now));
    }
}
