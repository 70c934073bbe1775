//! Parses a record's headers: the only place that interprets them. The result depends only on the
//! record, the route's rules and the shard, never on the time. So a second reading of a record has
//! the same result.
//!
//! If several things are wrong, the first one in this order is the reason of the rejection:
//!
//! | checked | rejected as |
//! |---|---|
//! | number and bytes of all headers | `too_many_headers` |
//! | `postdate-retry`; a record that has it is parsed by it alone | `invalid_retry`, or a reason of the target |
//! | `postdate-op` | `invalid_op` |
//! | `postdate-id`; of a cancel or a reschedule also `postdate-of` | `invalid_id`, `invalid_of`, `wrong_partition`, `cancel_without_id` |
//! | (a cancel ends here) | |
//! | `postdate-at` and `postdate-after`: see `time_grammar` | `at_and_after`, `invalid_at`, `invalid_after` |
//! | (a reschedule ends with the checks of its delay) | `missing_due` |
//! | without both, on a route with dialects: see `dialect` | `dialect_conflict`, `dialect_unsupported`, or a reason of the control header |
//! | the delay, with `postdate-spread` | `delay_above_max`, `invalid_timestamp`, `invalid_spread` |
//! | `postdate-until` | `invalid_until` |
//! | no delay with `postdate-op: schedule`, or on a route that requires one | `missing_due` |
//! | `postdate-to`, or the dialect's target, or the route's default | see [`TargetRules::resolve`] |
//! | the key, if the dialect uses it as the id and there is no `postdate-id` | `invalid_id` |
//!
//! A control header, or a dialect's, that the record has twice is `duplicate_header`, even with
//! equal values. A null or empty one is `empty_value`, and one that is not UTF-8 is `not_utf8`.
//!
//! **A cancel** is an op and an id. Its other headers are ignored: if a stray header rejected the
//! cancel, the message that the producer wants to stop would be delivered.
//!
//! **A reschedule** is an op, an id and a delay. Its other headers are ignored too.
//!
//! **Delays** are measured from the record's own timestamp, or from the year 2000 if it has none or
//! an earlier one. `postdate-after` needs a real timestamp. A longer delay than `max_delay` is
//! rejected, never shortened. A due time in the past is valid: the message is delivered at once. A
//! timestamp in the future is accepted.
//!
//! **`postdate-spread`** delays a message with a due time by a part of the span. The part follows from the
//! origin, so a second reading gives the same due time. The due time and the whole span must be within
//! `max_delay`.
//!
//! **A record without delay** becomes a message that is due at once. Its `postdate-to` applies, and
//! its `postdate-id` replaces the waiting message of that id.

use super::dead_letter_reason::DeadLetterReason;
use super::parse_retry::parse_retry;
use super::rejection::{Quoted, Rejection};
use super::time_grammar::{self, Delay, DueSpec, format_units};
use crate::limit::{RECORD_HEADER_BYTES_MAX, RECORD_HEADERS_MAX};
use crate::model::dialect::{DialectRequest, read_request};
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::headers::header_name::{ControlHeader, ScheduleHeader};
use crate::model::headers::origin::is_id_of_offset;
use crate::model::{
    Body, Control, Disposition, Headers, OriginFormat, ParsedDefinition, Record, RoutingRules,
    Timestamp, WithoutDelay, parse_definition,
};
use std::time::Duration;

const ID_BYTES_MAX: usize = 128;
const ID_FORMAT: &str = "1-128 of A-Z a-z 0-9 . _ : -";

