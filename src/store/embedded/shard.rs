//! One shard of the embedded store. Small data is kept decoded in memory and written through. Runs, ids
//! and cancelled places are only in rows. `store::rules` decides what changes; this file changes rows.
//!
//! After a disk error a [`Shard`] must not be used again: it may be ahead of its rows.

use super::codec;
use super::error::empty_if_damaged;
use super::key::{self, ShardNumber};
use super::tables::{Tables, WriteBatch};
use crate::encryption::StoredId;
use crate::limit::IDS_PER_STEP;
use crate::model::{Cursor, Offset, Progress, ShardId, Slice, Timestamp};
use crate::run::{Run, RunName};
use crate::store::rules::{
    LeaseHolder, Ledger, NO_HOLD, RunTotals, ShardCounts, ShardMeta, ShardTail,
};
use crate::store::{
    Acquire, Acquired, Advance, Advanced, Append, Appended, FinishedIds, IdChange, IdPosition,
    NewShard, Quarantine, ReplaceRuns, Replaced, Restore, Restored, StoredShard, Tail, Tailed,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct Shard {
    number: ShardNumber,
    pub(super) meta: ShardMeta,
    pub(super) counts: ShardCounts,
    /// Not on disk: after a restart every timer loads the shard again.
    pub(super) tail: ShardTail,
    /// Not on disk: the holder is in this process.
    pub(super) lease: LeaseHolder,
    /// No cancelled place is before this one. So an advance does not scan deleted rows.
    pub(super) cancelled_from: Cursor,
}

/// Only a newer version may deliver a shard with such a slice.
pub(super) const NEWER_SLICE: &str = "a slice of a newer version";

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
        number: ShardNumber,
        meta: ShardMeta,
        tables: &Tables,
    ) -> fjall::Result<Result<Self, &'static str>> {
        let mut shard = Self::at(meta, number);
        for row in tables.rows(&key::all_counts(number)) {
            let (key, value) = row?;
            if key::is_newer_count(&key) {
                return Ok(Err(NEWER_SLICE));
            }
            let (Some(slice), Some(totals)) = (key::to_counted(&key), codec::to_totals(&value))
            else {
                return Ok(Err("counts that cannot be read"));
            };
            shard.counts.slices.insert(slice, totals);
        }
        for row in tables.rows(&key::all_key_uses(number)) {
            let (key, value) = row?;
            let (Some(name), Some(used)) = (key::to_key_use(&key), codec::to_key_use(&value))
            else {
                return Ok(Err("a count of a key that cannot be read"));
            };
            shard.counts.keys.insert(name, used);
        }
        let hold = tables.index.get(key::hold(number))?;
        shard.meta.hold = hold.map_or(Some(NO_HOLD), |value| codec::to_hold(&value));
        let possibly_delivered = tables.index.get(key::possibly_delivered(number))?;
        let possibly_delivered = possibly_delivered.and_then(|value| codec::to_pair_row(&value));
        shard.meta.possibly_delivered = possibly_delivered.unwrap_or(Progress::START);
        let pause = tables.index.get(key::pause(number))?;
        if let Some(value) = pause {
            let Some(pause) = codec::to_pause(&value) else {
                return Ok(Err("a pause that cannot be read"));
            };
            shard.meta.pause = Some(pause);
        }
        let ledger = tables.index.get(key::ledger(number))?;
        shard.meta.ledger = ledger
            .and_then(|value| codec::to_ledger(&value, &shard.meta))
            .unwrap_or_else(|| Ledger::starting_with(shard.size().messages));
        if let Some(row) = tables.rows(&key::all_cancelled(number)).next() {
            let Some(place) = key::to_cancelled(&row?.0) else {
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

    /// The totals of all runs, quarantine included.
    pub(super) fn size(&self) -> RunTotals {
        self.counts.total()
    }

    /// The runs come without bytes.
    pub(super) fn read_tail(
        &self,
        request: &Tail,
        batch: &WriteBatch<'_>,
    ) -> fjall::Result<Tailed> {
        // Without a hold the answer does not depend on ids. The scan may pass deleted rows.
        let has_ids = self.meta.is_held() && {
            let mut ids = batch.index_keys(key::all_ids(self.number));
            ids.next().transpose()?.is_some()
        };
        Ok(self.tail.read(request, &self.meta, has_ids))
    }

    /// Writes the rows for meta and ledger.
    pub(super) fn write_meta(&self, deployment: &str, shard: &ShardId, batch: &mut WriteBatch<'_>) {
        let meta = codec::meta(self.number, &self.meta);
        batch.put(key::meta(deployment, shard), meta);
        batch.put(key::ledger(self.number), codec::ledger(&self.meta));
    }

    pub(super) fn acquire(&mut self, request: &Acquire) -> Acquired {
        if !self.meta.identity.may_share_cluster(&request.identity) {
            return Acquired::OtherCluster(self.meta.identity.clone());
        }
        if let Err(held) = self
            .lease
            .acquire(request.lease.token, request.ended_holder)
        {
            return Acquired::HeldBy(held);
        }
        Acquired::Granted(self.state())
    }

    /// The caller writes the meta row.
    pub(super) fn append(
        &mut self,
        append: &Append,
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<Appended> {
        if !self.meta.is_of_source(append) {
            return Ok(Appended::Unknown);
        }
        if !self.meta.accepts(append) {
            return Ok(Appended::WatermarkMismatch(self.meta.watermark));
        }
        if !self.counts.may_change(&append.changes) {
            return Ok(Appended::Unknown);
        }
        let appended = self.apply_changes(&append.changes, batch)?;
        for run in &append.runs {
            self.add(run, batch);
        }
        self.tail.add(append.to, &append.runs);
        self.meta.appended(append);
        Ok(appended)
    }

    fn add(&mut self, run: &Run, batch: &mut WriteBatch<'_>) {
        let least_due = run.summary.least_due();
        self.add_run(run.slice, &run.name, least_due, &run.bytes, batch);
    }

    fn apply_changes(
        &mut self,
        changes: &[IdChange],
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<Appended> {
        let mut before = BTreeMap::new();
        for change in changes {
            for name in change.id.names() {
                if let Some(place) = self.place_of_name(name, batch)? {
                    before.insert(name.into(), place);
                }
            }
        }
        let mut ids = before.clone();
        let outcome = self.meta.apply_changes(changes, &mut ids);
        for id in before.keys().filter(|id| !ids.contains_key(*id)) {
            batch.remove(key::id(self.number, id));
        }
        for (id, place) in ids
            .iter()
            .filter(|(id, place)| before.get(*id) != Some(place))
        {
            batch.put(key::id(self.number, id), codec::place(*place));
        }
        for (place, change) in &outcome.changed {
            self.put_changed(*place, change, batch);
        }
        for effect in &outcome.effects {
            let key = key::effect(self.number, effect.request);
            batch.put(key, codec::effect(effect));
        }
        Ok(Appended::Done {
            cancelled: outcome.in_time,
            missed: outcome.missed,
            told: outcome.told,
        })
    }

    fn place_of_name(&self, name: &[u8], batch: &WriteBatch<'_>) -> fjall::Result<Option<Cursor>> {
        let value = batch.get(&key::id(self.number, name))?;
        Ok(value.and_then(|value| codec::to_place(&value)))
    }

    /// Removes the names of an id that name this place. Returns whether there were any.
    fn remove_id(
        &self,
        id: &StoredId,
        place: Cursor,
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<bool> {
        let mut was_there = false;
        for name in id.names() {
            if self.place_of_name(name, batch)? == Some(place) {
                batch.remove(key::id(self.number, name));
                was_there = true;
            }
        }
        Ok(was_there)
    }

    /// Writes the count rows of a run: that of its slice, or of the quarantine for `None`, and that
    /// of its key.
    pub(super) fn write_counts(
        &self,
        slice: Option<Slice>,
        run: &RunName,
        batch: &mut WriteBatch<'_>,
    ) {
        if let Some(name) = run.key() {
            let key = key::key_use(self.number, name);
            match self.counts.keys.get(name) {
                Some(used) => batch.put(key, codec::key_use(*used)),
                None => batch.remove(key),
            }
        }
        let key = key::count(self.number, slice);
        match self.counts.slices.get(&slice) {
            Some(totals) => batch.put(key, codec::totals(totals)),
            None => batch.remove(key),
        }
    }

    /// The caller writes the meta row.
    pub(super) fn advance(
        &mut self,
        request: &Advance,
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<Advanced> {
        if !self.lease.is_held(request.lease.token) {
            return Ok(Advanced::Fenced);
        }
        self.meta.move_delivered(request);
        let removed = self.remove_all(&request.deletes, batch)?;
        self.meta.runs_deleted(request, removed, &self.counts);
        for (id, place) in &request.delivered_ids {
            self.remove_id(id, *place, batch)?;
        }
        for offset in &request.delivered_answers {
            batch.remove(key::effect(self.number, *offset));
        }
        let (mut cancelled, mut effects) = (Vec::new(), Vec::new());
        let mut requests = BTreeSet::from_iter(request.claimed_answers.iter().copied());
        for place in self.split_cancelled(request, batch)? {
            let row = batch.get(&key::cancelled(self.number, place))?;
            let change = row.and_then(|row| codec::to_change(&row));
            requests.extend(change.and_then(|it| it.request));
            match change.and_then(|it| it.moved) {
                Some(moved) => effects.push(moved.effect(place)),
                None => cancelled.push(place),
            }
        }
        for offset in requests {
            let row = batch.get(&key::effect(self.number, offset))?;
            effects.extend(row.and_then(|row| codec::to_effect(offset, &row)));
        }
        effects.sort_unstable();
        Ok((self.meta).move_claimed(request, batch.now, cancelled, effects))
    }

    /// The changed places inside the claim. Deletes those inside the delivered pair.
    fn split_cancelled(
        &mut self,
        request: &Advance,
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<Vec<Cursor>> {
        let last = self.meta.last_to_check(request.claim);
        if last < self.cancelled_from {
            return Ok(Vec::new());
        }
        let first = key::cancelled(self.number, self.cancelled_from);
        let keys = batch.index_keys(first..=key::cancelled(self.number, last));
        let places: Vec<Cursor> = keys
            .filter_map(|key| key.map(|key| key::to_cancelled(&key)).transpose())
            .collect::<fjall::Result<_>>()?;
        let split = self
            .meta
            .split_cancelled(request.claim, places.iter().copied());
        for place in &split.expired {
            batch.remove(key::cancelled(self.number, *place));
        }
        let first_left = places
            .iter()
            .find(|place| !self.meta.delivered.covers(**place));
        self.cancelled_from = first_left.copied().unwrap_or(last);
        Ok(split.in_claim)
    }

    /// Removes a run. Returns whether it was there.
    fn remove(
        &mut self,
        slice: Slice,
        name: &RunName,
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<bool> {
        let key = key::run(self.number, slice, name);
        let row = batch.get(&key)?;
        let Some((least_due, bytes)) = row.and_then(|row| codec::to_run(&row)) else {
            return Ok(false);
        };
        batch.remove(key);
        batch.remove(key::order(self.number, least_due, name));
        batch.remove(key::bytes(self.number, slice, name));
        self.counts.remove(Some(slice), name, bytes);
        self.write_counts(Some(slice), name, batch);
        Ok(true)
    }

    /// Removes runs. Returns the number of their messages.
    fn remove_all(
        &mut self,
        runs: &[(Slice, RunName)],
        batch: &mut WriteBatch<'_>,
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
        batch: &mut WriteBatch<'_>,
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
        for (id, place) in &request.renamed_ids {
            let first = self.place_of_name(id.name(), batch)?;
            if self.meta.is_free(first) && self.remove_id(id, *place, batch)? {
                batch.put(key::id(self.number, id.name()), codec::place(*place));
            }
        }
        for run in &request.outputs {
            self.add(run, batch);
        }
        self.meta.runs_replaced(request, removed);
        Ok(Replaced::Done)
    }

    pub(super) fn remove_finished_ids(
        &mut self,
        request: &FinishedIds,
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<Option<IdPosition>> {
        let (effects, ids) = (key::all_effects(self.number), key::all_ids(self.number));
        let from = (request.from.as_ref()).map_or(ids.start().clone(), |it| it.0.to_vec());
        let in_effects = effects.contains(&from);
        let last = if in_effects { effects.end() } else { ids.end() };
        let keys = batch.index_keys(from..=last.clone()).take(IDS_PER_STEP + 1);
        let mut keys: Vec<_> = keys.collect::<fjall::Result<_>>()?;
        let mut next = (keys.len() > IDS_PER_STEP).then(|| keys.pop()).flatten();
        if next.is_none() && !in_effects {
            next = Some(Bytes::from(effects.start().clone()));
        }
        for key in keys {
            let place = match key::to_request(&key) {
                Some(request) => Some(Cursor::of_answer(request)),
                None => batch.get(&key)?.and_then(|value| codec::to_place(&value)),
            };
            if place.is_some_and(|place| self.meta.delivered.covers(place)) {
                batch.remove(key.to_vec());
            }
        }
        Ok(next.map(|key| IdPosition(key.to_vec().into())))
    }

    fn has(&self, slice: Slice, name: &RunName, batch: &WriteBatch<'_>) -> fjall::Result<bool> {
        Ok(batch.get(&key::run(self.number, slice, name))?.is_some())
    }

    /// Returns the number of moved runs.
    pub(super) fn quarantine(
        &mut self,
        request: &Quarantine,
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<usize> {
        if !self.lease.is_held(request.lease.token) {
            return Ok(0);
        }
        let mut moved = 0;
        for (slice, name) in &request.runs {
            let read = batch.get(&key::bytes(self.number, *slice, name));
            let bytes = empty_if_damaged(read)?.unwrap_or_default();
            if self.remove(*slice, name, batch)? {
                self.counts.add(None, name, bytes.len());
                self.write_counts(None, name, batch);
                batch.put(key::quarantined(self.number, name), bytes);
                moved += 1;
            }
        }
        Ok(moved)
    }

    pub(super) fn restore(
        &mut self,
        request: &Restore,
        batch: &mut WriteBatch<'_>,
    ) -> fjall::Result<Restored> {
        let key = key::quarantined(self.number, &request.quarantined);
        let Some(bytes) = empty_if_damaged(batch.get(&key))? else {
            return Ok(Restored::Gone);
        };
        if !self.meta.may_restore(request) {
            return Ok(Restored::TooEarly);
        }
        batch.remove(key);
        self.counts.remove(None, &request.quarantined, bytes.len());
        self.write_counts(None, &request.quarantined, batch);
        for run in &request.runs {
            self.add(run, batch);
        }
        self.meta.run_restored();
        self.lease = LeaseHolder::default();
        Ok(Restored::Done)
    }
}
