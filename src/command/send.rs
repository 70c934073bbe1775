//! `postdate send`: sends one delayed message or a cancel as an ordinary producer does.
//!
//! It refuses records that the service would refuse, using the same parser.

use super::page::{Page, Side, Table, Tone, moment, print, relative};
use super::pending::{Source, json};
use super::{Outcome, Refused, run, subject};
use crate::broker::{
    DeliveryFailure, DeliveryReport, FailureKind, OutgoingRecord, SendResult, Target,
};
use crate::cli;
use crate::clock::{Clock, WallClock};
use crate::config::{self, Config};
use crate::health::{Health, HealthPart};
use crate::limit::{COMMAND_DELIVERY_TIMEOUT, COMMAND_PAYLOAD_BYTES_MAX, COMMAND_REPORT_TIMEOUT};
use crate::model::header::push_header;
use crate::model::header_name::{ControlHeader, SUBJECT};
use crate::model::{
    DeadLetterReason, Headers, Offset, OriginFormat, ParsedRecord, Partition, Record, RoutingRules,
    ShardId, Timestamp, parse_record,
};
use crate::role::{Cluster, TargetOptions, TargetPurpose, routing_rules};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::borrow::Cow;
use std::io::Read;

/// The document of `--json`. Fields are only added, never renamed or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Receipt {
    route: String,
    topic: String,
    /// `None`, like the offset, if the broker does not report a position.
    partition: Option<i32>,
    offset: Option<u64>,
    /// The value of `postdate-origin` on the target.
    origin: Option<String>,
    key: Option<String>,
    id: Option<String>,
    cancel: bool,
    /// `None` for a cancel.
    target: Option<String>,
    due_ms: Option<i64>,
    due: Option<String>,
}

/// A record that the service will accept.
struct Draft {
    headers: Vec<u8>,
    /// `None` for a cancel.
    due: Option<Timestamp>,
}

/// Sends the message of the command line and prints where it was stored.
pub(crate) fn send(config: &Config, send: &cli::SendArgs) -> Result<Outcome> {
    let source = config.routes.get(&send.route).map(|route| &route.source);
    let (by_subject, subject) = source
        .map(|source| subject::of(source, send))
        .transpose()?
        .flatten()
        .unzip();
    let first = source.and_then(|source| source.topics.first());
    let topic = by_subject
        .or(send.topic.clone())
        .or(first.cloned())
        .unwrap_or_default();
    config.check_source(&send.route, &topic)?;
    let rules = routing_rules(config, &send.route);
    let shard = ShardId::new(
        send.route.as_str(),
        Partition::new(topic.as_str(), send.partition.unwrap_or(0)),
    );
    let (origins, now) = (
        OriginFormat::new(&config.deployment, &shard),
        WallClock.now(),
    );
    let payload = payload(send)?;
    let draft = draft(
        (send, subject.as_deref()),
        (&origins, &rules),
        payload.as_deref(),
        now,
    )?;
    let receipt = Receipt {
        route: send.route.clone(),
        topic,
        key: send.key.clone(),
        id: send.id.clone(),
        cancel: draft.due.is_none(),
        target: draft
            .due
            .and_then(|_| target_of(send, &draft, (&origins, &rules))),
        due_ms: draft.due.map(Timestamp::as_millis),
        due: draft.due.map(Timestamp::to_rfc3339),
        ..Receipt::default()
    };
    let (receipt, note) = run(async {
        let (partition, note) = lead(config, send, &receipt.topic).await;
        Ok((
            deliver(
                config,
                (send, partition, subject.as_deref()),
                (&draft, payload.as_deref()),
                receipt,
            )
            .await?,
            note,
        ))
    })?;
    print(&if send.json {
        json(&receipt)?
    } else {
        text(&receipt, now, &Page::of_stdout())
    })?;
    if let Some(note) = note {
        tracing::warn!("{note}");
    }
    Ok(Outcome::Done)
}

/// The target to which the service will deliver the message.
fn target_of(
    send: &cli::SendArgs,
    draft: &Draft,
    (origins, rules): (&OriginFormat, &RoutingRules),
) -> Option<String> {
    let headers = Headers::from_block(&draft.headers);
    rules
        .targets
        .resolve(send.to.as_deref(), origins.topic(), headers)
        .ok()
        .map(Cow::into_owned)
}

