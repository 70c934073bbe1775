//! How the last transactions of a name ended, as its coordinator tells before the next producer is made, and what follows from that for one that
//! is still open in a partition. Pure.
//!
//! A producer's number stays with its name; its epoch grows with each producer that is made, and when one is fenced that has a transaction. So
//! the epoch of what is open in a partition tells whose it is. Of what nobody knows how it was to end, nothing is decided.

use crate::model::Partition;
use kafka_protocol::messages::ProducerId;
use std::collections::BTreeSet;

/// What a coordinator tells of a name's last transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TxnRecord {
    pub(super) producer: ProducerId,
    /// As of the answer: one more than the transaction's own, if it was fenced.
    pub(super) epoch: i16,
    /// When it began, in milliseconds by the coordinator's clock: tells two of one epoch apart.
    pub(super) since: i64,
    pub(super) end: TxnOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TxnOutcome {
    Committed,
    Aborted,
    /// It is under way, and is aborted by the next producer, unless its own ends it before. Where it has written.
    UnderWay(BTreeSet<Partition>),
    /// There was none since the last producer was made.
    Unknown,
}

impl TxnRecord {
    /// `state` in Kafka's words.
    pub(super) fn new(
        (producer, epoch): (ProducerId, i16),
        since: i64,
        state: &str,
        partitions: BTreeSet<Partition>,
    ) -> Self {
        let end = match state {
            "CompleteCommit" | "PrepareCommit" => TxnOutcome::Committed,
            // Of one that is about to be aborted the partitions are forgotten one by one.
            "CompleteAbort" | "PrepareAbort" | "PrepareEpochFence" => TxnOutcome::Aborted,
            "Ongoing" => TxnOutcome::UnderWay(partitions),
            _ => TxnOutcome::Unknown,
        };
        Self {
            producer,
            epoch,
            since,
            end,
        }
    }

    /// What is told when the next producer was made: fencing one that has a transaction takes an epoch more. So its own had ended it, which almost
    /// always commits. A number whose epochs are used up gives way to another, and nobody can tell.
    pub(super) fn fenced_by(&mut self, now: &TxnRecord) {
        if now.producer != self.producer {
            self.end = TxnOutcome::Unknown;
        } else if now.epoch <= self.epoch.saturating_add(1) {
            self.end = TxnOutcome::Committed;
        }
    }

    /// Whether it is undone, and has written to a partition.
    fn is_undone_in(&self, partition: &Partition) -> bool {
        matches!(&self.end, TxnOutcome::UnderWay(partitions) if partitions.contains(partition))
    }

    /// Whether what a producer has open in a partition is of one before it, by the same producer.
    pub(super) fn is_before(
        &self,
        producer: ProducerId,
        epoch: i16,
        partition: &Partition,
    ) -> bool {
        let is_elsewhere = matches!(&self.end, TxnOutcome::UnderWay(partitions) if !partitions.contains(partition));
        is_elsewhere && (self.producer, self.epoch) == (producer, epoch)
    }

    /// Whether what a producer of that epoch has open in a partition is to be committed; `None`: this does not tell.
    fn judge(&self, partition: &Partition, epoch: i16) -> Option<bool> {
        match &self.end {
            TxnOutcome::Committed => (epoch == self.epoch).then_some(true),
            // By its own producer, or fenced.
            TxnOutcome::Aborted => (epoch >= self.epoch.saturating_sub(1)).then_some(false),
            // Elsewhere it is one before it by the same producer, which aborts none while it cannot be sure that those before are complete.
            TxnOutcome::UnderWay(partitions) => {
                (epoch == self.epoch).then(|| !partitions.contains(partition))
            }
            TxnOutcome::Unknown => None,
        }
    }
}

/// All that is known of a name, oldest first: of those before the last only while something may hang of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TxnHistory(Vec<TxnRecord>);

impl TxnHistory {
    /// Older ones are left to the next transaction that goes where they hang, as everything is of which nobody knows.
    const MAX: usize = 4;

