//! The definition of a schedule: the meaning of a record on the definitions topic of a recurring
//! route.
//!
//! | header | value | default |
//! |---|---|---|
//! | `postdate-cron` | a cron expression, see `cron_text` | one of these two is required |
//! | `postdate-every` | at least `1s`, in the format of `postdate-after` | |
//! | `postdate-zone` | the IANA name of the zone of `postdate-cron` | `UTC` |
//! | `postdate-from`, `postdate-until` | in the format of `postdate-at`; both belong to the schedule | no bound |
//! | `postdate-times` | 1 to 10000 | no bound |
//! | `postdate-missed` | `latest`, `skip` or `all` | `latest` |
//! | `postdate-missed-within` | in the format of `postdate-after` | no bound |
//! | `postdate-spread` | in the format of `postdate-after`, at most the shortest interval | 0 |
//! | `postdate-paused` | `true` or `false` | `false` |
//! | `postdate-fire` | `true` or `false`: one more occurrence, at the timestamp of the record | `false` |
//!
//! The key of the record is the id of the schedule. A record without payload ends the schedule. So
//! does a record that is rejected: the log may soon have no earlier record of the key.
//!
//! The meaning depends only on the record and on the time-zone data. It is the same whenever the
//! record is read.

use super::missed::{Missed, MissedPolicy};
use super::occurrence::{Bounds, Recurrence, RecurrenceError, TIMES_MAX, Timing};
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::headers::header_name::{ControlHeader, ScheduleHeader};
use crate::model::parsing::dead_letter_reason::DeadLetterReason;
use crate::model::parsing::parse_record::find_controls;
use crate::model::parsing::rejection::Rejection;
use crate::model::parsing::time_grammar::{parse_after, parse_at};
use crate::model::{Record, Timestamp};
use std::time::Duration;

/// The meaning of a record on a definitions topic.
#[derive(Clone, Debug)]
pub(crate) enum ParsedDefinition {
    Defined(Definition),
    /// The schedule has no occurrence from now on.
    Ended,
    /// The record becomes a dead letter, and ends the schedule if its key is an id.
    Rejected(Rejection),
}

/// When a schedule is due, and what happens to missed occurrences.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    pub(crate) recurrence: Recurrence,
    pub(crate) missed: Missed,
    /// The schedule is kept, and only its `postdate-fire` is delivered.
    pub(crate) is_paused: bool,
    /// The target that the record names. It is checked at each delivery, because the rules of the
    /// route may change.
    pub(crate) target: Option<Box<str>>,
}

/// Parses a record of a definitions topic. `schedule` is its key if that is a valid id.
pub(crate) fn parse_definition(record: &Record<'_>, schedule: Option<&str>) -> ParsedDefinition {
    let Some(schedule) = schedule else {
        let detail = "the key of the record is the id of the schedule, and is not a valid one";
        let rejection = Rejection::new(DeadLetterReason::InvalidId, detail);
        return ParsedDefinition::Rejected(rejection);
    };
    if record.payload.is_none_or(<[u8]>::is_empty) {
        return ParsedDefinition::Ended;
    }
    parse_headers(record, schedule)
        .map_or_else(ParsedDefinition::Rejected, ParsedDefinition::Defined)
}

fn parse_headers(record: &Record<'_>, schedule: &str) -> Result<Definition, Rejection> {
    let headers = ScheduleHeaders::find(record)?;
    let defined = record
        .timestamp
        .filter(|time| *time >= Timestamp::YEAR_2000);
    let defined = defined.ok_or_else(|| {
        let detail = "a schedule counts from the record's own timestamp, which is missing or before the year 2000";
        Rejection::new(DeadLetterReason::InvalidTimestamp, detail)
    })?;
    let bounds = Bounds {
        defined,
        from: headers.parse(ScheduleHeader::From, AT, parse_at)?,
        until: headers.parse(ScheduleHeader::Until, AT, parse_at)?,
        times: headers.parse(ScheduleHeader::Times, TIMES, parse_times)?,
        fires: headers.flag(ScheduleHeader::Fire)?,
    };
    let missed = Missed {
        policy: headers
            .parse(ScheduleHeader::Missed, MISSED, MissedPolicy::parse)?
            .unwrap_or_default(),
        within: headers.parse(ScheduleHeader::MissedWithin, DURATION, parse_duration)?,
    };
    let spread = headers.parse(ScheduleHeader::Spread, DURATION, parse_duration)?;
    let is_paused = headers.flag(ScheduleHeader::Paused)?;
    let timing = headers.timing(bounds.from)?;
    let recurrence = Recurrence::new(
        schedule.as_bytes(),
        timing,
        &bounds,
        spread.unwrap_or_default(),
    );
    Ok(Definition {
        recurrence: recurrence.map_err(|error| headers.rejection(error))?,
        missed,
        is_paused,
        target: headers.target()?.map(Box::from),
    })
}

