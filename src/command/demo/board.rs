//! Tracks the demo's messages: sent, pending, delivered, and how late.
//!
//! It has no I/O and no clock. Its size depends on the pending messages.

use crate::limit::{DEMO_LATENESS_MAX, DEMO_SHOWN_ARRIVALS_MAX};
use crate::model::Timestamp;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The state of all messages.
#[derive(Debug, Default)]
pub(super) struct Board {
    /// The demo's messages that were sent and have not arrived, with their earliest due time.
    waiting: BTreeMap<u64, Timestamp>,
    tally: Tally,
    lateness: Lateness,
    latest: VecDeque<Arrival>,
    latest_guest: Option<Arrival>,
}

/// Counts of the demo's own messages, except for `guests`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) delivered: u64,
    /// Messages that the broker refused or that became dead letters.
    pub(super) refused: u64,
    pub(super) early: u64,
    /// Arrivals of messages that had already arrived.
    pub(super) duplicates: u64,
    /// Arrived messages of other producers.
    pub(super) guests: u64,
}

/// A record that the watcher read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) author: Author,
    /// Key and payload of the record.
    pub(super) key: String,
    pub(super) text: String,
    /// `None` if the record has no due header.
    pub(super) due: Option<Timestamp>,
    pub(super) at: Timestamp,
    /// Reason of the failure, if the record is a dead letter.
    pub(super) refusal: Option<String>,
}

/// Origin of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Author {
    /// A message of the demo, with its number.
    Own(u64),
    /// A message of the user, whom the demo invites to send some.
    Guest,
}

impl Arrival {
    /// Milliseconds from the due time to the arrival.
    pub(super) fn late(&self) -> Option<u64> {
        self.due.map(|due| millis(self.at.since(due)))
    }
}

impl Board {
    /// Records a message. Must happen before it is sent, or it could arrive first.
    pub(super) fn send(&mut self, number: u64, due: Timestamp) {
        self.tally.sent += 1;
        self.waiting.insert(number, due);
    }

    /// Records that the broker refused a message.
    pub(super) fn refuse(&mut self, number: u64) {
        if self.waiting.remove(&number).is_some() {
            self.tally.refused += 1;
        }
    }

    pub(super) fn arrive(&mut self, arrival: Arrival) {
        match arrival.author {
            Author::Own(number) => self.arrive_own(number, &arrival),
            Author::Guest => {
                self.tally.guests += 1;
                self.latest_guest = Some(arrival);
                return;
            }
        }
        self.latest.truncate(DEMO_SHOWN_ARRIVALS_MAX - 1);
        self.latest.push_front(arrival);
    }

    fn arrive_own(&mut self, number: u64, arrival: &Arrival) {
        let Some(due) = self.waiting.remove(&number) else {
            self.tally.duplicates += 1;
            return;
        };
        if arrival.refusal.is_some() {
            self.tally.refused += 1;
            return;
        }
        self.tally.delivered += 1;
        self.tally.early +=
            u64::from(arrival.at < due || arrival.due.is_some_and(|due| arrival.at < due));
        self.lateness
            .add(millis(arrival.at.since(arrival.due.unwrap_or(due))));
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Number of pending messages that were due at `by`.
    pub(super) fn overdue(&self, by: Timestamp) -> u64 {
        self.waiting.values().filter(|due| **due <= by).count() as u64
    }

    /// The latest due time of the pending messages.
    pub(super) fn last_due(&self) -> Option<Timestamp> {
        self.waiting.values().max().copied()
    }

    /// Number of pending messages for each of the next clock seconds. Overdue messages count in the
    /// first second. Messages beyond the range are left out.
    pub(super) fn pending(&self, now: Timestamp, seconds: usize) -> Vec<u64> {
        let mut pending = vec![0; seconds];
        for due in self.waiting.values() {
            let ahead = due.as_millis().div_euclid(1_000) - now.as_millis().div_euclid(1_000);
            if let Some(count) = pending.get_mut(usize::try_from(ahead).unwrap_or(0)) {
                *count += 1;
            }
        }
        pending
    }

    pub(super) fn lateness(&self) -> &Lateness {
        &self.lateness
    }

    /// The latest guest message, kept apart because the demo's messages would displace it at once.
    pub(super) fn latest_guest(&self) -> Option<&Arrival> {
        self.latest_guest.as_ref()
    }

    /// The demo's latest arrivals, newest first.
    pub(super) fn latest(&self) -> impl Iterator<Item = &Arrival> {
        self.latest.iter()
    }
}

/// Histogram of lateness in milliseconds, of constant size. Values above `DEMO_LATENESS_MAX` count
/// as the maximum.
#[derive(Debug)]
pub(super) struct Lateness {
    counts: Vec<u64>,
    total: u64,
    greatest: u64,
}

impl Default for Lateness {
    fn default() -> Self {
        let buckets = usize::try_from(millis(DEMO_LATENESS_MAX)).expect("some thousands") + 1;
        Self {
            counts: vec![0; buckets],
            total: 0,
            greatest: 0,
        }
    }
}

impl Lateness {
    fn add(&mut self, late: u64) {
        let bucket = usize::try_from(late)
            .unwrap_or(usize::MAX)
            .min(self.counts.len() - 1);
        self.counts[bucket] += 1;
        self.total += 1;
        self.greatest = self.greatest.max(late);
    }

