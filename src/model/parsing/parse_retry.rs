//! Parses a record that Postdate wrote to the source: a retry, or a control record.

use super::dead_letter_reason::DeadLetterReason;
use super::parse_record::{ParsedRecord, delay_base, is_id};
use super::rejection::{Quoted, Rejection};
use crate::model::headers::control::Control;
use crate::model::headers::origin::is_id_of_offset;
use crate::model::headers::retry::{RetryHeader, RetryLine};
use crate::model::headers::retry_keys::Proof;
use crate::model::{
    Body, Disposition, Offset, OriginFormat, Record, RetryKeys, RoutingRules, Timestamp,
};

/// Accepts only a line that Postdate could have written on this record, so that a forged line gains
/// nothing: the origin is an earlier record of the shard, the next attempt is not further ahead
/// than a delay may be, the rules allow the target, and the signature verifies.
///
/// The position of a retry must not depend on the keys of today, so a wrong signature does not change it. A
/// control record has none. Without a right signature it becomes a dead letter: see docs/security.md for the
/// time that an old key must be kept.
pub(super) fn parse_retry<'a>(
    line: &'a str,
    until: Option<Timestamp>,
    record: &Record<'a>,
    origins: &OriginFormat,
    rules: &RoutingRules,
) -> Result<ParsedRecord<'a>, Rejection> {
    let rejected = |why: &str| {
        let detail = format!("postdate-retry is {}: {why}", Quoted(line.as_bytes()));
        Rejection::new(DeadLetterReason::InvalidRetry, detail)
    };
    let unknown = || rejected("not as Postdate writes it");
    let parsed = RetryLine::parse(line).ok_or_else(unknown)?;
    let is_earlier = |offset| offset < record.offset;
    let is_earlier = |origin| origins.parse_offset(origin).is_some_and(is_earlier);
    if parsed.is_control() {
        let control = parse_control(&parsed, record, origins, &rules.retry_keys);
        return control.ok_or_else(|| rejected(FORGED_TEXT));
    }
    let proof = rules.retry_keys.check(&parsed, record);
    let Some(RetryHeader {
        retry,
        target,
        dialect,
        at,
        is_answer,
        id,
        replaces,
        sent_from,
    }) = parsed.header()
    else {
        let is_newer = match proof {
            Proof::Genuine => true,
            Proof::Unsigned => parsed.is_newer() && parsed.origin().is_some_and(is_earlier),
            Proof::Forged => false,
        };
        return if is_newer && !fault!(RejectNewerRetry) {
            Ok(ParsedRecord::Newer(
                "its postdate-retry has an unknown format",
            ))
        } else {
            Err(unknown())
        };
    };
    if !is_earlier(retry.origin) {
        let why = "its origin is not an earlier record of this partition";
        return Err(rejected(why));
    }
    if !is_named(id, replaces) {
        return Err(unknown());
    }
    if at.since(delay_base(record)) > rules.max_delay.max(rules.max_retry_wait) {
        let why = "its next attempt is further ahead than any that the route makes";
        return Err(rejected(why));
    }
    // The timer checks the target of an answer: see `reply`.
    if !is_answer {
        let allowed = rules
            .targets
            .resolve(target, origins.topic(), record.headers);
        allowed.map_err(|rejection| of_retry(retry.origin, rejection))?;
    }
    let (id, disposition) = match proof {
        Proof::Genuine | Proof::Unsigned if is_answer => (None, Disposition::RetriedAnswer(retry)),
        Proof::Genuine | Proof::Unsigned => (id, Disposition::Retry(retry)),
        Proof::Forged => (None, FORGED),
    };
    let body = Body {
        id,
        target,
        // A dead letter never expires.
        until: until.filter(|_| matches!(disposition, Disposition::Retry(_))),
        dialect,
        replaces,
        sent_from,
        disposition,
        ..Body::of(record)
    };
    Ok(ParsedRecord::Message { due: at, body })
}

const FORGED: Disposition<'static> = Disposition::DeadLetter {
    reason: DeadLetterReason::InvalidRetry,
    detail: FORGED_TEXT,
};

const FORGED_TEXT: &str =
    "postdate-retry has no signature, or a wrong one: Postdate did not write it on this record";

