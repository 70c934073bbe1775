//! `/v1`: routes, waiting messages, workers and ledgers as JSON, with an OpenAPI description.

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

use super::audit;
use super::auth::Actor;
use super::bulk_api;
use super::change_api;
use super::dead_letters;
use super::pause_api;
use super::problem::Problem;
use super::queries::Queries;
use super::schedules;
use crate::limit::{SEARCH_CALLS_MAX, SEARCH_PAGE_MAX};
use crate::model::{Timestamp, parse_rfc3339};
use crate::store::query::{
    KeysReport, LedgerReport, MessageFilter, MessagePage, PendingReport, Query as StoreQuestion,
    Search, SearchPosition, WaitingMessage, WorkersReport,
};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::{IntoParams, OpenApi};

/// Messages in a page of a search without `limit`.
const PAGE_DEFAULT: usize = 100;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Postdate",
        description = "Waiting messages of a deployment. Counts are upper bounds: a stored batch counts until its last message is delivered."
    ),
    paths(
        routes,
        route,
        messages,
        message,
        workers,
        keys,
        ledger,
        audit::list,
        change_api::publish,
        change_api::cancel,
        change_api::reschedule,
        change_api::fire,
        change_api::outcome_of_change,
        bulk_api::cancel,
        bulk_api::reschedule,
        bulk_api::fire,
        bulk_api::purge,
        pause_api::pause_of,
        pause_api::pause,
        pause_api::resume,
        dead_letters::list,
        dead_letters::redrive,
        schedules::list,
        schedules::show::show,
        schedules::change_api::pause,
        schedules::change_api::resume,
        schedules::change_api::fire
    )
)]
struct Description;

pub(super) fn router(queries: Queries) -> Router {
    Router::new()
        .route("/v1/routes", get(routes))
        .route("/v1/routes/{route}", get(route))
        .route("/v1/routes/{route}/messages", get(messages))
        .route(
            "/v1/routes/{route}/messages/{partition}/{offset}",
            get(message),
        )
        .route("/v1/workers", get(workers))
        .route("/v1/keys", get(keys))
        .route("/v1/ledger", get(ledger))
        .route(
            "/v1/openapi.json",
            get(|| async { Json(Description::openapi()) }),
        )
        // The paths of version 0.1.0, kept for its clients.
        .route("/pending", get(pending))
        .route("/ledger", get(ledger))
        .with_state(queries)
}

/// A JSON document.
pub(super) struct Document(pub(super) String);

impl IntoResponse for Document {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}

/// The parameters of a request. A wrong one is a [`Problem`].
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let wrong = |error: QueryRejection| Problem::bad_request(error.body_text());
        let Query(params) = Query::from_request_parts(parts, state)
            .await
            .map_err(wrong)?;
        Ok(Self(params))
    }
}

/// The parts of a path. A wrong one is a [`Problem`].
pub(super) struct PathParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let wrong = |error: PathRejection| Problem::bad_request(error.body_text());
        let Path(path) = Path::from_request_parts(parts, state)
            .await
            .map_err(wrong)?;
        Ok(Self(path))
    }
}

/// Counts of waiting messages of all routes, by shard and by hour
#[utoipa::path(get, path = "/v1/routes", responses((status = 200, body = PendingReport), (status = "default", body = Problem)))]
async fn routes(State(queries): State<Queries>) -> Result<Document, Problem> {
    let query = StoreQuestion::Pending { route: None };
    queries.document(query).await.map(Document)
}

/// The same for one route
#[utoipa::path(get, path = "/v1/routes/{route}", params(("route" = String, Path)), responses((status = 200, body = PendingReport), (status = "default", body = Problem)))]
async fn route(
    State(queries): State<Queries>,
    PathParams(route): PathParams<String>,
) -> Result<Json<PendingReport>, Problem> {
    queries.route(&route).await.map(Json)
}

impl Queries {
    pub(super) async fn route(&self, route: &str) -> Result<PendingReport, Problem> {
        let report: PendingReport = self
            .report(StoreQuestion::Pending {
                route: Some(route.to_owned()),
            })
            .await?;
        if report.routes.is_empty() {
            let text = format!("neither the configuration nor the store has a route {route:?}");
            return Err(Problem::not_found(text));
        }
        Ok(report)
    }

    /// Searches for one message, with its headers and the time of the answer.
    pub(super) async fn message(
        &self,
        route: &str,
        (partition, offset): (i32, u64),
        topic: Option<String>,
        with_copy: bool,
    ) -> Result<(Timestamp, WaitingMessage), Problem> {
        let mut search = Search {
            filter: MessageFilter {
                route: route.to_owned(),
                topic,
                partition: Some(partition),
                offset: Some(offset),
                ..MessageFilter::default()
            },
            limit: 1,
            after: None,
            is_detailed: true,
            with_copies: with_copy,
        };
        for _ in 0..SEARCH_CALLS_MAX {
            let query = StoreQuestion::Messages(Box::new(search.clone()));
            let page: MessagePage = self.report(query).await?;
            if let Some(message) = page.items.into_iter().next() {
                return Ok((Timestamp::from_millis(page.at_ms), message));
            }
            let after = page.after.filter(|_| page.more);
            let Some(after) = after.and_then(|after| SearchPosition::from_token(route, &after))
            else {
                let text = "no such message waits: it was delivered, cancelled, replaced, or not stored yet";
                return Err(Problem::not_found(text));
            };
            search.after = Some(after);
        }
        let text = "the search took too long: look for the message by its id or its due time";
        Err(Problem::unavailable(text))
    }
}

