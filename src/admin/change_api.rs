//! Changes under `/v1`: publish a message, and change one that waits.

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

use super::api::{Document, Params, PathParams, instant};
use super::auth::Actor;
use super::changes::{Change, ChangeKind, Changes, Place, PublishAnswer, idempotency};
use super::message_change::Action;
use super::problem::Problem;
use super::queries::Queries;
use crate::limit::{
    ADMIN_OUTCOME_INTERVAL, ADMIN_OUTCOME_TIMEOUT, ADMIN_OUTCOME_TIMEOUT_MAX,
    ADMIN_PAYLOAD_BYTES_MAX,
};
use crate::model::header_name::ControlHeader;
use crate::model::{Cursor, Delay, Offset, Partition, ShardId, Timestamp, parse_after};
use crate::store::query::{
    AskedChange, ChangeOutcome, ChangeQuery, FoundMessage, IdSearch, Query, WorkersReport,
};
use axum::body::Bytes;
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use utoipa::{IntoParams, ToSchema};

#[derive(Clone)]
pub(super) struct ChangeApi {
    pub(super) queries: Queries,
    pub(super) changes: Changes,
    /// Its one permit is that of a call that changes many messages, and holds copies of them.
    pub(super) bulk_permit: Arc<Semaphore>,
}

pub(super) fn router(api: ChangeApi) -> Router {
    Router::new()
        .route("/v1/routes/{route}/messages", post(publish))
        .route(
            "/v1/routes/{route}/messages/{partition}/{offset}",
            post(post_action),
        )
        .route(
            "/v1/routes/{route}/changes/{request_id}",
            get(outcome_of_change),
        )
        .with_state(api)
}

/// Publishes a message to the source of the route, as a producer does
///
/// The body is the payload. `postdate-after`, `postdate-at`, `postdate-id` and `postdate-to` are the headers of the
/// message contract. `content-type` and `ce-*` become headers of the message. Answers when the broker has acknowledged the record.
/// With `Idempotency-Key`, a repeat within 24 hours gets the first answer with `Idempotent-Replayed: true`. 409: the first request has not ended, or
/// its answer cannot be read (code `idempotency_key_unreadable`).
/// 422 with the code `idempotency_key_reused`: the key was used for another request.
#[utoipa::path(post, path = "/v1/routes/{route}/messages", params(("route" = String, Path), ("topic" = Option<String>, Query), ("subject" = Option<String>, Query), ("partition" = Option<i32>, Query), ("key" = Option<String>, Query), ("header" = Option<Vec<String>>, Query, description = "name:value, may be repeated"), ("Idempotency-Key" = Option<String>, Header)), responses((status = 201, description = "the place of the record, its origin and its due time"), (status = "default", body = Problem)))]
pub(super) async fn publish(
    State(api): State<ChangeApi>,
    Extension(actor): Extension<Actor>,
    PathParams(route): PathParams<String>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<(StatusCode, HeaderMap, Document), Problem> {
    let (head, body) = request.into_parts();
    let query = query.unwrap_or_default();
    let name = idempotency::name_of(&head.headers, &route, &actor)?;
    let mut request = None;
    let mut change = draft(route, &query, &head.headers)?;
    if name.is_some() {
        let Change {
            topic,
            subject,
            key,
            id,
            to,
            ..
        } = &change;
        idempotency::check_texts(&[topic, subject, key, id, to])?;
    }
    // Only an operator makes the process hold a payload.
    if actor.may_change {
        let payload = axum::body::to_bytes(body, ADMIN_PAYLOAD_BYTES_MAX).await;
        let payload = payload.map_err(|_| {
            let text = format!(
                "the payload is incomplete, or has more than {ADMIN_PAYLOAD_BYTES_MAX} bytes"
            );
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, text)
        });
        let payload = payload?;
        request = name.map(|name| {
            let digest = idempotency::digest(&query, &head.headers, &payload);
            (name, digest)
        });
        if let ChangeKind::Publish { payload: slot, .. } = &mut change.kind {
            *slot = Some(payload.to_vec());
        }
    }
    if change.partition.is_none() && actor.may_change {
        change.partition = api.partition_of_id(&change).await?;
    }
    let written = api.changes.publish(&actor, change, request).await?;
    let PublishAnswer { receipt, is_repeat } = written;
    let mut headers = HeaderMap::new();
    if is_repeat {
        headers.insert(idempotency::REPLAYED, HeaderValue::from_static("true"));
    }
    Ok((StatusCode::CREATED, headers, Document(receipt)))
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

/// The outcome of a change.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ChangeReceipt {
    pub(super) outcome: ChangeOutcome,
    /// The offset of the record in the source. Null if the broker reports none.
    offset: Option<u64>,
    /// Asks for the outcome again. Null if the broker reports no offset.
    request_id: Option<String>,
}

