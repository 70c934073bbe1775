//! The value of `postdate-retry`. The timer writes it on a record that it sends back through the
//! source, and the ingress parses it there. One line of ASCII text, each field at most once, in
//! this order, one space between two:
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
//! | `error` | the [`Reason`]'s code of the last failure |
//! | `at` | due time of the next attempt, epoch milliseconds |
//! | `dialect` | name of the dialect that the message speaks; the field is absent if it speaks none |
//!
//! This module only parses the value. `parsing::parse_record` decides if it is genuine, by the
//! record around it.

use crate::model::dialect::Dialect;
use crate::model::message::RetryState;
use crate::model::parsing::dead_letter_reason::Reason;
use crate::model::time::Timestamp;
use std::fmt;

/// The greatest `max_attempts` of the configuration is lower, so Postdate never writes a higher
/// count.
pub(crate) const ATTEMPT_MAX: u32 = 10_000;

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
        let mut fields = line.split(' ');
        let mut field = |name| fields.next()?.strip_prefix(name);
        let attempt = field("attempt=")?
            .parse()
            .ok()
            .filter(|attempt| (1..=ATTEMPT_MAX).contains(attempt))?;
        let origin = field("origin=")?;
        let due = parse_instant(field("due=")?)?;
        let target = Some(field("target=")?).filter(|target| !target.is_empty());
        let error = Reason::from_code(field("error=")?)?;
        let at = parse_instant(field("at=")?)?;
        let dialect = match fields.next() {
            Some(field) => Some(Dialect::from_name(field.strip_prefix("dialect=")?)?),
            None => None,
        };
        let value = Self {
            retry: RetryState {
                attempt,
                origin,
                due,
                error,
            },
            target,
            dialect,
            at,
        };
        (value.to_string() == line).then_some(value)
    }
}

/// [`Timestamp::AT_ONCE`] is internal, so it is not accepted in a header.
fn parse_instant(text: &str) -> Option<Timestamp> {
    text.parse()
        .ok()
        .map(Timestamp::from_millis)
        .filter(|instant| !instant.is_at_once())
}

impl fmt::Display for RetryHeader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RetryState {
            attempt,
            origin,
            due,
            error,
        } = self.retry;
        let (due, target, at) = (
            due.as_millis(),
            self.target.unwrap_or_default(),
            self.at.as_millis(),
        );
        write!(
            f,
            "attempt={attempt} origin={origin} due={due} target={target} error={error} at={at}"
        )?;
        self.dialect
            .map_or(Ok(()), |dialect| write!(f, " dialect={}", dialect.name()))
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
                error: Reason::UnknownTarget,
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
            error in proptest::sample::select(Reason::ALL),
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