/// Returns the partition, or `None` to let the key choose, and a note for the user. A cancel or
/// replacement works only on the partition of the pending message. Its producer may use another
/// partitioner, so look the id up.
async fn lead(config: &Config, send: &cli::SendArgs, topic: &str) -> (Option<i32>, Option<String>) {
    let Some(id) = send.id.as_ref().filter(|_| send.partition.is_none()) else {
        return (send.partition, None);
    };
    let found = async {
        Source::open(config)
            .await?
            .found(id, Some(&send.route))
            .await
    };
    let search = match tokio::time::timeout(COMMAND_DELIVERY_TIMEOUT, found).await {
        Ok(Ok(search)) => search,
        Ok(Err(error)) => return (None, Some(unled(id, &format!("{error:#}")))),
        Err(_) => return (None, Some(unled(id, "the store does not answer"))),
    };
    let partitions: Vec<i32> = search
        .found
        .iter()
        .filter(|place| place.topic == topic)
        .map(|place| place.partition)
        .collect();
    match partitions[..] {
        [partition] => (Some(partition), None),
        [] if send.cancel => (
            None,
            Some(format!(
                "nothing waits under the id {id} now: the cancel went where its key leads"
            )),
        ),
        [] => (None, None),
        _ => (
            None,
            Some(format!(
                "messages wait under the id {id} on partitions {partitions:?}: choose with --partition, else the key does"
            )),
        ),
    }
}

fn unled(id: &str, why: &str) -> String {
    format!(
        "where the id {id} waits could not be looked up, so the record went where its key leads: {why}"
    )
}

fn payload(send: &cli::SendArgs) -> Result<Option<Vec<u8>>> {
    let read = |reader: &mut dyn Read| -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        reader
            .take(COMMAND_PAYLOAD_BYTES_MAX + 1)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > COMMAND_PAYLOAD_BYTES_MAX {
            return Err(Refused(format!(
                "the payload has more than {COMMAND_PAYLOAD_BYTES_MAX} bytes"
            ))
            .into());
        }
        Ok(bytes)
    };
    let bytes = match (&send.file, send.payload.as_deref()) {
        (Some(file), _) => {
            let mut file_in = std::fs::File::open(file)
                .map_err(|error| Refused(format!("--file {}: {error}", file.display())))?;
            read(&mut file_in)?
        }
        (None, Some("-")) => read(&mut std::io::stdin().lock()).context("standard input")?,
        (None, Some(text)) => text.as_bytes().to_vec(),
        (None, None) => return Ok(None),
    };
    Ok(Some(bytes))
}

/// Builds the record and parses it as the service does.
fn draft(
    (send, subject): (&cli::SendArgs, Option<&str>),
    (origins, rules): (&OriginFormat, &RoutingRules),
    payload: Option<&[u8]>,
    now: Timestamp,
) -> std::result::Result<Draft, Refused> {
    let mut own = own_headers(send)?;
    // The service sees the NATS subject as a header.
    own.extend(subject.map(|subject| (SUBJECT, subject)));
    let when = [
        (ControlHeader::After, &send.delay),
        (ControlHeader::At, &send.at),
    ];
    let when: Vec<_> = when
        .into_iter()
        .filter_map(|(control, value)| Some((control, value.clone()?)))
        .collect();
    let admitted = |when: &[(ControlHeader, String)]| -> std::result::Result<Draft, Refused> {
        let headers = block(send, &own, when);
        let key = send.key.as_deref().map(str::as_bytes);
        let record = Record {
            offset: Offset(0),
            timestamp: Some(now),
            key,
            payload,
            headers: Headers::from_block(&headers),
        };
        let due = match parse_record(&record, origins, rules) {
            ParsedRecord::Message { due, .. } => Some(due),
            ParsedRecord::Cancel { .. } => None,
            ParsedRecord::Rejected(refusal) => {
                return Err(Refused(format!(
                    "not sent, for the service would make a dead letter of it ({}): {}",
                    refusal.reason.code(),
                    refusal.detail
                )));
            }
        };
        Ok(Draft { headers, due })
    };
    let draft = admitted(&when)?;
    // The service counts a delay from the record's timestamp, which the broker may set. An absolute
    // time keeps the printed due time true.
    match draft.due {
        Some(due) if send.delay.is_some() => {
            admitted(&[(ControlHeader::At, due.as_millis().to_string())])
        }
        _ => Ok(draft),
    }
}

