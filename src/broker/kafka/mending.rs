//! How an opening looks after what a broker may have left open of the last transactions of its name: see `hanging`.

use super::hanging::{
    HangingTxn, OFFSETS_TOPIC, PartitionScan, commit, describe_last_transaction,
    follows_unfinished_transaction, is_offsets_partition,
};
use super::last::{TxnHistory, TxnOutcome as Decision};
use super::transactor::{ExitReason, ProducerThread, failed};
use super::wire::{AskError, Connections, is_plaintext};
use crate::broker::ProducerIdentity;
use crate::limit::{
    KAFKA_TRANSACTION_CALL_TIMEOUT, KAFKA_TXN_REPAIR_PAUSE, KAFKA_TXN_REPAIR_TIMEOUT,
};
use crate::model::Partition;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

/// What openings of one cluster leave to those that follow.
#[derive(Default)]
pub(super) struct RecoveryState {
    /// By transactional id, for as long as something may hang. A producer that is made lets its coordinator forget it.
    lasts: Mutex<BTreeMap<String, TxnHistory>>,
    /// Some partition was waited for in vain, and until then none is.
    impatient: Mutex<Option<Instant>>,
    /// It was told that nobody can be asked.
    is_told: AtomicBool,
    /// Which broker answered last.
    first: Arc<AtomicUsize>,
}

impl RecoveryState {
    fn lasts(&self, id: &str) -> TxnHistory {
        self.lasts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .cloned()
            .unwrap_or_default()
    }

    fn keep(&self, id: &str, lasts: TxnHistory) {
        let mut kept = self.lasts.lock().unwrap_or_else(PoisonError::into_inner);
        if lasts.is_empty() {
            kept.remove(id)
        } else {
            kept.insert(id.to_owned(), lasts)
        };
    }

    /// How long may be waited for partitions.
    fn patience(&self, now: Instant) -> Instant {
        let impatient = *self
            .impatient
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if impatient.is_some_and(|until| now < until) {
            now
        } else {
            now + KAFKA_TXN_REPAIR_TIMEOUT
        }
    }

    fn lose_patience(&self, now: Instant) {
        *self
            .impatient
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(now + KAFKA_TXN_REPAIR_PAUSE);
    }
}

/// What one opening knows of the last transactions, and whom it asks.
pub(super) struct Recovery {
    lasts: TxnHistory,
    connections: Connections,
}

/// What was ended.
#[derive(Default)]
struct Repaired {
    decided: BTreeSet<Partition>,
    /// As committed, for nobody knows how it was to end, and its marker will be.
    presumed: BTreeSet<Partition>,
}

/// What still hangs after all was tried, or may.
#[derive(Default)]
struct Unrepaired {
    untold: BTreeMap<Partition, AskError>,
    refused: BTreeMap<Partition, AskError>,
    /// Nobody knows how it was to end.
    undecided: BTreeSet<Partition>,
    /// It was to be undone, and nobody can tell whether the marker would be, too.
    kept_back: BTreeSet<Partition>,
}

impl Unrepaired {
    fn may_pass(&self) -> bool {
        self.out_of_reach().next().is_some()
    }

    /// What may be told later, or ended.
    fn out_of_reach(&self) -> impl Iterator<Item = &Partition> {
        self.untold
            .iter()
            .chain(&self.refused)
            .filter(|(_, unmet)| unmet.is_later())
            .map(|(partition, _)| partition)
    }

    /// Why the next producer must not begin yet: its first commit ends what hangs where it goes, markers and records, in that way and no other.
    fn forbids(&self, lasts: &TxnHistory) -> Option<String> {
        let marker = self
            .out_of_reach()
            .find(|partition| is_offsets_partition(partition));
        let undone = self
            .out_of_reach()
            .find(|partition| lasts.is_undone_in(partition));
        let marker =
            marker.map(|partition| format!("{partition}, where its marker lies, is out of reach"));
        marker.or_else(|| {
            Some(format!(
                "the last transaction is undone, and {}, where it wrote, is out of reach",
                undone?
            ))
        })
    }
}

