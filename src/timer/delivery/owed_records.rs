//! The outcome records that a claim owes: the unsent ones, those that failed, and the time at which their
//! messages stop waiting for them.
//!
//! **At-least-once**: a message owes its records once its fate is known, and is complete when they are
//! acknowledged. So the delivered pair covers no message whose record a crash may lose. A topic that does not
//! answer must not stop the shard, so no message waits for long.
//!
//! **Exactly-once**: the records are part of the transaction of their message. A record that fails
//! aborts it, so the shard then sends no records for a while.

use super::in_flight::ClaimedBatch;
use super::record::{Destination, Reroute};
use crate::limit::{OUTCOME_RECORD_WAIT_MAX, OUTCOME_RECORDS_OPEN_MAX};
use crate::schedule::InFlightClaims;
use std::collections::{BTreeMap, VecDeque};
use tokio::time::Instant;

/// An outcome record: the index of its message in the claim, and its number among those of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordKey {
    pub(crate) index: u16,
    pub(crate) number: u8,
}

#[derive(Default)]
pub(crate) struct OwedRecords {
    /// The records that messages wait for, and whether the client has them.
    open: BTreeMap<RecordKey, bool>,
    unsent: VecDeque<RecordKey>,
    /// Records that have failed.
    reroutes: BTreeMap<RecordKey, Reroute>,
    /// When the first of the open records was owed.
    since: Option<Instant>,
}

