//! Tests of `parse_record`: tables of records with their results, and properties.

use super::parse_record::*;
use crate::limit::{RECORD_HEADER_BYTES_MAX, RECORD_HEADERS_MAX};
use crate::model::dialect::Dialects;
use crate::model::headers::header::block_of_lines as block;
use crate::model::headers::header_name::ControlHeader;
use crate::model::headers::retry::RetryHeader;
use crate::model::{
    Body, DeadLetterReason, Disposition, Headers, Naming, Offset, OriginFormat, Partition, Record,
    Rejection, RetryKeys, RetryState, RoutingRules, ShardId, TargetRules, Timestamp, WithoutDelay,
};
use proptest::prelude::*;
use std::time::Duration;

const OFFSET: Offset = Offset(43);
const NOW: i64 = 1_700_000_000_000;
const DAY: i64 = 86_400_000;
const RETRY: &str = "postdate-retry: attempt=2 origin=prod/orders/orders.delayed/0/42 due=1600000000000 target=audit \
    error=unknown_target at=1700000060000";

fn origins() -> OriginFormat {
    OriginFormat::new(
        "prod",
        &ShardId::new("orders", Partition::new("orders.delayed", 0)),
    )
}

fn targets(default: Option<&str>) -> TargetRules {
    let allowed = [
        "billing.*",
        "audit",
        "orders.delayed",
        "$*",
        "__*",
        "..",
        "* *",
    ];
    TargetRules::new(Naming::Topic, default, allowed, ["orders.delayed"])
}

fn rules() -> RoutingRules {
    RoutingRules {
        targets: targets(Some("orders")),
        replies: None,
        max_delay: Duration::from_secs(30 * 86_400),
        max_retry_wait: Duration::from_secs(1),
        without_delay: WithoutDelay::Relay,
        on_duplicate: crate::model::OnDuplicate::Replace,
        change_by_origin: false,
        dialects: Dialects::default(),
        is_recurring: false,
        retry_keys: RetryKeys::default(),
    }
}

fn record(timestamp: Option<i64>, block: &[u8]) -> Record<'_> {
    Record {
        offset: OFFSET,
        timestamp: timestamp.map(Timestamp::from_millis),
        key: Some(b"key"),
        payload: Some(b"payload"),
        headers: Headers::from_block(block),
    }
}

/// The expected result of a row, in short.
#[derive(Debug, PartialEq, Eq)]
enum Is {
    Due(i64),
    DueWithWarning(i64),
    Relayed,
    Retried(i64),
    Cancelled,
    Rescheduled(i64),
    DeadLetter(DeadLetterReason),
    DeadLetterAt(i64),
    Newer,
}

fn short(parsed: &ParsedRecord<'_>) -> Is {
    match parsed {
        ParsedRecord::Cancel { .. } => Is::Cancelled,
        ParsedRecord::Reschedule { due, .. } => Is::Rescheduled(due.as_millis()),
        ParsedRecord::Rejected(rejection) => Is::DeadLetter(rejection.reason),
        ParsedRecord::Newer(_) => Is::Newer,
        ParsedRecord::Definition | ParsedRecord::Control(_) => panic!("no such record"),
        ParsedRecord::Message { due, body } => match body.disposition {
            Disposition::Relay { .. } => Is::Relayed,
            Disposition::Retry(_) => Is::Retried(due.as_millis()),
            Disposition::DeadLetter { .. } => Is::DeadLetterAt(due.as_millis()),
            _ if due.is_suspicious_due() => Is::DueWithWarning(due.as_millis()),
            _ => Is::Due(due.as_millis()),
        },
    }
}

