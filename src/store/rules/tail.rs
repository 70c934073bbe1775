//! The tail of a shard: names of the newest runs, ordered by the end of their batch. A store that
//! forgets the tail starts a new one at the watermark; a timer behind it loads the shard again.

use super::ShardMeta;
use crate::limit;
use crate::model::{Offset, Slice, Timestamp, Watermark};
use crate::run::{Run, RunName};
use crate::store::{RunEntry, Tail, TailRun, Tailed};
use std::collections::BTreeSet;

/// At most [`limit::TAIL_RUNS_MAX`] runs.
#[derive(Clone, Debug)]
pub(crate) struct ShardTail {
    /// End of the batch, least offset, name, slice, least due.
    runs: BTreeSet<(Watermark, Offset, RunName, Slice, Timestamp)>,
    /// The tail holds every run that was appended after this watermark.
    from: Watermark,
}

impl ShardTail {
    pub(crate) fn new(from: Watermark) -> Self {
        Self {
            runs: BTreeSet::new(),
            from,
        }
    }

    /// Adds the runs of the batch that ends at `to`.
    pub(crate) fn add(&mut self, to: Watermark, runs: &[Run]) {
        for run in runs {
            let least_due = run.summary.least_due();
            let least_offset = run.name.least_offset();
            self.runs
                .insert((to, least_offset, run.name.clone(), run.slice, least_due));
        }
        while self.runs.len() > limit::TAIL_RUNS_MAX {
            let trimmed = self.runs.pop_first().expect("the set is not empty");
            self.from = trimmed.0;
        }
    }

    /// Answers the request. The runs come without bytes.
    /// `has_ids`: messages wait under ids.
    pub(crate) fn read(&self, request: &Tail, meta: &ShardMeta, has_ids: bool) -> Tailed {
        let watermark = meta.watermark;
        if request.after > watermark || request.after < self.from {
            return Tailed::OutOfRange { watermark };
        }
        let newer: Vec<_> = self
            .runs
            .iter()
            .filter(|(to, ..)| *to > request.after)
            .collect();
        let mut answered = &newer[..];
        let mut complete_to = watermark;
        if let Some((cut, ..)) = newer.get(request.limit) {
            // Whole batches only, and at least one.
            answered = &newer[..newer.partition_point(|(to, ..)| to < cut)];
            if answered.is_empty() {
                answered = &newer[..newer.partition_point(|(to, ..)| to <= cut)];
            }
            complete_to = answered.last().expect("a cut batch has runs").0;
        }
        let runs = answered
            .iter()
            .map(|(_, _, name, slice, least_due)| TailRun {
                entry: RunEntry {
                    slice: *slice,
                    name: name.clone(),
                    least_due: *least_due,
                },
                bytes: None,
            });
        Tailed::Runs {
            watermark,
            complete_to,
            lineage: meta.lineage,
            hold: meta.hold(has_ids),
            pause: meta.pause.clone(),
            runs: runs.collect(),
        }
    }
}
