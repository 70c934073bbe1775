//! A thread that puts questions to a cluster, one after the other, by a client that it may share, and watches between them over what changes
//! unasked. What the answers mean is `catalog`'s affair.

use super::catalog::{committed, describe, partitions, topics};
use super::client_creation_error;
use super::client_thread::ClientThread;
use super::health::{ClusterHealth, ClusterProbe};
use super::inspection::inspect;
use super::raw::{CallContext, NativeClient, TopicDescription};
use crate::broker::describe::ClusterInfo;
use crate::broker::{Error, PartitionInfo};
use crate::limit::{
    KAFKA_ADMIN_REQUESTS_MAX, KAFKA_CLIENT_WAKE_INTERVAL, KAFKA_COMMITTED_REQUEST_TIMEOUT,
    KAFKA_REQUEST_TIMEOUT, KAFKA_TOPIC_ID_CHECK_INTERVAL,
};
use crate::model::Partition;
use rdkafka::config::ClientConfig;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::Instant;

/// See the module's page.
pub(super) struct AdminWorker {
    /// `None` only while it ends: the thread ends when nobody can ask any more.
    questions: Option<SyncSender<AdminRequest>>,
    /// Gives up the question that is being asked.
    stop: Arc<AtomicBool>,
    thread: ClientThread,
}

/// Asks from a thread that may wait.
#[derive(Clone)]
pub(super) struct AdminHandle(SyncSender<AdminRequest>);

impl AdminHandle {
    /// What a group committed for one partition. Not for long: while it is of a transaction that has not ended the broker does not tell, and
    /// others wait for the answers to theirs.
    pub(super) fn committed(
        &self,
        group: &str,
        partition: &Partition,
    ) -> Result<PendingAnswer, Error> {
        let (reply, answer) = oneshot::channel();
        let question = AdminRequest::Committed(
            group.to_owned(),
            vec![partition.clone()],
            KAFKA_COMMITTED_REQUEST_TIMEOUT,
            reply,
        );
        self.0.try_send(question).map_err(|_| busy())?;
        Ok(PendingAnswer(answer))
    }
}

/// The answer to come. Who asked may do something else until then; once this is dropped nobody asks any more.
pub(super) struct PendingAnswer(oneshot::Receiver<Result<Vec<Option<String>>, Error>>);

impl PendingAnswer {
    /// `None`: not yet.
    pub(super) fn answer(&mut self) -> Option<Result<Option<String>, Error>> {
        match self.0.try_recv() {
            Ok(found) => Some(found.map(|found| found.into_iter().next().flatten())),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => {
                Some(Err(Error::Fatal("the thread that asks has ended".into())))
            }
        }
    }
}

fn busy() -> Error {
    Error::Unavailable("earlier questions are not answered yet".into())
}

enum AdminRequest {
    Partitions(Vec<String>, Reply<Vec<Partition>>),
    Describe(Vec<Partition>, Reply<Vec<PartitionInfo>>),
    Committed(String, Vec<Partition>, Duration, Reply<Vec<Option<String>>>),
    Inspect(Vec<String>, Reply<ClusterInfo>),
}

type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// What the thread does besides.
pub(super) struct Chores {
    /// Serves the client's own notices, and asks after the cluster's health: not where another thread does.
    own: Option<OwnedClient>,
    watch: Option<TopicWatch>,
}

/// What it takes to care for a client alone.
struct OwnedClient {
    probe: ClusterProbe,
    /// With the name of a group: what that committed is asked by a client that bears it.
    config: ClientConfig,
}

/// Notices that a topic was deleted and made again under its name: librdkafka reads on as if nothing had happened.
struct TopicWatch {
    ids: BTreeMap<String, Option<String>>,
    next: Instant,
    changed: Box<dyn FnMut(&str) + Send>,
}

impl Chores {
    /// Of a client of these options that nobody else has.
    pub(super) fn serving(config: ClientConfig) -> Self {
        Self {
            own: Some(OwnedClient {
                probe: ClusterProbe::new(),
                config,
            }),
            watch: None,
        }
    }

    /// Of a client that another thread serves; `changed` is told each topic that is another one under its old name.
    pub(super) fn watching(topics: &[String], changed: impl FnMut(&str) + Send + 'static) -> Self {
        let ids = topics.iter().map(|topic| (topic.clone(), None)).collect();
        Self {
            own: None,
            watch: Some(TopicWatch {
                ids,
                next: Instant::now() + KAFKA_TOPIC_ID_CHECK_INTERVAL,
                changed: Box::new(changed),
            }),
        }
    }
}

impl TopicWatch {
    fn saw<'a>(&mut self, found: impl Iterator<Item = &'a TopicDescription>) {
        for topic in found.filter(|topic| topic.id.is_some()) {
            let Some(known) = self.ids.get_mut(&topic.name) else {
                continue;
            };
            if known.is_some() && *known != topic.id {
                (self.changed)(&topic.name);
            }
            known.clone_from(&topic.id);
        }
    }
}

