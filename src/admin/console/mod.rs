//! The console: pages for people, rendered on the server. They need no JavaScript, and work behind any
//! path prefix because all links are relative.
//!
//! | file | pages |
//! |---|---|
//! | `overview` | `/` and `/routes/{route}` |
//! | `pause` | pause and resume of a route |
//! | `messages` | the search, one message, and the search by id in all routes |
//! | `bulk` | a change of many messages |
//! | `dead_letters` | dead letters by code, and their redrive |
//! | `schedules` | the schedules of a recurring route, and one of them with its changes |
//! | `fleet` | workers with shards, and the ledger |
//! | `audit` | the audit list |
//! | `session` | the login page and its cookie |
//! | `frame` | what all pages have in common |
//! | `chart`, `lateness` | charts as SVG, and a figure from the metrics |

mod audit;
mod bulk;
mod chart;
mod dead_letters;
mod fleet;
mod frame;
mod lateness;
mod messages;
mod overview;
mod pause;
mod schedules;
mod session;

use super::RenderMetrics;
use super::change_api::ChangeApi;
use super::dead_letters::DeadLetters;
use super::queries::Queries;
use super::schedules::Schedules;
use crate::health::Health;
use axum::Router;
use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
pub(super) use session::{login_router, to_login};
use std::collections::BTreeSet;
use std::sync::Arc;

const STYLE: &[u8] = include_bytes!("console.css");
const SCRIPT: &[u8] = include_bytes!("console.js");

/// Permits files of this host only. Forbids inline scripts, and frames around a page.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Names of the deployment on each page.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConsoleOptions {
    pub(crate) deployment: String,
    pub(crate) environment: Option<String>,
    /// A class of the style sheet.
    pub(crate) colour: &'static str,
    /// The routes that have schedules.
    pub(crate) recurring: BTreeSet<String>,
}

#[derive(Clone)]
struct Console {
    options: Arc<ConsoleOptions>,
    queries: Queries,
    changes: ChangeApi,
    dead_letters: DeadLetters,
    schedules: Schedules,
    health: Health,
    render_metrics: RenderMetrics,
}

pub(super) fn router(
    options: ConsoleOptions,
    changes: ChangeApi,
    (dead_letters, schedules): (DeadLetters, Schedules),
    health: Health,
    render_metrics: RenderMetrics,
) -> Router {
    let console = Console {
        options: Arc::new(options),
        queries: changes.queries.clone(),
        changes,
        dead_letters,
        schedules,
        health,
        render_metrics,
    };
    Router::new()
        .route("/", get(overview::overview))
        .route("/routes/{route}", get(overview::route))
        .route("/routes/{route}/pause", post(pause::pause))
        .route("/routes/{route}/resume", post(pause::resume))
        .route("/routes/{route}/messages", get(messages::list))
        .route(
            "/routes/{route}/messages/{partition}/{offset}",
            get(messages::show),
        )
        .route(
            "/routes/{route}/messages/{partition}/{offset}/{action}",
            post(messages::change),
        )
        .route("/routes/{route}/messages/change", post(bulk::change))
        .route("/routes/{route}/dead-letters", get(dead_letters::list))
        .route(
            "/routes/{route}/dead-letters/redrive",
            post(dead_letters::redrive),
        )
        .route("/routes/{route}/schedules", get(schedules::list))
        .route("/routes/{route}/schedules/{id}", get(schedules::show))
        .route(
            "/routes/{route}/schedules/{id}/{action}",
            post(schedules::change),
        )
        .route("/find", get(messages::find))
        .route("/workers", get(fleet::workers))
        .route("/ledgers", get(fleet::ledger))
        .route("/audit", get(audit::list))
        .method_not_allowed_fallback(frame::wrong_method)
        .fallback(frame::unknown_path)
        .with_state(console)
}

/// Adds headers to all answers that tell browsers what they may do with them.
pub(super) fn with_policy(router: Router) -> Router {
    router.layer(from_fn(|request: Request, next: Next| async {
        let mut response = next.run(request).await;
        let headers = response.headers_mut();
        for (name, value) in [
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "same-origin"),
            (CACHE_CONTROL, "no-store"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }))
}

fn asset(kind: &'static str, bytes: &'static [u8]) -> Response {
    ([(CONTENT_TYPE, kind)], bytes).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_and_script_stay_small() {
        assert!(STYLE.len() <= 16 * 1024 && SCRIPT.len() <= 8 * 1024);
    }
}
