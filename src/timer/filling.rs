//! The lane that loads what a shard has up to its horizon: lists the runs, fetches them by least place, and keeps within the memory that
//! there is.

use super::load::Load;
use super::load::{MemoryAccount, Reservation};
use super::work::ShardState;
use crate::limit::{
    FETCH_BYTES_MAX, FETCH_MESSAGES_MAX, FETCH_RUNS_MAX, LIST_RUNS_MAX, PREFETCH_AHEAD,
    PREFETCH_AHEAD_MIN,
};
use crate::model::{Cursor, Offset, Slice, Timestamp};
use crate::run::RunName;
use crate::store::RunEntry;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// The lane that loads what lies up to the horizon.
pub(super) enum Prefetch {
    Idle,
    Listing { until: Timestamp },
    Fetching(Fetching),
}

pub(super) struct Fetching {
    queue: VecDeque<RunToFetch>,
    until: Timestamp,
    /// Messages due after it are left in the store; lower than `until` when memory runs short.
    keep_until: Timestamp,
    /// The list was cut after this due.
    next_page: Option<Timestamp>,
    /// So many at the head of the queue may hold late messages; they go by their least offsets, the rest by least place.
    late_runs: usize,
    in_flight: Option<FetchInFlight>,
}

/// What is being fetched, and the memory that is kept for it.
struct FetchInFlight {
    runs: Vec<RunToFetch>,
    _reserved: Reservation,
}

/// A run to fetch, and a place before which none of its messages that are wanted lies.
pub(super) struct RunToFetch {
    least: Cursor,
    slice: Slice,
    name: RunName,
    /// What it takes in memory, if that is known.
    size: Option<usize>,
}

impl RunToFetch {
    fn new(least: Cursor, slice: Slice, name: RunName) -> Self {
        Self {
            least,
            slice,
            name,
            size: None,
        }
    }

    /// What is to be kept for it.
    fn size(&self, memory: &MemoryAccount) -> usize {
        self.size
            .unwrap_or_else(|| memory.expected_bytes(self.name.count()))
    }
}

impl ShardState {
    pub(super) fn next_prefetch_request(&mut self, wall: Timestamp) -> Option<Load> {
        if matches!(self.prefetch, Prefetch::Idle) {
            let loaded = self.schedule.loaded().due;
            let is_wanted = loaded < wall.plus(PREFETCH_AHEAD_MIN)
                && (!self.memory.is_exhausted() || loaded <= wall);
            if !is_wanted {
                return None;
            }
            let until = wall.plus(PREFETCH_AHEAD).max(self.load_horizon);
            if self.compaction.blocks_load(until) {
                return None;
            }
            // Raised before the list is read: from here on the tail's runs up to it are kept.
            self.load_horizon = until;
            self.prefetch = Prefetch::Listing { until };
            return Some(Load::List {
                from: loaded,
                until,
                limit: LIST_RUNS_MAX,
            });
        }
        let Prefetch::Fetching(fetching) = &mut self.prefetch else {
            return None;
        };
        if fetching.in_flight.is_some() {
            return None;
        }
        if fetching.queue.is_empty() {
            return self.finish_page();
        }
        if self.has_room_for_next_run() {
            self.fetch_request()
        } else {
            None
        }
    }

    /// Whether the next run may be fetched. If nothing that is held goes before it, it may be although it does not fit, so that no shard stands
    /// still whose part is less than a run; but one such run at a time, over all shards.
    fn has_room_for_next_run(&mut self) -> bool {
        let Prefetch::Fetching(fetching) = &self.prefetch else {
            return false;
        };
        let Some(next) = fetching.queue.front() else {
            return true;
        };
        if next.size(&self.memory) <= self.memory.available() {
            return true;
        }
        if self.has_claims() || self.schedule.has_loaded_messages() {
            // What can go before the next run will make room.
            return false;
        }
        self.memory.is_exhausted() && self.shrink_prefetch() || !self.memory.is_over_budget()
    }

