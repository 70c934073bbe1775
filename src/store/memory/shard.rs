//! One shard of the memory store: the rules that `lua/` keeps, in plain Rust. No time of its own, no faults but planted ones.

use crate::limit;
use crate::model::{Claim, Cursor, Identity, Offset, Slice, Timestamp, Token, Watermark};
use crate::mutant::{self, Mutant};
use crate::run::Name;
use crate::store::{
    Acquired, Advance, Advanced, Append, Appended, Birth, ChangeKind, List, Listed, Listing, Renewed, SliceCount, State, Tail, TailRun,
    Tailed,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct Shard {
    identity: Identity,
    watermark: Watermark,
    claimed: Claim,
    delivered: Claim,
    lease: Option<(Token, Timestamp)>,
    slices: BTreeMap<Slice, Runs>,
    quarantine: Runs,
    ids: BTreeMap<Box<str>, Cursor>,
    cancelled: BTreeSet<Cursor>,
    /// By the end of the batch, then by least offset; everything past `tail_from` is there.
    tail: BTreeSet<(Watermark, Offset, Name, Slice, Timestamp)>,
    tail_from: Watermark,
}

/// The runs of a slice, by name.
#[derive(Clone, Debug, Default)]
struct Runs {
    kept: BTreeMap<Name, (Timestamp, Bytes)>,
    /// Least offset ever added.
    least_offset: Option<Offset>,
}

impl Runs {
    fn add(&mut self, name: &Name, least_due: Timestamp, bytes: Bytes) {
        let least = name.least_offset();
        self.least_offset = Some(self.least_offset.map_or(least, |known| known.min(least)));
        self.kept.insert(name.clone(), (least_due, bytes));
    }

    fn messages(&self) -> u64 {
        self.kept.keys().map(|name| u64::from(name.count())).sum()
    }

    fn bytes(&self) -> u64 {
        self.kept.values().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

impl Shard {
    pub(super) fn new(birth: &Birth) -> Self {
        Self {
            identity: birth.identity.clone(),
            watermark: birth.watermark,
            claimed: birth.delivered,
            delivered: birth.delivered,
            lease: None,
            slices: BTreeMap::new(),
            quarantine: Runs::default(),
            ids: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            tail: BTreeSet::new(),
            tail_from: birth.watermark,
        }
    }

    pub(super) fn state(&self) -> State {
        let least = self.slices.values().chain([&self.quarantine]).filter_map(|runs| runs.least_offset);
        State {
            identity: self.identity.clone(),
            watermark: self.watermark,
            claimed: self.claimed,
            delivered: self.delivered,
            lowest_pending: least.chain([self.watermark.offset()]).min().expect("the watermark is among them"),
            pending: self.slices.values().map(Runs::messages).sum(),
            quarantined: self.quarantine.messages(),
        }
    }

    pub(super) fn slices(&self) -> Vec<SliceCount> {
        let counts = self.slices.iter().map(|(slice, runs)| SliceCount { slice: *slice, messages: runs.messages(), bytes: runs.bytes() });
        counts.collect()
    }

    pub(super) fn place(&self, id: &str) -> Option<Cursor> {
        self.ids.get(id).copied().filter(|place| !self.delivered.covers(*place))
    }

    pub(super) fn cancelled(&self) -> impl Iterator<Item = Cursor> {
        self.cancelled.iter().copied()
    }

    pub(super) fn append(&mut self, append: &Append) -> Appended {
        let accepted = mutant::active(Mutant::NoCompare)
            || (mutant::active(Mutant::BlindWatermark) && append.from >= self.watermark)
            || append.from == self.watermark;
        if !accepted {
            return Appended::Elsewhere(self.watermark);
        }
        let (mut cancelled, mut missed) = (0, 0);
        for change in &append.changes {
            let (is_cancel, place) = match change.kind {
                ChangeKind::Schedule(place) => (false, Some(place)),
                ChangeKind::Cancel => (true, None),
            };
            let waits = self.ids.get(&change.id).copied().filter(|&waits| Some(waits) != place && !self.is_taken(waits));
            if let Some(waits) = waits {
                self.cancelled.insert(waits);
                self.ids.remove(&change.id);
                cancelled += 1;
            } else if is_cancel {
                missed += 1;
            }
            if let Some(place) = place {
                self.ids.insert(change.id.clone(), place);
            }
        }
        for run in &append.runs {
            let least_due = run.summary.least_due();
            self.slices.entry(run.slice).or_default().add(&run.name, least_due, run.bytes.clone());
            self.tail.insert((append.to, run.name.least_offset(), run.name.clone(), run.slice, least_due));
        }
        while self.tail.len() > limit::TAIL_RUNS_MAX {
            let trimmed = self.tail.pop_first().expect("longer than nothing");
            self.tail_from = trimmed.0;
        }
        // The greater of the two can only be another one with a mutant planted.
        self.watermark = self.watermark.max(append.to);
        Appended::Done { cancelled, missed }
    }

    /// Too late to cancel or replace.
    fn is_taken(&self, place: Cursor) -> bool {
        self.claimed.covers(place) || self.delivered.covers(place)
    }

    pub(super) fn acquire(&mut self, token: Token, length: Duration, now: Timestamp) -> Acquired {
        if self.lease.is_some_and(|(holder, end)| holder != token && end > now) {
            return Acquired::Held;
        }
        self.lease = Some((token, now.plus(length)));
        Acquired::Granted { state: self.state(), now }
    }

    pub(super) fn renew(&mut self, token: Token, length: Duration, now: Timestamp) -> Renewed {
        if !self.is_held(token) {
            return Renewed::Fenced;
        }
        self.lease = Some((token, now.plus(length)));
        Renewed::Renewed { now }
    }

    pub(super) fn release(&mut self, token: Token) {
        if self.is_held(token) {
            self.lease = None;
        }
    }

    pub(super) fn is_held(&self, token: Token) -> bool {
        self.lease.is_some_and(|(holder, _)| holder == token)
    }

    pub(super) fn list(&self, request: &List) -> Listed {
        let mut runs: Vec<Listing> = self.listings().filter(|run| (request.from..=request.until).contains(&run.least_due)).collect();
        runs.sort_by(|a, b| (a.least_due, a.name.least_offset(), &a.name).cmp(&(b.least_due, b.name.least_offset(), &b.name)));
        let more = runs.len() > request.limit;
        runs.truncate(request.limit);
        Listed::Runs { watermark: self.watermark, runs, more }
    }

    fn listings(&self) -> impl Iterator<Item = Listing> {
        self.slices.iter().flat_map(|(slice, runs)| {
            runs.kept.iter().map(|(name, (least_due, _))| Listing { slice: *slice, name: name.clone(), least_due: *least_due })
        })
    }

    pub(super) fn bytes(&self, slice: Slice, name: &Name) -> Option<Bytes> {
        Some(self.slices.get(&slice)?.kept.get(name)?.1.clone())
    }

    /// Makes the bytes of the `nth` run, by least due, unreadable. Answers whether there is such a run.
    pub(super) fn corrupt(&mut self, nth: usize) -> bool {
        let mut runs: Vec<Listing> = self.listings().collect();
        runs.sort_by(|a, b| (a.least_due, &a.name).cmp(&(b.least_due, &b.name)));
        let Some(run) = runs.get(nth) else { return false };
        let kept = self.slices.get_mut(&run.slice).and_then(|runs| runs.kept.get_mut(&run.name)).expect("it was just listed");
        kept.1 = kept.1.iter().map(|byte| !byte).collect();
        true
    }

    pub(super) fn tail(&self, request: &Tail) -> Tailed {
        if request.after > self.watermark || request.after < self.tail_from {
            return Tailed::Broken { watermark: self.watermark };
        }
        let past: Vec<_> = self.tail.iter().filter(|(to, ..)| *to > request.after).collect();
        let mut taken = &past[..];
        let mut seen = self.watermark;
        if let Some((cut, ..)) = past.get(request.limit) {
            // Whole batches, and one at the least.
            taken = &past[..past.partition_point(|(to, ..)| to < cut)];
            if taken.is_empty() {
                taken = &past[..past.partition_point(|(to, ..)| to <= cut)];
            }
            seen = taken.last().expect("a batch that was cut has runs").0;
        }
        let runs = taken.iter().map(|(_, _, name, slice, least_due)| {
            let listing = Listing { slice: *slice, name: name.clone(), least_due: *least_due };
            let bytes = if *least_due <= request.until { self.bytes(*slice, name) } else { None };
            TailRun { listing, bytes }
        });
        Tailed::Runs { watermark: self.watermark, seen, runs: runs.collect() }
    }

    pub(super) fn advance(&mut self, request: &Advance, now: Timestamp) -> Advanced {
        if !self.is_held(request.lease.token) {
            return Advanced::Fenced;
        }
        if let Some(delivered) = request.delivered.filter(|delivered| delivered.includes(self.delivered)) {
            self.delivered = delivered;
        }
        for (slice, name) in &request.deletes {
            self.remove(*slice, name);
        }
        for (id, place) in &request.ids {
            if self.ids.get(id) == Some(place) {
                self.ids.remove(id);
            }
        }
        let delivered = self.delivered;
        let last = request.claim.unwrap_or(delivered).cursor;
        let done = self.cancelled.range(..=last).copied().filter(|&place| delivered.covers(place));
        for place in done.take(limit::CANCELLED_DROPS_MAX).collect::<Vec<_>>() {
            self.cancelled.remove(&place);
        }
        let Some(claim) = request.claim else { return Advanced::Done { watermark: self.watermark, cancelled: Vec::new() } };
        if claim.cursor.due > now.plus(request.skew_max) {
            return Advanced::Ahead { watermark: self.watermark, now };
        }
        self.claimed = if mutant::active(Mutant::ClaimsBack) {
            claim
        } else {
            Claim::new(self.claimed.cursor.max(claim.cursor), self.claimed.watermark.max(claim.watermark))
        };
        let cancelled = self.cancelled.range(..=last).copied().filter(|&place| claim.covers(place) && !delivered.covers(place));
        Advanced::Done { watermark: self.watermark, cancelled: cancelled.collect() }
    }

    fn remove(&mut self, slice: Slice, name: &Name) -> Option<(Timestamp, Bytes)> {
        let runs = self.slices.get_mut(&slice)?;
        let removed = runs.kept.remove(name);
        if runs.kept.is_empty() {
            self.slices.remove(&slice);
        }
        removed
    }

    /// Answers how many were moved.
    pub(super) fn quarantine(&mut self, runs: &[(Slice, Name)]) -> usize {
        let mut moved = 0;
        for (slice, name) in runs {
            if let Some((least_due, bytes)) = self.remove(*slice, name) {
                self.quarantine.add(name, least_due, bytes);
                moved += 1;
            }
        }
        moved
    }
}