impl ProducerThread {
    /// Before the producer of the last one is fenced: after that its coordinator does not know any more. `None`: nobody can be asked.
    pub(super) fn ask_for_last(&mut self) -> Result<Option<Recovery>, ExitReason> {
        if !is_plaintext(&self.cluster) {
            return Ok(None);
        }
        let mut lasts = self.memory.lasts(&self.name.transactional_id);
        let brokers = self.cluster.brokers.as_slice().into();
        let mut connections =
            Connections::new(brokers, self.memory.first.clone(), self.stop.clone());
        let until = Instant::now() + KAFKA_TXN_REPAIR_TIMEOUT;
        loop {
            self.check_usable()?;
            match self.learn_of_last(&mut connections, &mut lasts) {
                Ok(()) => {
                    self.memory.keep(&self.name.transactional_id, lasts.clone());
                    return Ok((!lasts.is_empty()).then_some(Recovery { lasts, connections }));
                }
                Err(AskError::Permanent(reason)) => {
                    if !self.memory.is_told.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            transactional_id = self.name.transactional_id,
                            reason,
                            "brokers do not tell how the last transaction ended: what one of them forgets to end hangs until the next message of the \
                            shard goes there (docs/operate.md: a transaction that hangs); told once"
                        );
                    }
                    return Ok(None);
                }
                Err(AskError::Retry(reason)) if until <= Instant::now() => {
                    return Err(failed(format!(
                        "how the last transaction ended is not known: {reason}"
                    )));
                }
                Err(AskError::Retry(_)) => _ = self.poll(KAFKA_TRANSACTION_CALL_TIMEOUT),
            }
        }
    }

    /// And has one that was begun behind a forgotten one committed, lest both are undone.
    fn learn_of_last(
        &self,
        connections: &mut Connections,
        lasts: &mut TxnHistory,
    ) -> Result<(), AskError> {
        let ProducerIdentity {
            transactional_id: id,
            offset_group: group,
            partition,
            ..
        } = &self.name;
        let Some(told) = describe_last_transaction(connections, id)? else {
            return Ok(());
        };
        lasts.add(told);
        if follows_unfinished_transaction(connections, lasts, partition, group)?
            && let Some(under_way) = lasts.under_way_mut()
            // Not one that has come to its own marker in between.
            && describe_last_transaction(connections, id)?.as_ref() == Some(&*under_way)
        {
            // Refused, it is another state by now.
            commit(connections, id, under_way)
                .map_err(|unmet| AskError::Retry(unmet.reason().to_owned()))?;
            under_way.end = Decision::Committed;
            tracing::warn!(
                transactional_id = id,
                "a broker had forgotten to end a transaction, and had taken the beginning of another, which nobody came back to commit: both are \
                committed, and what is in the second is delivered again"
            );
        }
        Ok(())
    }

    /// When it is fenced, and before anything of the next one is written anywhere.
    pub(super) fn end_what_hangs(&mut self, mut mending: Recovery) -> Result<(), ExitReason> {
        self.learn_who_ended(&mut mending)?;
        let until = self.memory.patience(Instant::now());
        let mut ended = Repaired::default();
        let left = loop {
            self.check_usable()?;
            let left = self.end_what_is_seen(&mut mending, &mut ended);
            if !left.may_pass() || until <= Instant::now() {
                break left;
            }
            self.poll(KAFKA_TRANSACTION_CALL_TIMEOUT);
        };
        self.check_usable()?;
        self.tell_of(&ended, &left);
        if left.untold.is_empty() && left.refused.is_empty() {
            self.memory
                .keep(&self.name.transactional_id, TxnHistory::default());
        } else if left.may_pass() {
            self.memory.lose_patience(Instant::now());
        }
        left.forbids(&mending.lasts)
            .map_or(Ok(()), |reason| Err(failed(reason)))
    }

    /// Of a transaction that was under way: whether the fence ended it.
    fn learn_who_ended(&mut self, mending: &mut Recovery) -> Result<(), ExitReason> {
        let Some(last_one) = mending.lasts.under_way_mut() else {
            return Ok(());
        };
        match describe_last_transaction(&mut mending.connections, &self.name.transactional_id) {
            Ok(Some(now)) => {
                last_one.fenced_by(&now);
                self.memory
                    .keep(&self.name.transactional_id, mending.lasts.clone());
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(unmet) => Err(failed(format!(
                "how the last transaction ended is not known: {}",
                unmet.reason()
            ))),
        }
    }

    fn end_what_is_seen(&self, mending: &mut Recovery, ended: &mut Repaired) -> Unrepaired {
        let Recovery { lasts, connections } = mending;
        let mut left = Unrepaired::default();
        let mut sight = match PartitionScan::take(
            connections,
            lasts,
            (&self.name.target_topics, &self.name.partition),
            &self.name.offset_group,
        ) {
            Ok(sight) => sight,
            Err(unmet) => {
                left.untold.insert(Partition::new(OFFSETS_TOPIC, 0), unmet);
                return left;
            }
        };
        left.untold = sight.untold;
        // The marker comes first: undone elsewhere and not there, messages would count as delivered that are not.
        sight
            .hanging
            .sort_by_key(|hanging| !is_offsets_partition(&hanging.partition));
        let presumed: Vec<_> = sight
            .hanging
            .iter()
            .filter(|hanging| hanging.is_presumed())
            .map(HangingTxn::of)
            .collect();
        for hanging in sight.hanging {
            let is_marker_sure = !left
                .untold
                .keys()
                .chain(left.refused.keys())
                .any(is_offsets_partition);
            match hanging
                .is_committed
                .or(presumed.contains(&hanging.of()).then_some(true))
            {
                None => _ = left.undecided.insert(hanging.partition),
                Some(false) if !is_marker_sure => _ = left.kept_back.insert(hanging.partition),
                Some(is_committed) => match hanging.end(connections, is_committed) {
                    Ok(()) if hanging.is_committed.is_none() => {
                        _ = ended.presumed.insert(hanging.partition)
                    }
                    Ok(()) => _ = ended.decided.insert(hanging.partition),
                    Err(unmet) => _ = left.refused.insert(hanging.partition, unmet),
                },
            }
        }
        left
    }

    fn tell_of(&self, ended: &Repaired, left: &Unrepaired) {
        let id = &self.name.transactional_id;
        if !ended.presumed.is_empty() {
            tracing::warn!(
                transactional_id = id,
                partitions = ?names(&ended.presumed),
                "a broker had forgotten to end a transaction, and nobody knows any more how it was to end: it is committed, with its marker; \
                if it was to be undone, and was in other partitions, its messages there are missing"
            );
        }
        if !ended.decided.is_empty() {
            let partitions = names(&ended.decided);
            tracing::warn!(
                transactional_id = id,
                ?partitions,
                "a broker had forgotten to end the last transaction: it is ended as it was to end"
            );
        }
        let hanging: BTreeSet<_> = left
            .refused
            .keys()
            .chain(&left.undecided)
            .chain(&left.kept_back)
            .cloned()
            .collect();
        if !hanging.is_empty() {
            let reason = left
                .refused
                .values()
                .chain(left.untold.values())
                .next()
                .map_or("nobody knows how", AskError::reason);
            tracing::warn!(
                transactional_id = id,
                partitions = ?names(&hanging),
                reason,
                "a broker had forgotten to end a transaction, and it is not ended here: who reads what is committed sees nothing behind it \
                until the next message of the shard goes there (docs/operate.md: a transaction that hangs)"
            );
        }
        for (partition, unmet) in &left.untold {
            tracing::debug!(transactional_id = id, %partition, reason = unmet.reason(), "not told what hangs there");
        }
    }
}

