//! The lane that loads what a shard has up to its horizon: lists the runs, fetches them by least place, and keeps within the memory that
//! there is.

use super::loader::What;
use super::work::Work;
use crate::limit::{FETCH_MESSAGES_MAX, FETCH_RUNS_MAX, LIST_MAX, LOOKAHEAD, LOOKAHEAD_LEAST};
use crate::model::{Cursor, Offset, Slice, Timestamp};
use crate::run::Name;
use crate::store::Listing;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// The lane that loads what lies up to the horizon.
pub(super) enum Fill {
    Idle,
    Listing { until: Timestamp },
    Fetching(Fetching),
}

pub(super) struct Fetching {
    queue: VecDeque<Wanted>,
    until: Timestamp,
    /// Messages due after it are left in the store; lower than `until` when memory runs short.
    keep: Timestamp,
    /// The list was cut after this due.
    more: Option<Timestamp>,
    /// So many at the head of the queue may hold late messages; they go by their least offsets, the rest by least place.
    late: usize,
    under_way: usize,
}

/// A run to fetch, and a place before which none of its messages that are wanted lies.
pub(super) struct Wanted {
    least: Cursor,
    slice: Slice,
    name: Name,
}

impl Work {
    pub(super) fn next_fill(&mut self, wall: Timestamp) -> Option<What> {
        if matches!(self.fill, Fill::Idle) {
            let loaded = self.schedule.loaded().due;
            let is_wanted = loaded < wall.plus(LOOKAHEAD_LEAST) && (!self.memory.is_spent() || loaded <= wall);
            if !is_wanted {
                return None;
            }
            let until = wall.plus(LOOKAHEAD).max(self.horizon);
            if self.rewriting.before.is_some_and(|before| before <= until) {
                // At most as long as a call of the store takes; and it is not begun for what is due soon.
                return None;
            }
            // Raised before the list is read: from here on the tail's runs up to it are kept.
            self.horizon = until;
            self.fill = Fill::Listing { until };
            return Some(What::List { from: loaded, until, limit: LIST_MAX });
        }
        let Fill::Fetching(fetching) = &mut self.fill else { return None };
        if fetching.under_way > 0 {
            return None;
        }
        if fetching.queue.is_empty() {
            return self.filled();
        }
        if self.memory.is_spent() && !self.make_room() {
            return None;
        }
        self.fetch()
    }

    fn fetch(&mut self) -> Option<What> {
        let Fill::Fetching(fetching) = &mut self.fill else { return None };
        let (mut runs, mut messages) = (Vec::new(), 0);
        let messages_max = self.memory.room_messages().clamp(1, FETCH_MESSAGES_MAX);
        while runs.len() < FETCH_RUNS_MAX
            && messages < messages_max
            && let Some(Wanted { slice, name, .. }) = fetching.queue.pop_front()
        {
            messages += u64::from(name.count());
            runs.push((slice, name));
        }
        fetching.under_way = runs.len();
        fetching.late = fetching.late.saturating_sub(runs.len());
        let keep = if self.memory.is_ample() && fetching.keep == fetching.until { Timestamp::MAX } else { fetching.keep };
        Some(What::Fetch { runs, keep, taken: self.schedule.taken() })
    }

    /// The list is fetched: the next part of it, or done up to what was kept.
    fn filled(&mut self) -> Option<What> {
        let Fill::Fetching(fetching) = std::mem::replace(&mut self.fill, Fill::Idle) else { return None };
        let Fetching { until, keep, more, .. } = fetching;
        let Some(from) = more.filter(|from| *from <= keep) else {
            self.reach(after(keep));
            return None;
        };
        self.reach(Cursor::new(from, Offset(0)).max(self.schedule.loaded()));
        self.fill = Fill::Listing { until };
        // A page that ends where it began would be the same page again: ask for more of it.
        Some(What::List { from, until, limit: LIST_MAX.max(2 * self.inventory.len()) })
    }