impl ChangeReceipt {
    fn status(&self) -> StatusCode {
        match self.outcome {
            ChangeOutcome::Pending => StatusCode::ACCEPTED,
            _ => StatusCode::OK,
        }
    }
}

/// A change that was asked for. The id of a request is this document: the server keeps nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ChangeRequest {
    route: String,
    topic: String,
    partition: i32,
    /// The message.
    offset: u64,
    /// `None`: at once.
    due_ms: Option<i64>,
    /// The offset of the record.
    record: u64,
    change: AskedChange,
}

impl ChangeRequest {
    fn id(&self) -> String {
        let json = serde_json::to_vec(self).expect("it has only texts and numbers");
        BASE64_URL_SAFE_NO_PAD.encode(json)
    }

    fn of_id(id: &str) -> Option<Self> {
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(id).ok()?).ok()
    }

    fn query(&self) -> ChangeQuery {
        let due = self
            .due_ms
            .map_or(Timestamp::AT_ONCE, Timestamp::from_millis);
        let partition = Partition::new(self.topic.as_str(), self.partition);
        ChangeQuery {
            shard: ShardId::new(&*self.route, partition),
            place: Cursor::new(due, Offset(self.offset)),
            record: Offset(self.record),
            change: self.change,
        }
    }
}

/// A new due time. One of the two
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NewDue {
    /// RFC 3339, or milliseconds since 1970
    pub(crate) at: Option<String>,
    /// A delay from now, like `30m`
    #[serde(rename = "in")]
    pub(crate) delay: Option<String>,
}

impl NewDue {
    /// An empty value is an absent one, as forms send it.
    pub(crate) fn due(&self, now: Timestamp) -> Result<Timestamp, Problem> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let wrong = || Problem::bad_request("write the new due time as one of `at` and `in`");
        match (given(&self.at), given(&self.delay)) {
            (Some(at), None) => instant("at", Some(at))?.ok_or_else(wrong),
            (None, Some(delay)) => {
                let wrong = || Problem::bad_request("in: write a delay like 30m");
                let delay = parse_after(&delay).ok_or_else(wrong)?;
                Ok(now.plus(delay.as_duration()))
            }
            _ => Err(wrong()),
        }
    }
}

/// The body of a request as JSON. An empty one is the default.
pub(super) fn json<T: Default + DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    if body.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(format!("body: {error}")))
}

type Changed = Result<(StatusCode, Json<ChangeReceipt>), Problem>;

async fn post_action(
    State(api): State<ChangeApi>,
    Extension(actor): Extension<Actor>,
    PathParams((route, partition, action)): PathParams<(String, i32, String)>,
    Params(params): Params<ChangeParams>,
    body: Bytes,
) -> Changed {
    let unknown = || {
        let text = "unknown action: use OFFSET:cancel, OFFSET:reschedule or OFFSET:fire";
        Problem::not_found(text)
    };
    let (offset, action) = action.split_once(':').ok_or_else(unknown)?;
    let place = (route, partition, offset.parse().map_err(|_| unknown())?);
    match action {
        "cancel" => cancel(api, actor, place, params).await,
        "fire" => fire(api, actor, place, params).await,
        "reschedule" => reschedule(api, actor, place, params, json(&body)?).await,
        _ => Err(unknown()),
    }
}

