//! Changes: records that the API writes to the source of a route. A thread of its own writes them, one
//! after the other. Only an operator may change something, and each change is audited.

use super::auth::Actor;
use super::problem::Problem;
use crate::limit::{ADMIN_CHANGE_TIMEOUT, ADMIN_CHANGES_MAX};
use crate::task::StopToken;
use axum::http::StatusCode;
use tokio::sync::{mpsc, oneshot};

/// A record to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) route: String,
    pub(crate) topic: Option<String>,
    /// The subject, for a source on NATS.
    pub(crate) subject: Option<String>,
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<String>,
    pub(crate) id: Option<String>,
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

/// A change, and where its receipt goes.
pub(crate) struct ChangeCall {
    change: Change,
    reply: oneshot::Sender<Result<String, ChangeError>>,
}

/// The sending side of the bounded queue to [`serve`].
#[derive(Clone)]
pub(crate) struct Changes(mpsc::Sender<ChangeCall>);

pub(crate) fn channel() -> (Changes, mpsc::Receiver<ChangeCall>) {
    let (calls, calls_in) = mpsc::channel(ADMIN_CHANGES_MAX);
    (Changes(calls), calls_in)
}

/// Writes one change after the other until `stop` is cancelled.
pub(crate) async fn serve(
    mut calls: mpsc::Receiver<ChangeCall>,
    mut write: impl AsyncFnMut(Change) -> Result<String, ChangeError>,
    stop: StopToken,
) {
    while let Some(Some(call)) = stop.run_until_cancelled(calls.recv()).await {
        let written = write(call.change).await;
        // Fails if the client has gone. The audit line tells that the change was sent.
        let _ = call.reply.send(written);
    }
}

impl Actor {
    /// The right to change something.
    pub(super) fn may_change(&self) -> bool {
        self.name == "operator"
    }
}

impl Changes {
    /// Writes the record and waits for the acknowledgement of the broker. Answers with the JSON of the
    /// receipt.
    pub(super) async fn write(&self, actor: Actor, change: Change) -> Result<String, Problem> {
        if !actor.may_change() {
            let text = "this needs the token of admin.operator_token";
            return Err(Problem::new(StatusCode::FORBIDDEN, text));
        }
        let (route, id, partition) = (change.route.clone(), change.id.clone(), change.partition);
        let action = match change.kind {
            ChangeKind::Publish { .. } => "publish",
            ChangeKind::Cancel => "cancel",
        };
        let (reply, receipt) = oneshot::channel();
        if self.0.try_send(ChangeCall { change, reply }).is_err() {
            return Err(Problem::unavailable("too many changes at once: try again"));
        }
        let written = match tokio::time::timeout(ADMIN_CHANGE_TIMEOUT, receipt).await {
            Ok(Ok(Ok(receipt))) => Ok(receipt),
            Ok(Ok(Err(ChangeError::Refused(text)))) => {
                Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, text))
            }
            Ok(Ok(Err(ChangeError::Failed(text)))) => Err(Problem::unavailable(text)),
            Ok(Err(_)) => Err(Problem::unavailable("the service is stopping")),
            Err(_) => {
                let text = "the broker has not confirmed the record in time. It may have arrived";
                Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, text))
            }
        };
        let status = written
            .as_ref()
            .map_or_else(|problem| problem.status, |_| 200);
        tracing::info!(target: "postdate::audit", actor = actor.name, address = ?actor.address, action, route, id, partition, status, "change");
        written
    }
}