    /// Memory is spent in the middle of a fill. What is not needed to deliver what is due next is cut; `false`: wait until messages have gone.
    ///
    /// Runs of a backlog overlap: none of it can go before all of them are read up to the same place. So the bound of this fill is halved
    /// until what lies before it fits.
    fn make_room(&mut self) -> bool {
        let Fill::Fetching(fetching) = &self.fill else { return false };
        let Some(next) = fetching.queue.front().map(|wanted| wanted.least) else { return true };
        if self.has_claims() || self.schedule.holds_loaded() {
            // What can go before the next run will make room.
            return false;
        }
        // Late messages must not be cut, for W moves over them. What is due at once is not spread over time: nothing to halve before the epoch.
        let low = next.due.max(self.schedule.taken().cursor.due).as_millis().max(0);
        let mut keep = fetching.keep.as_millis();
        // At one instant it ends: its messages, interleaved, must be in memory together.
        while self.memory.is_spent() && keep > low {
            keep = low + (keep - low) / 2;
            self.trim(Timestamp::from_millis(keep));
        }
        if let Fill::Fetching(fetching) = &mut self.fill {
            fetching.keep = fetching.keep.min(Timestamp::from_millis(keep));
        }
        true
    }

    /// Drops from memory what is due after `horizon`.
    fn trim(&mut self, horizon: Timestamp) {
        let inventory = &mut self.inventory;
        self.schedule.trim(after(horizon), |resident| {
            if let Some(stub) = resident.keep_until(horizon) {
                inventory.cut(resident.run.name(), stub);
            }
        });
    }

    pub(super) fn listed(&mut self, runs: Vec<Listing>, more: bool) {
        let Fill::Listing { until } = self.fill else { return };
        let more = if more { runs.last().map(|listing| listing.least_due) } else { None };
        let unknown = runs.into_iter().filter(|listing| !self.inventory.knows(&listing.name));
        let mut queue: Vec<_> = unknown
            .map(|Listing { slice, name, least_due }| Wanted { least: Cursor::new(least_due, name.least_offset()), slice, name })
            .collect();
        while let Some((due, slice, name)) = self.inventory.pop_stub(until) {
            queue.push(Wanted { least: Cursor::new(due, Offset(0)), slice, name });
        }
        // With late messages in memory by offset, W can move over them before all of the backlog is loaded.
        let taken = self.schedule.taken().cursor.due;
        let late = if more.is_some_and(|more| more <= taken) { 0 } else { queue.iter().filter(|wanted| wanted.least.due <= taken).count() };
        let by_offset = |wanted: &Wanted| (late > 0 && wanted.least.due <= taken).then(|| wanted.name.least_offset());
        queue.sort_by_key(|wanted| (by_offset(wanted).is_none(), by_offset(wanted), wanted.least));
        self.fill = Fill::Fetching(Fetching { queue: queue.into(), until, keep: until, more, late, under_way: 0 });
    }

    /// Everything before `bound` was merged - but for what was cut meanwhile by an older bound than this fill's.
    fn reach(&mut self, bound: Cursor) {
        let stub = self.inventory.first_stub().map(|due| Cursor::new(due, Offset(0)));
        self.schedule.load_reached(stub.map_or(bound, |stub| bound.min(stub)));
    }

    pub(super) fn fetched(&mut self, mut missing: Vec<(Slice, Name)>, now: Instant) {
        let Fill::Fetching(fetching) = &mut self.fill else { return };
        fetching.under_way = 0;
        missing.retain(|(_, name)| !self.inventory.forget_replaced(name));
        if missing.is_empty() {
            self.missing.clear();
            match fetching.queue.front() {
                Some(wanted) if fetching.late > 0 => self.schedule.late_reached(wanted.name.least_offset()),
                Some(wanted) => {
                    let bound = wanted.least.max(self.schedule.loaded());
                    self.reach(bound);
                }
                None => {}
            }
            return;
        }
        // Nobody else deletes or replaces runs: the store went back, and may hold what it held before in runs that are not known here.
        for run in missing.iter().filter(|run| self.missing.contains(run)) {
            tracing::error!(shard = %self.lease.shard, run = %run.1, messages = run.1.count(), "a stored run has lost its bytes: it is set aside");
            self.corrupt.push(run.clone());
        }
        self.missing = missing;
        tracing::warn!(shard = %self.lease.shard, "a run is not in the store any more: loading again");
        self.reload(self.schedule.taken(), self.schedule.seen(), now);
    }
}

/// The first place after everything that is due up to `due`.
fn after(due: Timestamp) -> Cursor {
    Cursor::new(due.plus(Duration::from_millis(1)), Offset(0))
}