/// The topic of a message, and how long to wait for the outcome
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ChangeParams {
    /// The source topic, for a route with several
    pub(super) topic: Option<String>,
    /// The longest time to wait for the outcome, from `0s` to `10s`; default `5s`
    pub(super) wait: Option<String>,
}

/// How long to wait for the outcome
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitParams {
    /// The longest time to wait for the outcome, from `0s` to `10s`; default `5s`
    pub(super) wait: Option<String>,
}

/// The time of `wait`.
pub(super) fn wait_time(wait: Option<&str>) -> Result<Duration, Problem> {
    let Some(text) = wait else {
        return Ok(ADMIN_OUTCOME_TIMEOUT);
    };
    let wait = parse_after(text).map(Delay::as_duration);
    wait.filter(|wait| *wait <= ADMIN_OUTCOME_TIMEOUT_MAX)
        .ok_or_else(|| Problem::bad_request("wait: write a time from 0s to 10s"))
}

/// The outcome of a change that was pending
///
/// 202: no worker has read the record yet. A reader may ask.
#[utoipa::path(get, path = "/v1/routes/{route}/changes/{request_id}", params(("route" = String, Path), ("request_id" = String, Path)), responses((status = 200, body = ChangeReceipt), (status = 202, body = ChangeReceipt), (status = "default", body = Problem)))]
pub(super) async fn outcome_of_change(
    State(api): State<ChangeApi>,
    PathParams((route, id)): PathParams<(String, String)>,
) -> Changed {
    let unknown = || {
        let text = "request_id: use the one of an answer to a change of this route";
        Problem::not_found(text)
    };
    let request = ChangeRequest::of_id(&id).filter(|request| request.route == route);
    let request = request.ok_or_else(unknown)?;
    let asked = Query::Change(Box::new(request.query()));
    let receipt = ChangeReceipt {
        outcome: api.queries.report(asked).await?,
        offset: Some(request.record),
        request_id: Some(id),
    };
    Ok((receipt.status(), Json(receipt)))
}

/// Cancels a waiting message
///
/// Writes a record to the partition of the message, and waits some seconds for the outcome. 202: the record is in
/// the source, and was not read yet. A message without an id needs `change_by_origin` of its route.
#[utoipa::path(post, path = "/v1/routes/{route}/messages/{partition}/{offset}:cancel", params(("route" = String, Path), ("partition" = i32, Path), ("offset" = u64, Path), ChangeParams), responses((status = 200, body = ChangeReceipt), (status = 202, body = ChangeReceipt), (status = "default", body = Problem)))]
pub(super) async fn cancel(
    api: ChangeApi,
    actor: Actor,
    place: (String, i32, u64),
    params: ChangeParams,
) -> Changed {
    api.change(actor, place, params, |_| Ok(Action::Cancel))
        .await
}

/// Gives a waiting message another due time
///
/// The message keeps its payload, headers and first origin. Otherwise as a cancel. 409: the message is due within seconds.
#[utoipa::path(post, path = "/v1/routes/{route}/messages/{partition}/{offset}:reschedule", params(("route" = String, Path), ("partition" = i32, Path), ("offset" = u64, Path), ChangeParams), request_body = NewDue, responses((status = 200, body = ChangeReceipt), (status = 202, body = ChangeReceipt), (status = "default", body = Problem)))]
pub(super) async fn reschedule(
    api: ChangeApi,
    actor: Actor,
    place: (String, i32, u64),
    params: ChangeParams,
    due: NewDue,
) -> Changed {
    let action = |now| due.due(now).map(Action::Reschedule);
    api.change(actor, place, params, action).await
}

/// Delivers a waiting message now
///
/// Otherwise as a reschedule.
#[utoipa::path(post, path = "/v1/routes/{route}/messages/{partition}/{offset}:fire", params(("route" = String, Path), ("partition" = i32, Path), ("offset" = u64, Path), ChangeParams), responses((status = 200, body = ChangeReceipt), (status = 202, body = ChangeReceipt), (status = "default", body = Problem)))]
pub(super) async fn fire(
    api: ChangeApi,
    actor: Actor,
    place: (String, i32, u64),
    params: ChangeParams,
) -> Changed {
    api.change(actor, place, params, |_| Ok(Action::Fire)).await
}

