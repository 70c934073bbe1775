//! The source port on NATS: joins the consumer group and runs one reader per assigned partition.
//!
//! | file | duty |
//! |---|---|
//! | `consumer_group` | assigns partitions to the processes of a route |
//! | `partition_reader` | reads one partition in order |
//! | `pull_consumer` | a pull consumer that skips no message silently |

mod consumer_group;
mod partition_reader;
mod pull_consumer;

use self::consumer_group::{GroupMember, Rebalance};
use self::partition_reader::{PartitionReader, ReaderOptions, ReaderStatus};
use super::Cluster;
use super::connection::Connection;
use super::kv::KvBucket;
use super::stream_info;
use crate::broker::{Error, Event, OffsetCommit, PartitionInfo, Source};
use crate::health::HealthPart;
use crate::limit::{NATS_CLOSE_TIMEOUT, NATS_GROUP_HEARTBEAT_INTERVAL, NATS_SOURCE_FAILURE_GRACE};
use crate::model::{Offset, Partition, split_source_topic};
use async_trait::async_trait;
use futures_util::future::{LocalBoxFuture, poll_fn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::task::Poll;
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
}

/// The next event of each reader. A reader returns with its event and is then polled again.
type Readers = BTreeMap<Partition, LocalBoxFuture<'static, (Event, PartitionReader)>>;

/// The source port on one cluster.
pub(crate) struct NatsSource {
    connection: Connection,
    bucket: KvBucket,
    group: String,
    reads_schedules: bool,
    /// The next step of the group. It owns the group member while it runs.
    rebalance: LocalBoxFuture<'static, (Result<Rebalance, Error>, GroupMember)>,
    /// Time of the last successful step. `None`: there was none yet.
    last_rebalance: Option<Instant>,
    owned: BTreeSet<Partition>,
    readers: Readers,
    statuses: BTreeMap<Partition, Rc<ReaderStatus>>,
    /// Creation times of the streams when they were last described.
    stream_created: BTreeMap<Partition, i128>,
    /// The reader that delivered last. The next one in order is polled first.
    last_read: Option<Partition>,
    events: VecDeque<Result<Event, Error>>,
}

impl NatsSource {
    pub(crate) fn new(
        cluster: &Cluster,
        options: SourceOptions,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let connection = Connection::with_thread(cluster, part)?;
        let member = GroupMember::new(&connection, &options);
        Ok(Self {
            bucket: member.bucket().clone(),
            rebalance: Box::pin(next_rebalance(member, false)),
            connection,
            group: options.group,
            reads_schedules: options.reads_schedules,
            last_rebalance: None,
            owned: BTreeSet::new(),
            readers: BTreeMap::new(),
            statuses: BTreeMap::new(),
            stream_created: BTreeMap::new(),
            last_read: None,
            events: VecDeque::new(),
        })
    }

    fn on_rebalance(&mut self, result: Result<Rebalance, Error>) {
        let rebalance = match result {
            Ok(rebalance) => rebalance,
            Err(error @ Error::Fatal(_)) => return self.events.push_back(Err(error)),
            Err(error) => return self.on_rebalance_error(&error),
        };
        let reader_error = self
            .statuses
            .values()
            .find_map(|status| status.error.borrow().clone());
        match reader_error {
            Some(error) => self.connection.set_not_ready(error),
            None => self.connection.set_ready(),
        }
        let is_first = self.last_rebalance.replace(Instant::now()).is_none();
        let Rebalance {
            assigned,
            revoked,
            errors,
        } = rebalance;
        self.events.extend(errors.into_iter().map(Err));
        let has_revoked = !revoked.is_empty();
        if has_revoked {
            for partition in &revoked {
                self.stop(partition);
                self.bucket.forget_commit(&self.group, partition);
            }
            self.owned.retain(|partition| !revoked.contains(partition));
            self.events.push_back(Ok(Event::Revoked(revoked)));
        }
        self.owned.extend(assigned.iter().cloned());
        // An empty assignment is reported too: this process has no partition, and that is normal.
        if is_first || !assigned.is_empty() || (has_revoked && self.owned.is_empty()) {
            self.events.push_back(Ok(Event::Assigned(assigned)));
        }
    }

    /// Reports a group that cannot be reached only after a grace time. Readers continue meanwhile.
    fn on_rebalance_error(&self, error: &Error) {
        let is_lasting = self
            .last_rebalance
            .is_none_or(|at| at.elapsed() > NATS_SOURCE_FAILURE_GRACE);
        if is_lasting {
            self.connection
                .set_not_ready(format!("partitions cannot be assigned: {error}"));
        }
    }
}

/// The next event of any reader, round robin. Safe to drop.
async fn next_read(readers: &mut Readers, last_read: &mut Option<Partition>) -> Event {
    let (event, partition, reader) = poll_fn(|context| {
        let after = last_read
            .iter()
            .flat_map(|last| readers.keys().filter(move |partition| *partition > last));
        let order: Vec<Partition> = after.chain(readers.keys()).cloned().collect();
        for partition in order {
            let reading = readers
                .get_mut(&partition)
                .expect("the order has only partitions that are read");
            if let Poll::Ready((event, reader)) = reading.as_mut().poll(context) {
                return Poll::Ready((event, partition, reader));
            }
        }
        Poll::Pending
    })
    .await;
    readers.insert(partition.clone(), Box::pin(reader.next_event()));
    *last_read = Some(partition);
    event
}

async fn next_rebalance(
    mut member: GroupMember,
    waits: bool,
) -> (Result<Rebalance, Error>, GroupMember) {
    if waits {
        tokio::time::sleep(NATS_GROUP_HEARTBEAT_INTERVAL).await;
    }
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
                    self.rebalance = Box::pin(next_rebalance(member, true));
                    self.on_rebalance(result);
                }
                event = next_read(&mut self.readers, &mut self.last_read) => return Ok(event),
            }
        }
    }

    async fn describe(&mut self, partitions: &[Partition]) -> Result<Vec<PartitionInfo>, Error> {
        let mut described = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let missing = || Error::Rejected(format!("the partition {partition} does not exist"));
            let (stream, _) = split_source_topic(&partition.topic).ok_or_else(missing)?;
            let info = stream_info::fetch(&self.connection, stream)
                .await?
                .ok_or_else(missing)?;
            self.stream_created.insert(partition.clone(), info.created);
            described.push(info.describe());
        }
        Ok(described)
    }

    async fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.bucket.committed(&self.group, partitions).await
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
            status: Rc::default(),
        };
        self.statuses
            .insert(partition.clone(), options.status.clone());
        let reader = PartitionReader::new(self.connection.clone(), options, from);
        self.readers
            .insert(partition.clone(), Box::pin(reader.next_event()));
    }

    fn stop(&mut self, partition: &Partition) {
        self.readers.remove(partition);
        self.statuses.remove(partition);
        self.stream_created.remove(partition);
    }

    fn known_end(&self, partition: &Partition) -> Option<Offset> {
        self.statuses.get(partition)?.end.get()
    }

    async fn commit(&mut self, commits: &[OffsetCommit]) -> Result<(), Error> {
        for commit in commits {
            self.bucket
                .commit(&self.group, &commit.partition, &commit.metadata)
                .await?;
        }
        Ok(())
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
