//! Ends hanging transactions while a producer is opened.

use super::detect::{
    HangingTxn, OFFSETS_TOPIC, PartitionScan, coordinator, describe_last_transaction,
    follows_unfinished_transaction, is_offsets_partition,
};
use super::history::{TxnHistory, TxnOutcome, TxnRecord};
use super::protocol_client::{AskError, Connections, check_code, is_plaintext, text};
use crate::broker::ProducerIdentity;
use crate::broker::kafka::options::Cluster;
use crate::limit::{
    KAFKA_TRANSACTION_CALL_TIMEOUT, KAFKA_TXN_REPAIR_PAUSE, KAFKA_TXN_REPAIR_TIMEOUT,
};
use crate::model::Partition;
use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::{EndTxnRequest, TopicName, TransactionalId, WriteTxnMarkersRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Why a producer must not begin: its first transaction could decide a hanging one wrongly.
#[derive(Debug)]
pub(crate) struct RecoveryFailed(pub(crate) String);

/// State that the repairs of one cluster share.
#[derive(Default)]
pub(crate) struct RecoveryState {
    /// Histories by `transactional.id`, while something may hang: the fence makes the coordinator
    /// forget the last transaction.
    histories: Mutex<BTreeMap<String, TxnHistory>>,
    /// Until this time no repair waits for unreachable partitions, because one has waited in full.
    no_waiting_until: Mutex<Option<Instant>>,
    /// The warning that the brokers cannot be asked was logged.
    has_warned: AtomicBool,
    /// Index of the bootstrap broker that answered last.
    first_broker: Arc<AtomicUsize>,
}

impl RecoveryState {
    fn history(&self, transactional_id: &str) -> TxnHistory {
        let histories = self
            .histories
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        histories.get(transactional_id).cloned().unwrap_or_default()
    }

    fn set_history(&self, transactional_id: &str, history: TxnHistory) {
        let mut histories = self
            .histories
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if history.is_empty() {
            histories.remove(transactional_id);
        } else {
            histories.insert(transactional_id.to_owned(), history);
        }
    }

    /// Until when to wait for unreachable partitions.
    fn deadline(&self, now: Instant) -> Instant {
        let no_waiting_until = *self
            .no_waiting_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if no_waiting_until.is_some_and(|until| now < until) {
            now
        } else {
            now + KAFKA_TXN_REPAIR_TIMEOUT
        }
    }

    fn pause_waiting(&self, now: Instant) {
        *self
            .no_waiting_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(now + KAFKA_TXN_REPAIR_PAUSE);
    }
}

/// The repair for one opening.
pub(crate) struct Recovery {
    identity: ProducerIdentity,
    history: TxnHistory,
    connections: Connections,
}

/// Partitions whose hanging transactions were ended.
#[derive(Default)]
struct Repaired {
    /// As the coordinator had decided.
    decided: BTreeSet<Partition>,
    /// Committed with an unknown decision, because the offset there will be committed as well.
    presumed: BTreeSet<Partition>,
}

/// Partitions where a transaction hangs, or may hang, after the repair.
#[derive(Default)]
struct Unrepaired {
    /// The leader did not list the open transactions.
    unknown: BTreeMap<Partition, AskError>,
    /// The leader rejected the end.
    rejected: BTreeMap<Partition, AskError>,
    /// The coordinator's decision is unknown.
    undecided: BTreeSet<Partition>,
    /// Must be aborted, but only after the offsets partition, which is unknown or has rejected its
    /// end.
    postponed: BTreeSet<Partition>,
}

impl Unrepaired {
    fn may_be_retried(&self) -> bool {
        self.unreachable().next().is_some()
    }

    /// Partitions that another attempt may repair.
    fn unreachable(&self) -> impl Iterator<Item = &Partition> {
        self.unknown
            .iter()
            .chain(&self.rejected)
            .filter(|(_, error)| error.is_retriable())
            .map(|(partition, _)| partition)
    }

    fn is_offset_unsure(&self) -> bool {
        self.unknown
            .keys()
            .chain(self.rejected.keys())
            .any(is_offsets_partition)
    }

    /// Why the next producer must not begin: its first commit would also commit hanging
    /// offsets and records in its partitions, against the coordinator's decision.
    fn reason_to_wait(&self, history: &TxnHistory) -> Option<String> {
        let mut unreachable = self.unreachable();
        if let Some(partition) = unreachable.find(|partition| is_offsets_partition(partition)) {
            return Some(format!(
                "{partition}, which holds the committed offset, is unreachable"
            ));
        }
        let aborted = self
            .unreachable()
            .find(|partition| history.aborts_in(partition))?;
        Some(format!(
            "the last transaction is aborted, and {aborted}, where it wrote, is unreachable"
        ))
    }
}

impl Recovery {
    /// Looks up the last transaction, before the fence of its producer. `None`: the brokers cannot
    /// be asked, or nothing can hang. `serve` serves the producer's client for at most the given
    /// time, and fails if the producer must stop.
    pub(crate) fn prepare<E: From<RecoveryFailed>>(
        state: &RecoveryState,
        cluster: &Cluster,
        identity: &ProducerIdentity,
        stop: Arc<AtomicBool>,
        serve: &mut dyn FnMut(Duration) -> Result<(), E>,
    ) -> Result<Option<Self>, E> {
        if !is_plaintext(cluster) {
            return Ok(None);
        }
        let brokers = cluster.brokers.as_slice().into();
        let mut recovery = Self {
            identity: identity.clone(),
            history: state.history(&identity.transactional_id),
            connections: Connections::new(brokers, state.first_broker.clone(), stop),
        };
        let deadline = Instant::now() + KAFKA_TXN_REPAIR_TIMEOUT;
        serve(Duration::ZERO)?;
        loop {
            match recovery.update_history() {
                Ok(()) => {
                    state.set_history(&identity.transactional_id, recovery.history.clone());
                    return Ok((!recovery.history.is_empty()).then_some(recovery));
                }
                Err(AskError::Permanent(reason)) => {
                    if !state.has_warned.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            transactional_id = identity.transactional_id,
                            reason,
                            "brokers do not describe transactions, so Postdate cannot end hanging \
                             ones (docs/exactly-once.md: a transaction that hangs); logged once"
                        );
                    }
                    return Ok(None);
                }
                Err(AskError::Retry(reason)) if deadline <= Instant::now() => {
                    return Err(outcome_unknown(&reason).into());
                }
                Err(AskError::Retry(_)) => serve(KAFKA_TRANSACTION_CALL_TIMEOUT)?,
            }
        }
    }

    /// Adds the last transaction to the history. Commits it if it is in progress behind a hanging
    /// one.
    fn update_history(&mut self) -> Result<(), AskError> {
        let Self {
            identity,
            history,
            connections,
        } = self;
        let id = &identity.transactional_id;
        let Some(last) = describe_last_transaction(connections, id)? else {
            return Ok(());
        };
        history.add(last);
        if !follows_unfinished_transaction(
            connections,
            history,
            &identity.partition,
            &identity.offset_group,
        )? {
            return Ok(());
        }
        let Some(in_progress) = history.in_progress_mut() else {
            return Ok(());
        };
        // Its own producer may have ended it meanwhile.
        if describe_last_transaction(connections, id)?.as_ref() != Some(&*in_progress) {
            return Ok(());
        }
        // A rejection means that the transaction has another state by now, so start again.
        commit_in_progress(connections, id, in_progress)
            .map_err(|error| AskError::Retry(error.reason().to_owned()))?;
        in_progress.outcome = TxnOutcome::Committed;
        tracing::warn!(
            transactional_id = id,
            "committed a hanging transaction and the one behind it: the messages of the second are \
             delivered twice"
        );
        Ok(())
    }

    /// Ends hanging transactions, after the fence and before the new producer writes anything.
    pub(crate) fn end_hanging<E: From<RecoveryFailed>>(
        mut self,
        state: &RecoveryState,
        serve: &mut dyn FnMut(Duration) -> Result<(), E>,
    ) -> Result<(), E> {
        self.resolve_in_progress(state)?;
        let deadline = state.deadline(Instant::now());
        let mut repaired = Repaired::default();
        serve(Duration::ZERO)?;
        let unrepaired = loop {
            let unrepaired = self.repair_once(&mut repaired);
            if !unrepaired.may_be_retried() || deadline <= Instant::now() {
                break unrepaired;
            }
            serve(KAFKA_TRANSACTION_CALL_TIMEOUT)?;
        };
        serve(Duration::ZERO)?;
        self.log_result(&repaired, &unrepaired);
        if unrepaired.unknown.is_empty() && unrepaired.rejected.is_empty() {
            state.set_history(&self.identity.transactional_id, TxnHistory::default());
        } else if unrepaired.may_be_retried() {
            state.pause_waiting(Instant::now());
        }
        match unrepaired.reason_to_wait(&self.history) {
            None => Ok(()),
            Some(reason) => Err(RecoveryFailed(reason).into()),
        }
    }

    /// Finds out whether the fence aborted the transaction in progress, or its producer was faster.
    fn resolve_in_progress(&mut self, state: &RecoveryState) -> Result<(), RecoveryFailed> {
        let id = &self.identity.transactional_id;
        let Some(in_progress) = self.history.in_progress_mut() else {
            return Ok(());
        };
        let now = describe_last_transaction(&mut self.connections, id)
            .map_err(|error| outcome_unknown(error.reason()))?;
        if let Some(now) = now {
            in_progress.resolve_after_fence(&now);
            state.set_history(id, self.history.clone());
        }
        Ok(())
    }

    /// Scans the partitions once, and ends the hanging transactions there.
    fn repair_once(&mut self, repaired: &mut Repaired) -> Unrepaired {
        let mut unrepaired = Unrepaired::default();
        let scan = PartitionScan::run(
            &mut self.connections,
            &self.history,
            &self.identity.target_topics,
            &self.identity.partition,
            &self.identity.offset_group,
        );
        let mut scan = match scan {
            Ok(scan) => scan,
            Err(error) => {
                let partition = Partition::new(OFFSETS_TOPIC, 0);
                unrepaired.unknown.insert(partition, error);
                return unrepaired;
            }
        };
        unrepaired.unknown = scan.unknown;
        // The offsets partition comes first. If only the other partitions were aborted, the
        // committed offset would count messages as delivered that are not.
        scan.hanging
            .sort_by_key(|hanging| !is_offsets_partition(&hanging.partition));
        let presumed: Vec<_> = scan
            .hanging
            .iter()
            .filter(|hanging| {
                hanging.should_commit.is_none() && is_offsets_partition(&hanging.partition)
            })
            .map(HangingTxn::producer)
            .collect();
        for hanging in scan.hanging {
            // The next commit of the group by the same producer commits the offset, so the
            // transaction's other partitions are committed too.
            let presumed_commit = presumed.contains(&hanging.producer()).then_some(true);
            let Some(commit) = hanging.should_commit.or(presumed_commit) else {
                unrepaired.undecided.insert(hanging.partition);
                continue;
            };
            if !commit && unrepaired.is_offset_unsure() {
                unrepaired.postponed.insert(hanging.partition);
                continue;
            }
            match write_end(&mut self.connections, &hanging, commit) {
                Ok(()) if hanging.should_commit.is_none() => {
                    repaired.presumed.insert(hanging.partition);
                }
                Ok(()) => {
                    repaired.decided.insert(hanging.partition);
                }
                Err(error) => {
                    unrepaired.rejected.insert(hanging.partition, error);
                }
            }
        }
        unrepaired
    }

    fn log_result(&self, repaired: &Repaired, unrepaired: &Unrepaired) {
        let transactional_id = &self.identity.transactional_id;
        if !repaired.presumed.is_empty() {
            tracing::warn!(
                transactional_id,
                partitions = ?names(&repaired.presumed),
                "committed a hanging transaction with an unknown outcome: if it was aborted, its \
                 messages in other partitions are missing"
            );
        }
        if !repaired.decided.is_empty() {
            tracing::warn!(
                transactional_id,
                partitions = ?names(&repaired.decided),
                "ended a hanging transaction as its coordinator had decided"
            );
        }
        let hanging: BTreeSet<_> = unrepaired
            .rejected
            .keys()
            .chain(&unrepaired.undecided)
            .chain(&unrepaired.postponed)
            .cloned()
            .collect();
        if !hanging.is_empty() {
            let mut errors = unrepaired
                .rejected
                .values()
                .chain(unrepaired.unknown.values());
            let reason = errors
                .next()
                .map_or("its outcome is unknown", AskError::reason);
            tracing::warn!(
                transactional_id,
                partitions = ?names(&hanging),
                reason,
                "cannot end a hanging transaction: read_committed consumers are blocked until the \
                 shard's next message in that partition \
                 (docs/exactly-once.md: a transaction that hangs)"
            );
        }
        for (partition, error) in &unrepaired.unknown {
            tracing::debug!(
                transactional_id,
                %partition,
                reason = error.reason(),
                "cannot check partition for hanging transactions"
            );
        }
    }
}