impl ChangeApi {
    /// Why no copy may take the place of a message now. `None`: it may.
    pub(super) async fn refuses_copies(&self) -> Result<Option<String>, Problem> {
        let workers: WorkersReport = self.queries.report(Query::Workers).await?;
        Ok(workers.refuses_copies())
    }

    async fn change(
        &self,
        actor: Actor,
        (route, partition, offset): (String, i32, u64),
        params: ChangeParams,
        action: impl FnOnce(Timestamp) -> Result<Action, Problem>,
    ) -> Changed {
        // Only an operator makes the process hold a payload.
        actor.require_change()?;
        let (wait, place) = (wait_time(params.wait.as_deref())?, (partition, offset));
        let message = self.queries.message(&route, place, params.topic, true);
        let (now, message) = message.await?;
        let action = action(now)?;
        let change = action.change(&route, &message, now);
        let change =
            change.map_err(|obstacle| Problem::new(StatusCode::CONFLICT, obstacle.text()))?;
        if matches!(change.kind, ChangeKind::Copy { .. })
            && let Some(why) = self.refuses_copies().await?
        {
            return Err(Problem::new(StatusCode::CONFLICT, why));
        }
        let asked = change.kind.asked();
        let written = self.changes.write(actor, action.name(), change).await?;
        let Place { offset, .. } = serde_json::from_str(&written).unwrap_or_default();
        let request = asked.zip(offset).map(|(change, record)| ChangeRequest {
            route,
            topic: message.topic,
            partition: message.partition,
            offset: message.offset,
            due_ms: message.due_ms,
            record,
            change,
        });
        let outcome = match &request {
            Some(request) => outcome(&self.queries, request.query(), wait).await,
            None => ChangeOutcome::Pending,
        };
        let receipt = ChangeReceipt {
            outcome,
            offset,
            request_id: request.map(|request| request.id()),
        };
        Ok((receipt.status(), Json(receipt)))
    }
}

/// Waits until the record was read. It is written, so an outcome that is not known after `wait` is pending.
async fn outcome(queries: &Queries, query: ChangeQuery, wait: Duration) -> ChangeOutcome {
    let end = Instant::now() + wait;
    loop {
        let asked = Query::Change(Box::new(query.clone()));
        let outcome: ChangeOutcome = queries.report(asked).await.unwrap_or_default();
        if outcome != ChangeOutcome::Pending || Instant::now() >= end {
            return outcome;
        }
        sleep(ADMIN_OUTCOME_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;

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
    fn a_change_waits_for_at_most_ten_seconds() {
        let wait = |text: Option<&str>| wait_time(text).map_err(|problem| problem.status);
        assert_eq!(wait(None), Ok(ADMIN_OUTCOME_TIMEOUT));
        assert_eq!(wait(Some("0s")), Ok(Duration::ZERO));
        assert_eq!(wait(Some("10s")), Ok(ADMIN_OUTCOME_TIMEOUT_MAX));
        for wrong in ["11s", "soon", ""] {
            assert_eq!(wait(Some(wrong)), Err(400), "{wrong}");
        }
    }

    #[test]
    fn the_id_of_a_request_is_its_document() {
        let request = ChangeRequest {
            route: "orders".to_owned(),
            topic: "orders.delayed".to_owned(),
            partition: 3,
            offset: 4_711,
            due_ms: None,
            record: 5_000,
            change: AskedChange::Reschedule(Timestamp::from_millis(7)),
        };
        // Clients keep ids, also over an upgrade.
        let json = r#"{"route":"orders","topic":"orders.delayed","partition":3,"offset":4711,"due_ms":null,"record":5000,"change":{"reschedule":7}}"#;
        assert_eq!(request.id(), BASE64_URL_SAFE_NO_PAD.encode(json));
        assert_eq!(ChangeRequest::of_id(&request.id()), Some(request));
        for wrong in ["", "e30", "4711", "%"] {
            assert_eq!(ChangeRequest::of_id(wrong), None, "{wrong}");
        }
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
