//! Durations and sizes as people write them: `1h30m`, `64MiB`. The grammar is strict, so that no
//! text has two meanings.

use serde::de::{Deserialize, Deserializer, Error};
use std::time::Duration;

/// Units of a duration with their milliseconds, in the order in which they may follow one another.
const DURATIONS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];
const SIZES: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// A value that has a range.
pub(crate) trait Quantity: Copy + PartialOrd {
    /// Describes the grammar in errors.
    const GRAMMAR: &str;

    /// Returns `None` if the text breaks the grammar or the number is too large.
    fn parse(text: &str) -> Option<Self>;
}

impl Quantity for Duration {
    const GRAMMAR: &str = "a whole number with a unit (ms s m h d), such as \"30d\" or \"1h30m\"";

    fn parse(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut units = DURATIONS.iter();
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (number, after) = split_number(rest)?;
            let end = after.find(|c: char| c.is_ascii_digit());
            let (unit, next) = after.split_at(end.unwrap_or(after.len()));
            let (_, millis) = units.find(|(name, _)| *name == unit)?;
            total = total.checked_add(number.checked_mul(*millis)?)?;
            rest = next;
        }
        (!text.is_empty()).then_some(Self::from_millis(total))
    }
}

/// Bytes.
impl Quantity for u64 {
    const GRAMMAR: &str =
        "a whole number with a unit (B KiB MiB GiB TiB, of 1024 each), such as \"256MiB\"";

    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = split_number(text)?;
        let (_, bytes) = SIZES.iter().find(|(name, _)| *name == unit)?;
        number.checked_mul(*bytes)
    }
}

/// A plain number.
impl Quantity for u32 {
    const GRAMMAR: &str = "a whole number";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
    Some((digits.parse().ok()?, rest))
}

/// Decodes a quantity with a unit from text.
pub(crate) fn quantity<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Quantity,
{
    let text = String::deserialize(deserializer)?;
    T::parse(&text).ok_or_else(|| {
        // Cause and fix, as in `invalid`.
        D::Error::custom(format!("{text:?} is not understood\nwrite {}", T::GRAMMAR))
    })
}

pub(crate) fn optional_quantity<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Quantity,
{
    quantity(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_falling_units() {
        let millis = |text: &str| Duration::parse(text).map(|duration| duration.as_millis());
        for (text, expected) in [
            ("30d", 2_592_000_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("1d2h3m4s5ms", 93_784_005),
            ("0s", 0),
            ("007s", 7_000),
        ] {
            assert_eq!(millis(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "30",
            "d",
            "1.5h",
            "-1s",
            "+1s",
            "1 h",
            " 1h",
            "1h ",
            "30m1h",
            "1h1h",
            "1H",
            "1w",
            "1y",
            "1min",
            "99999999999999999999s",
            "9999999999999999d",
            "1h30",
        ] {
            assert_eq!(millis(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_one_number_and_one_unit() {
        for (text, expected) in [
            ("64MiB", 64 << 20),
            ("1GiB", 1 << 30),
            ("0B", 0),
            ("5KiB", 5120),
        ] {
            assert_eq!(u64::parse(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "64",
            "64MB",
            "64mib",
            "MiB",
            "1.5GiB",
            "1GiB512MiB",
            "64 MiB",
            "-1B",
            "16777216TiB",
        ] {
            assert_eq!(u64::parse(text), None, "{text}");
        }
    }
}
