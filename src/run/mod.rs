//! A run: a sorted, compressed batch of messages of one slice. It is the unit of storage.
//!
//! A run is immutable and sorted by (due, offset), and its name is never used twice, even after a
//! rollback of the store (I3).
//!
//! `header` documents the byte layout, and `record` the bytes of one message. `RunBuilder` groups
//! messages into runs and names them, `RunEncoder` encodes them, `seal` encrypts them, and
//! `RunDecoder` reads them.

mod builder;
mod header;
mod reader;
pub(crate) mod record;
mod seal;
#[cfg(test)]
pub(crate) mod test_messages;
mod writer;

pub(crate) use builder::{EncodedMessage, FarTarget, RunBuilder, ThinHours};
pub(crate) use header::RunError;
pub(crate) use reader::{ComputedRun, LoadedRun, RunDecoder, decoded_size};
#[cfg(test)]
pub(crate) use writer::RunEncoder;

use crate::model::{Cursor, Offset, Slice, Timestamp};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// The name of a run: `<writer>-<counter>-<count>-<least offset>`, each in lower-case hex. The name
/// of an encrypted run ends with `-<fingerprint>-<key id>`.
///
/// The writer is the random id of a [`RunBuilder`], which counts its runs. A store counts the
/// messages of unreadable and deleted runs by their names, and what each key still encrypts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunName(Arc<str>);

impl RunName {
    pub(crate) fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The number of messages in the run; 0 for a name that Postdate did not write.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.number(2)).unwrap_or(0)
    }

    /// The least offset in the run; 0, which is never too high, for such a name.
    pub(crate) fn least_offset(&self) -> Offset {
        Offset(self.number(3))
    }

    /// The name of the key that encrypts the run; `None` for a plain run.
    pub(crate) fn key(&self) -> Option<&str> {
        self.0.splitn(5, '-').nth(4)
    }

    fn number(&self, index: usize) -> u64 {
        let part = self.0.split('-').nth(index).unwrap_or_default();
        u64::from_str_radix(part, 16).unwrap_or(0)
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunSummary {
    pub(crate) count: u32,
    /// Place of the first message. Its due time is the least of the run.
    pub(crate) first: Cursor,
    /// Place of the last message. A cursor that has reached it has passed the whole run.
    pub(crate) last: Cursor,
    pub(crate) least_offset: Offset,
    pub(crate) greatest_offset: Offset,
}

impl RunSummary {
    pub(crate) fn least_due(&self) -> Timestamp {
        self.first.due
    }
}

/// A run in the form in which it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) name: RunName,
    pub(crate) slice: Slice,
    pub(crate) summary: RunSummary,
    /// Header and compressed content.
    pub(crate) bytes: Bytes,
}
