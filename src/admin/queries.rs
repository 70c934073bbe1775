//! `/pending` and `/ledger`: what waits, and what became of the rest, for the commands beside a service that has the store to itself. The questions are put to a loop of its own, so
//! that a slow survey holds no probe back; few may be under way, and each has its time.

use crate::clock::Clock;
use crate::limit::{ADMIN_QUERIES_MAX, ADMIN_QUERY_TIMEOUT};
use crate::store::Error;
use crate::store::query::{QueryContext, StoreQuery, find_id, ledger_report, pending_report};
use crate::task::StopToken;
use axum::Router;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;
use std::rc::Rc;
use tokio::sync::{mpsc, oneshot};

/// One question, and where its answer goes.
pub(crate) struct QueryCall {
    query: Query,
    reply: oneshot::Sender<Result<String, Error>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Query {
    /// For the ledgers, not for what waits.
    is_of_ledger: bool,
    id: Option<String>,
    route: Option<String>,
}

/// The way from the endpoint to [`serve`].
pub(crate) fn channel() -> (mpsc::Sender<QueryCall>, mpsc::Receiver<QueryCall>) {
    mpsc::channel(ADMIN_QUERIES_MAX)
}

/// Answers one question after the other, each by a survey that `connect` makes for it, until `token` is cancelled.
pub(crate) async fn serve(
    mut questions: mpsc::Receiver<QueryCall>,
    known: QueryContext,
    clock: impl Clock,
    connect: impl AsyncFn() -> Result<Rc<dyn StoreQuery>, Error>,
    token: StopToken,
) {
    while let Some(Some(QueryCall {
        query: ask,
        mut reply,
    })) = token.run_until_cancelled(questions.recv()).await
    {
        let answer = async {
            let survey = connect().await?;
            answer(&*survey, &known, &ask, &clock).await
        };
        // Reads only: all three are safe to drop.
        tokio::select! {
            biased;
            () = token.cancelled() => return,
            () = reply.closed() => {}
            outcome = answer => drop(reply.send(outcome)),
        }
    }
}

async fn answer(
    survey: &dyn StoreQuery,
    known: &QueryContext,
    ask: &Query,
    clock: &impl Clock,
) -> Result<String, Error> {
    let route = ask.route.as_deref();
    let document = match &ask.id {
        _ if ask.is_of_ledger => {
            serde_json::to_string(&ledger_report(survey, known, route, clock.now()).await?)
        }
        Some(id) => serde_json::to_string(&find_id(survey, known, (id, route), clock.now()).await?),
        None => serde_json::to_string(&pending_report(survey, known, route, clock.now()).await?),
    };
    Ok(document.expect("numbers, texts and lists of them"))
}

pub(super) fn router(questions: mpsc::Sender<QueryCall>) -> Router {
    let handle = move |is_of_ledger| {
        let questions = questions.clone();
        move |RawQuery(query): RawQuery| {
            let questions = questions.clone();
            async move {
                respond(
                    &questions,
                    Query::parse(query.as_deref().unwrap_or_default(), is_of_ledger),
                )
                .await
            }
        }
    };
    Router::new()
        .route("/pending", get(handle(false)))
        .route("/ledger", get(handle(true)))
}

async fn respond(questions: &mpsc::Sender<QueryCall>, ask: Option<Query>) -> Response {
    let Some(ask) = ask else {
        return error_response(
            StatusCode::BAD_REQUEST,
            "it takes route=ROUTE, /pending also id=ID, each at most once, and nothing else",
        );
    };
    let (reply, answer) = oneshot::channel();
    if questions.try_send(QueryCall { query: ask, reply }).is_err() {
        return error_response(
            StatusCode::SERVICE_UNAVAILABLE,
            "other questions about what waits are under way: ask again",
        );
    }
    match tokio::time::timeout(ADMIN_QUERY_TIMEOUT, answer).await {
        Ok(Ok(Ok(document))) => (
            StatusCode::OK,
            [(CONTENT_TYPE, "application/json")],
            document,
        )
            .into_response(),
        Ok(Ok(Err(error))) => error_response(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        Ok(Err(_)) => error_response(StatusCode::SERVICE_UNAVAILABLE, "the service is ending"),
        Err(_) => error_response(
            StatusCode::GATEWAY_TIMEOUT,
            &format!(
                "the store has not answered for {} s",
                ADMIN_QUERY_TIMEOUT.as_secs()
            ),
        ),
    }
}

fn error_response(status: StatusCode, error: &str) -> Response {
    (
        status,
        [(CONTENT_TYPE, "application/json")],
        json!({ "error": error }).to_string(),
    )
        .into_response()
}

impl Query {
    fn parse(query: &str, is_of_ledger: bool) -> Option<Self> {
        let mut ask = Self {
            is_of_ledger,
            ..Self::default()
        };
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let place = match &*name {
                "id" if !is_of_ledger => &mut ask.id,
                "route" => &mut ask.route,
                _ => return None,
            };
            if place.replace(value.into_owned()).is_some() {
                return None;
            }
        }
        Some(ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_an_id_or_a_route_or_nothing() {
        let ask = |id: Option<&str>, route: Option<&str>| {
            Some(Query {
                is_of_ledger: false,
                id: id.map(str::to_owned),
                route: route.map(str::to_owned),
            })
        };
        for (query, expected) in [
            ("", ask(None, None)),
            ("id=a%3Ab", ask(Some("a:b"), None)),
            ("route=orders&id=x", ask(Some("x"), Some("orders"))),
            ("id=a&id=b", None),
            ("ids=a", None),
        ] {
            assert_eq!(Query::parse(query, false), expected, "{query}");
        }
        assert_eq!(
            (
                Query::parse("id=a", true),
                Query::parse("route=a", true).is_some()
            ),
            (None, true)
        );
    }
}
