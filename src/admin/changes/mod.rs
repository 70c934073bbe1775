//! Changes: records that the API writes to the source of a route. One thread writes them, one after
//! the other. Each needs the right to change something, and is audited.

pub(crate) mod idempotency;

use super::audit::Audit;
use super::auth::Actor;
use super::problem::Problem;
use crate::limit::{ADMIN_CHANGE_TIMEOUT, ADMIN_CHANGES_MAX, ADMIN_STOP_TIMEOUT};
use crate::model::Timestamp;
use crate::store::query::{AuditLine, MessageCopy};
use crate::store::{AdminStore, Error, RequestName};
use crate::task::StopToken;
use axum::http::StatusCode;
use idempotency::{KeyedRequest, Requests, RunningRequests};
use serde::Deserialize;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// A record to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) route: String,
    pub(crate) topic: Option<String>,
    /// The subject, for a source on NATS.
    pub(crate) subject: Option<String>,
    pub(crate) partition: Option<i32>,
    /// The offset of the message to change, for the audit log.
    pub(crate) offset: Option<u64>,
    pub(crate) key: Option<String>,
    pub(crate) id: Option<String>,
    /// The origin of a message without an id, in place of the id.
    pub(crate) of: Option<String>,
    pub(crate) to: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) kind: ChangeKind,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Publish {
        after: Option<String>,
        at: Option<String>,
        payload: Option<Vec<u8>>,
    },
    /// Cancels the message that waits under the id, on the partition.
    #[default]
    Cancel,
    /// Puts that message off.
    Reschedule { due: Timestamp },
    /// Pauses or resumes the delivery of all partitions of the route.
    Control {
        pauses: bool,
        at: Timestamp,
        note: Arc<str>,
    },
    /// Sends that message, which waits at the offset `of`, again with this due time. The copy takes its
    /// place.
    Copy {
        due: Timestamp,
        of: u64,
        copy: Box<MessageCopy>,
    },
}

/// Why a record was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    /// The request is wrong.
    #[error("{0}")]
    Refused(String),
    /// The broker does not take the record, or has not confirmed it.
    #[error("{0}")]
    Failed(String),
}

/// Writes records to the sources of routes.
pub(crate) trait WriteChanges {
    /// Writes one record, or the control records of a route. Answers with the JSON of the receipt, or of the
    /// written partitions.
    async fn write(&mut self, change: Change) -> Result<String, ChangeError>;

    /// Writes changes of messages of one route together. Returns the outcomes in their order.
    async fn write_many(&mut self, changes: Vec<Change>) -> Vec<Result<(), ChangeError>>;
}

/// Changes, and where their outcome goes.
pub(crate) enum ChangeCall {
    One(Box<OneChange>),
    /// The caller audits them together.
    Many(Vec<Change>, oneshot::Sender<Vec<Result<(), ChangeError>>>),
}

/// A change, and where its receipt goes.
pub(crate) struct OneChange {
    entry: AuditEntry,
    change: Change,
    /// The request has an idempotency key.
    request: Option<KeyedRequest>,
    reply: oneshot::Sender<Result<PublishAnswer, Problem>>,
}

/// The answer to a change.
pub(super) struct PublishAnswer {
    pub(super) receipt: String,
    /// An earlier request with the same idempotency key has written the record.
    pub(super) is_repeat: bool,
}

/// The sending side of the bounded queue to [`serve`].
#[derive(Clone)]
pub(crate) struct Changes {
    calls: mpsc::Sender<ChangeCall>,
    running: RunningRequests,
}

pub(crate) fn channel() -> (Changes, mpsc::Receiver<ChangeCall>) {
    let (calls, calls_in) = mpsc::channel(ADMIN_CHANGES_MAX);
    let running = RunningRequests::default();
    (Changes { calls, running }, calls_in)
}

