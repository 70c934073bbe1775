//! The source port on NATS: the partitions that the group gives to this process, and a reader for each that is read.

use super::Cluster;
use super::connection::Connection;
use super::group::{GroupMember, Rebalance};
use super::kv::KvBucket;
use super::reader::{PartitionReader, ReaderOptions, ReaderStatus};
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

/// What a source is asked to read, by whom.
pub(crate) struct SourceOptions {
    pub(crate) group: String,
    /// As [`source_topic`](crate::model::source_topic) writes them.
    pub(crate) topics: Vec<String>,
    /// A name that no other process of the group has.
    pub(crate) member: String,
    /// Whether the headers of the server's own schedules are read.
    pub(crate) reads_schedules: bool,
}

/// What is read, each by a reader that is on its way to its next event.
type Readers = BTreeMap<Partition, LocalBoxFuture<'static, (Event, PartitionReader)>>;

/// The source port on one cluster.
pub(crate) struct NatsSource {
    connection: Connection,
    bucket: KvBucket,
    group: String,
    reads_schedules: bool,
    /// The group's next step; it has the group while it lasts.
    rebalance: LocalBoxFuture<'static, (Result<Rebalance, Error>, GroupMember)>,
    /// When the group answered last, and whether it has ever said what there is for this process.
    last_rebalance: Option<Instant>,
    owned: BTreeSet<Partition>,
    readers: Readers,
    /// What the readers tell beside their events.
    statuses: BTreeMap<Partition, Rc<ReaderStatus>>,
    /// The incarnations of the streams as they were last described: what begins to be read is of these.
    stream_created: BTreeMap<Partition, i128>,
    /// Whose turn it was last.
    last_read: Option<Partition>,
    events: VecDeque<Result<Event, Error>>,
}

impl NatsSource {
    pub(crate) fn new(
        cluster: &Cluster,
        reading: SourceOptions,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let link = Connection::with_thread(cluster, part)?;
        let group = GroupMember::new(&link, &reading);
        Ok(Self {
            bucket: group.bucket().clone(),
            rebalance: Box::pin(next_rebalance(group, false)),
            connection: link,
            group: reading.group,
            reads_schedules: reading.reads_schedules,
            last_rebalance: None,
            owned: BTreeSet::new(),
            readers: BTreeMap::new(),
            statuses: BTreeMap::new(),
            stream_created: BTreeMap::new(),
            last_read: None,
            events: VecDeque::new(),
        })
    }

    fn on_rebalance(&mut self, stepped: Result<Rebalance, Error>) {
        let Rebalance {
            gained,
            lost,
            faults,
        } = match stepped {
            Ok(step) => step,
            Err(error @ Error::Fatal(_)) => return self.events.push_back(Err(error)),
            // A cluster that is silent for a moment is what any is; whoever reads goes on reading.
            Err(error) => {
                if self
                    .last_rebalance
                    .is_none_or(|answered| answered.elapsed() > NATS_SOURCE_FAILURE_GRACE)
                {
                    self.connection.set_not_ready(format!(
                        "who reads which partition cannot be settled: {error}"
                    ));
                }
                return;
            }
        };
        match self
            .statuses
            .values()
            .find_map(|shown| shown.error.borrow().clone())
        {
            Some(trouble) => self.connection.set_not_ready(trouble),
            None => self.connection.set_ready(),
        }
        let is_first = self.last_rebalance.replace(Instant::now()).is_none();
        self.events.extend(faults.into_iter().map(Err));
        let has_lost = !lost.is_empty();
        if has_lost {
            for partition in &lost {
                self.stop(partition);
                self.bucket.forget_commit(&self.group, partition);
            }
            self.owned.retain(|partition| !lost.contains(partition));
            self.events.push_back(Ok(Event::Revoked(lost)));
        }
        self.owned.extend(gained.iter().cloned());
        // None: there is none for this process, and that is in order.
        if is_first || !gained.is_empty() || (has_lost && self.owned.is_empty()) {
            self.events.push_back(Ok(Event::Assigned(gained)));
        }
    }
}

/// The next event of any reader, each in its turn. Safe to drop.
async fn next_read(readers: &mut Readers, last: &mut Option<Partition>) -> Event {
    let (event, partition, reader) = poll_fn(|context| {
        let after = last
            .iter()
            .flat_map(|last| readers.keys().filter(move |partition| *partition > last));
        let turns: Vec<Partition> = after.chain(readers.keys()).cloned().collect();
        for partition in turns {
            let reading = readers.get_mut(&partition).expect("one of them");
            if let Poll::Ready((event, reader)) = reading.as_mut().poll(context) {
                return Poll::Ready((event, partition, reader));
            }
        }
        Poll::Pending
    })
    .await;
    readers.insert(partition.clone(), Box::pin(reader.next()));
    *last = Some(partition);
    event
}

async fn next_rebalance(
    mut group: GroupMember,
    waits: bool,
) -> (Result<Rebalance, Error>, GroupMember) {
    if waits {
        tokio::time::sleep(NATS_GROUP_HEARTBEAT_INTERVAL).await;
    }
    (group.rebalance().await, group)
}

#[async_trait(?Send)]
impl Source for NatsSource {
    async fn next_event(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(told) = self.events.pop_front() {
                return told;
            }
            // Every arm is safe to drop: the step and the readers stay, and go on at the next call.
            tokio::select! {
                biased;
                (stepped, group) = &mut self.rebalance => {
                    self.rebalance = Box::pin(next_rebalance(group, true));
                    self.on_rebalance(stepped);
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
            let facts = stream_info::fetch(&self.connection, stream)
                .await?
                .ok_or_else(missing)?;
            self.stream_created.insert(partition.clone(), facts.created);
            described.push(facts.describe());
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
        let plan = ReaderOptions {
            partition: partition.clone(),
            stream: stream.to_owned(),
            filter: filter.to_owned(),
            epoch,
            created: self.stream_created.get(partition).copied(),
            reads_schedules: self.reads_schedules,
            status: Rc::default(),
        };
        self.statuses.insert(partition.clone(), plan.status.clone());
        let reader = PartitionReader::new(self.connection.clone(), plan, from);
        self.readers
            .insert(partition.clone(), Box::pin(reader.next()));
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
        for OffsetCommit {
            partition,
            metadata,
            ..
        } in commits
        {
            self.bucket.commit(&self.group, partition, metadata).await?;
        }
        Ok(())
    }

    async fn close(&mut self) {
        self.readers.clear();
        let farewell = async {
            let (_, mut group) = (&mut self.rebalance).await;
            group.leave().await
        };
        // In vain where the cluster is away: the others notice by themselves.
        let _in_vain = tokio::time::timeout(NATS_CLOSE_TIMEOUT, farewell).await;
        self.connection.close();
    }
}
