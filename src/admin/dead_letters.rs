//! Dead letters under `/v1`: counts and samples by code, and redrives. One thread answers the calls, one after the other. A
//! redrive needs the operator token, and writes an audit line.

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

use super::api::{Params, PathParams, instant};
use super::auth::Actor;
use super::changes::ChangeError;
use super::problem::Problem;
use crate::limit::{ADMIN_REQUEST_TIMEOUT, REDRIVE_CALLS_MAX};
use crate::model::{DeadLetterReason, Timestamp};
use crate::store::query::{AuditLine, joined_conditions};
use crate::task::StopToken;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use std::fmt;
use tokio::sync::{mpsc, oneshot};
use utoipa::{IntoParams, ToSchema};

/// Dead letters that one call redrives without `limit`.
pub(super) const LIMIT_DEFAULT: u64 = 1_000;
/// Dead letters per second without `rate`.
pub(super) const RATE_DEFAULT: u32 = 100;

/// Conditions on dead letters
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeadLettersParams {
    /// The code of `postdate-error`
    pub(crate) code: Option<String>,
    /// The key of the record
    pub(crate) key: Option<String>,
    /// A header as `name:value`
    pub(crate) header: Option<String>,
    /// The value of `postdate-origin`
    pub(crate) origin: Option<String>,
    /// Dead since this time: RFC 3339, or milliseconds since 1970
    pub(crate) from: Option<String>,
    /// Dead until this time
    pub(crate) to: Option<String>,
    /// The `after` of the answer before
    pub(crate) after: Option<String>,
    /// Only for a redrive: `false` sends the messages. Default: `true`, which only counts them
    pub(crate) dry_run: Option<bool>,
    /// Only for a redrive: send at most this many messages; default 1,000
    pub(crate) limit: Option<u64>,
    /// Only for a redrive: messages per second; default 100
    pub(crate) rate: Option<u32>,
}

/// The parsed conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadLetterFilter {
    pub(crate) code: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) header: Option<(String, String)>,
    pub(crate) origin: Option<String>,
    pub(crate) from: Option<Timestamp>,
    pub(crate) to: Option<Timestamp>,
}

/// The conditions, for people. Empty if there are none.
impl fmt::Display for DeadLetterFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |time: Option<Timestamp>| time.map(Timestamp::to_rfc3339);
        let header = self.header.as_ref();
        f.write_str(&joined_conditions([
            ("code", self.code.clone()),
            ("key", self.key.clone()),
            (
                "header",
                header.map(|(name, value)| format!("{name}:{value}")),
            ),
            ("origin", self.origin.clone()),
            ("from", time(self.from)),
            ("to", time(self.to)),
        ]))
    }
}

/// A call about the dead letters of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadLettersRequest {
    pub(crate) route: String,
    pub(crate) filter: DeadLetterFilter,
    /// Partition and offset in the dead-letter topic.
    pub(crate) after: Option<(i32, u64)>,
    /// `None`: only list.
    pub(crate) redrive: Option<RedriveOptions>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RedriveOptions {
    pub(crate) dry_run: bool,
    pub(crate) limit: u64,
    /// Messages per second, above 0.
    pub(crate) rate: u32,
}

/// Dead letters by code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadLettersReport {
    pub(crate) deployment: String,
    pub(crate) route: String,
    /// The dead-letter topic. On NATS: stream and subject.
    pub(crate) topic: String,
    pub(crate) at_ms: i64,
    pub(crate) codes: Vec<DeadLetterGroup>,
    /// Records of the topic that were read, those of other routes included.
    pub(crate) scanned: u64,
    /// True if the search ended before the end of the topic: `after` continues it.
    pub(crate) more: bool,
    pub(crate) after: Option<String>,
    /// Absent: only a list.
    pub(crate) redrive: Option<RedriveReport>,
}

/// The outcome of a redrive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RedriveReport {
    pub(crate) dry_run: bool,
    /// Messages that the source has acknowledged. In a dry run: that would be sent.
    pub(crate) redriven: u64,
}

/// Dead letters with the same code that were not redriven before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadLetterGroup {
    pub(crate) code: String,
    pub(crate) count: u64,
    /// Their payload is only in the source, so they cannot be redriven.
    pub(crate) by_reference: u64,
    /// The service would refuse them again, for the reason in a sample.
    pub(crate) refused: u64,
    /// The first ones.
    pub(crate) samples: Vec<DeadLetterSample>,
}

