//! `postdate messages`: lists, shows and cancels waiting messages.

use super::page::{Page, Table, Tone, print_document};
use super::pending::QueryClient;
use super::send;
use super::source_producer::{self, SourceProducer};
use super::{Outcome, Refused, run};
use crate::admin::api::MessagesParams;
use crate::cli::{
    CancelArgs, FilterArgs, ListArgs, MessagesAction, MessagesArgs, Output, SendArgs, ShowArgs,
};
use crate::config::Config;
use crate::limit::SEARCH_PAGE_MAX;
use crate::model::Timestamp;
use crate::model::header_name::SUBJECT;
use crate::model::readable::{count, moment, relative, several, size};
use crate::store::query::{MessagePage, Query, Search, SearchPosition, WaitingMessage};
use anyhow::Result;
use serde::Serialize;
use std::time::Duration;

/// Lists, shows or cancels waiting messages.
pub fn messages(config: &Config, messages: &MessagesArgs) -> Result<Outcome> {
    run(async {
        match &messages.action {
            MessagesAction::List(list) => self::list(config, list).await,
            MessagesAction::Show(show) => self::show(config, show).await,
            MessagesAction::Cancel(cancel) => self::cancel(config, cancel).await,
        }
    })
}

fn search(filter: &FilterArgs) -> Result<Search, Refused> {
    let params = MessagesParams {
        due_from: filter.due_from.clone(),
        due_to: filter.due_to.clone(),
        id: filter.id.clone(),
        key: filter.key.clone(),
        header: filter.header.clone(),
        topic: filter.topic.clone(),
        partition: filter.partition.map(|partition| partition.to_string()),
        ..MessagesParams::default()
    };
    params
        .search(&filter.route)
        .map_err(|problem| Refused(problem.detail))
}

/// The first messages, at most `limit`. `more` of the answer tells whether there are others.
async fn find(config: &Config, mut search: Search, limit: usize) -> Result<MessagePage> {
    let client = QueryClient::open(config).await?;
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

async fn list(config: &Config, list: &ListArgs) -> Result<Outcome> {
    let page = find(config, search(&list.filter)?, list.limit.max(1)).await?;
    print_document(&page, list.output == Output::Json, table)?;
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
    match item.due_ms.map(Timestamp::from_millis) {
        Some(due) => format!("{}  ({})", moment(due), relative(due, now)),
        None => "at once".to_owned(),
    }
}

async fn show(config: &Config, show: &ShowArgs) -> Result<Outcome> {
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
    let found = find(config, search, 1).await?;
    let Some(message) = found.items.first() else {
        super::page::print(
            "No such message waits: it was delivered, cancelled, replaced, or not stored yet.\n",
        )?;
        return Ok(Outcome::Nothing);
    };
    let now = Timestamp::from_millis(found.at_ms);
    print_document(message, show.output == Output::Json, |message, page| {
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

/// The document of `cancel --output json`. Fields are only added, never renamed or removed.
#[derive(Clone, Debug, Default, Serialize)]
struct CancelReport {
    /// Messages that can be cancelled.
    found: u64,
    /// Messages that meet the conditions and have no id.
    without_id: u64,
    /// Messages that are being sent.
    in_flight: u64,
    /// Cancels that the broker has acknowledged.
    sent: u64,
    dry_run: bool,
    /// More messages may meet the conditions.
    more: bool,
}

async fn cancel(config: &Config, cancel: &CancelArgs) -> Result<Outcome> {
    let mut search = search(&cancel.filter)?;
    let route = &cancel.filter.route;
    let has_subjects = config
        .routes
        .get(route)
        .is_some_and(|route| route.source.kind.has_subjects());
    // A cancel goes to the subject of the message, which is a header.
    search.is_detailed = has_subjects;
    let found = find(config, search, cancel.limit.max(1)).await?;
    let mut report = CancelReport {
        dry_run: !cancel.yes,
        more: found.more,
        ..CancelReport::default()
    };
    let (mut producer, mut failure) = (None, None);
    for message in &found.items {
        match &message.id {
            _ if message.in_flight => report.in_flight += 1,
            None => report.without_id += 1,
            Some(id) => {
                report.found += 1;
                if cancel.yes {
                    let sent = send_cancel(config, route, (message, id), &mut producer).await;
                    if let Err(error) = sent {
                        failure = Some(error);
                        break;
                    }
                    report.sent += 1;
                    tokio::time::sleep(Duration::from_secs(1) / cancel.rate).await;
                }
            }
        }
    }
    source_producer::close(producer).await;
    print_document(&report, cancel.output == Output::Json, |report, _| {
        summary(report)
    })?;
    match failure {
        Some(error) => Err(error.context("a cancel was not sent, so the command ended early")),
        None => Ok(Outcome::Done),
    }
}

async fn send_cancel(
    config: &Config,
    route: &str,
    (message, id): (&WaitingMessage, &str),
    producer: &mut Option<SourceProducer>,
) -> Result<()> {
    let mut headers = message.headers.iter().flatten();
    let subject = headers.find(|header| header.name == SUBJECT);
    let args = SendArgs {
        route: route.to_owned(),
        topic: Some(message.topic.clone()),
        subject: subject.and_then(|header| header.value.clone()),
        partition: Some(message.partition),
        id: Some(id.to_owned()),
        cancel: true,
        ..SendArgs::default()
    };
    send::publish(config, &args, None, producer).await?;
    Ok(())
}

fn summary(report: &CancelReport) -> String {
    let mut text = match report.dry_run {
        true => format!(
            "{} would be cancelled. Nothing was sent: --yes sends the cancels.\n",
            several(report.found, "message")
        ),
        false => format!(
            "Cancels sent: {}. `postdate ledger` counts those that were in time.\n",
            count(report.sent)
        ),
    };
    if report.without_id > 0 {
        text += &format!(
            "Without an id, so they cannot be cancelled: {}.\n",
            count(report.without_id)
        );
    }
    if report.in_flight > 0 {
        text += &format!("Being sent already: {}.\n", count(report.in_flight));
    }
    if report.more {
        text += "More may follow: repeat the command, or raise --limit.\n";
    }
    text
}