/// The meaning of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ParsedRecord<'a> {
    /// Waits until `due`, which is [`Timestamp::AT_ONCE`] for a relay and for nothing else.
    Message { due: Timestamp, body: Body<'a> },
    /// Defines a schedule or ends it. The ingress stores no message: the timer reads the log.
    Definition,
    /// Cancels the waiting message of the id. The record itself is not stored.
    Cancel { id: &'a str },
    /// Gives the waiting message of the id this due time. The record itself is not stored.
    Reschedule { id: &'a str, due: Timestamp },
    /// Pauses or resumes the delivery of the partition. `None`: of another route. The record itself is not
    /// stored.
    Control(Option<Control<'a>>),
    /// Becomes a dead letter: see [`Body::rejected`].
    Rejected(Rejection),
    /// A newer version wrote the record: neither it nor any later record can be read. The text
    /// names the unknown part.
    Newer(&'static str),
}

/// Parses a record of the shard that `origins` belongs to.
pub(crate) fn parse_record<'a>(
    record: &Record<'a>,
    origins: &OriginFormat,
    rules: &RoutingRules,
) -> ParsedRecord<'a> {
    if rules.is_recurring {
        return match parse_definition(record, as_id(record.key)) {
            ParsedDefinition::Defined(_) | ParsedDefinition::Ended => ParsedRecord::Definition,
            ParsedDefinition::Rejected(rejection) => ParsedRecord::Rejected(rejection),
        };
    }
    parse(record, origins, rules).unwrap_or_else(ParsedRecord::Rejected)
}

fn parse<'a>(
    record: &Record<'a>,
    origins: &OriginFormat,
    rules: &RoutingRules,
) -> Result<ParsedRecord<'a>, Rejection> {
    let controls = find_controls(record.headers)?;
    let text = |control: ControlHeader| controls.text(control as usize, control.name());
    if let Some(line) = text(ControlHeader::Retry)? {
        // The first reading has checked it.
        let until = text(ControlHeader::Until).ok().flatten();
        let until = until.and_then(|value| parse_until(value).ok());
        return parse_retry(line, until, record, origins, rules);
    }
    let op = text(ControlHeader::Op)?.map(check_op).transpose()?;
    let mut id = text(ControlHeader::Id)?.map(check_id).transpose()?;
    if let Some(of) = text(ControlHeader::Of)?.filter(|_| op.is_some_and(|op| op != "schedule")) {
        id = Some(id_of_origin(of, id, origins, rules)?);
    }
    if op == Some("cancel") {
        return cancel(id, || {
            "postdate-op: cancel needs a postdate-id or a postdate-of; the record has neither"
                .to_owned()
        });
    }
    let is_schedule = op.is_some();
    let due_header = due_header(text(ControlHeader::At)?, text(ControlHeader::After)?)?;
    if op == Some(RESCHEDULE) {
        return reschedule(id, due_header, record, rules);
    }
    // A control header with a due time has precedence over all dialects.
    let request = match due_header {
        Some(_) => None,
        None => read_request(record, rules.dialects, !controls.is_empty())?,
    };
    let schedule = match request {
        Some(DialectRequest::Cancel(by)) if !is_schedule => {
            let id = id.map_or_else(|| key_as_id(record), |id| Ok(Some(id)))?;
            return cancel(id, || {
                format!("{by} cancels the message of the record's key, but the record has no key")
            });
        }
        Some(DialectRequest::Schedule(schedule)) => Some(schedule),
        _ => None,
    };
    let due_header = due_header.or(schedule.map(|schedule| (schedule.header, schedule.due)));
    let (due, disposition) = match due_header {
        Some(header) => {
            let due = due_of(header, record, rules)?;
            let due = spread(due, text(ControlHeader::Spread)?, record, origins, rules)?;
            (due, Disposition::Deliver)
        }
        None => {
            refuse_schedule(record.headers)?;
            let timestamp = relay_timestamp(is_schedule, record, rules)?;
            (Timestamp::AT_ONCE, Disposition::Relay { timestamp })
        }
    };
    let until = text(ControlHeader::Until)?.map(parse_until).transpose()?;
    let target = text(ControlHeader::To)?.or(schedule.and_then(|schedule| schedule.target));
    // Only validates: the target is resolved at delivery, by the rules of then.
    rules
        .targets
        .resolve(target, origins.topic(), record.headers)?;
    let id = match id {
        None if schedule.is_some_and(|schedule| schedule.key_is_id) => key_as_id(record)?,
        id => id,
    };
    let body = Body {
        id,
        target,
        until,
        dialect: schedule.map(|schedule| schedule.dialect),
        disposition,
        ..Body::of(record)
    };
    Ok(ParsedRecord::Message { due, body })
}

