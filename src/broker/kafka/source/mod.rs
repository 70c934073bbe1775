//! The [`Source`] port on Kafka: two consumers, served by one thread.
//!
//! The *group consumer* joins the route's group and learns which partitions belong to this process.
//! The *partition consumer* joins no group and reads from explicit offsets. So the start of reading
//! never depends on what librdkafka does during a rebalance.
//!
//! | from thread to caller, or back | bound |
//! |---|---|
//! | Group events. They overtake records. | [`KAFKA_GROUP_EVENT_QUEUE_MAX`] |
//! | Batches of records. | [`KAFKA_RECORD_QUEUE_BATCHES_MAX`] |
//! | Bytes of records. | [`SourceMemory::queue`], then librdkafka's own queue |
//! | Read commands. | One per partition: a later one replaces it. |
//! | Commits. | One in flight, and one waiting. |
//!
//! The group is served even if the caller takes no records: a stalled caller keeps its partitions.

mod group_consumer;
mod partition_consumer;

use super::admin::{AdminWorker, TopicWatch, WorkerThread};
use super::error::invalid_topic_name;
use super::ffi::NativeClient;
use super::health::{ClusterHealth, ClusterProbe};
use super::options::Cluster;
use crate::broker::{Error, Event, OffsetCommit, PartitionInfo, Source};
use crate::client_thread::ClientThread;
use crate::health::HealthPart;
use crate::limit::{
    KAFKA_GROUP_EVENT_QUEUE_MAX, KAFKA_RECORD_QUEUE_BATCHES_MAX, KAFKA_SOURCE_WAKE_INTERVAL,
    SourceMemory,
};
use crate::model::{Offset, Partition, Timestamp, is_topic_name};
use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;
use group_consumer::{CommitRequest, GroupConsumer, GroupEvent};
use partition_consumer::{PartitionConsumer, ReadResult, Start};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The source port for one group on one cluster.
pub(crate) struct KafkaSource {
    group: String,
    group_events: mpsc::Receiver<Result<Event, Error>>,
    records: mpsc::Receiver<Event>,
    commits: mpsc::Sender<CommitRequest>,
    /// The current epoch of each partition that is read. Events of other epochs are dropped.
    epochs: BTreeMap<Partition, u64>,
    shared: Arc<Shared>,
    /// The partition consumer's client.
    native: Arc<NativeClient>,
    admin: AdminWorker,
    thread: ClientThread,
}

/// State that the caller and the thread share.
#[derive(Default)]
struct Shared {
    commands: Mutex<ReadCommands>,
    /// Payload bytes in the record queue.
    queued_bytes: AtomicUsize,
    stop: AtomicBool,
}

#[derive(Default)]
struct ReadCommands {
    /// Partitions to start at a position, or to stop (`None`).
    starts: BTreeMap<Partition, Option<Start>>,
    /// Topics that were deleted and recreated under their names.
    recreated_topics: BTreeSet<String>,
}

