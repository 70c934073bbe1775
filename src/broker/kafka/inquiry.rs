//! A thread that puts questions to a cluster, one after the other, by a client that it may share, and watches between them over what changes
//! unasked. What the answers mean is `catalog`'s affair.

use super::catalog::{committed, describe, partitions, topics};
use super::health::{Health, Probe};
use super::inspection::inspect;
use super::raw::{Asking, Native, TopicFacts};
use super::thread::Thread;
use super::unmade;
use crate::broker::inspection::Facts;
use crate::broker::{Described, Error};
use crate::limit::{
    KAFKA_ANSWER_MAX, KAFKA_COMMITTED_TURN, KAFKA_IDLE, KAFKA_QUESTIONS_MAX, KAFKA_WATCH_INTERVAL,
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
pub(super) struct Inquiry {
    /// `None` only while it ends: the thread ends when nobody can ask any more.
    questions: Option<SyncSender<Question>>,
    /// Gives up the question that is being asked.
    stop: Arc<AtomicBool>,
    thread: Thread,
}

/// Asks from a thread that may wait.
#[derive(Clone)]
pub(super) struct Asker(SyncSender<Question>);

impl Asker {
    /// What a group committed for one partition. Not for long: while it is of a transaction that has not ended the broker does not tell, and
    /// others wait for the answers to theirs.
    pub(super) fn committed(&self, group: &str, partition: &Partition) -> Result<Awaited, Error> {
        let (reply, answer) = oneshot::channel();
        let question = Question::Committed(
            group.to_owned(),
            vec![partition.clone()],
            KAFKA_COMMITTED_TURN,
            reply,
        );
        self.0.try_send(question).map_err(|_| busy())?;
        Ok(Awaited(answer))
    }
}

/// The answer to come. Who asked may do something else until then; once this is dropped nobody asks any more.
pub(super) struct Awaited(oneshot::Receiver<Result<Vec<Option<String>>, Error>>);

impl Awaited {
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

enum Question {
    Partitions(Vec<String>, Reply<Vec<Partition>>),
    Describe(Vec<Partition>, Reply<Vec<Described>>),
    Committed(String, Vec<Partition>, Duration, Reply<Vec<Option<String>>>),
    Inspect(Vec<String>, Reply<Facts>),
}

type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// What the thread does besides.
pub(super) struct Chores {
    /// Serves the client's own notices, and asks after the cluster's health: not where another thread does.
    own: Option<Own>,
    watch: Option<Watch>,
}

/// What it takes to care for a client alone.
struct Own {
    probe: Probe,
    /// With the name of a group: what that committed is asked by a client that bears it.
    config: ClientConfig,
}

/// Notices that a topic was deleted and made again under its name: librdkafka reads on as if nothing had happened.
struct Watch {
    ids: BTreeMap<String, Option<String>>,
    next: Instant,
    changed: Box<dyn FnMut(&str) + Send>,
}

impl Chores {
    /// Of a client of these options that nobody else has.
    pub(super) fn serving(config: ClientConfig) -> Self {
        Self {
            own: Some(Own {
                probe: Probe::new(),
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
            watch: Some(Watch {
                ids,
                next: Instant::now() + KAFKA_WATCH_INTERVAL,
                changed: Box::new(changed),
            }),
        }
    }
}

impl Watch {
    fn saw<'a>(&mut self, found: impl Iterator<Item = &'a TopicFacts>) {
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

impl Inquiry {
    pub(super) fn start(
        native: Arc<Native>,
        health: Health,
        chores: Chores,
    ) -> Result<Self, Error> {
        let (questions, asked) = sync_channel(KAFKA_QUESTIONS_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let Chores { own, watch } = chores;
        let desk = Desk {
            attendant: Attendant {
                native,
                health,
                stop: stop.clone(),
                own,
            },
            watch,
        };
        let thread = Thread::start("kafka-catalog", move || desk.serve(&asked));
        Ok(Self {
            questions: Some(questions),
            stop,
            thread: thread.map_err(|error| Error::Fatal(error.to_string()))?,
        })
    }

    pub(super) async fn partitions(&self, topics: &[String]) -> Result<Vec<Partition>, Error> {
        self.ask(|reply| Question::Partitions(topics.to_vec(), reply))
            .await
    }

    pub(super) async fn describe(&self, partitions: &[Partition]) -> Result<Vec<Described>, Error> {
        self.ask(|reply| Question::Describe(partitions.to_vec(), reply))
            .await
    }

    pub(super) async fn committed(
        &self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.ask(|reply| {
            Question::Committed(
                group.to_owned(),
                partitions.to_vec(),
                KAFKA_ANSWER_MAX,
                reply,
            )
        })
        .await
    }

    pub(super) async fn inspect(&self, topics: &[String]) -> Result<Facts, Error> {
        self.ask(|reply| Question::Inspect(topics.to_vec(), reply))
            .await
    }

    async fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> Question) -> Result<T, Error> {
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
    pub(super) fn asker(&self) -> Option<Asker> {
        self.questions.clone().map(Asker)
    }

    pub(super) async fn end(&mut self) {
        self.stop();
        self.thread.end().await;
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.questions = None;
    }
}

impl Drop for Inquiry {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What runs on the thread.
struct Desk {
    attendant: Attendant,
    watch: Option<Watch>,
}

/// What goes on while an answer is awaited.
struct Attendant {
    native: Arc<Native>,
    health: Health,
    stop: Arc<AtomicBool>,
    own: Option<Own>,
}

impl Attendant {
    fn turn(&mut self) {
        let Self {
            native,
            health,
            stop,
            own,
        } = self;
        if let Some(Own { probe, .. }) = own {
            while native.serve(Duration::ZERO, &mut |notice| health.heard(notice)) > 0 {}
            probe.serve(health, |ping| {
                !stop.load(Ordering::Relaxed) && native.ping(ping)
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
            self.native = Arc::new(Native::asker(&own.config).map_err(|error| unmade(&error))?);
        }
        Ok(())
    }

    /// Asks, unless there is nobody to ask; gives up when that turns out meanwhile, or at the end.
    fn ask<T>(
        &mut self,
        ask: impl FnOnce(&mut Asking<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(words) = self.health.outage() {
            return Err(Error::Unavailable(words));
        }
        let native = self.native.clone();
        let mut meanwhile = || {
            self.turn();
            !self.stop.load(Ordering::Relaxed) && self.health.outage().is_none()
        };
        let answer = ask(&mut Asking {
            native: &native,
            meanwhile: &mut meanwhile,
        });
        match answer {
            Ok(answer) => {
                self.health.answered();
                Ok(answer)
            }
            Err(error) => Err(self.health.outage().map_or(error, Error::Unavailable)),
        }
    }
}

impl Desk {
    fn serve(mut self, asked: &Receiver<Question>) {
        loop {
            let question = asked.recv_timeout(KAFKA_IDLE);
            self.attendant.turn();
            match question {
                Ok(question) => self.answer(question),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look();
        }
    }

    fn answer(&mut self, question: Question) {
        let Self { attendant, watch } = self;
        match question {
            Question::Partitions(topics, reply) => tell(reply, || {
                attendant.ask(|asking| partitions(asking, &topics))
            }),
            Question::Describe(places, reply) => tell(reply, || {
                let saw = |topics: &BTreeMap<String, TopicFacts>| {
                    watch
                        .iter_mut()
                        .for_each(|watch| watch.saw(topics.values()))
                };
                attendant.ask(|asking| describe(asking, &places, saw))
            }),
            Question::Inspect(topics, reply) => {
                tell(reply, || attendant.ask(|asking| inspect(asking, &topics)))
            }
            Question::Committed(group, places, patience, reply) => tell(reply, || {
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
        watch.next = now + KAFKA_WATCH_INTERVAL;
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