    /// What is told later of the same producer takes the place of what was told before. Of one that was under way when the opening before this
    /// one asked, a new producer tells how it ended.
    pub(super) fn add(&mut self, told: TxnRecord) {
        let tells_nothing = told.end == TxnOutcome::Unknown && !self.0.is_empty();
        if tells_nothing {
            if let Some(under_way) = self.under_way_mut() {
                under_way.fenced_by(&told);
            }
            return;
        }
        self.0
            .pop_if(|last| (last.producer, last.epoch) == (told.producer, told.epoch));
        self.0.push(told);
        let spare = self.0.len().saturating_sub(Self::MAX);
        self.0.drain(..spare);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The last one, if it was under way.
    pub(super) fn under_way(&self) -> Option<&TxnRecord> {
        self.0
            .last()
            .filter(|last| matches!(last.end, TxnOutcome::UnderWay(_)))
    }

    /// The same.
    pub(super) fn under_way_mut(&mut self) -> Option<&mut TxnRecord> {
        self.0
            .last_mut()
            .filter(|last| matches!(last.end, TxnOutcome::UnderWay(_)))
    }

    /// Whether one of them is undone, since it was fenced, that has written to a partition.
    pub(super) fn is_undone_in(&self, partition: &Partition) -> bool {
        self.0.iter().any(|last| last.is_undone_in(partition))
    }

    /// Whether a producer's transaction of that epoch, open in a partition, is of one of these or of one before: else its producer lives.
    pub(super) fn is_past(&self, producer: ProducerId, epoch: i16) -> bool {
        self.of(producer).any(|last| epoch <= last.epoch)
    }

    /// Whether it is to be committed; `None`: nobody knows.
    pub(super) fn judge(
        &self,
        producer: ProducerId,
        epoch: i16,
        partition: &Partition,
    ) -> Option<bool> {
        self.of(producer)
            .filter(|last| epoch <= last.epoch)
            .find_map(|last| last.judge(partition, epoch))
    }

    fn of(&self, producer: ProducerId) -> impl Iterator<Item = &TxnRecord> {
        self.0.iter().filter(move |last| last.producer == producer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRODUCER: ProducerId = ProducerId(7);

    fn place(index: i32) -> Partition {
        Partition::new("orders", index)
    }

    fn after(states: &[(i16, &str)]) -> TxnHistory {
        let mut lasts = TxnHistory::default();
        states
            .iter()
            .for_each(|(epoch, state)| lasts.add(told(*epoch, state)));
        lasts
    }

    fn told(epoch: i16, state: &str) -> TxnRecord {
        TxnRecord::new((PRODUCER, epoch), 0, state, BTreeSet::from([place(1)]))
    }

    #[test]
    fn what_hangs_ends_as_its_coordinator_had_decided() {
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
                after(&[(5, state)]).judge(PRODUCER, epoch, &place(0)),
                end,
                "{state}, {epoch}"
            );
        }
    }

    #[test]
    fn one_that_is_under_way_is_aborted_where_it_has_written_unless_its_producer_was_faster() {
        let mut lasts = after(&[(5, "Ongoing")]);
        assert_eq!(lasts.judge(PRODUCER, 5, &place(1)), Some(false));
        let under_way = lasts.under_way().unwrap();
        assert_eq!(
            [(5, 0), (5, 1), (4, 0)].map(|(epoch, index)| under_way.is_before(
                PRODUCER,
                epoch,
                &place(index)
            )),
            [true, false, false]
        );
        assert_eq!(
            [0, 1].map(|index| lasts.is_undone_in(&place(index))),
            [false, true]
        );
        lasts.under_way_mut().unwrap().fenced_by(&told(7, "Empty"));
        assert_eq!(
            [0, 1].map(|index| lasts.judge(PRODUCER, 5, &place(index))),
            [Some(true), Some(false)]
        );
        lasts.under_way_mut().unwrap().fenced_by(&told(6, "Empty"));
        assert_eq!(
            [0, 1].map(|index| lasts.judge(PRODUCER, 5, &place(index))),
            [Some(true), Some(true)]
        );
        assert!(!lasts.is_undone_in(&place(1)));
        assert_eq!(
            [lasts, after(&[(5, "CompleteAbort")])]
                .each_mut()
                .map(|lasts| lasts.under_way_mut().is_some()),
            [false, false]
        );
    }

    #[test]
    fn what_is_told_later_of_the_same_producer_takes_the_place_of_what_was_told_before() {
        for (states, elsewhere, there) in [
            // Its own ended it after all, before or after the next producer was made.
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
            // It was fenced, by an opening that was given up, and two were made since.
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
            // It went on.
            (
                &[(5, "CompleteCommit"), (5, "Ongoing")],
                Some(true),
                Some(false),
            ),
        ] {
            let judged = [0, 1].map(|index| after(states).judge(PRODUCER, 5, &place(index)));
            assert_eq!(judged, [elsewhere, there], "{states:?}");
        }
    }

    #[test]
    fn of_a_number_that_gave_way_to_another_nothing_is_decided() {
        let mut lasts = after(&[(i16::MAX - 1, "Ongoing")]);
        lasts.add(TxnRecord::new(
            (ProducerId(8), 0),
            0,
            "Empty",
            BTreeSet::new(),
        ));
        assert_eq!(lasts.judge(PRODUCER, i16::MAX - 1, &place(1)), None);
        assert!(lasts.is_past(PRODUCER, i16::MAX - 1));
    }

    #[test]
    fn a_producer_that_lives_is_let_alone() {
        let lasts = after(&[(5, "CompleteCommit")]);
        assert_eq!(
            [4, 5, 6].map(|epoch| lasts.is_past(PRODUCER, epoch)),
            [true, true, false]
        );
        assert_eq!(
            [
                lasts.is_past(ProducerId(8), 5),
                after(&[(5, "Empty")]).is_past(PRODUCER, 5)
            ],
            [false, true]
        );
        assert_eq!(
            (
                lasts.judge(PRODUCER, 6, &place(0)),
                lasts.judge(ProducerId(8), 5, &place(0))
            ),
            (None, None)
        );
    }

    #[test]
    fn what_was_known_before_goes_on_to_tell_and_the_oldest_is_forgotten() {
        let lasts = after(&[
            (5, "CompleteAbort"),
            (6, "Empty"),
            (7, "CompleteCommit"),
            (7, "CompleteCommit"),
        ]);
        assert_eq!(
            [4, 5, 6, 7].map(|epoch| lasts.judge(PRODUCER, epoch, &place(0))),
            [Some(false), Some(false), None, Some(true)]
        );
        let lasts = after(&[
            (1, "CompleteCommit"),
            (3, "CompleteCommit"),
            (5, "Ongoing"),
            (8, "CompleteCommit"),
            (9, "CompleteCommit"),
        ]);
        assert_eq!(
            [1, 3, 5, 8, 9].map(|epoch| lasts.judge(PRODUCER, epoch, &place(1))),
            [None, Some(true), Some(false), Some(true), Some(true)]
        );
    }
}
