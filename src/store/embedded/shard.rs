//! One shard of the embedded store. Small data is kept decoded in memory and written through. Runs,
//! ids and cancelled places are only in rows. `store::rules` decides what changes; this file
//! changes rows.
//!
//! After a disk error a value must not be used again: it may be ahead of its rows.

use super::codec::{self, MetaRow};
use super::error::empty_if_damaged;
use super::key::{self, Key, ShardNumber};
use super::write_batch::{Table, WriteBatch};
use crate::limit;
use crate::model::{Cursor, LeaseToken, Offset, ShardId, Slice, Timestamp};
use crate::run::{Run, RunName};
use crate::store::rules::{LeaseHolder, Ledger, ShardCounts, ShardMeta, ShardTail};
use crate::store::{
    Acquired, Advance, Advanced, Append, Appended, IdChange, NewShard, Quarantine, Renewed,
    ReplaceRuns, Replaced, ShardContents, StoredShard, Tail, Tailed,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) struct Shard {
    number: ShardNumber,
    pub(super) meta: ShardMeta,
    counts: ShardCounts,
    /// Not on disk: after a restart every timer loads the shard again.
    tail: ShardTail,
    /// Not on disk: the holder is in this process.
    pub(super) lease: LeaseHolder,
    /// No cancelled place is before this one. So an advance does not scan deleted rows.
    cancelled_from: Cursor,
}

const LAST: Cursor = Cursor {
    due: Timestamp::MAX,
    offset: Offset::MAX,
};

impl Shard {
    pub(super) fn new(new: &NewShard, number: ShardNumber) -> Self {
        Self::at(ShardMeta::new(new), number)
    }

    fn at(meta: ShardMeta, number: ShardNumber) -> Self {
        Self {
            number,
            tail: ShardTail::new(meta.watermark),
            meta,
            counts: ShardCounts::default(),
            lease: LeaseHolder::default(),
            cancelled_from: LAST,
        }
    }

