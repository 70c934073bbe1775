//! `postdate send`: sends one delayed message, a cancel or a reschedule as an ordinary producer does.
//!
//! It rejects records that the service would reject, using the same parser.

use super::answer::{self, AnswerReader};
use super::page::{Page, Tone, print_document};
use super::pending::QueryClient;
use super::source_producer::{SourceProducer, SourceRecord, close};
use super::{Outcome, Refused, run};
use crate::cli::SendArgs;
use crate::clock::{Clock, WallClock};
use crate::config::{self, Config};
use crate::limit::{COMMAND_DELIVERY_TIMEOUT, COMMAND_PAYLOAD_BYTES_MAX};
use crate::model::header::push_header;
use crate::model::header_name::{ControlHeader, SUBJECT};
use crate::model::readable::{moment, relative};
use crate::model::{
    Headers, Offset, OriginFormat, ParsedRecord, Partition, Record, Rejection, RoutingRules,
    ShardId, Timestamp, filter_covers, is_subject, parse_record, parse_reply, partition_of_origin,
    split_source_topic,
};
use crate::role::routing_rules;
use crate::store::query::{IdSearch, Query};
use anyhow::{Context, Result};
use serde::Serialize;
use std::borrow::Cow;
use std::io::Read;

/// With this header, the due time depends on the offset.
const SPREAD: &str = "postdate-spread=";

/// The document of `--json`. Fields are only added, never renamed or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Receipt {
    route: String,
    topic: String,
    /// `None`, like the offset, if the broker does not report a position.
    partition: Option<i32>,
    pub(super) offset: Option<u64>,
    /// The value of `postdate-origin` on the target.
    origin: Option<String>,
    key: Option<String>,
    id: Option<String>,
    cancel: bool,
    reschedule: bool,
    /// `None` for a cancel or a reschedule.
    target: Option<String>,
    due_ms: Option<i64>,
    due: Option<String>,
    /// Why the partition may not be that of the waiting message, or why there is no answer.
    note: Option<String>,
    /// The answer to the record, if it was asked for.
    answer: Option<serde_json::Value>,
}

impl Receipt {
    /// The receipt of a record at this place, if the broker reports it.
    pub(super) fn new(route: &str, topic: String, position: Option<(i32, Offset)>) -> Self {
        Self {
            route: route.to_owned(),
            topic,
            partition: position.map(|(partition, _)| partition),
            offset: position.map(|(_, offset)| offset.0),
            ..Self::default()
        }
    }
}

impl Receipt {
    fn set_due(&mut self, due: Option<Timestamp>) {
        self.due_ms = due.map(Timestamp::as_millis);
        self.due = due.map(Timestamp::to_rfc3339);
    }
}

/// A record that the service will accept.
pub(super) struct Draft {
    pub(super) headers: Vec<u8>,
    pub(super) payload: Option<Vec<u8>>,
    /// `None` for a cancel.
    pub(super) due: Option<Timestamp>,
}

/// Sends the message of the command line and prints where it was stored.
pub fn send(config: &Config, send: &SendArgs) -> Result<Outcome> {
    let now = WallClock.now();
    let receipt = run(async {
        let mut producer = None;
        let (partition, note) = partition(config, send).await?;
        let mut reader = match &send.reply {
            Some(to) => Some(AnswerReader::open(config, &send.route, to).await?),
            None => None,
        };
        let reply = reader.iter().flat_map(AnswerReader::headers);
        let send = SendArgs {
            partition,
            headers: send.headers.iter().cloned().chain(reply).collect(),
            ..send.clone()
        };
        let receipt = publish(config, &send, payload(&send)?, &mut producer).await;
        close(producer).await;
        let mut receipt = Receipt { note, ..receipt? };
        if let Some(reader) = &mut reader {
            match reader.answer().await {
                Ok(answer) => receipt.answer = Some(answer),
                Err(note) => {
                    let notes = receipt.note.take().into_iter().chain([note]);
                    receipt.note = Some(notes.collect::<Vec<_>>().join("; "));
                }
            }
        }
        Ok(receipt)
    })?;
    print_document(&receipt, send.output, |receipt, page| {
        text(receipt, now, page)
    })?;
    Ok(match &receipt.answer {
        Some(answer) => answer::outcome(answer),
        None => Outcome::failing_if(send.reply.is_some()),
    })
}