    fn fetch_request(&mut self) -> Option<Load> {
        let Prefetch::Fetching(fetching) = &mut self.prefetch else {
            return None;
        };
        let bytes_max = self.memory.available().min(FETCH_BYTES_MAX);
        let (mut runs, mut messages, mut bytes) = (Vec::new(), 0, 0);
        while runs.len() < FETCH_RUNS_MAX
            && messages < FETCH_MESSAGES_MAX
            && let Some(next) = fetching.queue.front()
        {
            let size = next.size(&self.memory);
            if !runs.is_empty() && bytes + size > bytes_max {
                break;
            }
            messages += u64::from(next.name.count());
            bytes += size;
            runs.extend(fetching.queue.pop_front());
        }
        let names = runs
            .iter()
            .map(|wanted| (wanted.slice, wanted.name.clone()))
            .collect();
        fetching.in_flight = Some(FetchInFlight {
            runs,
            _reserved: self.memory.reserve(bytes),
        });
        let keep = if self.memory.is_half_free() && fetching.keep_until == fetching.until {
            Timestamp::MAX
        } else {
            fetching.keep_until
        };
        Some(Load::Fetch {
            runs: names,
            bytes,
            keep_until: keep,
            taken: self.schedule.taken(),
        })
    }

    /// The list is fetched: the next part of it, or done up to what was kept.
    fn finish_page(&mut self) -> Option<Load> {
        let Prefetch::Fetching(fetching) = std::mem::replace(&mut self.prefetch, Prefetch::Idle)
        else {
            return None;
        };
        let Fetching {
            until,
            keep_until: keep,
            next_page: more,
            ..
        } = fetching;
        let Some(from) = more.filter(|from| *from <= keep) else {
            self.mark_loaded_to(first_place_after(keep));
            return None;
        };
        self.mark_loaded_to(Cursor::new(from, Offset(0)).max(self.schedule.loaded()));
        self.prefetch = Prefetch::Listing { until };
        // A page that ends where it began would be the same page again: ask for more of it.
        Some(Load::List {
            from,
            until,
            limit: LIST_RUNS_MAX.max(2 * self.inventory.len()),
        })
    }

    /// Memory is spent in the middle of a fill, and nothing of it goes. What is not needed to deliver what is due next is cut. Answers whether it
    /// is spent all the same: then what is due at one instant takes all of it.
    ///
    /// Runs of a backlog overlap: none of it can go before all of them are read up to the same place. So the bound of this fill is halved
    /// until what lies before it fits.
    fn shrink_prefetch(&mut self) -> bool {
        let Prefetch::Fetching(fetching) = &self.prefetch else {
            return false;
        };
        let Some(next) = fetching.queue.front().map(|wanted| wanted.least) else {
            return true;
        };
        // Late messages must not be cut, for W moves over them. What is due at once is not spread over time: nothing to halve before the epoch.
        let low = next
            .due
            .max(self.schedule.taken().cursor.due)
            .as_millis()
            .max(0);
        let mut keep = fetching.keep_until.as_millis();
        // At one instant it ends: its messages, interleaved, must be in memory together.
        while self.memory.is_exhausted() && keep > low {
            keep = low + (keep - low) / 2;
            self.drop_due_after(Timestamp::from_millis(keep));
        }
        if let Prefetch::Fetching(fetching) = &mut self.prefetch {
            fetching.keep_until = fetching.keep_until.min(Timestamp::from_millis(keep));
        }
        self.memory.is_exhausted()
    }

    /// Drops from memory what is due after `horizon`.
    fn drop_due_after(&mut self, horizon: Timestamp) {
        let inventory = &mut self.inventory;
        self.schedule.trim(first_place_after(horizon), |resident| {
            if let Some(stub) = resident.keep_until(horizon) {
                inventory.mark_unloaded_from(resident.run.name(), stub);
            }
        });
    }

