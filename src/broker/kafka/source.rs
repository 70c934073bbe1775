//! Kafka as a source: two consumers, and one thread that serves both. The *member* belongs to the route's group and is told which
//! partitions are this process's; the *reader* belongs to no group and reads where it is told. So where reading starts never depends on
//! what librdkafka does while the group rebalances.
//!
//! | between caller and thread | bound |
//! |---|---|
//! | what the group did | a few; it overtakes records, for these may wait for long |
//! | records | [`KAFKA_RECORD_QUEUE_BATCHES_MAX`] batches, [`KAFKA_RECORD_QUEUE_BYTES_MAX`] bytes; then the reader is not read any more, and librdkafka stops at its own bound |
//! | what is to be read | one wish a partition: a later one replaces it |
//! | commits | one under way, one waiting |
//!
//! The group is served whether or not records are taken: a stalled caller keeps its partitions.

use super::client_thread::ClientThread;
use super::health::{ClusterHealth, ClusterProbe};
use super::inquiry::{AdminWorker, Chores};
use super::member::{CommitRequest, GroupConsumer, GroupEvent};
use super::raw::NativeClient;
use super::reader::{PartitionConsumer, ReadResult, Start};
use super::{Cluster, invalid_topic_name, is_valid_topic_name};
use crate::broker::{Error, Event, OffsetCommit, PartitionInfo, Source};
use crate::health::HealthPart;
use crate::limit::{
    KAFKA_GROUP_EVENT_QUEUE_MAX, KAFKA_RECORD_QUEUE_BATCHES_MAX, KAFKA_RECORD_QUEUE_BYTES_MAX,
    KAFKA_REFUSAL_LOG_INTERVAL, KAFKA_SOURCE_WAKE_INTERVAL,
};
use crate::model::{Offset, Partition};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The source port for one group on one cluster.
pub(crate) struct KafkaSource {
    group: String,
    control: mpsc::Receiver<Result<Event, Error>>,
    records: mpsc::Receiver<Event>,
    /// What is read, as the caller knows it: anything else was under way.
    epochs: BTreeMap<Partition, u64>,
    shared: Arc<Shared>,
    /// The reader's client.
    native: Arc<NativeClient>,
    inquiry: AdminWorker,
    thread: ClientThread,
}

/// Between the caller and the thread.
#[derive(Default)]
struct Shared {
    wishes: Mutex<ReadCommands>,
    bytes: AtomicUsize,
    stop: AtomicBool,
}

#[derive(Default)]
struct ReadCommands {
    starts: BTreeMap<Partition, Option<Start>>,
    commit: Option<CommitRequest>,
    /// Topics that are others under their old names.
    changed: BTreeSet<String>,
}