/// Sends the message as a producer does. Opens a producer if there is none.
pub(super) async fn publish(
    config: &Config,
    send: &SendArgs,
    payload: Option<Vec<u8>>,
    producer: &mut Option<SourceProducer>,
) -> Result<Receipt> {
    let now = WallClock.now();
    let (record, mut receipt) = prepare(config, send, payload, now)?;
    let producer = match producer {
        Some(producer) => producer,
        None => producer.insert(SourceProducer::open(config, &send.route)?),
    };
    let position = producer.send(&record).await?;
    if let Some((partition, offset)) = position {
        let origins = origins(config, send, &receipt.topic, partition);
        let mut origin = String::new();
        origins.append_origin(offset, &mut origin);
        if has_spread(&send.headers) {
            let record = Record {
                offset,
                timestamp: Some(now),
                key: record.key.as_deref(),
                payload: record.draft.payload.as_deref(),
                headers: Headers::from_block(&record.draft.headers),
            };
            let rules = routing_rules(config, &send.route);
            receipt.set_due(due_of(&parse_record(&record, &origins, &rules)));
        }
        receipt.origin = Some(origin).filter(|_| !send.is_change());
        (receipt.partition, receipt.offset) = (Some(partition), Some(offset.0));
    } else if has_spread(&send.headers) {
        receipt.set_due(None);
    }
    Ok(receipt)
}

/// The record, and its receipt without a place. Refuses what the service would dead-letter, and a cancel that was not asked for.
pub(super) fn prepare(
    config: &Config,
    send: &SendArgs,
    payload: Option<Vec<u8>>,
    now: Timestamp,
) -> Result<(SourceRecord, Receipt)> {
    let (topic, subject) = source_place(config, send)?;
    let rules = routing_rules(config, &send.route);
    let origins = origins(config, send, &topic, send.partition.unwrap_or(0));
    let draft = draft(send, subject.as_deref(), &origins, &rules, payload, now)?;
    if draft.due.is_none() && !send.cancel {
        let text = "the headers make a cancel of this message, which needs --cancel".to_owned();
        return Err(Refused(text).into());
    }
    let headers = Headers::from_block(&draft.headers);
    let target = rules
        .targets
        .resolve(send.to.as_deref(), origins.topic(), headers);
    let mut receipt = Receipt {
        route: send.route.clone(),
        topic,
        key: send.key.clone(),
        id: send.id.clone(),
        cancel: draft.due.is_none(),
        reschedule: send.reschedule,
        target: (draft.due.filter(|_| !send.is_change()))
            .and(target.ok())
            .map(Cow::into_owned),
        ..Receipt::default()
    };
    receipt.set_due(draft.due);
    let record = SourceRecord {
        key: send.key.clone().map(String::into_bytes),
        draft,
        partition: send.partition.filter(|_| subject.is_none()),
        topic: subject.unwrap_or_else(|| receipt.topic.clone()),
    };
    Ok((record, receipt))
}

fn origins(config: &Config, send: &SendArgs, topic: &str, partition: i32) -> OriginFormat {
    let partition = Partition::new(topic, partition);
    OriginFormat::new(
        &config.deployment,
        &ShardId::new(send.route.as_str(), partition),
    )
}

/// Like [`place`], for the route of the message, which must exist.
fn source_place(config: &Config, send: &SendArgs) -> Result<(String, Option<String>)> {
    let found = match config.routes.get(&send.route) {
        Some(route) => place(&route.source, send)?,
        None => Default::default(),
    };
    config.check_source(&send.route, &found.0)?;
    Ok(found)
}

