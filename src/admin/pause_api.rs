//! Actions of a route under `/v1`. A pause and a resume are control records for all partitions of its sources.

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

use super::api::PathParams;
use super::auth::Actor;
use super::bulk_api;
use super::change_api::{ChangeApi, json};
use super::changes::{Change, ChangeKind};
use super::problem::Problem;
use super::queries::Queries;
use crate::clock::{Clock as _, WallClock};
use crate::limit::{ADMIN_OUTCOME_INTERVAL, ADMIN_OUTCOME_TIMEOUT, PAUSE_NOTE_BYTES_MAX};
use crate::model::FORMAT_LEVEL;
use crate::store::query::{PauseReport, Query, WorkersReport};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;

/// Why the route is paused or resumed
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PauseBody {
    /// At most 150 bytes. Who has asked is added
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
            let answer = pause(api, actor, route, &body).await;
            answer.map(IntoResponse::into_response)
        }
        Some((route, "resume")) => {
            let answer = resume(api, actor, route, &body).await;
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
/// in the source, and not all were read yet. Messages that were claimed before still go out: see `in_flight`. A repeat is safe.
#[utoipa::path(post, path = "/v1/routes/{route}:pause", params(("route" = String, Path)), request_body = PauseBody, responses((status = 200, body = PauseReport), (status = 202, body = PauseReport), (status = "default", body = Problem)))]
pub(super) async fn pause(api: ChangeApi, actor: Actor, route: &str, body: &Bytes) -> Answer {
    api.set_paused(actor, route, true, json(body)?).await
}

/// Resumes the delivery of a route
///
/// Otherwise as a pause.
#[utoipa::path(post, path = "/v1/routes/{route}:resume", params(("route" = String, Path)), request_body = PauseBody, responses((status = 200, body = PauseReport), (status = 202, body = PauseReport), (status = "default", body = Problem)))]
pub(super) async fn resume(api: ChangeApi, actor: Actor, route: &str, body: &Bytes) -> Answer {
    api.set_paused(actor, route, false, json(body)?).await
}

/// The control records for the shards of a report, or why there are none.
pub(crate) fn control_records(
    report: &PauseReport,
    workers: &WorkersReport,
    pauses: bool,
    (note, who): (&str, &str),
) -> Result<Vec<Change>, String> {
    let older = workers.names_of_level(|level| level < FORMAT_LEVEL);
    if pauses && !older.is_empty() {
        return Err(format!(
            "an older version runs, which would deliver messages of a paused route: {older}. Finish the upgrade first"
        ));
    }
    if report.places.is_empty() {
        return Err("the store knows no shard of this route: start a worker first".to_owned());
    }
    let note = match note.trim() {
        "" => who.to_owned(),
        note => format!("{note} ({who})"),
    };
    if note.len() > PAUSE_NOTE_BYTES_MAX {
        return Err("note: write at most 150 bytes".to_owned());
    }
    let at = report.next_time(WallClock.now());
    let records = report.places.iter().map(|place| Change {
        route: report.route.clone(),
        topic: Some(place.topic.clone()),
        partition: Some(place.partition),
        kind: ChangeKind::Control {
            pauses,
            at,
            note: note.as_str().into(),
        },
        ..Change::default()
    });
    Ok(records.collect())
}

/// Writes the audit line when the call ends, also if its client leaves before.
struct Audit<'a> {
    actor: Actor,
    action: &'static str,
    route: &'a str,
    note: &'a str,
    written: usize,
    outcome: &'static str,
}

impl Drop for Audit<'_> {
    fn drop(&mut self) {
        tracing::info!(target: "postdate::audit", actor = self.actor.name, address = self.actor.address_text(),
            action = self.action, route = self.route, note = self.note, written = self.written,
            outcome = self.outcome, "change requested at the admin endpoint");
    }
}

impl ChangeApi {
    pub(super) async fn set_paused(
        &self,
        actor: Actor,
        route: &str,
        pauses: bool,
        body: PauseBody,
    ) -> Answer {
        actor.require_change()?;
        let busy = |_| {
            Problem::unavailable("another call writes many records: try again when it has ended")
        };
        let _permit = self.bulk_permit.try_acquire().map_err(busy)?;
        let report = self.queries.pause(route).await?;
        if report.shards == 0 {
            self.queries.route(route).await?;
        }
        let workers: WorkersReport = self.queries.report(Query::Workers).await?;
        let records = control_records(&report, &workers, pauses, (&body.note, &actor.text()));
        let records = records.map_err(|why| Problem::new(StatusCode::CONFLICT, why))?;
        let all = records.len();
        let mut audit = Audit {
            actor,
            action: if pauses { "pause" } else { "resume" },
            route,
            note: &body.note,
            written: 0,
            outcome: "interrupted",
        };
        for record in records {
            if let Err(problem) = self.changes.write_one_of_many(record).await {
                audit.outcome = "failed";
                let (detail, written) = (&problem.detail, audit.written);
                let text = match written {
                    0 => return Err(problem),
                    _ => format!("{detail} (written before: {written} of {all}; repeat the call)"),
                };
                return Err(Problem::new(problem.status_code(), text));
            }
            audit.written += 1;
        }
        audit.outcome = "written";
        drop(audit);
        let end = Instant::now() + ADMIN_OUTCOME_TIMEOUT;
        loop {
            let report = self.queries.pause(route).await?;
            if report.is_reached(pauses) {
                return Ok((StatusCode::OK, Json(report)));
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
    use crate::store::query::{PausePlace, WorkerReport};

    fn report(partitions: i32) -> PauseReport {
        let place = |partition| PausePlace {
            topic: "in".to_owned(),
            partition,
            paused: false,
        };
        PauseReport {
            route: "orders".to_owned(),
            changed_ms: Some(i64::MAX - 1),
            places: (0..partitions).map(place).collect(),
            ..PauseReport::default()
        }
    }

    fn workers(format: u32) -> WorkersReport {
        let worker = WorkerReport {
            name: "w0".to_owned(),
            format,
            expires_in_ms: 5,
            ..WorkerReport::default()
        };
        WorkersReport {
            workers: vec![worker],
            ..WorkersReport::default()
        }
    }

    #[test]
    fn each_partition_gets_a_record() {
        let records = control_records(
            &report(2),
            &workers(FORMAT_LEVEL),
            true,
            ("incident", "anna"),
        );
        let records = records.unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!(records[1].partition, Some(1));
        let ChangeKind::Control { pauses, at, note } = &records[0].kind else {
            panic!("{records:?}")
        };
        assert!(*pauses && &**note == "incident (anna)");
        assert_eq!(at.as_millis(), i64::MAX, "later than the last one");
    }

    #[test]
    fn a_pause_that_would_not_hold_is_refused() {
        let refused = |partitions, format, pauses, note: &str| {
            control_records(&report(partitions), &workers(format), pauses, (note, "who")).err()
        };
        let older = refused(1, FORMAT_LEVEL - 1, true, "").unwrap();
        assert!(older.contains("w0"), "{older}");
        assert_eq!(refused(1, FORMAT_LEVEL - 1, false, ""), None, "a resume");
        assert!(refused(0, FORMAT_LEVEL, true, "").is_some());
        let long = "x".repeat(PAUSE_NOTE_BYTES_MAX);
        assert!(refused(1, FORMAT_LEVEL, true, &long).is_some());
    }
}
