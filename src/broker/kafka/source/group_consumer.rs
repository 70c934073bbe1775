//! The consumer that belongs to the route's group: reports assigned partitions and commits offsets.
//!
//! It reads no records: each assigned partition is paused at once.

use crate::broker::kafka::error::{call_error, client_creation_error, needs_operator};
use crate::broker::kafka::ffi::{self, ClientEvent};
use crate::broker::kafka::health::ClusterHealth;
use crate::broker::kafka::options::{ClientOptions, Cluster, NO_OPTIONS};
use crate::broker::kafka::partition_list;
use crate::broker::{Error, OffsetCommit};
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

const OPTIONS: ClientOptions = ClientOptions {
    limits: &[
        // Without a heartbeat for this time, a member counts as dead.
        ("session.timeout.ms", 10_000),
        ("heartbeat.interval.ms", 2_000),
        // This consumer reads nothing. librdkafka's minimum.
        ("queued.max.messages.kbytes", 1_024),
    ],
    enforced: &[
        ("group.protocol", "classic"),
        // A rebalance does not interrupt partitions that stay with their consumer.
        ("partition.assignment.strategy", "cooperative-sticky"),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
    ],
    ..NO_OPTIONS
};

/// Events that are served in one turn, so that a flood of log lines does not block the thread.
const EVENTS_PER_TURN_MAX: usize = 1_000;

/// Timeout of an offset commit. The broker may still apply it later; repeating it is safe.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) enum GroupEvent {
    /// Partitions that this consumer gained in a rebalance; may be empty.
    Assigned(Vec<Partition>),
    Revoked(Vec<Partition>),
    /// An error that an operator must fix.
    Rejected(String),
}

/// A commit and the channel for its result.
pub(super) struct CommitRequest {
    pub(super) commits: Vec<OffsetCommit>,
    pub(super) reply: oneshot::Sender<Result<(), Error>>,
}

pub(super) struct GroupConsumer {
    /// Declared before the client, which must outlive it.
    pending: Option<PendingCommit>,
    consumer: BaseConsumer<GroupContext>,
}

/// The commit whose result has not arrived.
struct PendingCommit {
    call: ffi::PendingCommit,
    reply: oneshot::Sender<Result<(), Error>>,
    deadline: Instant,
}

impl GroupConsumer {
    pub(super) fn join(
        cluster: &Cluster,
        group: &str,
        topics: &[String],
        health: ClusterHealth,
    ) -> Result<Self, Error> {
        let config = cluster.config(&OPTIONS, &[("group.id", group.to_owned())]);
        let events = Mutex::default();
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let created = config.create_with_context(GroupContext { health, events });
        let consumer: BaseConsumer<GroupContext> =
            created.map_err(|error| client_creation_error(&error))?;
        consumer
            .subscribe(&names)
            .map_err(|error| Error::Rejected(error.to_string()))?;
        Ok(Self {
            pending: None,
            consumer,
        })
    }

    /// Unparks `thread` whenever an empty queue gets an event.
    pub(super) fn set_waker(&mut self, thread: Thread) {
        self.consumer.set_nonempty_callback(move || thread.unpark());
    }

    /// Serves the client and returns the group's events in order. Must be called every few seconds,
    /// or the group removes this consumer.
    pub(super) fn serve(&mut self) -> VecDeque<GroupEvent> {
        for _ in 0..EVENTS_PER_TURN_MAX {
            if ffi::queued_events(self.consumer.client()) == 0 {
                break;
            }
            // Drops records that were fetched before the pause. Errors reach the context, with
            // text.
            drop(self.consumer.poll(Duration::ZERO));
        }
        self.finish_commit();
        std::mem::take(&mut *self.consumer.context().events())
    }

    /// Returns whether [`GroupConsumer::commit`] may be called: only one commit is in flight.
    pub(super) fn can_commit(&self) -> bool {
        self.pending.is_none()
    }