fn outcome_unknown(reason: &str) -> RecoveryFailed {
    RecoveryFailed(format!(
        "the outcome of the last transaction is unknown: {reason}"
    ))
}

/// Commits a transaction in place of its producer.
fn commit_in_progress(
    connections: &mut Connections,
    transactional_id: &str,
    in_progress: &TxnRecord,
) -> Result<(), AskError> {
    let request = EndTxnRequest::default()
        .with_transactional_id(TransactionalId(text(transactional_id)))
        .with_producer_id(in_progress.producer)
        .with_producer_epoch(in_progress.epoch)
        .with_committed(true);
    let coordinator = coordinator(connections, transactional_id)?;
    check_code(connections.ask(&coordinator, &request, 1)?.error_code)
}

/// Writes the end of a hanging transaction to its partition.
fn write_end(
    connections: &mut Connections,
    hanging: &HangingTxn,
    commit: bool,
) -> Result<(), AskError> {
    let topic = WritableTxnMarkerTopic::default()
        .with_name(TopicName(text(&hanging.partition.topic)))
        .with_partition_indexes(vec![hanging.partition.index]);
    let marker = WritableTxnMarker::default()
        .with_producer_id(hanging.producer)
        .with_producer_epoch(hanging.epoch)
        .with_transaction_result(commit)
        .with_coordinator_epoch(hanging.coordinator_epoch.max(0))
        .with_topics(vec![topic]);
    let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
    let answer = connections.ask(&hanging.leader, &request, 1)?;
    let mut results = answer
        .markers
        .iter()
        .flat_map(|marker| &marker.topics)
        .flat_map(|topic| &topic.partitions);
    let result = results
        .next()
        .ok_or_else(|| AskError::Retry("the answer lacks the partition".to_owned()))?;
    check_code(result.error_code)
}

