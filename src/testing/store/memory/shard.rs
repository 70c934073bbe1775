//! One shard of the memory store: plain collections under the rules of `store::rules`.

use crate::encryption::{IdCounts, StoredId};
use crate::limit;
use crate::model::{Cursor, LeaseToken, Offset, Progress, Slice, Timestamp};
use crate::run::{Run, RunName};
use crate::store::query::PlaceChange;
use crate::store::rules::{Change, LeaseHolder, ShardCounts, ShardMeta, ShardTail};
use crate::store::tail_bytes::run_memory;
use crate::store::{
    Acquire, Acquired, Advance, Advanced, Append, Appended, List, Listed, NewShard, ReplaceRuns,
    Replaced, RunEntry, ShardPosition, StoredShard, Tail, Tailed,
};
use crate::store::{RequestEffect, Restore, Restored, TailRun};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub(super) struct MemoryShard {
    pub(super) positions: ShardMeta,
    pub(super) lease: LeaseHolder,
    pub(super) counts: ShardCounts,
    tail: ShardTail,
    pub(super) runs: BTreeMap<(Slice, RunName), (Timestamp, Bytes)>,
    pub(super) quarantine: BTreeMap<RunName, Bytes>,
    pub(super) ids: BTreeMap<Box<[u8]>, Cursor>,
    /// Cancelled places, and rescheduled ones.
    pub(super) changed: BTreeMap<Cursor, Change>,
    /// The effects of requests with answers.
    pub(super) effects: BTreeMap<Offset, RequestEffect>,
    /// It has a slice that this version does not know.
    pub(super) has_newer_slice: bool,
}

pub(super) const NEWER_SLICE: &str = "it has an unknown slice, so run the newer version";

impl MemoryShard {
    pub(super) fn new(birth: &NewShard) -> Self {
        Self {
            positions: ShardMeta::new(birth),
            lease: LeaseHolder::default(),
            counts: ShardCounts::default(),
            tail: ShardTail::new(birth.watermark),
            runs: BTreeMap::new(),
            quarantine: BTreeMap::new(),
            ids: BTreeMap::new(),
            changed: BTreeMap::new(),
            effects: BTreeMap::new(),
            has_newer_slice: false,
        }
    }

    /// Gives a copy of a shard its positions.
    pub(super) fn end_copy(&mut self, meta: ShardMeta) {
        self.tail = ShardTail::new(meta.watermark);
        self.positions = meta;
    }

    /// `None`: a newer version wrote it.
    pub(super) fn readable(&mut self) -> Option<&mut Self> {
        (!self.has_newer_slice).then_some(self)
    }

    pub(super) fn state(&self) -> StoredShard {
        self.counts.state(&self.positions)
    }

    pub(super) fn end_hold(&mut self) {
        self.positions.hold = None;
    }

    pub(super) fn extend_possibly_delivered(&mut self, pair: Progress) {
        self.positions.extend_possibly_delivered(pair);
    }

    pub(super) fn position(&self) -> ShardPosition {
        self.positions.position()
    }

    pub(super) fn waiting_place(&self, id: &StoredId) -> Option<Cursor> {
        let mut places = id.names().filter_map(|name| self.ids.get(name)).copied();
        places.find(|place| !self.positions.delivered.covers(*place))
    }

    pub(super) fn change(&self, place: Cursor) -> Option<PlaceChange> {
        self.changed.get(&place).copied().map(Into::into)
    }

    pub(super) fn moved_from(&self, before: Timestamp) -> Option<Timestamp> {
        let moved = (self.changed.iter()).filter(|(_, change)| change.moved.is_some());
        let dues = moved.map(|(place, _)| place.due);
        dues.filter(|due| *due < before).min()
    }

    pub(super) fn cancelled(&self) -> impl Iterator<Item = Cursor> {
        let cancelled = (self.changed.iter()).filter(|(_, change)| change.moved.is_none());
        cancelled.map(|(place, _)| *place)
    }

    pub(super) fn append(&mut self, append: &Append) -> Appended {
        if !self.positions.is_of_source(append) {
            return Appended::Unknown;
        }
        let watermark = self.positions.watermark;
        let ignores_i2 =
            fault!(AppendWithoutCompare) || (fault!(AppendAcceptsGap) && append.from >= watermark);
        if !self.positions.accepts(append) && !ignores_i2 {
            return Appended::WatermarkMismatch(self.positions.watermark);
        }
        if !self.counts.may_change(&append.changes) {
            return Appended::Unknown;
        }
        let changed = self.positions.apply_changes(&append.changes, &mut self.ids);
        let cancelled = changed.in_time;
        self.changed.extend(changed.changed);
        let effects = changed.effects.into_iter();
        self.effects
            .extend(effects.map(|effect| (effect.request, effect)));
        append.runs.iter().for_each(|run| self.add_run(run));
        self.tail.add(append.to, &append.runs);
        self.positions.appended(append);
        // `to` can be below the watermark only with an injected fault.
        self.positions.watermark = watermark.max(append.to);
        Appended::Done {
            cancelled,
            missed: changed.missed,
            told: changed.told,
        }
    }

