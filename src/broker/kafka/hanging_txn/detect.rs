//! Finds the last transaction of a `transactional.id` and the hanging ones. Changes nothing.

use super::history::{TxnHistory, TxnRecord};
use super::offsets_partition::offsets_partition;
use super::protocol_client::{AskError, Connections, check_code, text};
use crate::limit::KAFKA_DESCRIBED_MAX;
use crate::model::Partition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::describe_producers_response::PartitionResponse;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    DescribeProducersRequest, DescribeTransactionsRequest, FindCoordinatorRequest, MetadataRequest,
    MetadataResponse, ProducerId, TopicName, TransactionalId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The topic in which brokers store the offsets of groups.
pub(super) const OFFSETS_TOPIC: &str = "__consumer_offsets";

pub(super) fn is_offsets_partition(partition: &Partition) -> bool {
    &*partition.topic == OFFSETS_TOPIC
}

/// The last transaction, as the coordinator describes it. `None`: the coordinator knows none.
pub(super) fn describe_last_transaction(
    connections: &mut Connections,
    transactional_id: &str,
) -> Result<Option<TxnRecord>, AskError> {
    let request = DescribeTransactionsRequest::default()
        .with_transactional_ids(vec![TransactionalId(text(transactional_id))]);
    let coordinator = coordinator(connections, transactional_id)?;
    let answer = connections.ask(&coordinator, &request, 0)?;
    let Some(state) = answer.transaction_states.first() else {
        return Ok(None);
    };
    if ResponseError::try_from_code(state.error_code)
        == Some(ResponseError::TransactionalIdNotFound)
    {
        return Ok(None);
    }
    check_code(state.error_code)?;
    let mut partitions = BTreeSet::new();
    for topic in &state.topics {
        let name = &**topic.topic;
        let indexes = topic.partitions.iter();
        partitions.extend(indexes.map(|index| Partition::new(name, *index)));
    }
    Ok(Some(TxnRecord::new(
        state.producer_id,
        state.producer_epoch,
        state.transaction_start_time_ms,
        &state.transaction_state,
        partitions,
    )))
}

/// The address of the coordinator of a `transactional.id`.
pub(super) fn coordinator(
    connections: &mut Connections,
    transactional_id: &str,
) -> Result<String, AskError> {
    const TRANSACTION: i8 = 1;
    let request = FindCoordinatorRequest::default()
        .with_key(text(transactional_id))
        .with_key_type(TRANSACTION);
    let found = connections.ask_any(&request, 2)?;
    check_code(found.error_code)?;
    Ok(format!("{}:{}", found.host, found.port))
}

/// Returns whether the transaction in progress follows a hanging one. Then the producer has an open
/// transaction in the offsets partition, and it is not the one in progress.
pub(super) fn follows_unfinished_transaction(
    connections: &mut Connections,
    history: &TxnHistory,
    partition: &Partition,
    group: &str,
) -> Result<bool, AskError> {
    let Some(in_progress) = history.in_progress() else {
        return Ok(false);
    };
    let scan = PartitionScan::run(connections, history, &[], partition, group)?;
    let mut unknown = scan.unknown.into_iter();
    if let Some((_, error)) = unknown.find(|(partition, _)| is_offsets_partition(partition)) {
        return Err(error);
    }
    Ok(scan.hanging.iter().any(|hanging| {
        is_offsets_partition(&hanging.partition)
            && in_progress.follows(hanging.producer, hanging.epoch, &hanging.partition)
    }))
}

/// A transaction that is open in a partition although its producer has been fenced.
#[derive(Debug)]
pub(super) struct HangingTxn {
    pub(super) partition: Partition,
    /// The coordinator's decision; `None`: unknown.
    pub(super) should_commit: Option<bool>,
    /// Address of the partition's leader.
    pub(super) leader: String,
    pub(super) producer: ProducerId,
    pub(super) epoch: i16,
    pub(super) coordinator_epoch: i32,
}

impl HangingTxn {
    pub(super) fn producer(&self) -> (ProducerId, i16) {
        (self.producer, self.epoch)
    }
}

/// The reports of the partitions' leaders.
#[derive(Debug, Default)]
pub(super) struct PartitionScan {
    pub(super) hanging: Vec<HangingTxn>,
    /// Partitions whose leader gave no answer. A topic without description counts as partition 0.
    pub(super) unknown: BTreeMap<Partition, AskError>,
}

