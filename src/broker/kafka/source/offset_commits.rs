//! Offset commits for a group without members, by the client of the partition consumer. One is in
//! flight at a time.

use crate::broker::kafka::error::call_error;
use crate::broker::kafka::ffi::{self, NativeClient};
use crate::broker::kafka::health::ClusterHealth;
use crate::broker::kafka::partition_list;
use crate::broker::{Error, OffsetCommit};
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Timeout of an offset commit. The broker may still apply it later; repeating it is safe.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A commit and the channel for its result.
pub(super) struct CommitRequest {
    pub(super) commits: Vec<OffsetCommit>,
    pub(super) reply: oneshot::Sender<Result<(), Error>>,
}

pub(super) struct OffsetCommits {
    /// Declared before the client, which must outlive it.
    pending: Option<PendingCommit>,
    native: Arc<NativeClient>,
    group: String,
    health: ClusterHealth,
}

/// The commit whose result has not arrived.
struct PendingCommit {
    call: ffi::PendingCommit,
    reply: oneshot::Sender<Result<(), Error>>,
    deadline: Instant,
}

impl OffsetCommits {
    pub(super) fn new(native: Arc<NativeClient>, group: String, health: ClusterHealth) -> Self {
        Self {
            pending: None,
            native,
            group,
            health,
        }
    }

    /// Returns whether [`OffsetCommits::start`] may be called.
    pub(super) fn can_start(&self) -> bool {
        self.pending.is_none()
    }

    /// Starts a commit. The result goes to the request's channel; it may be closed. The calling
    /// thread is unparked when the result has arrived.
    pub(super) fn start(&mut self, CommitRequest { commits, reply }: CommitRequest) {
        debug_assert!(self.can_start(), "one commit at a time");
        let mut offsets = TopicPartitionList::with_capacity(commits.len());
        for commit in &commits {
            let metadata = Some(&*commit.metadata);
            partition_list::add(&mut offsets, &commit.partition, commit.offset, metadata);
        }
        match ffi::PendingCommit::start(self.native.client(), &offsets) {
            Ok(call) => {
                self.pending = Some(PendingCommit {
                    call,
                    reply,
                    deadline: Instant::now() + COMMIT_TIMEOUT,
                });
            }
            Err(code) => drop(reply.send(Err(commit_error(&self.group, code)))),
        }
    }

    /// Passes the result of the pending commit on. A commit fails as soon as the cluster is down.
    pub(super) fn serve(&mut self) {
        let Some(pending) = &self.pending else { return };
        let result = match (pending.call.try_take(), self.health.outage_reason()) {
            (Some(Ok(())), _) => {
                self.health.record_response();
                Ok(())
            }
            (Some(Err(code)), _) => Err(commit_error(&self.group, code)),
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

/// The error of a commit. The broker refuses commits of this worker while the group has members.
pub(in crate::broker::kafka) fn commit_error(group: &str, code: Code) -> Error {
    match code {
        Code::UnknownMemberId | Code::IllegalGeneration | Code::RebalanceInProgress => {
            Error::Rejected(format!(
                "the consumer group {group} has members, so only they may commit. Stop all workers of \
                 Postdate 0.1.0, and other consumers of this group. A killed one is a member for 10 \
                 more seconds"
            ))
        }
        code => call_error((code, code.to_string())),
    }
}
