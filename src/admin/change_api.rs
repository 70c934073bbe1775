//! Changes under `/v1`: publish a message, and cancel one.

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

use super::api::{Document, MessageParams, Params, PathParams};
use super::auth::Actor;
use super::changes::{Change, ChangeKind, Changes};
use super::problem::Problem;
use super::queries::Queries;
use crate::limit::{ADMIN_OUTCOME_INTERVAL, ADMIN_OUTCOME_TIMEOUT, ADMIN_PAYLOAD_BYTES_MAX};
use crate::model::header_name::{ControlHeader, SUBJECT};
use crate::model::{Cursor, Offset, Partition, ShardId, Timestamp};
use crate::store::query::{
    CancelOutcome, CancelQuery, FoundMessage, IdSearch, Query, WaitingMessage,
};
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;

#[derive(Clone)]
pub(super) struct ChangeApi {
    pub(super) queries: Queries,
    pub(super) changes: Changes,
}

pub(super) fn router(api: ChangeApi) -> Router {
    Router::new()
        .route("/v1/routes/{route}/messages", post(publish))
        .route(
            "/v1/routes/{route}/messages/{partition}/{offset}",
            post(post_action),
        )
        .with_state(api)
}

/// Publishes a message to the source of the route, as a producer does
///
/// The body is the payload. `postdate-after`, `postdate-at`, `postdate-id` and `postdate-to` are the headers of the
/// message contract. `content-type` and `ce-*` become headers of the message. Answers when the broker has acknowledged the record.
#[utoipa::path(post, path = "/v1/routes/{route}/messages", params(("route" = String, Path), ("topic" = Option<String>, Query), ("subject" = Option<String>, Query), ("partition" = Option<i32>, Query), ("key" = Option<String>, Query), ("header" = Option<Vec<String>>, Query, description = "name:value, may be repeated")), responses((status = 201, description = "the place of the record, its origin and its due time"), (status = "default", body = Problem)))]
pub(super) async fn publish(
    State(api): State<ChangeApi>,
    Extension(actor): Extension<Actor>,
    PathParams(route): PathParams<String>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<(StatusCode, Document), Problem> {
    let (head, body) = request.into_parts();
    let mut change = draft(route, &query.unwrap_or_default(), &head.headers)?;
    // Only an operator makes the process hold a payload.
    if actor.may_change() {
        let payload = axum::body::to_bytes(body, ADMIN_PAYLOAD_BYTES_MAX).await;
        let payload = payload.map_err(|_| {
            let text = format!(
                "the payload is incomplete, or has more than {ADMIN_PAYLOAD_BYTES_MAX} bytes"
            );
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, text)
        });
        if let ChangeKind::Publish { payload: slot, .. } = &mut change.kind {
            *slot = Some(payload?.to_vec());
        }
    }
    if change.partition.is_none() && actor.may_change() {
        change.partition = api.partition_of_id(&change).await?;
    }
    let receipt = api.changes.write(actor, change).await?;
    Ok((StatusCode::CREATED, Document(receipt)))
}

impl ChangeApi {
    /// The partition of the message that waits under the id, so that the new one replaces it. `None`:
    /// the key chooses the partition.
    async fn partition_of_id(&self, change: &Change) -> Result<Option<i32>, Problem> {
        let Some(id) = &change.id else {
            return Ok(None);
        };
        let query = Query::Message {
            id: id.clone(),
            route: Some(change.route.clone()),
        };
        let search: IdSearch = self.queries.report(query).await?;
        let topic = change.topic.as_deref();
        let is_here = |place: &&FoundMessage| topic.is_none_or(|topic| topic == place.topic);
        let mut found = search.found.iter().filter(is_here);
        Ok(found.next().map(|place| place.partition))
    }
}

/// The record of a request, without its payload.
fn draft(route: String, query: &str, headers: &HeaderMap) -> Result<Change, Problem> {
    let mut change = Change {
        route,
        ..Change::default()
    };
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let value = value.into_owned();
        match &*name {
            "topic" => change.topic = Some(value),
            "subject" => change.subject = Some(value),
            "key" => change.key = Some(value),
            "partition" => {
                let partition = value.parse();
                let wrong = |_| Problem::bad_request("partition: write a number");
                change.partition = Some(partition.map_err(wrong)?);
            }
            "header" => {
                let pair = value.split_once(':');
                let wrong = || Problem::bad_request("header: write name:value");
                let (name, value) = pair.ok_or_else(wrong)?;
                let is_control = name.to_ascii_lowercase().starts_with("postdate-");
                if name.is_empty() || name.contains('=') || is_control {
                    return Err(not_published(name));
                }
                change
                    .headers
                    .push((name.to_owned(), value.trim_start().to_owned()));
            }
            _ => return Err(Problem::bad_request(format!("unknown parameter {name}"))),
        }
    }
    let (mut after, mut at) = (None, None);
    for (name, value) in headers {
        let name = name.as_str();
        let is_content = name == "content-type" || name.starts_with("ce-");
        if !is_content && !name.starts_with("postdate-") {
            continue;
        }
        let wrong = |_| Problem::bad_request(format!("{name}: write text"));
        let value = value.to_str().map_err(wrong)?.to_owned();
        let slot = [
            (ControlHeader::After, &mut after),
            (ControlHeader::At, &mut at),
            (ControlHeader::Id, &mut change.id),
            (ControlHeader::To, &mut change.to),
        ];
        match slot.into_iter().find(|(control, _)| control.name() == name) {
            Some((_, slot)) => *slot = Some(value),
            None if is_content => change.headers.push((name.to_owned(), value)),
            None => return Err(not_published(name)),
        }
    }
    change.kind = ChangeKind::Publish {
        after,
        at,
        payload: None,
    };
    Ok(change)
}

