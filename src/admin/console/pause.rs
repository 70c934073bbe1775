//! The forms that pause and resume a route.

use super::frame::{Frame, Visit};
use crate::admin::api::PathParams;
use crate::admin::pause_api::PauseBody;
use crate::admin::problem::Problem;
use crate::limit::ADMIN_OUTCOME_TIMEOUT;
use crate::model::readable::several;
use askama::Template;
use axum::Json;
use axum::extract::Form;
use axum::extract::rejection::FormRejection;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

#[derive(Template)]
#[template(path = "paused.html")]
struct PausedPage {
    frame: Frame,
    route: String,
    text: String,
    is_reached: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct PauseForm {
    note: String,
}

type Fields = Result<Form<PauseForm>, FormRejection>;

pub(super) async fn pause(
    visit: Visit,
    PathParams(route): PathParams<String>,
    form: Fields,
) -> Response {
    visit.show(page(&visit, route, form, true).await)
}

pub(super) async fn resume(
    visit: Visit,
    PathParams(route): PathParams<String>,
    form: Fields,
) -> Response {
    visit.show(page(&visit, route, form, false).await)
}

async fn page(
    visit: &Visit,
    route: String,
    form: Fields,
    pauses: bool,
) -> Result<PausedPage, Problem> {
    let wrong = |error: FormRejection| Problem::bad_request(error.body_text());
    let Form(PauseForm { note }) = form.map_err(wrong)?;
    let changes = &visit.console.changes;
    let body = PauseBody { note };
    let (status, Json(report)) = changes
        .set_paused(
            visit.actor.clone(),
            &route,
            pauses,
            body,
            ADMIN_OUTCOME_TIMEOUT,
        )
        .await?;
    let is_reached = status == StatusCode::OK;
    let shards = several(report.shards, "shard");
    let mut text = format!("{} of {shards} paused.", report.paused);
    if !is_reached {
        text +=
            " Not all records were read yet. A source over its max_waiting is not read: raise it.";
    }
    if report.in_flight > 0 {
        text += " Messages that were claimed before may still go out.";
    }
    Ok(PausedPage {
        frame: visit.frame("overview", format!("Route {route}")),
        route,
        text,
        is_reached,
    })
}
