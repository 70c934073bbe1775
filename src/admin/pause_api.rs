//! Actions of a route under `/v1`. A pause and a resume are control records for all partitions of its sources.

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

use super::api::{Params, PathParams};
use super::auth::Actor;
use super::bulk_api;
use super::change_api::{ChangeApi, WaitParams, json, wait_time};
use super::changes::{Change, ChangeKind};
use super::problem::Problem;
use super::queries::Queries;
use crate::clock::{Clock as _, WallClock};
use crate::limit::{ADMIN_OUTCOME_INTERVAL, CONTROL_NOTE_BYTES_MAX, PAUSE_NOTE_BYTES_MAX};
use crate::model::Timestamp;
use crate::store::query::{PauseReport, Query, WorkersReport};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;

/// Why the route is paused or resumed
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PauseBody {
    /// At most 150 bytes. The name and the address of the sender are added
    pub(super) note: String,
}

pub(super) fn router(api: ChangeApi) -> Router {
    let actions = Router::new()
        .route("/v1/routes/{route}", post(route_action))
        .with_state(api.clone());
    Router::new()
        .route("/v1/routes/{route}/pause", get(pause_of))
        .with_state(api.queries)
        .merge(actions)
}

/// A path cannot have a parameter and a text in one part.
async fn route_action(
    State(api): State<ChangeApi>,
    Extension(actor): Extension<Actor>,
    PathParams(action): PathParams<String>,
    params: Result<Params<WaitParams>, Problem>,
    body: Bytes,
) -> Result<Response, Problem> {
    match action.rsplit_once(':') {
        Some((route, "purge")) => {
            let answer = bulk_api::purge(
                State(api),
                Extension(actor),
                PathParams(route.to_owned()),
                body,
            );
            answer.await.map(IntoResponse::into_response)
        }
        Some((route, "pause")) => {
            let Params(params) = params?;
            let answer = pause(api, actor, route, params, &body).await;
            answer.map(IntoResponse::into_response)
        }
        Some((route, "resume")) => {
            let Params(params) = params?;
            let answer = resume(api, actor, route, params, &body).await;
            answer.map(IntoResponse::into_response)
        }
        _ => {
            let text = "unknown action: use ROUTE:purge, ROUTE:pause or ROUTE:resume";
            Err(Problem::not_found(text))
        }
    }
}

impl Queries {
    pub(super) async fn pause(&self, route: &str) -> Result<PauseReport, Problem> {
        let route = route.to_owned();
        self.report(Query::Pause { route }).await
    }
}

/// Which shards of a route are paused
#[utoipa::path(get, path = "/v1/routes/{route}/pause", params(("route" = String, Path)), responses((status = 200, body = PauseReport), (status = "default", body = Problem)))]
pub(super) async fn pause_of(
    State(queries): State<Queries>,
    PathParams(route): PathParams<String>,
) -> Result<Json<PauseReport>, Problem> {
    let report = queries.pause(&route).await?;
    if report.shards == 0 {
        // Tells an unknown route from one of which nothing was read.
        queries.route(&route).await?;
    }
    Ok(Json(report))
}

type Answer = Result<(StatusCode, Json<PauseReport>), Problem>;

/// Pauses the delivery of a route
///
/// Writes a record to each partition of its sources, and waits some seconds until all shards are paused. 202: the records are
/// in the source, and not all were read yet. 503: some partitions did not take their record. Messages that were claimed before
/// still go out: see `in_flight`. A repeat is safe.
#[utoipa::path(post, path = "/v1/routes/{route}:pause", params(("route" = String, Path), WaitParams), request_body = PauseBody, responses((status = 200, body = PauseReport), (status = 202, body = PauseReport), (status = "default", body = Problem)))]
pub(super) async fn pause(
    api: ChangeApi,
    actor: Actor,
    route: &str,
    params: WaitParams,
    body: &Bytes,
) -> Answer {
    let wait = wait_time(params.wait.as_deref())?;
    api.set_paused(actor, route, true, json(body)?, wait).await
}

/// Resumes the delivery of a route
///
/// Otherwise as a pause.
#[utoipa::path(post, path = "/v1/routes/{route}:resume", params(("route" = String, Path), WaitParams), request_body = PauseBody, responses((status = 200, body = PauseReport), (status = 202, body = PauseReport), (status = "default", body = Problem)))]
pub(super) async fn resume(
    api: ChangeApi,
    actor: Actor,
    route: &str,
    params: WaitParams,
    body: &Bytes,
) -> Answer {
    let wait = wait_time(params.wait.as_deref())?;
    api.set_paused(actor, route, false, json(body)?, wait).await
}