    /// The first step of an append that is not one step.
    pub(super) fn append_runs_only(&mut self, append: &Append) {
        if self.positions.accepts(append) {
            append.runs.iter().for_each(|run| self.add_run(run));
        }
    }

    /// The rows of messages; `None`: there are none.
    pub(super) fn leftovers(&self) -> Option<String> {
        let rows = [
            ("runs", self.runs.len()),
            ("ids", self.ids.len()),
            ("changed places", self.changed.len()),
            ("effects", self.effects.len()),
        ];
        let rows = rows.into_iter().filter(|(_, count)| *count > 0);
        let rows: Vec<_> = rows
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        (!rows.is_empty()).then(|| rows.join(", "))
    }

    pub(super) fn acquire(&mut self, request: &Acquire) -> Acquired {
        if !self.positions.identity.may_share_cluster(&request.identity) {
            return Acquired::OtherCluster(self.positions.identity.clone());
        }
        let before = self.lease;
        let ended = match before.holder() {
            held if fault!(TakeHeldShard) => held,
            _ => request.ended_holder,
        };
        if let Err(held) = self.lease.acquire(request.lease.token, ended) {
            return Acquired::HeldBy(held);
        }
        if self.has_newer_slice {
            self.lease = before;
            return Acquired::Incompatible(NEWER_SLICE.to_owned());
        }
        Acquired::Granted(self.state())
    }

    pub(super) fn is_held(&self, token: LeaseToken) -> bool {
        self.lease.is_held(token)
    }

    pub(super) fn list(&self, request: &List) -> Listed {
        let mut runs: Vec<RunEntry> = self
            .listings()
            .filter(|run| (request.from..=request.until).contains(&run.least_due))
            .collect();
        runs.sort_by(|a, b| {
            (a.least_due, a.name.least_offset(), &a.name).cmp(&(
                b.least_due,
                b.name.least_offset(),
                &b.name,
            ))
        });
        let more = runs.len() > request.limit;
        runs.truncate(request.limit);
        Listed::Runs {
            watermark: self.positions.watermark,
            lineage: self.positions.lineage,
            runs,
            has_more: more,
        }
    }

    fn listings(&self) -> impl Iterator<Item = RunEntry> {
        self.runs
            .iter()
            .map(|((slice, name), (least_due, _))| RunEntry {
                slice: *slice,
                name: name.clone(),
                least_due: *least_due,
            })
    }

    pub(super) fn run_bytes(&self, slice: Slice, name: &RunName) -> Option<Bytes> {
        Some(self.runs.get(&(slice, name.clone()))?.1.clone())
    }

    /// Makes the bytes of the `nth` run, by least due time, unreadable. Returns whether the run
    /// exists.
    pub(super) fn corrupt_run(&mut self, nth: usize) -> bool {
        let mut runs: Vec<RunEntry> = self.listings().collect();
        runs.sort_by(|a, b| (a.least_due, &a.name).cmp(&(b.least_due, &b.name)));
        let Some(run) = runs.get(nth) else {
            return false;
        };
        let kept = self
            .runs
            .get_mut(&(run.slice, run.name.clone()))
            .expect("it was just listed");
        kept.1 = kept.1.iter().map(|byte| !byte).collect();
        true
    }

    pub(super) fn set_run_version(&mut self, version: u8) {
        for (_, bytes) in self.runs.values_mut() {
            let mut changed = bytes.to_vec();
            changed[4] = version;
            *bytes = changed.into();
        }
    }

    pub(super) fn tail(&self, request: &Tail) -> Tailed {
        let mut tailed = self
            .tail
            .read(request, &self.positions, !self.ids.is_empty());
        if let Tailed::Runs { runs, .. } = &mut tailed {
            let mut bytes = 0;
            let due = |(_, run): &(usize, &mut TailRun)| run.entry.least_due <= request.until;
            for (index, run) in runs.iter_mut().enumerate().filter(due) {
                if bytes >= request.bytes_max {
                    return self.tail(&Tail {
                        limit: index,
                        bytes_max: usize::MAX,
                        ..request.clone()
                    });
                }
                run.bytes = self.run_bytes(run.entry.slice, &run.entry.name);
                bytes += run.bytes.as_ref().map_or(0, run_memory);
            }
        }
        tailed
    }