    pub(super) fn on_list_reply(&mut self, runs: Vec<RunEntry>, more: bool) {
        let Prefetch::Listing { until } = self.prefetch else {
            return;
        };
        let more = if more {
            runs.last().map(|listing| listing.least_due)
        } else {
            None
        };
        let unknown = runs
            .into_iter()
            .filter(|listing| !self.inventory.contains(&listing.name));
        let mut queue: Vec<_> = unknown
            .map(
                |RunEntry {
                     slice,
                     name,
                     least_due,
                 }| {
                    RunToFetch::new(Cursor::new(least_due, name.least_offset()), slice, name)
                },
            )
            .collect();
        while let Some((due, slice, name)) = self.inventory.pop_partial(until) {
            queue.push(RunToFetch::new(Cursor::new(due, Offset(0)), slice, name));
        }
        // With late messages in memory by offset, W can move over them before all of the backlog is loaded.
        let taken = self.schedule.taken().cursor.due;
        let late = if more.is_some_and(|more| more <= taken) {
            0
        } else {
            queue
                .iter()
                .filter(|wanted| wanted.least.due <= taken)
                .count()
        };
        let by_offset = |wanted: &RunToFetch| {
            (late > 0 && wanted.least.due <= taken).then(|| wanted.name.least_offset())
        };
        queue.sort_by_key(|wanted| (by_offset(wanted).is_none(), by_offset(wanted), wanted.least));
        self.prefetch = Prefetch::Fetching(Fetching {
            queue: queue.into(),
            until,
            keep_until: until,
            next_page: more,
            late_runs: late,
            in_flight: None,
        });
    }

    /// Everything before `bound` was merged - but for what was cut meanwhile by an older bound than this fill's.
    fn mark_loaded_to(&mut self, bound: Cursor) {
        let stub = self
            .inventory
            .first_unloaded_due()
            .map(|due| Cursor::new(due, Offset(0)));
        self.schedule
            .set_loaded(stub.map_or(bound, |stub| bound.min(stub)));
    }

    /// The runs that were asked for were merged, but for those of which is told what they would take: there was less room than that.
    pub(super) fn on_fetch_reply(
        &mut self,
        mut missing: Vec<(Slice, RunName)>,
        left: Vec<usize>,
        now: Instant,
    ) {
        let Prefetch::Fetching(fetching) = &mut self.prefetch else {
            return;
        };
        let Some(FetchInFlight { mut runs, .. }) = fetching.in_flight.take() else {
            return;
        };
        let rest = runs.split_off(runs.len().saturating_sub(left.len()));
        fetching.late_runs = fetching.late_runs.saturating_sub(runs.len());
        for (wanted, size) in rest.into_iter().zip(left).rev() {
            fetching.queue.push_front(RunToFetch {
                size: Some(size),
                ..wanted
            });
        }
        missing.retain(|(_, name)| !self.inventory.remove_if_replaced(name));
        if missing.is_empty() {
            self.missing_runs.clear();
            match fetching.queue.front() {
                Some(wanted) if fetching.late_runs > 0 => self
                    .schedule
                    .advance_late_loaded(wanted.name.least_offset()),
                Some(wanted) => {
                    let bound = wanted.least.max(self.schedule.loaded());
                    self.mark_loaded_to(bound);
                }
                None => {}
            }
            return;
        }
        // Nobody else deletes or replaces runs: the store went back, and may hold what it held before in runs that are not known here.
        for run in missing.iter().filter(|run| self.missing_runs.contains(run)) {
            tracing::error!(shard = %self.lease.shard, run = %run.1, messages = run.1.count(), "a stored run has lost its bytes: it is set aside");
            self.unreadable_runs.push(run.clone());
        }
        self.missing_runs = missing;
        tracing::warn!(shard = %self.lease.shard, "a run is not in the store any more: loading again");
        self.reload(self.schedule.taken(), self.schedule.seen(), now);
    }
}

