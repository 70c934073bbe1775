//! `/pending` and `/ledger`: counts of waiting and finished messages, for commands beside a service
//! that owns the embedded store. A thread of its own answers, so that a slow query delays no probe.
//! The queue is bounded, and each query has a timeout.

use super::{error_response, json_response};
use crate::clock::Clock;
use crate::limit::{ADMIN_QUERIES_MAX, ADMIN_QUERY_TIMEOUT};
use crate::store::Error;
use crate::store::query::{Query, QueryContext, StoreQuery};
use crate::task::StopToken;
use axum::Router;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use std::rc::Rc;
use tokio::sync::{mpsc, oneshot};

/// A query, and where its answer goes.
pub(crate) struct QueryCall {
    query: Query,
    reply: oneshot::Sender<Result<String, Error>>,
}

/// The bounded queue from the endpoint to [`serve`].
pub(crate) fn channel() -> (mpsc::Sender<QueryCall>, mpsc::Receiver<QueryCall>) {
    mpsc::channel(ADMIN_QUERIES_MAX)
}

/// Answers one query after the other until `stop` is cancelled. Each uses a new connection.
pub(crate) async fn serve(
    mut calls: mpsc::Receiver<QueryCall>,
    context: QueryContext,
    clock: impl Clock,
    connect: impl AsyncFn() -> Result<Rc<dyn StoreQuery>, Error>,
    stop: StopToken,
) {
    while let Some(Some(QueryCall { query, mut reply })) =
        stop.run_until_cancelled(calls.recv()).await
    {
        let answer = async {
            let store = connect().await?;
            query.answer(&*store, &context, clock.now()).await
        };
        // Safe to drop: a query only reads.
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = reply.closed() => {}
            outcome = answer => drop(reply.send(outcome)),
        }
    }
}

pub(super) fn router(calls: mpsc::Sender<QueryCall>) -> Router {
    let handle = move |parse: fn(&str) -> Option<Query>| {
        let calls = calls.clone();
        move |RawQuery(query): RawQuery| {
            let calls = calls.clone();
            async move { respond(&calls, parse(query.as_deref().unwrap_or_default())).await }
        }
    };
    Router::new()
        .route("/pending", get(handle(parse_pending)))
        .route("/ledger", get(handle(parse_ledger)))
}

fn parse_pending(query: &str) -> Option<Query> {
    let [id, route] = parameters(query, ["id", "route"])?;
    Some(match id {
        Some(id) => Query::Message { id, route },
        None => Query::Pending { route },
    })
}

fn parse_ledger(query: &str) -> Option<Query> {
    let [route] = parameters(query, ["route"])?;
    Some(Query::Ledger { route })
}

/// The values of the named parameters. `None` if there is another one, or one occurs twice.
fn parameters<const N: usize>(query: &str, names: [&str; N]) -> Option<[Option<String>; N]> {
    let mut values = [const { None }; N];
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let index = names.iter().position(|known| *known == name)?;
        if values[index].replace(value.into_owned()).is_some() {
            return None;
        }
    }
    Some(values)
}

async fn respond(calls: &mpsc::Sender<QueryCall>, query: Option<Query>) -> Response {
    let Some(query) = query else {
        return error_response(
            StatusCode::BAD_REQUEST,
            "unknown or repeated parameter: /pending takes route=ROUTE and id=ID, /ledger route=ROUTE",
        );
    };
    let (reply, answer) = oneshot::channel();
    if calls.try_send(QueryCall { query, reply }).is_err() {
        return error_response(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many queries at once: try again",
        );
    }
    match tokio::time::timeout(ADMIN_QUERY_TIMEOUT, answer).await {
        Ok(Ok(Ok(document))) => json_response(StatusCode::OK, document),
        Ok(Ok(Err(error))) => error_response(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        Ok(Err(_)) => error_response(StatusCode::SERVICE_UNAVAILABLE, "the service is stopping"),
        Err(_) => {
            let error = format!(
                "no answer from the store within {} s",
                ADMIN_QUERY_TIMEOUT.as_secs()
            );
            error_response(StatusCode::GATEWAY_TIMEOUT, &error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fuzz::fuzz;

    #[test]
    fn a_pending_query_takes_an_id_and_a_route() {
        let text = |text: &str| Some(text.to_owned());
        let message = |id: &str, route| {
            Some(Query::Message {
                id: id.to_owned(),
                route,
            })
        };
        for (query, expected) in [
            ("", Some(Query::Pending { route: None })),
            ("route=a", Some(Query::Pending { route: text("a") })),
            ("id=a%3Ab", message("a:b", None)),
            ("route=orders&id=x", message("x", text("orders"))),
            ("id=a&id=b", None),
            ("ids=a", None),
        ] {
            assert_eq!(parse_pending(query), expected, "{query}");
        }
    }

    #[test]
    fn fuzz_queries() {
        let seeds = ["id=a%20b&route=r", "route=%F0%9F&id=", "id=1&id=2", "a=b"];
        fuzz(&seeds, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let _ = (parse_pending(&text), parse_ledger(&text));
        });
    }

    #[test]
    fn a_ledger_query_takes_a_route_only() {
        assert_eq!(parse_ledger("id=a"), None);
        let route = Some("a".to_owned());
        assert_eq!(parse_ledger("route=a"), Some(Query::Ledger { route }));
    }
}
