//! Fixtures of the dialect tests, and tests of properties that all dialects have.

use super::*;
use crate::model::headers::header::{block_of_lines as block, push_header};
use crate::model::headers::header_name::{ControlHeader, stays_on_delivery};
use crate::model::headers::origin::OriginFormat;
use crate::model::headers::retry_keys::RetryKeys;
use crate::model::message::Disposition;
use crate::model::parsing::parse_record::{ParsedRecord, parse_record};
use crate::model::routing::routing_rules::{Naming, RoutingRules, TargetRules, WithoutDelay};
use crate::model::shard::{Offset, Partition, ShardId};
use crate::model::time::Timestamp;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeSet;
use std::time::Duration;
use time::OffsetDateTime;

pub(super) const NOW: i64 = 1_700_000_000_000;

/// Headers, as `name: value` or `name` alone for a null value, and the expected result.
pub(super) struct Row<'a>(pub(super) &'a [&'a str], pub(super) Is<'a>);

/// The expected result for a record. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is<'a> {
    At(i64),
    /// A delay, counted from [`NOW`].
    After(i64),
    AtTo(i64, &'a str),
    /// As `AtTo`, with an id.
    Keyed(i64, &'a str, &'a str),
    Relayed,
    Cancelled(&'a str),
    DeadLetter(DeadLetterReason),
}

impl<'a> Is<'a> {
    fn of(parsed: &ParsedRecord<'a>) -> Self {
        match parsed {
            ParsedRecord::Cancel { id } => Self::Cancelled(id),
            ParsedRecord::Reschedule { .. } => panic!("no dialect reschedules"),
            ParsedRecord::Rejected(rejection) => Self::DeadLetter(rejection.reason),
            ParsedRecord::Definition | ParsedRecord::Control(_) | ParsedRecord::Newer(_) => {
                unreachable!("no such record")
            }
            ParsedRecord::Message { body, .. }
                if matches!(body.disposition, Disposition::Relay { .. }) =>
            {
                Self::Relayed
            }
            ParsedRecord::Message { due, body, .. } => {
                match (due.as_millis(), body.target, body.id) {
                    (due, target, Some(id)) => Self::Keyed(due, target.unwrap_or_default(), id),
                    (due, Some(target), None) => Self::AtTo(due, target),
                    (due, None, None) => Self::At(due),
                }
            }
        }
    }

    fn absolute(self) -> Self {
        if let Self::After(delay) = self {
            Self::At(NOW + delay)
        } else {
            self
        }
    }
}

fn rules(dialects: &[Dialect]) -> RoutingRules {
    RoutingRules {
        targets: TargetRules::new(
            Naming::Topic,
            Some("orders"),
            ["billing.*", "audit", "orders.delayed", "..", "$*"],
            ["orders.delayed"],
        ),
        replies: None,
        max_delay: Duration::from_secs(30 * 86_400),
        max_retry_wait: Duration::from_secs(1),
        without_delay: WithoutDelay::Relay,
        on_duplicate: crate::model::OnDuplicate::Replace,
        change_by_origin: false,
        dialects: dialects.iter().copied().collect(),
        is_recurring: false,
        retry_keys: RetryKeys::default(),
    }
}

fn headers_of(dialect: Dialect) -> impl Iterator<Item = &'static str> {
    let headers = dialect.system().headers.iter();
    headers.map(|(name, _)| *name)
}

fn origins() -> OriginFormat {
    OriginFormat::new(
        "prod",
        &ShardId::new("orders", Partition::new("orders.delayed", 0)),
    )
}

pub(super) fn record(timestamp: Option<i64>, block: &[u8]) -> Record<'_> {
    Record {
        offset: Offset(43),
        timestamp: timestamp.map(Timestamp::from_millis),
        key: Some(b"key"),
        payload: Some(b"payload"),
        headers: Headers::from_block(block),
    }
}

