//! `/healthz` and `/readyz`: the health parts of the process, as a status and a JSON body.

use crate::health::{Health, HealthProblem};
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;

pub(super) fn router(health: Health) -> Router {
    let (alive, ready) = (health.clone(), health);
    Router::new()
        .route(
            "/healthz",
            get(async move || answer("alive", &alive.not_alive(), &[])),
        )
        .route(
            "/readyz",
            get(async move || answer("ready", &ready.not_ready(), &ready.degraded())),
        )
}

/// `degraded` is added only if it is not empty. It does not change the status.
fn answer(word: &str, complaints: &[HealthProblem], degraded: &[HealthProblem]) -> Response {
    let status = if complaints.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut body = json!({ word: complaints.is_empty(), "reasons": complaints });
    if !degraded.is_empty() {
        body["degraded"] = json!(degraded);
    }
    (
        status,
        [(CONTENT_TYPE, "application/json")],
        body.to_string(),
    )
        .into_response()
}