    /// The lateness that `part` per mille of the messages did not exceed. `None` before the first
    /// arrival.
    pub(super) fn per_mille(&self, part: u64) -> Option<u64> {
        let wanted = (self.total * part).div_ceil(1_000).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map(|bucket| bucket as u64)
    }

    pub(super) fn greatest(&self) -> Option<u64> {
        (self.total > 0).then_some(self.greatest)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in super::super) fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    pub(in super::super) fn arrival(author: Author, due: i64, seen: i64) -> Arrival {
        let (key, text) = (
            "order-7".to_owned(),
            "close it unless it was paid".to_owned(),
        );
        Arrival {
            author,
            key,
            text,
            due: Some(at(due)),
            at: at(seen),
            refusal: None,
        }
    }

    #[test]
    fn duplicates_and_early_arrivals_are_counted() {
        let mut board = Board::default();
        board.send(0, at(1_000));
        board.send(1, at(1_000));
        board.arrive(arrival(Author::Own(0), 1_003, 1_005));
        board.arrive(arrival(Author::Own(0), 1_003, 1_006));
        board.arrive(arrival(Author::Own(1), 999, 999));
        let expected = Tally {
            sent: 2,
            delivered: 2,
            duplicates: 1,
            early: 1,
            ..Tally::default()
        };
        assert_eq!((board.tally(), board.waiting()), (expected, 0));
        assert_eq!(
            (board.lateness().greatest(), board.latest().count()),
            (Some(2), 3)
        );
    }

    #[test]
    fn a_due_time_that_was_changed_does_not_hide_that_a_message_is_early() {
        let mut board = Board::default();
        board.send(0, at(5_000));
        board.arrive(arrival(Author::Own(0), 1_000, 1_001));
        assert_eq!(board.tally().early, 1);
    }

    #[test]
    fn refused_messages_and_dead_letters_are_not_delivered() {
        let mut board = Board::default();
        (0..3).for_each(|number| board.send(number, at(1_000)));
        board.refuse(0);
        board.arrive(Arrival {
            refusal: Some("delay_above_max".to_owned()),
            ..arrival(Author::Own(1), 1_000, 1_001)
        });
        assert_eq!(
            board.tally(),
            Tally {
                sent: 3,
                refused: 2,
                ..Tally::default()
            }
        );
        assert_eq!(
            (
                board.waiting(),
                board.overdue(at(1_000)),
                board.overdue(at(999))
            ),
            (1, 1, 0)
        );
    }

    #[test]
    fn a_guest_is_shown_and_counted_apart() {
        let mut board = Board::default();
        board.arrive(arrival(Author::Guest, 1_000, 1_004));
        assert_eq!(
            board.tally(),
            Tally {
                guests: 1,
                ..Tally::default()
            }
        );
        assert_eq!(
            (
                board.latest().count(),
                board.latest_guest().and_then(Arrival::late)
            ),
            (0, Some(4))
        );
        assert_eq!(
            board.lateness().per_mille(500),
            None,
            "only the demo's own are measured"
        );
    }

    #[test]
    fn pending_messages_are_counted_by_clock_second() {
        let mut board = Board::default();
        for (number, due) in [900, 1_999, 2_000, 2_999, 3_000, 99_000]
            .into_iter()
            .enumerate()
        {
            board.send(number as u64, at(due));
        }
        assert_eq!(board.pending(at(1_950), 3), [2, 2, 1]);
        assert_eq!(board.last_due(), Some(at(99_000)));
    }

    proptest! {
        #[test]
        fn every_message_is_in_one_place(fates in proptest::collection::vec((0..4_u8, 0..20_000_i64), 0..200)) {
            let mut board = Board::default();
            for (number, (fate, due)) in fates.iter().enumerate() {
                let number = number as u64;
                board.send(number, at(*due));
                match fate {
                    0 => board.refuse(number),
                    1 => board.arrive(arrival(Author::Own(number), *due, due + 3)),
                    2 => (0..2).for_each(|_| board.arrive(arrival(Author::Own(number), *due, due + 3))),
                    _ => {}
                }
            }
            let tally = board.tally();
            prop_assert_eq!(tally.sent, fates.len() as u64);
            prop_assert_eq!(tally.sent, tally.delivered + tally.refused + board.waiting());
            prop_assert_eq!(tally.duplicates, fates.iter().filter(|(fate, _)| *fate == 2).count() as u64);
            prop_assert_eq!(board.pending(at(0), 20).iter().sum::<u64>(), board.waiting());
            prop_assert!(board.latest().count() <= DEMO_SHOWN_ARRIVALS_MAX);
        }

        #[test]
        fn percentiles_are_those_of_the_sorted_list(mut lates in proptest::collection::vec(0..9_000_u64, 1..300), part in 1..=1_000_u64) {
            let mut lateness = Lateness::default();
            lates.iter().for_each(|late| lateness.add(*late));
            lates.sort_unstable();
            let rank = (lates.len() as u64 * part).div_ceil(1_000).max(1);
            prop_assert_eq!(lateness.per_mille(part), Some(lates[usize::try_from(rank).unwrap() - 1]));
            prop_assert_eq!(lateness.greatest(), lates.last().copied());
        }
    }
}