/// Checks each row on a route that understands only this dialect.
pub(super) fn check(dialect: Dialect, rows: &[Row<'_>]) {
    for Row(lines, expected) in rows {
        check_record(&[dialect], lines, record(Some(NOW), &[]), *expected);
    }
}

/// As [`check`], with complete records.
pub(super) fn check_records(dialect: Dialect, rows: &[((&[&str], Record<'_>), Is<'_>)]) {
    for ((lines, record), expected) in rows {
        check_record(&[dialect], lines, *record, *expected);
    }
}

fn check_record(dialects: &[Dialect], lines: &[&str], record: Record<'_>, expected: Is<'_>) {
    let (block, reversed) = (block(lines), block(&lines.iter().rev().collect::<Vec<_>>()));
    for block in [block, reversed] {
        let record = Record {
            headers: Headers::from_block(&block),
            ..record
        };
        let (origins, rules) = (origins(), rules(dialects));
        let parsed = parse_record(&record, &origins, &rules);
        assert_eq!(
            Is::of(&parsed),
            expected.absolute(),
            "{lines:?} gave {parsed:?}"
        );
    }
}

/// The delivered key of a record with the key `key`.
pub(super) fn delivered_key(dialect: Dialect, lines: &[&str]) -> Option<Vec<u8>> {
    dialect
        .key_on_delivery(Some(b"key"), Headers::from_block(&block(lines)))
        .map(<[u8]>::to_vec)
}

/// The due-time header of each dialect, a control header of the same meaning, and how both express
/// the same number of seconds, or of milliseconds where the dialect has them.
#[derive(Clone, Copy, Debug)]
struct Time {
    dialect: Dialect,
    header: &'static str,
    control: &'static str,
    say: fn(i64) -> [String; 2],
}

const TIMES: [Time; 12] = [
    time(Dialect::RabbitMq, "x-delay", "postdate-after", |n| {
        [n.to_string(), n.to_string()]
    }),
    time(
        Dialect::ActiveMq,
        "AMQ_SCHEDULED_DELAY",
        "postdate-after",
        |n| [n.to_string(), n.to_string()],
    ),
    time(Dialect::RocketMq, "TIMER_DELIVER_MS", "postdate-at", |n| {
        [n.to_string(), n.to_string()]
    }),
    time(
        Dialect::RocketMq,
        "__STARTDELIVERTIME",
        "postdate-at",
        |n| [n.to_string(), n.to_string()],
    ),
    time(Dialect::RocketMq, "TIMER_DELAY_MS", "postdate-after", |n| {
        [n.to_string(), n.to_string()]
    }),
    time(
        Dialect::RocketMq,
        "TIMER_DELAY_SEC",
        "postdate-after",
        seconds,
    ),
    time(Dialect::Pulsar, "deliverAt", "postdate-at", |n| {
        [n.to_string(), n.to_string()]
    }),
    time(Dialect::Pulsar, "deliverAfter", "postdate-after", |n| {
        [n.to_string(), n.to_string()]
    }),
    time(Dialect::Nats, "Nats-Schedule", "postdate-at", |n| {
        [format!("@at {}", rfc3339(n)), rfc3339(n)]
    }),
    time(
        Dialect::QStash,
        "Upstash-Not-Before",
        "postdate-at",
        seconds,
    ),
    time(
        Dialect::Karafka,
        "schedule_target_epoch",
        "postdate-at",
        seconds,
    ),
    time(Dialect::Etf1, "scheduler-epoch", "postdate-at", seconds),
];

const fn time(
    dialect: Dialect,
    header: &'static str,
    control: &'static str,
    say: fn(i64) -> [String; 2],
) -> Time {
    Time {
        dialect,
        header,
        control,
        say,
    }
}

fn seconds(number: i64) -> [String; 2] {
    // A number with three noughts that is no milliseconds any more is none in either.
    [number.to_string(), format!("{number}000")]
}

/// An instant of the years 0 to 9999.
fn rfc3339(number: i64) -> String {
    let (start, span) = (-62_167_219_200_000, 315_569_520_000_000);
    let at = start + number.rem_euclid(span);
    let instant =
        OffsetDateTime::from_unix_timestamp(at.div_euclid(1_000)).expect("the years 0 to 9999");
    let (date, time) = (instant.date(), instant.time());
    let (month, millis) = (u8::from(date.month()), at.rem_euclid(1_000));
    let (hour, minute, second) = time.as_hms();
    format!(
        "{:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z",
        date.year(),
        date.day()
    )
}

fn short<'a>(
    lines: &[String],
    rules: &RoutingRules,
    record: Record<'a>,
    block: &'a mut Vec<u8>,
) -> Is<'a> {
    *block = self::block(lines);
    let parsed = parse_record(
        &Record {
            headers: Headers::from_block(block),
            ..record
        },
        &origins(),
        rules,
    );
    Is::of(&parsed)
}