impl Shared {
    fn commands(&self) -> MutexGuard<'_, ReadCommands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KafkaSource {
    /// Joins `group`. Returns without waiting for a broker; connection problems come with
    /// [`Source::next_event`] and `part`.
    pub(crate) fn new(
        cluster: &Cluster,
        group: String,
        topics: &[String],
        memory: SourceMemory,
        part: HealthPart,
    ) -> Result<Self, Error> {
        if let Some(invalid) = topics.iter().find(|topic| !is_topic_name(topic)) {
            return Err(Error::Rejected(invalid_topic_name(invalid)));
        }
        let health = ClusterHealth::new(&cluster.name, part);
        let partition_consumer = PartitionConsumer::new(cluster, &group, memory, health.clone())?;
        let native = partition_consumer.consumer.native.clone();
        let shared = Arc::new(Shared::default());
        let watcher = shared.clone();
        let on_recreated = move |topic: &str| {
            let topic = topic.to_owned();
            watcher.commands().recreated_topics.insert(topic);
        };
        let watch = TopicWatch::new(topics, on_recreated);
        let admin = AdminWorker::sharing(native.clone(), health.clone(), watch)?;
        let group_consumer = GroupConsumer::join(cluster, &group, topics, health.clone())?;
        let (group_sender, group_events) = bounded(KAFKA_GROUP_EVENT_QUEUE_MAX);
        let (record_sender, records) = bounded(KAFKA_RECORD_QUEUE_BATCHES_MAX);
        let (commits, commit_requests) = mpsc::channel(1);
        let source_thread = SourceThread {
            group_consumer,
            partition_consumer,
            shared: shared.clone(),
            commits: commit_requests,
            group_events: group_sender,
            records: record_sender,
            queued_bytes_max: memory.queue,
            health,
            reported_rejections: BTreeMap::new(),
        };
        let thread = ClientThread::start("kafka-source", move || source_thread.serve())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            group,
            group_events,
            records,
            commits,
            epochs: BTreeMap::new(),
            shared,
            native,
            admin,
            thread,
        })
    }

    fn command(&mut self, partition: &Partition, start: Option<Start>) {
        let mut commands = self.shared.commands();
        commands.starts.insert(partition.clone(), start);
        drop(commands);
        self.thread.unpark();
    }

    fn is_current(&self, event: &Event) -> bool {
        let (partition, epoch) = match event {
            Event::Records(batch) => (&batch.partition, batch.epoch),
            Event::EndReached {
                partition, epoch, ..
            }
            | Event::RecordsRemoved {
                partition, epoch, ..
            }
            | Event::Unreadable {
                partition, epoch, ..
            }
            | Event::OutOfRange { partition, epoch } => (partition, *epoch),
            Event::Assigned(_) | Event::Revoked(_) => return true,
        };
        self.epochs.get(partition) == Some(&epoch)
    }
}

fn thread_ended() -> Error {
    Error::Fatal("the consumer thread has ended".to_owned())
}

fn batch_bytes(event: &Event) -> usize {
    if let Event::Records(batch) = event {
        batch.bytes()
    } else {
        0
    }
}

#[async_trait(?Send)]
impl Source for KafkaSource {
    /// Cancel-safe: both channels keep an event until it is returned.
    async fn next_event(&mut self) -> Result<Event, Error> {
        loop {
            let event = tokio::select! {
                biased;
                event = self.group_events.recv() => {
                    event.unwrap_or_else(|| Err(thread_ended()))?
                }
                Some(event) = self.records.recv() => {
                    self.shared
                        .queued_bytes
                        .fetch_sub(batch_bytes(&event), Ordering::Relaxed);
                    self.thread.unpark();
                    event
                }
            };
            if let Event::Revoked(partitions) = &event {
                for partition in partitions {
                    self.stop(partition);
                }
            }
            if self.is_current(&event) {
                return Ok(event);
            }
        }
    }

    async fn describe(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Result<PartitionInfo, Error>>, Error> {
        let partitions = partitions.to_vec();
        let request = move |worker: &mut WorkerThread| worker.describe_partitions(&partitions);
        self.admin.request(request).await
    }

    async fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.admin.committed_metadata(&self.group, partitions).await
    }

