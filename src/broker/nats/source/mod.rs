//! The source port on NATS: joins the consumer group and runs one reader per started partition.

mod consumer_group;
mod partition_reader;
mod pull_consumer;

pub(super) use self::consumer_group::has_live_member;

use self::consumer_group::{GroupMember, Rebalance};
use self::partition_reader::{PartitionReader, ReaderOptions, ReaderStatus};
use super::Cluster;
use super::connection::Connection;
use super::kv::KvBucket;
use super::stream_info;
use crate::broker::{Error, Event, OffsetCommit, PartitionInfo, Source};
use crate::health::HealthPart;
use crate::limit::{NATS_CLOSE_TIMEOUT, NATS_HEARTBEAT_INTERVAL, NATS_SOURCE_FAILURE_GRACE};
use crate::model::{Offset, Partition, Timestamp, split_source_topic};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::{LocalBoxFuture, join_all};
use futures_util::stream::{self, AbortHandle, LocalBoxStream, SelectAll};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// The topics to read, and the identity of this process in its group.
pub(crate) struct SourceOptions {
    pub(crate) group: String,
    /// As [`source_topic`](crate::model::source_topic) writes them.
    pub(crate) topics: Vec<String>,
    /// Unique among the processes of the group.
    pub(crate) member: String,
    /// The route understands the headers of NATS' own message schedules.
    pub(crate) reads_schedules: bool,
    /// Bytes of fetched messages over all partitions.
    pub(crate) fetched_bytes_max: usize,
}

pub(crate) struct NatsSource {
    connection: Rc<Connection>,
    bucket: Rc<KvBucket>,
    group: String,
    reads_schedules: bool,
    fetched_bytes_max: usize,
    /// The next rebalance. The future owns the group member until it ends.
    rebalance: LocalBoxFuture<'static, (Result<Rebalance, Error>, GroupMember)>,
    /// Time of the last successful rebalance.
    last_rebalance: Option<Instant>,
    owned: BTreeSet<Partition>,
    /// The events of all readers, in turn.
    readers: SelectAll<LocalBoxStream<'static, Event>>,
    reading: BTreeMap<Partition, Reading>,
    /// Creation times of the streams when they were last described.
    stream_created: BTreeMap<Partition, i128>,
    events: VecDeque<Result<Event, Error>>,
}

/// A partition that is read. Dropping it stops the reader.
struct Reading {
    status: Rc<ReaderStatus>,
    abort: AbortHandle,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

impl NatsSource {
    pub(crate) fn new(
        cluster: &Cluster,
        options: SourceOptions,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let connection = Rc::new(Connection::with_thread(cluster, part)?);
        let (group, reads_schedules) = (options.group.clone(), options.reads_schedules);
        let fetched_bytes_max = options.fetched_bytes_max;
        let member = GroupMember::new(&connection, options);
        Ok(Self {
            bucket: member.bucket.clone(),
            rebalance: Box::pin(next_rebalance(member, Duration::ZERO)),
            connection,
            group,
            reads_schedules,
            fetched_bytes_max,
            last_rebalance: None,
            owned: BTreeSet::new(),
            readers: SelectAll::new(),
            reading: BTreeMap::new(),
            stream_created: BTreeMap::new(),
            events: VecDeque::new(),
        })
    }

