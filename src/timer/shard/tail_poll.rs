//! Decides when a timer polls the store for messages that were appended to a shard.
//!
//! A hint normally announces an append, and an urgent hint triggers a poll at once. Polling without
//! a hint finds appends whose hint was lost. Its interval doubles from `TAIL_POLL_INTERVAL_MIN` to
//! `TAIL_POLL_INTERVAL_MAX` while it finds nothing.

use crate::limit::{TAIL_POLL_INTERVAL_MAX, TAIL_POLL_INTERVAL_MIN, URGENT_HINT_WITHIN};
use crate::model::Timestamp;
use crate::timer::load::Reservation;
use std::time::Duration;
use tokio::time::Instant;

/// The poll schedule of one shard.
pub(super) struct TailPoll {
    /// A poll was sent and its reply has not arrived.
    in_flight: bool,
    /// Memory for the messages that the current poll will probably find.
    reservation: Option<Reservation>,
    /// A hint announced the data that the current poll will find. Finding it is therefore no sign of
    /// lost hints.
    hinted_before_poll: bool,
    /// The last poll found new messages.
    found_last_time: bool,
    /// A hint arrived after the current poll was sent.
    hinted: bool,
    /// A message of that hint is due within `URGENT_HINT_WITHIN`.
    urgent: bool,
    next_at: Instant,
    interval: Duration,
}

impl TailPoll {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            in_flight: false,
            reservation: None,
            hinted_before_poll: false,
            found_last_time: false,
            hinted: false,
            urgent: false,
            next_at: now,
            interval: TAIL_POLL_INTERVAL_MIN,
        }
    }

    /// Time of the next poll, or `None` while a reply is awaited.
    pub(super) fn next_at(&self) -> Option<Instant> {
        (!self.in_flight).then_some(self.next_at)
    }

    /// True if to poll now. If other shards are polled anyway (`joins_batch`), a poll may run up to
    /// a quarter of its interval early, because one batched call costs the store less than two.
    pub(super) fn is_due(&self, now: Instant, joins_batch: bool) -> bool {
        let early = if joins_batch {
            self.interval / 4
        } else {
            Duration::ZERO
        };
        self.next_at().is_some_and(|at| at <= now + early)
    }

    /// Records that messages were appended. Triggers a poll at once only if one of them is due
    /// within `URGENT_HINT_WITHIN`. The next regular poll finds later messages.
    pub(super) fn on_hint(&mut self, least_due: Timestamp, wall: Timestamp, now: Instant) {
        self.hinted = true;
        if least_due < wall.plus(URGENT_HINT_WITHIN) {
            self.urgent = true;
            self.next_at = self.next_at.min(now);
        }
    }

    /// Delays the next poll until `until`.
    pub(super) fn postpone(&mut self, until: Instant) {
        self.next_at = until;
    }

    /// True if the next poll will probably find something.
    pub(super) fn is_likely_to_find(&self) -> bool {
        self.hinted || self.found_last_time
    }

    /// Marks a poll as sent. Returns whether a hint has announced data for it.
    pub(super) fn start(&mut self, reservation: Option<Reservation>) -> bool {
        self.in_flight = true;
        self.reservation = reservation;
        self.hinted_before_poll = self.hinted;
        self.hinted = false;
        self.urgent = false;
        self.hinted_before_poll
    }

    /// Handles the reply: whether it has new messages (`found`), and whether the store has `more`.
    pub(super) fn finish(&mut self, found: bool, more: bool, now: Instant) {
        self.in_flight = false;
        self.reservation = None;
        self.found_last_time = found;
        // New messages without a hint mean that hints get lost, so poll at the fastest rate again.
        let hint_was_lost = found && !self.hinted_before_poll;
        self.interval = if hint_was_lost {
            TAIL_POLL_INTERVAL_MIN
        } else {
            (self.interval * 2).min(TAIL_POLL_INTERVAL_MAX)
        };
        self.next_at = if more || self.urgent {
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

    /// A poll that has found nothing for so long that its interval is at the maximum.
    fn idle(now: Instant) -> TailPoll {
        let mut poll = TailPoll::new(now);
        for _ in 0..10 {
            poll.start(None);
            poll.finish(false, false, now);
        }
        assert_eq!(poll.next_at(), Some(now + TAIL_POLL_INTERVAL_MAX));
        poll
    }

    #[test]
    fn a_poll_joins_the_polls_of_other_shards_a_little_early() {
        let now = Instant::now();
        let idle = idle(now);
        let early = now + TAIL_POLL_INTERVAL_MAX - TAIL_POLL_INTERVAL_MAX / 4;
        assert!(!idle.is_due(early, false) && idle.is_due(early, true));
        assert!(!idle.is_due(now + TAIL_POLL_INTERVAL_MAX / 2, true));
        let mut fast = TailPoll::new(now);
        fast.postpone(now + TAIL_POLL_INTERVAL_MIN);
        assert!(!fast.is_due(now + TAIL_POLL_INTERVAL_MIN / 2, true));
        assert!(fast.is_due(now + TAIL_POLL_INTERVAL_MIN, false));
    }

    #[test]
    fn the_interval_grows_until_messages_come_without_a_hint() {
        let now = Instant::now();
        let mut poll = idle(now);
        poll.start(None);
        assert_eq!(poll.next_at(), None);
        poll.finish(true, false, now);
        assert_eq!(poll.next_at(), Some(now + TAIL_POLL_INTERVAL_MIN));
        poll.start(None);
        poll.finish(false, false, now);
        assert_eq!(poll.next_at(), Some(now + 2 * TAIL_POLL_INTERVAL_MIN));
        poll.start(None);
        poll.finish(false, true, now);
        assert_eq!(poll.next_at(), Some(now), "the store has more");
    }

    #[test]
    fn only_an_urgent_hint_triggers_a_poll_at_once() {
        let now = Instant::now();
        let mut poll = idle(now);
        poll.on_hint(WALL.plus(URGENT_HINT_WITHIN), WALL, now);
        assert_eq!(poll.next_at(), Some(now + TAIL_POLL_INTERVAL_MAX));
        poll.on_hint(WALL, WALL, now);
        assert_eq!(poll.next_at(), Some(now));
        poll.start(None);
        poll.finish(true, false, now);
        assert_eq!(
            poll.next_at(),
            Some(now + TAIL_POLL_INTERVAL_MAX),
            "hinted messages keep the interval"
        );
    }

    #[test]
    fn a_hint_during_a_poll_triggers_another_poll() {
        let now = Instant::now();
        let mut poll = idle(now);
        poll.start(None);
        poll.on_hint(WALL, WALL, now);
        poll.finish(true, false, now);
        assert_eq!(poll.next_at(), Some(now));
    }
}
