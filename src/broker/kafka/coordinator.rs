//! What librdkafka has no call for: how the last transaction of a name was to end, and a transaction that partitions take part in without a
//! record. By Kafka's own protocol (<https://kafka.apache.org/protocol>), in versions that brokers have known since 2.0, but for
//! `DescribeTransactions`, which came with 3.0. The calls block, none longer than some seconds.
//!
//! Only where the cluster asks for neither TLS nor a login: what it is needed for comes of partitions with one replica, which such clusters
//! do not have.

use super::Cluster;
use crate::limit::{KAFKA_WIRE_ANSWER_BYTES_MAX, KAFKA_WIRE_ANSWER_MAX};
use crate::model::Partition;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, ApiVersionsRequest, DescribeTransactionsRequest, EndTxnRequest,
    FindCoordinatorRequest, GroupId, InitProducerIdRequest, ProducerId, RequestHeader, ResponseHeader, TopicName, TransactionalId,
};
use kafka_protocol::protocol::{Decodable as _, Encodable as _, HeaderVersion as _, Request, StrBytes};
use std::collections::BTreeMap;
use std::io::{Error, Read as _, Result, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Commit,
    Abort,
}

/// Why something was not done.
#[derive(Debug)]
pub(super) enum Unmet {
    /// It may be, soon.
    Later(String),
    Never(String),
}

impl From<Error> for Unmet {
    fn from(error: Error) -> Self {
        Self::Later(error.to_string())
    }
}

/// Who may end transactions of the name, until another is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Producer {
    id: ProducerId,
    epoch: i16,
}

/// The broker that keeps the transactions of one name.
pub(super) struct Coordinator {
    id: TransactionalId,
    connection: Connection,
    describes: bool,
}

/// Whether the cluster's brokers can be asked like this at all.
pub(super) fn is_open(cluster: &Cluster) -> bool {
    cluster.properties.get("security.protocol").is_none_or(|protocol| protocol.eq_ignore_ascii_case("plaintext"))
}

impl Coordinator {
    /// Asks the cluster's brokers, one after the other, who it is.
    pub(super) fn find(cluster: &Cluster, id: &str) -> std::result::Result<Self, Unmet> {
        let mut unmet = Unmet::Later("it has no brokers".to_owned());
        for broker in &cluster.brokers {
            match Self::find_by(broker, id) {
                Err(error) => unmet = error,
                found => return found,
            }
        }
        Err(unmet)
    }

    fn find_by(broker: &str, id: &str) -> std::result::Result<Self, Unmet> {
        const TRANSACTION: i8 = 1;
        let mut connection = Connection::open(broker)?;
        let request = FindCoordinatorRequest::default().with_key(text(id)).with_key_type(TRANSACTION);
        let found = connection.ask(&request, 2)?;
        done(found.error_code)?;
        let mut connection = Connection::open(&format!("{}:{}", found.host, found.port))?;
        let known = connection.ask(&ApiVersionsRequest::default(), 0)?;
        let describes = known.api_keys.iter().any(|api| api.api_key == DescribeTransactionsRequest::KEY);
        Ok(Self { id: TransactionalId(text(id)), connection, describes })
    }

    /// How the last transaction of the name ended, or will when its producer is fenced. `None`: the broker does not know any more, or never says.
    pub(super) fn decision(&mut self) -> std::result::Result<Option<Decision>, Unmet> {
        if !self.describes {
            return Ok(None);
        }
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![self.id.clone()]);
        let answer = self.connection.ask(&request, 0)?;
        let Some(found) = answer.transaction_states.first() else { return Ok(None) };
        if ResponseError::try_from_code(found.error_code) == Some(ResponseError::TransactionalIdNotFound) {
            return Ok(None);
        }
        done(found.error_code)?;
        Ok(match &*found.transaction_state {
            "PrepareCommit" | "CompleteCommit" => Some(Decision::Commit),
            "Ongoing" | "PrepareAbort" | "CompleteAbort" | "PrepareEpochFence" => Some(Decision::Abort),
            _ => None,
        })
    }

    /// Fences whoever bears the name, and ends that one's transaction. `lasts`: as of the producer that comes after it, in milliseconds.
    pub(super) fn fence(&mut self, lasts: i32) -> std::result::Result<Producer, Unmet> {
        let request = InitProducerIdRequest::default().with_transactional_id(Some(self.id.clone())).with_transaction_timeout_ms(lasts);
        let answer = self.connection.ask(&request, 1)?;
        done(answer.error_code)?;
        Ok(Producer { id: answer.producer_id, epoch: answer.producer_epoch })
    }

    /// Has the partitions, and that of the group's positions, write down that what the producer has open there has ended.
    pub(super) fn end(
        &mut self,
        producer: Producer,
        group: &str,
        partitions: &[Partition],
        decision: Decision,
    ) -> std::result::Result<(), Unmet> {
        let Producer { id, epoch } = producer;
        if !partitions.is_empty() {
            let request = AddPartitionsToTxnRequest::default()
                .with_v3_and_below_transactional_id(self.id.clone())
                .with_v3_and_below_producer_id(id)
                .with_v3_and_below_producer_epoch(epoch)
                .with_v3_and_below_topics(topics(partitions));
            let answer = self.connection.ask(&request, 1)?;
            let results = answer.results_by_topic_v3_and_below.iter().flat_map(|topic| &topic.results_by_partition);
            results.into_iter().try_for_each(|result| done(result.partition_error_code))?;
        }
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(self.id.clone())
            .with_producer_id(id)
            .with_producer_epoch(epoch)
            .with_group_id(GroupId(text(group)));
        done(self.connection.ask(&request, 1)?.error_code)?;
        let request = EndTxnRequest::default()
            .with_transactional_id(self.id.clone())
            .with_producer_id(id)
            .with_producer_epoch(epoch)
            .with_committed(decision == Decision::Commit);
        done(self.connection.ask(&request, 1)?.error_code)
    }
}

