//! The tail of a shard: its newest runs by the end of their batch, without their bytes. A store that forgets it begins a new one at the
//! watermark: who is behind that loads the shard again.

use crate::limit;
use crate::model::{Offset, Slice, Timestamp, Watermark};
use crate::run::{Run, RunName};
use crate::store::{Lineage, RunEntry, Tail, TailRun, Tailed};
use std::collections::BTreeSet;

/// At most [`limit::TAIL_BATCHES_MAX`] runs.
#[derive(Clone, Debug)]
pub(crate) struct ShardTail {
    /// By the end of the batch, then by least offset; everything past `from` is there.
    runs: BTreeSet<(Watermark, Offset, RunName, Slice, Timestamp)>,
    from: Watermark,
}

impl ShardTail {
    pub(crate) fn new(from: Watermark) -> Self {
        Self {
            runs: BTreeSet::new(),
            from,
        }
    }

    /// Takes in the runs of the batch that ends at `to`.
    pub(crate) fn add(&mut self, to: Watermark, runs: &[Run]) {
        self.runs.extend(runs.iter().map(|run| {
            (
                to,
                run.name.least_offset(),
                run.name.clone(),
                run.slice,
                run.summary.least_due(),
            )
        }));
        while self.runs.len() > limit::TAIL_BATCHES_MAX {
            let trimmed = self.runs.pop_first().expect("longer than nothing");
            self.from = trimmed.0;
        }
    }

    /// Answers the request; the runs come without their bytes.
    pub(crate) fn read(&self, request: &Tail, watermark: Watermark, history: Lineage) -> Tailed {
        if request.after > watermark || request.after < self.from {
            return Tailed::OutOfRange { watermark };
        }
        let past: Vec<_> = self
            .runs
            .iter()
            .filter(|(to, ..)| *to > request.after)
            .collect();
        let mut taken = &past[..];
        let mut seen = watermark;
        if let Some((cut, ..)) = past.get(request.limit) {
            // Whole batches, and one at the least.
            taken = &past[..past.partition_point(|(to, ..)| to < cut)];
            if taken.is_empty() {
                taken = &past[..past.partition_point(|(to, ..)| to <= cut)];
            }
            seen = taken.last().expect("a batch that was cut has runs").0;
        }
        let runs = taken.iter().map(|(_, _, name, slice, least_due)| {
            let listing = RunEntry {
                slice: *slice,
                name: name.clone(),
                least_due: *least_due,
            };
            TailRun {
                entry: listing,
                bytes: None,
            }
        });
        Tailed::Runs {
            watermark,
            complete_to: seen,
            lineage: history,
            runs: runs.collect(),
        }
    }
}
