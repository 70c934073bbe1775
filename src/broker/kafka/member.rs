//! The consumer that belongs to the route's group: it is told which partitions are gained and lost, and commits. It reads nothing: each
//! partition that it is given is paused at once.

use super::health::ClusterHealth;
use super::raw::{self, ClientEvent, CommitQueue};
use super::{ClientOptions, Cluster, client_creation_error, failure, kbytes, millis};
use crate::broker::{Error, OffsetCommit};
use crate::limit::{
    KAFKA_COMMIT_TIMEOUT, KAFKA_GROUP_CONSUMER_QUEUE_BYTES_MAX, KAFKA_GROUP_EVENTS_PER_TURN_MAX,
    KAFKA_HEARTBEAT_INTERVAL, KAFKA_SESSION_TIMEOUT,
};
use crate::model::Partition;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode as Code, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

const SIDE: ClientOptions = ClientOptions {
    defaults: &[],
    limits: &[
        ("session.timeout.ms", millis(KAFKA_SESSION_TIMEOUT)),
        ("heartbeat.interval.ms", millis(KAFKA_HEARTBEAT_INTERVAL)),
        (
            "queued.max.messages.kbytes",
            kbytes(KAFKA_GROUP_CONSUMER_QUEUE_BYTES_MAX),
        ),
    ],
    enforced: &[
        ("group.protocol", "classic"),
        // Partitions that stay are not interrupted by those that move.
        ("partition.assignment.strategy", "cooperative-sticky"),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
    ],
};

/// What the group did.
#[derive(Debug)]
pub(super) enum GroupEvent {
    /// None: there is none (more) for this member.
    Assigned(Vec<Partition>),
    Revoked(Vec<Partition>),
    /// A person must act.
    Rejected(String),
}

/// A commit, and whoever waits for it.
pub(super) struct CommitRequest {
    pub(super) commits: Vec<OffsetCommit>,
    pub(super) reply: oneshot::Sender<Result<(), Error>>,
}

pub(super) struct GroupConsumer {
    commits: CommitQueue,
    consumer: BaseConsumer<Context>,
    committing: Option<PendingCommit>,
    /// Commits so far.
    number: usize,
}

/// The commit whose answer is awaited.
struct PendingCommit {
    number: usize,
    reply: oneshot::Sender<Result<(), Error>>,
    until: Instant,
}

impl GroupConsumer {
    pub(super) fn join(
        cluster: &Cluster,
        group: &str,
        topics: &[String],
        health: ClusterHealth,
    ) -> Result<Self, Error> {
        let config = cluster.config(&SIDE, &[("group.id", group.to_owned())]);
        let context = Context {
            health,
            told: Mutex::default(),
        };
        let consumer: BaseConsumer<Context> = config
            .create_with_context(context)
            .map_err(|error| client_creation_error(&error))?;
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        consumer
            .subscribe(&names)
            .map_err(|error| Error::Rejected(error.to_string()))?;
        Ok(Self {
            commits: CommitQueue::new(consumer.client()),
            consumer,
            committing: None,
            number: 0,
        })
    }

    /// Has `thread` unparked whenever there is something to serve where there was nothing.
    pub(super) fn wake(&mut self, thread: Thread) {
        self.commits.wake(thread.clone());
        self.consumer.set_nonempty_callback(move || thread.unpark());
    }

    /// Serves what waits, and answers what the group did, in order. Must be called every few seconds, or the group gives the member up.
    pub(super) fn serve(&mut self) -> VecDeque<GroupEvent> {
        for _ in 0..KAFKA_GROUP_EVENTS_PER_TURN_MAX {
            if raw::queued_events(self.consumer.client()) == 0 {
                break;
            }
            // Messages that were fetched before the pause are dropped with the poll's result, and errors come to the context, with words.
            drop(self.consumer.poll(Duration::ZERO));
        }
        self.settle();
        std::mem::take(&mut *self.consumer.context().told())
    }

    /// Whether [`Member::commit`] may be called: commits go one at a time.
    pub(super) fn can_commit(&self) -> bool {
        self.committing.is_none()
    }