impl PartitionScan {
    /// Scans all partitions of `topics`, `partition`, and the group's offsets partition. The
    /// producer must be fenced: then nothing else ends the transactions of its predecessors.
    pub(super) fn run(
        connections: &mut Connections,
        history: &TxnHistory,
        topics: &[String],
        partition: &Partition,
        group: &str,
    ) -> Result<Self, AskError> {
        let names: BTreeSet<&str> = topics
            .iter()
            .map(String::as_str)
            .chain([&*partition.topic, OFFSETS_TOPIC])
            .collect();
        let topic = |name| MetadataRequestTopic::default().with_name(Some(TopicName(text(name))));
        let request = MetadataRequest::default()
            .with_topics(Some(names.into_iter().map(topic).collect()))
            .with_allow_auto_topic_creation(false);
        let metadata = connections.ask_any(&request, 4)?;
        let is_scanned = |topic: &MetadataResponseTopic, name: &str, index: i32| {
            if name == OFFSETS_TOPIC {
                let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
                return index == offsets_partition(group, count);
            }
            let is_source = index == partition.index && name == &*partition.topic;
            is_source || topics.iter().any(|topic| topic == name)
        };
        let mut scan = Self::default();
        for (leader, partitions) in scan.by_leader(&metadata, is_scanned) {
            scan.ask_leader(connections, &leader, &partitions, history);
        }
        Ok(scan)
    }

    /// The partitions by the address of their leader. A partition without leader is unknown.
    fn by_leader(
        &mut self,
        metadata: &MetadataResponse,
        is_scanned: impl Fn(&MetadataResponseTopic, &str, i32) -> bool,
    ) -> BTreeMap<String, Vec<Partition>> {
        let mut found: BTreeMap<String, Vec<Partition>> = BTreeMap::new();
        for topic in &metadata.topics {
            let Some(name) = topic.name.as_ref().map(|name| &***name) else {
                continue;
            };
            if ResponseError::try_from_code(topic.error_code)
                == Some(ResponseError::UnknownTopicOrPartition)
            {
                continue;
            }
            if let Err(error) = check_code(topic.error_code) {
                self.unknown.insert(Partition::new(name, 0), error);
                continue;
            }
            for described in &topic.partitions {
                if !is_scanned(topic, name, described.partition_index) {
                    continue;
                }
                let partition = Partition::new(name, described.partition_index);
                let mut brokers = metadata.brokers.iter();
                match brokers.find(|broker| broker.node_id == described.leader_id) {
                    Some(broker) => found
                        .entry(format!("{}:{}", broker.host, broker.port))
                        .or_default()
                        .push(partition),
                    None => {
                        let error = AskError::Retry("it has no leader".to_owned());
                        self.unknown.insert(partition, error);
                    }
                }
            }
        }
        found
    }

    /// Asks a leader about its partitions, some at a time. After an error, the rest is unknown: a
    /// leader that does not answer is not asked again.
    fn ask_leader(
        &mut self,
        connections: &mut Connections,
        leader: &str,
        partitions: &[Partition],
        history: &TxnHistory,
    ) {
        for (number, chunk) in partitions.chunks(KAFKA_DESCRIBED_MAX).enumerate() {
            if let Err(error) = self.ask_for_producers(connections, leader, chunk, history) {
                let rest = &partitions[number * KAFKA_DESCRIBED_MAX..];
                self.unknown.extend(
                    rest.iter()
                        .map(|partition| (partition.clone(), error.clone())),
                );
                return;
            }
        }
    }

    fn ask_for_producers(
        &mut self,
        connections: &mut Connections,
        leader: &str,
        partitions: &[Partition],
        history: &TxnHistory,
    ) -> Result<(), AskError> {
        let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
        for partition in partitions {
            let indexes = topics.entry(&partition.topic).or_default();
            indexes.push(partition.index);
        }
        let topic = |(name, indexes)| {
            TopicRequest::default()
                .with_name(TopicName(text(name)))
                .with_partition_indexes(indexes)
        };
        let request = DescribeProducersRequest::default()
            .with_topics(topics.into_iter().map(topic).collect());
        for topic in connections.ask(leader, &request, 0)?.topics {
            for described in topic.partitions {
                let partition = Partition::new(&**topic.name, described.partition_index);
                self.add_partition(leader, partition, described, history);
            }
        }
        Ok(())
    }

    fn add_partition(
        &mut self,
        leader: &str,
        partition: Partition,
        described: PartitionResponse,
        history: &TxnHistory,
    ) {
        if let Err(error) = check_code(described.error_code) {
            self.unknown.insert(partition, error);
            return;
        }
        for open in described.active_producers {
            let Ok(epoch) = i16::try_from(open.producer_epoch) else {
                continue;
            };
            let is_open = open.current_txn_start_offset >= 0;
            if is_open && history.is_past(open.producer_id, epoch) {
                self.hanging.push(HangingTxn {
                    partition: partition.clone(),
                    should_commit: history.should_commit(open.producer_id, epoch, &partition),
                    leader: leader.to_owned(),
                    producer: open.producer_id,
                    epoch,
                    coordinator_epoch: open.coordinator_epoch,
                });
            }
        }
    }
}
