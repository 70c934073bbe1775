//! Records which levels of slices each message passes through: the first one, and one more per
//! rewrite.

use crate::model::{Cursor, Level, ShardId};
use crate::run::{Run, RunDecoder};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Off by default, because it decodes every run.
#[derive(Default)]
pub(crate) struct CompactionTrace {
    is_on: Cell<bool>,
    paths: RefCell<BTreeMap<(ShardId, Cursor), Vec<Level>>>,
}

impl CompactionTrace {
    /// Starts to record. This is slow.
    pub(crate) fn start(&self) {
        self.is_on.set(true);
    }

    /// Records runs that were stored.
    pub(crate) fn record(&self, shard: &ShardId, runs: &[Run]) {
        let (mut decoder, mut paths) = (RunDecoder::plain(), self.paths.borrow_mut());
        for run in runs.iter().filter(|_| self.is_on.get()) {
            let loaded = decoder
                .decode(shard, run.name.clone(), run.slice, &run.bytes)
                .expect("it was just written");
            for index in 0..loaded.len() {
                let path = paths
                    .entry((shard.clone(), loaded.place(index)))
                    .or_default();
                if path.last() != Some(&run.slice.level) {
                    path.push(run.slice.level);
                }
            }
        }
    }

    /// The number of messages that took each path.
    pub(crate) fn paths_taken(&self) -> BTreeMap<Vec<Level>, usize> {
        let mut ways = BTreeMap::new();
        self.paths
            .borrow()
            .values()
            .for_each(|path| *ways.entry(path.clone()).or_default() += 1);
        ways
    }
}
