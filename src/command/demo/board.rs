//! The phase of the demo, and counts of its messages. It has no I/O and no clock.

use crate::limit::{DEMO_LATENESS_MAX, DEMO_LINES_MAX, DEMO_OVERDUE_TIMEOUT, DEMO_START_TIMEOUT};
use crate::model::Timestamp;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A record that the watcher has read.
pub(super) struct Arrival {
    /// The line to show.
    pub(super) text: String,
    /// The due time in the record's header.
    pub(super) due: Option<Timestamp>,
    pub(super) is_dead: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Starting,
    Sending {
        since: Timestamp,
    },
    Finishing,
    Over,
}

/// The counts are those of the demo's own messages. `guests` are the user's.
#[derive(Default)]
pub(super) struct Board {
    pub(super) phase: Phase,
    until: Option<Timestamp>,
    /// Sent messages that have not arrived, with their earliest due time.
    pub(super) waiting: BTreeMap<u64, Timestamp>,
    /// Messages whose send failed, with the same time.
    failed_sends: BTreeMap<u64, Timestamp>,
    pub(super) sent: usize,
    pub(super) delivered: usize,
    pub(super) refused: usize,
    pub(super) early: usize,
    pub(super) duplicates: usize,
    pub(super) guests: usize,
    /// Delivered messages by the milliseconds from the due time to the arrival.
    lateness: BTreeMap<u64, usize>,
    pub(super) latest: VecDeque<String>,
    pub(super) lines: Vec<String>,
    last_problem: Option<String>,
}

