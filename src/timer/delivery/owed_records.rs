//! The outcome records that a claim owes: the unsent ones, those that failed, and the messages that wait for them.
//!
//! **At-least-once**: a message owes its records once its fate is known, and is complete when they are
//! acknowledged. So the delivered pair covers no message whose record a crash may lose. A message that only waits
//! for its records uses up no limit of claims and sends, and waits only for a short time.
//!
//! **Exactly-once**: the records are part of the transaction of their message. A record that fails
//! aborts it, so the route then sends no records for a while.

use super::in_flight::ClaimedBatch;
use crate::limit::OUTCOME_RECORDS_OPEN_MAX;
use crate::schedule::InFlightClaims;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// An outcome record: the index of its message in the claim, and its number among those of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordKey {
    pub(crate) index: u16,
    pub(crate) number: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordState {
    Unsent,
    /// The client has it, and will report on it.
    Sent,
    /// It is sent again after a wait.
    Failed,
}

struct OpenRecord {
    state: RecordState,
    failures: u32,
}

#[derive(Default)]
pub(crate) struct OwedRecords {
    /// The records that are neither acknowledged nor dropped.
    open: BTreeMap<RecordKey, OpenRecord>,
    /// In the order of sending. Records that are not open or not unsent any more are passed over.
    unsent: VecDeque<RecordKey>,
    /// When each record was owed, the oldest first. Records that are not open any more are passed over.
    owed_at: VecDeque<(Instant, RecordKey)>,
    /// At-least-once: messages that wait for nothing but their records.
    waiting: usize,
}

impl OwedRecords {
    /// The message at this index owes `count` records.
    pub(super) fn owe(&mut self, index: usize, count: usize, now: Instant) {
        for number in 0..count {
            let key = RecordKey {
                index: index as u16,
                number: number as u8,
            };
            let record = OpenRecord {
                state: RecordState::Unsent,
                failures: 0,
            };
            self.open.insert(key, record);
            self.unsent.push_back(key);
            self.owed_at.push_back((now, key));
        }
    }

    /// At-least-once: one more message waits for its records.
    pub(super) fn begin_wait(&mut self) {
        self.waiting += 1;
    }

    /// The messages that wait for nothing but their records.
    pub(crate) fn waiting_messages(&self) -> usize {
        self.waiting
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn next_unsent(&mut self) -> Option<RecordKey> {
        while let Some(key) = self.unsent.front().copied() {
            let open = self.open.get(&key);
            if open.is_some_and(|it| it.state == RecordState::Unsent) {
                return Some(key);
            }
            self.unsent.pop_front();
        }
        None
    }

    /// The client has the record, and will report on it.
    pub(super) fn on_sent(&mut self, key: RecordKey) {
        if let Some(record) = self.open.get_mut(&key) {
            record.state = RecordState::Sent;
        }
    }

    /// The record was not delivered. Returns how often it had failed before. `None`: its message does not wait for
    /// it, so it is not sent again.
    pub(super) fn on_failed(&mut self, key: RecordKey) -> Option<u32> {
        let record = self.open.get_mut(&key)?;
        record.state = RecordState::Failed;
        record.failures += 1;
        Some(record.failures - 1)
    }

    pub(super) fn send_again(&mut self, key: RecordKey) {
        if let Some(record) = self.open.get_mut(&key)
            && record.state == RecordState::Failed
        {
            record.state = RecordState::Unsent;
            self.unsent.push_back(key);
        }
    }

    /// The record is acknowledged or dropped. True if its message waited for it, and owes no other one.
    pub(crate) fn close(&mut self, key: RecordKey) -> bool {
        let is_last = self.open.remove(&key).is_some() && self.owes_nothing(key);
        if is_last {
            self.waiting = self.waiting.saturating_sub(1);
        }
        is_last
    }

    /// True if the message of this record has no open record.
    fn owes_nothing(&self, key: RecordKey) -> bool {
        let [first, last] = [0, u8::MAX].map(|number| RecordKey { number, ..key });
        self.open.range(first..=last).next().is_none()
    }

    /// The transaction was aborted: its messages, and then their records, are sent again.
    pub(super) fn on_aborted(&mut self) {
        *self = Self::default();
    }

    /// Closes the records that were owed at `until` or before, and `surplus` records in any case. Adds them to
    /// `released`. Returns the indexes of the messages that wait no longer.
    fn release(
        &mut self,
        until: Option<Instant>,
        surplus: usize,
        released: &mut Released,
    ) -> Vec<usize> {
        let mut indexes = Vec::new();
        let mut closed = 0;
        while let Some((owed_at, key)) = self.owed_at.front().copied() {
            let open = self.open.get(&key);
            let is_late = Some(owed_at) <= until;
            if open.is_some() && !is_late && closed >= surplus {
                break;
            }
            self.owed_at.pop_front();
            let Some(state) = open.map(|it| it.state) else {
                continue;
            };
            closed += 1;
            released.lost += usize::from(state != RecordState::Sent);
            released.has_late |= is_late;
            if self.close(key) {
                indexes.push(usize::from(key.index));
            }
        }
        indexes
    }
}

/// Records for which no message waits any longer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Released {
    /// Records that are not sent. The client may still send the others.
    pub(super) lost: usize,
    /// A message has waited for as long as it may.
    pub(super) has_late: bool,
}

