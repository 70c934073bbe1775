//! Control records of an assigned partition, which pause or resume its shard.

use super::admit_record::Obstacle;
use super::partition::AssignedPartition;
use crate::model::{CommitMetadata, Control, Offset, Pause};
use std::time::Duration;

impl AssignedPartition {
    pub(super) fn is_paused(&self) -> bool {
        self.pause.as_ref().is_some_and(|pause| pause.is_paused)
    }

    /// The pause, if a commit with this lowest pending offset needs it.
    pub(super) fn needed_pause(&self, lowest_pending: Offset) -> Option<Pause> {
        CommitMetadata::needed_pause(self.pause.as_ref(), lowest_pending)
    }

    pub(super) fn learn_pause(&mut self, pause: Option<Pause>) {
        self.pause = Pause::newest(self.pause.take(), pause);
    }

    /// Applies the control record at `offset`; `None`: one of another route. The state after it must be
    /// committed first, so the shard is opened again. Thus a pause that the store shows survives its
    /// loss. While the last commit is not known, nothing can be committed.
    pub(super) fn on_control(
        &mut self,
        offset: Offset,
        control: Option<Control<'_>>,
    ) -> Result<(), Obstacle> {
        let Some(control) = control else {
            return Ok(());
        };
        let next = Pause::followed_by(self.pause.as_ref(), offset, &control);
        let is_new = next.is_some();
        self.learn_pause(next);
        if is_new && self.assumed.is_none() && !fault!(PauseBeforeCommit) {
            return Err(Obstacle::Uncommitted);
        }
        let is_known = |pause: &&Pause| pause.after.covers(offset);
        self.batch.pause = self.pause.as_ref().filter(is_known).cloned();
        self.flush_within(Duration::ZERO);
        Ok(())
    }
}