    async fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> Result<Vec<Offset>, Error> {
        let partitions = partitions.to_vec();
        let request = move |worker: &mut WorkerThread| worker.offsets_at(&partitions, time);
        self.admin.request(request).await
    }

    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64) {
        self.epochs.insert(partition.clone(), epoch);
        self.command(partition, Some(Start { from, epoch }));
    }

    fn stop(&mut self, partition: &Partition) {
        if self.epochs.remove(partition).is_some() {
            self.command(partition, None);
        }
    }

    fn known_end(&self, partition: &Partition) -> Option<Offset> {
        let end = self.native.end_offset(&partition.topic, partition.index);
        end.map(Offset)
    }

    fn commit(&mut self, commits: Vec<OffsetCommit>) -> LocalBoxFuture<'static, Result<(), Error>> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commits.try_send(CommitRequest { commits, reply });
        self.thread.unpark();
        Box::pin(async move {
            match sent {
                Err(TrySendError::Full(_)) => Err(Error::Unavailable(
                    "earlier commits are not answered yet".into(),
                )),
                Err(TrySendError::Closed(_)) => Err(thread_ended()),
                Ok(()) => answer.await.unwrap_or_else(|_| Err(thread_ended())),
            }
        })
    }

    async fn close(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
        // Concurrently, because each may wait for an unreachable broker.
        tokio::join!(self.admin.close(), self.thread.join());
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

/// The state of the source's thread.
struct SourceThread {
    group_consumer: GroupConsumer,
    partition_consumer: PartitionConsumer,
    shared: Arc<Shared>,
    commits: mpsc::Receiver<CommitRequest>,
    group_events: BoundedSender<Result<Event, Error>>,
    records: BoundedSender<Event>,
    /// Bytes in the record queue at which nothing is read; one read may exceed it.
    queued_bytes_max: usize,
    health: ClusterHealth,
    /// Rejections by text, with the time of their last report.
    reported_rejections: BTreeMap<String, Instant>,
}

/// A bounded channel, and the items that wait for room in it. Records that wait stop reading, and
/// [`queue_revoked`] bounds the group events.
struct BoundedSender<T> {
    channel: mpsc::Sender<T>,
    waiting: VecDeque<T>,
}

fn bounded<T>(max: usize) -> (BoundedSender<T>, mpsc::Receiver<T>) {
    let (channel, receiver) = mpsc::channel(max);
    let waiting = VecDeque::new();
    (BoundedSender { channel, waiting }, receiver)
}

impl<T> BoundedSender<T> {
    /// Moves waiting items into the channel. Returns whether the queue is empty.
    fn flush(&mut self) -> bool {
        while let Ok(permit) = self.channel.try_reserve() {
            let Some(item) = self.waiting.pop_front() else {
                return true;
            };
            permit.send(item);
        }
        self.waiting.is_empty()
    }
}

impl SourceThread {
    fn serve(mut self) {
        self.group_consumer.set_waker(std::thread::current());
        let records = &mut self.partition_consumer.consumer;
        records.set_waker(std::thread::current());
        let mut probe = ClusterProbe::new();
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.serve_group();
            self.serve_commands();
            let native = &self.partition_consumer.consumer.native;
            native.serve_events(|event| self.health.on_client_event(event));
            probe.serve(&self.health, |target| native.probe(target));
            if !self.serve_records() {
                std::thread::park_timeout(KAFKA_SOURCE_WAKE_INTERVAL);
            }
        }
        self.group_consumer.leave();
    }

    fn serve_group(&mut self) {
        for event in self.group_consumer.serve() {
            match event {
                GroupEvent::Assigned(partitions) => {
                    queue_assigned(&mut self.group_events.waiting, partitions);
                }
                GroupEvent::Revoked(partitions) => {
                    let stops = partitions.iter().map(|partition| (partition.clone(), None));
                    self.apply(stops.collect());
                    queue_revoked(&mut self.group_events.waiting, partitions);
                }
                GroupEvent::Rejected(text) => self.report_rejection(text),
            }
        }
        self.group_events.flush();
    }

    fn serve_commands(&mut self) {
        if self.group_consumer.can_commit()
            && let Ok(commit) = self.commits.try_recv()
        {
            self.group_consumer.commit(commit);
        }
        let mut commands = self.shared.commands();
        let starts = std::mem::take(&mut commands.starts);
        let recreated_topics = std::mem::take(&mut commands.recreated_topics);
        drop(commands);
        let mut read = ReadResult::default();
        for topic in recreated_topics {
            tracing::error!(
                topic,
                "the source topic was recreated. To read the new one, stop all processes of the deployment. Then run \
                 postdate reset --config FILE --route ROUTE --topic {topic}, and start them again"
            );
            if let Err(error) = self.partition_consumer.abandon_topic(&topic, &mut read) {
                self.group_events.waiting.push_back(Err(error));
            }
        }
        self.records.waiting.append(&mut read.events);
        if !starts.is_empty() {
            self.apply(starts);
        }
    }

    fn apply(&mut self, starts: BTreeMap<Partition, Option<Start>>) {
        if let Err(error) = self.partition_consumer.apply(starts) {
            self.group_events.waiting.push_back(Err(error));
        }
    }

    /// Reads a batch of records. Returns whether more are available at once.
    fn serve_records(&mut self) -> bool {
        let queued_bytes = &self.shared.queued_bytes;
        if !self.records.flush() || queued_bytes.load(Ordering::Relaxed) >= self.queued_bytes_max {
            return false;
        }
        let mut read = ReadResult::default();
        let has_more = self
            .partition_consumer
            .read(&mut read)
            .unwrap_or_else(|error| {
                self.group_events.waiting.push_back(Err(error));
                false
            });
        let bytes = read.events.iter().map(batch_bytes).sum();
        queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.records.waiting.append(&mut read.events);
        self.records.flush();
        has_more
    }

    /// Reports a rejection once per interval: librdkafka repeats it at every attempt. Skips it
    /// while the caller takes no events.
    fn report_rejection(&mut self, text: String) {
        const INTERVAL: Duration = Duration::from_secs(30);
        let now = Instant::now();
        let reported = &mut self.reported_rejections;
        reported.retain(|_, at| now.duration_since(*at) < INTERVAL);
        if self.group_events.flush() && reported.insert(text.clone(), now).is_none() {
            let error = Err(Error::Rejected(text));
            self.group_events.waiting.push_back(error);
        }
    }
}

