//! The run: a sorted, compressed batch of one slice's messages, and the unit of storage. A run is immutable and sorted by (due, offset)
//! (I3), and its name is never used twice, even by a store that went back.
//!
//! `frame` is the byte layout, `record` one message's body in it; `Sealer` decides which messages make a run, `Encoder` and
//! `Namer` make it, `Decoder` reads it into `Loaded`.

mod builder;
mod header;
mod reader;
pub(crate) mod record;
#[cfg(test)]
mod test_messages;
mod writer;

pub(crate) use builder::{EncodedMessage, FarTarget, RunBuilder, ThinHours};
pub(crate) use header::CorruptRun;
pub(crate) use reader::{LoadedRun, RunDecoder, decoded_size};
pub(crate) use writer::{RunEncoder, RunNamer};

use crate::model::{Cursor, Offset, Slice, Timestamp};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// A run's name: `<writer>-<counter>-<count>-<least offset>`, each in lower-case hex. Writer is random and the counter its own, so a name is
/// never used twice. Count and least offset are in it for a run whose bytes turn out unreadable, and so that a store can keep count of what
/// it deletes by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunName(Arc<str>);

impl RunName {
    pub(crate) fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Messages in the run; 0 for a name that Postdate did not write.
    pub(crate) fn count(&self) -> u32 {
        self.part(2)
            .and_then(|part| u32::from_str_radix(part, 16).ok())
            .unwrap_or(0)
    }

    /// The least offset in the run; 0, which is never too high, for a name that Postdate did not write.
    pub(crate) fn least_offset(&self) -> Offset {
        Offset(
            self.part(3)
                .and_then(|part| u64::from_str_radix(part, 16).ok())
                .unwrap_or(0),
        )
    }

    fn part(&self, index: usize) -> Option<&str> {
        self.0.split('-').nth(index)
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a run's header says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunSummary {
    pub(crate) count: u32,
    /// Place of the first message; its due is the run's least.
    pub(crate) first: Cursor,
    /// Place of the last message: the run is wholly behind a cursor that has reached it.
    pub(crate) last: Cursor,
    pub(crate) least_offset: Offset,
    pub(crate) greatest_offset: Offset,
}

impl RunSummary {
    pub(crate) fn least_due(&self) -> Timestamp {
        self.first.due
    }
}

/// A run as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) name: RunName,
    pub(crate) slice: Slice,
    pub(crate) summary: RunSummary,
    /// Header and compressed content.
    pub(crate) bytes: Bytes,
}
