//! The grammars of `postdate-at` and `postdate-after`, which `postdate-until` and `postdate-spread` share, and
//! those of the dialects. They are strict:
//! other text is rejected, and nothing is trimmed.
//!
//! | header | form | example | meaning |
//! |---|---|---|---|
//! | `postdate-at` | `-?[0-9]+` | `1801386000000` | milliseconds since the Unix epoch, from -2^63 + 1 to 2^63 - 1 |
//! | | RFC 3339 | `2027-01-31T10:00:00.250+01:00` | that instant; the offset is required |
//! | `postdate-after` | `-?[0-9]+` | `1800000` | milliseconds, from -2^63 to 2^63 - 1 |
//! | | `([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?` | `1h30m` | the sum, up to 2^63 - 1 milliseconds |
//!
//! Numbers may have leading zeros. In RFC 3339, fractions of a millisecond are cut off. Second 60
//! is rejected: epoch milliseconds cannot express a leap second. A count of units may exceed its
//! unit (`90m`), and at least one unit is required.

use super::dead_letter_reason::DeadLetterReason::{
    self, InvalidAfter, InvalidAt, InvalidSpread, InvalidUntil,
};
use super::rejection::Rejection;
use crate::model::time::Timestamp;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Units of the second form of `postdate-after` in their required order, with their milliseconds.
const UNITS: [(&str, i64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Formats a duration in the second form of `postdate-after`.
pub(in crate::model) fn format_units(length: Duration) -> String {
    let (mut millis, mut text) = (length.as_millis(), String::new());
    for (unit, of_unit) in UNITS {
        let of_unit = of_unit.unsigned_abs().into();
        if millis >= of_unit {
            text += &format!("{}{unit}", millis / of_unit);
            millis %= of_unit;
        }
    }
    if text.is_empty() {
        "0ms".to_owned()
    } else {
        text
    }
}

/// The due time of a message, as a header gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) enum DueSpec {
    At(Timestamp),
    /// Counted from the record's own timestamp.
    After(Delay),
}

/// A signed delay in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delay(i64);

impl Delay {
    /// Zero for a negative delay.
    pub(crate) fn as_duration(self) -> Duration {
        Duration::from_millis(u64::try_from(self.0).unwrap_or(0))
    }

    /// `None` for a negative delay.
    pub(in crate::model) fn not_negative(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_millis)
    }

    /// The sum of `timestamp` and the delay. `None` if it overflows.
    pub(super) fn added_to(self, timestamp: Timestamp) -> Option<Timestamp> {
        allowed_instant(timestamp.as_millis().checked_add(self.0)?)
    }
}

