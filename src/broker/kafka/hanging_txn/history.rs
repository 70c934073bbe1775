//! The outcomes of the last transactions of one `transactional.id`, and what follows from them for
//! a transaction that is still open in a partition. Pure.
//!
//! The producer id stays with the `transactional.id`. The epoch grows with each new producer, and
//! when a producer with a transaction is fenced. So the epoch of an open transaction tells whose it
//! is. Without a known outcome, nothing is decided.

use crate::model::Partition;
use kafka_protocol::messages::ProducerId;
use std::collections::BTreeSet;

/// A transaction as the coordinator described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TxnRecord {
    pub(super) producer: ProducerId,
    /// The epoch in the description. It is one above the transaction's own if that was fenced.
    pub(super) epoch: i16,
    /// Start time in milliseconds by the coordinator's clock. It distinguishes transactions of one
    /// epoch.
    pub(super) started_at: i64,
    pub(super) outcome: TxnOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TxnOutcome {
    Committed,
    Aborted,
    /// Its producer may still end it; otherwise the next producer aborts it. It has written to
    /// these partitions.
    InProgress(BTreeSet<Partition>),
    /// There was no transaction since the last producer was created.
    Unknown,
}

impl TxnRecord {
    /// `state`: Kafka's name of the transaction's state.
    pub(super) fn new(
        producer: ProducerId,
        epoch: i16,
        started_at: i64,
        state: &str,
        partitions: BTreeSet<Partition>,
    ) -> Self {
        let outcome = match state {
            "CompleteCommit" | "PrepareCommit" => TxnOutcome::Committed,
            // While it aborts, the coordinator forgets the partitions one by one.
            "CompleteAbort" | "PrepareAbort" | "PrepareEpochFence" => TxnOutcome::Aborted,
            "Ongoing" => TxnOutcome::InProgress(partitions),
            _ => TxnOutcome::Unknown,
        };
        Self {
            producer,
            epoch,
            started_at,
            outcome,
        }
    }

    /// Updates a transaction in progress from a description after the next producer was created.
    ///
    /// Fencing a producer with a transaction takes one more epoch. Without it, the producer had
    /// ended its transaction itself, and almost always with a commit. A new producer id, which
    /// replaces one whose epochs are used up, tells nothing.
    pub(super) fn resolve_after_fence(&mut self, now: &TxnRecord) {
        if now.producer != self.producer {
            self.outcome = TxnOutcome::Unknown;
        } else if now.epoch <= self.epoch.saturating_add(1) {
            self.outcome = TxnOutcome::Committed;
        }
    }

    /// Returns whether the next producer aborts it, and it has written to a partition.
    fn aborts_in(&self, partition: &Partition) -> bool {
        match &self.outcome {
            TxnOutcome::InProgress(partitions) => partitions.contains(partition),
            _ => false,
        }
    }

    /// Returns whether a transaction that is open in a partition is an earlier one of the same
    /// producer: this one is in progress and has not written there.
    pub(super) fn follows(&self, producer: ProducerId, epoch: i16, partition: &Partition) -> bool {
        let is_elsewhere = match &self.outcome {
            TxnOutcome::InProgress(partitions) => !partitions.contains(partition),
            _ => false,
        };
        is_elsewhere && (self.producer, self.epoch) == (producer, epoch)
    }

    /// Returns whether to commit what a producer of this epoch has open in a partition; `None`:
    /// unknown.
    fn should_commit(&self, partition: &Partition, epoch: i16) -> Option<bool> {
        match &self.outcome {
            TxnOutcome::Committed => (epoch == self.epoch).then_some(true),
            // Aborted by its own producer, or fenced.
            TxnOutcome::Aborted => (epoch >= self.epoch.saturating_sub(1)).then_some(false),
            // Elsewhere it is an earlier one of the same producer, and that was committed: a
            // producer aborts nothing while an earlier transaction may be incomplete.
            TxnOutcome::InProgress(partitions) => {
                (epoch == self.epoch).then(|| !partitions.contains(partition))
            }
            TxnOutcome::Unknown => None,
        }
    }
}

/// The known transactions, oldest first. Earlier ones are kept only while they may hang.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TxnHistory(Vec<TxnRecord>);

