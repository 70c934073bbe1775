//! The search for waiting messages, and the page of one message.

use super::frame::{Frame, Moment, Visit};
use crate::admin::api::{MessageParams, MessagesParams, Params, PathParams};
use crate::admin::change_api;
use crate::admin::problem::Problem;
use crate::limit::SEARCH_CALLS_MAX;
use crate::model::Timestamp;
use crate::model::readable::{count, size};
use crate::store::query::{CancelOutcome, MessagePage, Query, SearchPosition, WaitingMessage};
use askama::Template;
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use url::form_urlencoded::Serializer;

/// Messages on one page.
const PAGE_MAX: usize = 50;

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
    fn new(message: WaitingMessage, now: Timestamp) -> Self {
        Self {
            due: Moment::of(message.due_ms, now),
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
        rows: items.into_iter().map(|item| Row::new(item, now)).collect(),
        scanned: count(scanned),
        unreadable: page.unreadable,
        filter,
        route,
    })
}

impl Filter {
    fn line(&self, after: &str) -> String {
        let mut line = Serializer::new(String::new());
        for (name, value) in [
            ("due_from", self.due_from.as_str()),
            ("due_to", &self.due_to),
            ("id", &self.id),
            ("key", &self.key),
            ("header", &self.header),
            ("topic", &self.topic),
            ("partition", &self.partition),
            ("offset", &self.offset),
            ("after", after),
        ] {
            if !value.is_empty() {
                line.append_pair(name, value);
            }
        }
        line.finish()
    }
}

#[derive(Template)]
#[template(path = "message.html")]
struct ShowPage {
    frame: Frame,
    route: String,
    row: Row,
    may_cancel: bool,
}

pub(super) async fn show(
    visit: Visit,
    PathParams((route, partition, offset)): PathParams<(String, i32, u64)>,
    params: Result<Params<MessageParams>, Problem>,
) -> Response {
    let page = async {
        let Params(MessageParams { topic }) = params?;
        let queries = &visit.console.queries;
        let (now, message) = queries.message(&route, (partition, offset), topic).await?;
        visit.actor.audit_payload(&message);
        Ok(ShowPage {
            frame: visit.frame("overview", format!("Message {partition}/{offset}")),
            may_cancel: visit.actor.may_change() && !message.in_flight && message.id.is_some(),
            row: Row::new(message, now),
            route,
        })
    };
    visit.show(page.await)
}

#[derive(Template)]
#[template(path = "cancelled.html")]
struct CancelledPage {
    frame: Frame,
    route: String,
    text: &'static str,
    is_good: bool,
}

pub(super) async fn cancel(
    visit: Visit,
    PathParams((route, partition, offset)): PathParams<(String, i32, u64)>,
    params: Result<Params<MessageParams>, Problem>,
) -> Response {
    let page = async {
        let Params(params) = params?;
        let changes = State(visit.console.changes.clone());
        let place = (route.clone(), partition, offset);
        let cancelled = change_api::cancel(changes, visit.actor, place, params).await;
        let (_, Json(receipt)) = cancelled?;
        Ok(CancelledPage {
            frame: visit.frame("overview", format!("Cancel of {partition}/{offset}")),
            route,
            text: match receipt.outcome {
                CancelOutcome::Cancelled => "Cancelled: it will not be delivered.",
                CancelOutcome::Pending => {
                    "The cancel is in the source topic, and the service has not read it yet."
                }
                CancelOutcome::TooLate => "Too late: the message was being sent.",
                CancelOutcome::Passed => {
                    "The message became due meanwhile: it was delivered, or cancelled just before."
                }
            },
            is_good: receipt.outcome == CancelOutcome::Cancelled,
        })
    };
    visit.show(page.await)
}