/// Writes one change after the other until `stop` is cancelled. A change whose client has left before
/// its turn is not written, because the client may repeat it.
pub(crate) async fn serve<C>(
    mut calls: mpsc::Receiver<ChangeCall>,
    writer: &mut impl WriteChanges,
    mut requests: Requests<C>,
    stop: StopToken,
) where
    C: AsyncFn() -> Result<Rc<dyn AdminStore>, Error>,
{
    while let Some(Some(call)) = stop.run_until_cancelled(calls.recv()).await {
        match call {
            ChangeCall::One(call) if call.reply.is_closed() => {}
            ChangeCall::One(call) => write_one(*call, writer, &mut requests, &stop).await,
            ChangeCall::Many(_, reply) if reply.is_closed() => {}
            ChangeCall::Many(changes, reply) => {
                let written = until_stopped(&stop, writer.write_many(changes)).await;
                // Fails if the client has left. Without an answer, the caller knows of the stop.
                let _ = written.map(|written| reply.send(written));
            }
        }
    }
}

/// `None`: the service stopped meanwhile.
async fn until_stopped<T>(stop: &StopToken, write: impl Future<Output = T>) -> Option<T> {
    let stopped = async {
        stop.cancelled().await;
        tokio::time::sleep(ADMIN_STOP_TIMEOUT).await;
    };
    // Safe to drop: a record may still arrive, as after any lost acknowledgement.
    tokio::select! {
        biased;
        written = write => Some(written),
        () = stopped => None,
    }
}

async fn write_one<C>(
    call: OneChange,
    writer: &mut impl WriteChanges,
    requests: &mut Requests<C>,
    stop: &StopToken,
) where
    C: AsyncFn() -> Result<Rc<dyn AdminStore>, Error>,
{
    let first = match &call.request {
        Some(request) => requests.begin(request).await,
        None => Ok(None),
    };
    let (outcome, written) = match first {
        Err(problem) => (outcome_of(&problem), Err(problem)),
        Ok(Some(receipt)) => {
            let is_repeat = true;
            ("repeated", Ok(PublishAnswer { receipt, is_repeat }))
        }
        Ok(None) => {
            let written = until_stopped(stop, writer.write(call.change)).await;
            // After a stop the record may still arrive. A repeat gets 409 until the state expires, and publishes then.
            if let (Some(request), Some(written)) = (&call.request, &written) {
                requests.end(request, written.as_deref().ok()).await;
            }
            answer(written)
        }
    };
    let receipt = written.as_ref().ok().map(|answer| answer.receipt.as_str());
    call.entry.at(receipt).record(outcome);
    // Fails if the client has left.
    let _ = call.reply.send(written);
}

/// The outcome of a request that wrote nothing, for the audit list.
fn outcome_of(problem: &Problem) -> &'static str {
    match problem.status_code() {
        StatusCode::SERVICE_UNAVAILABLE => "failed",
        _ => "refused",
    }
}

/// The outcome for the audit list, and the answer. `None`: the service stopped meanwhile.
fn answer(
    written: Option<Result<String, ChangeError>>,
) -> (&'static str, Result<PublishAnswer, Problem>) {
    let is_repeat = false;
    match written {
        Some(Ok(receipt)) => ("written", Ok(PublishAnswer { receipt, is_repeat })),
        Some(Err(ChangeError::Refused(text))) => {
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, text);
            ("refused", Err(problem))
        }
        Some(Err(ChangeError::Failed(text))) => ("failed", Err(Problem::unavailable(text))),
        None => {
            let text = "the service is stopping. The record may have arrived: look for it before you repeat the request";
            ("failed", Err(Problem::unavailable(text)))
        }
    }
}

/// The place in a receipt, if the broker reports it.
#[derive(Default, Deserialize)]
pub(super) struct Place {
    partition: Option<i32>,
    pub(super) offset: Option<u64>,
}

/// The audit line of a change, without its outcome.
struct AuditEntry {
    audit: Audit,
    line: AuditLine,
}

