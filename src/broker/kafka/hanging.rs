//! What brokers forgot to end of the transactions of a name: where it is seen, and how it is ended.
//!
//! Kafka (seen of 4.3) takes a partition without a leader for deleted: when the only replica's broker is started again, or is fenced, it notes
//! transactions as complete whose end it never wrote down there. Readers of what is committed see nothing behind such a transaction, and it
//! ends, in whatever way, with the next one of the same producer that goes there: undone along with that, what was committed would be lost.
//!
//! So before the next producer of the name begins, the leaders of all partitions that the last one may have written to are asked what it has open
//! there, and write down its end, as the coordinator had decided (`last`): what `kafka-transactions.sh` does by hand. To do it again does no
//! harm: a partition in which nothing is open any more is left alone.
//!
//! A broker that is asked to end may still take the beginning of another transaction of the same producer, in the partitions where the forgotten
//! one hangs, which have no leader by then, and even its records (seen of 4.3: up to 16). They end in one from there on. So a transactor that has
//! something under way is given up only when that is committed (`transactor`). Where its process died, too, the fence would undo both. It shows in
//! the marker, which is in no transaction's hands any more: then the other one is committed before it is fenced, and what it holds comes again.

use super::last::{TxnHistory, TxnRecord};
use super::namesake::offsets_partition;
use super::wire::{AskError, Connections, check_code, text};
use crate::limit::KAFKA_DESCRIBED_MAX;
use crate::model::Partition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::{
    DescribeProducersRequest, DescribeTransactionsRequest, EndTxnRequest, FindCoordinatorRequest,
    MetadataRequest, MetadataResponse, ProducerId, TopicName, TransactionalId,
    WriteTxnMarkersRequest,
};
use std::collections::{BTreeMap, BTreeSet};

/// Where brokers keep what groups have committed, and so markers.
pub(super) const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// Whether it is the one that holds markers.
pub(super) fn is_offsets_partition(partition: &Partition) -> bool {
    &*partition.topic == OFFSETS_TOPIC
}

/// The last transaction of a name, as the coordinator has it. `None`: it knows nothing of the name.
pub(super) fn describe_last_transaction(
    connections: &mut Connections,
    id: &str,
) -> Result<Option<TxnRecord>, AskError> {
    let request = DescribeTransactionsRequest::default()
        .with_transactional_ids(vec![TransactionalId(text(id))]);
    let coordinator = coordinator(connections, id)?;
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
    let topics = state.topics.iter();
    let partitions = topics
        .flat_map(|topic| {
            topic
                .partitions
                .iter()
                .map(|index| Partition::new(&**topic.topic, *index))
        })
        .collect();
    let producer = (state.producer_id, state.producer_epoch);
    Ok(Some(TxnRecord::new(
        producer,
        state.transaction_start_time_ms,
        &state.transaction_state,
        partitions,
    )))
}

/// The address of a name's coordinator.
fn coordinator(connections: &mut Connections, id: &str) -> Result<String, AskError> {
    const TRANSACTION: i8 = 1;
    let found = connections.ask_any(
        &FindCoordinatorRequest::default()
            .with_key(text(id))
            .with_key_type(TRANSACTION),
        2,
    )?;
    check_code(found.error_code)?;
    Ok(format!("{}:{}", found.host, found.port))
}

/// Whether the marker of a transaction is open that is not the one under way, by the same producer: so that one was complete and forgotten, for
/// otherwise its producer would not have begun another.
pub(super) fn follows_unfinished_transaction(
    connections: &mut Connections,
    lasts: &TxnHistory,
    partition: &Partition,
    group: &str,
) -> Result<bool, AskError> {
    let Some(under_way) = lasts.under_way() else {
        return Ok(false);
    };
    let sight = PartitionScan::take(connections, lasts, (&[], partition), group)?;
    if let Some((_, unmet)) = sight
        .untold
        .into_iter()
        .find(|(partition, _)| is_offsets_partition(partition))
    {
        return Err(unmet);
    }
    let mut markers = sight
        .hanging
        .iter()
        .filter(|hanging| is_offsets_partition(&hanging.partition));
    Ok(markers
        .any(|hanging| under_way.is_before(hanging.producer, hanging.epoch, &hanging.partition)))
}

/// Commits what is under way, in its producer's place.
pub(super) fn commit(
    connections: &mut Connections,
    id: &str,
    under_way: &TxnRecord,
) -> Result<(), AskError> {
    let request = EndTxnRequest::default()
        .with_transactional_id(TransactionalId(text(id)))
        .with_producer_id(under_way.producer)
        .with_producer_epoch(under_way.epoch)
        .with_committed(true);
    let coordinator = coordinator(connections, id)?;
    check_code(connections.ask(&coordinator, &request, 1)?.error_code)
}

/// A transaction that is open in a partition, and its producer bears its name no longer.
#[derive(Debug)]
pub(super) struct HangingTxn {
    pub(super) partition: Partition,
    /// How it was to end; `None`: nobody knows.
    pub(super) is_committed: Option<bool>,
    leader: String,
    producer: ProducerId,
    epoch: i16,
    coordinator_epoch: i32,
}