/// The source topic, and the subject if the route reads NATS.
fn place(source: &config::Source, send: &SendArgs) -> Result<(String, Option<String>), Refused> {
    if source.kind.has_subjects() {
        return subject_place(source, send);
    }
    if send.subject.is_some() {
        let text = "--subject is for a route that reads NATS; this one reads topics";
        return Err(Refused(text.to_owned()));
    }
    let topic = send.topic.as_ref().or(source.topics.first()).cloned();
    Ok((topic.unwrap_or_default(), None))
}

/// The source topic that has the subject to which the message goes.
fn subject_place(
    source: &config::Source,
    send: &SendArgs,
) -> Result<(String, Option<String>), Refused> {
    let filters = source
        .topics
        .iter()
        .filter_map(|topic| split_source_topic(topic));
    let filters: Vec<&str> = filters.map(|(_, filter)| filter).collect();
    let known = filters.join(", ");
    let subject = match (&send.subject, filters.as_slice()) {
        (Some(subject), _) => subject.as_str(),
        (None, [only]) if is_subject(only) => only,
        (None, _) => {
            return Err(Refused(format!(
                "say to which subject, with --subject; the route reads {known}"
            )));
        }
    };
    let takes = |topic: &&String| {
        let filter = split_source_topic(topic).map(|(_, filter)| filter);
        is_subject(subject) && filter.is_some_and(|filter| filter_covers(filter, subject))
    };
    match source.topics.iter().find(takes) {
        Some(topic) => Ok((topic.clone(), Some(subject.to_owned()))),
        None => Err(Refused(format!(
            "the route does not read the subject {subject:?}; it reads {known}"
        ))),
    }
}

/// Returns the partition, or `None` to let the key choose, and a note for the user. Looks the id up,
/// because the producer of the waiting message may use another partitioner.
async fn partition(config: &Config, send: &SendArgs) -> Result<(Option<i32>, Option<String>)> {
    let (topic, subject) = source_place(config, send)?;
    if let Some(of) = &send.of {
        let partition = send.partition.or_else(|| partition_of_origin(of));
        return Ok((partition, None));
    }
    let Some(id) = send.id.as_ref().filter(|_| send.partition.is_none()) else {
        return Ok((send.partition, None));
    };
    let query = Query::Message {
        id: id.clone(),
        route: Some(send.route.clone()),
    };
    let find = async { QueryClient::open(config).await?.ask(&query).await };
    let found: Result<IdSearch, String> =
        match tokio::time::timeout(COMMAND_DELIVERY_TIMEOUT, find).await {
            Ok(found) => found.map_err(|error| format!("{error:#}")),
            Err(_) => Err("the store does not answer".to_owned()),
        };
    let why = match found {
        Ok(search) => {
            let found = search.found.into_iter().filter(|it| it.topic == topic);
            let partitions: Vec<i32> = found.map(|place| place.partition).collect();
            match partitions[..] {
                [partition] => return Ok((Some(partition), None)),
                [] if !send.is_change() => return Ok((None, None)),
                [] => format!("no message waits with id {id} now"),
                _ => format!("messages with id {id} wait on partitions {partitions:?}"),
            }
        }
        Err(why) => format!("cannot look up the partition of id {id}: {why}"),
    };
    if send.is_change() && send.key.is_none() && subject.is_none() {
        let text = format!("not sent: {why}. Name the partition with --partition or --key");
        return Err(Refused(text).into());
    }
    let note = format!("{why}; so the key chose the partition, --partition chooses another");
    Ok((None, Some(note)))
}

fn payload(send: &SendArgs) -> Result<Option<Vec<u8>>> {
    let mut reader: Box<dyn Read> = match (&send.file, send.payload.as_deref()) {
        (Some(file), _) => match std::fs::File::open(file) {
            Ok(file) => Box::new(file),
            Err(error) => {
                return Err(Refused(format!("--file {}: {error}", file.display())).into());
            }
        },
        (None, Some("-")) => Box::new(std::io::stdin()),
        (None, Some(text)) => return Ok(Some(text.as_bytes().to_vec())),
        (None, None) => return Ok(None),
    };
    let mut bytes = Vec::new();
    let limit = COMMAND_PAYLOAD_BYTES_MAX;
    let read = reader.by_ref().take(limit + 1).read_to_end(&mut bytes);
    if read.context("cannot read the payload")? as u64 > limit {
        return Err(Refused(format!("the payload has more than {limit} bytes")).into());
    }
    Ok(Some(bytes))
}