/// The meaning of a control record. Several deployments and routes may read one topic, so a record for another
/// one is skipped: its signature is of another key. `None`: the record has no right signature, which it
/// always needs.
fn parse_control<'a>(
    line: &RetryLine<'a>,
    record: &Record<'a>,
    origins: &OriginFormat,
    keys: &RetryKeys,
) -> Option<ParsedRecord<'a>> {
    let is_of_other = |origin| origins.parse_offset(origin).is_none();
    let is_empty = record.key.is_none() && record.payload.is_none_or(<[u8]>::is_empty);
    if is_empty && line.origin().is_some_and(is_of_other) {
        return Some(ParsedRecord::Control(None));
    }
    if keys.check(line, record) != Proof::Genuine {
        return None;
    }
    Some(match Control::parse(line) {
        Some(control) => ParsedRecord::Control(Some(control)),
        None => ParsedRecord::Newer("its postdate-retry has an unknown format"),
    })
}

/// A copy has an id, because it takes the place of a message under it.
fn is_named(id: Option<&str>, replaces: Option<Offset>) -> bool {
    let is_valid = |id: &str| is_id(id.as_bytes()) || is_id_of_offset(id);
    id.map_or(replaces.is_none(), is_valid)
}

fn of_retry(origin: &str, Rejection { reason, detail }: Rejection) -> Rejection {
    Rejection::new(reason, format!("retry of {origin}: {detail}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::header::push_header;
    use crate::model::routing::position_rules::tests::routing_rules;
    use crate::model::{Headers, ParsedRecord, Partition, ShardId, parse_record};
    use proptest::strategy::{Strategy as _, ValueTree as _};
    use proptest::test_runner::TestRunner;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    /// The meaning of a control record of the partition 3 in a partition.
    fn parsed(line: &str, keys: &RetryKeys, partition: i32) -> Option<bool> {
        parsed_with(line, keys, partition, None)
    }

    fn parsed_with(
        line: &str,
        keys: &RetryKeys,
        partition: i32,
        payload: Option<&[u8]>,
    ) -> Option<bool> {
        let mut runner = TestRunner::deterministic();
        let rules = routing_rules().new_tree(&mut runner).unwrap().current();
        let rules = RoutingRules {
            is_recurring: false,
            retry_keys: keys.clone(),
            ..rules
        };
        let mut block = Vec::new();
        push_header(&mut block, b"postdate-retry", Some(line.as_bytes()));
        let record = Record {
            offset: Offset(0),
            timestamp: None,
            key: None,
            payload,
            headers: Headers::from_block(&block),
        };
        let shard = ShardId::new("r", Partition::new("in", partition));
        match parse_record(&record, &OriginFormat::new("d", &shard), &rules) {
            ParsedRecord::Control(control) => Some(control.is_some()),
            ParsedRecord::Rejected(rejection) => {
                assert_eq!(rejection.reason, DeadLetterReason::InvalidRetry);
                None
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_control_record_always_needs_a_signature() {
        let control = Control {
            pauses: true,
            origin: "d/r/in/3/0",
            at: Timestamp::from_millis(5),
            note: "why".into(),
        };
        let keys = RetryKeys::new(KEY, true);
        let line = control.signed_line(&keys).unwrap();
        assert_eq!(parsed(&line, &keys, 3), Some(true));
        assert_eq!(parsed(&line, &keys, 4), Some(false), "of another partition");
        let unsigned = format!("v3 mac=- {control}");
        assert_eq!(parsed(&unsigned, &keys, 3), None);
        assert_eq!(parsed(&unsigned, &RetryKeys::default(), 3), None);
        let other = RetryKeys::new("another key of thirty-two letters", true);
        assert_eq!(parsed(&line, &other, 3), None);
        assert_eq!(parsed(&line.replace("at=5", "at=6"), &keys, 3), None);
        assert_eq!(parsed_with(&line, &keys, 3, Some(b"x")), None);
        assert_eq!(parsed_with(&line, &keys, 4, Some(b"x")), None);
    }

    #[test]
    fn a_control_record_of_another_deployment_or_route_is_skipped() {
        let keys = RetryKeys::new(KEY, true);
        for origin in ["other/r/in/3/0", "d/other/in/3/0"] {
            let control = Control {
                pauses: true,
                origin,
                at: Timestamp::from_millis(5),
                note: "why".into(),
            };
            let line = format!("v3 mac=00ff {control}");
            assert_eq!(parsed(&line, &keys, 3), Some(false), "{origin}");
        }
    }
}