impl OwedRecords {
    /// The message at this index owes `count` records.
    pub(super) fn owe(&mut self, index: usize, count: usize, now: Instant) {
        for number in 0..count {
            let key = RecordKey {
                index: index as u16,
                number: number as u8,
            };
            self.open.insert(key, false);
            self.unsent.push_back(key);
            self.since.get_or_insert(now);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn next_unsent(&self) -> Option<RecordKey> {
        self.unsent.front().copied()
    }

    pub(super) fn is_open(&self, key: RecordKey) -> bool {
        self.open.contains_key(&key)
    }

    /// The client has the next unsent record, and will report on it.
    pub(super) fn on_accepted(&mut self) {
        if let Some(key) = self.unsent.pop_front() {
            self.open.insert(key, true);
        }
    }

    /// The next unsent record is sent later: see [`OwedRecords::send_again`].
    pub(super) fn leave_out(&mut self) {
        self.unsent.pop_front();
    }

    pub(super) fn send_again(&mut self, key: RecordKey) {
        if self.is_open(key) && !self.unsent.contains(&key) {
            self.unsent.push_back(key);
        }
    }

    /// The record is acknowledged or dropped. True if its message owes no other one, and waited for it.
    pub(crate) fn close(&mut self, key: RecordKey) -> bool {
        let Some(is_sent) = self.open.remove(&key) else {
            return false;
        };
        if !is_sent {
            self.unsent.retain(|unsent| *unsent != key);
        }
        if self.open.is_empty() {
            self.since = None;
        }
        let [first, last] = [0, u8::MAX].map(|number| RecordKey { number, ..key });
        self.open.range(first..=last).next().is_none()
    }

    /// Where the record goes.
    pub(super) fn destination(&self, key: RecordKey) -> Destination {
        let reroute = self.reroute(key);
        reroute.map_or(Destination::Target, |reroute| reroute.destination)
    }

    pub(super) fn reroute(&self, key: RecordKey) -> Option<&Reroute> {
        self.reroutes.get(&key)
    }

    pub(super) fn set_reroute(&mut self, key: RecordKey, reroute: Reroute) {
        self.reroutes.insert(key, reroute);
        self.on_failed(key);
    }

    /// The client has given the record back. Returns how often it had failed at its destination before.
    pub(super) fn on_failed(&mut self, key: RecordKey) -> u32 {
        if let Some(is_sent) = self.open.get_mut(&key) {
            *is_sent = false;
        }
        let Some(reroute) = self.reroutes.get_mut(&key) else {
            return 0;
        };
        reroute.failures += 1;
        reroute.failures - 1
    }

    /// The transaction was aborted: its messages, and then their records, are sent again.
    pub(super) fn on_aborted(&mut self) {
        self.open.clear();
        self.unsent.clear();
        self.since = None;
    }

    /// No message waits any longer. Returns their indexes, and how many records are not sent.
    fn release(&mut self) -> (Vec<usize>, usize) {
        let lost = self.open.values().filter(|is_sent| !**is_sent).count();
        let mut indexes: Vec<_> = self.open.keys().map(|key| usize::from(key.index)).collect();
        indexes.dedup();
        self.on_aborted();
        (indexes, lost)
    }
}

/// Completes messages that have waited too long for their records, and the oldest ones while too many wait.
/// Returns the number of records that are not sent at all. The client may still send the others.
pub(super) fn release_late(in_flight: &mut InFlightClaims<ClaimedBatch>, now: Instant) -> usize {
    let mut open: usize = in_flight.iter().map(|batch| batch.records.len()).sum();
    let mut all_lost = 0;
    for number in in_flight.numbers() {
        let Some(batch) = in_flight.get_mut(number) else {
            continue;
        };
        let late_at = (batch.records.since).map(|since| since + OUTCOME_RECORD_WAIT_MAX);
        let is_late = late_at.is_some_and(|at| at <= now || fault!(NoWaitForOutcomeRecords));
        if !is_late && open <= OUTCOME_RECORDS_OPEN_MAX {
            continue;
        }
        open -= batch.records.len();
        let (indexes, lost) = batch.records.release();
        all_lost += lost;
        indexes.iter().for_each(|index| batch.acknowledge(*index));
        in_flight.complete(number, indexes.len());
    }
    all_lost
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Offset, Progress, Timestamp, Watermark};

    fn key(index: u16, number: u8) -> RecordKey {
        RecordKey { index, number }
    }

    #[test]
    fn a_message_is_complete_when_its_last_record_is_closed() {
        let mut records = OwedRecords::default();
        records.owe(3, 2, Instant::now());
        assert_eq!(records.next_unsent(), Some(key(3, 0)));
        records.on_accepted();
        assert!(!records.close(key(3, 0)), "the other one is open");
        assert!(!records.close(key(3, 0)), "it is closed already");
        assert_eq!(records.next_unsent(), Some(key(3, 1)));
        assert!(records.close(key(3, 1)));
        assert_eq!((records.len(), records.next_unsent()), (0, None));
    }

    #[test]
    fn a_record_that_failed_is_sent_again_only_while_its_message_waits() {
        let mut records = OwedRecords::default();
        records.owe(0, 1, Instant::now());
        records.on_accepted();
        assert_eq!(records.on_failed(key(0, 0)), 0);
        records.send_again(key(0, 0));
        records.send_again(key(0, 0));
        assert_eq!(records.next_unsent(), Some(key(0, 0)));
        records.leave_out();
        assert_eq!(records.next_unsent(), None, "it was queued once");
        records.close(key(0, 0));
        records.send_again(key(0, 0));
        assert_eq!(records.next_unsent(), None);
    }

    /// Claims with this many messages each. None has a run: only their records count.
    fn claims(counts: &[usize]) -> InFlightClaims<ClaimedBatch> {
        let mut in_flight = InFlightClaims::new(Progress::START);
        for (at, count) in (1..).zip(counts) {
            let cursor = Cursor::new(Timestamp::from_millis(at), Offset(at as u64));
            let claim = Progress::new(cursor, Watermark(at as u64 + 1));
            in_flight.push(claim, *count, ClaimedBatch::for_test(*count));
        }
        in_flight
    }

    #[test]
    fn no_message_waits_longer_than_the_limit_for_its_records() {
        let now = Instant::now();
        let mut in_flight = claims(&[2]);
        let batch = in_flight.get_mut(0).unwrap();
        batch.records.owe(0, 2, now);
        batch.records.owe(1, 1, now);
        batch.records.on_accepted();
        assert_eq!(release_late(&mut in_flight, now), 0);
        assert_eq!(in_flight.open_messages(), 2);
        let lost = release_late(&mut in_flight, now + OUTCOME_RECORD_WAIT_MAX);
        assert_eq!((lost, in_flight.open_messages()), (2, 0));
        let batch = in_flight.get_mut(0).unwrap();
        assert!(!batch.records.close(key(0, 0)), "a late report");
    }

    #[test]
    fn while_too_many_messages_wait_the_oldest_wait_no_longer() {
        let now = Instant::now();
        let half = OUTCOME_RECORDS_OPEN_MAX / 2;
        let mut in_flight = claims(&[half, half, 1]);
        for (number, count) in [(0, half), (1, half)] {
            let batch = in_flight.get_mut(number).unwrap();
            (0..count).for_each(|index| batch.records.owe(index, 1, now));
        }
        release_late(&mut in_flight, now);
        assert_eq!(in_flight.open_messages(), 2 * half + 1);
        in_flight.get_mut(2).unwrap().records.owe(0, 1, now);
        release_late(&mut in_flight, now);
        assert_eq!(in_flight.open_messages(), half + 1);
    }
}
