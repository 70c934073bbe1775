//! The value of `postdate-retry`. The timer writes it on a record that it sends back through the
//! source, and the ingress parses it there. One line of ASCII text:
//!
//! ```text
//! v2 mac=- attempt=2 origin=prod/orders/orders.delayed/0/42 due=1700000000000 target=orders error=unknown_target at=1700000001000
//! ```
//!
//! | field | what |
//! |---|---|
//! | `v2` | version of the line |
//! | `mac` | signature of everything behind it: see `retry_keys`; `-` without a key |
//! | `attempt` | number of failed deliveries, up to [`ATTEMPT_MAX`]; 0: the message was only rescheduled |
//! | `origin` | the first record's `postdate-origin` |
//! | `due` | the first record's `postdate-due`, or the due time of the last reschedule, epoch milliseconds |
//! | `target` | the target that the message names; empty for the route's default |
//! | `error` | the code of the [`DeadLetterReason`] of the last failure; empty if `attempt` is 0 |
//! | `at` | due time of the next attempt, epoch milliseconds |
//! | `dialect` | name of the dialect that the message speaks; the field is absent if it speaks none |
//! | `answer` | `1` for the answer to a request; the field is absent for a message |
//! | `id` | the id of the message; the field is absent if it has none |
//! | `replaces` | offset of the message that this copy replaces, if that still waits under the id; the field is absent for others |
//! | `from` | offset of the place from which the message was sent back; the field is absent if the message has no id, and on a copy |
//!
//! More fields may follow; this version ignores them. A new code of `error` or `dialect` needs a new
//! version. Version 3 is that of a control record: see `control`. Each version keeps `v<number> mac=` in front, and the field `origin`. Version 0.1.0
//! wrote only the fields from `attempt` on.
//!
//! `parsing::parse_record` decides whether the value is genuine, by the record around it.

use super::control::CONTROL_VERSION;
use super::retry_keys::{RetryKeys, Signed, UNSIGNED};
use crate::model::dialect::Dialect;
use crate::model::message::RetryState;
use crate::model::parsing::dead_letter_reason::DeadLetterReason;
use crate::model::protocol::format_level::readable_level;
use crate::model::protocol::text_version;
use crate::model::shard::Offset;
use crate::model::time::Timestamp;
use std::fmt::{self, Write};

/// The greatest `max_attempts` of the configuration is lower, so Postdate never writes a higher
/// count.
const ATTEMPT_MAX: u32 = 10_000;

const VERSION: u32 = 2;

/// The version of lines without version, which 0.1.0 wrote.
const VERSION_WITHOUT_MAC: u32 = 1;

/// A line of any version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) struct RetryLine<'a> {
    version: u32,
    pub(super) mac: &'a str,
    fields: &'a str,
}

impl<'a> RetryLine<'a> {
    /// `None` if no version of Postdate wrote the line.
    pub(in crate::model) fn parse(line: &'a str) -> Option<Self> {
        let Some((version, rest)) = text_version(line) else {
            return Some(Self {
                version: VERSION_WITHOUT_MAC,
                mac: UNSIGNED,
                fields: line,
            });
        };
        let (mac, fields) = rest.strip_prefix("mac=")?.split_once(' ')?;
        let line = Self {
            version,
            mac,
            fields,
        };
        (version >= VERSION).then_some(line)
    }

    pub(in crate::model) fn is_newer(&self) -> bool {
        self.version > VERSION && !self.is_control()
    }

    /// True for the line of a control record.
    pub(in crate::model) fn is_control(&self) -> bool {
        self.version == CONTROL_VERSION && readable_level() > 0
    }

    /// The fields of a control record.
    pub(super) fn control_fields(&self) -> Option<&'a str> {
        self.is_control().then_some(self.fields)
    }

    /// The field `origin`, in any version.
    pub(in crate::model) fn origin(&self) -> Option<&'a str> {
        let mut fields = self.fields.split(' ');
        fields.find_map(|field| field.strip_prefix("origin="))
    }

    /// The parsed fields. `None` if they are malformed or of a newer version.
    pub(in crate::model) fn header(&self) -> Option<RetryHeader<'a>> {
        match self.version {
            VERSION => RetryHeader::parse(self.fields, true),
            VERSION_WITHOUT_MAC => RetryHeader::parse(self.fields, false),
            _ => None,
        }
    }

    pub(super) fn signed<'b>(&self, key: Option<&'b [u8]>, payload: Option<&'b [u8]>) -> Signed<'b>
    where
        'a: 'b,
    {
        Signed {
            version: self.version,
            fields: self.fields,
            key,
            payload,
        }
    }
}