/// Finds the control headers in one pass. A duplicate does not end the pass, because the reason of
/// a rejection must not depend on the order of the headers.
pub(in crate::model) fn find_controls(headers: Headers<'_>) -> Result<HeaderLookup<'_>, Rejection> {
    let too_many = |detail| Rejection::new(DeadLetterReason::TooManyHeaders, detail);
    let bytes = headers.as_block().len();
    if bytes > RECORD_HEADER_BYTES_MAX {
        return Err(too_many(format!(
            "the record has {bytes} bytes of headers; Postdate accepts at most {RECORD_HEADER_BYTES_MAX}"
        )));
    }
    let mut controls = HeaderLookup::default();
    for (index, (name, value)) in headers.iter().enumerate() {
        if index == RECORD_HEADERS_MAX {
            let detail = format!("the record has more than {RECORD_HEADERS_MAX} headers");
            return Err(too_many(detail));
        }
        if let Some(control) = ControlHeader::from_name(name) {
            controls.record(control as usize, value);
        }
    }
    Ok(controls)
}

fn cancel<'a>(
    id: Option<&'a str>,
    without_id: impl FnOnce() -> String,
) -> Result<ParsedRecord<'a>, Rejection> {
    id.map(|id| ParsedRecord::Cancel { id })
        .ok_or_else(|| Rejection::new(DeadLetterReason::CancelWithoutId, without_id()))
}

fn reschedule<'a>(
    id: Option<&'a str>,
    due_header: Option<(&str, DueSpec)>,
    record: &Record<'_>,
    rules: &RoutingRules,
) -> Result<ParsedRecord<'a>, Rejection> {
    let id = id.ok_or_else(|| {
        let detail =
            "postdate-op: reschedule needs a postdate-id or a postdate-of; the record has neither";
        Rejection::new(DeadLetterReason::CancelWithoutId, detail)
    })?;
    let header = due_header.ok_or_else(|| missing_due("postdate-op: reschedule"))?;
    let due = due_of(header, record, rules)?;
    Ok(ParsedRecord::Reschedule { id, due })
}

const RESCHEDULE: &str = "reschedule";

fn check_op(op: &str) -> Result<&str, Rejection> {
    if matches!(op, "schedule" | "cancel" | RESCHEDULE) {
        return Ok(op);
    }
    let (reason, header) = (DeadLetterReason::InvalidOp, ControlHeader::Op.name());
    let expected = "schedule, cancel or reschedule";
    Err(Rejection::invalid_value(reason, header, op, expected))
}

fn check_id(id: &str) -> Result<&str, Rejection> {
    if is_id(id.as_bytes()) {
        return Ok(id);
    }
    let (reason, header) = (DeadLetterReason::InvalidId, ControlHeader::Id.name());
    Err(Rejection::invalid_value(reason, header, id, ID_FORMAT))
}

/// The key of a record as an id, if it is one.
pub(crate) fn as_id(key: Option<&[u8]>) -> Option<&str> {
    let key = key.filter(|key| is_id(key))?;
    str::from_utf8(key).ok()
}