fn own_headers(send: &cli::SendArgs) -> std::result::Result<Vec<(&str, &str)>, Refused> {
    let pairs = send.headers.iter().map(|header| {
        let pair = header.split_once('=').filter(|(name, _)| !name.is_empty());
        pair.ok_or_else(|| Refused(format!("--header {header:?}: write NAME=VALUE")))
    });
    pairs.collect()
}

/// Encodes the record's headers: the message's own first, then the control headers.
fn block(send: &cli::SendArgs, own: &[(&str, &str)], when: &[(ControlHeader, String)]) -> Vec<u8> {
    let mut block = Vec::new();
    let mut push =
        |name: &str, value: &str| push_header(&mut block, name.as_bytes(), Some(value.as_bytes()));
    own.iter().for_each(|(name, value)| push(name, value));
    when.iter()
        .for_each(|(control, value)| push(control.name(), value));
    send.to
        .iter()
        .for_each(|target| push(ControlHeader::To.name(), target));
    send.id
        .iter()
        .for_each(|id| push(ControlHeader::Id.name(), id));
    if send.cancel {
        push(ControlHeader::Op.name(), "cancel");
    }
    block
}

async fn deliver(
    config: &Config,
    (send, partition, subject): (&cli::SendArgs, Option<i32>, Option<&str>),
    (draft, payload): (&Draft, Option<&[u8]>),
    receipt: Receipt,
) -> Result<Receipt> {
    let source = &config.routes[&send.route].source;
    let name = &format!("{}.{}", source.kind.key(), source.cluster);
    let health = Health::new();
    let mut target =
        target(config, source, health.register("send")).with_context(|| name.clone())?;
    let record = OutgoingRecord {
        topic: subject.unwrap_or(&receipt.topic),
        partition: partition.filter(|_| subject.is_none()),
        key: send.key.as_deref().map(str::as_bytes),
        payload,
        headers: Headers::from_block(&draft.headers),
        keep_header: |name| name != SUBJECT.as_bytes(),
        extra_headers: &[],
    };
    let report = match target.send(&record, 0) {
        SendResult::Accepted => reported(&mut *target, &health).await?,
        SendResult::QueueFull => bail!("not sent: the client takes nothing"),
        SendResult::Failed(failure) => DeliveryReport {
            ticket: 0,
            position: None,
            outcome: Err(failure),
        },
    };
    target.close().await;
    match report.outcome {
        Ok(()) => Ok(placed(config, receipt, report.position)),
        Err(failure) => {
            let (topic, detail) = (&receipt.topic, &failure.detail);
            match failure.kind {
                FailureKind::Rejected => bail!("not sent: {name} refuses it for {topic}: {detail}"),
                FailureKind::NotDelivered => {
                    bail!("not sent: {name} does not take it for {topic} now: {detail}")
                }
                FailureKind::MaybeDelivered | FailureKind::ClientFailed => bail!(
                    "{name} has not confirmed it within {} s: {detail}. It may have arrived all the same: look before you send it again",
                    COMMAND_DELIVERY_TIMEOUT.as_secs()
                ),
            }
        }
    }
}

fn target(config: &Config, source: &config::Source, part: HealthPart) -> Result<Box<dyn Target>> {
    let options = TargetOptions {
        purpose: TargetPurpose::Command,
        in_flight_max: 1,
        // A process sends one record, so its id and the time make the name unique.
        sender: format!(
            "send/{}/{}",
            std::process::id(),
            WallClock.now().as_millis()
        ),
    };
    Cluster::of(config, &source.cluster).target(options, part)
}

/// Waits for the delivery report. A client without a connection may never report, so the wait has a
/// timeout.
async fn reported(target: &mut dyn Target, health: &Health) -> Result<DeliveryReport> {
    if let Ok(mut reports) =
        tokio::time::timeout(COMMAND_REPORT_TIMEOUT, target.next_reports()).await
    {
        return reports.pop().context("the client reports on every record");
    }
    let detail = health
        .not_ready()
        .pop()
        .map_or_else(|| "no answer".to_owned(), |complaint| complaint.reason);
    Ok(DeliveryReport {
        ticket: 0,
        position: None,
        outcome: Err(DeliveryFailure {
            kind: FailureKind::MaybeDelivered,
            reason: DeadLetterReason::TimedOut,
            detail,
        }),
    })
}