    /// Loads the shard of a meta row. The inner error names unreadable data.
    pub(super) fn load(
        row: MetaRow,
        batch: &WriteBatch,
    ) -> fjall::Result<Result<Self, &'static str>> {
        let mut shard = Self::at(row.meta, row.number);
        for (key, value) in batch.rows_with(&key::all_counts(row.number))? {
            let (Some(slice), Some(totals)) = (key::counted(&key), codec::to_totals(&value)) else {
                return Ok(Err("counts that cannot be read"));
            };
            shard.counts.restore(slice, totals);
        }
        let ledger = batch
            .get(Key::Ledger(row.number))?
            .and_then(|value| codec::to_ledger(&value, &shard.meta));
        shard.meta.ledger = ledger.unwrap_or_else(|| {
            Ledger::starting_with(shard.counts.pending() + shard.counts.quarantined())
        });
        let prefix = key::all_cancelled(row.number);
        if let Some(first) = batch.committed_keys(Table::Index, &prefix, 1)?.first() {
            let Some(place) = key::cancelled(first) else {
                return Ok(Err("a cancelled place that cannot be read"));
            };
            shard.cancelled_from = place;
        }
        Ok(Ok(shard))
    }

    pub(super) fn number(&self) -> ShardNumber {
        self.number
    }

    pub(super) fn state(&self) -> StoredShard {
        self.counts.state(&self.meta)
    }

    pub(super) fn contents(&self) -> ShardContents {
        self.counts.contents()
    }

    /// Number and bytes of all runs.
    pub(super) fn size(&self) -> (u64, u64) {
        self.counts.size()
    }

    /// The runs come without bytes.
    pub(super) fn read_tail(&self, request: &Tail) -> Tailed {
        self.tail
            .read(request, self.meta.watermark, self.meta.lineage)
    }

    /// Writes the rows for meta and ledger.
    pub(super) fn write_meta(&self, deployment: &str, shard: &ShardId, batch: &mut WriteBatch) {
        let row = MetaRow {
            number: self.number,
            meta: self.meta.clone(),
        };
        batch.put(Key::Meta { deployment, shard }, codec::meta(&row));
        batch.put(Key::Ledger(self.number), codec::ledger(&self.meta));
    }

    pub(super) fn acquire(
        &mut self,
        token: LeaseToken,
        length: Duration,
        now: Timestamp,
    ) -> Acquired {
        if !self.lease.acquire(token, length, now) {
            return Acquired::HeldByOther;
        }
        Acquired::Granted {
            state: self.state(),
            now,
        }
    }

    pub(super) fn renew(&mut self, token: LeaseToken, length: Duration, now: Timestamp) -> Renewed {
        if self.lease.renew(token, length, now) {
            Renewed::Renewed { now }
        } else {
            Renewed::Fenced
        }
    }

    /// The caller writes the meta row.
    pub(super) fn append(
        &mut self,
        append: &Append,
        batch: &mut WriteBatch,
    ) -> fjall::Result<Appended> {
        if !self.meta.accepts(append) {
            return Ok(Appended::WatermarkMismatch(self.meta.watermark));
        }
        let appended = self.apply_changes(&append.changes, batch)?;
        for run in &append.runs {
            self.add(run, batch);
        }
        self.write_counts(append.runs.iter().map(|run| Some(run.slice)), batch);
        self.tail.add(append.to, &append.runs);
        self.meta.appended(append);
        Ok(appended)
    }

    fn add(&mut self, run: &Run, batch: &mut WriteBatch) {
        let least_due = run.summary.least_due();
        batch.put(
            Key::Order(self.number, least_due, &run.name),
            codec::slice(run.slice).to_vec(),
        );
        batch.put(
            Key::Run(self.number, run.slice, &run.name),
            codec::run(least_due, run.bytes.len()),
        );
        batch.put(
            Key::Bytes(self.number, run.slice, &run.name),
            run.bytes.clone(),
        );
        self.counts.add(run.slice, &run.name, run.bytes.len());
    }

    fn apply_changes(
        &mut self,
        changes: &[IdChange],
        batch: &mut WriteBatch,
    ) -> fjall::Result<Appended> {
        let mut ids = BTreeMap::new();
        for change in changes {
            if let Some(place) = self.place_of_id(&change.id, batch)? {
                ids.insert(change.id.clone(), place);
            }
        }
        let before = ids.clone();
        let outcome = self.meta.apply_changes(changes, &mut ids);
        for id in before.keys().filter(|id| !ids.contains_key(*id)) {
            batch.remove(Key::Id(self.number, id));
        }
        for (id, place) in &ids {
            if before.get(id) != Some(place) {
                batch.put(Key::Id(self.number, id), codec::place(*place).to_vec());
            }
        }
        for place in &outcome.cancelled {
            batch.put(Key::Cancelled(self.number, *place), Vec::new());
            self.cancelled_from = self.cancelled_from.min(*place);
        }
        Ok(Appended::Done {
            cancelled: outcome.cancelled.len() as u32,
            missed: outcome.missed,
        })
    }

    fn place_of_id(&self, id: &str, batch: &WriteBatch) -> fjall::Result<Option<Cursor>> {
        let value = batch.get(Key::Id(self.number, id))?;
        Ok(value.and_then(|value| codec::to_place(&value)))
    }

    /// Writes the count rows of these slices, and of the quarantine for `None`.
    fn write_counts(&self, slices: impl Iterator<Item = Option<Slice>>, batch: &mut WriteBatch) {
        for slice in slices.collect::<BTreeSet<_>>() {
            let key = Key::Count(self.number, slice);
            match self.counts.get(slice) {
                Some(totals) => batch.put(key, codec::totals(totals)),
                None => batch.remove(key),
            }
        }
    }

    /// The caller writes the meta row.
    pub(super) fn advance(
        &mut self,
        request: &Advance,
        now: Timestamp,
        batch: &mut WriteBatch,
    ) -> fjall::Result<Advanced> {
        if !self.lease.is_held(request.lease.token) {
            return Ok(Advanced::Fenced);
        }
        self.meta.move_delivered(request);
        let removed = self.remove_all(&request.deletes, batch)?;
        self.meta.runs_deleted(request, removed, &self.counts);
        self.write_counts(request.deletes.iter().map(|(slice, _)| Some(*slice)), batch);
        for (id, place) in &request.delivered_ids {
            if self.place_of_id(id, batch)? == Some(*place) {
                batch.remove(Key::Id(self.number, id));
            }
        }
        let cancelled = self.split_cancelled(request, batch)?;
        Ok(self.meta.move_claimed(request, now, cancelled))
    }

    /// The cancelled places inside the claim. Deletes those inside the delivered pair.
    fn split_cancelled(
        &mut self,
        request: &Advance,
        batch: &mut WriteBatch,
    ) -> fjall::Result<Vec<Cursor>> {
        let last = self.meta.last_to_check(request.claim);
        if last < self.cancelled_from {
            return Ok(Vec::new());
        }
        let range = key::cancelled_range(self.number, self.cancelled_from, last);
        let keys = batch.keys(range)?;
        let places: Vec<Cursor> = keys.iter().filter_map(|key| key::cancelled(key)).collect();
        let mut split = self
            .meta
            .split_cancelled(request.claim, places.iter().copied());
        split
            .expired
            .truncate(limit::EMBEDDED_CANCELLED_REMOVALS_MAX);
        for place in &split.expired {
            batch.remove(Key::Cancelled(self.number, *place));
        }
        let first_left = places
            .iter()
            .find(|place| split.expired.binary_search(place).is_err());
        self.cancelled_from = first_left.copied().unwrap_or(last);
        Ok(split.in_claim)
    }

    /// Removes a run. Returns whether it was there.
    fn remove(
        &mut self,
        slice: Slice,
        name: &RunName,
        batch: &mut WriteBatch,
    ) -> fjall::Result<bool> {
        let key = Key::Run(self.number, slice, name);
        let Some((least_due, bytes)) = batch.get(key)?.and_then(|value| codec::to_run(&value))
        else {
            return Ok(false);
        };
        batch.remove(key);
        batch.remove(Key::Order(self.number, least_due, name));
        batch.remove(Key::Bytes(self.number, slice, name));
        self.counts.remove(slice, name, bytes);
        Ok(true)
    }

    /// Removes runs. Returns the number of their messages.
    fn remove_all(
        &mut self,
        runs: &[(Slice, RunName)],
        batch: &mut WriteBatch,
    ) -> fjall::Result<u64> {
        let mut messages = 0;
        for (slice, name) in runs {
            if self.remove(*slice, name, batch)? {
                messages += u64::from(name.count());
            }
        }
        Ok(messages)
    }

    /// The caller writes the meta row.
    pub(super) fn replace_runs(
        &mut self,
        request: &ReplaceRuns,
        batch: &mut WriteBatch,
    ) -> fjall::Result<Replaced> {
        if !self.lease.is_held(request.lease.token) {
            return Ok(Replaced::Fenced);
        }
        if let Some(first) = request.outputs.first()
            && self.has(first.slice, &first.name, batch)?
        {
            return Ok(Replaced::Done);
        }
        if !self.meta.knows_all_replacements(request) {
            return Ok(Replaced::Conflict);
        }
        for (slice, name) in &request.inputs {
            if !self.has(*slice, name, batch)? {
                return Ok(Replaced::Conflict);
            }
        }
        let removed = self.remove_all(&request.inputs, batch)?;
        for run in &request.outputs {
            self.add(run, batch);
        }
        self.meta.runs_replaced(request, removed);
        let inputs = request.inputs.iter().map(|(slice, _)| Some(*slice));
        let outputs = request.outputs.iter().map(|run| Some(run.slice));
        self.write_counts(inputs.chain(outputs), batch);
        Ok(Replaced::Done)
    }

    fn has(&self, slice: Slice, name: &RunName, batch: &WriteBatch) -> fjall::Result<bool> {
        Ok(batch.get(Key::Run(self.number, slice, name))?.is_some())
    }

    /// Returns the number of moved runs.
    pub(super) fn quarantine(
        &mut self,
        request: &Quarantine,
        batch: &mut WriteBatch,
    ) -> fjall::Result<usize> {
        if !self.lease.is_held(request.lease.token) {
            return Ok(0);
        }
        let mut moved = 0;
        for (slice, name) in &request.runs {
            let read = batch.get(Key::Bytes(self.number, *slice, name));
            let bytes = empty_if_damaged(read)?.unwrap_or_default();
            if self.remove(*slice, name, batch)? {
                self.counts.quarantine_run(name, bytes.len());
                batch.put(Key::Quarantined(self.number, name), bytes);
                moved += 1;
            }
        }
        let slices = request.runs.iter().map(|(slice, _)| Some(*slice));
        self.write_counts(slices.chain([None]), batch);
        Ok(moved)
    }
}