    /// Starts a commit; the answer comes while serving.
    pub(super) fn commit(&mut self, CommitRequest { commits, reply }: CommitRequest) {
        debug_assert!(self.can_commit(), "one at a time");
        self.number += 1;
        match self
            .commits
            .start(self.consumer.client(), &offsets(&commits), self.number)
        {
            Ok(()) => {
                self.committing = Some(PendingCommit {
                    number: self.number,
                    reply,
                    until: Instant::now() + KAFKA_COMMIT_TIMEOUT,
                })
            }
            // Nobody waits if the caller's future was dropped; so below.
            Err(code) => drop(reply.send(Err(failure::call_error(code, "")))),
        }
    }

    /// Leaves the group, so that its partitions go to others at once. Where no broker answers, the group has to notice by itself: any end
    /// of librdkafka's would wait for one, for as long as a session if a commit is under way. So the consumer ends with the process.
    pub(super) fn leave(self) {
        if let Some(words) = self.consumer.context().health.outage_reason() {
            tracing::info!("the group is not told of the end, for no broker answers: {words}");
            std::mem::forget(self);
        }
    }

    fn settle(&mut self) {
        while let Some(answer) = self.commits.answer() {
            // One that came too late belongs to a commit that was given up.
            if let Some(under_way) = self
                .committing
                .take_if(|under_way| under_way.number == answer.number)
            {
                if answer.result.is_ok() {
                    self.consumer.context().health.record_response();
                }
                drop(
                    under_way
                        .reply
                        .send(answer.result.map_err(|code| failure::call_error(code, ""))),
                );
            }
        }
        // Whoever waits for it does nothing else: where nobody answers, it is not worth waiting.
        let now = Instant::now();
        let outage = self.consumer.context().health.outage_reason();
        if let Some(late) = self
            .committing
            .take_if(|under_way| outage.is_some() || now >= under_way.until)
        {
            let words = outage
                .unwrap_or_else(|| "the group's coordinator does not answer a commit".to_owned());
            drop(late.reply.send(Err(Error::Unavailable(words))));
        }
    }
}

fn offsets(commits: &[OffsetCommit]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(commits.len());
    for commit in commits {
        let mut element = list.add_partition(&commit.partition.topic, commit.partition.index);
        let offset = i64::try_from(commit.offset.0).unwrap_or(i64::MAX);
        element
            .set_offset(Offset::Offset(offset))
            .expect("an offset that is not negative");
        element.set_metadata(&commit.metadata);
    }
    list
}

/// What librdkafka calls while the member is served.
struct Context {
    health: ClusterHealth,
    told: Mutex<VecDeque<GroupEvent>>,
}

impl Context {
    fn told(&self) -> MutexGuard<'_, VecDeque<GroupEvent>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.health.on_client_event(ClientEvent::Log {
            level: level.into(),
            text: format!("{facility} {line}"),
        });
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(Code::Fail);
        if failure::needs_operator(code)
            && !matches!(code, Code::Authentication | Code::SaslAuthenticationFailed)
        {
            self.told()
                .push_back(GroupEvent::Rejected(reason.to_owned()));
        }
        self.health.record_error(code, reason.to_owned());
    }
}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        code: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let named = |list: &TopicPartitionList| {
            list.elements()
                .iter()
                .map(|element| Partition::new(element.topic(), element.partition()))
                .collect::<Vec<_>>()
        };
        let (told, done) = if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            // With a position of its own the member does not ask for the committed one, which is not where reading starts.
            let placed = partitions.set_all_offsets(Offset::End);
            let assigned = placed
                .and_then(|()| consumer.incremental_assign(partitions))
                .and_then(|()| consumer.pause(partitions));
            self.health.record_response();
            (GroupEvent::Assigned(named(partitions)), assigned)
        } else {
            // By the group, or by librdkafka itself, if no coordinator has answered for the session's length.
            // Given back at once: whoever reads on meanwhile is stopped by the watermark, and a group that waits reads nothing.
            (
                GroupEvent::Revoked(named(partitions)),
                consumer.incremental_unassign(partitions),
            )
        };
        if let Err(error) = done {
            tracing::error!(%error, "librdkafka refuses its own assignment");
        }
        if !matches!(&told, GroupEvent::Revoked(partitions) if partitions.is_empty()) {
            self.told().push_back(told);
        }
    }
}
