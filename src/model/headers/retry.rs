//! The value of `postdate-retry`. The timer writes it on a record that it sends back through the
//! source, and the ingress parses it there. One line of ASCII text:
//!
//! ```text
//! attempt=2 origin=prod/orders/orders.delayed/0/42 due=1700000000000 target=orders error=unknown_target at=1700000001000
//! ```
//!
//! | field | what |
//! |---|---|
//! | `attempt` | number of failed deliveries, from 1 to [`ATTEMPT_MAX`] |
//! | `origin` | the first record's `postdate-origin` |
//! | `due` | the first record's `postdate-due`, epoch milliseconds |
//! | `target` | the target that the message names; empty for the route's default |
//! | `error` | the code of the [`DeadLetterReason`] of the last failure |
//! | `at` | due time of the next attempt, epoch milliseconds |
//! | `dialect` | name of the dialect that the message speaks; the field is absent if it speaks none |
//!
//! `parsing::parse_record` decides whether the value is genuine, by the record around it.

use crate::model::dialect::Dialect;
use crate::model::message::RetryState;
use crate::model::parsing::dead_letter_reason::DeadLetterReason;
use crate::model::protocol::field_values;
use crate::model::time::Timestamp;
use std::fmt;

/// The greatest `max_attempts` of the configuration is lower, so Postdate never writes a higher
/// count.
const ATTEMPT_MAX: u32 = 10_000;

/// The parsed value. `Display` writes the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryHeader<'a> {
    pub(crate) retry: RetryState<'a>,
    pub(crate) target: Option<&'a str>,
    pub(crate) dialect: Option<Dialect>,
    pub(crate) at: Timestamp,
}

impl<'a> RetryHeader<'a> {
    /// Accepts only lines that `Display` writes, so that each value has one spelling.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let (fields, dialect) = match line.split_once(" dialect=") {
            Some((fields, name)) => (fields, Some(Dialect::from_name(name)?)),
            None => (line, None),
        };
        let keys = ["attempt", "origin", "due", "target", "error", "at"];
        let [attempt, origin, due, target, error, at] = field_values(fields, keys)?;
        let retry = RetryState {
            attempt: attempt.parse().ok()?,
            origin,
            due: parse_instant(due)?,
            error: DeadLetterReason::from_code(error)?,
        };
        let value = Self {
            retry,
            target: Some(target).filter(|target| !target.is_empty()),
            dialect,
            at: parse_instant(at)?,
        };
        let is_valid = (1..=ATTEMPT_MAX).contains(&retry.attempt) && value.to_string() == line;
        is_valid.then_some(value)
    }
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
        write!(f, "attempt={attempt} origin={origin} due={due} ")?;
        write!(f, "target={target} error={error} at={at}")?;
        match self.dialect {
            Some(dialect) => write!(f, " dialect={}", dialect.name()),
            None => Ok(()),
        }
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
                error: DeadLetterReason::UnknownTarget,
            },
            target: Some("orders"),
            dialect: None,
            at: Timestamp::from_millis(1_700_000_001_000),
        }
    }

    #[test]
    fn a_value_is_one_line_of_text() {
        assert_eq!(value().to_string(), LINE);
        assert_eq!(RetryHeader::parse(LINE), Some(value()));
        let to_default = RetryHeader {
            target: None,
            ..value()
        };
        assert_eq!(
            to_default.to_string(),
            LINE.replace("target=orders", "target=")
        );
        assert_eq!(
            RetryHeader::parse(&to_default.to_string()),
            Some(to_default)
        );
        let of_dialect = RetryHeader {
            dialect: Some(Dialect::Etf1),
            ..value()
        };
        assert_eq!(of_dialect.to_string(), format!("{LINE} dialect=etf1"));
    }

    proptest! {
        #[test]
        fn a_written_value_reads_back(
            attempt in 1..=ATTEMPT_MAX,
            origin in "[a-z0-9/._-]{1,30}",
            (due, at) in (i64::MIN + 1.., i64::MIN + 1..),
            target in proptest::option::of("[a-zA-Z0-9._-]{1,20}"),
            error in proptest::sample::select(DeadLetterReason::ALL),
            dialect in proptest::option::of(proptest::sample::select(&Dialect::ALL)),
        ) {
            let retry = RetryState { attempt, origin: &origin, due: Timestamp::from_millis(due), error };
            let value = RetryHeader { retry, target: target.as_deref(), dialect, at: Timestamp::from_millis(at) };
            let line = value.to_string();
            prop_assert_eq!(RetryHeader::parse(&line), Some(value));
        }

        #[test]
        fn a_value_has_one_spelling_and_foreign_text_never_panics(at in 0..LINE.len(), with in "[ =+0-9a-z-]{0,2}", cut in 0..4usize) {
            let text = format!("{}{with}{}", &LINE[..at], &LINE[(at + cut).min(LINE.len())..]);
            if let Some(value) = RetryHeader::parse(&text) {
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
            assert_eq!(RetryHeader::parse(&text), None, "{text}");
        }
    }
}
