//! The source port on NATS: the partitions that the group gives to this process, and a reader for each that is read.

use super::Cluster;
use super::bucket::Bucket;
use super::group::{Group, Step};
use super::link::Link;
use super::reader::{Plan, Reader, Shown};
use super::stream;
use crate::broker::{Commit, Described, Error, Event, Source};
use crate::health::Part;
use crate::limit::{NATS_CLOSE_MAX, NATS_GROUP_INTERVAL, NATS_GROUP_SILENCE_MAX};
use crate::model::{Offset, Partition, split_topic};
use async_trait::async_trait;
use futures_util::future::{LocalBoxFuture, poll_fn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::task::Poll;
use tokio::time::Instant;

/// What a source is asked to read, by whom.
pub(crate) struct Reading {
    pub(crate) group: String,
    /// As [`source_topic`](crate::model::source_topic) writes them.
    pub(crate) topics: Vec<String>,
    /// A name that no other process of the group has.
    pub(crate) member: String,
    /// Whether the headers of the server's own schedules are read.
    pub(crate) keeps_schedules: bool,
}

/// What is read, each by a reader that is on its way to its next event.
type Readers = BTreeMap<Partition, LocalBoxFuture<'static, (Event, Reader)>>;

/// The source port on one cluster.
pub(crate) struct NatsSource {
    link: Link,
    bucket: Bucket,
    group: String,
    keeps_schedules: bool,
    /// The group's next step; it has the group while it lasts.
    step: LocalBoxFuture<'static, (Result<Step, Error>, Group)>,
    /// When the group answered last, and whether it has ever said what there is for this process.
    answered: Option<Instant>,
    owned: BTreeSet<Partition>,
    readers: Readers,
    /// What the readers tell beside their events.
    shown: BTreeMap<Partition, Rc<Shown>>,
    /// The incarnations of the streams as they were last described: what begins to be read is of these.
    described: BTreeMap<Partition, i128>,
    /// Whose turn it was last.
    last: Option<Partition>,
    told: VecDeque<Result<Event, Error>>,
}

impl NatsSource {
    pub(crate) fn new(cluster: &Cluster, reading: Reading, part: Part) -> Result<Self, Error> {
        let link = Link::with_thread(cluster, part)?;
        let group = Group::new(&link, &reading);
        Ok(Self {
            bucket: group.bucket().clone(),
            step: Box::pin(step(group, false)),
            link,
            group: reading.group,
            keeps_schedules: reading.keeps_schedules,
            answered: None,
            owned: BTreeSet::new(),
            readers: BTreeMap::new(),
            shown: BTreeMap::new(),
            described: BTreeMap::new(),
            last: None,
            told: VecDeque::new(),
        })
    }

    fn stepped(&mut self, stepped: Result<Step, Error>) {
        let Step {
            gained,
            lost,
            faults,
        } = match stepped {
            Ok(step) => step,
            Err(error @ Error::Fatal(_)) => return self.told.push_back(Err(error)),
            // A cluster that is silent for a moment is what any is; whoever reads goes on reading.
            Err(error) => {
                if self
                    .answered
                    .is_none_or(|answered| answered.elapsed() > NATS_GROUP_SILENCE_MAX)
                {
                    self.link.not_ready(format!(
                        "who reads which partition cannot be settled: {error}"
                    ));
                }
                return;
            }
        };
        match self
            .shown
            .values()
            .find_map(|shown| shown.trouble.borrow().clone())
        {
            Some(trouble) => self.link.not_ready(trouble),
            None => self.link.ready(),
        }
        let is_first = self.answered.replace(Instant::now()).is_none();
        self.told.extend(faults.into_iter().map(Err));
        let has_lost = !lost.is_empty();
        if has_lost {
            for partition in &lost {
                self.stop(partition);
                self.bucket.hand_over(&self.group, partition);
            }
            self.owned.retain(|partition| !lost.contains(partition));
            self.told.push_back(Ok(Event::Lost(lost)));
        }
        self.owned.extend(gained.iter().cloned());
        // None: there is none for this process, and that is in order.
        if is_first || !gained.is_empty() || (has_lost && self.owned.is_empty()) {
            self.told.push_back(Ok(Event::Gained(gained)));
        }
    }
}

/// The next event of any reader, each in its turn. Safe to drop.
async fn read(readers: &mut Readers, last: &mut Option<Partition>) -> Event {
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

async fn step(mut group: Group, waits: bool) -> (Result<Step, Error>, Group) {
    if waits {
        tokio::time::sleep(NATS_GROUP_INTERVAL).await;
    }
    (group.step().await, group)
}

#[async_trait(?Send)]
impl Source for NatsSource {
    async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(told) = self.told.pop_front() {
                return told;
            }
            // Every arm is safe to drop: the step and the readers stay, and go on at the next call.
            tokio::select! {
                biased;
                (stepped, group) = &mut self.step => {
                    self.step = Box::pin(step(group, true));
                    self.stepped(stepped);
                }
                event = read(&mut self.readers, &mut self.last) => return Ok(event),
            }
        }
    }

    async fn describe(&mut self, partitions: &[Partition]) -> Result<Vec<Described>, Error> {
        let mut described = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let missing = || Error::Refused(format!("the partition {partition} does not exist"));
            let (stream, _) = split_topic(&partition.topic).ok_or_else(missing)?;
            let facts = stream::facts(&self.link, stream)
                .await?
                .ok_or_else(missing)?;
            self.described.insert(partition.clone(), facts.created);
            described.push(facts.described());
        }
        Ok(described)
    }

    async fn committed(&mut self, partitions: &[Partition]) -> Result<Vec<Option<String>>, Error> {
        self.bucket.committed(&self.group, partitions).await
    }

    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64) {
        let Some((stream, filter)) = split_topic(&partition.topic) else {
            return;
        };
        let plan = Plan {
            partition: partition.clone(),
            stream: stream.to_owned(),
            filter: filter.to_owned(),
            epoch,
            created: self.described.get(partition).copied(),
            keeps_schedules: self.keeps_schedules,
            shown: Rc::default(),
        };
        self.shown.insert(partition.clone(), plan.shown.clone());
        let reader = Reader::new(self.link.clone(), plan, from);
        self.readers
            .insert(partition.clone(), Box::pin(reader.next()));
    }

    fn stop(&mut self, partition: &Partition) {
        self.readers.remove(partition);
        self.shown.remove(partition);
        self.described.remove(partition);
    }

    fn end(&self, partition: &Partition) -> Option<Offset> {
        self.shown.get(partition)?.end.get()
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<(), Error> {
        for Commit {
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
            let (_, mut group) = (&mut self.step).await;
            group.leave().await
        };
        // In vain where the cluster is away: the others notice by themselves.
        let _in_vain = tokio::time::timeout(NATS_CLOSE_MAX, farewell).await;
        self.link.close();
    }
}
