//! One shard of the memory store: what `store::shard` decides over, in plain collections. No time of its own, no faults but planted ones.

use crate::limit;
use crate::model::{Cursor, Slice, Timestamp, Token};
use crate::run::{Name, Run};
use crate::store::shard::{Counts, Holder, Positions, Recent};
use crate::store::{
    Acquired, Advance, Advanced, Append, Appended, Birth, Contents, Glance, List, Listed, Listing,
    Renewed, Rewrite, Rewritten, State, Tail, Tailed,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct Shard {
    positions: Positions,
    holder: Holder,
    counts: Counts,
    recent: Recent,
    runs: BTreeMap<(Slice, Name), (Timestamp, Bytes)>,
    quarantine: BTreeMap<Name, Bytes>,
    ids: BTreeMap<Box<str>, Cursor>,
    cancelled: BTreeSet<Cursor>,
}

impl Shard {
    pub(super) fn new(birth: &Birth) -> Self {
        Self {
            positions: Positions::new(birth),
            holder: Holder::default(),
            counts: Counts::default(),
            recent: Recent::new(birth.watermark),
            runs: BTreeMap::new(),
            quarantine: BTreeMap::new(),
            ids: BTreeMap::new(),
            cancelled: BTreeSet::new(),
        }
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

    pub(super) fn place(&self, id: &str) -> Option<Cursor> {
        self.ids
            .get(id)
            .copied()
            .filter(|place| !self.positions.delivered.covers(*place))
    }

    pub(super) fn cancelled(&self) -> impl Iterator<Item = Cursor> {
        self.cancelled.iter().copied()
    }

    pub(super) fn append(&mut self, append: &Append) -> Appended {
        if !self.positions.accepts(append) {
            return Appended::Elsewhere(self.positions.watermark);
        }
        let changed = self.positions.apply(&append.changes, &mut self.ids);
        let cancelled = changed.cancelled.len() as u32;
        self.cancelled.extend(changed.cancelled);
        append.runs.iter().for_each(|run| self.add(run));
        self.recent.add(append.to, &append.runs);
        self.positions.appended(append);
        Appended::Done {
            cancelled,
            missed: changed.missed,
        }
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

    pub(super) fn release(&mut self, token: Token) {
        self.holder.release(token);
    }

    pub(super) fn holder(&self, now: Timestamp) -> Option<Token> {
        self.holder.at(now)
    }

    pub(super) fn is_held(&self, token: Token) -> bool {
        self.holder.is_held(token)
    }

    pub(super) fn list(&self, request: &List) -> Listed {
        let mut runs: Vec<Listing> = self
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
            history: self.positions.history,
            runs,
            more,
        }
    }

    fn listings(&self) -> impl Iterator<Item = Listing> {
        self.runs
            .iter()
            .map(|((slice, name), (least_due, _))| Listing {
                slice: *slice,
                name: name.clone(),
                least_due: *least_due,
            })
    }

    pub(super) fn bytes(&self, slice: Slice, name: &Name) -> Option<Bytes> {
        Some(self.runs.get(&(slice, name.clone()))?.1.clone())
    }

    /// Makes the bytes of the `nth` run, by least due, unreadable. Answers whether there is such a run.
    pub(super) fn corrupt(&mut self, nth: usize) -> bool {
        let mut runs: Vec<Listing> = self.listings().collect();
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

    pub(super) fn tail(&self, request: &Tail) -> Tailed {
        let mut tailed =
            self.recent
                .read(request, self.positions.watermark, self.positions.history);
        if let Tailed::Runs { runs, .. } = &mut tailed {
            for run in runs
                .iter_mut()
                .filter(|run| run.listing.least_due <= request.until)
            {
                run.bytes = self.bytes(run.listing.slice, &run.listing.name);
            }
        }
        tailed
    }

    pub(super) fn advance(&mut self, request: &Advance, now: Timestamp) -> Advanced {
        if !self.is_held(request.lease.token) {
            return Advanced::Fenced;
        }
        self.positions.deliver(request);
        let left = self.remove_all(&request.deletes);
        self.positions.done(request, left, &self.counts);
        for (id, place) in &request.ids {
            if self.ids.get(id) == Some(place) {
                self.ids.remove(id);
            }
        }
        let last = self.positions.last(request.claim);
        let sifted = self
            .positions
            .sift(request.claim, self.cancelled.range(..=last).copied());
        for place in sifted.done.iter().take(limit::CANCELLED_DROPS_MAX) {
            self.cancelled.remove(place);
        }
        self.positions.claim(request, now, sifted.told)
    }

    fn add(&mut self, run: &Run) {
        // A name is used twice only with a mutant planted.
        self.remove(run.slice, &run.name);
        self.counts.add(run.slice, &run.name, run.bytes.len());
        self.runs.insert(
            (run.slice, run.name.clone()),
            (run.summary.least_due(), run.bytes.clone()),
        );
    }

    fn remove(&mut self, slice: Slice, name: &Name) -> Option<Bytes> {
        let (_, bytes) = self.runs.remove(&(slice, name.clone()))?;
        self.counts.remove(slice, name, bytes.len());
        Some(bytes)
    }

    /// Answers how many messages left with them.
    fn remove_all(&mut self, runs: &[(Slice, Name)]) -> u64 {
        runs.iter()
            .map(|(slice, name)| {
                if self.remove(*slice, name).is_some() {
                    u64::from(name.count())
                } else {
                    0
                }
            })
            .sum()
    }

    pub(super) fn rewrite(&mut self, request: &Rewrite) -> Rewritten {
        if !self.is_held(request.lease.token) {
            return Rewritten::Fenced;
        }
        if request
            .outputs
            .first()
            .is_some_and(|run| self.runs.contains_key(&(run.slice, run.name.clone())))
        {
            return Rewritten::Done;
        }
        if !self.positions.is_known(request)
            || !request.inputs.iter().all(|run| self.runs.contains_key(run))
        {
            return Rewritten::Changed;
        }
        let left = self.remove_all(&request.inputs);
        request.outputs.iter().for_each(|run| self.add(run));
        self.positions.rewritten(request, left);
        Rewritten::Done
    }

    /// Answers how many were moved.
    pub(super) fn quarantine(&mut self, runs: &[(Slice, Name)]) -> usize {
        let mut moved = 0;
        for (slice, name) in runs {
            if let Some(bytes) = self.remove(*slice, name) {
                self.counts.set_aside(name, bytes.len());
                self.quarantine.insert(name.clone(), bytes);
                moved += 1;
            }
        }
        moved
    }
}
