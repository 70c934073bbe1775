//! Moves shards to and from the folder. Until its copy ends, the meta row of a shard holds its number
//! only, so a process that opens the folder finds neither positions nor rows.

use super::codec;
use super::key::{self, ShardNumber};
use super::shard::Shard;
use super::shards::{Entry, Shards};
use super::tables::WriteBatch;
use super::{Embedded, Tables};
use crate::limit::IDS_PER_STEP;
use crate::model::{Cursor, Progress, ShardId, Slice, SourceIdentity, Timestamp, Watermark};
use crate::run::RunName;
use crate::store::rules::{Change, Lineage, NO_HOLD, ShardMeta, ShardTail};
use crate::store::{
    CopyNumber, CopyState, CopyStore, Error, IdPosition, NewShard, PartCounts, ShardEntry,
    ShardPart, StoredRun,
};
use async_trait::async_trait;
use bytes::Bytes;
use fjall::Readable as _;
use std::ops::RangeInclusive;

#[async_trait(?Send)]
impl CopyStore for Embedded {
    async fn copy_state(&self, shard: &ShardId) -> Result<CopyState, Error> {
        let shard = shard.clone();
        self.write(move |shards, _| Ok(shards.copy_state(&shard)))
            .await
    }

    async fn shard_meta(&self, shard: &ShardId) -> Result<Option<ShardMeta>, Error> {
        let shard = shard.clone();
        self.write(move |shards, _| Ok(shards.get(&shard).map(|it| it.meta.clone())))
            .await
    }

    async fn entries(
        &self,
        shard: &ShardId,
        from: Option<&IdPosition>,
    ) -> Result<(Vec<ShardEntry>, Option<IdPosition>), Error> {
        let Some((number, _)) = self.number_and_messages(shard).await? else {
            return Ok((Vec::new(), None));
        };
        self.shared.with(|tables| {
            let (entries, next) = entries(tables, number, from)?;
            Ok((entries, next.map(|key| IdPosition(key.to_vec().into()))))
        })
    }

    async fn count_parts(&self, shard: &ShardId) -> Result<PartCounts, Error> {
        let Some((number, messages)) = self.number_and_messages(shard).await? else {
            return Ok(PartCounts::default());
        };
        self.shared.with(|tables| {
            let counts = count_rows(tables, number)?;
            Ok(PartCounts { messages, ..counts })
        })
    }

    async fn begin_copy(&self, shard: &ShardId, copy: CopyNumber) -> Result<bool, Error> {
        self.check_space(&[shard])?;
        let shard = shard.clone();
        self.write(move |shards, batch| Ok(shards.begin_copy(&shard, copy, batch)))
            .await
    }

    async fn add_to_copy(
        &self,
        shard: &ShardId,
        copy: CopyNumber,
        part: ShardPart,
    ) -> Result<bool, Error> {
        self.check_space(&[shard])?;
        let shard = shard.clone();
        self.write(move |shards, batch| match shards.entry_mut(&shard) {
            Some(Entry::Copying(shard, by)) if *by == copy => {
                shard.add_part(part, batch)?;
                Ok(true)
            }
            _ => Ok(false),
        })
        .await
    }

    async fn end_copy(
        &self,
        shard: &ShardId,
        copy: CopyNumber,
        meta: &ShardMeta,
    ) -> Result<bool, Error> {
        let (shard, meta) = (shard.clone(), meta.clone());
        self.write(move |shards, batch| Ok(shards.end_copy(&shard, copy, meta, batch)))
            .await
    }
}

impl Embedded {
    /// The number of a shard that is stored, or that this process copies, and its messages.
    async fn number_and_messages(
        &self,
        shard: &ShardId,
    ) -> Result<Option<(ShardNumber, u64)>, Error> {
        let shard = shard.clone();
        self.write(move |shards, _| {
            Ok(match shards.entry(&shard) {
                Some(Entry::Loaded(shard) | Entry::Copying(shard, _)) => {
                    Some((shard.number(), shard.counts.total().messages))
                }
                _ => None,
            })
        })
        .await
    }
}

/// The rows of ids, changed places and effects, in this order.
fn entry_rows(number: ShardNumber) -> [RangeInclusive<Vec<u8>>; 3] {
    let ids = key::all_ids(number);
    [ids, key::cancelled_range(number), key::all_effects(number)]
}

/// The entries from this key on, in one of the ranges, and the key at which the next part begins.
fn entries(
    tables: &Tables,
    number: ShardNumber,
    from: Option<&IdPosition>,
) -> fjall::Result<(Vec<ShardEntry>, Option<Bytes>)> {
    let mut ranges = entry_rows(number).into_iter();
    let from = from.map(|position| position.0.to_vec());
    let range = match &from {
        None => ranges.next(),
        Some(from) => ranges.find(|range| range.contains(from)),
    };
    let Some(range) = range else {
        return Ok((Vec::new(), None));
    };
    let start = from.unwrap_or_else(|| range.start().clone());
    let snapshot = tables.db.read_tx();
    let mut entries = Vec::new();
    let rows = snapshot.range(&tables.index, start..=range.end().clone());
    for (count, row) in rows.enumerate() {
        let (key, value) = row.into_inner()?;
        if count == IDS_PER_STEP {
            return Ok((entries, Some(Bytes::from(key))));
        }
        entries.extend(key::to_entry(&key, &value));
    }
    let next = ranges
        .next()
        .map(|range| Bytes::from(range.start().clone()));
    Ok((entries, next))
}

