//! The schedules of a recurring route under `/v1`, as its topic defines them. Each call reads the topic, one call after the
//! other.
//!
//! | file | duty |
//! |---|---|
//! | `show` | one schedule with its definition |
//! | `preview` | its next occurrences |
//! | `change` | pause, resume and fire: the definition with other headers |
//! | `change_api` | these three under `/v1` |

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

pub(crate) mod change;
pub(crate) mod change_api;
mod preview;
pub(crate) mod show;

use super::api::{Params, PathParams};
use super::changes::{ChangeError, Changes};
use super::problem::Problem;
use crate::limit::{ADMIN_REQUEST_TIMEOUT, SCHEDULES_CALLS_MAX, SCHEDULES_PAGE_MAX};
use crate::model::{Headers, Offset, Record, Timestamp, Watermark};
use crate::task::StopToken;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
pub(crate) use preview::{Preview, PreviewTime};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use utoipa::{IntoParams, ToSchema};

/// Schedules in an answer without `limit`.
const PAGE_DEFAULT: usize = 100;

/// The schedules of a recurring route, in the order of their ids. Fields are only added, never renamed or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct SchedulesReport {
    pub(crate) deployment: String,
    pub(crate) route: String,
    pub(crate) at_ms: i64,
    pub(crate) schedules: Vec<Schedule>,
    /// True if the topic has further schedules: `after` continues.
    pub(crate) more: bool,
    pub(crate) after: Option<String>,
    #[serde(skip)]
    pub(crate) shows_payloads: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Schedule {
    pub(crate) id: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    /// The offset of the definition.
    pub(crate) offset: u64,
    pub(crate) state: ScheduleState,
    /// The schedule in words. Absent for a wrong definition.
    pub(crate) schedule: Option<String>,
    /// The next due time.
    pub(crate) next_ms: Option<i64>,
    pub(crate) next: Option<String>,
    /// Why the definition is wrong.
    pub(crate) error: Option<String>,
    /// Only for a request that asks for it.
    #[serde(skip)]
    pub(crate) record: Option<Box<DefinitionRecord>>,
}

/// The record that defines a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefinitionRecord {
    pub(crate) timestamp: Option<Timestamp>,
    pub(crate) payload: Vec<u8>,
    /// A block of [`Headers`].
    pub(crate) headers: Vec<u8>,
    /// Where the reading of its partition ended. No record before it has replaced this one.
    pub(crate) read_to: Watermark,
}

impl Schedule {
    fn as_record<'a>(&'a self, record: &'a DefinitionRecord) -> Record<'a> {
        Record {
            offset: Offset(self.offset),
            timestamp: record.timestamp,
            key: Some(self.id.as_bytes()),
            payload: Some(&record.payload),
            headers: Headers::from_block(&record.headers),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ScheduleState {
    Active,
    Paused,
    /// It has no further occurrence.
    Over,
    /// The definition was rejected, and has ended the schedule.
    Wrong,
}

impl ScheduleState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Over => "over",
            Self::Wrong => "wrong",
        }
    }
}

/// The schedules to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SchedulesRequest {
    pub(crate) route: String,
    /// Only this one.
    pub(crate) id: Option<String>,
    /// Only ids from this one on.
    pub(crate) after: Option<String>,
    pub(crate) limit: usize,
    /// With the records.
    pub(crate) with_records: bool,
}

/// Conditions on schedules
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SchedulesParams {
    /// The id of the only schedule in the answer
    pub(super) id: Option<String>,
    /// The `after` of the answer before
    pub(super) after: Option<String>,
    /// Schedules in the answer, 1 to 1,000; default 100
    pub(super) limit: Option<usize>,
}

impl SchedulesParams {
    /// An empty value is an absent one, as forms send it.
    fn request(self, route: String) -> SchedulesRequest {
        let limit = self.limit.unwrap_or(PAGE_DEFAULT);
        SchedulesRequest {
            route,
            id: self.id.filter(|id| !id.is_empty()),
            after: self.after.filter(|after| !after.is_empty()),
            limit: limit.clamp(1, SCHEDULES_PAGE_MAX),
            with_records: false,
        }
    }
}

/// A request, and where its report goes.
pub(crate) struct SchedulesCall {
    request: SchedulesRequest,
    reply: oneshot::Sender<Result<SchedulesReport, ChangeError>>,
}

/// The sending side of the bounded queue to [`serve`].
#[derive(Clone)]
pub(crate) struct Schedules(mpsc::Sender<SchedulesCall>);

pub(crate) fn channel() -> (Schedules, mpsc::Receiver<SchedulesCall>) {
    let (calls, calls_in) = mpsc::channel(SCHEDULES_CALLS_MAX);
    (Schedules(calls), calls_in)
}

/// Answers one call after the other until `stop` is cancelled.
pub(crate) async fn serve(
    mut calls: mpsc::Receiver<SchedulesCall>,
    answer: impl AsyncFn(SchedulesRequest) -> Result<SchedulesReport, ChangeError>,
    stop: StopToken,
) {
    while let Some(Some(SchedulesCall { request, mut reply })) =
        stop.run_until_cancelled(calls.recv()).await
    {
        // Safe to drop: a call only reads.
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = reply.closed() => {}
            report = answer(request) => drop(reply.send(report)),
        }
    }
}

impl Schedules {
    pub(super) async fn list(
        &self,
        route: String,
        params: SchedulesParams,
    ) -> Result<SchedulesReport, Problem> {
        self.ask(params.request(route)).await
    }

    async fn ask(&self, request: SchedulesRequest) -> Result<SchedulesReport, Problem> {
        let (reply, report) = oneshot::channel();
        if self.0.try_send(SchedulesCall { request, reply }).is_err() {
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
                let text = "the broker has not answered in time";
                Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, text))
            }
        }
    }
}

pub(super) fn router(schedules: Schedules, changes: Changes) -> Router {
    Router::new()
        .route("/v1/routes/{route}/schedules", get(list))
        .route("/v1/routes/{route}/schedules/{id}", get(show::show))
        .with_state(schedules.clone())
        .merge(change_api::router(schedules, changes))
}

/// The schedules of a recurring route, with their next due times
///
/// Reads the whole topic of definitions. If `more` is true, `after` continues.
#[utoipa::path(get, path = "/v1/routes/{route}/schedules", params(("route" = String, Path), SchedulesParams), responses((status = 200, body = SchedulesReport), (status = "default", body = Problem)))]
pub(super) async fn list(
    State(schedules): State<Schedules>,
    PathParams(route): PathParams<String>,
    Params(params): Params<SchedulesParams>,
) -> Result<Json<SchedulesReport>, Problem> {
    schedules.list(route, params).await.map(Json)
}
