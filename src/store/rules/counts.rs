//! Counts of a shard, by slice and for the quarantine. They give the slices and the lowest pending
//! offset without reading a run.

use super::{NO_HOLD, ShardMeta};
use crate::encryption::StoredId;
use crate::model::{Offset, Slice};
use crate::run::RunName;
use crate::store::{IdChange, SliceCount, StoredShard};
use std::collections::BTreeMap;

/// Totals of the runs in one slice, or in the quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunTotals {
    pub(crate) runs: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Least offset that was ever added. May be too low for the remaining runs, never too high.
    pub(crate) least_offset: Offset,
}

const EMPTY: RunTotals = RunTotals {
    runs: 0,
    messages: 0,
    bytes: 0,
    least_offset: Offset::MAX,
};

/// The totals of one shard. An empty slice, and a key without messages, have no entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardCounts {
    /// `None`: the quarantine.
    pub(crate) slices: BTreeMap<Option<Slice>, RunTotals>,
    /// The messages in slices by the key that encrypts them.
    pub(crate) keys: BTreeMap<Box<str>, u64>,
}

impl ShardCounts {
    /// Counts a run that was added to a slice or to the quarantine.
    pub(crate) fn add(&mut self, slice: Option<Slice>, name: &RunName, bytes: usize) {
        if let Some(key) = name.key().filter(|_| slice.is_some()) {
            *self.keys.entry(key.into()).or_default() += u64::from(name.count());
        }
        let totals = self.slices.entry(slice).or_insert(EMPTY);
        totals.runs += 1;
        totals.messages += u64::from(name.count());
        totals.bytes += bytes as u64;
        totals.least_offset = totals.least_offset.min(name.least_offset());
    }

    /// Counts a run that was removed. The caller checks that it was there.
    pub(crate) fn remove(&mut self, slice: Option<Slice>, name: &RunName, bytes: usize) {
        if let Some(key) = name.key().filter(|_| slice.is_some())
            && let Some(messages) = self.keys.get_mut(key)
        {
            *messages = messages.saturating_sub(u64::from(name.count()));
            if *messages == 0 {
                self.keys.remove(key);
            }
        }
        let Some(totals) = self.slices.get_mut(&slice) else {
            return;
        };
        totals.runs = totals.runs.saturating_sub(1);
        totals.messages = totals.messages.saturating_sub(u64::from(name.count()));
        totals.bytes = totals.bytes.saturating_sub(bytes as u64);
        if totals.runs == 0 {
            self.slices.remove(&slice);
        }
    }

    /// The totals of all runs, quarantine included.
    pub(crate) fn total(&self) -> RunTotals {
        self.slices.values().fold(EMPTY, |sum, totals| RunTotals {
            runs: sum.runs + totals.runs,
            messages: sum.messages + totals.messages,
            bytes: sum.bytes + totals.bytes,
            least_offset: sum.least_offset.min(totals.least_offset),
        })
    }

    /// True if all slices are empty. The quarantine does not count.
    pub(super) fn have_no_runs(&self) -> bool {
        self.slices.keys().all(Option::is_none)
    }

    /// Messages in quarantine.
    pub(super) fn quarantined(&self) -> u64 {
        self.slices.get(&None).map_or(0, |totals| totals.messages)
    }

    /// True if the ids of an append are hashed by every key that is used. Otherwise a message whose
    /// id another key has hashed would not be found.
    pub(crate) fn may_change(&self, changes: &[IdChange]) -> bool {
        let is_hashed = |id: &StoredId| self.keys.keys().all(|key| id.is_hashed_by(key));
        changes.first().is_none_or(|change| is_hashed(&change.id)) || fault!(ChangeIdsWithoutKey)
    }

    /// The complete state of the shard with this meta data.
    pub(crate) fn state(&self, meta: &ShardMeta) -> StoredShard {
        let slices = self.slices.iter().filter_map(|(slice, totals)| {
            Some(SliceCount {
                slice: (*slice)?,
                messages: totals.messages,
                bytes: totals.bytes,
            })
        });
        StoredShard {
            identity: meta.identity.clone(),
            watermark: meta.watermark,
            claimed: meta.claimed,
            delivered: meta.delivered,
            hold: meta.hold.unwrap_or(NO_HOLD),
            possibly_delivered: meta.possibly_delivered,
            pause: meta.pause.clone(),
            lowest_pending: meta.watermark.offset().min(self.total().least_offset),
            slices: slices.collect(),
            quarantined: self.quarantined(),
            keys: self.keys.clone(),
            ledger: meta.ledger,
        }
    }
}
