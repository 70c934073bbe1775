//! The phase of the demo, and counts of its messages. It has no I/O and no clock.

use super::text;
use crate::limit::{DEMO_LINES_MAX, DEMO_OVERDUE_TIMEOUT, DEMO_START_TIMEOUT};
use crate::model::Timestamp;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Progress of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Sending {
        since: Timestamp,
    },
    /// The demo sends no more messages. Some still wait.
    Finishing,
    Over,
}

/// The state of the demo. The counts are those of the demo's own messages, except for `guests`.
pub(super) struct Board {
    pub(super) phase: Phase,
    /// `Starting` or `Finishing` ends at this time at the latest. The end, when it is over.
    until: Timestamp,
    /// Messages that were sent and have not arrived, with their earliest due time.
    waiting: BTreeMap<u64, Timestamp>,
    pub(super) sent: u64,
    /// Messages that the broker refused or that became dead letters.
    pub(super) refused: u64,
    pub(super) early: u64,
    /// Arrivals of messages that had already arrived.
    pub(super) duplicates: u64,
    /// Arrived messages of the user.
    pub(super) guests: u64,
    /// Milliseconds from the due time to the arrival, of each delivered message.
    lateness: Vec<u64>,
    /// The latest deliveries of the demo's own messages, newest first.
    pub(super) latest: VecDeque<String>,
    /// Lines that are not printed yet.
    pub(super) lines: Vec<String>,
    /// The latest problem of the broker.
    pub(super) last_problem: Option<String>,
}

/// A record that the demo read.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    /// `None`: the demo did not send it.
    pub(super) number: Option<u64>,
    /// Key and payload.
    pub(super) content: String,
    /// `None` if the record has no due header.
    pub(super) due: Option<Timestamp>,
    pub(super) at: Timestamp,
    /// Reason of the failure, if the record is a dead letter.
    pub(super) refusal: Option<String>,
}