#[test]
fn no_header_is_in_two_dialects_or_a_control_header() {
    let all: Vec<_> = Dialect::ALL.into_iter().flat_map(headers_of).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    assert!(
        all.iter()
            .all(|name| ControlHeader::from_name(name.as_bytes()).is_none()
                && stays_on_delivery(name.as_bytes()))
    );
}

#[test]
fn a_dialect_reads_back_from_its_name_and_its_number() {
    for dialect in Dialect::ALL {
        assert_eq!(
            (
                Dialect::from_name(dialect.name()),
                Dialect::from_code(dialect.code())
            ),
            (Some(dialect), Some(dialect))
        );
        let set: Dialects = [dialect].into_iter().collect();
        assert!(
            Dialect::ALL
                .into_iter()
                .all(|other| set.has(other) == (other == dialect))
        );
    }
    assert_eq!(
        (
            Dialect::from_name("Etf1"),
            Dialect::from_code(0),
            Dialect::from_code(9)
        ),
        (None, None, None)
    );
}

#[test]
#[rustfmt::skip]
fn bad_values_are_rejected_as_bad_control_headers_are() {
    for Time { dialect, header, .. } in TIMES {
        let bad = |value: Option<&[u8]>, times: usize| {
            let mut block = Vec::new();
            (0..times).for_each(|_| push_header(&mut block, header.as_bytes(), value));
            let record = record(Some(NOW), &block);
            let ParsedRecord::Rejected(rejection) = parse_record(&record, &origins(), &rules(&[dialect])) else { panic!("{header}: {value:?}") };
            assert!(rejection.detail.contains(header) || rejection.reason == DeadLetterReason::DelayAboveMax, "{}", rejection.detail);
            rejection.reason
        };
        assert_eq!(bad(None, 1), DeadLetterReason::EmptyValue, "{header}");
        assert_eq!(bad(Some(b""), 1), DeadLetterReason::EmptyValue, "{header}");
        assert_eq!(bad(Some(b"1\xff"), 1), DeadLetterReason::NotUtf8, "{header}");
        assert_eq!(bad(Some(b"1"), 2), DeadLetterReason::DuplicateHeader, "{header}");
        let malformed = ["abc", "1e9", "+5", " 5", "5 ", "1.5", "0x10", "NaN", "inf", "18446744073709551616", "\u{661}"];
        for value in malformed {
            let reason = bad(Some(value.as_bytes()), 1);
            let expected = [DeadLetterReason::InvalidAt, DeadLetterReason::InvalidAfter, DeadLetterReason::DialectUnsupported];
            assert!(expected.contains(&reason), "{header}: {value} is {reason}");
        }
    }
}

#[test]
fn two_dialects_on_one_record_are_rejected_if_the_route_understands_both() {
    for (index, one) in TIMES.iter().enumerate() {
        for other in &TIMES[index + 1..] {
            // The values need not be valid.
            let lines = [format!("{}: 1", one.header), format!("{}: x", other.header)];
            let lines = lines.each_ref().map(String::as_str);
            if one.dialect == other.dialect {
                continue;
            }
            check_record(
                &Dialect::ALL,
                &lines,
                record(Some(NOW), &[]),
                Is::DeadLetter(DeadLetterReason::DialectConflict),
            );
            let (block, origins, rules) = (block(&lines), origins(), rules(&[one.dialect]));
            let alone = parse_record(&record(Some(NOW), &block), &origins, &rules);
            assert!(
                !matches!(alone, ParsedRecord::Rejected(rejection) if rejection.reason == DeadLetterReason::DialectConflict)
            );
        }
    }
    let lines = block(&["deliverAt: 1", "own: 1", "x-delay: 1"]);
    let ParsedRecord::Rejected(rejection) = parse_record(
        &record(Some(NOW), &lines),
        &origins(),
        &rules(&Dialect::ALL),
    ) else {
        panic!("not rejected")
    };
    assert_eq!(
        rejection.detail,
        "the record has headers of rabbitmq and pulsar; use one of them"
    );
}

