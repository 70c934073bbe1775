//! The position from which a source is read.

use super::{Offset, Timestamp, parse_rfc3339};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StartPoint {
    /// The first retained record.
    #[default]
    First,
    /// After the last record.
    End,
    Offset(Offset),
    /// The first record that is not older.
    Time(Timestamp),
}

impl StartPoint {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "first" => Some(Self::First),
            "end" => Some(Self::End),
            _ => match text.parse() {
                Ok(offset) => Some(Self::Offset(Offset(offset))),
                Err(_) => parse_rfc3339(text).map(Self::Time),
            },
        }
    }
}