/// The first place after everything that is due up to `due`.
fn first_place_after(due: Timestamp) -> Cursor {
    Cursor::new(due.plus(Duration::from_millis(1)), Offset(0))
}

#[cfg(test)]
mod tests {
    use super::super::flying::ClaimedBatch;
    use super::super::load::MemoryBudget;
    use super::super::load::{FetchBounds as Bounds, LoadResult, ReadOutcome, fetch_result};
    use super::*;
    use crate::limit::{CLAIM_MESSAGES_MAX, LATE_CLAIM_INTERVAL, USUAL_RUN_MEMORY_BYTES};
    use crate::model::{Body, Disposition, Headers, Level, Watermark};
    use crate::run::{RunDecoder, RunEncoder, record};
    use crate::store::Lineage;
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const RUNS: u64 = 64;
    const RUN_MESSAGES: u64 = 500;
    const WALL: Timestamp = Timestamp::from_millis(1_000_000_000);
    const SLICE: Slice = Slice {
        level: Level::Hour,
        start: 0,
    };

    /// What a shard has waiting; its messages are due in the order of their offsets.
    struct Backlog {
        runs: BTreeMap<RunName, Bytes>,
        count: u64,
    }

    impl Backlog {
        /// Of messages of so many bytes: in each run those at the offsets that are given.
        fn new(recipe: &Recipe) -> Self {
            let (mut backlog, mut encoder) = (
                Self {
                    runs: BTreeMap::new(),
                    count: 0,
                },
                RunEncoder::new(),
            );
            for (number, (offsets, size)) in recipe.iter().enumerate() {
                let payload = vec![b'x'; *size];
                let headers = Headers::from_block(&[]);
                let (id, target, dialect, disposition) = (None, None, None, Disposition::Deliver);
                let mut bytes = Vec::new();
                record::encode(
                    &Body {
                        key: None,
                        payload: Some(&payload),
                        headers,
                        id,
                        target,
                        dialect,
                        disposition,
                    },
                    &mut bytes,
                );
                let place = |offset: &u64| {
                    Cursor::new(Timestamp::from_millis(*offset as i64), Offset(*offset))
                };
                let name =
                    RunName::new(format!("1-{number:x}-{:x}-{:x}", offsets.len(), offsets[0]));
                let run = encoder
                    .encode(offsets.iter().map(|offset| (place(offset), &bytes[..])))
                    .1;
                backlog.runs.insert(name, run);
                backlog.count += offsets.len() as u64;
            }
            backlog
        }

        /// What each run takes in memory.
        fn held(&self) -> impl Iterator<Item = usize> {
            self.runs.iter().map(|(name, bytes)| {
                RunDecoder::new()
                    .decode(name.clone(), SLICE, bytes)
                    .unwrap()
                    .memory_size()
            })
        }

        fn answer(&self, what: Load, fetched: &mut usize) -> LoadResult {
            let watermark = Watermark(self.count);
            match what {
                Load::Tail { .. } => LoadResult::Tail {
                    watermark,
                    seen: watermark,
                    history: Lineage::default(),
                    runs: Vec::new(),
                },
                Load::List { from, until, .. } => {
                    let least_due =
                        |name: &RunName| Timestamp::from_millis(name.least_offset().0 as i64);
                    let listings = self.runs.keys().map(|name| RunEntry {
                        slice: SLICE,
                        name: name.clone(),
                        least_due: least_due(name),
                    });
                    LoadResult::List {
                        watermark,
                        history: Lineage::default(),
                        runs: listings
                            .filter(|run| (from..=until).contains(&run.least_due))
                            .collect(),
                        more: false,
                    }
                }
                Load::Fetch {
                    runs,
                    bytes,
                    keep_until: keep,
                    taken,
                } => {
                    *fetched += runs.len();
                    let blobs = runs
                        .iter()
                        .map(|(_, name)| self.runs.get(name).cloned())
                        .collect();
                    fetch_result(
                        &runs,
                        blobs,
                        Bounds {
                            bytes_max: bytes,
                            keep_until: keep,
                            taken,
                        },
                        &mut RunDecoder::new(),
                    )
                }
            }
        }
    }