fn not_published(name: &str) -> Problem {
    Problem::bad_request(format!("the header {name:?} cannot be published here"))
}

/// The outcome of a cancel.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct CancelReceipt {
    pub(super) outcome: CancelOutcome,
    /// The offset of the cancel record in the source. Absent if the broker reports none.
    offset: Option<u64>,
}

async fn post_action(
    State(api): State<ChangeApi>,
    Extension(actor): Extension<Actor>,
    PathParams((route, partition, action)): PathParams<(String, i32, String)>,
    Params(params): Params<MessageParams>,
) -> Result<(StatusCode, Json<CancelReceipt>), Problem> {
    let offset = action
        .strip_suffix(":cancel")
        .and_then(|offset| offset.parse().ok());
    let offset = offset.ok_or_else(|| Problem::not_found("unknown action: use OFFSET:cancel"))?;
    cancel(State(api), actor, (route, partition, offset), params).await
}

/// Cancels the waiting message by its id
///
/// Writes a cancel record to the partition of the message, and waits some seconds for the outcome. 202: the record is in
/// the source, and was not read yet. A message without an id cannot be cancelled in this version.
#[utoipa::path(post, path = "/v1/routes/{route}/messages/{partition}/{offset}:cancel", params(("route" = String, Path), ("partition" = i32, Path), ("offset" = u64, Path), MessageParams), responses((status = 200, body = CancelReceipt), (status = 202, body = CancelReceipt), (status = "default", body = Problem)))]
pub(super) async fn cancel(
    State(api): State<ChangeApi>,
    actor: Actor,
    (route, partition, offset): (String, i32, u64),
    params: MessageParams,
) -> Result<(StatusCode, Json<CancelReceipt>), Problem> {
    let message = api
        .queries
        .message(&route, (partition, offset), params.topic);
    let (_, message) = message.await?;
    if message.in_flight {
        let text = "the message is being sent: it is too late";
        return Err(Problem::new(StatusCode::CONFLICT, text));
    }
    let Some(id) = message.id.clone() else {
        let text = "the message has no id, so no record can cancel it in this version";
        return Err(Problem::new(StatusCode::CONFLICT, text));
    };
    let change = Change {
        route: route.clone(),
        topic: Some(message.topic.clone()),
        subject: header(&message, SUBJECT),
        partition: Some(partition),
        id: Some(id),
        ..Change::default()
    };
    let written = api.changes.write(actor, change).await?;
    let Written { offset } = serde_json::from_str(&written).unwrap_or_default();
    let outcome = outcome(&api.queries, &route, &message, offset).await;
    let status = match outcome {
        CancelOutcome::Pending => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    Ok((status, Json(CancelReceipt { outcome, offset })))
}

#[derive(Default, Deserialize)]
struct Written {
    offset: Option<u64>,
}

fn header(message: &WaitingMessage, name: &str) -> Option<String> {
    let mut headers = message.headers.iter().flatten();
    headers.find(|header| header.name == name)?.value.clone()
}

/// Waits for `ADMIN_OUTCOME_TIMEOUT` until the cancel was read. It was written, so an unknown outcome is
/// a pending one.
async fn outcome(
    queries: &Queries,
    route: &str,
    message: &WaitingMessage,
    record: Option<u64>,
) -> CancelOutcome {
    let Some(record) = record else {
        return CancelOutcome::Pending;
    };
    let due = message
        .due_ms
        .map_or(Timestamp::AT_ONCE, Timestamp::from_millis);
    let partition = Partition::new(message.topic.as_str(), message.partition);
    let query = CancelQuery {
        shard: ShardId::new(route, partition),
        place: Cursor::new(due, Offset(message.offset)),
        record: Offset(record),
    };
    let end = Instant::now() + ADMIN_OUTCOME_TIMEOUT;
    loop {
        let asked = Query::Cancel(Box::new(query.clone()));
        let outcome: CancelOutcome = queries.report(asked).await.unwrap_or_default();
        if outcome != CancelOutcome::Pending || Instant::now() >= end {
            return outcome;
        }
        sleep(ADMIN_OUTCOME_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn drafted(query: &str, lines: &[(&'static str, &'static str)]) -> Result<Change, Problem> {
        let lines = lines.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        draft("orders".to_owned(), query, &lines.collect())
    }

    #[test]
    fn a_request_becomes_the_record_of_a_producer() {
        let lines = [
            ("host", "x"),
            ("content-type", "application/json"),
            ("ce-type", "reminder"),
            ("postdate-after", "30m"),
            ("postdate-id", "order-42"),
        ];
        let change = drafted("key=a%20b&partition=3&header=kind:+mail", &lines).unwrap();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            (change.key, change.id, change.partition),
            (text("a b"), text("order-42"), Some(3))
        );
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let headers = [
            pair("kind", "mail"),
            pair("content-type", "application/json"),
            pair("ce-type", "reminder"),
        ];
        assert_eq!(change.headers, headers);
        let (after, at, payload) = (text("30m"), None, None);
        assert_eq!(change.kind, ChangeKind::Publish { after, at, payload });
    }

    #[test]
    fn what_a_producer_must_not_send_is_refused() {
        for (query, lines) in [
            ("partition=x", &[][..]),
            ("header=name", &[]),
            ("header=postdate-op:cancel", &[]),
            ("header=Postdate-Id:a", &[]),
            ("header=a%3Db:c", &[]),
            ("keys=a", &[]),
            ("", &[("postdate-retry", "attempt=1")]),
        ] {
            let problem = drafted(query, lines).unwrap_err();
            assert_eq!(problem.status, 400, "{query} {lines:?}");
        }
    }
}
