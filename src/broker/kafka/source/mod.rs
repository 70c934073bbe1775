//! The [`Source`] port on Kafka: a consumer of explicit partitions and offsets, served by one thread.
//!
//! The consumer joins no group. The group of the route keeps only its commits.
//!
//! | from thread to caller, or back | bound |
//! |---|---|
//! | Batches of records. | [`KAFKA_RECORD_QUEUE_BATCHES_MAX`] |
//! | Bytes of records. | [`SourceMemory::queue`], then librdkafka's own queue |
//! | Read commands. | One per partition: a later one replaces it. |
//! | Commits. | One in flight, and one waiting. |

mod offset_commits;
mod partition_consumer;

pub(super) use offset_commits::commit_error;

use super::admin::{AdminWorker, TopicWatch, WorkerThread};
use super::error::invalid_topic_name;
use super::ffi::NativeClient;
use super::health::{ClusterHealth, ClusterProbe};
use super::options::Cluster;
use crate::broker::{Error, Event, OffsetCommit, PartitionInfo, Source};
use crate::client_thread::ClientThread;
use crate::health::HealthPart;
use crate::limit::{KAFKA_RECORD_QUEUE_BATCHES_MAX, KAFKA_SOURCE_WAKE_INTERVAL, SourceMemory};
use crate::model::{Offset, Partition, Timestamp, is_topic_name};
use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;
use offset_commits::{CommitRequest, OffsetCommits};
use partition_consumer::{PartitionConsumer, ReadResult, Start};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// The source port for one group on one cluster.
pub(crate) struct KafkaSource {
    group: String,
    events: mpsc::Receiver<Result<Event, Error>>,
    commits: mpsc::Sender<CommitRequest>,
    /// The current epoch of each partition that is read. Events of other epochs are dropped.
    epochs: BTreeMap<Partition, u64>,
    shared: Arc<Shared>,
    /// The partition consumer's client. `None` after the close: the last of its threads destroys it,
    /// which may take long.
    native: Option<Arc<NativeClient>>,
    admin: AdminWorker,
    /// Reads commits. It waits for the group coordinator, for which nothing else has to wait.
    commit_reader: AdminWorker,
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
    /// Returns without waiting for a broker. `part` shows connection problems.
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
        let admin = AdminWorker::sharing(native.clone(), health.clone(), Some(watch))?;
        let commit_reader = AdminWorker::sharing(native.clone(), health.clone(), None)?;
        let commits_in_flight = OffsetCommits::new(native.clone(), group.clone(), health.clone());
        let (channel, events) = mpsc::channel(KAFKA_RECORD_QUEUE_BATCHES_MAX);
        let (commits, commit_requests) = mpsc::channel(1);
        let source_thread = SourceThread {
            commits_in_flight,
            partition_consumer,
            shared: shared.clone(),
            commits: commit_requests,
            events: EventSender {
                channel,
                waiting: VecDeque::new(),
            },
            queued_bytes_max: memory.queue,
            health,
        };
        let thread = ClientThread::start("kafka-source", move || source_thread.serve())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            group,
            events,
            commits,
            epochs: BTreeMap::new(),
            shared,
            native: Some(native),
            admin,
            commit_reader,
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
    /// Cancel-safe: the channel keeps an event until it is returned.
    async fn next_event(&mut self) -> Result<Event, Error> {
        loop {
            let event = self
                .events
                .recv()
                .await
                .unwrap_or_else(|| Err(thread_ended()))?;
            let bytes = batch_bytes(&event);
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.thread.unpark();
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

    fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Option<String>>, Error>> {
        let committed = self
            .commit_reader
            .committed_metadata(&self.group, partitions);
        Box::pin(committed)
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
        let native = self.native.as_ref()?;
        let end = native.end_offset(&partition.topic, partition.index);
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
        self.native = None;
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
        // Concurrently, because each may wait for an unreachable broker.
        tokio::join!(
            self.admin.close(),
            self.commit_reader.close(),
            self.thread.join()
        );
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

/// The state of the source's thread.
struct SourceThread {
    /// Declared before the consumer, whose client must outlive it.
    commits_in_flight: OffsetCommits,
    partition_consumer: PartitionConsumer,
    shared: Arc<Shared>,
    commits: mpsc::Receiver<CommitRequest>,
    events: EventSender,
    /// Bytes in the record queue at which nothing is read; one read may exceed it.
    queued_bytes_max: usize,
    health: ClusterHealth,
}

/// The channel to the caller, and the events that wait for room in it. While events wait, the
/// thread reads no records.
struct EventSender {
    channel: mpsc::Sender<Result<Event, Error>>,
    waiting: VecDeque<Result<Event, Error>>,
}

impl EventSender {
    fn push(&mut self, events: impl IntoIterator<Item = Event>) {
        self.waiting.extend(events.into_iter().map(Ok));
    }

    fn push_error(&mut self, outcome: Result<(), Error>) {
        self.waiting.extend(outcome.err().map(Err));
    }

    /// Moves waiting events into the channel. Returns whether none is left.
    fn flush(&mut self) -> bool {
        while let Ok(permit) = self.channel.try_reserve() {
            let Some(event) = self.waiting.pop_front() else {
                return true;
            };
            permit.send(event);
        }
        self.waiting.is_empty()
    }
}

impl SourceThread {
    fn serve(mut self) {
        let records = &mut self.partition_consumer.consumer;
        records.set_waker(std::thread::current());
        let mut probe = ClusterProbe::new();
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.serve_commands();
            self.serve_commits();
            let native = &self.partition_consumer.consumer.native;
            native.serve_events(|event| self.health.on_client_event(event));
            probe.serve(&self.health, |target| native.probe(target));
            if !self.serve_records() {
                std::thread::park_timeout(KAFKA_SOURCE_WAKE_INTERVAL);
            }
        }
        if self.health.outage_reason().is_some() {
            // The process ends now. librdkafka repeats a commit until the broker is back, and the
            // destruction of the client would wait for it.
            std::mem::forget(self.partition_consumer.consumer.native.clone());
        }
    }

    fn serve_commits(&mut self) {
        self.commits_in_flight.serve();
        if self.commits_in_flight.can_start()
            && let Ok(request) = self.commits.try_recv()
        {
            self.commits_in_flight.start(request);
        }
    }

    fn serve_commands(&mut self) {
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
            let abandoned = self.partition_consumer.abandon_topic(&topic, &mut read);
            self.events.push_error(abandoned);
        }
        self.events.push(read.events);
        if !starts.is_empty() {
            let applied = self.partition_consumer.apply(starts);
            self.events.push_error(applied);
        }
    }

    /// Reads a batch of records. Returns whether more are available at once.
    fn serve_records(&mut self) -> bool {
        let queued_bytes = &self.shared.queued_bytes;
        if !self.events.flush() || queued_bytes.load(Ordering::Relaxed) >= self.queued_bytes_max {
            return false;
        }
        let mut read = ReadResult::default();
        let result = self.partition_consumer.read(&mut read);
        let bytes = read.events.iter().map(batch_bytes).sum();
        queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.events.push(read.events);
        let errors = read.group_errors.into_iter();
        errors.for_each(|error| self.events.push_error(Err(error)));
        let has_more = result.unwrap_or_else(|error| {
            self.events.push_error(Err(error));
            false
        });
        self.events.flush();
        has_more
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
}