    /// Starts a commit. The result goes to the request's channel; it may be closed.
    pub(super) fn commit(&mut self, CommitRequest { commits, reply }: CommitRequest) {
        debug_assert!(self.can_commit(), "one commit at a time");
        let mut offsets = TopicPartitionList::with_capacity(commits.len());
        for commit in &commits {
            let metadata = Some(&*commit.metadata);
            partition_list::add(&mut offsets, &commit.partition, commit.offset, metadata);
        }
        match ffi::PendingCommit::start(self.consumer.client(), &offsets) {
            Ok(call) => {
                self.pending = Some(PendingCommit {
                    call,
                    reply,
                    deadline: Instant::now() + COMMIT_TIMEOUT,
                });
            }
            Err(code) => drop(reply.send(Err(commit_error(code)))),
        }
    }

    /// Leaves the group, so that its partitions move to other consumers at once. During an outage
    /// it only leaks the client: closing would block for a session timeout, and the group expires
    /// this consumer anyway.
    pub(super) fn leave(self) {
        if let Some(reason) = self.consumer.context().health.outage_reason() {
            tracing::info!(reason, "leaving without LeaveGroup: no broker responds");
            std::mem::forget(self);
        }
    }

    /// Passes the result of the pending commit on. The caller waits for it, so a commit fails as
    /// soon as the cluster is down.
    fn finish_commit(&mut self) {
        let Some(pending) = &self.pending else { return };
        let health = &self.consumer.context().health;
        let result = match (pending.call.try_take(), health.outage_reason()) {
            (Some(Ok(())), _) => {
                health.record_response();
                Ok(())
            }
            (Some(Err(code)), _) => Err(commit_error(code)),
            (None, Some(outage)) => Err(Error::Unavailable(outage)),
            (None, None) if Instant::now() >= pending.deadline => Err(Error::Unavailable(
                "the group coordinator did not answer a commit".to_owned(),
            )),
            (None, None) => return,
        };
        if let Some(pending) = self.pending.take() {
            drop(pending.reply.send(result));
        }
    }
}

fn commit_error(code: Code) -> Error {
    call_error((code, code.to_string()))
}

/// Receives librdkafka's callbacks while the consumer is served.
struct GroupContext {
    health: ClusterHealth,
    events: Mutex<VecDeque<GroupEvent>>,
}

impl GroupContext {
    fn events(&self) -> MutexGuard<'_, VecDeque<GroupEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.health.on_client_event(ClientEvent::Log {
            syslog_level: level as i32,
            text: format!("{facility} {line}"),
        });
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(Code::Fail);
        let is_login = matches!(code, Code::Authentication | Code::SaslAuthenticationFailed);
        if needs_operator(code) && !is_login {
            self.events()
                .push_back(GroupEvent::Rejected(reason.to_owned()));
        }
        self.health.record_error(code, reason.to_owned());
    }
}

impl ConsumerContext for GroupContext {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        code: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let (event, done) = if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            // An explicit position keeps librdkafka from fetching the committed offset, which is
            // not where reading starts.
            let assigned = partitions
                .set_all_offsets(Offset::End)
                .and_then(|()| consumer.incremental_assign(partitions))
                .and_then(|()| consumer.pause(partitions));
            self.health.record_response();
            (GroupEvent::Assigned(to_partitions(partitions)), assigned)
        } else {
            // Revoked by the group, or by librdkafka after a session without coordinator. Confirmed
            // at once: the watermark stops this process from storing more, and the group need not
            // wait.
            let revoked = GroupEvent::Revoked(to_partitions(partitions));
            (revoked, consumer.incremental_unassign(partitions))
        };
        if let Err(error) = done {
            tracing::error!(%error, "librdkafka rejected its own assignment");
        }
        if !matches!(&event, GroupEvent::Revoked(partitions) if partitions.is_empty()) {
            self.events().push_back(event);
        }
    }
}

fn to_partitions(list: &TopicPartitionList) -> Vec<Partition> {
    list.elements()
        .iter()
        .map(|element| Partition::new(element.topic(), element.partition()))
        .collect()
}
