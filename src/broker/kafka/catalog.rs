//! What a cluster says of its topics and of a group's commits. Every call blocks until the brokers answer, so they are made on a thread of
//! their own, one after the other; nothing here joins a group.

use super::health::{Health, PROBE_INTERVAL, PROBE_PATIENCE};
use super::raw::{self, Failed, Native, Spec, TopicFacts};
use super::thread::Thread;
use super::{Cluster, Side, failure, unmade};
use crate::broker::{Catalog, Described, Error};
use crate::health::Part;
use crate::model::{Identity, Offset, Partition};
use async_trait::async_trait;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long brokers may take to answer one question.
const PATIENCE: Duration = Duration::from_secs(10);

/// Questions that wait for the thread. A caller that was dropped leaves its own behind; more than these are refused.
const QUESTIONS_MAX: usize = 16;

const SIDE: Side = Side { defaults: &[], owned: &[("enable.auto.commit", "false")] };

/// The catalog port on one cluster.
pub(crate) struct KafkaCatalog {
    inquiry: Inquiry,
}

impl KafkaCatalog {
    /// `user` names it in the log.
    pub(crate) fn new(cluster: &Cluster, part: Part) -> Result<Self, Error> {
        let health = Health::new(&cluster.name, part);
        let native = Arc::new(Native::asker(&cluster.config(&SIDE, &[])).map_err(|error| unmade(&error))?);
        Ok(Self { inquiry: Inquiry::start(native, health, Chores::serving())? })
    }
}

#[async_trait(?Send)]
impl Catalog for KafkaCatalog {
    async fn partitions(&mut self, topics: &[String]) -> Result<Vec<Partition>, Error> {
        self.inquiry.partitions(topics).await
    }

    async fn committed(&mut self, group: &str, partitions: &[Partition]) -> Result<Vec<Option<String>>, Error> {
        self.inquiry.committed(group, partitions).await
    }
}

/// A thread that asks a cluster, by a client that it may share.
pub(super) struct Inquiry {
    /// `None` only while it is dropped: the thread ends when nobody can ask any more.
    questions: Option<SyncSender<Question>>,
    thread: Thread,
}

enum Question {
    Partitions(Vec<String>, Reply<Vec<Partition>>),
    Describe(Vec<Partition>, Reply<Vec<Described>>),
    Committed(String, Vec<Partition>, Reply<Vec<Option<String>>>),
}

type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// What the thread does between two questions.
pub(super) struct Chores {
    /// Whether it serves the client's own notices, and asks after the cluster's health: not where another thread does.
    serves: bool,
    watch: Option<Watch>,
}

/// Notices that a topic was deleted and made again under its name: librdkafka reads on as if nothing had happened.
pub(super) struct Watch {
    ids: BTreeMap<String, Option<String>>,
    next: Instant,
    changed: Box<dyn FnMut(&str) + Send>,
}

/// How often topics are looked at.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);

impl Chores {
    fn serving() -> Self {
        Self { serves: true, watch: None }
    }

    /// Of a client that another thread serves; `changed` is told each topic that is another one under its old name.
    pub(super) fn watching(topics: &[String], changed: impl FnMut(&str) + Send + 'static) -> Self {
        let ids = topics.iter().map(|topic| (topic.clone(), None)).collect();
        Self { serves: false, watch: Some(Watch { ids, next: Instant::now() + WATCH_INTERVAL, changed: Box::new(changed) }) }
    }
}

impl Watch {
    fn look(&mut self, native: &Native) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + WATCH_INTERVAL;
        // A cluster that does not answer is told of elsewhere.
        if let Ok(found) = topics(native, self.ids.keys().map(String::as_str)) {
            self.saw(found.iter());
        }
    }

    fn saw<'a>(&mut self, found: impl Iterator<Item = &'a TopicFacts>) {
        for topic in found.filter(|topic| topic.id.is_some()) {
            let Some(known) = self.ids.get_mut(&topic.name) else { continue };
            if known.is_some() && *known != topic.id {
                (self.changed)(&topic.name);
            }
            known.clone_from(&topic.id);
        }
    }
}

impl Inquiry {
    pub(super) fn start(native: Arc<Native>, health: Health, chores: Chores) -> Result<Self, Error> {
        let (questions, asked) = sync_channel(QUESTIONS_MAX);
        let thread = Thread::start("kafka-catalog", move || serve(&native, &health, chores, &asked));
        Ok(Self { questions: Some(questions), thread: thread.map_err(|error| Error::Fatal(error.to_string()))? })
    }

    pub(super) async fn partitions(&self, topics: &[String]) -> Result<Vec<Partition>, Error> {
        self.ask(|reply| Question::Partitions(topics.to_vec(), reply)).await
    }

    pub(super) async fn describe(&self, partitions: &[Partition]) -> Result<Vec<Described>, Error> {
        self.ask(|reply| Question::Describe(partitions.to_vec(), reply)).await
    }

    pub(super) async fn committed(&self, group: &str, partitions: &[Partition]) -> Result<Vec<Option<String>>, Error> {
        self.ask(|reply| Question::Committed(group.to_owned(), partitions.to_vec(), reply)).await
    }