/// The fields of a line. `Display` writes them, without version and signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryHeader<'a> {
    pub(crate) retry: RetryState<'a>,
    pub(crate) target: Option<&'a str>,
    pub(crate) dialect: Option<Dialect>,
    pub(crate) at: Timestamp,
    /// The record is the answer to a request.
    pub(crate) is_answer: bool,
    pub(crate) id: Option<&'a str>,
    /// The offset of the waiting message of which the record is a copy.
    pub(crate) replaces: Option<Offset>,
    /// The offset of the place from which the message was sent back. It has an id.
    pub(crate) sent_from: Option<Offset>,
}

impl<'a> RetryHeader<'a> {
    /// Appends the line for a record with this key and payload to `line`.
    pub(crate) fn append_line(
        &self,
        keys: &RetryKeys,
        key: Option<&[u8]>,
        payload: Option<&[u8]>,
        line: &mut String,
    ) {
        let fields = self.to_string();
        let _infallible = write!(line, "v{VERSION} mac=");
        let signed = Signed {
            version: VERSION,
            fields: &fields,
            key,
            payload,
        };
        keys.append_mac(signed, line);
        line.push(' ');
        line.push_str(&fields);
    }

    /// Accepts only fields as `Display` writes them, so that each value has one spelling, and
    /// further fields if `more` is set.
    fn parse(fields: &'a str, more: bool) -> Option<Self> {
        let mut rest = fields.split(' ');
        let mut value = |key: &str| rest.next()?.strip_prefix(key)?.strip_prefix('=');
        let (attempt, origin, due) = (value("attempt")?, value("origin")?, value("due")?);
        let (target, error, at) = (value("target")?, value("error")?, value("at")?);
        let mut optional = rest.clone();
        let mut optional_value = |key: &str| {
            let value = optional
                .clone()
                .next()?
                .strip_prefix(key)?
                .strip_prefix('=')?;
            optional.next();
            Some(value)
        };
        let dialect = match optional_value("dialect") {
            Some(name) => Some(Dialect::from_name(name)?),
            None => None,
        };
        let is_answer = optional_value("answer") == Some("1");
        let id = optional_value("id");
        let mut optional_offset = |key: &str| match optional_value(key) {
            Some(offset) => offset.parse().map(|offset| Some(Offset(offset))),
            None => Ok(None),
        };
        let replaces = optional_offset("replaces").ok()?;
        let sent_from = optional_offset("from").ok()?;
        let retry = RetryState {
            attempt: attempt.parse().ok()?,
            origin,
            due: parse_instant(due)?,
            error: match error {
                "" => None,
                code => Some(DeadLetterReason::from_code(code)?),
            },
        };
        let value = Self {
            retry,
            target: Some(target).filter(|target| !target.is_empty()),
            dialect,
            at: parse_instant(at)?,
            is_answer,
            id,
            replaces,
            sent_from,
        };
        let rest = fields.strip_prefix(value.to_string().as_str())?;
        let has_known_end = rest.is_empty() || more && rest.split(' ').skip(1).all(is_field);
        let has_failed = retry.attempt > 0;
        let is_valid = retry.attempt <= ATTEMPT_MAX && has_failed == retry.error.is_some();
        (is_valid && has_known_end).then_some(value)
    }
}

fn is_field(text: &str) -> bool {
    text.split_once('=').is_some_and(|(key, _)| !key.is_empty())
}

/// [`Timestamp::AT_ONCE`] is internal, so it is not accepted in a header.
fn parse_instant(text: &str) -> Option<Timestamp> {
    let instant = Timestamp::from_millis(text.parse().ok()?);
    (!instant.is_at_once()).then_some(instant)
}