impl HangingTxn {
    /// Has its leader write down its end.
    pub(super) fn end(
        &self,
        connections: &mut Connections,
        is_committed: bool,
    ) -> Result<(), AskError> {
        let topic = WritableTxnMarkerTopic::default()
            .with_name(TopicName(text(&self.partition.topic)))
            .with_partition_indexes(vec![self.partition.index]);
        let marker = WritableTxnMarker::default()
            .with_producer_id(self.producer)
            .with_producer_epoch(self.epoch)
            .with_transaction_result(is_committed)
            .with_coordinator_epoch(self.coordinator_epoch.max(0))
            .with_topics(vec![topic]);
        let answer = connections.ask(
            &self.leader,
            &WriteTxnMarkersRequest::default().with_markers(vec![marker]),
            1,
        )?;
        let mut results = answer
            .markers
            .iter()
            .flat_map(|marker| &marker.topics)
            .flat_map(|topic| &topic.partitions);
        let result = results
            .next()
            .ok_or_else(|| AskError::Retry("the answer does not tell".to_owned()))?;
        check_code(result.error_code)
    }

    /// A marker of which nobody knows how it was to end: the next commit of the group by the same producer commits it.
    pub(super) fn is_presumed(&self) -> bool {
        self.is_committed.is_none() && is_offsets_partition(&self.partition)
    }

    /// Whose it is.
    pub(super) fn of(&self) -> (ProducerId, i16) {
        (self.producer, self.epoch)
    }
}

/// What is seen at the leaders of the partitions.
#[derive(Debug, Default)]
pub(super) struct PartitionScan {
    pub(super) hanging: Vec<HangingTxn>,
    /// Of these nobody can tell. A topic that is not told of at all is here as its first partition.
    pub(super) untold: BTreeMap<Partition, AskError>,
}

impl PartitionScan {
    /// Looks at all partitions of the topics, at one more, and at where the group's positions lie. To be called when the producer is fenced: what
    /// the last ones have open has no other end any more.
    pub(super) fn take(
        connections: &mut Connections,
        lasts: &TxnHistory,
        (topics, partition): (&[String], &Partition),
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
        let is_asked_for = |topic: &MetadataResponseTopic, name: &str, index: i32| match name {
            OFFSETS_TOPIC => {
                index
                    == offsets_partition(
                        group,
                        i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX),
                    )
            }
            _ => {
                index == partition.index && name == &*partition.topic
                    || topics.iter().any(|topic| topic == name)
            }
        };
        let mut sight = Self::default();
        for (leader, partitions) in sight.by_leader(&metadata, is_asked_for) {
            let mut chunks = partitions.chunks(KAFKA_DESCRIBED_MAX);
            // Who does not answer once is not waited for again.
            let silent = chunks.by_ref().find_map(|some| {
                Some((
                    some,
                    sight.look_at(connections, &leader, some, lasts).err()?,
                ))
            });
            if let Some((some, unmet)) = silent {
                let untold = [some].into_iter().chain(chunks).flatten();
                sight
                    .untold
                    .extend(untold.map(|partition| (partition.clone(), unmet.clone())));
            }
        }
        Ok(sight)
    }

    /// The partitions by the address of their leader. Those without one are untold.
    fn by_leader(
        &mut self,
        metadata: &MetadataResponse,
        is_asked_for: impl Fn(&MetadataResponseTopic, &str, i32) -> bool,
    ) -> BTreeMap<String, Vec<Partition>> {
        let addr = |partition: &MetadataResponsePartition| {
            metadata
                .brokers
                .iter()
                .find(|broker| broker.node_id == partition.leader_id)
        };
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
            if let Err(unmet) = check_code(topic.error_code) {
                self.untold.insert(Partition::new(name, 0), unmet);
                continue;
            }
            for told in topic
                .partitions
                .iter()
                .filter(|told| is_asked_for(topic, name, told.partition_index))
            {
                let partition = Partition::new(name, told.partition_index);
                match addr(told) {
                    Some(broker) => found
                        .entry(format!("{}:{}", broker.host, broker.port))
                        .or_default()
                        .push(partition),
                    None => {
                        _ = self
                            .untold
                            .insert(partition, AskError::Retry("it has no leader".to_owned()))
                    }
                }
            }
        }
        found
    }

    fn look_at(
        &mut self,
        connections: &mut Connections,
        leader: &str,
        partitions: &[Partition],
        lasts: &TxnHistory,
    ) -> Result<(), AskError> {
        let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
        partitions.iter().for_each(|partition| {
            topics
                .entry(&partition.topic)
                .or_default()
                .push(partition.index)
        });
        let topic = |(name, indexes)| {
            TopicRequest::default()
                .with_name(TopicName(text(name)))
                .with_partition_indexes(indexes)
        };
        let request = DescribeProducersRequest::default()
            .with_topics(topics.into_iter().map(topic).collect());
        for topic in connections.ask(leader, &request, 0)?.topics {
            for told in topic.partitions {
                let partition = Partition::new(&**topic.name, told.partition_index);
                if let Err(unmet) = check_code(told.error_code) {
                    self.untold.insert(partition, unmet);
                    continue;
                }
                let is_open = told
                    .active_producers
                    .iter()
                    .filter(|one| one.current_txn_start_offset >= 0);
                let open = is_open.filter_map(|one| {
                    Some((
                        one.producer_id,
                        i16::try_from(one.producer_epoch).ok()?,
                        one.coordinator_epoch,
                    ))
                });
                let past = open.filter(|(producer, epoch, _)| lasts.is_past(*producer, *epoch));
                self.hanging
                    .extend(past.map(|(producer, epoch, coordinator_epoch)| HangingTxn {
                        is_committed: lasts.judge(producer, epoch, &partition),
                        partition: partition.clone(),
                        leader: leader.to_owned(),
                        producer,
                        epoch,
                        coordinator_epoch,
                    }));
            }
        }
        Ok(())
    }
}