fn names(partitions: &BTreeSet<Partition>) -> Vec<String> {
    partitions.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::super::last::TxnRecord;
    use super::*;
    use kafka_protocol::messages::ProducerId;

    fn place(index: i32) -> Partition {
        Partition::new("orders", index)
    }

    fn under_way_in(index: i32) -> TxnHistory {
        let mut lasts = TxnHistory::default();
        lasts.add(TxnRecord::new(
            (ProducerId(7), 5),
            0,
            "Ongoing",
            BTreeSet::from([place(index)]),
        ));
        lasts
    }

    #[test]
    fn nothing_begins_while_the_marker_or_what_is_undone_is_out_of_reach() {
        let (later, never) = (
            AskError::Retry("it has no leader".to_owned()),
            AskError::Permanent("unknown".to_owned()),
        );
        for (partition, unmet, forbids) in [
            (Partition::new(OFFSETS_TOPIC, 3), &later, true),
            (place(1), &later, true),
            (place(0), &later, false),
            // What is never told is not waited for.
            (Partition::new(OFFSETS_TOPIC, 3), &never, false),
            (place(1), &never, false),
        ] {
            let there = || BTreeMap::from([(partition.clone(), unmet.clone())]);
            for left in [
                Unrepaired {
                    untold: there(),
                    ..Unrepaired::default()
                },
                Unrepaired {
                    refused: there(),
                    ..Unrepaired::default()
                },
            ] {
                assert_eq!(
                    left.forbids(&under_way_in(1)).is_some(),
                    forbids,
                    "{partition}, {unmet:?}"
                );
                assert_eq!(left.may_pass(), unmet.is_later());
            }
        }
    }
}
