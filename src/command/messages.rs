//! `postdate messages`: lists and shows waiting messages. `bulk` changes them.

use super::page::{Page, Table, Tone, print_document};
use super::pending::QueryClient;
use super::{Access, Outcome, Refused, bulk, run};
use crate::admin::api::MessagesParams;
use crate::admin::message_change::Action;
use crate::cli::{FilterArgs, ListArgs, MessagesAction, MessagesArgs, ShowArgs};
use crate::limit::SEARCH_PAGE_MAX;
use crate::model::Timestamp;
use crate::model::readable::{moment, relative, size};
use crate::store::query::{MessagePage, Query, Search, SearchPosition, WaitingMessage};
use anyhow::Result;

/// Lists, shows or changes waiting messages.
pub fn messages(access: &Access, messages: &MessagesArgs) -> Result<Outcome> {
    run(async {
        match &messages.action {
            MessagesAction::List(list) => self::list(access, list).await,
            MessagesAction::Show(show) => self::show(access, show).await,
            MessagesAction::Cancel(change) => bulk::change(access, Action::Cancel, change).await,
            MessagesAction::Fire(change) => bulk::change(access, Action::Fire, change).await,
            MessagesAction::Reschedule(args) => bulk::reschedule(access, args).await,
        }
    })
}

pub(super) fn search(filter: &FilterArgs) -> Result<Search, Refused> {
    let params = MessagesParams {
        due_from: filter.due_from.clone(),
        due_to: filter.due_to.clone(),
        id: filter.id.clone(),
        key: filter.key.clone(),
        header: filter.header.clone(),
        topic: filter.topic.clone(),
        partition: filter.partition.map(|partition| partition.to_string()),
        offset: filter.offset,
        ..MessagesParams::default()
    };
    params
        .search(&filter.route)
        .map_err(|problem| Refused(problem.detail))
}

/// The first messages, at most `limit`. `more` of the answer tells whether there are others.
async fn find(access: &Access, mut search: Search, limit: usize) -> Result<MessagePage> {
    let client = QueryClient::of(access).await?;
    let mut items = Vec::new();
    loop {
        search.limit = (limit - items.len()).clamp(1, SEARCH_PAGE_MAX);
        let query = Query::Messages(Box::new(search.clone()));
        let mut page: MessagePage = client.ask(&query).await?;
        items.append(&mut page.items);
        let after = page
            .after
            .as_deref()
            .filter(|_| page.more && items.len() < limit);
        let after = after.and_then(|after| SearchPosition::from_token(&search.filter.route, after));
        if after.is_none() {
            page.items = items;
            return Ok(page);
        }
        search.after = after;
    }
}

async fn list(access: &Access, list: &ListArgs) -> Result<Outcome> {
    let page = find(access, search(&list.filter)?, list.limit.max(1)).await?;
    print_document(&page, list.output, table)?;
    Ok(Outcome::Done)
}

fn table(found: &MessagePage, page: &Page) -> String {
    if found.items.is_empty() {
        return "No waiting message meets the conditions.\n".to_owned();
    }
    let now = Timestamp::from_millis(found.at_ms);
    let mut table = Table::new(
        &[0, 1, 2, 3, 4],
        ["MESSAGE", "DUE", "ID", "KEY", "TARGET", "PAYLOAD"],
    );
    for item in &found.items {
        let tone = if item.in_flight {
            Tone::Warning
        } else {
            Tone::Plain
        };
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let place = format!("{}/{} offset {}", item.topic, item.partition, item.offset);
        let cells = [
            place,
            due(item, now),
            text(&item.id),
            text(&item.key),
            text(&item.target),
            item.payload_bytes.map_or_else(|| "-".to_owned(), size),
        ];
        table.row(tone, cells);
    }
    let rest = if found.more {
        "\nMore follow: --limit prints more.\n"
    } else {
        ""
    };
    table.print(page) + rest
}

fn due(item: &WaitingMessage, now: Timestamp) -> String {
    let due_ms = item.rescheduled_ms.or(item.due_ms);
    match due_ms.map(Timestamp::from_millis) {
        Some(due) => format!("{}  ({})", moment(due), relative(due, now)),
        None => "at once".to_owned(),
    }
}

async fn show(access: &Access, show: &ShowArgs) -> Result<Outcome> {
    let params = MessagesParams {
        topic: show.topic.clone(),
        partition: Some(show.partition.to_string()),
        offset: Some(show.offset),
        details: Some(true),
        ..MessagesParams::default()
    };
    let search = params
        .search(&show.route)
        .map_err(|problem| Refused(problem.detail))?;
    let found = find(access, search, 1).await?;
    let Some(message) = found.items.first() else {
        super::page::print(
            "No such message waits: it was delivered, cancelled, replaced, or not stored yet.\n",
        )?;
        return Ok(Outcome::Nothing);
    };
    let now = Timestamp::from_millis(found.at_ms);
    print_document(message, show.output, |message, page| {
        fields(message, now, page)
    })?;
    Ok(Outcome::Done)
}

fn fields(message: &WaitingMessage, now: Timestamp, page: &Page) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let mut fields = vec![
        ("origin", message.origin.clone()),
        ("due", due(message, now)),
        ("id", text(&message.id)),
        ("key", text(&message.key)),
        ("target", text(&message.target)),
    ];
    if message.in_flight {
        fields.push(("state", "being sent".to_owned()));
    }
    for header in message.headers.iter().flatten() {
        let value = header.value.as_deref().unwrap_or("null");
        fields.push(("header", format!("{}: {value}", header.name)));
    }
    let payload = match (&message.payload, message.payload_bytes) {
        (Some(payload), _) => payload.clone(),
        (None, Some(bytes)) => format!("{}, hidden by admin.payloads", size(bytes)),
        (None, None) => "null".to_owned(),
    };
    fields.push(("payload", payload));
    page.fields(&fields)
}
