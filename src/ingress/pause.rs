//! Control records of an assigned partition, which pause or resume its shard.

use super::admit_record::Barrier;
use super::partition::AssignedPartition;
use crate::model::{CommitMetadata, Control, Offset, Pause, Watermark};
use crate::store::StoredShard;
use std::time::Duration;

impl AssignedPartition {
    fn is_paused(&self) -> bool {
        self.pause.as_ref().is_some_and(|pause| pause.is_paused)
    }

    /// True while the shard is paused, or while the store has not taken the last control record, which may
    /// resume it.
    pub(super) fn needs_reading(&self) -> bool {
        self.is_paused() || self.has_unstored_pause() && !fault!(QuotaStopsResume)
    }

    /// The store has not taken the last control record that was read. It is committed first.
    pub(super) fn has_unstored_pause(&self) -> bool {
        let is_unstored = |pause: &Pause| pause.after > self.stored_pause;
        self.pause.as_ref().is_some_and(is_unstored)
    }

    /// The pause that a commit with this lowest pending offset must have.
    pub(super) fn needed_pause(&self, lowest_pending: Offset) -> Option<Pause> {
        CommitMetadata::needed_pause(self.pause.as_ref(), lowest_pending)
    }

    pub(super) fn learn_pause(&mut self, pause: Option<Pause>) {
        self.pause = Pause::newest(self.pause.take(), pause);
    }

    pub(super) fn note_stored_pause(&mut self, state: &StoredShard) {
        let pause = state.pause.as_ref();
        self.stored_pause = pause.map_or(Watermark(0), |pause| pause.after);
    }

    /// The pause for an append that moves the watermark to `to`. A store whose watermark is behind the last
    /// control record has the state after it. The records behind it do not matter.
    pub(super) fn pause_to_append(&self, to: Watermark) -> Option<Pause> {
        let pause = self.pause.as_ref();
        let is_due = |it: &&Pause| it.after <= to && it.after > self.stored_pause;
        let is_last = |it: &&Pause| it.after == to || !fault!(RecordHidesPause);
        pause.filter(is_due).filter(is_last).cloned()
    }

    /// Applies the control record at `offset`; `None`: one of another route. The state after it must be
    /// committed first, so the shard is opened again. Thus a pause that the store shows survives its
    /// loss. While the last commit is not known, nothing can be committed.
    pub(super) fn on_control(
        &mut self,
        offset: Offset,
        control: Option<Control<'_>>,
    ) -> Result<(), Barrier> {
        let Some(control) = control else {
            return Ok(());
        };
        let next = Pause::followed_by(self.pause.as_ref(), offset, &control);
        if next.is_some() {
            self.pause = next;
            if self.assumed.is_none() && !fault!(PauseBeforeCommit) {
                return Err(Barrier::Uncommitted);
            }
        }
        let is_of_record = |pause: &Pause| pause.after.0 == offset.next().0;
        if self.pause.as_ref().is_some_and(is_of_record) {
            self.flush_within(Duration::ZERO);
        }
        Ok(())
    }
}
