//! A power loss of a store that writes to its disk every second: a prefix of the writes since then
//! survives.
//!
//! Each part of the store is a server with a file of its own, so each part keeps its own prefix. The
//! sessions are in the first part.

use super::{MemoryShard, MemoryStore};
use crate::model::ShardId;
use crate::store::StorePart;
use crate::store::rules::Sessions;

/// The writes that are not on the disk, in order. `None`: every write is at once.
#[derive(Default)]
pub(super) struct UnsyncedWrites(Option<Vec<StateBefore>>);

/// The state before a write.
enum StateBefore {
    Shard(ShardId, Option<Box<MemoryShard>>),
    Sessions(Sessions),
}

impl UnsyncedWrites {
    fn note(&mut self, before: impl FnOnce() -> StateBefore) {
        if let Some(writes) = &mut self.0 {
            writes.push(before());
        }
    }
}

impl MemoryStore {
    /// All writes are on the disk now. Later ones are not until the next call.
    pub(crate) fn sync(&self) {
        self.inner
            .unsynced
            .replace(UnsyncedWrites(Some(Vec::new())));
    }

    /// Loses writes that are not on the disk. `kept` returns how many of so many writes of a part
    /// survive. Returns the number of lost writes.
    pub(crate) fn lose_power(&self, mut kept: impl FnMut(usize) -> usize) -> usize {
        let unsynced = self.inner.unsynced.take().0.unwrap_or_default();
        let (parts, mut lost) = (self.inner.parts.get(), 0);
        for part in (0..parts).map(StorePart) {
            let of_part = unsynced
                .iter()
                .filter(|write| self.part_written(write) == part);
            let of_part: Vec<_> = of_part.collect();
            let kept = kept(of_part.len());
            lost += of_part.len() - kept;
            of_part[kept..]
                .iter()
                .rev()
                .for_each(|write| self.undo(write));
        }
        self.sync();
        lost
    }

    fn part_written(&self, write: &StateBefore) -> StorePart {
        match write {
            StateBefore::Shard(shard, _) => self.part(shard),
            StateBefore::Sessions(_) => StorePart(0),
        }
    }

    fn undo(&self, write: &StateBefore) {
        match write {
            StateBefore::Shard(id, Some(shard)) => {
                let mut shards = self.inner.shards.borrow_mut();
                shards.insert(id.clone(), (**shard).clone());
            }
            StateBefore::Shard(id, None) => drop(self.inner.shards.borrow_mut().remove(id)),
            StateBefore::Sessions(sessions) => drop(self.inner.sessions.replace(sessions.clone())),
        }
    }

    /// The shard is about to change.
    pub(super) fn note_write(&self, id: &ShardId, shard: Option<&MemoryShard>) {
        let before = || StateBefore::Shard(id.clone(), shard.cloned().map(Box::new));
        self.inner.unsynced.borrow_mut().note(before);
    }

    /// The sessions are about to change.
    pub(super) fn note_session_write(&self) {
        let before = || StateBefore::Sessions(self.inner.sessions.borrow().clone());
        self.inner.unsynced.borrow_mut().note(before);
    }
}