fn placed(config: &Config, receipt: Receipt, place: Option<(i32, Offset)>) -> Receipt {
    let Some((partition, offset)) = place else {
        return receipt;
    };
    let shard = ShardId::new(
        receipt.route.as_str(),
        Partition::new(receipt.topic.as_str(), partition),
    );
    let mut origin = String::new();
    OriginFormat::new(&config.deployment, &shard).append_origin(offset, &mut origin);
    let origin = Some(origin).filter(|_| !receipt.cancel);
    Receipt {
        partition: Some(partition),
        offset: Some(offset.0),
        origin,
        ..receipt
    }
}

fn text(receipt: &Receipt, now: Timestamp, page: &Page) -> String {
    let mut rows = Vec::new();
    let place = match (receipt.partition, receipt.offset, &receipt.key) {
        (Some(partition), Some(offset), _) => {
            format!("{}/{partition} offset {offset}", receipt.topic)
        }
        (_, _, Some(key)) => format!("{} under the key {key}", receipt.topic),
        _ => receipt.topic.clone(),
    };
    rows.push((
        if receipt.cancel {
            "cancel sent to"
        } else {
            "sent to"
        },
        place,
    ));
    if let Some(due) = receipt.due_ms.map(Timestamp::from_millis) {
        let when = if due.is_at_once() || due <= now {
            "at once".to_owned()
        } else {
            relative(due, now)
        };
        rows.push((
            "due",
            if due.is_at_once() {
                when
            } else {
                format!("{}  ({when})", moment(due))
            },
        ));
    }
    rows.extend(
        receipt
            .target
            .iter()
            .map(|target| ("target", target.clone())),
    );
    rows.extend(receipt.id.iter().map(|id| ("id", id.clone())));
    rows.extend(
        receipt
            .origin
            .iter()
            .map(|origin| ("origin", origin.clone())),
    );
    let mut table = Table::new([Side::Left, Side::Left]);
    for (name, value) in rows {
        table.toned([(Tone::Faint, name.to_owned()), (Tone::Plain, value)]);
    }
    let mut text = table.print(page);
    if receipt.cancel {
        text += "It holds if the message still waits on this partition when the service reads it; what is being delivered is not stopped.\n";
    }
    let due = receipt.due_ms.map(Timestamp::from_millis);
    if due.is_some_and(Timestamp::is_suspicious_due) {
        text += &page.paint(
            Tone::Odd,
            "The due time lies before the year 2000: --at takes milliseconds, not seconds.\n",
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use crate::model::{Dialects, Naming, TargetRules, WithoutDelay};
    use clap::Parser;
    use std::time::Duration;

    const NOW: i64 = 1_795_302_005_000;

    fn parsed(line: &[&str]) -> cli::SendArgs {
        let all = ["postdate", "send", "--config", "c", "--route", "orders"]
            .iter()
            .chain(line);
        let Command::Send(send) = Cli::try_parse_from(all).unwrap().command else {
            panic!("another command")
        };
        *send
    }

    fn drafted(line: &[&str]) -> std::result::Result<Draft, String> {
        let rules = RoutingRules {
            targets: TargetRules::new(
                Naming::Topic,
                Some("orders"),
                ["billing.*"],
                ["orders.delayed"],
            ),
            max_delay: Duration::from_secs(3_600),
            max_retry_wait: Duration::from_secs(60),
            without_delay: WithoutDelay::Relay,
            dialects: Dialects::default(),
        };
        let origins = OriginFormat::new(
            "prod",
            &ShardId::new("orders", Partition::new("orders.delayed", 0)),
        );
        draft(
            (&parsed(line), None),
            (&origins, &rules),
            Some(b"x"),
            Timestamp::from_millis(NOW),
        )
        .map_err(|refused| refused.to_string())
    }

    fn headers(draft: &Draft) -> Vec<(String, String)> {
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
            headers(&draft),
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn a_cancel_has_only_its_op_and_its_id() {
        let draft = drafted(&["--cancel", "--id", "x", "--key", "k"]).unwrap();
        assert_eq!(draft.due, None);
        assert_eq!(
            headers(&draft),
            [("postdate-id", "x"), ("postdate-op", "cancel")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
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
            ..receipt
        };
        assert!(text(&silent, now, &Page::PLAIN).contains("orders.delayed under the key k\n"));
    }
}
