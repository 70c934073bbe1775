//! The consumer that belongs to the route's group: reports assigned partitions and commits offsets.
//!
//! It reads no records: each assigned partition is paused at once.

use crate::broker::kafka::error::{call_error, client_creation_error, needs_operator};
use crate::broker::kafka::ffi::{self, ClientEvent, CommitQueue};
use crate::broker::kafka::health::ClusterHealth;
use crate::broker::kafka::options::{ClientOptions, Cluster, kbytes, millis};
use crate::broker::kafka::partition_list;
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

const OPTIONS: ClientOptions = ClientOptions {
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
        // A rebalance does not interrupt partitions that stay with their consumer.
        ("partition.assignment.strategy", "cooperative-sticky"),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
    ],
};

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
    commit_queue: CommitQueue,
    consumer: BaseConsumer<GroupContext>,
    pending: Option<PendingCommit>,
    /// Number of the latest commit.
    commit_number: usize,
}

/// The commit whose result has not arrived.
struct PendingCommit {
    number: usize,
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
        let context = GroupContext {
            health,
            events: Mutex::default(),
        };
        let consumer: BaseConsumer<GroupContext> = config
            .create_with_context(context)
            .map_err(|error| client_creation_error(&error))?;
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        consumer
            .subscribe(&names)
            .map_err(|error| Error::Rejected(error.to_string()))?;
        Ok(Self {
            commit_queue: CommitQueue::new(consumer.client()),
            consumer,
            pending: None,
            commit_number: 0,
        })
    }

    /// Unparks `thread` whenever an empty queue gets an event.
    pub(super) fn set_waker(&mut self, thread: Thread) {
        self.commit_queue.set_waker(thread.clone());
        self.consumer.set_nonempty_callback(move || thread.unpark());
    }

    /// Serves the client and returns the group's events in order. Must be called every few seconds,
    /// or the group removes this consumer.
    pub(super) fn serve(&mut self) -> VecDeque<GroupEvent> {
        for _ in 0..KAFKA_GROUP_EVENTS_PER_TURN_MAX {
            if ffi::queued_events(self.consumer.client()) == 0 {
                break;
            }
            // Drops records that were fetched before the pause. Errors reach the context, with
            // text.
            drop(self.consumer.poll(Duration::ZERO));
        }
        self.finish_commits();
        std::mem::take(&mut *self.consumer.context().events())
    }

    /// Returns whether [`GroupConsumer::commit`] may be called: only one commit is in flight.
    pub(super) fn can_commit(&self) -> bool {
        self.pending.is_none()
    }

    /// Starts a commit. The result goes to the request's channel; it may be closed.
    pub(super) fn commit(&mut self, CommitRequest { commits, reply }: CommitRequest) {
        debug_assert!(self.can_commit(), "one commit at a time");
        self.commit_number += 1;
        let offsets = offsets(&commits);
        let started = self
            .commit_queue
            .start(self.consumer.client(), &offsets, self.commit_number);
        match started {
            Ok(()) => {
                self.pending = Some(PendingCommit {
                    number: self.commit_number,
                    reply,
                    deadline: Instant::now() + KAFKA_COMMIT_TIMEOUT,
                });
            }
            Err(code) => drop(reply.send(Err(call_error(code, "")))),
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

    fn finish_commits(&mut self) {
        while let Some(reply) = self.commit_queue.next_reply() {
            // A reply with another number belongs to a commit that has timed out.
            let Some(pending) = self
                .pending
                .take_if(|pending| pending.number == reply.number)
            else {
                continue;
            };
            if reply.result.is_ok() {
                self.consumer.context().health.record_response();
            }
            let result = reply.result.map_err(|code| call_error(code, ""));
            drop(pending.reply.send(result));
        }
        // The caller waits for the commit, so fail it as soon as the cluster is down.
        let now = Instant::now();
        let outage = self.consumer.context().health.outage_reason();
        let is_late = |pending: &mut PendingCommit| outage.is_some() || now >= pending.deadline;
        if let Some(late) = self.pending.take_if(is_late) {
            let reason = outage
                .unwrap_or_else(|| "the group coordinator did not answer a commit".to_owned());
            drop(late.reply.send(Err(Error::Unavailable(reason))));
        }
    }
}

fn offsets(commits: &[OffsetCommit]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(commits.len());
    for commit in commits {
        partition_list::add_with_offset(
            &mut list,
            &commit.partition,
            commit.offset,
            Some(&commit.metadata),
        );
    }
    list
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
