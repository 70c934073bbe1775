//! Moves shards to and from the memory store.

use super::MemoryStore;
use super::shard::MemoryShard;
use crate::model::{Progress, ShardId, SourceIdentity, Watermark};
use crate::store::rules::{Lineage, NO_HOLD, ShardMeta};
use crate::store::{
    CopyNumber, CopyState, CopyStore, Error, IdPosition, NewShard, PartCounts, ShardEntry,
    ShardPart,
};
use async_trait::async_trait;

impl MemoryStore {
    /// A stored shard, or the part of it that was copied.
    fn with_parts<T>(&self, id: &ShardId, read: impl FnOnce(&MemoryShard) -> T) -> Option<T> {
        let (shards, copies) = (self.inner.shards.borrow(), self.inner.copies.borrow());
        let copy = || copies.get(id).map(|(_, shard)| shard);
        shards.get(id).or_else(copy).map(read)
    }
}

#[async_trait(?Send)]
impl CopyStore for MemoryStore {
    async fn copy_state(&self, shard: &ShardId) -> Result<CopyState, Error> {
        self.yield_as_network().await?;
        let mut shards = self.inner.shards.borrow_mut();
        Ok(match shards.get_mut(shard).map(MemoryShard::readable) {
            Some(Some(found)) => CopyState::Stored(Box::new(found.state())),
            Some(None) => CopyState::Unreadable("it has an unknown slice".to_owned()),
            None if self.inner.copies.borrow().contains_key(shard) => CopyState::Begun,
            None => CopyState::Absent,
        })
    }

    async fn shard_meta(&self, shard: &ShardId) -> Result<Option<ShardMeta>, Error> {
        self.yield_as_network().await?;
        let shards = self.inner.shards.borrow();
        Ok(shards.get(shard).map(|shard| shard.positions.clone()))
    }

    /// Answers everything in one part.
    async fn entries(
        &self,
        shard: &ShardId,
        _: Option<&IdPosition>,
    ) -> Result<(Vec<ShardEntry>, Option<IdPosition>), Error> {
        self.yield_as_network().await?;
        let entries = self.with_parts(shard, MemoryShard::entries);
        Ok((entries.unwrap_or_default(), None))
    }

    async fn count_parts(&self, shard: &ShardId) -> Result<PartCounts, Error> {
        self.yield_as_network().await?;
        Ok(self
            .with_parts(shard, MemoryShard::count_parts)
            .unwrap_or_default())
    }

    async fn begin_copy(&self, shard: &ShardId, copy: CopyNumber) -> Result<bool, Error> {
        self.yield_as_network().await?;
        self.check_space()?;
        let mut copies = self.inner.copies.borrow_mut();
        if self.inner.shards.borrow().contains_key(shard) || copies.contains_key(shard) {
            return Ok(false);
        }
        let new = NewShard {
            shard: shard.clone(),
            identity: SourceIdentity("-".into()),
            watermark: Watermark(0),
            delivered: Progress::START,
            hold: NO_HOLD,
            possibly_delivered: Progress::START,
            pause: None,
            creates: true,
        };
        copies.insert(shard.clone(), (copy, MemoryShard::new(&new)));
        Ok(true)
    }

    async fn add_to_copy(
        &self,
        shard: &ShardId,
        copy: CopyNumber,
        part: ShardPart,
    ) -> Result<bool, Error> {
        self.yield_as_network().await?;
        self.check_space()?;
        let mut copies = self.inner.copies.borrow_mut();
        let found = copies.get_mut(shard).filter(|(by, _)| *by == copy);
        Ok(found.map(|(_, shard)| shard.add_part(part)).is_some())
    }

    async fn end_copy(
        &self,
        shard: &ShardId,
        copy: CopyNumber,
        meta: &ShardMeta,
    ) -> Result<bool, Error> {
        self.yield_as_network().await?;
        let mut copies = self.inner.copies.borrow_mut();
        if copies.get(shard).is_none_or(|(by, _)| *by != copy) {
            return Ok(false);
        }
        let Some((_, mut copied)) = copies.remove(shard) else {
            return Ok(false);
        };
        copied.end_copy(ShardMeta {
            lineage: Lineage::default(),
            ..meta.clone()
        });
        self.inner.shards.borrow_mut().insert(shard.clone(), copied);
        Ok(true)
    }
}

impl MemoryShard {
    fn entries(&self) -> Vec<ShardEntry> {
        let ids = self
            .ids
            .iter()
            .map(|(name, place)| ShardEntry::Id(name.clone(), *place));
        let changed = self.changed.iter();
        let changed = changed.map(|(place, change)| ShardEntry::Changed(*place, *change));
        let effects = self.effects.values().copied().map(ShardEntry::Effect);
        ids.chain(changed).chain(effects).collect()
    }

    fn count_parts(&self) -> PartCounts {
        PartCounts {
            runs: self.runs.len() as u64,
            quarantined_runs: self.quarantine.len() as u64,
            ids: self.ids.len() as u64,
            changed: self.changed.len() as u64,
            effects: self.effects.len() as u64,
            messages: self.counts.total().messages,
        }
    }

    fn add_part(&mut self, part: ShardPart) {
        for run in part.runs {
            let bytes = run.bytes.len();
            let is_new = match run.slice {
                Some(slice) => {
                    let row = (run.least_due, run.bytes);
                    self.runs.insert((slice, run.name.clone()), row).is_none()
                }
                None => self
                    .quarantine
                    .insert(run.name.clone(), run.bytes)
                    .is_none(),
            };
            if is_new {
                self.counts.add(run.slice, &run.name, bytes);
            }
        }
        for entry in part.entries {
            match entry {
                ShardEntry::Id(name, place) => drop(self.ids.insert(name, place)),
                ShardEntry::Changed(place, change) => drop(self.changed.insert(place, change)),
                ShardEntry::Effect(effect) => drop(self.effects.insert(effect.request, effect)),
            }
        }
    }
}