/// The format of a header that gives a due time: its parser, the reason of a rejection, and the
/// expected values.
#[derive(Clone, Copy)]
pub(in crate::model) struct DueFormat(fn(&str) -> Option<DueSpec>, DeadLetterReason, &'static str);

impl DueFormat {
    pub(in crate::model) fn parse_value(
        self,
        header: &str,
        value: &str,
    ) -> Result<DueSpec, Rejection> {
        let Self(parse, reason, expected) = self;
        parse(value).ok_or_else(|| Rejection::invalid_value(reason, header, value, expected))
    }
}

/// The format of `postdate-at`.
pub(super) const AT: DueFormat = DueFormat(
    |text| parse_at(text).map(DueSpec::At),
    InvalidAt,
    "epoch milliseconds, or RFC 3339 with an offset such as 2027-01-31T09:00:00Z",
);
/// The format of `postdate-after`.
pub(super) const AFTER: DueFormat = DueFormat(
    |text| parse_after(text).map(DueSpec::After),
    InvalidAfter,
    "milliseconds, or units such as 1h30m, 250ms, 7d",
);
/// The format of `postdate-until`.
pub(super) const UNTIL: DueFormat = DueFormat(AT.0, InvalidUntil, AT.2);
/// The format of `postdate-spread`.
pub(super) const SPREAD: DueFormat = DueFormat(
    |text| {
        let span = parse_after(text).filter(|span| span.0 >= 0);
        span.map(DueSpec::After)
    },
    InvalidSpread,
    "milliseconds, or units such as 1h30m, 250ms, 7d; not negative",
);
pub(in crate::model) const MILLIS_AT: DueFormat = DueFormat(
    |text| allowed_instant(parse_integer(text)?).map(DueSpec::At),
    InvalidAt,
    "whole milliseconds since 1970",
);
pub(in crate::model) const SECONDS_AT: DueFormat = DueFormat(
    |text| allowed_instant(parse_integer(text)?.checked_mul(1_000)?).map(DueSpec::At),
    InvalidAt,
    "whole seconds since 1970",
);
/// The format of `Nats-Schedule`.
pub(in crate::model) const NATS_AT: DueFormat = DueFormat(
    |text| parse_rfc3339(text.strip_prefix("@at ")?).map(DueSpec::At),
    InvalidAt,
    "@at and an RFC 3339 time with its offset, as in @at 2027-01-31T09:00:00Z",
);
pub(in crate::model) const MILLIS_AFTER: DueFormat = DueFormat(
    |text| parse_integer(text).map(Delay).map(DueSpec::After),
    InvalidAfter,
    "whole milliseconds",
);
pub(in crate::model) const SECONDS_AFTER: DueFormat = DueFormat(
    |text| {
        Some(DueSpec::After(Delay(
            parse_integer(text)?.checked_mul(1_000)?,
        )))
    },
    InvalidAfter,
    "whole seconds",
);
/// The second form of `postdate-after`, without milliseconds.
pub(in crate::model) const UNITS_AFTER: DueFormat = DueFormat(
    |text| parse_units(text, &UNITS[..UNITS.len() - 1]).map(DueSpec::After),
    InvalidAfter,
    "numbers with units, in the order d h m s, such as 50s or 1d10h30m",
);

/// Parses a value of `postdate-at`. Never returns [`Timestamp::AT_ONCE`].
pub(in crate::model) fn parse_at(text: &str) -> Option<Timestamp> {
    parse_integer(text).map_or_else(|| parse_rfc3339(text), allowed_instant)
}

/// Parses a value of `postdate-after`.
pub(crate) fn parse_after(text: &str) -> Option<Delay> {
    parse_integer(text)
        .map(Delay)
        .or_else(|| parse_units(text, &UNITS))
}

/// An instant that a header may give: all but the least, which means "at once".
fn allowed_instant(millis: i64) -> Option<Timestamp> {
    Some(Timestamp::from_millis(millis)).filter(|instant| !instant.is_at_once())
}

/// `-?[0-9]+`. The standard library's parser accepts a plus sign too.
fn parse_integer(text: &str) -> Option<i64> {
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

pub(crate) fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    // The parser accepts any character for the T, and rounds a leap second down.
    let bytes = text.as_bytes();
    if !matches!(bytes.get(10), Some(b'T' | b't')) || bytes.get(17..19) == Some(b"60") {
        return None;
    }
    let instant = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    // Rounds down before 1970 too, so that cutting digits always has the same effect.
    let millis = instant.unix_timestamp_nanos().div_euclid(1_000_000);
    allowed_instant(i64::try_from(millis).ok()?)
}

fn parse_units(text: &str, units: &[(&str, i64)]) -> Option<Delay> {
    // One iterator for the whole text keeps the units in order, each at most once.
    let mut units = units.iter();
    let mut total: i64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (count, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let end = tail.find(|c: char| c.is_ascii_digit());
        let (unit, tail) = tail.split_at(end.unwrap_or(tail.len()));
        let (_, millis) = units.find(|(name, _)| *name == unit)?;
        total = total.checked_add(count.parse::<i64>().ok()?.checked_mul(*millis)?)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(Delay(total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn at_accepts_epoch_milliseconds_and_rfc3339() {
        let table: &[(&str, i64)] = &[
            ("0", 0),
            ("-0", 0),
            ("1801386000000", 1_801_386_000_000),
            ("-1", -1),
            ("007", 7),
            ("-007", -7),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775807", i64::MIN + 1),
            ("0000000000000000000000000000005", 5),
            ("2027-01-31T09:00:00Z", 1_801_386_000_000),
            ("2027-01-31t09:00:00z", 1_801_386_000_000),
            ("2027-01-31T09:00:00+00:00", 1_801_386_000_000),
            ("2027-01-31T09:00:00-00:00", 1_801_386_000_000),
            ("2027-01-31T10:00:00+01:00", 1_801_386_000_000),
            ("2027-01-30T17:30:00-15:30", 1_801_386_000_000),
            ("2027-02-01T08:59:00+23:59", 1_801_386_000_000),
            ("2027-01-31T09:00:00.2Z", 1_801_386_000_200),
            ("2027-01-31T09:00:00.25Z", 1_801_386_000_250),
            ("2027-01-31T09:00:00.250+00:00", 1_801_386_000_250),
            ("2027-01-31T09:00:00.250999999Z", 1_801_386_000_250),
            (
                "2027-01-31T09:00:00.2509999999999999999999999Z",
                1_801_386_000_250,
            ),
            ("2027-01-31T09:00:00.000000000Z", 1_801_386_000_000),
            ("1969-12-31T23:59:59.9999Z", -1),
            ("1970-01-01T00:00:00Z", 0),
            ("2028-02-29T00:00:00Z", 1_835_395_200_000),
            ("2000-02-29T12:00:00Z", 951_825_600_000),
            ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
            ("0000-01-01T00:00:00Z", -62_167_219_200_000),
        ];
        for (text, millis) in table {
            assert_eq!(
                parse_at(text),
                Some(Timestamp::from_millis(*millis)),
                "{text}"
            );
        }
    }

    #[test]
    fn at_rejects_everything_else() {
        let table = [
            "",
            " ",
            "-",
            "--1",
            "+5",
            " 5",
            "5 ",
            "5\n",
            "1e9",
            "1_000",
            "1,000",
            "1.5",
            "0x10",
            "abc",
            "NaN",
            "inf",
            "null",
            "9223372036854775808",
            "18446744073709551616",
            "-9223372036854775808",
            "-9223372036854775809",
            "١٢٣",
            "2027-01-31",
            "2027-01-31T09:00:00",
            "2027-01-31T09:00Z",
            "2027-01-31T09Z",
            "2027-01-31 09:00:00Z",
            "2027-01-31_09:00:00Z",
            "2027-01-3109:00:00Z",
            "2027-01-31T09:00:00 Z",
            " 2027-01-31T09:00:00Z",
            "2027-01-31T09:00:00Z ",
            "2027-01-31T09:00:00Z[Europe/Berlin]",
            "2027-01-31T09:00:00+01",
            "2027-01-31T09:00:00+0100",
            "2027-01-31T09:00:00+1:00",
            "2027-01-31T09:00:00+01:00:00",
            "2027-01-31T09:00:00+24:00",
            "2027-01-31T09:00:00+01:60",
            "2027-01-31T09:00:00CET",
            "2027-01-31T09:00:00.Z",
            "2027-01-31T09:00:00,5Z",
            "2027-01-31T09:00:00.-5Z",
            "2027-01-31T09:00:60Z",
            "2016-12-31T23:59:60Z",
            "2016-12-31T23:59:61Z",
            "2027-01-31T24:00:00Z",
            "2027-01-31T09:60:00Z",
            "2027-02-29T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2027-13-01T00:00:00Z",
            "2027-00-01T00:00:00Z",
            "2027-01-00T00:00:00Z",
            "27-01-31T09:00:00Z",
            "+2027-01-31T09:00:00Z",
            "-2027-01-31T09:00:00Z",
            "10000-01-01T00:00:00Z",
            "20270131T090000Z",
            "2027-W04-7T09:00:00Z",
            "2027-01-31T09:00:00é",
            "2027-01-31é09:00:00Z",
            "Sun, 31 Jan 2027 09:00:00 GMT",
            "1h30m",
        ];
        for text in table {
            assert_eq!(parse_at(text), None, "{text}");
        }
    }

    #[test]
    fn after_accepts_milliseconds_and_units() {
        let table: &[(&str, i64)] = &[
            ("0", 0),
            ("-0", 0),
            ("1800000", 1_800_000),
            ("-5", -5),
            ("007", 7),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("250ms", 250),
            ("0ms", 0),
            ("5s", 5_000),
            ("5m", 300_000),
            ("5m5ms", 300_005),
            ("1m1s", 61_000),
            ("1h30m", 5_400_000),
            ("90m", 5_400_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("007d", 604_800_000),
            ("0d0h0m0s0ms", 0),
            ("1d2h3m4s5ms", 93_784_005),
            ("1d5ms", 86_400_005),
            ("9223372036854775807ms", i64::MAX),
            ("106751991167d7h12m55s807ms", i64::MAX),
        ];
        for (text, millis) in table {
            assert_eq!(parse_after(text), Some(Delay(*millis)), "{text}");
        }
    }

    #[test]
    fn after_rejects_everything_else() {
        let table = [
            "",
            " ",
            "-",
            "+5",
            " 5 ",
            "5 ",
            "1e9",
            "1.5",
            "1.5h",
            "1,5h",
            "abc",
            "NaN",
            "inf",
            "h",
            "ms",
            "1h30",
            "30m1h",
            "1h1h",
            "1m1m",
            "5ms5s",
            "5ms5ms",
            "1 h",
            "1h 30m",
            "1h,30m",
            "1h30m ",
            "-1h",
            "1h-30m",
            "+1h",
            "1H",
            "5MS",
            "5Ms",
            "5mS",
            "1w",
            "1y",
            "1us",
            "1ns",
            "1min",
            "1sec",
            "1hour",
            "1days",
            "PT1H",
            "1:30",
            "01:30:00",
            "1hm",
            "1é",
            "١h",
            "5µs",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "9223372036854775808ms",
            "106751991168d",
            "106751991167d7h12m55s808ms",
            "99999999999999999999d",
            "2027-01-31T09:00:00Z",
        ];
        for text in table {
            assert_eq!(parse_after(text), None, "{text}");
        }
    }

    #[test]
    fn a_delay_that_overflows_is_no_instant() {
        assert_eq!(
            Delay(5).added_to(Timestamp::from_millis(7)),
            Some(Timestamp::from_millis(12))
        );
        assert_eq!(Delay(1).added_to(Timestamp::MAX), None);
        assert_eq!(Delay(i64::MIN).added_to(Timestamp::from_millis(-1)), None);
        assert_eq!(
            Delay(i64::MIN).added_to(Timestamp::from_millis(0)),
            None,
            "no header gives the due time at once"
        );
    }

    proptest! {
        #[test]
        fn every_instant_but_the_least_round_trips_through_at(millis: i64) {
            let expected = Some(Timestamp::from_millis(millis)).filter(|_| millis != i64::MIN);
            prop_assert_eq!(parse_at(&millis.to_string()), expected);
        }

        #[test]
        fn every_delay_in_milliseconds_round_trips_through_after(millis: i64) {
            prop_assert_eq!(parse_after(&millis.to_string()), Some(Delay(millis)));
        }

        #[test]
        fn units_add_up(d in 0..10_000i64, h in 0..100i64, m in 0..100i64, s in 0..100i64, ms in 0..5_000i64) {
            let sum = (((d * 24 + h) * 60 + m) * 60 + s) * 1_000 + ms;
            prop_assert_eq!(parse_after(&format!("{d}d{h}h{m}m{s}s{ms}ms")), Some(Delay(sum)));
        }

        #[test]
        fn foreign_text_never_panics_and_is_never_due_at_once(text in "[-+0-9TZtz:. dhmsé]{0,40}|\\PC{0,30}") {
            let _ = parse_after(&text);
            prop_assert!(parse_at(&text) != Some(Timestamp::AT_ONCE));
        }

        #[test]
        fn rfc3339_is_accepted_only_with_its_offset(second in 0..59u32, nanos in 0..1_000_000_000u32) {
            let text = format!("2027-01-31T09:00:{second:02}.{nanos:09}");
            let millis = 1_801_386_000_000 + i64::from(second) * 1_000 + i64::from(nanos / 1_000_000);
            prop_assert_eq!(parse_at(&text), None);
            prop_assert_eq!(parse_at(&format!("{text}Z")), Some(Timestamp::from_millis(millis)));
        }
    }
}
