//! Instants, and the slices of time in which a shard keeps its messages.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// An instant in milliseconds since the Unix epoch; may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Timestamp(i64);

impl Timestamp {
    /// The due time of messages that do not wait: relays and dead letters. It is before every real
    /// instant and behind every cursor, so these messages are always delivered in offset order.
    pub(crate) const AT_ONCE: Self = Self(i64::MIN);
    /// The due time of answers. It differs from [`Timestamp::AT_ONCE`], because a record and its
    /// answer have the same offset.
    pub(crate) const ANSWER: Self = Self(i64::MIN / 2);
    pub(crate) const MAX: Self = Self(i64::MAX);
    /// 2000-01-01T00:00:00Z. An earlier time is a mistake, such as seconds sent as milliseconds.
    pub(crate) const YEAR_2000: Self = Self(946_684_800_000);

    pub(crate) const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub(crate) const fn as_millis(self) -> i64 {
        self.0
    }

    /// True for the due times of messages that do not wait. No header can name one of them.
    pub(crate) const fn is_at_once(self) -> bool {
        self.0 == Self::AT_ONCE.0 || self.0 == Self::ANSWER.0
    }

    /// RFC 3339 in UTC, with milliseconds if they are not zero. Outside of its years, `Display`.
    pub(crate) fn to_rfc3339(self) -> String {
        let second = OffsetDateTime::from_unix_timestamp(self.0.div_euclid(1_000));
        let text = second.ok().and_then(|second| second.format(&Rfc3339).ok());
        match (text, self.0.rem_euclid(1_000)) {
            (None, _) => self.to_string(),
            (Some(text), 0) => text,
            (Some(text), millis) => text.replace('Z', &format!(".{millis:03}Z")),
        }
    }

    /// Returns `true` for a due time before the year 2000, which is probably in seconds.
    pub(crate) fn is_suspicious_due(self) -> bool {
        self < Self::YEAR_2000 && !self.is_at_once()
    }

    /// Saturates at [`Timestamp::MAX`] instead of wrapping.
    pub(crate) fn plus(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(saturating_millis(delay)))
    }

    pub(crate) fn minus(self, delay: Duration) -> Self {
        Self(self.0.saturating_sub(saturating_millis(delay)))
    }

    /// Zero if `earlier` is in fact later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The instant as an unsigned number of the same order: the sign bit is flipped.
    pub(crate) fn to_ordered_bits(self) -> u64 {
        (self.0 as u64) ^ (1 << 63)
    }

    pub(crate) fn from_ordered_bits(bits: u64) -> Self {
        Self((bits ^ (1 << 63)) as i64)
    }
}

fn saturating_millis(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_at_once() {
            f.write_str("at once")
        } else {
            write!(f, "{}", self.0)
        }
    }
}

/// The period that a slice covers, and the unit of its `start`.
///
/// | level | letter | start | holds |
/// |---|---|---|---|
/// | now | `n` | hour of storing | messages that were due when they were stored |
/// | far | `f` | day of storing | messages whose hours have too few messages for a run |
/// | day | `d` | day of the due times | far messages, gathered by day before they move to their hours |
/// | hour | `h` | hour of the due times | most messages |
/// | minute | `m` | minute of the due times | a part of an hour that is too large to load at once |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Level {
    Now,
    Far,
    Day,
    Hour,
    Minute,
}

impl Level {
    pub(crate) const ALL: [Self; 5] = [Self::Now, Self::Far, Self::Day, Self::Hour, Self::Minute];

    pub(crate) const fn letter(self) -> u8 {
        b"nfdhm"[self as usize]
    }

    /// `None` if this version does not know the level.
    pub(crate) fn from_letter(letter: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.letter() == letter)
    }

    /// The unit of a slice's start, in milliseconds.
    const fn unit(self) -> i64 {
        match self {
            Self::Now | Self::Hour => 60 * MINUTE_MS,
            Self::Far | Self::Day => 24 * 60 * MINUTE_MS,
            Self::Minute => MINUTE_MS,
        }
    }
}

const MINUTE_MS: i64 = 60_000;

/// A part of a shard: the messages that are due, or were stored, in one period. Written as the
/// level's letter, which is small in every version, and the start: `h482913`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slice {
    pub(crate) level: Level,
    /// Units of the level since the epoch.
    pub(crate) start: i64,
}