type Row<'a> = (&'a str, &'a RoutingRules, Option<i64>, &'a [&'a [u8]], Is);

fn check(rows: &[Row<'_>]) {
    for (meaning, rules, timestamp, lines, expected) in rows {
        let block = block(lines);
        let parsed = parse_record(&record(*timestamp, &block), &origins(), rules);
        assert_eq!(
            short(&parsed),
            *expected,
            "{meaning}: {} gave {parsed:?}",
            lines.join(&b", "[..]).escape_ascii()
        );
    }
}

#[test]
#[rustfmt::skip]
fn bad_delays_get_what_the_docs_say() {
    use Is::{DeadLetter, Due, DueWithWarning, Relayed};
    use DeadLetterReason::{AtAndAfter, DelayAboveMax, DuplicateHeader, EmptyValue, InvalidAfter, InvalidAt, MissingDue, NotUtf8};
    let r = &rules();
    let strict = &RoutingRules { without_delay: WithoutDelay::DeadLetter, ..rules() };
    let now = Some(NOW);
    check(&[
        ("no delay header", r, now, &[b"other: 1"], Relayed),
        ("no delay header", r, now, &[], Relayed),
        ("no delay header", r, None, &[], Relayed),
        ("no delay header", strict, now, &[], DeadLetter(MissingDue)),
        ("no delay header", strict, now, &[b"postdate-to: audit"], DeadLetter(MissingDue)),
        ("no delay header on an explicit schedule", r, now, &[b"postdate-op: schedule"], DeadLetter(MissingDue)),
        ("empty or null value", r, now, &[b"postdate-after: "], DeadLetter(EmptyValue)),
        ("empty or null value", r, now, &[b"postdate-after"], DeadLetter(EmptyValue)),
        ("empty or null value", r, now, &[b"postdate-at"], DeadLetter(EmptyValue)),
        ("value not UTF-8", r, now, &[b"postdate-after: 5\xff"], DeadLetter(NotUtf8)),
        ("value not UTF-8", r, now, &[b"postdate-at: \xc3\x28"], DeadLetter(NotUtf8)),
        ("abc", r, now, &[b"postdate-after: abc"], DeadLetter(InvalidAfter)),
        ("abc", r, now, &[b"postdate-at: abc"], DeadLetter(InvalidAt)),
        ("negative delay", r, now, &[b"postdate-after: -5"], Due(NOW - 5)),
        ("negative delay", r, now, &[b"postdate-after: -1700000000000"], DueWithWarning(0)),
        ("negative delay", r, now, &[b"postdate-after: -9223372036854775808"], DueWithWarning(NOW + i64::MIN)),
        ("zero", r, now, &[b"postdate-after: 0"], Due(NOW)),
        ("zero", r, now, &[b"postdate-at: 0"], DueWithWarning(0)),
        ("u64 overflow", r, now, &[b"postdate-after: 18446744073709551616"], DeadLetter(InvalidAfter)),
        ("u64 overflow", r, now, &[b"postdate-at: 18446744073709551616"], DeadLetter(InvalidAt)),
        ("the greatest delay", r, now, &[b"postdate-after: 9223372036854775807"], DeadLetter(DelayAboveMax)),
        ("the greatest due", r, now, &[b"postdate-at: 9223372036854775807"], DeadLetter(DelayAboveMax)),
        ("the least due, which means at once", r, now, &[b"postdate-at: -9223372036854775808"], DeadLetter(InvalidAt)),
        ("one more than the least due", r, now, &[b"postdate-at: -9223372036854775807"], DueWithWarning(i64::MIN + 1)),
        ("1e9", r, now, &[b"postdate-after: 1e9"], DeadLetter(InvalidAfter)),
        ("+5", r, now, &[b"postdate-after: +5"], DeadLetter(InvalidAfter)),
        (" 5 ", r, now, &[b"postdate-after:  5 "], DeadLetter(InvalidAfter)),
        ("NaN, inf", r, now, &[b"postdate-after: NaN"], DeadLetter(InvalidAfter)),
        ("NaN, inf", r, now, &[b"postdate-at: inf"], DeadLetter(InvalidAt)),
        ("exactly the maximum", r, now, &[b"postdate-after: 30d"], Due(NOW + 30 * DAY)),
        ("above the maximum", r, now, &[b"postdate-after: 30d1ms"], DeadLetter(DelayAboveMax)),
        ("exactly the maximum", r, now, &[b"postdate-at: 1702592000000"], Due(NOW + 30 * DAY)),
        ("above the maximum", r, now, &[b"postdate-at: 1702592000001"], DeadLetter(DelayAboveMax)),
        ("due in the past", r, now, &[b"postdate-at: 1600000000000"], Due(1_600_000_000_000)),
        ("due in the past", r, now, &[b"postdate-at: 2000-01-01T00:00:00Z"], Due(946_684_800_000)),
        ("seconds where ms are meant", r, now, &[b"postdate-at: 1700000000"], DueWithWarning(1_700_000_000)),
        ("seconds where ms are meant", r, now, &[b"postdate-at: 1999-12-31T23:59:59.999Z"], DueWithWarning(946_684_799_999)),
        ("year 9999", r, now, &[b"postdate-at: 9999-12-31T23:59:59Z"], DeadLetter(DelayAboveMax)),
        ("both a delay and a due time", r, now, &[b"postdate-at: 1700000000001", b"postdate-after: 1"], DeadLetter(AtAndAfter)),
        ("both, though wrong", r, now, &[b"postdate-at: x", b"postdate-after: y"], DeadLetter(AtAndAfter)),
        ("the same header twice", r, now, &[b"postdate-after: 1", b"postdate-after: 1"], DeadLetter(DuplicateHeader)),
        ("the same header twice", r, now, &[b"postdate-at: 1", b"x: 1", b"postdate-at"], DeadLetter(DuplicateHeader)),
        ("other headers twice", r, now, &[b"x: 1", b"postdate-after: 1", b"x: 1"], Due(NOW + 1)),
        ("header names in another case", r, now, &[b"Postdate-After: 5"], Relayed),
        ("header names in another case", r, now, &[b"postdate-after: 5", b"POSTDATE-AFTER: x"], Due(NOW + 5)),
    ]);
}

#[test]
#[rustfmt::skip]
fn odd_timestamps_get_what_the_docs_say() {
    use Is::{DeadLetter, Due, DueWithWarning, Relayed};
    use DeadLetterReason::{DelayAboveMax, InvalidTimestamp};
    let r = &rules();
    let boundless = &RoutingRules { max_delay: Duration::MAX, ..rules() };
    let now = Some(NOW);
    check(&[
        ("after, and no timestamp", r, None, &[b"postdate-after: 5"], DeadLetter(InvalidTimestamp)),
        ("after, timestamp before 2000", r, Some(0), &[b"postdate-after: 5"], DeadLetter(InvalidTimestamp)),
        ("after, timestamp before 2000", r, Some(946_684_799_999), &[b"postdate-after: -5"], DeadLetter(InvalidTimestamp)),
        ("after, timestamp in 2000", r, Some(946_684_800_000), &[b"postdate-after: 5"], Due(946_684_800_005)),
        ("timestamp far ahead", r, Some(NOW + 9_000 * DAY), &[b"postdate-after: 5"], Due(NOW + 9_000 * DAY + 5)),
        ("timestamp far ahead", r, Some(NOW + 9_000 * DAY), &[b"postdate-at: 1600000000000"], Due(1_600_000_000_000)),
        ("timestamp at the end of time", r, Some(i64::MAX), &[b"postdate-after: 5"], DeadLetter(InvalidTimestamp)),
        ("timestamp at the end of time", r, Some(i64::MAX), &[b"postdate-after: -5"], Due(i64::MAX - 5)),
        ("timestamp at the start of time", r, Some(i64::MIN), &[b"postdate-after: 5"], DeadLetter(InvalidTimestamp)),
        ("timestamp at the start of time", r, Some(i64::MIN), &[], Relayed),
        ("at, and no timestamp", r, None, &[b"postdate-at: 1700000000000"], DeadLetter(DelayAboveMax)),
        ("at, and no timestamp", r, None, &[b"postdate-at: 2000-01-31T00:00:00Z"], Due(946_684_800_000 + 30 * DAY)),
        ("at, and no timestamp", r, None, &[b"postdate-at: 1700000000"], DueWithWarning(1_700_000_000)),
        ("at, timestamp before 2000", r, Some(5), &[b"postdate-at: 5"], DueWithWarning(5)),
        ("at, timestamp before 2000", r, Some(5), &[b"postdate-at: 2000-01-31T00:00:00Z"], Due(946_684_800_000 + 30 * DAY)),
        ("at, timestamp before 2000", r, Some(-5), &[b"postdate-at: 2000-02-01T00:00:00Z"], DeadLetter(DelayAboveMax)),
        ("no maximum", boundless, now, &[b"postdate-at: 9223372036854775807"], Due(i64::MAX)),
        ("no maximum", boundless, now, &[b"postdate-after: 9223372036854775807"], DeadLetter(InvalidTimestamp)),
        ("no maximum", boundless, None, &[b"postdate-at: 9999-12-31T23:59:59Z"], Due(253_402_300_799_000)),
    ]);
}

#[test]
#[rustfmt::skip]
fn bad_targets_ids_and_ops_get_what_the_docs_say() {
    use Is::{Cancelled, DeadLetter, Due, Relayed, Rescheduled};
    use DeadLetterReason::{CancelWithoutId, DelayAboveMax, DuplicateHeader, EmptyValue, InvalidId, InvalidOp, MissingDue, NotUtf8};
    use DeadLetterReason::{InvalidTarget, NoTarget, TargetIsSource, TargetNotAllowed};
    let r = &rules();
    let no_default = &RoutingRules { targets: targets(None), ..rules() };
    let (now, after) = (Some(NOW), b"postdate-after: 5".as_slice());
    let longest_id = format!("postdate-id: {}", "x".repeat(128));
    let too_long_id = format!("postdate-id: {}", "x".repeat(129));
    check(&[
        ("no target and no default", no_default, now, &[after], DeadLetter(NoTarget)),
        ("no target and no default", no_default, now, &[], DeadLetter(NoTarget)),
        ("a target and no default", no_default, now, &[after, b"postdate-to: audit"], Due(NOW + 5)),
        ("target on the allow-list", r, now, &[after, b"postdate-to: billing.eu"], Due(NOW + 5)),
        ("target is the default", r, now, &[after, b"postdate-to: orders"], Due(NOW + 5)),
        ("target not on the allow-list", r, now, &[after, b"postdate-to: other"], DeadLetter(TargetNotAllowed)),
        ("target not on the allow-list", r, now, &[b"postdate-to: other"], DeadLetter(TargetNotAllowed)),
        ("target on the allow-list, no delay", r, now, &[b"postdate-to: audit"], Relayed),
        ("target is a source", r, now, &[after, b"postdate-to: orders.delayed"], DeadLetter(TargetIsSource)),
        ("target with wildcard", r, now, &[after, b"postdate-to: billing.*"], DeadLetter(InvalidTarget)),
        ("target with space", r, now, &[after, b"postdate-to: a b"], DeadLetter(InvalidTarget)),
        ("target ..", r, now, &[after, b"postdate-to: .."], DeadLetter(InvalidTarget)),
        ("target with NUL", r, now, &[after, b"postdate-to: audit\0"], DeadLetter(InvalidTarget)),
        ("target __*", r, now, &[after, b"postdate-to: __consumer_offsets"], DeadLetter(InvalidTarget)),
        ("target $JS", r, now, &[after, b"postdate-to: $JS.API.INFO"], DeadLetter(InvalidTarget)),
        ("target $SYS", r, now, &[after, b"postdate-to: $SYS"], DeadLetter(InvalidTarget)),
        ("target empty", r, now, &[after, b"postdate-to: "], DeadLetter(EmptyValue)),
        ("target null", r, now, &[after, b"postdate-to"], DeadLetter(EmptyValue)),
        ("target not UTF-8", r, now, &[after, b"postdate-to: \xff"], DeadLetter(NotUtf8)),
        ("two targets", r, now, &[after, b"postdate-to: audit", b"postdate-to: audit"], DeadLetter(DuplicateHeader)),
        ("an id", r, now, &[after, b"postdate-id: A-Za.z_0:9"], Due(NOW + 5)),
        ("an id without delay", r, now, &[b"postdate-id: a"], Relayed),
        ("an id of 128 bytes", r, now, &[after, longest_id.as_bytes()], Due(NOW + 5)),
        ("an id of 129 bytes", r, now, &[after, too_long_id.as_bytes()], DeadLetter(InvalidId)),
        ("an id with {}", r, now, &[after, b"postdate-id: {a}"], DeadLetter(InvalidId)),
        ("an id with a space", r, now, &[b"postdate-id: a b"], DeadLetter(InvalidId)),
        ("an id that is not ASCII", r, now, &[after, "postdate-id: é".as_bytes()], DeadLetter(InvalidId)),
        ("an id with a line end", r, now, &[after, b"postdate-id: a\n"], DeadLetter(InvalidId)),
        ("an empty id", r, now, &[after, b"postdate-id: "], DeadLetter(EmptyValue)),
        ("a null id", r, now, &[b"postdate-op: cancel", b"postdate-id"], DeadLetter(EmptyValue)),
        ("op schedule", r, now, &[after, b"postdate-op: schedule"], Due(NOW + 5)),
        ("op unknown", r, now, &[after, b"postdate-op: delete"], DeadLetter(InvalidOp)),
        ("op in another case", r, now, &[after, b"postdate-op: Schedule"], DeadLetter(InvalidOp)),
        ("op with a space", r, now, &[b"postdate-op: cancel ", b"postdate-id: a"], DeadLetter(InvalidOp)),
        ("op empty", r, now, &[after, b"postdate-op: "], DeadLetter(EmptyValue)),
        ("op twice", r, now, &[b"postdate-op: cancel", b"postdate-op: cancel", b"postdate-id: a"], DeadLetter(DuplicateHeader)),
        ("cancel", r, now, &[b"postdate-op: cancel", b"postdate-id: a"], Cancelled),
        ("cancel without timestamp", r, None, &[b"postdate-id: a", b"postdate-op: cancel"], Cancelled),
        ("cancel on a route without default", no_default, now, &[b"postdate-id: a", b"postdate-op: cancel"], Cancelled),
        ("cancel without id", r, now, &[b"postdate-op: cancel"], DeadLetter(CancelWithoutId)),
        ("cancel with invalid id", r, now, &[b"postdate-op: cancel", b"postdate-id: a b"], DeadLetter(InvalidId)),
        ("reschedule", r, now, &[b"postdate-op: reschedule", b"postdate-id: a", after], Rescheduled(NOW + 5)),
        ("reschedule", r, now, &[b"postdate-op: reschedule", b"postdate-id: a", b"postdate-at: 1700000000000"], Rescheduled(NOW)),
        ("reschedule on a route without default", no_default, now, &[b"postdate-op: reschedule", b"postdate-id: a", after, b"postdate-to: nowhere"], Rescheduled(NOW + 5)),
        ("reschedule without id", r, now, &[b"postdate-op: reschedule", after], DeadLetter(CancelWithoutId)),
        ("reschedule without delay", r, now, &[b"postdate-op: reschedule", b"postdate-id: a"], DeadLetter(MissingDue)),
        ("reschedule too far ahead", r, now, &[b"postdate-op: reschedule", b"postdate-id: a", b"postdate-after: 31d"], DeadLetter(DelayAboveMax)),
        ("cancel with due and delays", r, now, &[b"postdate-op: cancel", b"postdate-at", b"postdate-id: a", after, after], Cancelled),
    ]);
}

#[test]
#[rustfmt::skip]
fn a_forged_retry_gains_nothing() {
    use Is::{DeadLetter, Retried};
    use DeadLetterReason::{DuplicateHeader, EmptyValue, InvalidRetry, InvalidTarget, NoTarget, NotUtf8, TargetIsSource, TargetNotAllowed};
    let r = &rules();
    let no_default = &RoutingRules { targets: targets(None), ..rules() };
    let retry = RETRY.as_bytes();
    let with = |from: &str, to: &str| RETRY.replacen(from, to, 1).into_bytes();
    check(&[
        ("ours", r, Some(NOW), &[retry], Retried(NOW + 60_000)),
        ("ours, to the default", r, Some(NOW), &[&with("target=audit", "target=")], Retried(NOW + 60_000)),
        ("ours, beside others", r, Some(NOW), &[b"postdate-at: x", retry, b"postdate-at", b"postdate-op: x"], Retried(NOW + 60_000)),
        ("ours, due already", r, Some(NOW + DAY), &[retry], Retried(NOW + 60_000)),
        ("ours, as late as may be", r, Some(NOW + 60_000 - 30 * DAY), &[retry], Retried(NOW + 60_000)),
        ("later than may be", r, Some(NOW + 59_999 - 30 * DAY), &[retry], DeadLetter(InvalidRetry)),
        ("no timestamp", r, None, &[retry], DeadLetter(InvalidRetry)),
        ("of this record itself", r, Some(NOW), &[&with("/42", "/43")], DeadLetter(InvalidRetry)),
        ("of a later record", r, Some(NOW), &[&with("/42", "/44")], DeadLetter(InvalidRetry)),
        ("of another partition", r, Some(NOW), &[&with("/0/42", "/1/42")], DeadLetter(InvalidRetry)),
        ("of another topic", r, Some(NOW), &[&with("orders.delayed", "other")], DeadLetter(InvalidRetry)),
        ("of another route", r, Some(NOW), &[&with("prod/orders", "prod/other")], DeadLetter(InvalidRetry)),
        ("of another deployment", r, Some(NOW), &[&with("prod", "test")], DeadLetter(InvalidRetry)),
        ("never tried", r, Some(NOW), &[&with("attempt=2", "attempt=0")], DeadLetter(InvalidRetry)),
        ("tried too often", r, Some(NOW), &[&with("attempt=2", "attempt=4294967295")], DeadLetter(InvalidRetry)),
        ("due at once", r, Some(NOW), &[&with("at=1700000060000", "at=-9223372036854775808")], DeadLetter(InvalidRetry)),
        ("not a retry", r, Some(NOW), &[b"postdate-retry: 1"], DeadLetter(InvalidRetry)),
        ("not UTF-8", r, Some(NOW), &[b"postdate-retry: \xff"], DeadLetter(NotUtf8)),
        ("null", r, Some(NOW), &[b"postdate-retry", b"postdate-after: 5"], DeadLetter(EmptyValue)),
        ("twice", r, Some(NOW), &[retry, retry], DeadLetter(DuplicateHeader)),
        ("to what is not allowed", r, Some(NOW), &[&with("=audit", "=other")], DeadLetter(TargetNotAllowed)),
        ("to a source", r, Some(NOW), &[&with("=audit", "=orders.delayed")], DeadLetter(TargetIsSource)),
        ("to what is no topic", r, Some(NOW), &[&with("=audit", "=$JS")], DeadLetter(InvalidTarget)),
        ("to a default that is gone", no_default, Some(NOW), &[&with("target=audit", "target=")], DeadLetter(NoTarget)),
    ]);
}

#[test]
fn a_retry_is_accepted_if_its_signature_verifies_on_this_record() {
    let sample = RetryHeader {
        retry: RetryState {
            attempt: 2,
            origin: "prod/orders/orders.delayed/0/42",
            due: Timestamp::from_millis(NOW),
            error: Some(DeadLetterReason::UnknownTarget),
        },
        target: None,
        dialect: None,
        at: Timestamp::from_millis(NOW + 60_000),
        is_answer: false,
        id: None,
        replaces: None,
        sent_from: None,
    };
    let keys = |text, accepts_unsigned| RetryKeys::new(text, accepts_unsigned);
    let line = |keys: &RetryKeys, key: &[u8], payload: &[u8]| {
        let mut line = "postdate-retry: ".to_owned();
        sample.append_line(keys, Some(key), Some(payload), &mut line);
        line
    };
    let short = |line: &str, retry_keys| {
        let rules = RoutingRules {
            retry_keys,
            ..rules()
        };
        short(&parse_record(
            &record(Some(NOW), &block(&[line])),
            &origins(),
            &rules,
        ))
    };
    let (accepted, forged) = (Is::Retried(NOW + 60_000), Is::DeadLetterAt(NOW + 60_000));
    let signed = line(&keys("a", false), b"key", b"payload");
    for key in ["a", "a\nb", "b\na"] {
        assert_eq!(short(&signed, keys(key, false)), accepted, "{key}");
    }
    assert_eq!(short(&signed, RetryKeys::default()), accepted, "no key");
    assert_eq!(short(&signed, keys("b", true)), forged, "another key");
    for changed in [
        line(&keys("a", false), b"other", b"payload"),
        line(&keys("a", false), b"key", b"other"),
        line(&keys("a", false), b"keyp", b"ayload"),
        signed.replace("attempt=2", "attempt=3"),
        signed.replace("/42", "/41"),
        signed.replace("at=1700000060000", "at=1700000060000 more=1"),
        signed.replace("mac=", "mac=0"),
    ] {
        assert_eq!(short(&changed, keys("a", false)), forged, "{changed}");
    }
    let unsigned = line(&RetryKeys::default(), b"key", b"payload");
    for unsigned in [unsigned.as_str(), &unsigned.replace("v2 mac=- ", "")] {
        assert_eq!(short(unsigned, keys("a", false)), forged);
        assert_eq!(short(unsigned, keys("a", true)), accepted);
        assert_eq!(short(unsigned, RetryKeys::default()), accepted);
    }
}

#[test]
fn a_retry_of_a_newer_version_is_waited_for_unless_it_is_forged() {
    let short = |line: &str, retry_keys| {
        let rules = RoutingRules {
            retry_keys,
            ..rules()
        };
        let headers = block(&[line]);
        short(&parse_record(
            &record(Some(NOW), &headers),
            &origins(),
            &rules,
        ))
    };
    let newer = "postdate-retry: v4 mac=- origin=prod/orders/orders.delayed/0/42 new=1";
    let invalid = Is::DeadLetter(DeadLetterReason::InvalidRetry);
    assert_eq!(short(newer, RetryKeys::default()), Is::Newer);
    assert_eq!(short(newer, RetryKeys::new("a", true)), Is::Newer);
    assert_eq!(short(newer, RetryKeys::new("a", false)), invalid);
    for line in [
        &newer.replace("/42", "/43"),
        &newer.replace("mac=- ", ""),
        &newer.replace("v4", "v2"),
        &newer.replace("v4", "v"),
    ] {
        assert_eq!(short(line, RetryKeys::default()), invalid, "{line}");
    }
}

#[test]
fn more_headers_than_the_bound_are_rejected_and_the_bound_itself_is_accepted() {
    let count = |headers: usize| {
        let mut lines = vec!["h: 1"; headers - 1];
        lines.push("postdate-after: 5");
        short(&parse_record(
            &record(Some(NOW), &block(&lines)),
            &origins(),
            &rules(),
        ))
    };
    assert_eq!(count(RECORD_HEADERS_MAX), Is::Due(NOW + 5));
    assert_eq!(
        count(RECORD_HEADERS_MAX + 1),
        Is::DeadLetter(DeadLetterReason::TooManyHeaders)
    );
    assert_eq!(
        count(10_000),
        Is::DeadLetter(DeadLetterReason::TooManyHeaders)
    );

    let bytes = |bytes: usize| {
        // Name's length, name, three bytes for the value's length.
        let block = block(&[format!("h: {}", "x".repeat(bytes - 5))]);
        assert_eq!(block.len(), bytes);
        short(&parse_record(
            &record(Some(NOW), &block),
            &origins(),
            &rules(),
        ))
    };
    assert_eq!(bytes(RECORD_HEADER_BYTES_MAX), Is::Relayed);
    assert_eq!(
        bytes(RECORD_HEADER_BYTES_MAX + 1),
        Is::DeadLetter(DeadLetterReason::TooManyHeaders)
    );
    assert_eq!(
        bytes(1_000_000),
        Is::DeadLetter(DeadLetterReason::TooManyHeaders)
    );
}

#[test]
fn forged_output_headers_change_nothing_on_reading() {
    let lines = [
        "postdate-due: x",
        "postdate-origin",
        "postdate-error: x",
        "postdate-error-detail: x",
        "postdate-after: 5",
        "postdate-due: y",
    ];
    let block = block(&lines);
    assert_eq!(
        short(&parse_record(
            &record(Some(NOW), &block),
            &origins(),
            &rules()
        )),
        Is::Due(NOW + 5)
    );
}

#[test]
fn a_message_keeps_what_it_named_and_leaves_the_rest_to_the_route() {
    let named = block(&[
        "a: 1",
        "postdate-after: 5",
        "postdate-to: orders",
        "postdate-id: x",
    ]);
    let admitted = parse_record(&record(Some(NOW), &named), &origins(), &rules());
    let body = Body {
        key: Some(b"key"),
        payload: Some(b"payload"),
        headers: Headers::from_block(&named),
        id: Some("x"),
        target: Some("orders"),
        until: None,
        dialect: None,
        replaces: None,
        sent_from: None,
        disposition: Disposition::Deliver,
    };
    assert_eq!(
        admitted,
        ParsedRecord::Message {
            due: Timestamp::from_millis(NOW + 5),
            body,
        }
    );

    let unnamed = block(&["postdate-after: 5"]);
    let admitted = parse_record(&record(Some(NOW), &unnamed), &origins(), &rules());
    let body = Body {
        headers: Headers::from_block(&unnamed),
        id: None,
        target: None,
        ..body
    };
    assert_eq!(
        admitted,
        ParsedRecord::Message {
            due: Timestamp::from_millis(NOW + 5),
            body,
        }
    );
}

#[test]
fn a_due_time_is_spread_by_the_origin_and_never_early() {
    let due = |offset: u64, span: &str| {
        let spread = format!("postdate-spread: {span}");
        let block = block(&["postdate-after: 10s", spread.as_str()]);
        let record = Record {
            offset: Offset(offset),
            ..record(Some(NOW), &block)
        };
        match parse_record(&record, &origins(), &rules()) {
            ParsedRecord::Message { due, .. } => due.as_millis() - NOW - 10_000,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((due(7, "0"), due(7, "0ms")), (0, 0));
    // Later versions must give the same parts. Computed by another implementation.
    assert_eq!([7, 8].map(|offset| due(offset, "5m")), [205_484, 181_591]);
    let parts: Vec<_> = (0..1_000).map(|offset| due(offset, "5m")).collect();
    assert!(parts.iter().all(|part| (0..=300_000).contains(part)));
    for third in 0..3 {
        let range = third * 100_000..(third + 1) * 100_000;
        let count = parts.iter().filter(|part| range.contains(*part)).count();
        assert!((250..420).contains(&count), "{count}");
    }
}

#[test]
#[rustfmt::skip]
fn bad_spreads_and_times_of_expiry_get_what_the_docs_say() {
    use Is::{DeadLetter, Due, Relayed};
    use DeadLetterReason::{DelayAboveMax, EmptyValue, InvalidSpread, InvalidUntil};
    let (r, now, after) = (&rules(), Some(NOW), b"postdate-after: 29d".as_slice());
    check(&[
        ("a span", r, now, &[after, b"postdate-spread: 0"], Due(NOW + 29 * DAY)),
        ("not a span", r, now, &[after, b"postdate-spread: soon"], DeadLetter(InvalidSpread)),
        ("a negative span", r, now, &[after, b"postdate-spread: -1"], DeadLetter(InvalidSpread)),
        ("no span", r, now, &[after, b"postdate-spread"], DeadLetter(EmptyValue)),
        ("a span beyond max_delay", r, now, &[after, b"postdate-spread: 25h"], DeadLetter(DelayAboveMax)),
        ("a span without a delay", r, now, &[b"postdate-spread: 5m"], Relayed),
        ("a time", r, now, &[after, b"postdate-until: 1800000000000"], Due(NOW + 29 * DAY)),
        ("not a time", r, now, &[after, b"postdate-until: 5m"], DeadLetter(InvalidUntil)),
    ]);
}

#[test]
fn a_message_and_its_retry_know_when_they_expire() {
    let signed = RoutingRules {
        retry_keys: RetryKeys::new("a", false),
        ..rules()
    };
    for (line, rules, expires) in [
        ("postdate-after: 5", rules(), true),
        (RETRY, rules(), true),
        (RETRY, signed, false),
    ] {
        let block = block(&[line, "postdate-until: 1800000000000"]);
        let record = record(Some(NOW), &block);
        let ParsedRecord::Message { body, .. } = parse_record(&record, &origins(), &rules) else {
            panic!("{line}")
        };
        let until = Timestamp::from_millis(1_800_000_000_000);
        assert_eq!(body.until, Some(until).filter(|_| expires), "{line}");
    }
}

#[test]
fn the_subject_in_an_origin_may_contain_an_at_sign() {
    let rules = RoutingRules {
        change_by_origin: true,
        ..rules()
    };
    let shard = ShardId::new("orders", Partition::new("ORDERS:delayed@eu.*", 0));
    let origins = OriginFormat::new("prod", &shard);
    for due in ["", "@1700000000000"] {
        let of = format!("postdate-of: prod/orders/ORDERS:delayed@eu.*/0/42{due}");
        let block = block(&["postdate-op: cancel", &of]);
        let record = record(Some(NOW), &block);
        let parsed = parse_record(&record, &origins, &rules);
        assert_eq!(parsed, ParsedRecord::Cancel { id: "/42" });
    }
}

#[test]
fn a_message_without_id_is_named_by_its_origin() {
    let allowed = RoutingRules {
        change_by_origin: true,
        ..rules()
    };
    let parsed = |lines: &[&str], rules: &RoutingRules| {
        let block = block(lines);
        match parse_record(&record(Some(NOW), &block), &origins(), rules) {
            ParsedRecord::Cancel { id } | ParsedRecord::Reschedule { id, .. } => Ok(id.to_owned()),
            ParsedRecord::Rejected(rejection) => Err(rejection.reason),
            other => panic!("{other:?}"),
        }
    };
    const CANCEL: &str = "postdate-op: cancel";
    let of = |origin: &str| format!("postdate-of: {origin}");
    let own = of("prod/orders/orders.delayed/0/42");
    assert_eq!(parsed(&[CANCEL, &own], &allowed), Ok("/42".to_owned()));
    let with_due = format!("{own}@1700000000000");
    let moved = ["postdate-op: reschedule", "postdate-after: 5", &with_due];
    assert_eq!(parsed(&moved, &allowed), Ok("/42".to_owned()));
    let invalid = Err(DeadLetterReason::InvalidOf);
    assert_eq!(parsed(&[CANCEL, &own], &rules()), invalid);
    assert_eq!(parsed(&[CANCEL, &own, "postdate-id: a"], &allowed), invalid);
    for origin in [
        "42",
        "prod/orders/orders.delayed/0/042",
        "prod/orders/orders.delayed/0/",
    ] {
        assert_eq!(
            parsed(&[CANCEL, &of(origin)], &allowed),
            invalid,
            "{origin}"
        );
    }
    let elsewhere = of("prod/orders/orders.delayed/1/42");
    let wrong = Err(DeadLetterReason::WrongPartition);
    assert_eq!(parsed(&[CANCEL, &elsewhere], &allowed), wrong);
}

#[test]
fn a_relay_keeps_its_timestamp_id_and_target() {
    let named = block(&["postdate-to: audit", "postdate-id: x"]);
    for (timestamp, kept) in [
        (Some(NOW), NOW),
        (None, -1),
        (Some(i64::MIN), -1),
        (Some(5), 5),
    ] {
        let disposition = Disposition::Relay {
            timestamp: Timestamp::from_millis(kept),
        };
        let record = record(timestamp, &named);
        let body = Body {
            id: Some("x"),
            target: Some("audit"),
            disposition,
            ..Body::of(&record)
        };
        let expected = ParsedRecord::Message {
            due: Timestamp::AT_ONCE,
            body,
        };
        assert_eq!(parse_record(&record, &origins(), &rules()), expected);
    }
}

#[test]
fn a_retry_brings_back_what_the_first_record_was() {
    let block = block(&[RETRY, "postdate-id: x"]);
    let record = record(Some(NOW), &block);
    let retry = RetryState {
        attempt: 2,
        origin: "prod/orders/orders.delayed/0/42",
        due: Timestamp::from_millis(1_600_000_000_000),
        error: Some(DeadLetterReason::UnknownTarget),
    };
    let body = Body {
        target: Some("audit"),
        disposition: Disposition::Retry(retry),
        ..Body::of(&record)
    };
    let expected = ParsedRecord::Message {
        due: Timestamp::from_millis(NOW + 60_000),
        body,
    };
    assert_eq!(parse_record(&record, &origins(), &rules()), expected);
}

#[test]
fn null_and_empty_keys_and_payloads_stay_what_they_are() {
    let delayed = block(&["postdate-after: 5"]);
    for bytes in [None, Some(b"".as_slice()), Some(b"{a}/\0\xff")] {
        let record = Record {
            key: bytes,
            payload: bytes,
            ..record(Some(NOW), &delayed)
        };
        let ParsedRecord::Message { body, .. } = parse_record(&record, &origins(), &rules()) else {
            panic!("not a message")
        };
        assert_eq!((body.key, body.payload), (bytes, bytes));
        let rejection = Rejection::new(DeadLetterReason::InvalidAt, "why");
        let body = Body::rejected(&record, &rejection);
        assert_eq!(
            (body.key, body.payload, body.headers),
            (bytes, bytes, record.headers)
        );
        assert_eq!(
            body.disposition,
            Disposition::DeadLetter {
                reason: DeadLetterReason::InvalidAt,
                detail: "why"
            }
        );
    }
}

#[test]
fn a_rejection_names_the_found_and_the_accepted_values() {
    let table: &[(&[u8], &str)] = &[
        (
            b"postdate-after: 1h 30m",
            r#"postdate-after is "1h 30m"; expected milliseconds, or units such as 1h30m, 250ms, 7d"#,
        ),
        (
            b"postdate-id: a\nb",
            r#"postdate-id is "a\nb"; expected 1-128 of A-Z a-z 0-9 . _ : -"#,
        ),
        (
            b"postdate-at: \xff\x1b[2J",
            r#"postdate-at is "\xff\x1b[2J", which is not UTF-8"#,
        ),
        (
            b"postdate-op: schedule",
            "postdate-op: schedule requires postdate-at or postdate-after; the record has neither",
        ),
        (
            b"postdate-after: 31d",
            "the record is due 31d after its timestamp; the route's max_delay is 30d",
        ),
    ];
    for (line, expected) in table {
        let ParsedRecord::Rejected(rejection) =
            parse_record(&record(Some(NOW), &block(&[line])), &origins(), &rules())
        else {
            panic!("not rejected")
        };
        assert_eq!(rejection.detail, *expected);
    }
    let elsewhere = RETRY.replace("=audit", "=other");
    let ParsedRecord::Rejected(rejection) = parse_record(
        &record(Some(NOW), &block(&[elsewhere])),
        &origins(),
        &rules(),
    ) else {
        panic!("not rejected")
    };
    assert!(rejection.detail.starts_with(
        r#"retry of prod/orders/orders.delayed/0/42: the target "other" is not allowed"#
    ));
}

/// Mostly control headers with values near the valid ones, so that the later checks are reached
/// too.
fn lines() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let plausible = proptest::sample::select(vec![
        "postdate-at: 1700000000000",
        "postdate-at: -9223372036854775808",
        "postdate-at: 2023-11-15T00:00:00Z",
        "postdate-after: 1h30m",
        "postdate-after: -9223372036854775808",
        "postdate-after: 9223372036854775807",
        "postdate-to: audit",
        "postdate-to: other",
        "postdate-id: a",
        "postdate-op: schedule",
        "postdate-op: cancel",
        RETRY,
        "other: 1",
    ])
    .prop_map(|line| line.as_bytes().to_vec());
    let names = ControlHeader::ALL.map(ControlHeader::name).to_vec();
    let foreign = (
        proptest::sample::select(names),
        proptest::collection::vec(any::<u8>(), 0..20),
    )
        .prop_map(|(name, value)| [name.as_bytes(), b": ", &value].concat());
    let number = (
        proptest::sample::select(vec!["postdate-at", "postdate-after"]),
        any::<i64>(),
    )
        .prop_map(|(name, millis)| format!("{name}: {millis}").into_bytes());
    let null = proptest::sample::select(ControlHeader::ALL.map(ControlHeader::name).to_vec())
        .prop_map(|name| name.as_bytes().to_vec());
    proptest::collection::vec(
        prop_oneof![6 => plausible, 2 => foreign, 2 => number, 1 => null],
        0..4,
    )
}

fn timestamp() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![
        Just(None),
        Just(Some(NOW)),
        any::<i64>().prop_map(Some),
        Just(Some(i64::MIN)),
        Just(Some(i64::MAX))
    ]
}

fn any_rules() -> impl Strategy<Value = RoutingRules> {
    (any::<bool>(), any::<bool>(), any::<u64>()).prop_map(|(relay, default, max_delay)| {
        RoutingRules {
            targets: targets(default.then_some("orders")),
            without_delay: if relay {
                WithoutDelay::Relay
            } else {
                WithoutDelay::DeadLetter
            },
            replies: None,
            max_delay: Duration::from_millis(max_delay),
            max_retry_wait: Duration::from_secs(1),
            ..rules()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_record_read_twice_means_the_same_twice_in_any_order_of_its_headers(
        mut lines in lines(), timestamp in timestamp(), rules in any_rules(),
    ) {
        let first = block(&lines);
        let record = record(timestamp, &first);
        let parsed = parse_record(&record, &origins(), &rules);
        prop_assert_eq!(&parse_record(&record, &origins(), &rules), &parsed);
        lines.reverse();
        let reversed = block(&lines);
        let other = Record { headers: Headers::from_block(&reversed), ..record };
        prop_assert_eq!(short(&parse_record(&other, &origins(), &rules)), short(&parsed));
    }

    #[test]
    fn at_once_is_never_a_users_due(lines in lines(), timestamp in timestamp(), rules in any_rules()) {
        let block = block(&lines);
        if let ParsedRecord::Message { due, body, .. } = parse_record(&record(timestamp, &block), &origins(), &rules) {
            prop_assert_eq!(due.is_at_once(), matches!(body.disposition, Disposition::Relay { .. }));
            let shown = match body.disposition {
                Disposition::Relay { timestamp } => timestamp,
                Disposition::Retry(retry) => retry.due,
                _ => due,
            };
            prop_assert!(!shown.is_at_once());
        }
    }

    #[test]
    fn what_is_admitted_has_an_allowed_target_and_no_longer_delay_than_the_route_takes(
        lines in lines(), timestamp in timestamp(), rules in any_rules(),
    ) {
        let block = block(&lines);
        let record = record(timestamp, &block);
        if let ParsedRecord::Message { due, body, .. } = parse_record(&record, &origins(), &rules) {
            prop_assert!(rules.targets.resolve(body.target, origins().topic(), record.headers).is_ok());
            prop_assert!(due.since(delay_base(&record)) <= rules.max_delay);
        }
    }

    #[test]
    fn foreign_bytes_never_panic(bytes: Vec<u8>, timestamp in timestamp()) {
        let _ = parse_record(&record(timestamp, &bytes), &origins(), &rules());
    }
}