impl AuditEntry {
    fn new(actor: &Actor, action: &str, change: &Change) -> Self {
        let due = match &change.kind {
            ChangeKind::Reschedule { due } | ChangeKind::Copy { due, .. } => Some(due),
            ChangeKind::Publish { .. } | ChangeKind::Cancel | ChangeKind::Control { .. } => None,
        };
        let note = match &change.kind {
            ChangeKind::Control { note, .. } => Some(note),
            _ => None,
        };
        let line = AuditLine {
            route: Some(change.route.clone()),
            topic: change.topic.clone(),
            partition: change.partition,
            offset: change.offset,
            id: change.id.clone(),
            of: change.of.clone(),
            due_ms: due.map(|due| due.as_millis()),
            note: note.map(|note| note.to_string()),
            ..actor.line(action)
        };
        Self {
            audit: actor.audit.clone(),
            line,
        }
    }

    /// A message that is published has its place in the receipt.
    fn at(mut self, receipt: Option<&str>) -> Self {
        if self.line.action == "publish"
            && let Some(receipt) = receipt
        {
            let Place { partition, offset } = serde_json::from_str(receipt).unwrap_or_default();
            (self.line.partition, self.line.offset) = (partition, offset);
        }
        self
    }

    fn record(mut self, outcome: &str) {
        self.line.outcome = Some(outcome.to_owned());
        let text = "change requested at the admin endpoint";
        self.audit.record(self.line, text);
    }
}

impl Actor {
    /// Requires the right to change something.
    pub(super) fn require_change(&self) -> Result<(), Problem> {
        if self.may_change {
            return Ok(());
        }
        let text = "this needs the right of an operator: the token of admin.operator_token, or a name in admin.operators or admin.operator_certificates";
        Err(Problem::new(StatusCode::FORBIDDEN, text))
    }
}

impl Changes {
    /// Writes the record and waits for the acknowledgement of the broker. Answers with the JSON of the
    /// receipt. `action` is for the audit log.
    pub(super) async fn write(
        &self,
        actor: Actor,
        action: &'static str,
        change: Change,
    ) -> Result<String, Problem> {
        actor.require_change()?;
        let entry = AuditEntry::new(&actor, action, &change);
        let written = self.send(entry, change, None).await?;
        Ok(written.receipt)
    }

    /// Writes a message. `request` is the name and the digest of a request with an idempotency key.
    pub(super) async fn publish(
        &self,
        actor: &Actor,
        change: Change,
        request: Option<(RequestName, String)>,
    ) -> Result<PublishAnswer, Problem> {
        actor.require_change()?;
        let entry = AuditEntry::new(actor, "publish", &change);
        let request = request.map(|(name, digest)| self.running.start(name, digest));
        match request.transpose() {
            Ok(request) => self.send(entry, change, request).await,
            Err(problem) => {
                entry.record(outcome_of(&problem));
                Err(problem)
            }
        }
    }

    /// Writes records of one route together. The caller has checked the right, and audits them. Without an error, the outcomes
    /// are those of the changes in their order.
    pub(super) async fn write_many(
        &self,
        changes: Vec<Change>,
    ) -> Result<Vec<Result<(), ChangeError>>, Problem> {
        let (reply, outcomes) = oneshot::channel();
        self.call(ChangeCall::Many(changes, reply), outcomes).await
    }

    async fn send(
        &self,
        entry: AuditEntry,
        change: Change,
        request: Option<KeyedRequest>,
    ) -> Result<PublishAnswer, Problem> {
        let (reply, receipt) = oneshot::channel();
        let call = OneChange {
            entry,
            change,
            request,
            reply,
        };
        self.call(ChangeCall::One(Box::new(call)), receipt).await?
    }

    /// Waits for the answer to the call.
    async fn call<T>(&self, call: ChangeCall, answer: oneshot::Receiver<T>) -> Result<T, Problem> {
        if self.calls.try_send(call).is_err() {
            return Err(Problem::busy("too many changes at once: try again"));
        }
        match tokio::time::timeout(ADMIN_CHANGE_TIMEOUT, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Problem::unavailable("the service is stopping")),
            Err(_) => {
                let text = "the broker has not confirmed the record in time. It may have arrived: look for it before you repeat the request";
                Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, text))
            }
        }
    }
}
