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
        let Fill::Fetching(fetching) = &mut self.fill else { return false };
        let Some(next) = fetching.queue.front().map(|wanted| wanted.least) else { return true };
        if !self.flights.is_empty() || self.schedule.holds_loaded() {
            // What can go before the next run will make room.
            return false;
        }
        // Late messages must not be cut, for W moves over them. What is due at once is not spread over time: nothing to halve before the epoch.
        let least = next.due.max(self.schedule.taken().cursor.due);
        let (low, high) = (least.as_millis().max(0), fetching.keep.as_millis());
        if high <= low {
            // One instant's messages, interleaved: they must be in memory together.
            return true;
        }
        fetching.keep = Timestamp::from_millis(low + (high - low) / 2);
        let keep = fetching.keep;
        self.trim(keep);
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

    pub(super) fn fetched(&mut self, missing: Vec<(Slice, Name)>) {
        let Fill::Fetching(fetching) = &mut self.fill else { return };
        fetching.under_way = 0;
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
        // Names that are gone meanwhile: the names are read again. Ones that are still listed then have lost their bytes.
        for wanted in fetching.queue.drain(..) {
            self.inventory.cut(&wanted.name, wanted.least.due);
        }
        self.fill = Fill::Idle;
        for run in missing.iter().filter(|run| self.missing.contains(run)) {
            tracing::error!(shard = %self.lease.shard, run = %run.1, messages = run.1.count(), "a stored run has lost its bytes: it is set aside");
            self.corrupt.push(run.clone());
        }
        self.missing = missing;
    }
}

/// The first place after everything that is due up to `due`.
fn after(due: Timestamp) -> Cursor {
    Cursor::new(due.plus(Duration::from_millis(1)), Offset(0))
}
