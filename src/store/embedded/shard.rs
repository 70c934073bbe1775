//! One shard of the embedded store: what is small is kept decoded here and written through, runs, ids and cancelled places lie in rows only.
//! `store::shard` decides, and this says which rows change.
//!
//! After an error of the disk the value is not to be used any more: it may be ahead of its rows.

use super::codec::{self, MetaRow};
use super::error::empty_if_damaged;
use super::key::{self, Key, ShardNumber};
use super::write_batch::WriteBatch;
use crate::limit;
use crate::model::{Cursor, LeaseToken, Offset, ShardId, Slice, Timestamp};
use crate::run::{Run, RunName};
use crate::store::rules::{LeaseHolder, ShardCounts, ShardMeta, ShardTail};
use crate::store::{
    Acquired, Advance, Advanced, Append, Appended, IdChange, Ledger, NewShard, Quarantine, Renewed,
    ReplaceRuns, Replaced, ShardContents, ShardPosition, StoredShard,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// See the module's page.
pub(super) struct Shard {
    number: ShardNumber,
    pub(super) meta: ShardMeta,
    counts: ShardCounts,
    /// Not kept on disk: a new process loads everything anyway.
    pub(super) tail: ShardTail,
    /// Not kept on disk: its holder lives in this very process.
    pub(super) lease: LeaseHolder,
    /// No cancelled place lies before it. So nobody looks through rows that were deleted.
    cancelled_from: Cursor,
}

const LAST: Cursor = Cursor {
    due: Timestamp::MAX,
    offset: Offset::MAX,
};

impl Shard {
    pub(super) fn new(birth: &NewShard, number: ShardNumber) -> Self {
        Self::at(ShardMeta::new(birth), number)
    }

    fn at(positions: ShardMeta, number: ShardNumber) -> Self {
        let recent = ShardTail::new(positions.watermark);
        Self {
            number,
            meta: positions,
            counts: ShardCounts::default(),
            tail: recent,
            lease: LeaseHolder::default(),
            cancelled_from: LAST,
        }
    }

    /// The shard of that meta row, with its counts. An error inside: they are not what this version writes.
    pub(super) fn load(
        meta: MetaRow,
        draft: &WriteBatch,
    ) -> fjall::Result<Result<Self, &'static str>> {
        let mut shard = Self::at(meta.meta, meta.number);
        for (key, value) in draft.rows_with(&key::all_counts(meta.number))? {
            let (Some(slice), Some(count)) = (key::counted(&key), codec::to_count(&value)) else {
                return Ok(Err("counts that cannot be read"));
            };
            shard.counts.restore(slice, count);
        }
        let ledger = draft
            .get(Key::Ledger(meta.number))?
            .and_then(|value| codec::to_ledger(&value, &shard.meta));
        shard.meta.ledger = ledger.unwrap_or_else(|| {
            Ledger::starting_with(shard.counts.pending() + shard.counts.quarantined())
        });
        if let Some(first) = draft
            .written(&key::all_cancelled(meta.number), false, 1)?
            .first()
        {
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

    pub(super) fn position(&self) -> ShardPosition {
        self.meta.position()
    }

    pub(super) fn contents(&self) -> ShardContents {
        self.counts.contents()
    }

    /// Runs and bytes.
    pub(super) fn size(&self) -> (u64, u64) {
        self.counts.size()
    }

    /// Writes where it stands: meta and ledger.
    pub(super) fn write(&self, deployment: &str, shard: &ShardId, draft: &mut WriteBatch) {
        let meta = MetaRow {
            number: self.number,
            meta: self.meta.clone(),
        };
        draft.put(Key::Meta { deployment, shard }, codec::meta(&meta));
        draft.put(Key::Ledger(self.number), codec::ledger(&self.meta));
    }

    pub(super) fn acquire(
        &mut self,
        token: LeaseToken,
        length: Duration,
        now: Timestamp,
    ) -> Acquired {
        if self.lease.acquire(token, length, now) {
            Acquired::Granted {
                state: self.state(),
                now,
            }
        } else {
            Acquired::HeldByOther
        }
    }

    pub(super) fn renew(&mut self, token: LeaseToken, length: Duration, now: Timestamp) -> Renewed {
        if self.lease.renew(token, length, now) {
            Renewed::Renewed { now }
        } else {
            Renewed::Fenced
        }
    }

    /// All but the meta row.
    pub(super) fn append(
        &mut self,
        append: &Append,
        draft: &mut WriteBatch,
    ) -> fjall::Result<Appended> {
        if !self.meta.accepts(append) {
            return Ok(Appended::WatermarkMismatch(self.meta.watermark));
        }
        let (cancelled, missed) = self.change(&append.changes, draft)?;
        append.runs.iter().for_each(|run| self.add(run, draft));
        self.write_counts(append.runs.iter().map(|run| Some(run.slice)), draft);
        self.tail.add(append.to, &append.runs);
        self.meta.appended(append);
        Ok(Appended::Done { cancelled, missed })
    }

    fn add(&mut self, run: &Run, draft: &mut WriteBatch) {
        let (slice, name, least_due) = (run.slice, &run.name, run.summary.least_due());
        draft.put(
            Key::Order(self.number, least_due, name),
            codec::slice(slice).to_vec(),
        );
        draft.put(
            Key::Run(self.number, slice, name),
            codec::run(least_due, run.bytes.len()),
        );
        draft.put(Key::Bytes(self.number, slice, name), run.bytes.clone());
        self.counts.add(slice, name, run.bytes.len());
    }

    /// Applies changes to the ids that they name. Answers cancelled and missed.
    fn change(
        &mut self,
        changes: &[IdChange],
        draft: &mut WriteBatch,
    ) -> fjall::Result<(u32, u32)> {
        let mut ids = BTreeMap::new();
        for change in changes {
            if let Some(place) = self.place_of_id(&change.id, draft)? {
                ids.insert(change.id.clone(), place);
            }
        }
        let before = ids.clone();
        let changed = self.meta.apply_changes(changes, &mut ids);
        for id in before.keys().filter(|id| !ids.contains_key(*id)) {
            draft.remove(Key::Id(self.number, id));
        }
        for (id, place) in ids
            .iter()
            .filter(|(id, place)| before.get(*id) != Some(place))
        {
            draft.put(Key::Id(self.number, id), codec::place(*place).to_vec());
        }
        for place in &changed.cancelled {
            draft.put(Key::Cancelled(self.number, *place), Vec::new());
            self.cancelled_from = self.cancelled_from.min(*place);
        }
        Ok((changed.cancelled.len() as u32, changed.missed))
    }

    fn place_of_id(&self, id: &str, draft: &WriteBatch) -> fjall::Result<Option<Cursor>> {
        Ok(draft
            .get(Key::Id(self.number, id))?
            .and_then(|value| codec::to_place(&value)))
    }

    fn write_counts(&self, slices: impl Iterator<Item = Option<Slice>>, draft: &mut WriteBatch) {
        for slice in slices.collect::<BTreeSet<_>>() {
            let key = Key::Count(self.number, slice);
            match self.counts.get(slice) {
                Some(count) => draft.put(key, codec::count(count)),
                None => draft.remove(key),
            }
        }
    }

    /// All but the meta row.
    pub(super) fn advance(
        &mut self,
        request: &Advance,
        now: Timestamp,
        draft: &mut WriteBatch,
    ) -> fjall::Result<Advanced> {
        if !self.lease.is_held(request.lease.token) {
            return Ok(Advanced::Fenced);
        }
        self.meta.move_delivered(request);
        let left = self.remove_all(&request.deletes, draft)?;
        self.meta.runs_deleted(request, left, &self.counts);
        self.write_counts(request.deletes.iter().map(|(slice, _)| Some(*slice)), draft);
        for (id, place) in &request.delivered_ids {
            if self.place_of_id(id, draft)? == Some(*place) {
                draft.remove(Key::Id(self.number, id));
            }
        }
        let told = self.split_cancelled(request, draft)?;
        Ok(self.meta.move_claimed(request, now, told))
    }

    /// The cancelled places inside the claim. Those that were delivered past are dropped.
    fn split_cancelled(
        &mut self,
        request: &Advance,
        draft: &mut WriteBatch,
    ) -> fjall::Result<Vec<Cursor>> {
        let last = self.meta.last_to_check(request.claim);
        if last < self.cancelled_from {
            return Ok(Vec::new());
        }
        let keys = draft.keys(key::cancelled_range(self.number, self.cancelled_from, last))?;
        let places: Vec<Cursor> = keys.iter().filter_map(|key| key::cancelled(key)).collect();
        let mut sifted = self
            .meta
            .split_cancelled(request.claim, places.iter().copied());
        sifted
            .expired
            .truncate(limit::EMBEDDED_CANCELLED_REMOVALS_MAX);
        for place in &sifted.expired {
            draft.remove(Key::Cancelled(self.number, *place));
        }
        let is_done = |place: &&Cursor| sifted.expired.binary_search(place).is_ok();
        self.cancelled_from = places
            .iter()
            .find(|place| !is_done(place))
            .copied()
            .unwrap_or(last);
        Ok(sifted.in_claim)
    }

    /// Answers whether it was there.
    fn remove(
        &mut self,
        slice: Slice,
        name: &RunName,
        draft: &mut WriteBatch,
    ) -> fjall::Result<bool> {
        let key = Key::Run(self.number, slice, name);
        let Some((least_due, bytes)) = draft.get(key)?.and_then(|value| codec::to_run(&value))
        else {
            return Ok(false);
        };
        draft.remove(key);
        draft.remove(Key::Order(self.number, least_due, name));
        draft.remove(Key::Bytes(self.number, slice, name));
        self.counts.remove(slice, name, bytes);
        Ok(true)
    }

    /// Answers how many messages left with them.
    fn remove_all(
        &mut self,
        runs: &[(Slice, RunName)],
        draft: &mut WriteBatch,
    ) -> fjall::Result<u64> {
        let mut left = 0;
        for (slice, name) in runs {
            left += if self.remove(*slice, name, draft)? {
                u64::from(name.count())
            } else {
                0
            };
        }
        Ok(left)
    }

    pub(super) fn replace_runs(
        &mut self,
        request: &ReplaceRuns,
        draft: &mut WriteBatch,
    ) -> fjall::Result<Replaced> {
        if !self.lease.is_held(request.lease.token) {
            return Ok(Replaced::Fenced);
        }
        if let Some(first) = request.outputs.first()
            && self.has(first.slice, &first.name, draft)?
        {
            return Ok(Replaced::Done);
        }
        if !self.meta.knows_all_replacements(request) {
            return Ok(Replaced::Conflict);
        }
        for (slice, name) in &request.inputs {
            if !self.has(*slice, name, draft)? {
                return Ok(Replaced::Conflict);
            }
        }
        let left = self.remove_all(&request.inputs, draft)?;
        request.outputs.iter().for_each(|run| self.add(run, draft));
        self.meta.runs_replaced(request, left);
        let inputs = request.inputs.iter().map(|(slice, _)| Some(*slice));
        self.write_counts(
            inputs.chain(request.outputs.iter().map(|run| Some(run.slice))),
            draft,
        );
        Ok(Replaced::Done)
    }

    fn has(&self, slice: Slice, name: &RunName, draft: &WriteBatch) -> fjall::Result<bool> {
        Ok(draft.get(Key::Run(self.number, slice, name))?.is_some())
    }

    /// Answers how many were moved.
    pub(super) fn quarantine(
        &mut self,
        request: &Quarantine,
        draft: &mut WriteBatch,
    ) -> fjall::Result<usize> {
        if !self.lease.is_held(request.lease.token) {
            return Ok(0);
        }
        let mut moved = 0;
        for (slice, name) in &request.runs {
            let bytes = empty_if_damaged(draft.get(Key::Bytes(self.number, *slice, name)))?
                .unwrap_or_default();
            if self.remove(*slice, name, draft)? {
                self.counts.quarantine_run(name, bytes.len());
                draft.put(Key::Quarantined(self.number, name), bytes);
                moved += 1;
            }
        }
        let slices = request
            .runs
            .iter()
            .map(|(slice, _)| Some(*slice))
            .chain([None]);
        self.write_counts(slices, draft);
        Ok(moved)
    }
}