#[cfg(test)]
mod tests {
    use super::super::flying::Aloft;
    use super::super::loader::{Answer, read};
    use super::super::memory::Memory;
    use super::*;
    use crate::limit::{CLAIM_MAX, CLAIM_PACE};
    use crate::model::{Body, Disposition, Headers, Level, Watermark};
    use crate::run::{Decoder, Encoder, record};
    use bytes::Bytes;
    use std::collections::BTreeMap;

    const RUNS: u64 = 64;
    const RUN_MESSAGES: u64 = 500;
    const WALL: Timestamp = Timestamp::from_millis(1_000_000_000);

    /// A backlog in which every run reaches over all of the time: the first message of each is due before the second of any.
    fn overlapping() -> BTreeMap<Name, Bytes> {
        let body = Body {
            key: None,
            payload: Some(&[b'x'; 100]),
            headers: Headers::from_block(&[]),
            id: None,
            target: None,
            dialect: None,
            disposition: Disposition::Deliver,
        };
        let mut bytes = Vec::new();
        record::encode(&body, &mut bytes);
        let run = |run: u64| {
            let offsets: Vec<_> = (0..RUN_MESSAGES).map(|at| at * RUNS + run).collect();
            let places = offsets.iter().map(|offset| (Cursor::new(Timestamp::from_millis(*offset as i64), Offset(*offset)), &bytes[..]));
            (Name::new(format!("1-{run:x}-{RUN_MESSAGES:x}-{run:x}")), Encoder::new().encode(places).1)
        };
        (0..RUNS).map(run).collect()
    }

    fn answer(what: What, runs: &BTreeMap<Name, Bytes>, fetched: &mut usize) -> Answer {
        let (watermark, slice) = (Watermark(RUNS * RUN_MESSAGES), Slice { level: Level::Hour, start: 0 });
        match what {
            What::Tail { .. } => Answer::Tail { watermark, seen: watermark, runs: Vec::new() },
            What::List { from, until, .. } => {
                let least_due = |name: &Name| Timestamp::from_millis(name.least_offset().0 as i64);
                let listings = runs.keys().map(|name| Listing { slice, name: name.clone(), least_due: least_due(name) });
                Answer::List { watermark, runs: listings.filter(|run| (from..=until).contains(&run.least_due)).collect(), more: false }
            }
            What::Fetch { runs: wanted, keep, taken } => {
                *fetched += wanted.len();
                let mut decoder = Decoder::new();
                Answer::Fetch(wanted.iter().map(|(_, name)| read(slice, name, runs.get(name), (keep, taken), &mut decoder)).collect())
            }
        }
    }

    #[test]
    fn a_backlog_of_ten_times_the_budget_passes_through_it_in_order() {
        let runs = overlapping();
        let slice = Slice { level: Level::Hour, start: 0 };
        let held = runs.iter().map(|(name, bytes)| Decoder::new().decode(name.clone(), slice, bytes).unwrap().bytes_held());
        let whole: usize = held.sum();
        let (budget, run) = (whole / 10, whole / RUNS as usize);
        let memory = Memory::new(budget);
        let mut work = Work::begun(1, &memory, Watermark(RUNS * RUN_MESSAGES));
        let (mut now, mut delivered, mut most, mut fetched) = (Instant::now(), Vec::new(), 0, 0);
        while delivered.len() < (RUNS * RUN_MESSAGES) as usize {
            let before = (delivered.len(), fetched);
            while let Some(what) = work.next_request(WALL, now, false) {
                work.take_in(answer(what, &runs, &mut fetched), now);
                most = most.max(memory.used());
            }
            while let Some(take) = work.take(WALL, now, CLAIM_MAX, (Duration::ZERO, Duration::ZERO)) {
                let aloft = Aloft::new(take.messages, Vec::new());
                delivered.extend((0..aloft.messages.len()).map(|index| aloft.place(index).offset.0));
                work.flights.take_off(take.claim, 0, aloft);
                work.land(|_, _| ());
                now += CLAIM_PACE;
            }
            now += CLAIM_PACE;
            assert_ne!((delivered.len(), fetched), before, "it goes on");
        }
        assert!(delivered.iter().copied().eq(0..RUNS * RUN_MESSAGES), "in the order in which they were due");
        assert!(most <= budget + run, "{most} bytes were held of a budget of {budget}");
        assert!(fetched <= 2 * 10 * RUNS as usize, "{fetched} fetches of {RUNS} runs: each time half of the budget goes, or more");
    }
}