/// The error for a record that the service would dead-letter.
pub(super) fn refused(rejection: &Rejection) -> Refused {
    let (code, detail) = (rejection.reason.code(), &rejection.detail);
    Refused(format!(
        "not sent, because the service would dead-letter it ({code}): {detail}"
    ))
}

fn has_spread(headers: &[String]) -> bool {
    headers.iter().any(|header| header.starts_with(SPREAD))
}

/// The due time of a message or a reschedule.
fn due_of(parsed: &ParsedRecord<'_>) -> Option<Timestamp> {
    match parsed {
        ParsedRecord::Message { due, .. } | ParsedRecord::Reschedule { due, .. } => Some(*due),
        _ => None,
    }
}

/// Builds the record and parses it as the service does.
fn draft(
    send: &SendArgs,
    subject: Option<&str>,
    origins: &OriginFormat,
    rules: &RoutingRules,
    payload: Option<Vec<u8>>,
    now: Timestamp,
) -> Result<Draft, Refused> {
    let parse = |send: &SendArgs, when: &[(ControlHeader, &str)]| {
        let headers = headers(send, subject, when)?;
        let record = Record {
            offset: Offset(0),
            timestamp: Some(now),
            key: send.key.as_deref().map(str::as_bytes),
            payload: payload.as_deref(),
            headers: Headers::from_block(&headers),
        };
        let parsed = parse_record(&record, origins, rules);
        if let ParsedRecord::Rejected(rejection) = &parsed {
            return Err(refused(rejection));
        }
        let due = due_of(&parsed);
        parse_reply(record.headers, rules).map_err(|rejection| {
            Refused(format!(
                "not sent, because the service would not answer it ({}): {}",
                rejection.reason.code(),
                rejection.detail
            ))
        })?;
        Ok((headers, due))
    };
    let after = send
        .delay
        .as_deref()
        .map(|delay| (ControlHeader::After, delay));
    let at = send.at.as_deref().map(|at| (ControlHeader::At, at));
    let when: Vec<_> = after.into_iter().chain(at).collect();
    let mut parsed = parse(send, &when)?;
    // The service counts a delay from the record's timestamp, which the broker may set. An absolute
    // time keeps the printed due time true.
    if after.is_some() {
        let headers = send.headers.iter().filter(|it| !it.starts_with(SPREAD));
        let unspread = SendArgs {
            headers: headers.cloned().collect(),
            ..send.clone()
        };
        if let Some(due) = parse(&unspread, &when)?.1 {
            parsed = parse(send, &[(ControlHeader::At, &due.as_millis().to_string())])?;
        }
    }
    let (headers, due) = parsed;
    Ok(Draft {
        headers,
        payload,
        due,
    })
}

/// Encodes the record's headers: the message's own first, then the control headers. The service
/// sees the NATS subject as a header.
fn headers(
    send: &SendArgs,
    subject: Option<&str>,
    when: &[(ControlHeader, &str)],
) -> Result<Vec<u8>, Refused> {
    let mut block = Vec::new();
    let mut push =
        |name: &str, value: &str| push_header(&mut block, name.as_bytes(), Some(value.as_bytes()));
    for header in &send.headers {
        let pair = header.split_once('=').filter(|(name, _)| !name.is_empty());
        let unnamed = || Refused(format!("--header {header:?}: write NAME=VALUE"));
        let (name, value) = pair.ok_or_else(unnamed)?;
        push(name, value);
    }
    let to = send.to.as_deref().map(|to| (ControlHeader::To, to));
    let id = send.id.as_deref().map(|id| (ControlHeader::Id, id));
    let op = match (send.cancel, send.reschedule) {
        (true, _) => Some((ControlHeader::Op, "cancel")),
        (_, true) => Some((ControlHeader::Op, "reschedule")),
        _ => None,
    };
    let of = send.of.as_deref().map(|of| (ControlHeader::Of, of));
    let controls = when.iter().copied().chain(to).chain(id).chain(of).chain(op);
    let controls = controls.map(|(control, value)| (control.name(), value));
    for (name, value) in subject
        .map(|subject| (SUBJECT, subject))
        .into_iter()
        .chain(controls)
    {
        push(name, value);
    }
    Ok(block)
}