impl Board {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            phase: Phase::Starting,
            until: now.plus(DEMO_START_TIMEOUT),
            waiting: BTreeMap::new(),
            sent: 0,
            refused: 0,
            early: 0,
            duplicates: 0,
            guests: 0,
            lateness: Vec::new(),
            latest: VecDeque::new(),
            lines: Vec::new(),
            last_problem: None,
        }
    }

    pub(super) fn begin(&mut self, now: Timestamp) {
        if self.phase == Phase::Starting {
            (self.phase, self.last_problem) = (Phase::Sending { since: now }, None);
        }
    }

    pub(super) fn finish(&mut self, now: Timestamp) {
        let last_due = self.waiting.values().max().copied().unwrap_or(now);
        (self.phase, self.until) = (Phase::Finishing, last_due.plus(DEMO_OVERDUE_TIMEOUT));
    }

    pub(super) fn end(&mut self, now: Timestamp) {
        (self.phase, self.until) = (Phase::Over, now);
    }

    /// Handles a quit request: the first stops sending, the second ends the demo.
    pub(super) fn on_quit(&mut self, now: Timestamp) {
        match self.phase {
            Phase::Sending { .. } => self.finish(now),
            _ => self.end(now),
        }
    }

    /// Ends the demo if its time is over.
    pub(super) fn step(&mut self, now: Timestamp) {
        if self.phase == Phase::Finishing && self.waiting.is_empty() {
            // A duplicate arrives shortly after its message.
            self.until = self.until.min(now.plus(Duration::from_millis(500)));
        }
        if now >= self.until && !matches!(self.phase, Phase::Sending { .. }) {
            self.end(now);
        }
    }

    /// Adds a message, and returns its number.
    pub(super) fn send(&mut self, due: Timestamp) -> u64 {
        self.waiting.insert(self.sent, due);
        self.sent += 1;
        self.sent - 1
    }

    /// The broker refused a message.
    pub(super) fn refuse(&mut self, number: u64, why: String) {
        self.refused += u64::from(self.waiting.remove(&number).is_some());
        self.report_problem(why);
    }

    /// Prints a problem of the broker once.
    pub(super) fn report_problem(&mut self, why: String) {
        if self.last_problem.as_ref() != Some(&why) {
            self.print(format!("({why})"));
            self.last_problem = Some(why);
        }
    }

    pub(super) fn arrive(&mut self, arrival: &Arrival) {
        let line = text::delivery(arrival);
        let Some(number) = arrival.number else {
            self.guests += 1;
            return self.print(line);
        };
        self.latest.truncate(DEMO_LINES_MAX - 1);
        self.latest.push_front(line);
        match self.waiting.remove(&number) {
            None => self.duplicates += 1,
            Some(_) if arrival.refusal.is_some() => self.refused += 1,
            Some(due) => {
                let promised = arrival.due.unwrap_or(due);
                let late = arrival.at.since(promised).as_millis();
                self.early += u64::from(arrival.at < due.max(promised));
                self.lateness.push(u64::try_from(late).unwrap_or(u64::MAX));
            }
        }
    }

    fn print(&mut self, line: String) {
        if self.lines.len() < DEMO_LINES_MAX {
            self.lines.push(line);
        }
    }

    pub(super) fn delivered(&self) -> u64 {
        self.lateness.len() as u64
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Messages that were overdue for the full timeout at the end.
    pub(super) fn lost(&self) -> u64 {
        let is_lost = |due: &&Timestamp| due.plus(DEMO_OVERDUE_TIMEOUT) <= self.until;
        self.waiting.values().filter(is_lost).count() as u64
    }

    /// Number of waiting messages for each of the next clock seconds. The first second includes
    /// overdue messages. Messages beyond the range are left out.
    pub(super) fn by_second(&self, now: Timestamp, seconds: usize) -> Vec<u64> {
        let second = |at: Timestamp| at.as_millis().div_euclid(1_000);
        let mut counts = vec![0; seconds];
        for due in self.waiting.values() {
            let ahead = usize::try_from(second(*due) - second(now)).unwrap_or(0);
            if let Some(count) = counts.get_mut(ahead) {
                *count += 1;
            }
        }
        counts
    }

    /// For each part: the lateness that this many per mille of the messages did not exceed.
    pub(super) fn lateness<const N: usize>(&self, parts: [usize; N]) -> [Option<u64>; N] {
        let mut sorted = self.lateness.clone();
        sorted.sort_unstable();
        let rank = |part: usize| (sorted.len() * part).div_ceil(1_000).max(1);
        parts.map(|part| sorted.get(rank(part) - 1).copied())
    }

    /// Every message arrived exactly once, and none arrived early.
    pub(super) fn is_well(&self) -> bool {
        let is_complete = self.sent > 0 && self.sent == self.delivered();
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

    pub(in super::super) fn arrival(number: Option<u64>, due: i64, seen: i64) -> Arrival {
        Arrival {
            number,
            content: "key \"order-7\", \"close it unless it was paid\"".to_owned(),
            due: Some(at(due)),
            at: at(seen),
            refusal: None,
        }
    }

    pub(in super::super) fn board() -> Board {
        Board::new(at(0))
    }

    #[test]
    fn duplicates_and_early_arrivals_are_counted() {
        let mut board = board();
        (0..2).for_each(|_| _ = board.send(at(1_000)));
        board.arrive(&arrival(Some(0), 1_003, 1_005));
        board.arrive(&arrival(Some(0), 1_003, 1_006));
        board.arrive(&arrival(Some(1), 999, 999));
        assert_eq!((board.sent, board.delivered(), board.waiting()), (2, 2, 0));
        assert_eq!((board.duplicates, board.early), (1, 1));
        assert_eq!(
            (board.lateness([1_000]), board.latest.len()),
            ([Some(2)], 3)
        );
        assert!(!board.is_well());
    }

    #[test]
    fn a_due_time_that_was_changed_does_not_hide_that_a_message_is_early() {
        let mut board = board();
        board.send(at(5_000));
        board.arrive(&arrival(Some(0), 1_000, 1_001));
        assert_eq!(board.early, 1);
    }

    #[test]
    fn refused_messages_and_dead_letters_are_not_delivered() {
        let mut board = board();
        (0..3).for_each(|_| _ = board.send(at(1_000)));
        board.refuse(0, "full".to_owned());
        board.refuse(0, "full".to_owned());
        board.arrive(&Arrival {
            refusal: Some("delay_above_max".to_owned()),
            ..arrival(Some(1), 1_000, 1_001)
        });
        assert_eq!((board.sent, board.refused, board.delivered()), (3, 2, 0));
        assert_eq!(board.waiting(), 1);
        assert_eq!(
            board.lines,
            ["(full)"],
            "a repeated problem is printed once"
        );
    }

    #[test]
    fn a_guest_is_printed_and_counted_apart() {
        let mut board = board();
        board.arrive(&arrival(None, 1_000, 1_004));
        assert_eq!((board.guests, board.sent, board.latest.len()), (1, 0, 0));
        assert_eq!(board.lines.len(), 1);
        assert_eq!(
            board.lateness([500]),
            [None],
            "only the demo's own are measured"
        );
    }

    #[test]
    fn waiting_messages_are_counted_by_clock_second() {
        let mut board = board();
        for due in [900, 1_999, 2_000, 2_999, 3_000, 99_000] {
            board.send(at(due));
        }
        assert_eq!(board.by_second(at(1_950), 3), [2, 2, 1]);
    }

    #[test]
    fn the_demo_ends_when_all_arrived_or_the_last_message_is_overdue() {
        let mut board = board();
        board.begin(at(0));
        board.send(at(1_000));
        board.on_quit(at(100));
        board.step(at(10_999));
        assert_eq!(board.phase, Phase::Finishing);
        board.step(at(11_000));
        assert_eq!((board.phase, board.lost()), (Phase::Over, 1));
        board.phase = Phase::Finishing;
        board.arrive(&arrival(Some(0), 1_000, 11_000));
        board.step(at(11_000));
        board.step(at(11_500));
        assert_eq!((board.phase, board.lost()), (Phase::Over, 0));
    }

    #[test]
    fn a_message_that_is_not_awaited_is_not_lost() {
        let mut board = board();
        board.begin(at(0));
        board.send(at(1_000));
        (0..2).for_each(|_| board.on_quit(at(100)));
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
                    1 => board.arrive(&arrival(Some(number), *due, due + 3)),
                    2 => (0..2).for_each(|_| board.arrive(&arrival(Some(number), *due, due + 3))),
                    _ => {}
                }
            }
            prop_assert_eq!(board.sent, fates.len() as u64);
            prop_assert_eq!(board.sent, board.delivered() + board.refused + board.waiting());
            prop_assert_eq!(board.duplicates, fates.iter().filter(|(fate, _)| *fate == 2).count() as u64);
            prop_assert_eq!(board.by_second(at(0), 20).iter().sum::<u64>(), board.waiting());
            prop_assert!(board.latest.len() <= DEMO_LINES_MAX);
        }

        #[test]
        fn percentiles_are_those_of_the_sorted_list(mut lates in proptest::collection::vec(0..9_000_i64, 1..300), part in 1..=1_000_usize) {
            let mut board = board();
            for late in &lates {
                let number = board.send(at(0));
                board.arrive(&arrival(Some(number), 0, *late));
            }
            lates.sort_unstable();
            let rank = (lates.len() * part).div_ceil(1_000).max(1);
            let expected = lates[rank - 1];
            prop_assert_eq!(board.lateness([part]), [u64::try_from(expected).ok()]);
        }
    }
}
