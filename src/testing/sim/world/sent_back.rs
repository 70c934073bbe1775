//! Messages that went back to their source, and the interruptions that may have repeated them.

use super::{SOURCE, World};
use crate::model::Offset;
use crate::testing::broker::memory::StoredRecord;
use crate::testing::sim::clock::EPOCH;
use std::ops::RangeInclusive;

/// The record of a message that went back to its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentBack {
    pub(crate) uid: String,
    pub(crate) partition: i32,
    pub(crate) offset: Offset,
    /// The place from which it was sent.
    pub(crate) from: Offset,
    /// By the clock of the brokers.
    pub(crate) at: i64,
}

impl SentBack {
    fn of(record: StoredRecord) -> Option<Self> {
        let mut headers = record.headers.into_iter();
        let (_, line) = headers.find(|(name, _)| name == b"postdate-retry")?;
        let line = String::from_utf8(line?).ok()?;
        let from = line
            .split(' ')
            .find_map(|field| field.strip_prefix("from="))?;
        Some(Self {
            uid: String::from_utf8(record.payload?).ok()?,
            partition: record.partition,
            offset: record.offset,
            from: Offset(from.parse().ok()?),
            at: record.at.as_millis(),
        })
    }
}

impl World {
    /// The messages with ids that have gone back to their source.
    pub(crate) fn sent_back(&self) -> Vec<SentBack> {
        let records = self.0.cluster.records(SOURCE).into_iter();
        records.filter_map(SentBack::of).collect()
    }

    /// True if a later record continues the message of this place.
    pub(super) fn is_sent_back(&self, place: (u32, i32, Offset)) -> bool {
        if self.0.cancelled.borrow().contains_key(&place) {
            return false;
        }
        let mut known = self.0.sent_back.borrow_mut();
        let continues = |it: &SentBack| (it.partition, it.from) == (place.1, place.2);
        let is_found = known.contains(&place) || self.sent_back().iter().any(continues);
        if is_found {
            known.insert(place);
        }
        is_found
    }

    /// Sends whose outcome is unknown may be repeated from now on.
    pub(super) fn note_interruption(&self) {
        let now = EPOCH + self.elapsed();
        self.0.interruptions.borrow_mut().push(now);
    }

    /// True if sends may have been repeated in this time.
    pub(crate) fn was_interrupted(&self, time: RangeInclusive<i64>) -> bool {
        let interruptions = self.0.interruptions.borrow();
        interruptions.iter().any(|at| time.contains(at))
    }
}
