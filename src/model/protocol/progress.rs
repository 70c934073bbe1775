//! The cursor, and the pair (C, W) that tells which messages were taken or are done.

use crate::model::shard::{Offset, Watermark};
use crate::model::time::Timestamp;

/// The place of a message, or a cursor, in delivery order: by due time, then by offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Cursor {
    pub(crate) due: Timestamp,
    pub(crate) offset: Offset,
}

impl Cursor {
    /// Before every waiting message, but not before messages that are due at once. They are late
    /// from the start, so they are delivered in offset order.
    pub(crate) const START: Self = Self {
        due: Timestamp::AT_ONCE,
        offset: Offset::MAX,
    };

    pub(crate) const fn new(due: Timestamp, offset: Offset) -> Self {
        Self { due, offset }
    }

    /// The place of the answer to the record at this offset.
    pub(crate) fn of_answer(request: Offset) -> Self {
        Self::new(Timestamp::ANSWER, request)
    }

    /// 32 hex digits. Their order as strings is the order of the cursors, so that Lua scripts can
    /// compare them: Lua numbers cannot hold 64 bits.
    pub(crate) fn to_hex(self) -> String {
        format!("{:016x}{:016x}", self.due.to_ordered_bits(), self.offset.0)
    }

    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let (due, offset) = text.split_at_checked(16)?;
        Some(Self {
            due: Timestamp::from_ordered_bits(parse_hex(due)?),
            offset: Offset(parse_hex(offset)?),
        })
    }
}

/// Parses 16 hex digits.
fn parse_hex(digits: &str) -> Option<u64> {
    let value = u64::from_str_radix(digits, 16).ok()?;
    (digits.len() == 16).then_some(value)
}

/// The pair (C, W). It covers a message below W whose place is not past C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Progress {
    pub(crate) cursor: Cursor,
    pub(crate) watermark: Watermark,
}

impl Progress {
    pub(crate) const START: Self = Self {
        cursor: Cursor::START,
        watermark: Watermark(0),
    };

    pub(crate) fn new(cursor: Cursor, watermark: Watermark) -> Self {
        Self { cursor, watermark }
    }

    pub(crate) fn covers(self, place: Cursor) -> bool {
        self.watermark.covers(place.offset) && place <= self.cursor
    }

    /// Returns `true` if this pair covers everything that `other` covers.
    pub(crate) fn includes(self, other: Self) -> bool {
        self.cursor >= other.cursor && self.watermark >= other.watermark
    }

    /// The greater of two pairs that were both true; `self` if neither includes the other. A
    /// maximum per component would be wrong: it covers messages that neither pair covers.
    pub(crate) fn greatest(self, other: Self) -> Self {
        if other.includes(self) { other } else { self }
    }

    /// The least pair that covers everything that one of the two covers. It may cover more, so it is
    /// an upper bound.
    pub(crate) fn union(self, other: Self) -> Self {
        Self {
            cursor: self.cursor.max(other.cursor),
            watermark: self.watermark.max(other.watermark),
        }
    }

    /// 48 hex digits: 32 for the cursor, 16 for the watermark.
    pub(crate) fn to_hex(self) -> String {
        format!("{}{:016x}", self.cursor.to_hex(), self.watermark.0)
    }

    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let (cursor, watermark) = text.split_at_checked(32)?;
        Some(Self {
            cursor: Cursor::from_hex(cursor)?,
            watermark: Watermark(parse_hex(watermark)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cursor() -> impl Strategy<Value = Cursor> {
        (any::<i64>(), any::<u64>())
            .prop_map(|(due, offset)| Cursor::new(Timestamp::from_millis(due), Offset(offset)))
    }

    proptest! {
        #[test]
        fn hex_keeps_the_order_and_reads_back(a in cursor(), b in cursor(), w: u64) {
            prop_assert_eq!(a.cmp(&b), a.to_hex().cmp(&b.to_hex()));
            prop_assert_eq!(Cursor::from_hex(&a.to_hex()), Some(a));
            let pair = Progress::new(a, Watermark(w));
            prop_assert_eq!(Progress::from_hex(&pair.to_hex()), Some(pair));
        }

        #[test]
        fn the_greatest_of_two_pairs_covers_nothing_that_neither_covers(a in small(), b in small(), m in place()) {
            let both = a.greatest(b);
            prop_assert!(!both.covers(m) || a.covers(m) || b.covers(m));
        }
    }

    fn place() -> impl Strategy<Value = Cursor> {
        (0i64..6, 0u64..6)
            .prop_map(|(due, offset)| Cursor::new(Timestamp::from_millis(due), Offset(offset)))
    }

    fn small() -> impl Strategy<Value = Progress> {
        (place(), 0u64..7).prop_map(|(cursor, w)| Progress::new(cursor, Watermark(w)))
    }

    #[test]
    fn messages_that_are_due_at_once_are_behind_every_cursor() {
        assert!(Cursor::new(Timestamp::AT_ONCE, Offset(7)) <= Cursor::START);
        assert!(Cursor::new(Timestamp::from_millis(i64::MIN + 1), Offset(0)) > Cursor::START);
    }

    #[test]
    fn text_of_another_length_is_not_a_pair() {
        assert_eq!(Progress::from_hex(""), None);
        assert_eq!(Progress::from_hex(&"0".repeat(49)), None);
        assert_eq!(Cursor::from_hex(&"g".repeat(32)), None);
    }
}