impl Board {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            until: Some(now.plus(DEMO_START_TIMEOUT)),
            ..Self::default()
        }
    }

    pub(super) fn begin(&mut self, now: Timestamp, length: Duration) {
        if self.phase == Phase::Starting {
            self.phase = Phase::Sending { since: now };
            self.until = Some(now.plus(length));
        }
    }

    /// Ends the phase: stops sending, or ends the demo.
    pub(super) fn end_phase(&mut self, now: Timestamp) {
        if matches!(self.phase, Phase::Sending { .. }) {
            let last_due = self.waiting.values().max().copied().unwrap_or(now);
            self.until = Some(last_due.plus(DEMO_OVERDUE_TIMEOUT));
            self.phase = Phase::Finishing;
        } else {
            (self.phase, self.until) = (Phase::Over, Some(now));
        }
    }

    /// Ends the phase if its time is over.
    pub(super) fn step(&mut self, now: Timestamp) {
        if self.phase == Phase::Finishing && self.waiting.is_empty() {
            // A duplicate arrives shortly after its message.
            self.until = self.until.min(Some(now.plus(Duration::from_millis(500))));
        }
        if self.until <= Some(now) {
            self.end_phase(now);
        }
    }

    /// Adds a message, and returns its number.
    pub(super) fn send(&mut self, due: Timestamp) -> u64 {
        let number = self.sent as u64;
        self.waiting.insert(number, due);
        self.sent += 1;
        number
    }

    /// The send of a message failed. It may arrive nevertheless.
    pub(super) fn refuse(&mut self, number: u64, why: String) {
        if let Some(due) = self.waiting.remove(&number) {
            self.failed_sends.insert(number, due);
            self.refused += 1;
        }
        self.report_problem(why);
    }

    /// Prints a problem of the broker once.
    pub(super) fn report_problem(&mut self, why: String) {
        if self.last_problem.as_ref() != Some(&why) {
            self.lines.push(format!("({why})"));
            self.last_problem = Some(why);
        }
    }

    /// A record arrived. Without a number it is the user's.
    pub(super) fn arrive(&mut self, number: Option<u64>, at: Timestamp, arrival: &Arrival) {
        let Arrival { text, due, is_dead } = arrival;
        let Some(number) = number else {
            self.guests += 1;
            self.lines.truncate(DEMO_LINES_MAX - 1);
            let how = if *is_dead { "," } else { " has arrived:" };
            return self.lines.push(format!("yours{how} {text}"));
        };
        self.latest.truncate(DEMO_LINES_MAX - 1);
        self.latest.push_front(format!("  {text}"));
        let failed = self.failed_sends.remove(&number);
        self.refused -= usize::from(failed.is_some());
        match self.waiting.remove(&number).or(failed) {
            None => self.duplicates += 1,
            Some(_) if *is_dead => self.refused += 1,
            Some(sent) => {
                self.delivered += 1;
                self.early += usize::from(at < sent.max(due.unwrap_or(sent)));
                let late = at.since(sent).min(DEMO_LATENESS_MAX).as_millis() as u64;
                *self.lateness.entry(late).or_default() += 1;
            }
        }
    }

    /// Messages that were overdue for the full timeout at the end.
    pub(super) fn lost(&self) -> usize {
        let is_lost = |due: &&Timestamp| Some(due.plus(DEMO_OVERDUE_TIMEOUT)) <= self.until;
        self.waiting.values().filter(is_lost).count()
    }

    /// Waiting messages by the clock second in which they are due. The first includes the overdue.
    pub(super) fn by_second<const N: usize>(&self, now: Timestamp) -> [u64; N] {
        let second = |at: Timestamp| at.as_millis().div_euclid(1_000);
        let mut counts = [0; N];
        for due in self.waiting.values() {
            let ahead = usize::try_from(second(*due) - second(now)).unwrap_or(0);
            if let Some(count) = counts.get_mut(ahead) {
                *count += 1;
            }
        }
        counts
    }

    /// Milliseconds that half, 99 % and all of the messages were late at most.
    pub(super) fn percentiles(&self) -> [Option<u64>; 3] {
        [50, 99, 100].map(|part| {
            let rank = (self.delivered * part).div_ceil(100);
            let mut below = 0;
            let mut lates = self.lateness.iter();
            lates.find_map(|(late, count)| {
                below += count;
                (below >= rank).then_some(*late)
            })
        })
    }

    /// Every message arrived exactly once, and none arrived early.
    pub(super) fn is_well(&self) -> bool {
        let is_complete = self.sent > 0 && self.sent == self.delivered;
        is_complete && self.early == 0 && self.duplicates == 0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in super::super) fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    pub(in super::super) fn arrive(board: &mut Board, number: Option<u64>, seen: i64) {
        let arrival = Arrival {
            text: format!("key \"order-7\", \"close it\", seen {seen}"),
            due: None,
            is_dead: false,
        };
        board.arrive(number, at(seen), &arrival);
    }

    pub(in super::super) fn arrive_dead(board: &mut Board, number: u64, seen: i64) {
        let arrival = Arrival {
            text: "refused: key \"order-7\", \"close it\": too late".to_owned(),
            due: None,
            is_dead: true,
        };
        board.arrive(Some(number), at(seen), &arrival);
    }

    pub(in super::super) fn board() -> Board {
        Board::new(at(0))
    }

    #[test]
    fn duplicates_and_early_arrivals_are_counted() {
        let mut board = board();
        (0..2).for_each(|_| _ = board.send(at(1_000)));
        arrive(&mut board, Some(0), 1_002);
        arrive(&mut board, Some(0), 1_003);
        arrive(&mut board, Some(1), 999);
        assert_eq!(
            (board.sent, board.delivered, board.waiting.len()),
            (2, 2, 0)
        );
        assert_eq!((board.duplicates, board.early), (1, 1));
        assert_eq!((board.percentiles()[2], board.latest.len()), (Some(2), 3));
        assert!(!board.is_well());
    }

    #[test]
    fn a_due_time_that_was_changed_does_not_hide_that_a_message_is_early() {
        for (due, early) in [(999, 0), (1_001, 0), (1_002, 1)] {
            let mut board = board();
            let number = board.send(at(1_000));
            let arrival = Arrival {
                text: String::new(),
                due: Some(at(due)),
                is_dead: false,
            };
            board.arrive(Some(number), at(1_001), &arrival);
            assert_eq!(board.early, early, "{due}");
        }
    }

    #[test]
    fn lateness_has_a_bound() {
        let mut board = board();
        for late in [60_000, 60_001, 9_000_000] {
            let number = board.send(at(0));
            arrive(&mut board, Some(number), late);
        }
        assert_eq!(board.percentiles(), [Some(60_000); 3]);
        assert_eq!((board.lateness.len(), board.delivered), (1, 3));
    }

    #[test]
    fn refused_messages_and_dead_letters_are_not_delivered() {
        let mut board = board();
        (0..3).for_each(|_| _ = board.send(at(1_000)));
        board.refuse(0, "full".to_owned());
        board.refuse(0, "full".to_owned());
        arrive_dead(&mut board, 1, 1_001);
        assert_eq!((board.sent, board.refused, board.delivered), (3, 2, 0));
        assert_eq!(board.waiting.len(), 1);
        arrive(&mut board, Some(0), 1_002);
        assert_eq!((board.refused, board.lateness.len()), (1, 1));
        assert_eq!(board.duplicates, 0, "it arrived once");
        assert_eq!(
            board.lines,
            ["(full)"],
            "a repeated problem is printed once"
        );
    }

    #[test]
    fn a_guest_is_printed_and_counted_apart() {
        let mut board = board();
        arrive(&mut board, None, 1_004);
        assert_eq!((board.guests, board.sent, board.latest.len()), (1, 0, 0));
        assert_eq!(board.lines.len(), 1);
        assert_eq!(
            board.percentiles(),
            [None; 3],
            "only the demo's own are measured"
        );
    }

    #[test]
    fn waiting_messages_are_counted_by_clock_second() {
        let mut board = board();
        for due in [900, 1_999, 2_000, 2_999, 3_000, 99_000] {
            board.send(at(due));
        }
        assert_eq!(board.by_second(at(1_950)), [2, 2, 1]);
    }

    #[test]
    fn the_demo_ends_when_all_arrived_or_the_last_message_is_overdue() {
        let mut board = board();
        board.begin(at(0), Duration::from_secs(60));
        board.send(at(1_000));
        board.end_phase(at(100));
        board.step(at(10_999));
        assert_eq!(board.phase, Phase::Finishing);
        board.step(at(11_000));
        assert_eq!((board.phase, board.lost()), (Phase::Over, 1));
        board.phase = Phase::Finishing;
        arrive(&mut board, Some(0), 11_000);
        board.step(at(11_000));
        board.step(at(11_500));
        assert_eq!((board.phase, board.lost()), (Phase::Over, 0));
    }

    #[test]
    fn a_message_that_is_not_awaited_is_not_lost() {
        let mut board = board();
        board.begin(at(0), Duration::from_secs(60));
        board.send(at(1_000));
        (0..2).for_each(|_| board.end_phase(at(100)));
        assert_eq!((board.phase, board.lost()), (Phase::Over, 0));
        assert!(!board.is_well());
    }

    proptest! {
        #[test]
        fn every_message_is_in_one_place(fates in proptest::collection::vec((0..4_u8, 0..20_000_i64), 0..200)) {
            let mut board = board();
            for (fate, due) in &fates {
                let number = board.send(at(*due));
                match fate {
                    0 => board.refuse(number, "full".to_owned()),
                    1 => arrive(&mut board, Some(number), due + 3),
                    2 => (0..2).for_each(|_| arrive(&mut board, Some(number), due + 3)),
                    _ => {}
                }
            }
            prop_assert_eq!(board.sent, fates.len());
            prop_assert_eq!(board.sent, board.delivered + board.refused + board.waiting.len());
            prop_assert_eq!(board.duplicates, fates.iter().filter(|(fate, _)| *fate == 2).count());
            prop_assert_eq!(board.by_second::<20>(at(0)).iter().sum::<u64>(), board.waiting.len() as u64);
            prop_assert!(board.latest.len() <= DEMO_LINES_MAX);
        }

        #[test]
        fn percentiles_are_those_of_the_sorted_list(mut lates in proptest::collection::vec(0..9_000_i64, 1..300)) {
            let mut board = board();
            for late in &lates {
                let number = board.send(at(0));
                arrive(&mut board, Some(number), *late);
            }
            lates.sort_unstable();
            let least = |part: usize| {
                let covers = |late: &&i64| lates.iter().filter(|other| other <= late).count() * 100 >= part * lates.len();
                u64::try_from(*lates.iter().find(covers).unwrap()).ok()
            };
            prop_assert_eq!(board.percentiles(), [50, 99, 100].map(least));
        }
    }
}