/// Queues an assignment. An empty one adds no information to an assignment directly before it.
fn queue_assigned(waiting: &mut VecDeque<Result<Event, Error>>, assigned: Vec<Partition>) {
    if !assigned.is_empty() || !matches!(waiting.back(), Some(Ok(Event::Assigned(_)))) {
        waiting.push_back(Ok(Event::Assigned(assigned)));
    }
}

/// Queues a revocation. Partitions whose assignment is still waiting are removed from it instead.
/// So at most one assignment and one revocation wait per partition, however often the group
/// rebalances.
fn queue_revoked(waiting: &mut VecDeque<Result<Event, Error>>, mut revoked: Vec<Partition>) {
    for event in waiting.iter_mut() {
        if let Ok(Event::Assigned(assigned)) = event {
            let unseen: Vec<Partition> = revoked
                .extract_if(.., |partition| assigned.contains(partition))
                .collect();
            assigned.retain(|partition| !unseen.contains(partition));
        }
    }
    waiting.retain(|event| !matches!(event, Ok(Event::Assigned(assigned)) if assigned.is_empty()));
    if !revoked.is_empty() {
        waiting.push_back(Ok(Event::Revoked(revoked)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_topic_name_is_rejected_by_name() {
        let cluster = Cluster {
            name: "main".into(),
            brokers: vec!["127.0.0.1:1".to_owned()],
            properties: BTreeMap::new(),
        };
        for topic in ["^orders.*", "no spaces", "a\0b", ""] {
            let part = crate::health::Health::new().register("source");
            match KafkaSource::new(
                &cluster,
                "group".to_owned(),
                &["orders".to_owned(), topic.to_owned()],
                SourceMemory::of(1 << 28),
                part,
            ) {
                Err(Error::Rejected(text)) => assert!(
                    text.contains(&format!("`{}`", topic.escape_debug())),
                    "{text}"
                ),
                Err(other) => panic!("{other:?}"),
                Ok(_) => panic!("{topic:?} was accepted"),
            }
        }
    }

    #[test]
    fn a_revocation_cancels_an_assignment_that_the_caller_has_not_seen() {
        let partitions = |indexes: &[i32]| {
            indexes
                .iter()
                .map(|index| Partition::new("t", *index))
                .collect::<Vec<_>>()
        };
        let mut waiting = VecDeque::from([
            Ok(Event::Revoked(partitions(&[0]))),
            Ok(Event::Assigned(partitions(&[0, 1]))),
        ]);
        queue_revoked(&mut waiting, partitions(&[0, 2]));
        assert_eq!(
            format!("{waiting:?}"),
            format!(
                "{:?}",
                [
                    Ok::<_, Error>(Event::Revoked(partitions(&[0]))),
                    Ok(Event::Assigned(partitions(&[1]))),
                    Ok(Event::Revoked(partitions(&[2]))),
                ]
            )
        );
        queue_revoked(&mut waiting, partitions(&[1]));
        assert_eq!(waiting.len(), 2);
    }

    #[test]
    fn an_empty_assignment_waits_once_and_after_the_revocations() {
        let mut waiting = VecDeque::new();
        for _ in 0..3 {
            queue_assigned(&mut waiting, Vec::new());
            queue_revoked(&mut waiting, vec![Partition::new("t", 0)]);
            queue_assigned(&mut waiting, Vec::new());
            queue_assigned(&mut waiting, Vec::new());
        }
        assert_eq!(
            waiting
                .iter()
                .filter(|event| matches!(event, Ok(Event::Assigned(_))))
                .count(),
            1
        );
        assert!(matches!(waiting.back(), Some(Ok(Event::Assigned(none))) if none.is_empty()));
    }
}