    pub(super) fn advance(&mut self, request: &Advance, now: Timestamp) -> Advanced {
        if !self.is_held(request.lease.token) {
            return Advanced::Fenced;
        }
        self.positions.move_delivered(request);
        let left = self.remove_runs(&request.deletes);
        self.positions.runs_deleted(request, left, &self.counts);
        for (id, place) in &request.delivered_ids {
            self.remove_id(id, *place);
        }
        let last = self.positions.last_to_check(request.claim);
        let sifted = self.positions.split_cancelled(
            request.claim,
            self.changed.range(..=last).map(|(place, _)| *place),
        );
        for place in sifted.expired.iter().take(limit::CANCELLED_REMOVALS_MAX) {
            self.changed.remove(place);
        }
        for offset in &request.delivered_answers {
            self.effects.remove(offset);
        }
        let change = |place: &Cursor| self.changed.get(place).copied();
        let changers = sifted.in_claim.iter().filter_map(|it| change(it)?.request);
        let changers: BTreeSet<Offset> = changers.collect();
        let is_told = |effect: &&RequestEffect| {
            let it = effect.request;
            changers.contains(&it) || request.claimed_answers.contains(&it)
        };
        let mut effects: Vec<_> = self.effects.values().filter(is_told).copied().collect();
        let moved = |place: &Cursor| change(place).and_then(|it| it.moved);
        effects.extend((sifted.in_claim.iter()).filter_map(|it| Some(moved(it)?.effect(*it))));
        effects.sort_unstable();
        let cancelled = sifted.in_claim.into_iter();
        let cancelled = cancelled.filter(|place| moved(place).is_none()).collect();
        let advanced = (self.positions).move_claimed(request, now, cancelled, effects);
        if fault!(ClaimMovesBack) && matches!(advanced, Advanced::Done { .. }) {
            self.positions.claimed = request.claim.unwrap_or(self.positions.claimed);
        }
        advanced
    }

    /// Returns whether the id named this place.
    fn remove_id(&mut self, id: &StoredId, place: Cursor) -> bool {
        let before = self.ids.len();
        for name in id.names() {
            if self.ids.get(name) == Some(&place) {
                self.ids.remove(name);
            }
        }
        self.ids.len() < before
    }

    /// Looks at all ids and effects in one step.
    pub(super) fn remove_finished_ids(&mut self) {
        let delivered = self.positions.delivered;
        self.ids.retain(|_, place| !delivered.covers(*place));
        let is_open = |request: &Offset| !delivered.covers(Cursor::of_answer(*request));
        self.effects.retain(|request, _| is_open(request));
    }

    pub(super) fn count_ids(&self) -> IdCounts {
        let mut counts = IdCounts::default();
        self.ids.keys().for_each(|name| counts.add(name));
        counts
    }

    fn add_run(&mut self, run: &Run) {
        // Only an injected fault uses a name twice.
        self.remove_run(run.slice, &run.name);
        self.counts.add(Some(run.slice), &run.name, run.bytes.len());
        self.runs.insert(
            (run.slice, run.name.clone()),
            (run.summary.least_due(), run.bytes.clone()),
        );
    }

    fn remove_run(&mut self, slice: Slice, name: &RunName) -> Option<Bytes> {
        let (_, bytes) = self.runs.remove(&(slice, name.clone()))?;
        self.counts.remove(Some(slice), name, bytes.len());
        Some(bytes)
    }

    /// Returns the number of messages in the removed runs.
    fn remove_runs(&mut self, runs: &[(Slice, RunName)]) -> u64 {
        runs.iter()
            .map(|(slice, name)| {
                if self.remove_run(*slice, name).is_some() {
                    u64::from(name.count())
                } else {
                    0
                }
            })
            .sum()
    }

    pub(super) fn rewrite(&mut self, request: &ReplaceRuns) -> Replaced {
        if !self.is_held(request.lease.token) {
            return Replaced::Fenced;
        }
        if request
            .outputs
            .first()
            .is_some_and(|run| self.runs.contains_key(&(run.slice, run.name.clone())))
        {
            return Replaced::Done;
        }
        if !self.positions.knows_all_replacements(request)
            || !request.inputs.iter().all(|run| self.runs.contains_key(run))
        {
            return Replaced::Conflict;
        }
        let left = self.remove_runs(&request.inputs);
        for (id, place) in &request.renamed_ids {
            let first = self.ids.get(id.name()).copied();
            if self.positions.is_free(first) && self.remove_id(id, *place) {
                self.ids.insert(id.name().into(), *place);
            }
        }
        request.outputs.iter().for_each(|run| self.add_run(run));
        self.positions.runs_replaced(request, left);
        Replaced::Done
    }

    /// Returns the number of moved runs.
    pub(super) fn quarantine(&mut self, runs: &[(Slice, RunName)]) -> usize {
        let mut moved = 0;
        for (slice, name) in runs {
            if let Some(bytes) = self.remove_run(*slice, name) {
                self.counts.add(None, name, bytes.len());
                self.quarantine.insert(name.clone(), bytes);
                moved += 1;
            }
        }
        moved
    }

    pub(super) fn quarantined_runs(&self) -> Vec<RunName> {
        self.quarantine.keys().cloned().collect()
    }

    pub(super) fn quarantined_bytes(&self, name: &RunName) -> Option<Bytes> {
        self.quarantine.get(name).cloned()
    }

    pub(super) fn restore(&mut self, request: &Restore) -> Restored {
        let Some(bytes) = self.quarantine.get(&request.quarantined) else {
            return Restored::Gone;
        };
        if !self.positions.may_restore(request) {
            return Restored::TooEarly;
        }
        self.counts.remove(None, &request.quarantined, bytes.len());
        self.quarantine.remove(&request.quarantined);
        request.runs.iter().for_each(|run| self.add_run(run));
        self.positions.run_restored();
        self.lease = LeaseHolder::default();
        Restored::Done
    }
}
