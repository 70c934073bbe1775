//! The runs of one shard that are in memory: the schedule of their messages, the index of their
//! names, and the memory that they use.

use crate::model::{Cursor, Offset, Progress, Slice, Timestamp, Watermark};
use crate::run::{LoadedRun, RunName};
use crate::schedule::{RunIndex, Schedule, TakenBatch};
use crate::timer::load::{MemoryAccount, ResidentRun};
use std::rc::Rc;
use std::time::Duration;

pub(crate) struct ResidentRuns {
    schedule: Schedule<ResidentRun>,
    index: RunIndex,
    memory: Rc<MemoryAccount>,
}

impl ResidentRuns {
    pub(super) fn new(taken: Progress, watermark: Watermark, memory: Rc<MemoryAccount>) -> Self {
        Self {
            schedule: Schedule::new(taken, watermark),
            index: RunIndex::default(),
            memory,
        }
    }

    /// Drops everything. Loading begins again behind `taken`.
    pub(super) fn restart(&mut self, taken: Progress, watermark: Watermark) {
        self.schedule = Schedule::new(taken, watermark);
        self.index = RunIndex::default();
    }

    pub(super) fn schedule(&self) -> &Schedule<ResidentRun> {
        &self.schedule
    }

    pub(super) fn memory(&self) -> &Rc<MemoryAccount> {
        &self.memory
    }

    pub(super) fn known_runs(&self) -> usize {
        self.index.len()
    }

    pub(super) fn is_known(&self, name: &RunName) -> bool {
        self.index.contains(name)
    }

    /// The due time of the earliest message, delivered late ones included.
    pub(crate) fn earliest_due(&mut self, wall: Timestamp) -> Option<Timestamp> {
        self.schedule.earliest_due(wall)
    }

    /// Takes messages that are due at `until` or before.
    pub(super) fn take(
        &mut self,
        until: Timestamp,
        limit: usize,
    ) -> Option<TakenBatch<ResidentRun>> {
        self.schedule.take(until, limit)
    }

    pub(super) fn add(&mut self, run: LoadedRun) {
        let not_loaded_from = run.first_dropped_due;
        self.index
            .insert(&run.name, run.slice, &run.summary, not_loaded_from);
        if let Some(due) = not_loaded_from {
            // The run was read with an older bound than other runs in memory.
            self.schedule.lower_loaded(Cursor::new(due, Offset(0)));
        }
        self.schedule
            .add_run(Rc::new(ResidentRun::new(run, &self.memory)));
    }

    pub(super) fn advance_seen(&mut self, watermark: Watermark) {
        self.schedule.advance_seen(watermark);
    }

    /// Everything before `bound` is in memory, except for partial runs that an older bound has cut.
    pub(super) fn mark_loaded_to(&mut self, bound: Cursor) {
        let first_missing = self
            .index
            .first_unloaded_due()
            .map(|due| Cursor::new(due, Offset(0)));
        self.schedule
            .set_loaded(first_missing.map_or(bound, |missing| bound.min(missing)));
    }

    /// All late messages before this offset are in memory.
    pub(super) fn mark_late_loaded_to(&mut self, offset: Offset) {
        self.schedule.advance_late_loaded(offset);
    }

    /// Frees the memory of messages that are due after `horizon`.
    pub(super) fn drop_due_after(&mut self, horizon: Timestamp) {
        let index = &mut self.index;
        self.schedule
            .trim(first_position_after(horizon), |resident| {
                if let Some(due) = resident.keep_until(horizon) {
                    index.mark_unloaded_from(&resident.run.name, due);
                }
            });
    }

    /// Removes a partial run from the index if its missing messages begin at `until` or before.
    pub(super) fn pop_partial(&mut self, until: Timestamp) -> Option<(Timestamp, Slice, RunName)> {
        self.index.pop_partial(until)
    }

    /// The store has replaced this run by others.
    pub(crate) fn mark_replaced(&mut self, name: &RunName) {
        self.index.mark_replaced(name);
    }

    pub(super) fn remove_if_replaced(&mut self, name: &RunName) -> bool {
        self.index.remove_if_replaced(name)
    }

    /// Removes up to `limit` runs from the index whose messages are all delivered.
    pub(super) fn remove_deletable(
        &mut self,
        delivered: Progress,
        limit: usize,
    ) -> Vec<(Slice, RunName)> {
        self.index.remove_deletable(delivered, limit)
    }
}

/// The first position after every message that is due at `due` or before.
pub(super) fn first_position_after(due: Timestamp) -> Cursor {
    Cursor::new(due.plus(Duration::from_millis(1)), Offset(0))
}
