//! Durations and sizes as people write them: `1h30m`, `64MiB`. The grammar is strict, so that no
//! text has two meanings.

use std::fmt;
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

/// A number with a unit. `Display` writes it as `parse` reads it.
pub(crate) trait Quantity: Copy + PartialOrd + fmt::Display {
    /// Describes the grammar in errors.
    const GRAMMAR: &str;

    /// Returns `None` if the text breaks the grammar or the number is too large.
    fn parse(text: &str) -> Option<Self>;
}

/// A duration.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) struct Span(pub(crate) Duration);

impl Span {
    pub(crate) const fn from_millis(milliseconds: u64) -> Self {
        Self(Duration::from_millis(milliseconds))
    }
}

impl Quantity for Span {
    const GRAMMAR: &str = "a whole number with a unit (ms s m h d), such as \"30d\" or \"1h30m\"";

    fn parse(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut units = DURATIONS.iter();
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (number, after) = split_number(rest)?;
            let end = after
                .find(|c: char| c.is_ascii_digit())
                .unwrap_or(after.len());
            let (unit, next) = after.split_at(end);
            let (_, millis) = units.find(|(name, _)| *name == unit)?;
            total = total.checked_add(number.checked_mul(*millis)?)?;
            rest = next;
        }
        (!text.is_empty()).then(|| Self::from_millis(total))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if millis == 0 {
            return f.write_str("0ms");
        }
        for (unit, length) in DURATIONS {
            if millis >= length {
                write!(f, "{}{unit}", millis / length)?;
                millis %= length;
            }
        }
        Ok(())
    }
}

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) struct Size(pub(crate) u64);

impl Quantity for Size {
    const GRAMMAR: &str =
        "a whole number with a unit (B KiB MiB GiB TiB, of 1024 each), such as \"256MiB\"";

    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = split_number(text)?;
        let (_, bytes) = SIZES.iter().find(|(name, _)| *name == unit)?;
        number.checked_mul(*bytes).map(Self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, bytes) = SIZES
            .iter()
            .find(|(_, bytes)| self.0 >= *bytes && self.0.is_multiple_of(*bytes))
            .unwrap_or(&SIZES[4]);
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}
