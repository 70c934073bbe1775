//! Asks the store for the API and the console. A thread of its own asks, so that a slow query delays
//! no probe. The queue is bounded, and each query has a timeout.

use super::problem::Problem;
use crate::clock::Clock;
use crate::limit::{
    ADMIN_QUERIES_MAX, ADMIN_QUERY_TIMEOUT, ADMIN_REPORT_AGE_MAX, ADMIN_REPORTS_KEPT_MAX,
};
use crate::store::Error;
use crate::store::query::{Query, QueryContext, StoreQuery};
use crate::task::StopToken;
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// A query, and where its answer goes.
pub(crate) struct QueryCall {
    query: Query,
    reply: oneshot::Sender<Result<String, Error>>,
}

/// The sending side of the bounded queue to [`serve`].
#[derive(Clone)]
pub(crate) struct Queries(mpsc::Sender<QueryCall>);

pub(crate) fn channel() -> (Queries, mpsc::Receiver<QueryCall>) {
    let (calls, calls_in) = mpsc::channel(ADMIN_QUERIES_MAX);
    (Queries(calls), calls_in)
}

/// Answers one query after the other until `stop` is cancelled. Each uses a new connection.
pub(crate) async fn serve(
    mut calls: mpsc::Receiver<QueryCall>,
    context: QueryContext,
    clock: impl Clock,
    connect: impl AsyncFn() -> Result<Rc<dyn StoreQuery>, Error>,
    stop: StopToken,
) {
    let mut kept = KeptReports::default();
    while let Some(Some(QueryCall { query, mut reply })) =
        stop.run_until_cancelled(calls.recv()).await
    {
        let answer = async {
            if let Some(document) = kept.get(&query) {
                return Ok(document);
            }
            let store = connect().await?;
            let document = query.answer(&*store, &context, clock.now()).await?;
            kept.keep(query, &document);
            Ok(document)
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

/// The last reports, with the time until which they are answered again.
#[derive(Default)]
struct KeptReports(VecDeque<(Query, Instant, String)>);

impl KeptReports {
    fn get(&mut self, query: &Query) -> Option<String> {
        let now = Instant::now();
        self.0.retain(|(_, until, _)| *until > now);
        let found = self.0.iter().find(|(kept, _, _)| kept == query);
        found.map(|(_, _, document)| document.clone())
    }

    /// A search is not kept: two readers rarely have the same one. Nor is what a change waits for.
    fn keep(&mut self, query: Query, document: &str) {
        if matches!(
            query,
            Query::Messages(_) | Query::Change(_) | Query::Pause { .. }
        ) {
            return;
        }
        self.0.truncate(ADMIN_REPORTS_KEPT_MAX - 1);
        let until = Instant::now() + ADMIN_REPORT_AGE_MAX;
        self.0.push_front((query, until, document.to_owned()));
    }
}

impl Queries {
    /// The answer as a report.
    pub(super) async fn report<T: DeserializeOwned>(&self, query: Query) -> Result<T, Problem> {
        let document = self.document(query).await?;
        serde_json::from_str(&document).map_err(|error| {
            let text = format!("cannot read the answer: {error}");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, text)
        })
    }

    /// The answer as JSON.
    pub(super) async fn document(&self, query: Query) -> Result<String, Problem> {
        let (reply, answer) = oneshot::channel();
        if self.0.try_send(QueryCall { query, reply }).is_err() {
            return Err(Problem::busy("too many queries at once: try again"));
        }
        match tokio::time::timeout(ADMIN_QUERY_TIMEOUT, answer).await {
            Ok(Ok(Ok(document))) => Ok(document),
            Ok(Ok(Err(error))) => Err(Problem::unavailable(error.to_string())),
            Ok(Err(_)) => Err(Problem::unavailable("the service is stopping")),
            Err(_) => {
                let seconds = ADMIN_QUERY_TIMEOUT.as_secs();
                let text = format!("no answer from the store within {seconds} s");
                Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, text))
            }
        }
    }
}
