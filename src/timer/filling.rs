//! The lane that loads what a shard has up to its horizon: lists the runs, fetches them by least place, and keeps within the memory that
//! there is.

use super::loader::What;
use super::memory::{Account, Reserved};
use super::work::Work;
use crate::limit::{
    FETCH_BYTES_MAX, FETCH_MESSAGES_MAX, FETCH_RUNS_MAX, LIST_MAX, LOOKAHEAD, LOOKAHEAD_LEAST,
};
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
    under_way: Option<UnderWay>,
}

/// What is being fetched, and the memory that is kept for it.
struct UnderWay {
    runs: Vec<Wanted>,
    _reserved: Reserved,
}

/// A run to fetch, and a place before which none of its messages that are wanted lies.
pub(super) struct Wanted {
    least: Cursor,
    slice: Slice,
    name: Name,
    /// What it takes in memory, if that is known.
    size: Option<usize>,
}

impl Wanted {
    fn new(least: Cursor, slice: Slice, name: Name) -> Self {
        Self {
            least,
            slice,
            name,
            size: None,
        }
    }

    /// What is to be kept for it.
    fn size(&self, memory: &Account) -> usize {
        self.size
            .unwrap_or_else(|| memory.expected(self.name.count()))
    }
}

impl Work {
    pub(super) fn next_fill(&mut self, wall: Timestamp) -> Option<What> {
        if matches!(self.fill, Fill::Idle) {
            let loaded = self.schedule.loaded().due;
            let is_wanted =
                loaded < wall.plus(LOOKAHEAD_LEAST) && (!self.memory.is_spent() || loaded <= wall);
            if !is_wanted {
                return None;
            }
            let until = wall.plus(LOOKAHEAD).max(self.horizon);
            if self.rewriting.bars(until) {
                return None;
            }
            // Raised before the list is read: from here on the tail's runs up to it are kept.
            self.horizon = until;
            self.fill = Fill::Listing { until };
            return Some(What::List {
                from: loaded,
                until,
                limit: LIST_MAX,
            });
        }
        let Fill::Fetching(fetching) = &mut self.fill else {
            return None;
        };
        if fetching.under_way.is_some() {
            return None;
        }
        if fetching.queue.is_empty() {
            return self.filled();
        }
        if self.has_room() { self.fetch() } else { None }
    }

    /// Whether the next run may be fetched. If nothing that is held goes before it, it may be although it does not fit, so that no shard stands
    /// still whose part is less than a run; but one such run at a time, over all shards.
    fn has_room(&mut self) -> bool {
        let Fill::Fetching(fetching) = &self.fill else {
            return false;
        };
        let Some(next) = fetching.queue.front() else {
            return true;
        };
        if next.size(&self.memory) <= self.memory.room() {
            return true;
        }
        if self.has_claims() || self.schedule.holds_loaded() {
            // What can go before the next run will make room.
            return false;
        }
        self.memory.is_spent() && self.make_room() || !self.memory.is_overdrawn()
    }

    fn fetch(&mut self) -> Option<What> {
        let Fill::Fetching(fetching) = &mut self.fill else {
            return None;
        };
        let bytes_max = self.memory.room().min(FETCH_BYTES_MAX);
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
        fetching.under_way = Some(UnderWay {
            runs,
            _reserved: self.memory.reserve(bytes),
        });
        let keep = if self.memory.is_ample() && fetching.keep == fetching.until {
            Timestamp::MAX
        } else {
            fetching.keep
        };
        Some(What::Fetch {
            runs: names,
            bytes,
            keep,
            taken: self.schedule.taken(),
        })
    }

    /// The list is fetched: the next part of it, or done up to what was kept.
    fn filled(&mut self) -> Option<What> {
        let Fill::Fetching(fetching) = std::mem::replace(&mut self.fill, Fill::Idle) else {
            return None;
        };
        let Fetching {
            until, keep, more, ..
        } = fetching;
        let Some(from) = more.filter(|from| *from <= keep) else {
            self.reach(after(keep));
            return None;
        };
        self.reach(Cursor::new(from, Offset(0)).max(self.schedule.loaded()));
        self.fill = Fill::Listing { until };
        // A page that ends where it began would be the same page again: ask for more of it.
        Some(What::List {
            from,
            until,
            limit: LIST_MAX.max(2 * self.inventory.len()),
        })
    }