/// A filter of waiting messages
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessagesParams {
    /// The earliest due time: RFC 3339, or milliseconds since 1970
    pub(crate) due_from: Option<String>,
    /// The latest due time
    pub(crate) due_to: Option<String>,
    /// The `postdate-id`
    pub(crate) id: Option<String>,
    /// The key of the record
    pub(crate) key: Option<String>,
    /// A header as `name:value`
    pub(crate) header: Option<String>,
    /// The source topic
    pub(crate) topic: Option<String>,
    /// The source partition
    pub(crate) partition: Option<String>,
    /// The source offset
    pub(crate) offset: Option<u64>,
    /// Adds headers, and payloads if `admin.payloads` is `shown`
    pub(crate) details: Option<bool>,
    /// Messages in the answer, 1 to 1,000; default 100
    pub(crate) limit: Option<usize>,
    /// The `after` of the page before
    pub(crate) after: Option<String>,
}

impl MessagesParams {
    /// An empty value is an absent one, as forms send it.
    pub(crate) fn search(&self, route: &str) -> Result<Search, Problem> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let header = given(&self.header).map(|text| {
            let pair = text.split_once(':');
            let pair = pair.map(|(name, value)| (name.to_owned(), value.trim_start().to_owned()));
            pair.ok_or_else(|| Problem::bad_request("header: write name:value"))
        });
        let partition = given(&self.partition).map(|text| {
            let partition = text.parse();
            partition.map_err(|_| Problem::bad_request("partition: write a number"))
        });
        let after = given(&self.after).map(|token| {
            let position = SearchPosition::from_token(route, &token);
            position.ok_or_else(|| Problem::bad_request("after: no page gave this value"))
        });
        Ok(Search {
            filter: MessageFilter {
                route: route.to_owned(),
                topic: given(&self.topic),
                partition: partition.transpose()?,
                offset: self.offset,
                due_from: instant("due_from", given(&self.due_from))?,
                due_to: instant("due_to", given(&self.due_to))?,
                id: given(&self.id),
                key: given(&self.key),
                header: header.transpose()?,
            },
            limit: self.limit.unwrap_or(PAGE_DEFAULT).clamp(1, SEARCH_PAGE_MAX),
            after: after.transpose()?,
            is_detailed: self.details == Some(true),
            with_copies: false,
        })
    }
}

/// Accepts also `2027-01-31T09:00` in UTC, as a form of a browser sends it.
pub(super) fn instant(name: &str, text: Option<String>) -> Result<Option<Timestamp>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let millis = text.parse().ok().map(Timestamp::from_millis);
    let instant = millis
        .or_else(|| parse_rfc3339(&text))
        .or_else(|| parse_rfc3339(&format!("{text}Z")))
        .or_else(|| parse_rfc3339(&format!("{text}:00Z")));
    let wrong = || {
        let text = format!("{name}: write a time like 2027-01-31T09:00:00Z, or milliseconds");
        Problem::bad_request(text)
    };
    instant.ok_or_else(wrong).map(Some)
}

/// Waiting messages by due time, id, key or header
///
/// Reads at most 2,000 stored batches, for 200 ms. If `more` is true, `after` continues the search.
/// A message may be missing or repeated if the timer merges batches between two calls.
#[utoipa::path(get, path = "/v1/routes/{route}/messages", params(("route" = String, Path), MessagesParams), responses((status = 200, body = MessagePage), (status = "default", body = Problem)))]
async fn messages(
    State(queries): State<Queries>,
    Extension(actor): Extension<Actor>,
    PathParams(route): PathParams<String>,
    Params(params): Params<MessagesParams>,
) -> Result<Json<MessagePage>, Problem> {
    let search = Box::new(params.search(&route)?);
    let filter = search.filter.clone();
    let page: MessagePage = queries.report(StoreQuestion::Messages(search)).await?;
    if page.items.is_empty() && !page.more {
        // Tells an unknown route from one in which nothing waits.
        queries.route(&route).await?;
    }
    actor.audit_payloads(&filter, &page.items);
    Ok(Json(page))
}

/// The topic of a message, for a route with several
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MessageParams {
    /// The source topic
    pub(super) topic: Option<String>,
}

/// One waiting message with its headers, and with its payload if `admin.payloads` is `shown`
#[utoipa::path(get, path = "/v1/routes/{route}/messages/{partition}/{offset}", params(("route" = String, Path), ("partition" = i32, Path), ("offset" = u64, Path), MessageParams), responses((status = 200, body = WaitingMessage), (status = "default", body = Problem)))]
async fn message(
    State(queries): State<Queries>,
    Extension(actor): Extension<Actor>,
    PathParams((route, partition, offset)): PathParams<(String, i32, u64)>,
    Params(params): Params<MessageParams>,
) -> Result<Json<WaitingMessage>, Problem> {
    let message = queries.message(&route, (partition, offset), params.topic, false);
    let (_, message) = message.await?;
    actor.audit_payload(&route, &message);
    Ok(Json(message))
}