impl DeadLetterGroup {
    pub(crate) fn redrivable(&self) -> u64 {
        self.count - self.by_reference - self.refused
    }
}

/// One dead letter. Bytes that are no text are written as `base64:` and their base64. Long texts are cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadLetterSample {
    /// The place in the dead-letter topic.
    pub(crate) partition: i32,
    pub(crate) offset: u64,
    /// The time at which it became a dead letter.
    pub(crate) dead_ms: Option<i64>,
    pub(crate) due_ms: Option<i64>,
    pub(crate) origin: String,
    pub(crate) key: Option<String>,
    pub(crate) detail: String,
    /// Why it cannot be redriven.
    pub(crate) obstacle: Option<String>,
}

impl DeadLettersParams {
    /// An empty value is an absent one, as forms send it.
    pub(crate) fn filter(&self) -> Result<DeadLetterFilter, Problem> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let code = given(&self.code);
        if let Some(code) = &code
            && DeadLetterReason::from_code(code).is_none()
        {
            let text = format!("code: {code:?} is not in the list of docs/contract.md");
            return Err(Problem::bad_request(text));
        }
        let header = given(&self.header).map(|text| {
            let pair = text.split_once(':');
            let pair = pair.map(|(name, value)| (name.to_owned(), value.trim_start().to_owned()));
            pair.ok_or_else(|| Problem::bad_request("header: write name:value"))
        });
        Ok(DeadLetterFilter {
            code,
            key: given(&self.key),
            header: header.transpose()?,
            origin: given(&self.origin),
            from: instant("from", given(&self.from))?,
            to: instant("to", given(&self.to))?,
        })
    }

    fn request(self, route: String, is_redrive: bool) -> Result<DeadLettersRequest, Problem> {
        let after = self.after.as_deref().filter(|after| !after.is_empty());
        let after = after.map(|token| {
            let place = token.split_once('-');
            let place = place.and_then(|(partition, offset)| {
                Some((partition.parse().ok()?, offset.parse().ok()?))
            });
            place.ok_or_else(|| Problem::bad_request("after: no answer gave this value"))
        });
        Ok(DeadLettersRequest {
            filter: self.filter()?,
            after: after.transpose()?,
            redrive: is_redrive.then(|| RedriveOptions {
                dry_run: self.dry_run.unwrap_or(true),
                limit: self.limit.unwrap_or(LIMIT_DEFAULT),
                rate: self.rate.unwrap_or(RATE_DEFAULT).max(1),
            }),
            route,
        })
    }
}

/// A request, and where its report goes.
pub(crate) struct DeadLettersCall {
    actor: Actor,
    request: DeadLettersRequest,
    reply: oneshot::Sender<Result<DeadLettersReport, ChangeError>>,
}

/// The sending side of the bounded queue to [`serve`].
#[derive(Clone)]
pub(crate) struct DeadLetters(mpsc::Sender<DeadLettersCall>);

pub(crate) fn channel() -> (DeadLetters, mpsc::Receiver<DeadLettersCall>) {
    let (calls, calls_in) = mpsc::channel(REDRIVE_CALLS_MAX);
    (DeadLetters(calls), calls_in)
}

/// Answers one call after the other until `stop` is cancelled.
pub(crate) async fn serve(
    mut calls: mpsc::Receiver<DeadLettersCall>,
    mut answer: impl AsyncFnMut(DeadLettersRequest) -> Result<DeadLettersReport, ChangeError>,
    stop: StopToken,
) {
    while let Some(Some(call)) = stop.run_until_cancelled(calls.recv()).await {
        if call.reply.is_closed() {
            continue;
        }
        let request = call.request.clone();
        // Safe to drop: a transaction that is not committed has no effect, and the position names the messages that were sent.
        let Some(answer) = stop.run_until_cancelled(answer(call.request)).await else {
            audit(&call.actor, &request, "interrupted", None);
            return;
        };
        let outcome = match &answer {
            Ok(_) => "done",
            Err(ChangeError::Refused(_)) => "refused",
            Err(ChangeError::Failed(_)) => "failed",
        };
        audit(&call.actor, &request, outcome, answer.as_ref().ok());
        // Fails if the client has left.
        let _ = call.reply.send(answer);
    }
}