fn topics(partitions: &[Partition]) -> Vec<AddPartitionsToTxnTopic> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for partition in partitions {
        topics.entry(&partition.topic).or_default().push(partition.index);
    }
    let topic = |(name, partitions)| AddPartitionsToTxnTopic::default().with_name(TopicName(text(name))).with_partitions(partitions);
    topics.into_iter().map(topic).collect()
}

/// The errors that pass when the coordinator, or the partition, has come to where it will be, and has ended what it is about to.
fn done(code: i16) -> std::result::Result<(), Unmet> {
    use ResponseError::{
        ConcurrentTransactions, CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, OperationNotAttempted,
        UnknownTopicOrPartition,
    };
    if code == 0 {
        return Ok(());
    }
    match ResponseError::try_from_code(code) {
        Some(
            error @ (ConcurrentTransactions
            | CoordinatorLoadInProgress
            | CoordinatorNotAvailable
            | NotCoordinator
            | OperationNotAttempted
            | UnknownTopicOrPartition),
        ) => Err(Unmet::Later(error.to_string())),
        Some(error) => Err(Unmet::Never(error.to_string())),
        None => Err(Unmet::Never(format!("the broker answers with the error {code}"))),
    }
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// One question after the other.
struct Connection {
    stream: TcpStream,
    asked: i32,
}

impl Connection {
    fn open(addr: &str) -> Result<Self> {
        let mut refused = Error::other(format!("{addr} has no address"));
        for addr in addr.to_socket_addrs()? {
            match TcpStream::connect_timeout(&addr, KAFKA_WIRE_ANSWER_MAX) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(KAFKA_WIRE_ANSWER_MAX))?;
                    stream.set_write_timeout(Some(KAFKA_WIRE_ANSWER_MAX))?;
                    return Ok(Self { stream, asked: 0 });
                }
                Err(error) => refused = Error::new(error.kind(), format!("{addr}: {error}")),
            }
        }
        Err(refused)
    }

    fn ask<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response> {
        self.asked += 1;
        let mut bytes = BytesMut::new();
        bytes.put_i32(0);
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.asked)
            .with_client_id(Some(StrBytes::from_static_str("postdate")));
        header.encode(&mut bytes, R::header_version(version)).map_err(Error::other)?;
        request.encode(&mut bytes, version).map_err(Error::other)?;
        let length = i32::try_from(bytes.len() - size_of::<i32>()).map_err(Error::other)?;
        bytes[..size_of::<i32>()].copy_from_slice(&length.to_be_bytes());
        self.stream.write_all(&bytes)?;

        let mut answer = self.answer()?;
        let header = ResponseHeader::decode(&mut answer, R::Response::header_version(version)).map_err(Error::other)?;
        if header.correlation_id != self.asked {
            return Err(Error::other("the broker answers another question"));
        }
        R::Response::decode(&mut answer, version).map_err(Error::other)
    }

    fn answer(&mut self) -> Result<Bytes> {
        let mut length = [0; size_of::<i32>()];
        self.stream.read_exact(&mut length)?;
        let length = usize::try_from((&length[..]).get_i32()).unwrap_or(usize::MAX);
        if length > KAFKA_WIRE_ANSWER_BYTES_MAX {
            return Err(Error::other(format!("the broker's answer has {length} bytes")));
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer)?;
        Ok(answer.into())
    }
}
