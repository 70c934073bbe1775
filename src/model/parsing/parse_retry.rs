//! Parses a record that Postdate wrote to the source: a retry.

use super::dead_letter_reason::DeadLetterReason;
use super::parse_record::{ParsedRecord, delay_base, is_id};
use super::rejection::{Quoted, Rejection};
use crate::model::headers::origin::is_id_of_offset;
use crate::model::headers::retry::{RetryHeader, RetryLine};
use crate::model::headers::retry_keys::Proof;
use crate::model::{Body, Disposition, Offset, OriginFormat, Record, RoutingRules, Timestamp};

/// Accepts only a line that Postdate could have written on this record, so that a forged line gains
/// nothing: the origin is an earlier record of the shard, the next attempt is not further ahead
/// than a delay may be, the rules allow the target, and the signature verifies.
///
/// A wrong signature does not change the position, which must not depend on the keys of today.
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
    let proof = rules.retry_keys.check(&parsed, record);
    let Some(RetryHeader {
        retry,
        target,
        dialect,
        at,
        is_answer,
        id,
        replaces,
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
        disposition,
        ..Body::of(record)
    };
    Ok(ParsedRecord::Message { due: at, body })
}

const FORGED: Disposition<'static> = Disposition::DeadLetter {
    reason: DeadLetterReason::InvalidRetry,
    detail: "postdate-retry has no signature, or a wrong one: Postdate did not write it on this record",
};

/// A copy has an id, because it takes the place of a message under it.
fn is_named(id: Option<&str>, replaces: Option<Offset>) -> bool {
    let is_valid = |id: &str| is_id(id.as_bytes()) || is_id_of_offset(id);
    id.map_or(replaces.is_none(), is_valid)
}

fn of_retry(origin: &str, Rejection { reason, detail }: Rejection) -> Rejection {
    Rejection::new(reason, format!("retry of {origin}: {detail}"))
}