impl AdminWorker {
    pub(super) fn start(
        native: Arc<NativeClient>,
        health: ClusterHealth,
        chores: Chores,
    ) -> Result<Self, Error> {
        let (questions, asked) = sync_channel(KAFKA_ADMIN_REQUESTS_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let Chores { own, watch } = chores;
        let desk = WorkerThread {
            attendant: ClientService {
                native,
                health,
                stop: stop.clone(),
                own,
            },
            watch,
        };
        let thread = ClientThread::start("kafka-catalog", move || desk.serve(&asked));
        Ok(Self {
            questions: Some(questions),
            stop,
            thread: thread.map_err(|error| Error::Fatal(error.to_string()))?,
        })
    }

    pub(super) async fn partitions(&self, topics: &[String]) -> Result<Vec<Partition>, Error> {
        self.ask(|reply| AdminRequest::Partitions(topics.to_vec(), reply))
            .await
    }

    pub(super) async fn describe(
        &self,
        partitions: &[Partition],
    ) -> Result<Vec<PartitionInfo>, Error> {
        self.ask(|reply| AdminRequest::Describe(partitions.to_vec(), reply))
            .await
    }

    pub(super) async fn committed(
        &self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.ask(|reply| {
            AdminRequest::Committed(
                group.to_owned(),
                partitions.to_vec(),
                KAFKA_REQUEST_TIMEOUT,
                reply,
            )
        })
        .await
    }

    pub(super) async fn inspect(&self, topics: &[String]) -> Result<ClusterInfo, Error> {
        self.ask(|reply| AdminRequest::Inspect(topics.to_vec(), reply))
            .await
    }

    async fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> AdminRequest) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let asked = self
            .questions
            .as_ref()
            .is_some_and(|questions| questions.try_send(question(reply)).is_ok());
        if !asked {
            return Err(busy());
        }
        answer
            .await
            .unwrap_or_else(|_| Err(Error::Fatal("the thread that asks has ended".into())))
    }

    /// For another thread. Its own thread ends only when all of these are gone.
    pub(super) fn asker(&self) -> Option<AdminHandle> {
        self.questions.clone().map(AdminHandle)
    }

    pub(super) async fn end(&mut self) {
        self.stop();
        self.thread.join().await;
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.questions = None;
    }
}

impl Drop for AdminWorker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What runs on the thread.
struct WorkerThread {
    attendant: ClientService,
    watch: Option<TopicWatch>,
}

/// What goes on while an answer is awaited.
struct ClientService {
    native: Arc<NativeClient>,
    health: ClusterHealth,
    stop: Arc<AtomicBool>,
    own: Option<OwnedClient>,
}

impl ClientService {
    fn turn(&mut self) {
        let Self {
            native,
            health,
            stop,
            own,
        } = self;
        if let Some(OwnedClient { probe, .. }) = own {
            while native.poll(Duration::ZERO, &mut |notice| health.on_client_event(notice)) > 0 {}
            probe.serve(health, |ping| {
                !stop.load(Ordering::Relaxed) && native.probe(ping)
            });
        }
    }

    /// Takes the group's name. A client that is shared has the only one that it is asked for.
    fn ask_as(&mut self, group: &str) -> Result<(), Error> {
        if let Some(own) = self
            .own
            .as_mut()
            .filter(|own| own.config.get("group.id") != Some(group))
        {
            own.config.set("group.id", group);
            self.native = Arc::new(
                NativeClient::admin_client(&own.config)
                    .map_err(|error| client_creation_error(&error))?,
            );
        }
        Ok(())
    }

    /// Asks, unless there is nobody to ask; gives up when that turns out meanwhile, or at the end.
    fn ask<T>(
        &mut self,
        ask: impl FnOnce(&mut CallContext<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(words) = self.health.outage_reason() {
            return Err(Error::Unavailable(words));
        }
        let native = self.native.clone();
        let mut meanwhile = || {
            self.turn();
            !self.stop.load(Ordering::Relaxed) && self.health.outage_reason().is_none()
        };
        let answer = ask(&mut CallContext {
            native: &native,
            meanwhile: &mut meanwhile,
        });
        match answer {
            Ok(answer) => {
                self.health.record_response();
                Ok(answer)
            }
            Err(error) => Err(self
                .health
                .outage_reason()
                .map_or(error, Error::Unavailable)),
        }
    }
}

impl WorkerThread {
    fn serve(mut self, asked: &Receiver<AdminRequest>) {
        loop {
            let question = asked.recv_timeout(KAFKA_CLIENT_WAKE_INTERVAL);
            self.attendant.turn();
            match question {
                Ok(question) => self.answer(question),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look();
        }
    }

    fn answer(&mut self, question: AdminRequest) {
        let Self { attendant, watch } = self;
        match question {
            AdminRequest::Partitions(topics, reply) => tell(reply, || {
                attendant.ask(|asking| partitions(asking, &topics))
            }),
            AdminRequest::Describe(places, reply) => tell(reply, || {
                let saw = |topics: &BTreeMap<String, TopicDescription>| {
                    watch
                        .iter_mut()
                        .for_each(|watch| watch.saw(topics.values()))
                };
                attendant.ask(|asking| describe(asking, &places, saw))
            }),
            AdminRequest::Inspect(topics, reply) => {
                tell(reply, || attendant.ask(|asking| inspect(asking, &topics)))
            }
            AdminRequest::Committed(group, places, patience, reply) => tell(reply, || {
                attendant.ask_as(&group)?;
                attendant.ask(|asking| committed(asking, &places, patience))
            }),
        }
    }

    fn look(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let now = Instant::now();
        if now < watch.next {
            return;
        }
        watch.next = now + KAFKA_TOPIC_ID_CHECK_INTERVAL;
        let names: Vec<String> = watch.ids.keys().cloned().collect();
        // A cluster that does not answer is told of elsewhere.
        if let Ok(found) = self
            .attendant
            .ask(|asking| topics(asking, names.iter().map(String::as_str)))
        {
            watch.saw(found.iter());
        }
    }
}

/// Nobody waits for the answer of a question whose asker was dropped.
fn tell<T>(reply: Reply<T>, ask: impl FnOnce() -> Result<T, Error>) {
    if !reply.is_closed() {
        drop(reply.send(ask()));
    }
}