/// The id of a message without one, from its origin: see `id_of_offset`.
fn id_of_origin<'a>(
    of: &'a str,
    id: Option<&str>,
    origins: &OriginFormat,
    rules: &RoutingRules,
) -> Result<&'a str, Rejection> {
    let invalid = |why: &str| {
        let detail = format!("postdate-of is {}: {why}", Quoted(of.as_bytes()));
        Rejection::new(DeadLetterReason::InvalidOf, detail)
    };
    if !rules.change_by_origin {
        return Err(invalid("the route has no change_by_origin"));
    }
    if id.is_some() {
        return Err(invalid("the record has a postdate-id too"));
    }
    // A NATS subject may contain `@` too.
    let (shard, id) = of.split_at(of.rfind('/').unwrap_or_default());
    let id = id.split_once('@').map_or(id, |(id, _due)| id);
    if !is_id_of_offset(id) {
        return Err(invalid("expected an origin"));
    }
    let origin = &of[..shard.len() + id.len()];
    if origins.parse_offset(origin).is_none() {
        let detail = format!(
            "postdate-of is {}, which is not of this partition",
            Quoted(of.as_bytes())
        );
        return Err(Rejection::new(DeadLetterReason::WrongPartition, detail));
    }
    Ok(id)
}

pub(super) fn is_id(bytes: &[u8]) -> bool {
    let is_valid =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
    (1..=ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(is_valid)
}

/// The due time of a control header, with the name of the header.
fn due_header(
    at: Option<&str>,
    after: Option<&str>,
) -> Result<Option<(&'static str, DueSpec)>, Rejection> {
    let (control, format, value) = match (at, after) {
        (None, None) => return Ok(None),
        (Some(at), None) => (ControlHeader::At, time_grammar::AT, at),
        (None, Some(after)) => (ControlHeader::After, time_grammar::AFTER, after),
        (Some(_), Some(_)) => {
            let detail = "the record has both postdate-at and postdate-after";
            return Err(Rejection::new(DeadLetterReason::AtAndAfter, detail));
        }
    };
    let due = format.parse_value(control.name(), value)?;
    Ok(Some((control.name(), due)))
}

/// The key as the id, for a dialect that uses it so. `None` without a key: such a message cannot be
/// replaced or cancelled.
fn key_as_id<'a>(record: &Record<'a>) -> Result<Option<&'a str>, Rejection> {
    let Some(key) = record.key.filter(|key| !key.is_empty()) else {
        return Ok(None);
    };
    match str::from_utf8(key) {
        Ok(id) if is_id(key) => Ok(Some(id)),
        _ => {
            let detail = format!(
                "the record's key, {}, is used as the id; an id is {ID_FORMAT}, and a postdate-id has precedence",
                Quoted(key)
            );
            Err(Rejection::new(DeadLetterReason::InvalidId, detail))
        }
    }
}

/// The due time that a header with this name gives.
fn due_of(
    (header, due): (&str, DueSpec),
    record: &Record<'_>,
    rules: &RoutingRules,
) -> Result<Timestamp, Rejection> {
    match due {
        DueSpec::At(due) => check_due(due, record, rules),
        DueSpec::After(delay) => add_delay(header, delay, record, rules),
    }
}

/// The due time, delayed by a part of the span if there is one.
fn spread(
    due: Timestamp,
    span: Option<&str>,
    record: &Record<'_>,
    origins: &OriginFormat,
    rules: &RoutingRules,
) -> Result<Timestamp, Rejection> {
    let Some(span) = span else {
        return Ok(due);
    };
    let format = time_grammar::SPREAD;
    let DueSpec::After(span) = format.parse_value(ControlHeader::Spread.name(), span)? else {
        return Ok(due);
    };
    let span = span.as_duration();
    check_due(due.plus(span), record, rules)?;
    let mut origin = String::new();
    origins.append_origin(record.offset, &mut origin);
    let hash = ring::digest::digest(&ring::digest::SHA256, origin.as_bytes());
    let (first, _) = hash.as_ref().split_first_chunk().expect("32 bytes");
    // A span in milliseconds fits into 63 bits.
    let part = u64::from_be_bytes(*first) % (span.as_millis() as u64 + 1);
    Ok(due.plus(Duration::from_millis(part)))
}