    fn on_rebalance(&mut self, result: Result<Rebalance, Error>) {
        let mut rebalance = match result {
            Ok(rebalance) => rebalance,
            Err(error @ Error::Fatal(_)) => return self.events.push_back(Err(error)),
            Err(error) => {
                // Readers continue meanwhile.
                let last = self.last_rebalance;
                if last.is_none_or(|at| at.elapsed() > NATS_SOURCE_FAILURE_GRACE) {
                    let reason = format!("partitions cannot be assigned: {error}");
                    self.connection.state.part.set_not_ready(reason);
                }
                return;
            }
        };
        let mut reading = self.reading.values();
        let error = reading.find_map(|reading| reading.status.error.borrow().clone());
        match error.or(rebalance.problem.take()) {
            Some(error) => self.connection.state.part.set_not_ready(error),
            None => self.connection.state.part.set_ready(),
        }
        let is_first = self.last_rebalance.replace(Instant::now()).is_none();
        let Rebalance {
            assigned,
            revoked,
            errors,
            ..
        } = rebalance;
        self.events.extend(errors.into_iter().map(Err));
        for partition in &revoked {
            self.stop(partition);
            self.owned.remove(partition);
        }
        let has_revoked = !revoked.is_empty();
        if has_revoked {
            self.events.push_back(Ok(Event::Revoked(revoked)));
        }
        self.owned.extend(assigned.iter().cloned());
        // An empty assignment is reported too: this process has no partition, and that is normal.
        if is_first || !assigned.is_empty() || (has_revoked && self.owned.is_empty()) {
            self.events.push_back(Ok(Event::Assigned(assigned)));
        }
    }
}

async fn next_rebalance(
    mut member: GroupMember,
    delay: Duration,
) -> (Result<Rebalance, Error>, GroupMember) {
    tokio::time::sleep(delay).await;
    (member.rebalance().await, member)
}

#[async_trait(?Send)]
impl Source for NatsSource {
    async fn next_event(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            // Every arm is safe to drop: the futures stay in `self` and continue at the next call.
            tokio::select! {
                biased;
                (result, member) = &mut self.rebalance => {
                    self.rebalance = Box::pin(next_rebalance(member, NATS_HEARTBEAT_INTERVAL));
                    self.on_rebalance(result);
                }
                Some(event) = self.readers.next() => return Ok(event),
            }
        }
    }

    async fn describe(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Result<PartitionInfo, Error>>, Error> {
        let installation = self.bucket.installation().await?;
        let connection = &*self.connection;
        let infos = join_all(partitions.iter().map(|partition| async move {
            let missing = || Error::Rejected(format!("the partition {partition} does not exist"));
            let (stream, _) = split_source_topic(&partition.topic).ok_or_else(missing)?;
            let info = stream_info::fetch(connection, stream).await?;
            info.ok_or_else(missing)
        }));
        let mut described = Vec::with_capacity(partitions.len());
        for (partition, info) in partitions.iter().zip(infos.await) {
            described.push(info.map(|info| {
                self.stream_created.insert(partition.clone(), info.created);
                info.describe(&installation)
            }));
        }
        Ok(described)
    }

    async fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.bucket.committed(&self.group, partitions).await
    }

    async fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> Result<Vec<Offset>, Error> {
        stream_info::offsets_at(&self.connection, partitions, time).await
    }

    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64) {
        let Some((stream, filter)) = split_source_topic(&partition.topic) else {
            return;
        };
        let options = ReaderOptions {
            partition: partition.clone(),
            stream: stream.to_owned(),
            filter: filter.to_owned(),
            epoch,
            created: self.stream_created.get(partition).copied(),
            reads_schedules: self.reads_schedules,
            // One and a half fetches of each partition are in memory.
            fetch_bytes_max: self.fetched_bytes_max / 3 * 2 / self.owned.len().max(1),
            status: Rc::default(),
        };
        let status = options.status.clone();
        let reader = PartitionReader::new(self.connection.clone(), options, from);
        let (events, abort) = stream::abortable(reader.into_events());
        self.readers.push(events.boxed_local());
        self.reading
            .insert(partition.clone(), Reading { status, abort });
    }

    fn stop(&mut self, partition: &Partition) {
        self.reading.remove(partition);
        self.stream_created.remove(partition);
    }

    fn known_end(&self, partition: &Partition) -> Option<Offset> {
        self.reading.get(partition)?.status.end.get()
    }

    fn commit(&mut self, commits: Vec<OffsetCommit>) -> LocalBoxFuture<'static, Result<(), Error>> {
        let (bucket, group) = (self.bucket.clone(), self.group.clone());
        Box::pin(async move { bucket.commit(&group, &commits).await })
    }

    async fn close(&mut self) {
        self.readers.clear();
        let leave = async {
            let (_, mut member) = (&mut self.rebalance).await;
            member.leave().await
        };
        // If the cluster is unreachable, the other members remove this one after their timeout.
        let _result = tokio::time::timeout(NATS_CLOSE_TIMEOUT, leave).await;
        self.connection.close();
    }
}