    async fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> Question) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let asked = self.questions.as_ref().is_some_and(|questions| questions.try_send(question(reply)).is_ok());
        if !asked {
            return Err(Error::Unavailable("earlier questions are not answered yet".into()));
        }
        answer.await.unwrap_or_else(|_| Err(Error::Fatal("the thread that asks has ended".into())))
    }

    pub(super) async fn end(&mut self) {
        self.questions = None;
        self.thread.end().await;
    }
}

impl Drop for Inquiry {
    fn drop(&mut self) {
        self.questions = None;
    }
}

fn serve(native: &Native, health: &Health, mut chores: Chores, asked: &Receiver<Question>) {
    loop {
        let question = asked.recv_timeout(PROBE_INTERVAL);
        if chores.serves {
            while native.serve(Duration::ZERO, &mut |notice| health.heard(notice)) > 0 {}
            if !health.is_up() && native.ping(PROBE_PATIENCE) {
                health.answered();
            }
        }
        match question {
            Ok(question) => answer(native, health, chores.watch.as_mut(), question),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if let Some(watch) = &mut chores.watch {
            watch.look(native);
        }
    }
}

fn answer(native: &Native, health: &Health, watch: Option<&mut Watch>, question: Question) {
    match question {
        Question::Partitions(topics, reply) => tell(reply, health, || partitions(native, &topics)),
        Question::Describe(partitions, reply) => tell(reply, health, || describe(native, watch, &partitions)),
        Question::Committed(group, partitions, reply) => tell(reply, health, || committed(native, &group, &partitions)),
    }
}

/// Nobody waits for the answer of a question whose asker was dropped.
fn tell<T>(reply: Reply<T>, health: &Health, ask: impl FnOnce() -> Result<T, Error>) {
    if !reply.is_closed() {
        let answer = ask();
        if answer.is_ok() {
            health.answered();
        }
        drop(reply.send(answer));
    }
}

fn partitions(native: &Native, topics: &[String]) -> Result<Vec<Partition>, Error> {
    let mut found = Vec::new();
    for topic in self::topics(native, topics.iter().map(String::as_str))? {
        let name: Arc<str> = topic.name.into();
        found.extend(topic.partitions.into_iter().map(|index| Partition::new(name.clone(), index)));
    }
    found.sort();
    Ok(found)
}

fn describe(native: &Native, watch: Option<&mut Watch>, partitions: &[Partition]) -> Result<Vec<Described>, Error> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let topics: BTreeMap<String, TopicFacts> = topics(native, partitions.iter().map(|partition| &*partition.topic))?
        .into_iter()
        .map(|topic| (topic.name.clone(), topic))
        .collect();
    if let Some(watch) = watch {
        watch.saw(topics.values());
    }
    for partition in partitions {
        if !topics.get(&*partition.topic).is_some_and(|topic| topic.partitions.contains(&partition.index)) {
            return Err(Error::Refused(format!("the partition {partition} does not exist")));
        }
    }
    let places = places(partitions);
    let firsts = raw::list_offsets(native, &places, Spec::First, PATIENCE).map_err(failed)?;
    let ends = raw::list_offsets(native, &places, Spec::End, PATIENCE).map_err(failed)?;
    let mut described = Vec::with_capacity(partitions.len());
    for (partition, (first, end)) in partitions.iter().zip(firsts.into_iter().zip(ends)) {
        let identity = topics[&*partition.topic].id.as_deref().map(|id| Identity(id.into()));
        described.push(Described { identity, first: offset(first)?, end: offset(end)? });
    }
    Ok(described)
}

fn committed(native: &Native, group: &str, partitions: &[Partition]) -> Result<Vec<Option<String>>, Error> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let found = raw::committed(native, group, &places(partitions), PATIENCE).map_err(failed)?;
    found.into_iter().map(|one| one.map_err(failed)).collect()
}

/// What the cluster says of topics; those that do not exist are left out.
pub(super) fn topics<'a>(native: &Native, names: impl Iterator<Item = &'a str>) -> Result<Vec<TopicFacts>, Error> {
    let names: Vec<&str> = names.collect::<BTreeSet<_>>().into_iter().collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let found = raw::describe_topics(native, &names, PATIENCE).map_err(failed)?;
    let existing = found.into_iter().filter(|topic| !matches!(topic, Err((Code::UnknownTopicOrPartition | Code::UnknownTopic, _))));
    existing.map(|topic| topic.map_err(failed)).collect()
}

fn places(partitions: &[Partition]) -> Vec<(String, i32)> {
    partitions.iter().map(|partition| (partition.topic.to_string(), partition.index)).collect()
}

fn offset(found: Result<i64, Failed>) -> Result<Offset, Error> {
    let found = found.map_err(failed)?;
    u64::try_from(found).map(Offset).map_err(|_| Error::Unavailable(format!("the broker answers the offset {found}")))
}

fn failed((code, words): Failed) -> Error {
    failure::of_call(code, &words)
}