fn parse_until(value: &str) -> Result<Timestamp, Rejection> {
    let format = time_grammar::UNTIL;
    match format.parse_value(ControlHeader::Until.name(), value)? {
        DueSpec::At(until) => Ok(until),
        DueSpec::After(_) => Ok(Timestamp::MAX),
    }
}

fn check_due(
    due: Timestamp,
    record: &Record<'_>,
    rules: &RoutingRules,
) -> Result<Timestamp, Rejection> {
    let start = delay_base(record);
    let delay = due.since(start);
    if delay <= rules.max_delay {
        return Ok(due);
    }
    let start = if record.timestamp == Some(start) {
        "its timestamp"
    } else {
        "the year 2000, because it has no later timestamp"
    };
    Err(delay_above_max(delay, start, rules))
}

/// The due time of a message with a delay. `header` is the name of the header that gives it.
fn add_delay(
    header: &str,
    delay: Delay,
    record: &Record<'_>,
    rules: &RoutingRules,
) -> Result<Timestamp, Rejection> {
    if delay.as_duration() > rules.max_delay {
        return Err(delay_above_max(delay.as_duration(), "its timestamp", rules));
    }
    let start = match record.timestamp {
        None => "a record without a timestamp".to_owned(),
        Some(timestamp) if timestamp < Timestamp::YEAR_2000 => {
            let millis = timestamp.as_millis();
            format!("the record's timestamp {millis}, which is before the year 2000")
        }
        Some(timestamp) => match delay.added_to(timestamp) {
            Some(due) => return Ok(due),
            None => format!("the record's timestamp {timestamp}: the sum overflows 64 bits"),
        },
    };
    let detail = format!("{header} cannot be counted from {start}");
    Err(Rejection::new(DeadLetterReason::InvalidTimestamp, detail))
}

/// The time from which delays are measured.
pub(super) fn delay_base(record: &Record<'_>) -> Timestamp {
    record.timestamp.map_or(Timestamp::YEAR_2000, |timestamp| {
        timestamp.max(Timestamp::YEAR_2000)
    })
}

fn delay_above_max(delay: Duration, start: &str, rules: &RoutingRules) -> Rejection {
    let (delay, max) = (format_units(delay), format_units(rules.max_delay));
    let detail = format!("the record is due {delay} after {start}; the route's max_delay is {max}");
    Rejection::new(DeadLetterReason::DelayAboveMax, detail)
}

/// The timestamp of a record without a due time, which is relayed if its route allows it.
fn relay_timestamp(
    is_schedule: bool,
    record: &Record<'_>,
    rules: &RoutingRules,
) -> Result<Timestamp, Rejection> {
    let requirer = match rules.without_delay {
        _ if is_schedule => "postdate-op: schedule",
        WithoutDelay::DeadLetter => "the route",
        WithoutDelay::Relay => {
            let timestamp = record.timestamp.filter(|timestamp| !timestamp.is_at_once());
            // Kafka uses -1 for a missing timestamp.
            return Ok(timestamp.unwrap_or(Timestamp::from_millis(-1)));
        }
    };
    Err(missing_due(requirer))
}

fn missing_due(requirer: &str) -> Rejection {
    let detail =
        format!("{requirer} requires postdate-at or postdate-after; the record has neither");
    Rejection::new(DeadLetterReason::MissingDue, detail)
}

/// A record without delay whose headers define a schedule was sent to the wrong route. Its dead letter
/// has the same place as the message that would be delivered at once.
fn refuse_schedule(headers: Headers<'_>) -> Result<(), Rejection> {
    let is_timing =
        |header: &ScheduleHeader| matches!(header, ScheduleHeader::Cron | ScheduleHeader::Every);
    let mut found = headers
        .iter()
        .filter_map(|(name, _)| ScheduleHeader::from_name(name));
    let Some(header) = found.find(is_timing) else {
        return Ok(());
    };
    let detail = format!("{} needs a route with recurring = true", header.name());
    Err(Rejection::new(DeadLetterReason::InvalidSchedule, detail))
}