/// The records that pause or resume a route. Fails if the note is too long.
pub(crate) fn control(
    report: &PauseReport,
    pauses: bool,
    (note, who): (&str, &str),
) -> Result<(Timestamp, Change), String> {
    let note = note.trim();
    if note.len() > CONTROL_NOTE_BYTES_MAX {
        return Err(format!(
            "note: write at most {CONTROL_NOTE_BYTES_MAX} bytes"
        ));
    }
    let room = PAUSE_NOTE_BYTES_MAX - note.len() - " ()".len();
    let who = shortened(who, room);
    let note = match note {
        "" => who,
        note => format!("{note} ({who})"),
    };
    let at = report.next_time(WallClock.now());
    let change = Change {
        route: report.route.clone(),
        kind: ChangeKind::Control {
            pauses,
            at,
            note: note.into(),
        },
        ..Change::default()
    };
    Ok((at, change))
}

/// Cuts the name of a sender, and keeps the address behind it. The audit list has the whole name.
fn shortened(who: &str, bytes_max: usize) -> String {
    if who.len() <= bytes_max {
        return who.to_owned();
    }
    let (name, address) = who.rsplit_once(", ").unwrap_or((who, ""));
    let room = bytes_max.saturating_sub("..., ".len() + address.len());
    format!("{}..., {address}", &name[..name.floor_char_boundary(room)])
}

impl ChangeApi {
    pub(super) async fn set_paused(
        &self,
        actor: Actor,
        route: &str,
        pauses: bool,
        body: PauseBody,
        wait: Duration,
    ) -> Answer {
        actor.require_change()?;
        let report = self.queries.pause(route).await?;
        if report.shards == 0 {
            self.queries.route(route).await?;
        }
        let workers: WorkersReport = self.queries.report(Query::Workers).await?;
        // A route that is paused already may be resumed: no older version can read its shards.
        let is_refused = pauses || report.paused == 0;
        if let Some(why) = workers.refuses_pause().filter(|_| is_refused) {
            return Err(Problem::new(StatusCode::CONFLICT, why));
        }
        let control = control(&report, pauses, (&body.note, &actor.text()));
        let (at, change) = control.map_err(Problem::bad_request)?;
        let action = if pauses { "pause" } else { "resume" };
        let written = self.changes.write(actor, action, change).await?;
        let written: Vec<(String, i32)> = serde_json::from_str(&written).unwrap_or_default();
        let end = Instant::now() + wait;
        loop {
            let mut report = self.queries.pause(route).await?;
            report.add_unknown(&written);
            if report.is_reached(pauses, at) {
                return Ok((StatusCode::OK, Json(report)));
            }
            if let Some(why) = report.overtaken(pauses, at) {
                return Err(Problem::new(StatusCode::CONFLICT, why));
            }
            if Instant::now() >= end {
                return Ok((StatusCode::ACCEPTED, Json(report)));
            }
            sleep(ADMIN_OUTCOME_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::audit;
    use std::net::{Ipv6Addr, SocketAddr};

    #[test]
    fn a_note_has_a_limit_of_its_own_and_names_its_sender() {
        let report = PauseReport {
            route: "orders".to_owned(),
            changed_ms: Some(i64::MAX - 1),
            ..PauseReport::default()
        };
        let address = Ipv6Addr::from(u128::MAX);
        let actor = |name: &str| Actor {
            name: name.into(),
            may_change: true,
            address: Some(SocketAddr::from((address, 1))),
            may_log_in: false,
            may_log_out: false,
            audit: audit::channel().0,
        };
        let longest = "x".repeat(CONTROL_NOTE_BYTES_MAX);
        let long_name = "ada.lovelace@".to_owned() + &"example.".repeat(30);
        for (note, name, expected) in [
            (&*longest, "operator", "(operator, ffff:"),
            (&*longest, &*long_name, "(ada.lovelace@..., ffff:"),
            ("", &*long_name, "..., ffff:"),
        ] {
            let who = actor(name).text();
            let (at, change) = control(&report, true, (note, &who)).unwrap();
            assert_eq!(at.as_millis(), i64::MAX, "later than the last one");
            let ChangeKind::Control { pauses, note, .. } = change.kind else {
                panic!("{change:?}")
            };
            assert!(pauses && note.len() <= PAUSE_NOTE_BYTES_MAX, "{note}");
            assert!(note.contains(expected), "{note}");
        }
        assert!(control(&report, true, (&format!("{longest}x"), "")).is_err());
    }
}