impl fmt::Display for RetryHeader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RetryState {
            attempt,
            origin,
            due,
            error,
        } = self.retry;
        let (due, at) = (due.as_millis(), self.at.as_millis());
        let target = self.target.unwrap_or_default();
        let error = error.map_or("", DeadLetterReason::code);
        write!(f, "attempt={attempt} origin={origin} due={due} ")?;
        write!(f, "target={target} error={error} at={at}")?;
        if let Some(dialect) = self.dialect {
            write!(f, " dialect={}", dialect.name())?;
        }
        if self.is_answer {
            f.write_str(" answer=1")?;
        }
        if let Some(id) = self.id {
            write!(f, " id={id}")?;
        }
        if let Some(Offset(offset)) = self.replaces {
            write!(f, " replaces={offset}")?;
        }
        if let Some(Offset(offset)) = self.sent_from {
            write!(f, " from={offset}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str = "attempt=2 origin=prod/orders/orders.delayed/0/42 due=1700000000000 target=orders error=unknown_target at=1700000001000";

    fn value() -> RetryHeader<'static> {
        RetryHeader {
            retry: RetryState {
                attempt: 2,
                origin: "prod/orders/orders.delayed/0/42",
                due: Timestamp::from_millis(1_700_000_000_000),
                error: Some(DeadLetterReason::UnknownTarget),
            },
            target: Some("orders"),
            dialect: None,
            at: Timestamp::from_millis(1_700_000_001_000),
            is_answer: false,
            id: None,
            replaces: None,
            sent_from: None,
        }
    }

    #[test]
    fn a_value_is_one_line_of_text() {
        assert_eq!(value().to_string(), LINE);
        assert_eq!(RetryHeader::parse(LINE, false), Some(value()));
        let to_default = RetryHeader {
            target: None,
            ..value()
        };
        assert_eq!(
            to_default.to_string(),
            LINE.replace("target=orders", "target=")
        );
        assert_eq!(
            RetryHeader::parse(&to_default.to_string(), false),
            Some(to_default)
        );
        let of_dialect = RetryHeader {
            dialect: Some(Dialect::Etf1),
            ..value()
        };
        assert_eq!(of_dialect.to_string(), format!("{LINE} dialect=etf1"));
        let retry = RetryState {
            attempt: 0,
            error: None,
            ..value().retry
        };
        let rescheduled = RetryHeader {
            retry,
            id: Some("order-42"),
            ..value()
        };
        let line = LINE.replace("attempt=2", "attempt=0");
        let line = line.replace("error=unknown_target", "error=");
        assert_eq!(rescheduled.to_string(), format!("{line} id=order-42"));
        let sent_back = RetryHeader {
            sent_from: Some(Offset(42)),
            ..rescheduled
        };
        let with_place = format!("{line} id=order-42 from=42");
        assert_eq!(sent_back.to_string(), with_place);
        assert_eq!(RetryHeader::parse(&with_place, true), Some(sent_back));
        let copy = RetryHeader {
            replaces: Some(Offset(7)),
            ..rescheduled
        };
        let line = format!("{line} id=order-42 replaces=7");
        assert_eq!(copy.to_string(), line);
        assert_eq!(RetryHeader::parse(&line, true), Some(copy));
    }

    fn line_with(keys: &RetryKeys) -> String {
        let mut line = String::new();
        value().append_line(keys, Some(b"key"), None, &mut line);
        line
    }

    #[test]
    fn the_lines_of_version_2_never_change() {
        assert_eq!(line_with(&RetryKeys::default()), format!("v2 mac=- {LINE}"));
        let keys = RetryKeys::new("0123456789abcdef0123456789abcdef\nanother", false);
        // Computed by another implementation.
        let mac = "9441720bbf2304ba951ce8c1ea90839f0af412ba2133575c98347650b214cc3e";
        assert_eq!(line_with(&keys), format!("v2 mac={mac} {LINE}"));
    }

    #[test]
    fn the_versions_of_lines_are_told_apart() {
        let header = |line: &str| RetryLine::parse(line).map(|line| line.header().is_some());
        for (line, expected) in [
            (LINE.to_owned(), Some(true)),
            (format!("v2 mac=- {LINE}"), Some(true)),
            (
                format!("v2 mac=- {LINE} dialect=etf1 more=1 a="),
                Some(true),
            ),
            (format!("v2 mac=- {LINE} more=1 dialect=etf1"), Some(true)),
            (format!("v2 mac=- {LINE} more"), Some(false)),
            (format!("v2 mac=- {LINE} =1"), Some(false)),
            (format!("v2 mac=- {LINE} "), Some(false)),
            (format!("v2 mac=- {LINE} dialect=other"), Some(false)),
            (format!("{LINE} more=1"), Some(false)),
            (format!("v4 mac=- {LINE}"), Some(false)),
            (format!("v1 mac=- {LINE}"), None),
            (format!("v2 {LINE}"), None),
            ("v2 mac=-".to_owned(), None),
        ] {
            assert_eq!(header(&line), expected, "{line}");
        }
        let newer = RetryLine::parse("v4 mac=- x=1 origin=a/b y").unwrap();
        assert!(newer.is_newer() && newer.origin() == Some("a/b"));
    }

    proptest! {
        #[test]
        fn a_written_value_reads_back(
            attempt in 0..=ATTEMPT_MAX,
            origin in "[a-z0-9/._-]{1,30}",
            (due, at) in (i64::MIN + 1.., i64::MIN + 1..),
            target in proptest::option::of("[a-zA-Z0-9._-]{1,20}"),
            error in proptest::sample::select(DeadLetterReason::ALL),
            dialect in proptest::option::of(proptest::sample::select(&Dialect::ALL)),
        ) {
            let error = (attempt > 0).then_some(error);
            let id = (attempt % 3 == 0).then_some("a:b");
            let retry = RetryState { attempt, origin: &origin, due: Timestamp::from_millis(due), error };
            let value = RetryHeader { retry, target: target.as_deref(), dialect, at: Timestamp::from_millis(at), is_answer: attempt % 2 == 0, id, replaces: id.map(|_| Offset(u64::from(attempt))), sent_from: (due > at).then_some(Offset(u64::MAX)) };
            let line = value.to_string();
            prop_assert_eq!(RetryHeader::parse(&line, false), Some(value));
        }

        #[test]
        fn a_value_has_one_spelling_and_foreign_text_never_panics(at in 0..LINE.len(), with in "[ =+0-9a-z-]{0,2}", cut in 0..4usize) {
            let text = format!("{}{with}{}", &LINE[..at], &LINE[(at + cut).min(LINE.len())..]);
            if let Some(value) = RetryHeader::parse(&text, false) {
                prop_assert_eq!(value.to_string(), text);
            }
        }
    }

    #[test]
    fn any_other_line_is_rejected() {
        let changes: &[(&str, &str)] = &[
            (LINE, ""),
            ("attempt=2 ", ""),
            (" at=1700000001000", ""),
            ("attempt=2", "attempt=0"),
            ("attempt=2", "attempt=02"),
            ("attempt=2", "attempt=+2"),
            ("attempt=2", "attempt=-2"),
            ("attempt=2", "attempt="),
            ("attempt=2", "attempt=10001"),
            ("attempt=2", "attempt=4294967298"),
            ("attempt=2", "Attempt=2"),
            ("attempt=2", "attempt=2 attempt=2"),
            ("attempt=2 ", "attempt=2  "),
            ("attempt=2 ", " attempt=2 "),
            ("attempt=2 ", "attempt=2\t"),
            ("due=1700000000000", "due=01700000000000"),
            ("due=1700000000000", "due=-0"),
            ("due=1700000000000", "due=1.7e12"),
            ("due=1700000000000", "due=-9223372036854775808"),
            ("due=1700000000000", "due=9223372036854775808"),
            (
                "due=1700000000000 target=orders",
                "target=orders due=1700000000000",
            ),
            ("target=orders ", ""),
            ("target=orders", "target=or ders"),
            ("error=unknown_target", "error=other"),
            ("error=unknown_target", "error="),
            ("at=1700000001000", "at=1700000001000 "),
            ("at=1700000001000", "at=1700000001000\n"),
            ("at=1700000001000", "at=1700000001000 more=1"),
            ("at=1700000001000", "at=1700000001000 dialect="),
            ("at=1700000001000", "at=1700000001000 dialect=other"),
            ("at=1700000001000", "at=1700000001000 dialect=etf1 "),
            (
                "at=1700000001000",
                "at=1700000001000 dialect=etf1 dialect=etf1",
            ),
            ("error=unknown_target", "error=unknown_target dialect=etf1"),
            ("at=1700000001000", "at=-9223372036854775808"),
            ("at=1700000001000", "at=soon"),
        ];
        for (from, to) in changes {
            let text = LINE.replacen(from, to, 1);
            assert_ne!(text, LINE, "{from} -> {to}");
            assert_eq!(RetryHeader::parse(&text, false), None, "{text}");
        }
    }
}
