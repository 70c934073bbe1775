//! Routes of `/v1` that change many waiting messages.

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

use super::api::PathParams;
use super::auth::Actor;
use super::bulk_changes::{BulkAction, BulkBody, BulkReport};
use super::change_api::{ChangeApi, json};
use super::problem::Problem;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use axum::{Extension, Json, Router};

pub(super) fn router(api: ChangeApi) -> Router {
    Router::new()
        .route("/v1/routes/{route}/messages:cancel", post(cancel))
        .route("/v1/routes/{route}/messages:reschedule", post(reschedule))
        .route("/v1/routes/{route}/messages:fire", post(fire))
        .with_state(api)
}

type Answer = Result<Json<BulkReport>, Problem>;

async fn change(
    State(api): State<ChangeApi>,
    Extension(actor): Extension<Actor>,
    route: &str,
    action: BulkAction,
    body: &Bytes,
) -> Answer {
    let report = api.change_many(actor, route, action, json(body)?).await?;
    Ok(Json(report))
}

/// Cancels the waiting messages that meet the conditions
///
/// A dry run unless `dry_run` is false. One call reads at most 2,000 stored batches for 200 ms, and writes for 10 seconds: repeat it
/// with `after` while `more` is true. Needs a condition.
#[utoipa::path(post, path = "/v1/routes/{route}/messages:cancel", params(("route" = String, Path)), request_body = BulkBody, responses((status = 200, body = BulkReport), (status = "default", body = Problem)))]
pub(super) async fn cancel(
    api: State<ChangeApi>,
    actor: Extension<Actor>,
    PathParams(route): PathParams<String>,
    body: Bytes,
) -> Answer {
    change(api, actor, &route, BulkAction::Cancel, &body).await
}

/// Gives the waiting messages that meet the conditions another due time
///
/// `at` or `in` is the new due time. Otherwise as a cancel.
#[utoipa::path(post, path = "/v1/routes/{route}/messages:reschedule", params(("route" = String, Path)), request_body = BulkBody, responses((status = 200, body = BulkReport), (status = "default", body = Problem)))]
pub(super) async fn reschedule(
    api: State<ChangeApi>,
    actor: Extension<Actor>,
    PathParams(route): PathParams<String>,
    body: Bytes,
) -> Answer {
    change(api, actor, &route, BulkAction::Reschedule, &body).await
}

/// Delivers the waiting messages that meet the conditions now
///
/// Otherwise as a cancel.
#[utoipa::path(post, path = "/v1/routes/{route}/messages:fire", params(("route" = String, Path)), request_body = BulkBody, responses((status = 200, body = BulkReport), (status = "default", body = Problem)))]
pub(super) async fn fire(
    api: State<ChangeApi>,
    actor: Extension<Actor>,
    PathParams(route): PathParams<String>,
    body: Bytes,
) -> Answer {
    change(api, actor, &route, BulkAction::Fire, &body).await
}

/// Cancels all waiting messages of a route
///
/// The same as a cancel without a condition. The messages without an id stay, unless the route has `change_by_origin`.
#[utoipa::path(post, path = "/v1/routes/{route}:purge", params(("route" = String, Path)), request_body = BulkBody, responses((status = 200, body = BulkReport), (status = "default", body = Problem)))]
pub(super) async fn purge(
    api: State<ChangeApi>,
    actor: Extension<Actor>,
    PathParams(route): PathParams<String>,
    body: Bytes,
) -> Answer {
    change(api, actor, &route, BulkAction::Purge, &body).await
}