/// Completes messages that have waited for their records for `wait`, and those of the oldest records while the shard
/// has too many.
pub(super) fn release_late(
    in_flight: &mut InFlightClaims<ClaimedBatch>,
    wait: Duration,
    now: Instant,
) -> Released {
    let until = match fault!(NoWaitForOutcomeRecords) {
        true => Some(now),
        false => now.checked_sub(wait),
    };
    let open: usize = in_flight.iter().map(|batch| batch.records.len()).sum();
    let mut surplus = open.saturating_sub(OUTCOME_RECORDS_OPEN_MAX);
    let mut released = Released::default();
    for number in in_flight.numbers() {
        let Some(batch) = in_flight.get_mut(number) else {
            continue;
        };
        let before = batch.records.len();
        let indexes = batch.records.release(until, surplus, &mut released);
        surplus = surplus.saturating_sub(before - batch.records.len());
        indexes.iter().for_each(|index| batch.acknowledge(*index));
        in_flight.complete(number, indexes.len());
    }
    released
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::OUTCOME_RECORD_WAIT_MAX;
    use crate::model::{Cursor, Offset, Progress, Timestamp, Watermark};

    fn key(index: u16, number: u8) -> RecordKey {
        RecordKey { index, number }
    }

    fn send_next(records: &mut OwedRecords) -> Option<RecordKey> {
        let key = records.next_unsent()?;
        records.on_sent(key);
        Some(key)
    }

    #[test]
    fn a_message_is_complete_when_its_last_record_is_closed() {
        let mut records = OwedRecords::default();
        records.owe(3, 2, Instant::now());
        records.begin_wait();
        assert_eq!(send_next(&mut records), Some(key(3, 0)));
        assert!(!records.close(key(3, 0)), "the other one is open");
        assert!(!records.close(key(3, 0)), "it is closed already");
        assert_eq!(records.next_unsent(), Some(key(3, 1)));
        assert_eq!(records.waiting_messages(), 1);
        assert!(records.close(key(3, 1)));
        assert_eq!((records.len(), records.next_unsent()), (0, None));
        assert_eq!(records.waiting_messages(), 0);
    }

    #[test]
    fn a_record_that_failed_is_sent_again_only_while_its_message_waits() {
        let mut records = OwedRecords::default();
        records.owe(0, 1, Instant::now());
        assert_eq!(send_next(&mut records), Some(key(0, 0)));
        assert_eq!(records.on_failed(key(0, 0)), Some(0));
        assert_eq!(records.next_unsent(), None, "it waits");
        records.send_again(key(0, 0));
        records.send_again(key(0, 0));
        assert_eq!(send_next(&mut records), Some(key(0, 0)));
        assert_eq!(records.next_unsent(), None, "it was queued once");
        assert_eq!(records.on_failed(key(0, 0)), Some(1));
        records.close(key(0, 0));
        records.send_again(key(0, 0));
        assert_eq!(records.next_unsent(), None);
        assert_eq!(records.on_failed(key(0, 0)), None);
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

    fn owe(
        in_flight: &mut InFlightClaims<ClaimedBatch>,
        claim: u32,
        indexes: std::ops::Range<usize>,
        count: usize,
        now: Instant,
    ) {
        let records = &mut in_flight.get_mut(claim).unwrap().records;
        for index in indexes {
            records.owe(index, count, now);
            records.begin_wait();
        }
    }

    #[test]
    fn no_message_waits_longer_than_the_limit_for_its_records() {
        let now = Instant::now();
        let wait = OUTCOME_RECORD_WAIT_MAX;
        let mut in_flight = claims(&[3]);
        owe(&mut in_flight, 0, 0..1, 2, now);
        owe(&mut in_flight, 0, 1..2, 1, now);
        let later = now + Duration::from_millis(1);
        owe(&mut in_flight, 0, 2..3, 1, later);
        send_next(&mut in_flight.get_mut(0).unwrap().records);
        assert_eq!(release_late(&mut in_flight, wait, now), Released::default());
        assert_eq!(in_flight.open_messages(), 3);
        let released = release_late(&mut in_flight, wait, now + wait);
        let expected = Released {
            lost: 2,
            has_late: true,
        };
        assert_eq!(released, expected);
        let batch = in_flight.get_mut(0).unwrap();
        assert!(!batch.records.close(key(0, 0)), "a late report");
        assert_eq!(batch.records.next_unsent(), Some(key(2, 0)));
        assert_eq!(batch.records.waiting_messages(), 1);
        assert_eq!(in_flight.open_messages(), 1, "the last one waits");
        release_late(&mut in_flight, Duration::ZERO, later);
        assert_eq!(in_flight.open_messages(), 0);
    }

    #[test]
    fn while_a_shard_has_too_many_records_the_oldest_messages_wait_no_longer() {
        let now = Instant::now();
        let wait = OUTCOME_RECORD_WAIT_MAX;
        let half = OUTCOME_RECORDS_OPEN_MAX / 2;
        let mut in_flight = claims(&[half, half, 1]);
        owe(&mut in_flight, 0, 0..half, 1, now);
        owe(&mut in_flight, 1, 0..half, 1, now);
        send_next(&mut in_flight.get_mut(0).unwrap().records);
        release_late(&mut in_flight, wait, now);
        assert_eq!(in_flight.open_messages(), 2 * half + 1);
        owe(&mut in_flight, 2, 0..1, 1, now);
        let released = release_late(&mut in_flight, wait, now);
        assert_eq!(released, Released::default(), "the client has that one");
        assert_eq!(in_flight.open_messages(), 2 * half);
        assert!(!in_flight.get_mut(0).unwrap().records.close(key(0, 0)));
    }
}
