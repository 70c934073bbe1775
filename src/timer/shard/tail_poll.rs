//! Decides when a timer polls the store for messages that were appended to a shard.
//!
//! A hint normally announces an append, and an urgent hint triggers a poll at once. Polling at an
//! interval finds appends whose hint was lost.

use crate::limit::{TAIL_POLL_INTERVAL, URGENT_HINT_WITHIN};
use crate::model::Timestamp;
use crate::timer::load::Reservation;
use tokio::time::Instant;

pub(crate) struct TailPoll {
    /// A poll was sent and its reply has not arrived, or no poll is sent any more.
    in_flight: bool,
    /// Memory for the messages that the current poll will probably find.
    reservation: Option<Reservation>,
    /// The last poll found new messages.
    found_last_time: bool,
    /// A hint arrived after the current poll was sent.
    hinted: bool,
    /// A message of that hint is due within `URGENT_HINT_WITHIN`.
    urgent: bool,
    next_at: Instant,
}

impl TailPoll {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            in_flight: false,
            reservation: None,
            found_last_time: false,
            hinted: false,
            urgent: false,
            next_at: now,
        }
    }

    /// Time of the next poll, if there is one before the next reply.
    pub(super) fn next_at(&self) -> Option<Instant> {
        (!self.in_flight).then_some(self.next_at)
    }

    /// True if to poll now. If other shards are polled anyway (`joins_batch`), a poll may run a
    /// quarter of the interval early: one batched call costs the store less than two (benchmark
    /// `idle`).
    pub(super) fn is_due(&self, now: Instant, joins_batch: bool) -> bool {
        let early = joins_batch.then_some(TAIL_POLL_INTERVAL / 4);
        let now = now + early.unwrap_or_default();
        self.next_at().is_some_and(|at| at <= now)
    }

    /// Records that messages were appended. Triggers a poll at once only if one of them is due
    /// within `URGENT_HINT_WITHIN`. The next regular poll finds later messages.
    pub(crate) fn on_hint(&mut self, least_due: Timestamp, wall: Timestamp, now: Instant) {
        self.hinted = true;
        if least_due < wall.plus(URGENT_HINT_WITHIN) {
            self.urgent = true;
            self.next_at = self.next_at.min(now);
        }
    }

    /// Polls no more: the tail cannot be read.
    pub(super) fn stop(&mut self) {
        self.in_flight = true;
        self.reservation = None;
    }

    pub(super) fn postpone(&mut self, now: Instant) {
        self.next_at = now + TAIL_POLL_INTERVAL;
    }

    /// True if the next poll will probably find something.
    pub(super) fn is_likely_to_find(&self) -> bool {
        self.hinted || self.found_last_time
    }

    /// Marks a poll as sent. Returns whether a hint has announced data for it.
    pub(super) fn start(&mut self, reservation: Option<Reservation>) -> bool {
        self.in_flight = true;
        self.reservation = reservation;
        self.urgent = false;
        std::mem::take(&mut self.hinted)
    }

    /// Handles the reply: whether it has new messages (`found`), and whether the store has `more`.
    pub(super) fn finish(&mut self, found: bool, more: bool, now: Instant) {
        self.in_flight = false;
        self.reservation = None;
        self.found_last_time = found;
        self.next_at = now;
        if !more && !self.urgent {
            self.postpone(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Timestamp = Timestamp::from_millis(1_000_000);

    /// A poll that has found nothing.
    fn idle(now: Instant) -> TailPoll {
        let mut poll = TailPoll::new(now);
        assert!(poll.is_due(now, false));
        poll.start(None);
        assert_eq!(poll.next_at(), None);
        poll.finish(false, false, now);
        assert_eq!(poll.next_at(), Some(now + TAIL_POLL_INTERVAL));
        poll
    }

    #[test]
    fn a_poll_joins_the_polls_of_other_shards_a_little_early() {
        let now = Instant::now();
        let idle = idle(now);
        let early = now + TAIL_POLL_INTERVAL - TAIL_POLL_INTERVAL / 4;
        assert!(!idle.is_due(early, false) && idle.is_due(early, true));
        assert!(!idle.is_due(now + TAIL_POLL_INTERVAL / 2, true));
    }

    #[test]
    fn a_poll_follows_at_once_while_the_store_has_more() {
        let now = Instant::now();
        let mut poll = idle(now);
        poll.start(None);
        poll.finish(true, true, now);
        assert_eq!(poll.next_at(), Some(now));
        poll.start(None);
        poll.finish(true, false, now);
        assert_eq!(poll.next_at(), Some(now + TAIL_POLL_INTERVAL));
    }

    #[test]
    fn only_an_urgent_hint_triggers_a_poll_at_once() {
        let now = Instant::now();
        let mut poll = idle(now);
        poll.on_hint(WALL.plus(URGENT_HINT_WITHIN), WALL, now);
        assert_eq!(poll.next_at(), Some(now + TAIL_POLL_INTERVAL));
        poll.on_hint(WALL, WALL, now);
        assert_eq!(poll.next_at(), Some(now));
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