fn names(partitions: &BTreeSet<Partition>) -> Vec<String> {
    partitions.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::ProducerId;

    fn partition(index: i32) -> Partition {
        Partition::new("orders", index)
    }

    fn in_progress_in(index: i32) -> TxnHistory {
        let mut history = TxnHistory::default();
        let partitions = BTreeSet::from([partition(index)]);
        history.add(TxnRecord::new(ProducerId(7), 5, 0, "Ongoing", partitions));
        history
    }

    #[test]
    fn a_producer_waits_for_the_offsets_partition_and_for_partitions_to_abort() {
        let retry = AskError::Retry("it has no leader".to_owned());
        let permanent = AskError::Permanent("unknown".to_owned());
        for (partition, error, waits) in [
            (Partition::new(OFFSETS_TOPIC, 3), &retry, true),
            (partition(1), &retry, true),
            (partition(0), &retry, false),
            // Another attempt does not help.
            (Partition::new(OFFSETS_TOPIC, 3), &permanent, false),
            (partition(1), &permanent, false),
        ] {
            let errors = || BTreeMap::from([(partition.clone(), error.clone())]);
            for unrepaired in [
                Unrepaired {
                    unknown: errors(),
                    ..Unrepaired::default()
                },
                Unrepaired {
                    rejected: errors(),
                    ..Unrepaired::default()
                },
            ] {
                assert_eq!(
                    unrepaired.reason_to_wait(&in_progress_in(1)).is_some(),
                    waits,
                    "{partition}, {error:?}"
                );
                assert_eq!(unrepaired.may_be_retried(), error.is_retriable());
            }
        }
    }
}