    /// Memory is spent in the middle of a fill, and nothing of it goes. What is not needed to deliver what is due next is cut. Answers whether it
    /// is spent all the same: then what is due at one instant takes all of it.
    ///
    /// Runs of a backlog overlap: none of it can go before all of them are read up to the same place. So the bound of this fill is halved
    /// until what lies before it fits.
    fn make_room(&mut self) -> bool {
        let Fill::Fetching(fetching) = &self.fill else {
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
        let mut keep = fetching.keep.as_millis();
        // At one instant it ends: its messages, interleaved, must be in memory together.
        while self.memory.is_spent() && keep > low {
            keep = low + (keep - low) / 2;
            self.trim(Timestamp::from_millis(keep));
        }
        if let Fill::Fetching(fetching) = &mut self.fill {
            fetching.keep = fetching.keep.min(Timestamp::from_millis(keep));
        }
        self.memory.is_spent()
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
        let Fill::Listing { until } = self.fill else {
            return;
        };
        let more = if more {
            runs.last().map(|listing| listing.least_due)
        } else {
            None
        };
        let unknown = runs
            .into_iter()
            .filter(|listing| !self.inventory.knows(&listing.name));
        let mut queue: Vec<_> = unknown
            .map(
                |Listing {
                     slice,
                     name,
                     least_due,
                 }| {
                    Wanted::new(Cursor::new(least_due, name.least_offset()), slice, name)
                },
            )
            .collect();
        while let Some((due, slice, name)) = self.inventory.pop_stub(until) {
            queue.push(Wanted::new(Cursor::new(due, Offset(0)), slice, name));
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
        let by_offset = |wanted: &Wanted| {
            (late > 0 && wanted.least.due <= taken).then(|| wanted.name.least_offset())
        };
        queue.sort_by_key(|wanted| (by_offset(wanted).is_none(), by_offset(wanted), wanted.least));
        self.fill = Fill::Fetching(Fetching {
            queue: queue.into(),
            until,
            keep: until,
            more,
            late,
            under_way: None,
        });
    }

    /// Everything before `bound` was merged - but for what was cut meanwhile by an older bound than this fill's.
    fn reach(&mut self, bound: Cursor) {
        let stub = self
            .inventory
            .first_stub()
            .map(|due| Cursor::new(due, Offset(0)));
        self.schedule
            .load_reached(stub.map_or(bound, |stub| bound.min(stub)));
    }

    /// The runs that were asked for were merged, but for those of which is told what they would take: there was less room than that.
    pub(super) fn fetched(
        &mut self,
        mut missing: Vec<(Slice, Name)>,
        left: Vec<usize>,
        now: Instant,
    ) {
        let Fill::Fetching(fetching) = &mut self.fill else {
            return;
        };
        let Some(UnderWay { mut runs, .. }) = fetching.under_way.take() else {
            return;
        };
        let rest = runs.split_off(runs.len().saturating_sub(left.len()));
        fetching.late = fetching.late.saturating_sub(runs.len());
        for (wanted, size) in rest.into_iter().zip(left).rev() {
            fetching.queue.push_front(Wanted {
                size: Some(size),
                ..wanted
            });
        }
        missing.retain(|(_, name)| !self.inventory.forget_replaced(name));
        if missing.is_empty() {
            self.missing.clear();
            match fetching.queue.front() {
                Some(wanted) if fetching.late > 0 => {
                    self.schedule.late_reached(wanted.name.least_offset())
                }
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
    use super::super::loader::{Answer, Read, Wanted as Bounds, fetch_answer};
    use super::super::memory::Memory;
    use super::*;
    use crate::limit::{CLAIM_MAX, CLAIM_PACE, RUN_HELD_USUAL};
    use crate::model::{Body, Disposition, Headers, Level, Watermark};
    use crate::run::{Decoder, Encoder, record};
    use crate::store::History;
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
        runs: BTreeMap<Name, Bytes>,
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
                Encoder::new(),
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
                let name = Name::new(format!("1-{number:x}-{:x}-{:x}", offsets.len(), offsets[0]));
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
                Decoder::new()
                    .decode(name.clone(), SLICE, bytes)
                    .unwrap()
                    .bytes_held()
            })
        }

        fn answer(&self, what: What, fetched: &mut usize) -> Answer {
            let watermark = Watermark(self.count);
            match what {
                What::Tail { .. } => Answer::Tail {
                    watermark,
                    seen: watermark,
                    history: History::default(),
                    runs: Vec::new(),
                },
                What::List { from, until, .. } => {
                    let least_due =
                        |name: &Name| Timestamp::from_millis(name.least_offset().0 as i64);
                    let listings = self.runs.keys().map(|name| Listing {
                        slice: SLICE,
                        name: name.clone(),
                        least_due: least_due(name),
                    });
                    Answer::List {
                        watermark,
                        history: History::default(),
                        runs: listings
                            .filter(|run| (from..=until).contains(&run.least_due))
                            .collect(),
                        more: false,
                    }
                }
                What::Fetch {
                    runs,
                    bytes,
                    keep,
                    taken,
                } => {
                    *fetched += runs.len();
                    let blobs = runs
                        .iter()
                        .map(|(_, name)| self.runs.get(name).cloned())
                        .collect();
                    fetch_answer(
                        &runs,
                        blobs,
                        Bounds { bytes, keep, taken },
                        &mut Decoder::new(),
                    )
                }
            }
        }
    }

    /// Takes what is due, at most so many claims of it, and settles it. Answers the offsets.
    fn deliver(work: &mut Work, now: &mut Instant, claims: usize) -> Vec<u64> {
        let mut delivered = Vec::new();
        for _ in 0..claims {
            let Some(take) = work.take(WALL, *now, CLAIM_MAX, (Duration::ZERO, Duration::ZERO))
            else {
                break;
            };
            let aloft = Aloft::new(take.messages, Vec::new());
            delivered.extend((0..aloft.messages.len()).map(|index| aloft.place(index).offset.0));
            work.flights.take_off(take.claim, 0, aloft);
            work.land(|_, _| ());
            *now += CLAIM_PACE;
        }
        delivered
    }

    #[test]
    fn a_backlog_of_ten_times_the_budget_passes_through_it_in_order() {
        let backlog = Backlog::new(&overlapping(RUNS, RUN_MESSAGES, 100));
        let whole: usize = backlog.held().sum();
        let (budget, run) = (whole / 10, whole / RUNS as usize);
        let memory = Memory::new(budget);
        let mut work = Work::begun(1, &memory, Watermark(backlog.count));
        let (mut now, mut delivered, mut most, mut fetched) = (Instant::now(), Vec::new(), 0, 0);
        while delivered.len() < backlog.count as usize {
            let before = (delivered.len(), fetched);
            while let Some(what) = work.next_request(WALL, now, false) {
                work.take_in(backlog.answer(what, &mut fetched), now);
                most = most.max(memory.used());
            }
            delivered.extend(deliver(&mut work, &mut now, usize::MAX));
            now += CLAIM_PACE;
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
        let memory = Memory::new(1 << 30);
        let mut work = Work::begun(1, &memory, Watermark(backlog.count));
        let (now, mut fetched) = (Instant::now(), 0);
        let (name, bytes) = backlog.runs.iter().next().expect("four runs");
        let (known, watermark) = (
            Decoder::new().decode(name.clone(), SLICE, bytes).unwrap(),
            Watermark(backlog.count),
        );
        work.take_in(
            Answer::Tail {
                watermark,
                seen: watermark,
                history: History::default(),
                runs: vec![Read::Run(known)],
            },
            now,
        );
        let list = work
            .next_request(WALL, now, false)
            .expect("it is not loaded");
        work.take_in(backlog.answer(list, &mut fetched), now);
        let mut asked = || {
            let before = memory.used();
            let Some(What::Fetch {
                runs,
                bytes,
                keep,
                taken,
            }) = work.next_request(WALL, now, false)
            else {
                return None;
            };
            let (count, what) = (
                runs.len(),
                What::Fetch {
                    runs,
                    bytes,
                    keep,
                    taken,
                },
            );
            work.take_in(backlog.answer(what, &mut fetched), now);
            assert!(
                memory.used() <= before + bytes,
                "{} bytes came, {bytes} were kept",
                memory.used() - before
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
            let (budget, expected) = (whole / part + 100_000 * backlogs.len(), run.max(RUN_HELD_USUAL));
            let memory = Memory::new(budget);
            let begun = |(number, backlog): (usize, &Backlog)| Work::begun(number as u16, &memory, Watermark(backlog.count));
            let mut works: Vec<_> = backlogs.iter().enumerate().map(begun).collect();
            let mut delivered = vec![Vec::new(); works.len()];
            let (mut now, mut fetched, mut rounds) = (Instant::now(), 0, 0);
            while delivered.iter().zip(&backlogs).any(|(offsets, backlog)| offsets.len() < backlog.count as usize) {
                // All of them ask before any is answered.
                let asked: Vec<_> = works.iter_mut().map(|work| work.next_request(WALL, now, false)).collect();
                prop_assert!(memory.taken() <= budget + expected, "{} of {budget}", memory.taken());
                for (at, what) in asked.into_iter().enumerate() {
                    if let Some(what) = what {
                        works[at].take_in(backlogs[at].answer(what, &mut fetched), now);
                    }
                    prop_assert!(memory.used() <= budget + run, "{} of {budget}, and {run} a run", memory.used());
                }
                works.iter_mut().zip(&mut delivered).for_each(|(work, offsets)| offsets.extend(deliver(work, &mut now, 1)));
                now += CLAIM_PACE;
                rounds += 1;
                prop_assert!(rounds < 20_000, "it goes on");
            }
            for (offsets, backlog) in delivered.iter().zip(&backlogs) {
                prop_assert!(offsets.iter().copied().eq(0..backlog.count), "in the order in which they were due");
            }
        }
    }
}
