//! The search for waiting messages, and the page of one message.

use super::frame::{Frame, Moment, Visit, clipped};
use crate::admin::api::{MessageParams, MessagesParams, Params, PathParams};
use crate::admin::change_api::{self, ChangeParams, NewDue};
use crate::admin::message_change::Obstacle;
use crate::admin::problem::Problem;
use crate::limit::SEARCH_CALLS_MAX;
use crate::model::Timestamp;
use crate::model::readable::{count, size};
use crate::store::query::{
    ChangeOutcome, FoundMessage, IdSearch, MessageHeader, MessagePage, Query, SearchPosition,
    WaitingMessage,
};
use askama::Template;
use axum::Json;
use axum::extract::Form;
use axum::extract::rejection::FormRejection;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use url::form_urlencoded::Serializer;

/// Messages on one page.
const PAGE_MAX: usize = 50;
/// Characters of a key or a target in a list.
const LISTED_TEXT_MAX: usize = 200;
/// Characters of a header on the page of a message.
const HEADER_TEXT_MAX: usize = 1_000;
/// Characters of a payload on the page of a message.
const PAYLOAD_TEXT_MAX: usize = 32 * 1024;

#[derive(Template)]
#[template(path = "messages.html")]
struct ListPage {
    frame: Frame,
    route: String,
    filter: Filter,
    rows: Vec<Row>,
    /// Stored batches that the search read.
    scanned: String,
    unreadable: u64,
    /// The parameters of the next page.
    next: Option<String>,
    may_change: bool,
}

/// The values of the form. Empty: no condition.
struct Filter {
    due_from: String,
    due_to: String,
    id: String,
    key: String,
    header: String,
    topic: String,
    partition: String,
    offset: String,
}

struct Row {
    message: WaitingMessage,
    due: Option<Moment>,
    size: String,
}

impl Row {
    fn listed(mut message: WaitingMessage, now: Timestamp) -> Self {
        for text in [&mut message.key, &mut message.target] {
            *text = text.as_deref().map(|text| clipped(text, LISTED_TEXT_MAX));
        }
        Self::new(message, now)
    }

    fn new(message: WaitingMessage, now: Timestamp) -> Self {
        Self {
            due: Moment::of(message.rescheduled_ms.or(message.due_ms), now),
            size: message
                .payload_bytes
                .map_or_else(|| "none".to_owned(), size),
            message,
        }
    }
}

pub(super) async fn list(
    visit: Visit,
    PathParams(route): PathParams<String>,
    params: Result<Params<MessagesParams>, Problem>,
) -> Response {
    let page = async {
        let Params(params) = params?;
        list_page(&visit, route, params).await
    };
    visit.show(page.await)
}

async fn list_page(
    visit: &Visit,
    route: String,
    params: MessagesParams,
) -> Result<ListPage, Problem> {
    let queries = &visit.console.queries;
    queries.route(&route).await?;
    let mut search = params.search(&route)?;
    search.limit = PAGE_MAX;
    // The list shows neither headers nor payloads.
    search.is_detailed = false;
    let (mut items, mut scanned) = (Vec::new(), 0);
    let mut page = MessagePage::default();
    // Continue while the page is empty: a reader expects a message or the end.
    for _ in 0..SEARCH_CALLS_MAX {
        page = queries
            .report(Query::Messages(Box::new(search.clone())))
            .await?;
        scanned += page.scanned;
        items.append(&mut page.items);
        let after = page
            .after
            .as_deref()
            .filter(|_| items.is_empty() && page.more);
        let Some(after) = after.and_then(|after| SearchPosition::from_token(&route, after)) else {
            break;
        };
        search.after = Some(after);
    }
    let now = Timestamp::from_millis(page.at_ms);
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let filter = Filter {
        due_from: text(&params.due_from),
        due_to: text(&params.due_to),
        id: text(&params.id),
        key: text(&params.key),
        header: text(&params.header),
        topic: text(&params.topic),
        partition: text(&params.partition),
        offset: params
            .offset
            .map_or_else(String::new, |offset| offset.to_string()),
    };
    Ok(ListPage {
        frame: visit.frame("overview", format!("Waiting messages of {route}")),
        next: page
            .after
            .filter(|_| page.more)
            .map(|after| filter.line(&after)),
        rows: (items.into_iter().map(|item| Row::listed(item, now))).collect(),
        scanned: count(scanned),
        unreadable: page.unreadable,
        may_change: visit.actor.may_change && filter.offset.is_empty(),
        filter,
        route,
    })
}