const AT: &str = "epoch milliseconds, or RFC 3339 with an offset such as 2027-01-31T09:00:00Z";
const DURATION: &str = "milliseconds, or units such as 1h30m";
const MISSED: &str = "latest, skip or all";
const FLAG: &str = "true or false";
const TIMES: &str = "a number from 1 to 10000";

/// The headers of a definition that Postdate knows.
struct ScheduleHeaders<'a> {
    schedule: HeaderLookup<'a>,
    control: HeaderLookup<'a>,
}

impl<'a> ScheduleHeaders<'a> {
    fn find(record: &Record<'a>) -> Result<Self, Rejection> {
        let mut schedule = HeaderLookup::default();
        for (name, value) in record.headers.iter() {
            if let Some(header) = ScheduleHeader::from_name(name) {
                schedule.record(header as usize, value);
            }
        }
        let control = find_controls(record.headers)?;
        // Until and spread have the same names on a definition.
        let is_known = |it: &ControlHeader| {
            *it == ControlHeader::To || ScheduleHeader::from_name(it.name().as_bytes()).is_some()
        };
        let mut others = ControlHeader::ALL.into_iter();
        let other = others.find(|it| !is_known(it) && control.has(*it as usize));
        if let Some(other) = other {
            let detail = format!("{} has no meaning on a recurring route", other.name());
            return Err(Rejection::new(DeadLetterReason::InvalidSchedule, detail));
        }
        Ok(Self { schedule, control })
    }

    fn target(&self) -> Result<Option<&'a str>, Rejection> {
        let to = ControlHeader::To;
        self.control.text(to as usize, to.name())
    }

    fn text(&self, header: ScheduleHeader) -> Result<Option<&'a str>, Rejection> {
        self.schedule.text(header as usize, header.name())
    }

    fn parse<T>(
        &self,
        header: ScheduleHeader,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Rejection> {
        let Some(text) = self.text(header)? else {
            return Ok(None);
        };
        let invalid = || invalid(header, text, expected);
        parse(text).map(Some).ok_or_else(invalid)
    }

    fn flag(&self, header: ScheduleHeader) -> Result<bool, Rejection> {
        let value = self.parse(header, FLAG, |text| text.parse().ok())?;
        Ok(value.unwrap_or_default())
    }

    fn timing(&self, from: Option<Timestamp>) -> Result<Timing, Rejection> {
        let cron = self.text(ScheduleHeader::Cron)?;
        let every = self.parse(ScheduleHeader::Every, DURATION, parse_duration)?;
        let zone = self.text(ScheduleHeader::Zone)?;
        let timing = match (cron, every) {
            (Some(cron), None) => Timing::cron(cron, zone.unwrap_or("UTC")),
            (None, Some(interval)) if zone.is_none() => {
                Timing::every(interval, from.unwrap_or(EPOCH))
            }
            (None, Some(_)) => {
                return Err(conflict("postdate-every has no zone: remove postdate-zone"));
            }
            _ => {
                return Err(conflict(
                    "a schedule needs either postdate-cron or postdate-every",
                ));
            }
        };
        timing.map_err(|error| self.rejection(error))
    }

    /// The rejection of a definition for the header that causes it.
    fn rejection(&self, error: RecurrenceError) -> Rejection {
        let header = match error {
            RecurrenceError::Cron(_) => ScheduleHeader::Cron,
            RecurrenceError::UnknownZone => ScheduleHeader::Zone,
            RecurrenceError::IntervalTooShort => ScheduleHeader::Every,
            RecurrenceError::TimesOutOfRange => ScheduleHeader::Times,
            RecurrenceError::SpreadTooLong { .. } => ScheduleHeader::Spread,
            RecurrenceError::NeverDue => {
                let detail =
                    "the schedule has no time after the record's timestamp within its bounds";
                return Rejection::new(DeadLetterReason::NeverDue, detail);
            }
        };
        let value = self.text(header).ok().flatten().unwrap_or_default();
        invalid(header, value, &error.to_string())
    }
}