fn count_rows(tables: &Tables, number: ShardNumber) -> fjall::Result<PartCounts> {
    let mut counts = PartCounts::default();
    for row in tables.rows(&key::all_runs(number)) {
        row?;
        counts.runs += 1;
    }
    for row in tables.rows(&key::all_quarantined(number)) {
        row?;
        counts.quarantined_runs += 1;
    }
    let snapshot = tables.db.read_tx();
    for range in entry_rows(number) {
        for row in snapshot.range(&tables.index, range) {
            let (key, value) = row.into_inner()?;
            // An unreadable row counts, so that its shard is not copied without it.
            match key::to_entry(&key, &value) {
                Some(ShardEntry::Changed(..)) => counts.changed += 1,
                Some(ShardEntry::Effect(_)) => counts.effects += 1,
                Some(ShardEntry::Id(..)) | None => counts.ids += 1,
            }
        }
    }
    Ok(counts)
}

impl Shards {
    fn copy_state(&self, id: &ShardId) -> CopyState {
        match self.entry(id) {
            None => CopyState::Absent,
            Some(Entry::Loaded(shard)) => CopyState::Stored(Box::new(shard.state())),
            Some(Entry::Copying(..) | Entry::Interrupted(_)) => CopyState::Begun,
            Some(Entry::Incompatible { text, .. }) => CopyState::Unreadable(text.clone()),
        }
    }

    fn begin_copy(&mut self, id: &ShardId, copy: CopyNumber, batch: &mut WriteBatch<'_>) -> bool {
        if self.entry(id).is_some() {
            return false;
        }
        let number = self.take_number(batch);
        batch.put(
            key::meta(self.deployment(), id),
            codec::unfinished_copy(number),
        );
        let new = NewShard {
            shard: id.clone(),
            identity: SourceIdentity("-".into()),
            watermark: Watermark(0),
            delivered: Progress::START,
            hold: NO_HOLD,
            possibly_delivered: Progress::START,
            pause: None,
            creates: true,
        };
        let shard = Shard::new(&new, number);
        self.insert(id, Entry::Copying(Box::new(shard), copy));
        true
    }

    fn end_copy(
        &mut self,
        id: &ShardId,
        copy: CopyNumber,
        meta: ShardMeta,
        batch: &mut WriteBatch<'_>,
    ) -> bool {
        let Some(mut shard) = self.take_copying(id, copy) else {
            return false;
        };
        shard.tail = ShardTail::new(meta.watermark);
        shard.meta = ShardMeta {
            lineage: Lineage::default(),
            ..meta
        };
        shard.write_meta(self.deployment(), id, batch);
        shard.write_hold(batch);
        shard.write_possibly_delivered(batch);
        shard.write_pause(batch);
        self.insert(id, Entry::Loaded(shard));
        true
    }
}

impl Shard {
    /// A repeat changes nothing more.
    fn add_part(&mut self, part: ShardPart, batch: &mut WriteBatch<'_>) -> fjall::Result<()> {
        for run in part.runs {
            self.add_stored(&run, batch)?;
        }
        for entry in part.entries {
            match entry {
                ShardEntry::Id(name, place) => {
                    batch.put(key::id(self.number(), &name), codec::place(place));
                }
                ShardEntry::Changed(place, change) => self.put_changed(place, &change, batch),
                ShardEntry::Effect(effect) => {
                    let key = key::effect(self.number(), effect.request);
                    batch.put(key, codec::effect(&effect));
                }
            }
        }
        Ok(())
    }

    fn add_stored(&mut self, run: &StoredRun, batch: &mut WriteBatch<'_>) -> fjall::Result<()> {
        let StoredRun {
            slice,
            name,
            least_due,
            bytes,
        } = run;
        match slice {
            Some(slice) => {
                let key = key::run(self.number(), *slice, name);
                if batch.get(&key)?.is_none() {
                    self.add_run(*slice, name, *least_due, bytes, batch);
                }
            }
            None => {
                let key = key::quarantined(self.number(), name);
                if batch.get(&key)?.is_none() {
                    batch.put(key, bytes.clone());
                    self.counts.add(None, name, bytes.len());
                    self.write_counts(None, name, batch);
                }
            }
        }
        Ok(())
    }

    pub(super) fn put_changed(
        &mut self,
        place: Cursor,
        change: &Change,
        batch: &mut WriteBatch<'_>,
    ) {
        batch.put(key::cancelled(self.number(), place), codec::change(change));
        self.cancelled_from = self.cancelled_from.min(place);
    }

    pub(super) fn add_run(
        &mut self,
        slice: Slice,
        name: &RunName,
        least_due: Timestamp,
        bytes: &Bytes,
        batch: &mut WriteBatch<'_>,
    ) {
        let number = self.number();
        let row = codec::run(least_due, bytes.len());
        batch.put(key::order(number, least_due, name), codec::slice(slice));
        batch.put(key::run(number, slice, name), row);
        batch.put(key::bytes(number, slice, name), bytes.clone());
        self.counts.add(Some(slice), name, bytes.len());
        self.write_counts(Some(slice), name, batch);
    }
}