impl Filter {
    /// The conditions that a change of many messages takes.
    fn pairs(&self) -> [(&'static str, &str); 7] {
        [
            ("due_from", self.due_from.as_str()),
            ("due_to", &self.due_to),
            ("id", &self.id),
            ("key", &self.key),
            ("header", &self.header),
            ("topic", &self.topic),
            ("partition", &self.partition),
        ]
    }

    fn line(&self, after: &str) -> String {
        let mut line = Serializer::new(String::new());
        let others = [("offset", self.offset.as_str()), ("after", after)];
        for (name, value) in self.pairs().into_iter().chain(others) {
            if !value.is_empty() {
                line.append_pair(name, value);
            }
        }
        line.finish()
    }
}

/// The messages that wait under one id, in all routes.
#[derive(Template)]
#[template(path = "find.html")]
struct FindPage {
    frame: Frame,
    id: String,
    found: Vec<(FoundMessage, Option<Moment>)>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct FindParams {
    id: String,
}

/// Shows the only message that waits under the id, or a list.
pub(super) async fn find(visit: Visit, params: Result<Params<FindParams>, Problem>) -> Response {
    let search = async {
        let Params(FindParams { id }) = params?;
        let id = id.trim().to_owned();
        let query = Query::Message { id, route: None };
        visit.console.queries.report::<IdSearch>(query).await
    };
    let page = search.await.map(|search| {
        let now = Timestamp::from_millis(search.at_ms);
        let found = search.found.into_iter().map(|message| {
            let due = Moment::of(message.due_ms, now);
            (message, due)
        });
        FindPage {
            frame: visit.frame("overview", "Find a message"),
            found: found.collect(),
            id: search.id,
        }
    });
    match page.as_ref().map(|page| page.found.as_slice()) {
        Ok([(only, _)]) => Redirect::to(&visit.way_to(only)).into_response(),
        _ => visit.show(page),
    }
}

#[derive(Template)]
#[template(path = "message.html")]
struct ShowPage {
    frame: Frame,
    route: String,
    row: Row,
    may_change: bool,
    /// Why an operator cannot change the message.
    obstacle: Option<&'static str>,
    is_cut: bool,
}

pub(super) async fn show(
    visit: Visit,
    PathParams((route, partition, offset)): PathParams<(String, i32, u64)>,
    params: Result<Params<MessageParams>, Problem>,
) -> Response {
    let page = async {
        let Params(MessageParams { topic }) = params?;
        let queries = &visit.console.queries;
        let (now, mut message) = queries
            .message(&route, (partition, offset), topic, false)
            .await?;
        visit.actor.audit_payload(&route, &message);
        let obstacle = if message.in_flight {
            Some(Obstacle::InFlight)
        } else {
            (!message.can_change).then_some(Obstacle::WithoutId)
        };
        Ok(ShowPage {
            frame: visit.frame("overview", format!("Message {partition}/{offset}")),
            may_change: visit.actor.may_change && obstacle.is_none(),
            obstacle: obstacle.map(Obstacle::text),
            is_cut: cut(
                message.headers.as_deref_mut().unwrap_or_default(),
                &mut message.payload,
            ),
            row: Row::new(message, now),
            route,
        })
    };
    visit.show(page.await)
}

/// Cuts what would make the page large. True if the payload is one of them.
pub(super) fn cut(headers: &mut [MessageHeader], payload: &mut Option<String>) -> bool {
    for header in headers {
        header.name = clipped(&header.name, HEADER_TEXT_MAX);
        let value = header.value.as_deref();
        header.value = value.map(|value| clipped(value, HEADER_TEXT_MAX));
    }
    let Some(payload) = payload else {
        return false;
    };
    let cut = clipped(payload, PAYLOAD_TEXT_MAX);
    let is_cut = cut != *payload;
    *payload = cut;
    is_cut
}

#[derive(Template)]
#[template(path = "changed.html")]
struct ChangedPage {
    frame: Frame,
    route: String,
    text: &'static str,
    is_good: bool,
}

/// The fields of the forms of one message.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ActionForm {
    /// The new due time.
    at: Option<String>,
}

pub(super) async fn change(
    visit: Visit,
    PathParams((route, partition, offset, action)): PathParams<(String, i32, u64, String)>,
    params: Result<Params<ChangeParams>, Problem>,
    form: Result<Form<ActionForm>, FormRejection>,
) -> Response {
    let page = async {
        let Params(params) = params?;
        let wrong = |error: FormRejection| Problem::bad_request(error.body_text());
        let (api, actor) = (visit.console.changes.clone(), visit.actor.clone());
        let place = (route.clone(), partition, offset);
        let changed = match action.as_str() {
            "cancel" => change_api::cancel(api, actor, place, params).await,
            "fire" => change_api::fire(api, actor, place, params).await,
            "reschedule" => {
                let Form(ActionForm { at }) = form.map_err(wrong)?;
                let due = NewDue { at, delay: None };
                change_api::reschedule(api, actor, place, params, due).await
            }
            _ => Err(Problem::not_found("no such action")),
        };
        let (_, Json(receipt)) = changed?;
        let outcome = receipt.outcome;
        Ok(ChangedPage {
            frame: visit.frame("overview", format!("Message {partition}/{offset}")),
            route,
            text: outcome_text(outcome, action == "fire"),
            is_good: match outcome {
                ChangeOutcome::Cancelled | ChangeOutcome::Rescheduled => true,
                // A fired message is delivered before the outcome is read, as a rule.
                ChangeOutcome::Passed => action == "fire",
                ChangeOutcome::Pending | ChangeOutcome::TooLate => false,
            },
        })
    };
    visit.show(page.await)
}

fn outcome_text(outcome: ChangeOutcome, is_fire: bool) -> &'static str {
    match outcome {
        ChangeOutcome::Passed if is_fire => {
            "Due now: it was delivered, unless another request has cancelled it just before."
        }
        ChangeOutcome::Rescheduled if is_fire => "Due now: it is about to be delivered.",
        ChangeOutcome::Cancelled => "Cancelled: it will not be delivered.",
        ChangeOutcome::Rescheduled => "Done: the message has its new due time.",
        ChangeOutcome::Pending => {
            "The record is in the source topic, and the service has not read it yet."
        }
        ChangeOutcome::TooLate => "Too late: the message was being sent, or was cancelled before.",
        ChangeOutcome::Passed => {
            "The message, or its copy, became due meanwhile: it was delivered, or cancelled just before."
        }
    }
}