    /// Takes what is due, at most so many claims of it, and settles it. Answers the offsets.
    fn deliver(work: &mut ShardState, now: &mut Instant, claims: usize) -> Vec<u64> {
        let mut delivered = Vec::new();
        for _ in 0..claims {
            let Some(take) = work.take_due(
                WALL,
                *now,
                CLAIM_MESSAGES_MAX,
                (Duration::ZERO, Duration::ZERO),
            ) else {
                break;
            };
            let aloft = ClaimedBatch::new(take.messages, Vec::new());
            delivered.extend((0..aloft.messages.len()).map(|index| aloft.place(index).offset.0));
            work.in_flight.push(take.claim, 0, aloft);
            work.finish_batches(|_, _| ());
            *now += LATE_CLAIM_INTERVAL;
        }
        delivered
    }

    #[test]
    fn a_backlog_of_ten_times_the_budget_passes_through_it_in_order() {
        let backlog = Backlog::new(&overlapping(RUNS, RUN_MESSAGES, 100));
        let whole: usize = backlog.held().sum();
        let (budget, run) = (whole / 10, whole / RUNS as usize);
        let memory = MemoryBudget::new(budget);
        let mut work = ShardState::for_test(1, &memory, Watermark(backlog.count));
        let (mut now, mut delivered, mut most, mut fetched) = (Instant::now(), Vec::new(), 0, 0);
        while delivered.len() < backlog.count as usize {
            let before = (delivered.len(), fetched);
            while let Some(what) = work.next_request(WALL, now, false) {
                work.on_load_reply(backlog.answer(what, &mut fetched), now);
                most = most.max(memory.used_bytes());
            }
            delivered.extend(deliver(&mut work, &mut now, usize::MAX));
            now += LATE_CLAIM_INTERVAL;
            assert_ne!((delivered.len(), fetched), before, "it goes on");
        }
        assert!(
            delivered.iter().copied().eq(0..backlog.count),
            "in the order in which they were due"
        );
        assert!(
            most <= budget + run,
            "{most} bytes were held of a budget of {budget}"
        );
        assert!(
            fetched <= 2 * 10 * RUNS as usize,
            "{fetched} fetches of {RUNS} runs: each time half of the budget goes, or more"
        );
    }

    #[test]
    fn a_run_that_is_larger_than_was_thought_is_left_until_there_is_room_for_it_and_the_rest_with_it()
     {
        let sizes = [100, 100, 90_000, 100];
        let backlog = Backlog::new(
            &(0..)
                .zip(sizes)
                .map(|(run, size)| ((run * 10..run * 10 + 10).collect(), size))
                .collect(),
        );
        let memory = MemoryBudget::new(1 << 30);
        let mut work = ShardState::for_test(1, &memory, Watermark(backlog.count));
        let (now, mut fetched) = (Instant::now(), 0);
        let (name, bytes) = backlog.runs.iter().next().expect("four runs");
        let (known, watermark) = (
            RunDecoder::new()
                .decode(name.clone(), SLICE, bytes)
                .unwrap(),
            Watermark(backlog.count),
        );
        work.on_load_reply(
            LoadResult::Tail {
                watermark,
                seen: watermark,
                history: Lineage::default(),
                runs: vec![ReadOutcome::Loaded(known)],
            },
            now,
        );
        let list = work
            .next_request(WALL, now, false)
            .expect("it is not loaded");
        work.on_load_reply(backlog.answer(list, &mut fetched), now);
        let mut asked = || {
            let before = memory.used_bytes();
            let Some(Load::Fetch {
                runs,
                bytes,
                keep_until: keep,
                taken,
            }) = work.next_request(WALL, now, false)
            else {
                return None;
            };
            let (count, what) = (
                runs.len(),
                Load::Fetch {
                    runs,
                    bytes,
                    keep_until: keep,
                    taken,
                },
            );
            work.on_load_reply(backlog.answer(what, &mut fetched), now);
            assert!(
                memory.used_bytes() <= before + bytes,
                "{} bytes came, {bytes} were kept",
                memory.used_bytes() - before
            );
            Some(count)
        };
        assert_eq!((asked(), asked(), asked()), (Some(3), Some(2), None));
        assert_eq!(deliver(&mut work, &mut Instant::now(), 9).len(), 40);
    }