#[test]
#[rustfmt::skip]
fn control_headers_have_precedence() {
    let rows: &[(&[&str], Is<'_>)] = &[
        (&["postdate-after: 5", "x-delay: 60000"], Is::After(5)),
        (&["postdate-at: 1600000000000", "x-delay: abc"], Is::At(1_600_000_000_000)),
        (&["postdate-after: 5", "x-delay: 60000", "deliverAt: 1"], Is::After(5)),
        (&["postdate-after: 5", "scheduler-epoch: 1", "scheduler-target-topic: audit"], Is::After(5)),
        (&["postdate-after: x", "x-delay: 60000"], Is::DeadLetter(DeadLetterReason::InvalidAfter)),
        (&["postdate-op: schedule", "x-delay: 60000"], Is::After(60_000)),
        (&["postdate-id: a", "x-delay: 60000"], Is::Keyed(NOW + 60_000, "", "a")),
        (&["postdate-to: audit", "x-delay: 60000"], Is::AtTo(NOW + 60_000, "audit")),
        (&["postdate-to: billing.eu", "Nats-Schedule: @at 2023-11-14T23:13:20Z", "Nats-Schedule-Target: other"], Is::AtTo(NOW + 3_600_000, "billing.eu")),
        (&["postdate-id: a", "scheduler-epoch: 1700000060", "scheduler-target-topic: audit"], Is::Keyed(NOW + 60_000, "audit", "a")),
        (&["postdate-op: cancel", "postdate-id: a", "x-delay: 5", "deliverAt: x"], Is::Cancelled("a")),
        (&["postdate-id: a", "schedule_source_type: cancel"], Is::Cancelled("a")),
        (&["postdate-op: schedule", "schedule_source_type: cancel"], Is::DeadLetter(DeadLetterReason::MissingDue)),
    ];
    for (lines, expected) in rows {
        check_record(&Dialect::ALL, lines, record(Some(NOW), &[]), *expected);
    }
}

#[test]
fn a_dialect_header_stays_if_a_control_header_has_precedence() {
    let lines = block(&["postdate-after: 5", "x-delay: 60000"]);
    let (origins, rules) = (origins(), rules(&[Dialect::RabbitMq]));
    let dialect = |block: &[u8]| match parse_record(&record(Some(NOW), block), &origins, &rules) {
        ParsedRecord::Message { body, .. } => body.dialect,
        other => panic!("{other:?}"),
    };
    assert_eq!(dialect(&lines), None);
    assert_eq!(
        dialect(&block(&["postdate-to: audit", "x-delay: 60000"])),
        Some(Dialect::RabbitMq)
    );
    assert_eq!(dialect(&block(&["own: 1"])), None);
}

#[test]
fn a_delay_needs_a_valid_timestamp() {
    for Time {
        dialect,
        header,
        control,
        ..
    } in TIMES
    {
        let lines = block(&[format!("{header}: 5")]);
        let ParsedRecord::Rejected(rejection) =
            parse_record(&record(None, &lines), &origins(), &rules(&[dialect]))
        else {
            continue;
        };
        if control == "postdate-after" {
            assert_eq!(rejection.reason, DeadLetterReason::InvalidTimestamp);
            assert_eq!(
                rejection.detail,
                format!("{header} cannot be counted from a record without a timestamp")
            );
        }
    }
}

/// The migration page of each system names all of its headers.
#[test]
fn every_header_is_on_the_page_of_its_system() {
    let pages = [
        include_str!("../../../docs/migrate/rabbitmq.md"),
        include_str!("../../../docs/migrate/activemq.md"),
        include_str!("../../../docs/migrate/rocketmq.md"),
        include_str!("../../../docs/migrate/pulsar.md"),
        include_str!("../../../docs/migrate/nats.md"),
        include_str!("../../../docs/migrate/qstash.md"),
        include_str!("../../../docs/migrate/karafka.md"),
        include_str!("../../../docs/migrate/etf1.md"),
    ];
    for (dialect, page) in Dialect::ALL.into_iter().zip(pages) {
        assert!(
            page.contains(&format!("dialects = [\"{}\"]", dialect.name())),
            "{}",
            dialect.name()
        );
        for header in headers_of(dialect) {
            let is_there = [format!("`{header}`"), format!("`{header}: ")]
                .iter()
                .any(|named| page.contains(named));
            assert!(
                is_there,
                "{header} is not on the page of {}",
                dialect.name()
            );
        }
    }
}

/// Headers of all dialects with meaningful values, and some others.
fn lines() -> impl Strategy<Value = Vec<String>> {
    let value = prop_oneof![
        4 => (-5..100_000i64).prop_map(|n| n.to_string()),
        2 => (NOW..NOW + 100_000).prop_map(|n| n.to_string()),
        2 => (1_700_000_000..1_700_100_000i64).prop_map(|n| n.to_string()),
        1 => any::<i64>().prop_map(|n| n.to_string()),
        2 => select(vec!["audit", "other", "schedule", "cancel", "1.0.0", "1d10h", "0", "", "@at 2023-11-14T23:13:20Z"]).prop_map(str::to_owned),
    ];
    let names: Vec<_> = Dialect::ALL
        .into_iter()
        .flat_map(headers_of)
        .chain(["own", "postdate-to", "postdate-id"])
        .collect();
    prop::collection::vec(
        (select(names), value).prop_map(|(name, value)| format!("{name}: {value}")),
        0..5,
    )
}

/// A record without its headers.
fn parts() -> impl Strategy<Value = (Option<i64>, Option<&'static [u8]>, Option<&'static [u8]>)> {
    let bytes = || {
        select(vec![
            None,
            Some(b"".as_slice()),
            Some(b"k".as_slice()),
            Some(b"a b".as_slice()),
        ])
    };
    (prop::option::of(Just(NOW)), bytes(), bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_route_without_dialects_ignores_their_headers(lines in lines(), (timestamp, key, payload) in parts()) {
        let record = Record { key, payload, ..record(timestamp, &[]) };
        let is_own = |line: &String| Dialects::from_iter(Dialect::ALL).find_header(line.split(": ").next().unwrap().as_bytes()).is_none();
        let own: Vec<_> = lines.iter().filter(|line| is_own(line)).cloned().collect();
        let (mut with, mut without) = (Vec::new(), Vec::new());
        prop_assert_eq!(short(&lines, &rules(&[]), record, &mut with), short(&own, &rules(&[]), record, &mut without));
        let (origins, rules) = (origins(), rules(&[]));
        if let ParsedRecord::Message { body, .. } = parse_record(&Record { headers: Headers::from_block(&with), ..record }, &origins, &rules) {
            prop_assert_eq!((body.dialect, body.key, body.headers), (None, key, Headers::from_block(&with)));
            prop_assert!(lines.iter().filter(|line| !is_own(line)).all(|line| stays_on_delivery(line.split(": ").next().unwrap().as_bytes())));
        }
    }

    #[test]
    fn a_dialect_header_means_the_same_as_its_control_header(
        time in select(&TIMES), number in prop_oneof![-100_000..100_000i64, NOW / 1_000..NOW / 1_000 + 3_000_000, NOW..NOW + 3_000_000_000, any::<i64>()],
        (timestamp, _, _) in parts(), to in prop::option::of(select(vec!["audit", "other", ".."])),
    ) {
        let record = Record { key: None, ..record(timestamp, &[]) };
        let [theirs, ours] = (time.say)(number);
        let to = to.map(|to| format!("postdate-to: {to}"));
        let lines = |name: &str, value: &str| [Some(format!("{name}: {value}")), to.clone()].into_iter().flatten().collect::<Vec<_>>();
        let (mut one, mut other) = (Vec::new(), Vec::new());
        let theirs = short(&lines(time.header, &theirs), &rules(&[time.dialect]), record, &mut one);
        prop_assert_eq!(theirs, short(&lines(time.control, &ours), &rules(&[]), record, &mut other));
    }

    #[test]
    fn a_record_means_the_same_in_any_order_of_its_headers_and_its_target_is_allowed(
        mut lines in lines(), dialects in prop::sample::subsequence(&Dialect::ALL, 0..=8), (timestamp, key, payload) in parts(),
    ) {
        let record = Record { key, payload, ..record(timestamp, &[]) };
        let rules = rules(&dialects);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        let meant = short(&lines, &rules, record, &mut one);
        lines.reverse();
        prop_assert_eq!(short(&lines, &rules, record, &mut other), meant);
        if let Is::AtTo(_, target) | Is::Keyed(_, target, _) = meant {
            let resolved = rules.targets.resolve(Some(target), "orders.delayed", Headers::default());
            prop_assert!(target.is_empty() || resolved.is_ok());
        }
    }

    #[test]
    fn only_the_headers_of_the_spoken_dialect_are_removed(lines in lines(), dialect in select(&Dialect::ALL)) {
        let stays = dialect.stays_on_delivery();
        for line in lines {
            let name = line.split(": ").next().unwrap();
            prop_assert_eq!(stays(name.as_bytes()), headers_of(dialect).all(|header| header != name) && stays_on_delivery(name.as_bytes()));
        }
    }

    #[test]
    fn foreign_bytes_never_panic(bytes: Vec<u8>, (timestamp, _, _) in parts()) {
        let _ = parse_record(&record(timestamp, &bytes), &origins(), &rules(&Dialect::ALL));
    }
}
