//! Changes of a schedule under `/v1`: pause, resume and fire.

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

use super::Schedules;
use super::change::{ScheduleAction, ScheduleReceipt, WrittenDefinition};
use super::show::{ScheduleName, ScheduleParams};
use crate::admin::api::{Params, PathParams};
use crate::admin::auth::Actor;
use crate::admin::changes::Changes;
use crate::admin::problem::Problem;
use crate::model::Timestamp;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Extension, Json, Router};

/// Reads definitions and writes new ones.
#[derive(Clone)]
pub(in crate::admin) struct ScheduleChanges {
    schedules: Schedules,
    changes: Changes,
}

pub(super) fn router(schedules: Schedules, changes: Changes) -> Router {
    Router::new()
        .route("/v1/routes/{route}/schedules/{id}", post(post_action))
        .with_state(ScheduleChanges::new(schedules, changes))
}

type Answer = Result<Json<ScheduleReceipt>, Problem>;

/// A path cannot have a parameter and a text in one part. An id may have colons.
async fn post_action(
    State(api): State<ScheduleChanges>,
    Extension(actor): Extension<Actor>,
    PathParams((route, action)): PathParams<(String, String)>,
    Params(params): Params<ScheduleParams>,
) -> Answer {
    let (id, action) = action.rsplit_once(':').unwrap_or_default();
    let name = params.name(route, id.to_owned());
    match action {
        "pause" => pause(api, actor, name).await,
        "resume" => resume(api, actor, name).await,
        "fire" => fire(api, actor, name).await,
        _ => {
            let text = "unknown action: use ID:pause, ID:resume or ID:fire";
            Err(Problem::not_found(text))
        }
    }
}

/// Pauses a schedule
///
/// Writes its definition again, with `postdate-paused: true`. Answers when the broker has the record. A repeat is safe. 409: another
/// record of the schedule was written at the same time, and only the last one counts; or the schedule cannot be paused.
#[utoipa::path(post, path = "/v1/routes/{route}/schedules/{id}:pause", params(("route" = String, Path), ("id" = String, Path), ScheduleParams), responses((status = 200, body = ScheduleReceipt), (status = "default", body = Problem)))]
pub(in crate::admin) async fn pause(
    api: ScheduleChanges,
    actor: Actor,
    name: ScheduleName,
) -> Answer {
    api.change(actor, name, ScheduleAction::Pause).await
}

/// Resumes a schedule
///
/// Times during the pause are not delivered. Otherwise as a pause.
#[utoipa::path(post, path = "/v1/routes/{route}/schedules/{id}:resume", params(("route" = String, Path), ("id" = String, Path), ScheduleParams), responses((status = 200, body = ScheduleReceipt), (status = "default", body = Problem)))]
pub(in crate::admin) async fn resume(
    api: ScheduleChanges,
    actor: Actor,
    name: ScheduleName,
) -> Answer {
    api.change(actor, name, ScheduleAction::Resume).await
}

/// Delivers a schedule once more, now
///
/// Writes its definition again, with `postdate-fire: true`. Also for a schedule that is paused or over. Each call fires once, so look
/// at the schedule before you repeat one without an answer. Otherwise as a pause.
#[utoipa::path(post, path = "/v1/routes/{route}/schedules/{id}:fire", params(("route" = String, Path), ("id" = String, Path), ScheduleParams), responses((status = 200, body = ScheduleReceipt), (status = "default", body = Problem)))]
pub(in crate::admin) async fn fire(
    api: ScheduleChanges,
    actor: Actor,
    name: ScheduleName,
) -> Answer {
    api.change(actor, name, ScheduleAction::Fire).await
}

impl ScheduleChanges {
    pub(in crate::admin) fn new(schedules: Schedules, changes: Changes) -> Self {
        Self { schedules, changes }
    }

    async fn change(&self, actor: Actor, name: ScheduleName, action: ScheduleAction) -> Answer {
        // Only an operator makes the process hold a payload.
        actor.require_change()?;
        let (report, schedule) = self.schedules.find(&name).await?;
        let conflict = |text: String| Problem::new(StatusCode::CONFLICT, text);
        let now = Timestamp::from_millis(report.at_ms);
        let change = action.change(&report.route, &schedule, now);
        let Some(change) = change.map_err(conflict)? else {
            return Ok(Json(action.receipt(schedule, None)));
        };
        let written = self.changes.write(actor, action.audit_name(), change);
        let written: WrittenDefinition = serde_json::from_str(&written.await?).map_err(|_| {
            Problem::unavailable("the record is written, and its offset is unknown")
        })?;
        if let Some(text) = written.conflict(action) {
            return Err(conflict(text));
        }
        Ok(Json(action.receipt(schedule, Some(written.offset))))
    }
}
