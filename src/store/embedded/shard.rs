//! One shard of the embedded store: what is small is kept decoded here and written through, runs, ids and cancelled places lie in rows only.
//! `store::shard` decides, and this says which rows change.
//!
//! After an error of the disk the value is not to be used any more: it may be ahead of its rows.

use super::draft::Draft;
use super::fault::readable;
use super::form::{self, Meta};
use super::key::{self, Key, Number};
use crate::limit;
use crate::model::{Cursor, Offset, ShardId, Slice, Timestamp, Token};
use crate::run::{Name, Run};
use crate::store::shard::{Counts, Holder, Positions, Recent};
use crate::store::{
    Acquired, Advance, Advanced, Append, Appended, Birth, Change, Contents, Glance, Ledger,
    Quarantine, Renewed, Rewrite, Rewritten, State,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// See the module's page.
pub(super) struct Shard {
    number: Number,
    pub(super) positions: Positions,
    counts: Counts,
    /// Not kept on disk: a new process loads everything anyway.
    pub(super) recent: Recent,
    /// Not kept on disk: its holder lives in this very process.
    pub(super) holder: Holder,
    /// No cancelled place lies before it. So nobody looks through rows that were deleted.
    cancelled_from: Cursor,
}

const LAST: Cursor = Cursor {
    due: Timestamp::MAX,
    offset: Offset::MAX,
};

impl Shard {
    pub(super) fn born(birth: &Birth, number: Number) -> Self {
        Self::at(Positions::new(birth), number)
    }

    fn at(positions: Positions, number: Number) -> Self {
        let recent = Recent::new(positions.watermark);
        Self {
            number,
            positions,
            counts: Counts::default(),
            recent,
            holder: Holder::default(),
            cancelled_from: LAST,
        }
    }

    /// The shard of that meta row, with its counts. An error inside: they are not what this version writes.
    pub(super) fn load(meta: Meta, draft: &Draft) -> fjall::Result<Result<Self, &'static str>> {
        let mut shard = Self::at(meta.positions, meta.number);
        for (key, value) in draft.rows_with(&key::all_counts(meta.number))? {
            let (Some(slice), Some(count)) = (key::counted(&key), form::to_count(&value)) else {
                return Ok(Err("counts that cannot be read"));
            };
            shard.counts.restore(slice, count);
        }
        let ledger = draft
            .get(Key::Ledger(meta.number))?
            .and_then(|value| form::to_ledger(&value, &shard.positions));
        shard.positions.ledger = ledger.unwrap_or_else(|| {
            Ledger::of_unknown(shard.counts.pending() + shard.counts.quarantined())
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

    pub(super) fn number(&self) -> Number {
        self.number
    }

    pub(super) fn state(&self) -> State {
        self.counts.state(&self.positions)
    }

    pub(super) fn glance(&self) -> Glance {
        self.positions.glance()
    }

    pub(super) fn contents(&self) -> Contents {
        self.counts.contents()
    }

    /// Runs and bytes.
    pub(super) fn size(&self) -> (u64, u64) {
        self.counts.size()
    }

    /// Writes where it stands: meta and ledger.
    pub(super) fn write(&self, deployment: &str, shard: &ShardId, draft: &mut Draft) {
        let meta = Meta {
            number: self.number,
            positions: self.positions.clone(),
        };
        draft.put(Key::Meta { deployment, shard }, form::meta(&meta));
        draft.put(Key::Ledger(self.number), form::ledger(&self.positions));
    }

    pub(super) fn acquire(&mut self, token: Token, length: Duration, now: Timestamp) -> Acquired {
        if self.holder.acquire(token, length, now) {
            Acquired::Granted {
                state: self.state(),
                now,
            }
        } else {
            Acquired::Held
        }
    }

    pub(super) fn renew(&mut self, token: Token, length: Duration, now: Timestamp) -> Renewed {
        if self.holder.renew(token, length, now) {
            Renewed::Renewed { now }
        } else {
            Renewed::Fenced
        }
    }

    /// All but the meta row.
    pub(super) fn append(&mut self, append: &Append, draft: &mut Draft) -> fjall::Result<Appended> {
        if !self.positions.accepts(append) {
            return Ok(Appended::Elsewhere(self.positions.watermark));
        }
        let (cancelled, missed) = self.change(&append.changes, draft)?;
        append.runs.iter().for_each(|run| self.add(run, draft));
        self.write_counts(append.runs.iter().map(|run| Some(run.slice)), draft);
        self.recent.add(append.to, &append.runs);
        self.positions.appended(append);
        Ok(Appended::Done { cancelled, missed })
    }

    fn add(&mut self, run: &Run, draft: &mut Draft) {
        let (slice, name, least_due) = (run.slice, &run.name, run.summary.least_due());
        draft.put(
            Key::Order(self.number, least_due, name),
            form::slice(slice).to_vec(),
        );
        draft.put(
            Key::Run(self.number, slice, name),
            form::run(least_due, run.bytes.len()),
        );
        draft.put(Key::Bytes(self.number, slice, name), run.bytes.clone());
        self.counts.add(slice, name, run.bytes.len());
    }

    /// Applies changes to the ids that they name. Answers cancelled and missed.
    fn change(&mut self, changes: &[Change], draft: &mut Draft) -> fjall::Result<(u32, u32)> {
        let mut ids = BTreeMap::new();
        for change in changes {
            if let Some(place) = self.waits(&change.id, draft)? {
                ids.insert(change.id.clone(), place);
            }
        }
        let before = ids.clone();
        let changed = self.positions.apply(changes, &mut ids);
        for id in before.keys().filter(|id| !ids.contains_key(*id)) {
            draft.remove(Key::Id(self.number, id));
        }
        for (id, place) in ids
            .iter()
            .filter(|(id, place)| before.get(*id) != Some(place))
        {
            draft.put(Key::Id(self.number, id), form::place(*place).to_vec());
        }
        for place in &changed.cancelled {
            draft.put(Key::Cancelled(self.number, *place), Vec::new());
            self.cancelled_from = self.cancelled_from.min(*place);
        }
        Ok((changed.cancelled.len() as u32, changed.missed))
    }

    fn waits(&self, id: &str, draft: &Draft) -> fjall::Result<Option<Cursor>> {
        Ok(draft
            .get(Key::Id(self.number, id))?
            .and_then(|value| form::to_place(&value)))
    }

    fn write_counts(&self, slices: impl Iterator<Item = Option<Slice>>, draft: &mut Draft) {
        for slice in slices.collect::<BTreeSet<_>>() {
            let key = Key::Count(self.number, slice);
            match self.counts.of(slice) {
                Some(count) => draft.put(key, form::count(count)),
                None => draft.remove(key),
            }
        }
    }

    /// All but the meta row.
    pub(super) fn advance(
        &mut self,
        request: &Advance,
        now: Timestamp,
        draft: &mut Draft,
    ) -> fjall::Result<Advanced> {
        if !self.holder.is_held(request.lease.token) {
            return Ok(Advanced::Fenced);
        }
        self.positions.deliver(request);
        let left = self.remove_all(&request.deletes, draft)?;
        self.positions.done(request, left, &self.counts);
        self.write_counts(request.deletes.iter().map(|(slice, _)| Some(*slice)), draft);
        for (id, place) in &request.ids {
            if self.waits(id, draft)? == Some(*place) {
                draft.remove(Key::Id(self.number, id));
            }
        }
        let told = self.sift(request, draft)?;
        Ok(self.positions.claim(request, now, told))
    }

    /// The cancelled places inside the claim. Those that were delivered past are dropped.
    fn sift(&mut self, request: &Advance, draft: &mut Draft) -> fjall::Result<Vec<Cursor>> {
        let last = self.positions.last(request.claim);
        if last < self.cancelled_from {
            return Ok(Vec::new());
        }
        let keys = draft.keys(key::cancelled_range(self.number, self.cancelled_from, last))?;
        let places: Vec<Cursor> = keys.iter().filter_map(|key| key::cancelled(key)).collect();
        let mut sifted = self.positions.sift(request.claim, places.iter().copied());
        sifted.done.truncate(limit::EMBEDDED_CANCELLED_DROPS_MAX);
        for place in &sifted.done {
            draft.remove(Key::Cancelled(self.number, *place));
        }
        let is_done = |place: &&Cursor| sifted.done.binary_search(place).is_ok();
        self.cancelled_from = places
            .iter()
            .find(|place| !is_done(place))
            .copied()
            .unwrap_or(last);
        Ok(sifted.told)
    }

    /// Answers whether it was there.
    fn remove(&mut self, slice: Slice, name: &Name, draft: &mut Draft) -> fjall::Result<bool> {
        let key = Key::Run(self.number, slice, name);
        let Some((least_due, bytes)) = draft.get(key)?.and_then(|value| form::to_run(&value))
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
    fn remove_all(&mut self, runs: &[(Slice, Name)], draft: &mut Draft) -> fjall::Result<u64> {
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

    pub(super) fn rewrite(
        &mut self,
        request: &Rewrite,
        draft: &mut Draft,
    ) -> fjall::Result<Rewritten> {
        if !self.holder.is_held(request.lease.token) {
            return Ok(Rewritten::Fenced);
        }
        if let Some(first) = request.outputs.first()
            && self.has(first.slice, &first.name, draft)?
        {
            return Ok(Rewritten::Done);
        }
        if !self.positions.is_known(request) {
            return Ok(Rewritten::Changed);
        }
        for (slice, name) in &request.inputs {
            if !self.has(*slice, name, draft)? {
                return Ok(Rewritten::Changed);
            }
        }
        let left = self.remove_all(&request.inputs, draft)?;
        request.outputs.iter().for_each(|run| self.add(run, draft));
        self.positions.rewritten(request, left);
        let inputs = request.inputs.iter().map(|(slice, _)| Some(*slice));
        self.write_counts(
            inputs.chain(request.outputs.iter().map(|run| Some(run.slice))),
            draft,
        );
        Ok(Rewritten::Done)
    }

    fn has(&self, slice: Slice, name: &Name, draft: &Draft) -> fjall::Result<bool> {
        Ok(draft.get(Key::Run(self.number, slice, name))?.is_some())
    }

    /// Answers how many were moved.
    pub(super) fn quarantine(
        &mut self,
        request: &Quarantine,
        draft: &mut Draft,
    ) -> fjall::Result<usize> {
        if !self.holder.is_held(request.lease.token) {
            return Ok(0);
        }
        let mut moved = 0;
        for (slice, name) in &request.runs {
            let bytes =
                readable(draft.get(Key::Bytes(self.number, *slice, name)))?.unwrap_or_default();
            if self.remove(*slice, name, draft)? {
                self.counts.set_aside(name, bytes.len());
                draft.put(Key::Aside(self.number, name), bytes);
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