/// The anchor of an interval without `postdate-from`.
const EPOCH: Timestamp = Timestamp::from_millis(0);

fn invalid(header: ScheduleHeader, value: &str, expected: &str) -> Rejection {
    Rejection::invalid_value(
        DeadLetterReason::InvalidSchedule,
        header.name(),
        value,
        expected,
    )
}

fn conflict(detail: &str) -> Rejection {
    Rejection::new(DeadLetterReason::InvalidSchedule, detail)
}

fn parse_duration(text: &str) -> Option<Duration> {
    parse_after(text)?.not_negative()
}

fn parse_times(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let times = text.parse().ok().filter(|_| is_number)?;
    (1..=TIMES_MAX).contains(&times).then_some(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::headers::header::block_of_lines;
    use crate::model::{Headers, Offset};

    /// 2027-01-31T09:00:00Z, a Sunday.
    const DEFINED: i64 = 1_801_386_000_000;

    fn parse(lines: &[&str]) -> Result<Definition, Rejection> {
        let block = block_of_lines(lines);
        let record = Record {
            offset: Offset(7),
            timestamp: Some(Timestamp::from_millis(DEFINED)),
            key: Some(b"invoices"),
            payload: Some(b"template"),
            headers: Headers::from_block(&block),
        };
        match parse_definition(&record, Some("invoices")) {
            ParsedDefinition::Defined(definition) => Ok(definition),
            ParsedDefinition::Rejected(rejection) => Err(rejection),
            ParsedDefinition::Ended => panic!("{lines:?} ends the schedule"),
        }
    }

    fn first(lines: &[&str]) -> String {
        let definition = parse(lines).unwrap_or_else(|error| panic!("{lines:?}: {}", error.detail));
        let next = definition.recurrence.next_after(Timestamp::AT_ONCE);
        next.expect("occurrence").due.to_rfc3339()
    }

    #[test]
    fn a_definition_is_due_as_its_headers_say() {
        let table: &[(&[&str], &str)] = &[
            (&["postdate-cron: 0 9 * * MON-FRI"], "2027-02-01T09:00:00Z"),
            (
                &[
                    "postdate-cron: 0 9 * * MON-FRI",
                    "postdate-zone: Europe/Berlin",
                ],
                "2027-02-01T08:00:00Z",
            ),
            (&["postdate-every: 15m"], "2027-01-31T09:15:00Z"),
            (
                &["postdate-every: 900000", "own: header"],
                "2027-01-31T09:15:00Z",
            ),
            (
                &["postdate-every: 7h", "postdate-from: 2027-01-30T10:30:00Z"],
                "2027-01-31T14:30:00Z",
            ),
            (
                &["postdate-every: 7h", "postdate-from: 2027-02-03T10:30:00Z"],
                "2027-02-03T10:30:00Z",
            ),
            (
                &[
                    "postdate-every: 1s",
                    "postdate-until: 2027-01-31T09:00:01Z",
                    "postdate-to: t",
                ],
                "2027-01-31T09:00:01Z",
            ),
            (
                &["postdate-every: 1d", "postdate-times: 1"],
                "2027-02-01T00:00:00Z",
            ),
        ];
        for (lines, due) in table {
            assert_eq!(first(lines), *due, "{lines:?}");
        }
    }

    #[test]
    fn the_other_headers_are_kept() {
        let every = "postdate-every: 1h";
        let plain = parse(&[every]).expect("definition");
        assert!(!plain.is_paused);
        assert_eq!(plain.missed.policy, MissedPolicy::Latest);
        assert_eq!(plain.missed.within, None);
        let lines = [
            every,
            "postdate-paused: true",
            "postdate-missed: all",
            "postdate-missed-within: 2h",
        ];
        let full = parse(&lines).expect("definition");
        assert!(full.is_paused);
        assert_eq!(full.missed.policy, MissedPolicy::All);
        assert_eq!(full.missed.within, Some(Duration::from_secs(7_200)));
    }

    #[test]
    fn a_fire_is_due_at_the_timestamp_of_its_record() {
        let over = "postdate-until: 2027-01-30T00:00:00Z";
        let every = ["postdate-every: 1h", "postdate-fire: true"];
        let all = |lines: &[&str]| {
            let recurrence = parse(lines).expect("definition").recurrence;
            let first = recurrence.next_after(Timestamp::AT_ONCE).expect("a fire");
            let second = recurrence.next_after(first.due);
            (
                first.due.to_rfc3339(),
                second.map(|next| next.due.to_rfc3339()),
            )
        };
        let defined = "2027-01-31T09:00:00Z".to_owned();
        let second = Some("2027-01-31T10:00:00Z".to_owned());
        assert_eq!(all(&every), (defined.clone(), second));
        // A schedule that is over fires too.
        assert_eq!(all(&[every[0], every[1], over]), (defined, None));
        assert!(parse(&[every[0], over, "postdate-fire: false"]).is_err());
    }

    #[test]
    fn a_rejection_names_the_header() {
        let every = "postdate-every: 1h";
        let cron = "postdate-cron: 0 9 * * *";
        let table: &[(&[&str], &str)] = &[
            (&[], "either postdate-cron or postdate-every"),
            (&[every, cron], "either postdate-cron or postdate-every"),
            (&[every, "postdate-zone: UTC"], "remove postdate-zone"),
            (
                &["postdate-cron: 0 9 * *"],
                "postdate-cron is \"0 9 * *\"; expected five to seven fields",
            ),
            (
                &["postdate-cron: 0 24 * * *"],
                "expected a valid hour: 0-23",
            ),
            (
                &[cron, "postdate-zone: Berlin"],
                "postdate-zone is \"Berlin\"; expected the name of a time zone",
            ),
            (
                &["postdate-every: 999ms"],
                "postdate-every is \"999ms\"; expected at least 1s",
            ),
            (&["postdate-every: -1h"], "postdate-every is"),
            (&["postdate-every: 1 h"], "postdate-every is"),
            (&[every, "postdate-from: tomorrow"], "postdate-from is"),
            (&[every, "postdate-until: 2027-01-31"], "postdate-until is"),
            (&[every, "postdate-times: 0"], "a number from 1 to 10000"),
            (
                &[every, "postdate-times: 10001"],
                "a number from 1 to 10000",
            ),
            (&[every, "postdate-times: +1"], "a number from 1 to 10000"),
            (&[every, "postdate-spread: 61m"], "at most 3600000 ms"),
            (&[every, "postdate-missed: never"], "latest, skip or all"),
            (
                &[every, "postdate-missed-within: x"],
                "postdate-missed-within is",
            ),
            (&[every, "postdate-paused: yes"], "true or false"),
            (&[every, "postdate-fire: now"], "true or false"),
            (&[every, "postdate-at: 5"], "postdate-at has no meaning"),
            (&[every, "postdate-id: 5"], "postdate-id has no meaning"),
        ];
        for (lines, expected) in table {
            let rejection = parse(lines).expect_err("rejected");
            assert_eq!(
                rejection.reason,
                DeadLetterReason::InvalidSchedule,
                "{lines:?}"
            );
            assert!(
                rejection.detail.contains(expected),
                "{lines:?}: {}",
                rejection.detail
            );
        }
    }

    #[test]
    fn a_definition_without_occurrences_is_rejected() {
        let every = "postdate-every: 1h";
        let cron = "postdate-cron: 0 9 * * *";
        let repeated = parse(&[every, every]).expect_err("rejected");
        assert_eq!(repeated.reason, DeadLetterReason::DuplicateHeader);
        let empty = parse(&["postdate-every: "]).expect_err("rejected");
        assert_eq!(empty.reason, DeadLetterReason::EmptyValue);
        for never in [
            &["postdate-cron: 0 9 30 2 *"][..],
            &[every, "postdate-until: 2027-01-31T09:00:00Z"],
            &[
                cron,
                "postdate-from: 2027-02-01T10:00:00Z",
                "postdate-until: 2027-02-02T08:00:00Z",
            ],
        ] {
            let rejection = parse(never).expect_err("rejected");
            assert_eq!(rejection.reason, DeadLetterReason::NeverDue, "{never:?}");
        }
    }

    #[test]
    fn a_record_without_payload_ends_the_schedule_whatever_its_headers_say() {
        let block = block_of_lines(&["postdate-every: nonsense"]);
        for payload in [None, Some(&b""[..])] {
            let record = Record {
                offset: Offset(7),
                timestamp: None,
                key: Some(b"invoices"),
                payload,
                headers: Headers::from_block(&block),
            };
            let parsed = parse_definition(&record, Some("invoices"));
            assert!(matches!(parsed, ParsedDefinition::Ended));
            let without_id = parse_definition(&record, None);
            assert!(matches!(without_id, ParsedDefinition::Rejected(_)));
        }
    }
}