impl Shared {
    fn wishes(&self) -> MutexGuard<'_, ReadCommands> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KafkaSource {
    /// Joins `group`. It answers whether or not a broker does: what is wrong comes with [`Source::next`]. `part` tells of the cluster.
    pub(crate) fn new(
        cluster: &Cluster,
        group: String,
        topics: &[String],
        part: HealthPart,
    ) -> Result<Self, Error> {
        if let Some(impossible) = topics.iter().find(|topic| !is_valid_topic_name(topic)) {
            return Err(Error::Rejected(invalid_topic_name(impossible)));
        }
        let health = ClusterHealth::new(&cluster.name, part);
        let reader = PartitionConsumer::new(cluster, &group, health.clone())?;
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let changed = move |topic: &str| theirs.wishes().changed.extend([topic.to_owned()]);
        let native = reader.native().clone();
        let inquiry = AdminWorker::start(
            native.clone(),
            health.clone(),
            Chores::watching(topics, changed),
        )?;
        let member = GroupConsumer::join(cluster, &group, topics, health.clone())?;
        let (control_out, control) = mpsc::channel(KAFKA_GROUP_EVENT_QUEUE_MAX);
        let (records_out, records) = mpsc::channel(KAFKA_RECORD_QUEUE_BATCHES_MAX);
        let server = SourceThread {
            member,
            reader,
            shared: shared.clone(),
            control: BoundedSender {
                channel: control_out,
                waiting: VecDeque::new(),
            },
            records: BoundedSender {
                channel: records_out,
                waiting: VecDeque::new(),
            },
            health,
            refused: BTreeMap::new(),
        };
        let thread = ClientThread::start("kafka-source", move || server.serve())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            group,
            control,
            records,
            epochs: BTreeMap::new(),
            shared,
            native,
            inquiry,
            thread,
        })
    }

    fn wish(&mut self, partition: &Partition, start: Option<Start>) {
        self.shared.wishes().starts.insert(partition.clone(), start);
        self.thread.unpark();
    }

    /// Books a batch out of what is under way.
    fn took(&self, event: &Event) {
        self.shared
            .bytes
            .fetch_sub(batch_bytes(event), Ordering::Relaxed);
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
            | Event::OutOfRange { partition, epoch } => (partition, *epoch),
            Event::Assigned(_) | Event::Revoked(_) => return true,
        };
        self.epochs.get(partition) == Some(&epoch)
    }
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
    /// Both channels keep what was not taken, so dropping it loses nothing.
    async fn next_event(&mut self) -> Result<Event, Error> {
        loop {
            let event = tokio::select! {
                biased;
                told = self.control.recv() => told.unwrap_or_else(|| Err(Error::Fatal("the thread that reads has ended".into())))?,
                Some(event) = self.records.recv() => {
                    self.took(&event);
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

    async fn describe(&mut self, partitions: &[Partition]) -> Result<Vec<PartitionInfo>, Error> {
        self.inquiry.describe(partitions).await
    }

    async fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.inquiry.committed(&self.group, partitions).await
    }

    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64) {
        self.epochs.insert(partition.clone(), epoch);
        self.wish(partition, Some(Start { from, epoch }));
    }

    fn stop(&mut self, partition: &Partition) {
        if self.epochs.remove(partition).is_some() {
            self.wish(partition, None);
        }
    }

    fn known_end(&self, partition: &Partition) -> Option<Offset> {
        self.native
            .end(&partition.topic, partition.index)
            .map(Offset)
    }

    async fn commit(&mut self, commits: &[OffsetCommit]) -> Result<(), Error> {
        if commits.is_empty() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        // One that waits here was left by a caller that was dropped: this one says the same, or something newer.
        self.shared.wishes().commit = Some(CommitRequest {
            commits: commits.to_vec(),
            reply,
        });
        self.thread.unpark();
        answer
            .await
            .unwrap_or_else(|_| Err(Error::Fatal("the thread that commits has ended".into())))
    }

    async fn close(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
        // At the same time, for each may have to wait for a broker that is away.
        tokio::join!(self.inquiry.end(), self.thread.join());
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

/// What runs on the source's thread.
struct SourceThread {
    member: GroupConsumer,
    reader: PartitionConsumer,
    shared: Arc<Shared>,
    control: BoundedSender<Result<Event, Error>>,
    records: BoundedSender<Event>,
    health: ClusterHealth,
    /// Refusals, and when each was told.
    refused: BTreeMap<String, Instant>,
}

/// A bounded channel, and what waits for room in it: never more than one turn brought.
struct BoundedSender<T> {
    channel: mpsc::Sender<T>,
    waiting: VecDeque<T>,
}

impl<T> BoundedSender<T> {
    /// Whether all has gone.
    fn push(&mut self) -> bool {
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
        self.member.wake(std::thread::current());
        self.reader.wake(std::thread::current());
        let mut probe = ClusterProbe::new();
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.serve_group();
            self.serve_wishes();
            self.reader.serve();
            probe.serve(&self.health, |ping| self.reader.native().probe(ping));
            if !self.serve_records() {
                std::thread::park_timeout(KAFKA_SOURCE_WAKE_INTERVAL);
            }
        }
        self.member.leave();
    }

    fn serve_group(&mut self) {
        for told in self.member.serve() {
            match told {
                GroupEvent::Assigned(partitions) => {
                    queue_assigned(&mut self.control.waiting, partitions)
                }
                GroupEvent::Revoked(partitions) => {
                    self.apply(
                        partitions
                            .iter()
                            .map(|partition| (partition.clone(), None))
                            .collect(),
                    );
                    queue_revoked(&mut self.control.waiting, partitions);
                }
                GroupEvent::Rejected(words) => self.refuse(words),
            }
        }
        self.control.push();
    }

    fn serve_wishes(&mut self) {
        let ReadCommands {
            starts, changed, ..
        } = {
            let mut wishes = self.shared.wishes();
            let commit = wishes.commit.take_if(|_| self.member.can_commit());
            let taken = ReadCommands {
                starts: std::mem::take(&mut wishes.starts),
                changed: std::mem::take(&mut wishes.changed),
                commit: None,
            };
            drop(wishes);
            if let Some(commit) = commit {
                self.member.commit(commit);
            }
            taken
        };
        let mut read = ReadResult::default();
        for topic in changed {
            tracing::error!(
                topic,
                "a source topic was deleted and made again under its name"
            );
            if let Err(error) = self.reader.give_up(&topic, &mut read) {
                self.control.waiting.push_back(Err(error));
            }
        }
        self.records.waiting.append(&mut read.events);
        if !starts.is_empty() {
            self.apply(starts);
        }
    }

    fn apply(&mut self, wants: BTreeMap<Partition, Option<Start>>) {
        if let Err(error) = self.reader.apply(wants) {
            self.control.waiting.push_back(Err(error));
        }
    }

    /// Whether there is more to read at once.
    fn serve_records(&mut self) -> bool {
        if !self.records.push()
            || self.shared.bytes.load(Ordering::Relaxed) >= KAFKA_RECORD_QUEUE_BYTES_MAX
        {
            return false;
        }
        let mut read = ReadResult::default();
        let more = self.reader.read(&mut read);
        self.shared
            .bytes
            .fetch_add(read.events.iter().map(batch_bytes).sum(), Ordering::Relaxed);
        self.records.waiting.append(&mut read.events);
        self.records.push();
        for words in read.refusals {
            self.refuse(words);
        }
        more
    }

    /// librdkafka says the same at every attempt; a caller that takes nothing is told when it does.
    fn refuse(&mut self, words: String) {
        let now = Instant::now();
        self.refused
            .retain(|_, at| now.duration_since(*at) < KAFKA_REFUSAL_LOG_INTERVAL);
        if self.control.push() && self.refused.insert(words.clone(), now).is_none() {
            self.control.waiting.push_back(Err(Error::Rejected(words)));
        }
    }
}

/// Adds to what waits for the caller that partitions were gained. None says no more than a gain before it does.
fn queue_assigned(waiting: &mut VecDeque<Result<Event, Error>>, gained: Vec<Partition>) {
    if !gained.is_empty() || !matches!(waiting.back(), Some(Ok(Event::Assigned(_)))) {
        waiting.push_back(Ok(Event::Assigned(gained)));
    }
}

/// Adds to what waits for the caller that partitions were lost, unless it was not told of having them. So no more waits than one loss and
/// one gain a partition, however often the group changes its mind.
fn queue_revoked(waiting: &mut VecDeque<Result<Event, Error>>, mut lost: Vec<Partition>) {
    for event in waiting.iter_mut() {
        if let Ok(Event::Assigned(gained)) = event {
            let untold: Vec<Partition> = lost
                .extract_if(.., |partition| gained.contains(partition))
                .collect();
            gained.retain(|partition| !untold.contains(partition));
        }
    }
    waiting.retain(|event| !matches!(event, Ok(Event::Assigned(gained)) if gained.is_empty()));
    if !lost.is_empty() {
        waiting.push_back(Ok(Event::Revoked(lost)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_cannot_be_is_refused_by_name() {
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
                part,
            ) {
                Err(Error::Rejected(words)) => assert!(
                    words.contains(&format!("`{}`", topic.escape_debug())),
                    "{words}"
                ),
                Err(other) => panic!("{other:?}"),
                Ok(_) => panic!("{topic:?} was taken"),
            }
        }
    }

    #[test]
    fn a_caller_that_was_not_told_of_a_gain_is_not_told_of_the_loss() {
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
    fn the_answer_that_there_is_nothing_waits_once_and_after_what_was_lost() {
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