/// A list changes nothing, so it has no audit line.
fn audit(
    actor: &Actor,
    request: &DeadLettersRequest,
    outcome: &str,
    report: Option<&DeadLettersReport>,
) {
    let Some(RedriveOptions {
        dry_run,
        limit,
        rate,
    }) = request.redrive
    else {
        return;
    };
    let redriven = report.and_then(|report| report.redrive.as_ref());
    let line = AuditLine {
        route: Some(request.route.clone()),
        filter: Some(request.filter.to_string()),
        dry_run: Some(dry_run),
        limit: Some(limit),
        rate: Some(rate),
        after: (request.after).map(|(partition, offset)| format!("{partition}-{offset}")),
        next: report.and_then(|report| report.after.clone()),
        changed: redriven.map(|redrive| redrive.redriven),
        outcome: Some(outcome.to_owned()),
        ..actor.line("redrive")
    };
    actor
        .audit
        .record(line, "redrive requested at the admin endpoint");
}

impl DeadLetters {
    pub(super) async fn ask(
        &self,
        actor: Actor,
        request: DeadLettersRequest,
    ) -> Result<DeadLettersReport, Problem> {
        if request.redrive.is_some() {
            actor.require_change()?;
        }
        let (reply, report) = oneshot::channel();
        let call = DeadLettersCall {
            actor,
            request,
            reply,
        };
        if self.0.try_send(call).is_err() {
            return Err(Problem::busy("too many requests at once: try again"));
        }
        match tokio::time::timeout(ADMIN_REQUEST_TIMEOUT, report).await {
            Ok(Ok(Ok(report))) => Ok(report),
            Ok(Ok(Err(ChangeError::Refused(text)))) => {
                Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, text))
            }
            Ok(Ok(Err(ChangeError::Failed(text)))) => Err(Problem::unavailable(text)),
            Ok(Err(_)) => Err(Problem::unavailable("the service is stopping")),
            Err(_) => {
                let text = "the broker has not answered in time. Repeat the request: no message is sent twice";
                Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, text))
            }
        }
    }

    pub(super) async fn list(
        &self,
        actor: Actor,
        route: String,
        params: DeadLettersParams,
    ) -> Result<DeadLettersReport, Problem> {
        self.ask(actor, params.request(route, false)?).await
    }

    pub(super) async fn redrive(
        &self,
        actor: Actor,
        route: String,
        params: DeadLettersParams,
    ) -> Result<DeadLettersReport, Problem> {
        self.ask(actor, params.request(route, true)?).await
    }
}

pub(super) fn router(dead_letters: DeadLetters) -> Router {
    Router::new()
        .route("/v1/routes/{route}/dead-letters", get(list))
        .route("/v1/routes/{route}/dead-letters:redrive", post(redrive))
        .with_state(dead_letters)
}

/// Dead letters of a route by code, with samples
///
/// Lists those that were not redriven, oldest first. Reads at most 20,000 records of the dead-letter topic, for 10 seconds. If `more` is
/// true, `after` continues.
#[utoipa::path(get, path = "/v1/routes/{route}/dead-letters", params(("route" = String, Path), DeadLettersParams), responses((status = 200, body = DeadLettersReport), (status = "default", body = Problem)))]
pub(super) async fn list(
    State(dead_letters): State<DeadLetters>,
    Extension(actor): Extension<Actor>,
    PathParams(route): PathParams<String>,
    Params(params): Params<DeadLettersParams>,
) -> Result<Json<DeadLettersReport>, Problem> {
    dead_letters.list(actor, route, params).await.map(Json)
}

/// Sends dead letters through the source of their route once more
///
/// A dry run unless `dry_run=false`. One call works for 10 seconds: repeat it while `more` is true. A repeat sends no message twice.
#[utoipa::path(post, path = "/v1/routes/{route}/dead-letters:redrive", params(("route" = String, Path), DeadLettersParams), responses((status = 200, body = DeadLettersReport), (status = "default", body = Problem)))]
pub(super) async fn redrive(
    State(dead_letters): State<DeadLetters>,
    Extension(actor): Extension<Actor>,
    PathParams(route): PathParams<String>,
    Params(params): Params<DeadLettersParams>,
) -> Result<Json<DeadLettersReport>, Problem> {
    dead_letters.redrive(actor, route, params).await.map(Json)
}
