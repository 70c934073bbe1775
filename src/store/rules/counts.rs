//! Counts of a shard, by slice and for the quarantine. They give the slices, the forecast and the
//! lowest pending offset without reading a run.

use super::{Forecast, ShardMeta};
use crate::model::{Offset, Slice, Watermark};
use crate::run::RunName;
use crate::store::{ShardContents, SliceCount, StoredShard};
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

/// The counts of one shard. An empty slice has no entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardCounts {
    slices: BTreeMap<Slice, RunTotals>,
    quarantine: Option<RunTotals>,
}

impl ShardCounts {
    /// Counts a run that was added to a slice.
    pub(crate) fn add(&mut self, slice: Slice, name: &RunName, bytes: usize) {
        self.slices
            .entry(slice)
            .or_insert(RunTotals::EMPTY)
            .add(name, bytes);
    }

    /// Counts a run that was removed from a slice. The caller checks that it was there.
    pub(crate) fn remove(&mut self, slice: Slice, name: &RunName, bytes: usize) {
        let Some(totals) = self.slices.get_mut(&slice) else {
            return;
        };
        totals.remove(name, bytes);
        if totals.runs == 0 {
            self.slices.remove(&slice);
        }
    }

    /// Counts a run that was added to the quarantine.
    pub(crate) fn quarantine_run(&mut self, name: &RunName, bytes: usize) {
        self.quarantine
            .get_or_insert(RunTotals::EMPTY)
            .add(name, bytes);
    }

    /// The totals of a slice, or of the quarantine if `slice` is `None`.
    pub(crate) fn get(&self, slice: Option<Slice>) -> Option<RunTotals> {
        match slice {
            Some(slice) => self.slices.get(&slice).copied(),
            None => self.quarantine,
        }
    }

    /// Restores totals that were read from disk.
    pub(crate) fn restore(&mut self, slice: Option<Slice>, totals: RunTotals) {
        match slice {
            Some(slice) => _ = self.slices.insert(slice, totals),
            None => self.quarantine = Some(totals),
        }
    }

    /// Number and bytes of all runs, quarantine included.
    pub(crate) fn size(&self) -> (u64, u64) {
        self.slices
            .values()
            .chain(&self.quarantine)
            .fold((0, 0), |(runs, bytes), totals| {
                (runs + totals.runs, bytes + totals.bytes)
            })
    }

    pub(crate) fn contents(&self) -> ShardContents {
        let slices = self.slices.iter().map(|(slice, totals)| SliceCount {
            slice: *slice,
            messages: totals.messages,
            bytes: totals.bytes,
        });
        ShardContents {
            slices: slices.collect(),
            quarantined: self.quarantined(),
        }
    }

    /// True if all slices are empty. The quarantine does not count.
    pub(crate) fn have_no_runs(&self) -> bool {
        self.slices.is_empty()
    }

    /// Messages in quarantine.
    pub(crate) fn quarantined(&self) -> u64 {
        self.quarantine.map_or(0, |totals| totals.messages)
    }

    /// Messages in slices.
    pub(crate) fn pending(&self) -> u64 {
        self.slices.values().map(|totals| totals.messages).sum()
    }

    /// The complete state of the shard with this meta data.
    pub(crate) fn state(&self, meta: &ShardMeta) -> StoredShard {
        StoredShard {
            identity: meta.identity.clone(),
            watermark: meta.watermark,
            claimed: meta.claimed,
            delivered: meta.delivered,
            lowest_pending: self.lowest_pending(meta.watermark),
            pending: self.pending(),
            stored_bytes: self.slices.values().map(|totals| totals.bytes).sum(),
            quarantined: self.quarantined(),
            forecast: self.forecast(),
            ledger: meta.ledger,
        }
    }

    fn forecast(&self) -> Forecast {
        let mut forecast = Forecast::default();
        for (slice, totals) in &self.slices {
            forecast.add(*slice, totals.messages);
        }
        forecast
    }

    fn lowest_pending(&self, watermark: Watermark) -> Offset {
        let least_offsets = self
            .slices
            .values()
            .chain(&self.quarantine)
            .map(|totals| totals.least_offset);
        least_offsets.fold(watermark.offset(), Offset::min)
    }
}