impl TxnHistory {
    /// Older transactions count as unknown: the next one in their partition ends them.
    const MAX: usize = 4;

    /// Adds a description. It replaces an earlier one of the same producer and epoch. If it has no
    /// transaction, it only tells how the one in progress ended.
    pub(super) fn add(&mut self, record: TxnRecord) {
        if record.outcome == TxnOutcome::Unknown && !self.0.is_empty() {
            if let Some(in_progress) = self.in_progress_mut() {
                in_progress.resolve_after_fence(&record);
            }
            return;
        }
        self.0
            .pop_if(|last| (last.producer, last.epoch) == (record.producer, record.epoch));
        self.0.push(record);
        let excess = self.0.len().saturating_sub(Self::MAX);
        self.0.drain(..excess);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The last transaction, if it is in progress.
    pub(super) fn in_progress(&self) -> Option<&TxnRecord> {
        self.0
            .last()
            .filter(|last| matches!(last.outcome, TxnOutcome::InProgress(_)))
    }

    /// Like [`TxnHistory::in_progress`].
    pub(super) fn in_progress_mut(&mut self) -> Option<&mut TxnRecord> {
        self.0
            .last_mut()
            .filter(|last| matches!(last.outcome, TxnOutcome::InProgress(_)))
    }

    /// Returns whether the next producer aborts a transaction that has written to a partition.
    pub(super) fn aborts_in(&self, partition: &Partition) -> bool {
        self.0.iter().any(|record| record.aborts_in(partition))
    }

    /// Returns whether a transaction of this epoch belongs to a fenced producer.
    pub(super) fn is_past(&self, producer: ProducerId, epoch: i16) -> bool {
        self.of(producer).any(|record| epoch <= record.epoch)
    }

    /// Returns whether to commit what a producer of this epoch has open in a partition; `None`:
    /// unknown.
    pub(super) fn should_commit(
        &self,
        producer: ProducerId,
        epoch: i16,
        partition: &Partition,
    ) -> Option<bool> {
        self.of(producer)
            .filter(|record| epoch <= record.epoch)
            .find_map(|record| record.should_commit(partition, epoch))
    }

    fn of(&self, producer: ProducerId) -> impl Iterator<Item = &TxnRecord> {
        self.0
            .iter()
            .filter(move |record| record.producer == producer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRODUCER: ProducerId = ProducerId(7);

    fn partition(index: i32) -> Partition {
        Partition::new("orders", index)
    }

    fn after(states: &[(i16, &str)]) -> TxnHistory {
        let mut history = TxnHistory::default();
        states
            .iter()
            .for_each(|(epoch, state)| history.add(record(*epoch, state)));
        history
    }

    fn record(epoch: i16, state: &str) -> TxnRecord {
        TxnRecord::new(PRODUCER, epoch, 0, state, BTreeSet::from([partition(1)]))
    }

    #[test]
    fn a_hanging_transaction_ends_as_the_coordinator_decided() {
        for (state, epoch, end) in [
            ("CompleteCommit", 5, Some(true)),
            ("PrepareCommit", 5, Some(true)),
            ("CompleteCommit", 4, None),
            ("CompleteAbort", 5, Some(false)),
            ("PrepareAbort", 4, Some(false)),
            ("CompleteAbort", 3, None),
            ("Ongoing", 5, Some(true)),
            ("Ongoing", 4, None),
            ("Empty", 5, None),
            ("Dead", 5, None),
        ] {
            assert_eq!(
                after(&[(5, state)]).should_commit(PRODUCER, epoch, &partition(0)),
                end,
                "{state}, {epoch}"
            );
        }
    }

    #[test]
    fn a_transaction_in_progress_is_aborted_where_it_wrote_unless_its_producer_was_faster() {
        let mut history = after(&[(5, "Ongoing")]);
        assert_eq!(
            history.should_commit(PRODUCER, 5, &partition(1)),
            Some(false)
        );
        let in_progress = history.in_progress().unwrap();
        assert_eq!(
            [(5, 0), (5, 1), (4, 0)].map(|(epoch, index)| in_progress.follows(
                PRODUCER,
                epoch,
                &partition(index)
            )),
            [true, false, false]
        );
        assert_eq!(
            [0, 1].map(|index| history.aborts_in(&partition(index))),
            [false, true]
        );
        history
            .in_progress_mut()
            .unwrap()
            .resolve_after_fence(&record(7, "Empty"));
        assert_eq!(
            [0, 1].map(|index| history.should_commit(PRODUCER, 5, &partition(index))),
            [Some(true), Some(false)]
        );
        history
            .in_progress_mut()
            .unwrap()
            .resolve_after_fence(&record(6, "Empty"));
        assert_eq!(
            [0, 1].map(|index| history.should_commit(PRODUCER, 5, &partition(index))),
            [Some(true), Some(true)]
        );
        assert!(!history.aborts_in(&partition(1)));
        assert_eq!(
            [history, after(&[(5, "CompleteAbort")])]
                .each_mut()
                .map(|history| history.in_progress_mut().is_some()),
            [false, false]
        );
    }

    #[test]
    fn a_later_description_of_the_same_producer_replaces_the_earlier_one() {
        for (states, elsewhere, where_it_wrote) in [
            // Its own producer ended it, before or after the next producer was created.
            (
                &[(5, "Ongoing"), (5, "CompleteCommit")][..],
                Some(true),
                Some(true),
            ),
            (
                &[(5, "Ongoing"), (5, "CompleteAbort")],
                Some(false),
                Some(false),
            ),
            (&[(5, "Ongoing"), (6, "Empty")], Some(true), Some(true)),
            // A failed opening fenced it, and two producers were created since.
            (
                &[(5, "Ongoing"), (7, "Empty"), (8, "Empty")],
                Some(true),
                Some(false),
            ),
            (
                &[(5, "Ongoing"), (6, "CompleteAbort")],
                Some(true),
                Some(false),
            ),
            // The producer began another transaction.
            (
                &[(5, "CompleteCommit"), (5, "Ongoing")],
                Some(true),
                Some(false),
            ),
        ] {
            let decisions =
                [0, 1].map(|index| after(states).should_commit(PRODUCER, 5, &partition(index)));
            assert_eq!(decisions, [elsewhere, where_it_wrote], "{states:?}");
        }
    }

    #[test]
    fn nothing_is_decided_after_a_change_of_the_producer_id() {
        let mut history = after(&[(i16::MAX - 1, "Ongoing")]);
        history.add(TxnRecord::new(
            ProducerId(8),
            0,
            0,
            "Empty",
            BTreeSet::new(),
        ));
        assert_eq!(
            history.should_commit(PRODUCER, i16::MAX - 1, &partition(1)),
            None
        );
        assert!(history.is_past(PRODUCER, i16::MAX - 1));
    }

    #[test]
    fn a_live_producer_is_not_touched() {
        let history = after(&[(5, "CompleteCommit")]);
        assert_eq!(
            [4, 5, 6].map(|epoch| history.is_past(PRODUCER, epoch)),
            [true, true, false]
        );
        assert_eq!(
            [
                history.is_past(ProducerId(8), 5),
                after(&[(5, "Empty")]).is_past(PRODUCER, 5)
            ],
            [false, true]
        );
        assert_eq!(
            (
                history.should_commit(PRODUCER, 6, &partition(0)),
                history.should_commit(ProducerId(8), 5, &partition(0))
            ),
            (None, None)
        );
    }

    #[test]
    fn earlier_records_stay_valid_and_the_oldest_is_forgotten() {
        let history = after(&[
            (5, "CompleteAbort"),
            (6, "Empty"),
            (7, "CompleteCommit"),
            (7, "CompleteCommit"),
        ]);
        assert_eq!(
            [4, 5, 6, 7].map(|epoch| history.should_commit(PRODUCER, epoch, &partition(0))),
            [Some(false), Some(false), None, Some(true)]
        );
        let history = after(&[
            (1, "CompleteCommit"),
            (3, "CompleteCommit"),
            (5, "Ongoing"),
            (8, "CompleteCommit"),
            (9, "CompleteCommit"),
        ]);
        assert_eq!(
            [1, 3, 5, 8, 9].map(|epoch| history.should_commit(PRODUCER, epoch, &partition(1))),
            [None, Some(true), Some(false), Some(true), Some(true)]
        );
    }
}