    type Recipe = Vec<(Vec<u64>, usize)>;

    /// Every run reaches over all of the time: the first message of each is due before the second of any.
    fn overlapping(runs: u64, messages: u64, size: usize) -> Recipe {
        (0..runs)
            .map(|run| ((0..messages).map(|at| at * runs + run).collect(), size))
            .collect()
    }

    fn recipe() -> impl Strategy<Value = Recipe> {
        let run = (1..40_u64, prop::sample::select(&[100_usize, 1_000, 20_000]));
        let uneven = prop::collection::vec(run, 1..10).prop_map(|runs| {
            let ends = runs.iter().scan(0, |end, (messages, _)| {
                *end += messages;
                Some(*end)
            });
            ends.zip(&runs)
                .map(|(end, (messages, size))| ((end - messages..end).collect(), *size))
                .collect()
        });
        let even = (
            1..10_u64,
            1..40_u64,
            prop::sample::select(&[100_usize, 20_000]),
        );
        prop_oneof![
            uneven,
            even.prop_map(|(runs, messages, size)| overlapping(runs, messages, size))
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn backlogs_of_many_shards_and_sizes_pass_through_the_budget_at_once_with_one_run_beyond_it(
            recipes in prop::collection::vec(recipe(), 1..40),
            part in 2..20_usize,
        ) {
            let backlogs: Vec<_> = recipes.iter().map(Backlog::new).collect();
            let (whole, run) = backlogs.iter().flat_map(Backlog::held).fold((0, 0), |(sum, most), held| (sum + held, held.max(most)));
            // Two messages of each shard fit into its part.
            let (budget, expected) = (whole / part + 100_000 * backlogs.len(), run.max(USUAL_RUN_MEMORY_BYTES));
            let memory = MemoryBudget::new(budget);
            let begun = |(number, backlog): (usize, &Backlog)| ShardState::for_test(number as u16, &memory, Watermark(backlog.count));
            let mut works: Vec<_> = backlogs.iter().enumerate().map(begun).collect();
            let mut delivered = vec![Vec::new(); works.len()];
            let (mut now, mut fetched, mut rounds) = (Instant::now(), 0, 0);
            while delivered.iter().zip(&backlogs).any(|(offsets, backlog)| offsets.len() < backlog.count as usize) {
                // All of them ask before any is answered.
                let asked: Vec<_> = works.iter_mut().map(|work| work.next_request(WALL, now, false)).collect();
                prop_assert!(memory.used_and_reserved() <= budget + expected, "{} of {budget}", memory.used_and_reserved());
                for (at, what) in asked.into_iter().enumerate() {
                    if let Some(what) = what {
                        works[at].on_load_reply(backlogs[at].answer(what, &mut fetched), now);
                    }
                    prop_assert!(memory.used_bytes() <= budget + run, "{} of {budget}, and {run} a run", memory.used_bytes());
                }
                works.iter_mut().zip(&mut delivered).for_each(|(work, offsets)| offsets.extend(deliver(work, &mut now, 1)));
                now += LATE_CLAIM_INTERVAL;
                rounds += 1;
                prop_assert!(rounds < 20_000, "it goes on");
            }
            for (offsets, backlog) in delivered.iter().zip(&backlogs) {
                prop_assert!(offsets.iter().copied().eq(0..backlog.count), "in the order in which they were due");
            }
        }
    }
}
