//! How much of a shard waits, by slice, and how much is set aside: index of slices, forecast, and lowest pending in O(slices).

use super::ShardMeta;
use crate::model::{Offset, Slice, Watermark};
use crate::run::RunName;
use crate::store::{Forecast, ShardContents, SliceCount, StoredShard};
use std::collections::BTreeMap;

/// What a slice, or the quarantine, holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunTotals {
    pub(crate) runs: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Least offset ever added: may be too low for what is left, never too high.
    pub(crate) least_offset: Offset,
}

impl RunTotals {
    const EMPTY: Self = Self {
        runs: 0,
        messages: 0,
        bytes: 0,
        least_offset: Offset::MAX,
    };

    fn add(&mut self, name: &RunName, bytes: usize) {
        self.runs += 1;
        self.messages += u64::from(name.count());
        self.bytes += bytes as u64;
        self.least_offset = self.least_offset.min(name.least_offset());
    }

    fn remove(&mut self, name: &RunName, bytes: usize) {
        self.runs = self.runs.saturating_sub(1);
        self.messages = self.messages.saturating_sub(u64::from(name.count()));
        self.bytes = self.bytes.saturating_sub(bytes as u64);
    }
}

/// The counts of one shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardCounts {
    slices: BTreeMap<Slice, RunTotals>,
    quarantine: Option<RunTotals>,
}

impl ShardCounts {
    /// A run has come.
    pub(crate) fn add(&mut self, slice: Slice, name: &RunName, bytes: usize) {
        self.slices
            .entry(slice)
            .or_insert(RunTotals::EMPTY)
            .add(name, bytes);
    }

    /// A run that was there has gone; the last one takes its slice along.
    pub(crate) fn remove(&mut self, slice: Slice, name: &RunName, bytes: usize) {
        let Some(count) = self.slices.get_mut(&slice) else {
            return;
        };
        count.remove(name, bytes);
        if count.runs == 0 {
            self.slices.remove(&slice);
        }
    }

    /// A run was put into the quarantine.
    pub(crate) fn quarantine_run(&mut self, name: &RunName, bytes: usize) {
        self.quarantine
            .get_or_insert(RunTotals::EMPTY)
            .add(name, bytes);
    }

    /// What a slice, or without one the quarantine, holds.
    pub(crate) fn get(&self, slice: Option<Slice>) -> Option<RunTotals> {
        slice.map_or(self.quarantine, |slice| self.slices.get(&slice).copied())
    }

    /// Puts back what was counted before.
    pub(crate) fn restore(&mut self, slice: Option<Slice>, count: RunTotals) {
        match slice {
            Some(slice) => _ = self.slices.insert(slice, count),
            None => self.quarantine = Some(count),
        }
    }

    /// Runs and bytes, of slices and quarantine together.
    pub(crate) fn size(&self) -> (u64, u64) {
        self.slices
            .values()
            .chain(&self.quarantine)
            .fold((0, 0), |(runs, bytes), count| {
                (runs + count.runs, bytes + count.bytes)
            })
    }

    pub(crate) fn contents(&self) -> ShardContents {
        let slice = |(slice, count): (&Slice, &RunTotals)| SliceCount {
            slice: *slice,
            messages: count.messages,
            bytes: count.bytes,
        };
        ShardContents {
            slices: self.slices.iter().map(slice).collect(),
            quarantined: self.quarantined(),
        }
    }

    /// Whether there is no run but in quarantine.
    pub(crate) fn have_no_runs(&self) -> bool {
        self.slices.is_empty()
    }

    /// Messages in quarantine.
    pub(crate) fn quarantined(&self) -> u64 {
        self.quarantine.map_or(0, |count| count.messages)
    }

    /// Messages in runs.
    pub(crate) fn pending(&self) -> u64 {
        self.slices.values().map(|count| count.messages).sum()
    }

    /// The state of a shard that stands at `positions`.
    pub(crate) fn state(&self, positions: &ShardMeta) -> StoredShard {
        StoredShard {
            identity: positions.identity.clone(),
            watermark: positions.watermark,
            claimed: positions.claimed,
            delivered: positions.delivered,
            lowest_pending: self.lowest_pending(positions.watermark),
            pending: self.pending(),
            stored_bytes: self.slices.values().map(|count| count.bytes).sum(),
            quarantined: self.quarantined(),
            forecast: self.forecast(),
            ledger: positions.ledger,
        }
    }

    fn forecast(&self) -> Forecast {
        let mut forecast = Forecast::default();
        self.slices
            .iter()
            .for_each(|(slice, count)| forecast.add(*slice, count.messages));
        forecast
    }

    fn lowest_pending(&self, watermark: Watermark) -> Offset {
        let least = self
            .slices
            .values()
            .chain(&self.quarantine)
            .map(|count| count.least_offset);
        least.fold(watermark.offset(), Offset::min)
    }
}