/// The workers of the deployment
#[utoipa::path(get, path = "/v1/workers", responses((status = 200, body = WorkersReport), (status = "default", body = Problem)))]
async fn workers(State(queries): State<Queries>) -> Result<Document, Problem> {
    queries.document(StoreQuestion::Workers).await.map(Document)
}

/// What still uses each encryption key
#[utoipa::path(get, path = "/v1/keys", responses((status = 200, body = KeysReport), (status = "default", body = Problem)))]
async fn keys(State(queries): State<Queries>) -> Result<Document, Problem> {
    queries.document(StoreQuestion::Keys).await.map(Document)
}

/// The route of a report; absent: all routes
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RouteParams {
    /// The route
    pub(super) route: Option<String>,
}

/// The outcomes of all accepted messages, by shard
#[utoipa::path(get, path = "/v1/ledger", params(RouteParams), responses((status = 200, body = LedgerReport), (status = "default", body = Problem)))]
async fn ledger(
    State(queries): State<Queries>,
    Params(params): Params<RouteParams>,
) -> Result<Document, Problem> {
    let RouteParams { route } = params;
    let query = StoreQuestion::Ledger { route };
    queries.document(query).await.map(Document)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct PendingParams {
    id: Option<String>,
    route: Option<String>,
}

/// Answers with a [`PendingReport`], or with an [`IdSearch`] for an id.
async fn pending(
    State(queries): State<Queries>,
    Params(params): Params<PendingParams>,
) -> Result<Document, Problem> {
    let PendingParams { id, route } = params;
    let query = match id {
        Some(id) => StoreQuestion::Message { id, route },
        None => StoreQuestion::Pending { route },
    };
    queries.document(query).await.map(Document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fuzz::fuzz;

    fn parse<T: DeserializeOwned>(query: &str) -> Option<T> {
        let uri = format!("/x?{query}").parse().ok()?;
        Query::try_from_uri(&uri).ok().map(|Query(params)| params)
    }

    #[test]
    fn a_pending_query_takes_an_id_and_a_route() {
        let params = |id: Option<&str>, route: Option<&str>| {
            let (id, route) = (id.map(str::to_owned), route.map(str::to_owned));
            Some(PendingParams { id, route })
        };
        for (query, expected) in [
            ("", params(None, None)),
            ("route=a", params(None, Some("a"))),
            ("id=a%3Ab", params(Some("a:b"), None)),
            ("route=orders&id=x", params(Some("x"), Some("orders"))),
            ("id=a&id=b", None),
            ("ids=a", None),
        ] {
            assert_eq!(parse::<PendingParams>(query), expected, "{query}");
        }
        assert_eq!(parse::<RouteParams>("id=a"), None);
    }

    #[test]
    fn a_filter_names_its_wrong_part() {
        let detail = |query: &str| {
            let params: MessagesParams = parse(query).unwrap();
            params.search("orders").unwrap_err().detail
        };
        assert!(detail("due_from=tomorrow").starts_with("due_from: "));
        assert!(detail("header=name").starts_with("header: "));
        assert!(detail("partition=a").starts_with("partition: "));
        assert!(detail("after=a").starts_with("after: "));
        let params: MessagesParams =
            parse("due_from=2027-01-31T09:00&due_to=&header=type:+mail&limit=5000").unwrap();
        let search = params.search("orders").unwrap();
        assert_eq!(
            search.filter.due_from,
            parse_rfc3339("2027-01-31T09:00:00Z")
        );
        assert_eq!(search.filter.due_to, None);
        let header = Some(("type".to_owned(), "mail".to_owned()));
        assert_eq!(search.filter.header, header);
        assert_eq!(search.limit, SEARCH_PAGE_MAX);
    }

    #[test]
    fn fuzz_filters() {
        let seeds = [
            "id=a%20b&due_from=2027-01-31T09:00:00Z&limit=3",
            "header=a:b&after=MSAyIDMgNCA1IDYgdA",
            "id=1&id=2",
        ];
        fuzz(&seeds, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if let Some(params) = parse::<MessagesParams>(&text) {
                let _ = params.search("orders");
            }
            let _ = parse::<PendingParams>(&text);
        });
    }

    #[test]
    fn the_description_names_every_path() {
        let description = serde_json::to_value(Description::openapi()).unwrap();
        assert_eq!(description["openapi"], "3.1.0");
        let paths = description["paths"].as_object().unwrap();
        let described: Vec<_> = paths.keys().map(String::as_str).collect();
        assert_eq!(described.len(), 26, "{described:?}");
        let schemas = description["components"]["schemas"].as_object().unwrap();
        for name in ["MessagePage", "PendingReport", "AuditReport", "Problem"] {
            assert!(schemas.contains_key(name), "{name}");
        }
    }
}