impl Slice {
    /// The slice of a message that is due at `due` and stored at `now`.
    pub(crate) fn of(due: Timestamp, now: Timestamp) -> Self {
        if due <= now {
            Self::at(Level::Now, now)
        } else {
            Self::at(Level::Hour, due)
        }
    }

    /// The slice of a level that contains an instant.
    pub(crate) fn at(level: Level, instant: Timestamp) -> Self {
        Self {
            level,
            start: instant.0.div_euclid(level.unit()),
        }
    }

    /// The least due time that the slice can hold.
    pub(crate) fn least_due(self) -> Timestamp {
        match self.level {
            Level::Now => Timestamp::AT_ONCE,
            // A message that is due when it is stored is never in a far slice.
            _ => Timestamp(self.start.saturating_mul(self.level.unit())),
        }
    }

    /// The first due time after the slice. `None` if the slice has no end.
    pub(crate) fn end(self) -> Option<Timestamp> {
        let end = self
            .start
            .saturating_add(1)
            .saturating_mul(self.level.unit());
        (!matches!(self.level, Level::Now | Level::Far)).then_some(Timestamp(end))
    }

    /// `None` if the text is no slice, or not of this version.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (letter, start) = split_slice(text)?;
        let level = Level::from_letter(letter)?;
        Some(Self { level, start })
    }

    /// True for the text of a slice whose level this version does not know: a newer version wrote
    /// it.
    pub(crate) fn is_newer(text: &str) -> bool {
        split_slice(text).is_some_and(|(letter, _)| Level::from_letter(letter).is_none())
    }
}

/// The letter and the start of a slice of any version: a small letter and a number.
fn split_slice(text: &str) -> Option<(u8, i64)> {
    let letter = *text.as_bytes().first()?;
    let start: i64 = text.get(1..)?.parse().ok()?;
    // A number has only one spelling, so two texts are never one slice.
    let is_slice = letter.is_ascii_lowercase() && text[1..] == start.to_string();
    is_slice.then_some((letter, start))
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", char::from(self.level.letter()), self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ordered_bits_keep_the_order(a: i64, b: i64) {
            let (a, b) = (Timestamp::from_millis(a), Timestamp::from_millis(b));
            prop_assert_eq!(a.cmp(&b), a.to_ordered_bits().cmp(&b.to_ordered_bits()));
            prop_assert_eq!(Timestamp::from_ordered_bits(a.to_ordered_bits()), a);
        }

        #[test]
        fn a_slice_reads_back_and_never_starts_after_what_it_holds(due in -1_000_000_000_000i64..4_000_000_000_000, now in 0i64..4_000_000_000_000) {
            let (due, now) = (Timestamp::from_millis(due), Timestamp::from_millis(now));
            let stored = [Slice::of(due, now), Slice::at(Level::Day, due), Slice::at(Level::Hour, due), Slice::at(Level::Minute, due)];
            let far = (due > now).then(|| Slice::at(Level::Far, now));
            for slice in stored.into_iter().chain(far) {
                prop_assert_eq!(Slice::parse(&slice.to_string()), Some(slice));
                prop_assert!(slice.least_due() <= due && slice.end().is_none_or(|end| end > due));
            }
        }
    }

    #[test]
    fn an_instant_is_written_as_a_date_if_it_has_one() {
        for (millis, text) in [
            (1_801_386_000_000, "2027-01-31T09:00:00Z"),
            (1_801_386_000_250, "2027-01-31T09:00:00.250Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (i64::MAX, "9223372036854775807"),
            (i64::MIN, "at once"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_rfc3339(), text);
        }
    }

    #[test]
    fn a_slice_of_an_unknown_level_is_not_guessed_at() {
        assert_eq!(Slice::parse("x12"), None);
        assert!(Slice::is_newer("x12") && Slice::is_newer("x-12") && !Slice::is_newer("h12"));
        for foreign in [
            "",
            "h",
            "h012",
            "h+1",
            "x",
            "x012",
            "xx12",
            "X12",
            "x12 ",
            "quarantine",
        ] {
            assert!(
                Slice::parse(foreign).is_none() && !Slice::is_newer(foreign),
                "{foreign}"
            );
        }
    }
}