fn text(receipt: &Receipt, now: Timestamp, page: &Page) -> String {
    let topic = &receipt.topic;
    let place = match (receipt.partition, receipt.offset, &receipt.key) {
        (Some(partition), Some(offset), _) => format!("{topic}/{partition} offset {offset}"),
        (_, _, Some(key)) => format!("{topic} under the key {key}"),
        _ => topic.clone(),
    };
    let sent = match (receipt.cancel, receipt.reschedule) {
        (true, _) => "cancel sent to",
        (_, true) => "reschedule sent to",
        _ => "sent to",
    };
    let mut fields = vec![(sent, place)];
    let due = receipt.due_ms.map(Timestamp::from_millis);
    fields.extend(due.map(|due| match due {
        due if due.is_at_once() => ("due", "at once".to_owned()),
        due if due <= now => ("due", format!("{}  (at once)", moment(due))),
        due => ("due", format!("{}  ({})", moment(due), relative(due, now))),
    }));
    let (target, id, origin) = (&receipt.target, &receipt.id, &receipt.origin);
    for (name, value) in [("target", target), ("id", id), ("origin", origin)] {
        fields.extend(value.clone().map(|value| (name, value)));
    }
    let answer = receipt.answer.as_ref();
    fields.extend(answer.map(|answer| ("answer", answer::text(answer))));
    let mut text = page.fields(&fields);
    if answer.is_none() {
        let action = match (receipt.cancel, receipt.reschedule) {
            (true, _) => Some("cancels"),
            (_, true) => Some("reschedules"),
            _ => None,
        };
        if let Some(action) = action {
            text += &format!(
                "The service {action} the message if it still waits on this partition. A delivery that has begun is not stopped.\n"
            );
        }
    }
    if due.is_some_and(Timestamp::is_suspicious_due) {
        let hint =
            "The due time lies before the year 2000: --at takes milliseconds, not seconds.\n";
        text += &page.paint(Tone::Warning, hint);
    }
    if let Some(note) = &receipt.note {
        text += &page.paint(Tone::Warning, &format!("{note}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    const NOW: i64 = 1_795_302_005_000;

    fn parsed(line: &[&str]) -> SendArgs {
        let all = ["postdate", "send", "--config", "c", "--route", "orders"]
            .iter()
            .chain(line);
        let Command::Send(send) = Cli::try_parse_from(all).unwrap().command else {
            panic!("another command")
        };
        *send
    }

    fn drafted(line: &[&str]) -> std::result::Result<Draft, String> {
        drafted_by(&parsed(line))
    }

    fn drafted_by(send: &SendArgs) -> std::result::Result<Draft, String> {
        let rules = RoutingRules::for_test();
        let origins = OriginFormat::new(
            "prod",
            &ShardId::new("orders", Partition::new("orders.delayed", 0)),
        );
        draft(
            send,
            None,
            &origins,
            &rules,
            Some(b"x".to_vec()),
            Timestamp::from_millis(NOW),
        )
        .map_err(|refused| refused.to_string())
    }

    fn pairs(draft: &Draft) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Headers::from_block(&draft.headers)
            .iter()
            .map(|(name, value)| (text(name), text(value.unwrap())))
            .collect()
    }

    #[test]
    fn the_receipt_shows_the_due_time_of_the_record() {
        let draft = drafted(&[
            "--in",
            "30m",
            "--header",
            "a=b=c",
            "--id",
            "x",
            "--to",
            "billing.eu",
            "text",
        ])
        .unwrap();
        assert_eq!(draft.due, Some(Timestamp::from_millis(NOW + 1_800_000)));
        let expected = [
            ("a", "b=c"),
            ("postdate-at", "1795303805000"),
            ("postdate-to", "billing.eu"),
            ("postdate-id", "x"),
        ];
        assert_eq!(
            pairs(&draft),
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn a_spread_counts_once_from_the_due_time_of_the_record() {
        let line = ["--in", "30m", "--header", "postdate-spread=10m", "text"];
        let draft = drafted(&line).unwrap();
        let expected = [("postdate-spread", "10m"), ("postdate-at", "1795303805000")];
        assert_eq!(
            pairs(&draft),
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        let due = draft.due.map(Timestamp::as_millis);
        let range = NOW + 1_800_000..=NOW + 2_400_000;
        assert!(due.is_some_and(|due| range.contains(&due)), "{due:?}");
    }

    #[test]
    fn a_cancel_has_only_its_op_and_its_id() {
        let draft = drafted(&["--cancel", "--id", "x", "--key", "k"]).unwrap();
        assert_eq!(draft.due, None);
        assert_eq!(
            pairs(&draft),
            [("postdate-id", "x"), ("postdate-op", "cancel")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn a_reschedule_has_only_its_op_its_id_and_its_due_time() {
        let send = SendArgs {
            cancel: false,
            reschedule: true,
            ..parsed(&["--in", "30m", "--id", "x", "text"])
        };
        let draft = drafted_by(&send).unwrap();
        assert_eq!(draft.due, Some(Timestamp::from_millis(NOW + 1_800_000)));
        let expected = [
            ("postdate-at", "1795303805000"),
            ("postdate-id", "x"),
            ("postdate-op", "reschedule"),
        ];
        assert_eq!(
            pairs(&draft),
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn a_record_that_the_service_would_refuse_is_refused_with_its_code() {
        for (line, code) in [
            (&["--in", "10x", "t"][..], "invalid_after"),
            (&["--in", "", "t"], "empty_value"),
            (&["--at", "tomorrow", "t"], "invalid_at"),
            (&["--in", "2h", "t"], "delay_above_max"),
            (&["--in", "1m", "--to", "nope", "t"], "target_not_allowed"),
            (
                &["--in", "1m", "--to", "orders.delayed", "t"],
                "target_is_source",
            ),
            (&["--in", "1m", "--id", "a b", "t"], "invalid_id"),
            (
                &["--in", "1m", "--header", "postdate-at=0", "t"],
                "at_and_after",
            ),
            (
                &["--in", "1m", "--header", "postdate-op=drop", "t"],
                "invalid_op",
            ),
        ] {
            let refused = drafted(line)
                .err()
                .unwrap_or_else(|| panic!("{line:?} is taken"));
            assert!(
                refused.starts_with("not sent, ") && refused.contains(&format!("({code}): ")),
                "{line:?}: {refused}"
            );
        }
        assert!(
            drafted(&["--in", "1m", "--header", "novalue", "t"])
                .err()
                .unwrap()
                .contains("write NAME=VALUE")
        );
    }

    #[test]
    fn a_receipt_shows_the_position_and_the_due_time() {
        let receipt = Receipt {
            route: "orders".into(),
            topic: "orders.delayed".into(),
            partition: Some(2),
            offset: Some(7),
            origin: Some("prod/orders/orders.delayed/2/7".into()),
            id: Some("order-42".into()),
            target: Some("orders".into()),
            due_ms: Some(NOW + 1_800_000),
            ..Receipt::default()
        };
        let now = Timestamp::from_millis(NOW);
        insta::assert_snapshot!(text(&receipt, now, &Page::PLAIN), @r#"
        sent to  orders.delayed/2 offset 7
        due      2026-11-21 23:30:05 UTC  (in 30m)
        target   orders
        id       order-42
        origin   prod/orders/orders.delayed/2/7
        "#);
        let silent = Receipt {
            partition: None,
            offset: None,
            origin: None,
            key: Some("k".into()),
            note: Some("cannot look up the partition".into()),
            ..receipt
        };
        let silent = text(&silent, now, &Page::PLAIN);
        assert!(silent.contains("orders.delayed under the key k\n"));
        assert!(silent.ends_with("\ncannot look up the partition\n"));
    }
}
