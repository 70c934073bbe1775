//! Loads the runs of a shard up to a horizon: lists them, fetches them in order, and keeps within
//! the memory budget.

use super::compaction::CompactionScan;
use super::load::{ResidentRuns, first_position_after};
use crate::limit::{FETCH_RUNS_MAX, LIST_RUNS_MAX, PREFETCH_AHEAD, PREFETCH_AHEAD_MIN};
use crate::model::{Cursor, Offset, ShardId, Slice, Timestamp};
use crate::run::RunName;
use crate::store::{Fetch, List, RunEntry};
use crate::timer::load::{FetchLoad, Load, MemoryAccount, Reservation};
use std::collections::VecDeque;

pub(crate) struct Prefetch {
    phase: Phase,
    /// Runs that begin at this due time or before are requested. Appended messages up to it are
    /// kept in memory.
    pub(crate) horizon: Timestamp,
}

enum Phase {
    Idle,
    Listing { until: Timestamp },
    Fetching(Fetching),
}

struct Fetching {
    queue: VecDeque<RunToFetch>,
    until: Timestamp,
    /// Messages that are due later stay in the store. Lower than `until` if memory is short.
    keep_until: Timestamp,
    /// The list was incomplete and continues at this due time.
    next_page: Option<Timestamp>,
    /// Number of runs at the head of the queue that may hold late messages. They are fetched in
    /// order of their least offsets, the others in order of their least positions.
    late_runs: usize,
    /// The runs of the current fetch, and the memory reserved for them.
    in_flight: Option<(Vec<RunToFetch>, Reservation)>,
    /// The next run cannot be read by this version, so nothing more is fetched.
    is_stopped: bool,
}

struct RunToFetch {
    /// The least position of the run's wanted messages, or a lower one.
    least: Cursor,
    slice: Slice,
    name: RunName,
    /// Its size in memory, if known.
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

    fn size(&self, memory: &MemoryAccount) -> usize {
        self.size
            .unwrap_or_else(|| memory.expected_bytes(self.name.count()))
    }
}

impl Prefetch {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            horizon: Timestamp::AT_ONCE,
        }
    }

    /// Everything in memory was dropped: list the runs again.
    pub(super) fn restart(&mut self) {
        self.phase = Phase::Idle;
    }

    /// Fetches no more runs until a restart: this version cannot read the next one.
    pub(super) fn stop(&mut self) {
        if let Phase::Fetching(fetching) = &mut self.phase {
            fetching.is_stopped = true;
        }
    }

    /// Returns the next request for the loader. `has_claims`: messages are in flight.
    pub(super) fn next_request(
        &mut self,
        shard: &ShardId,
        runs: &mut ResidentRuns,
        compaction: &CompactionScan,
        wall: Timestamp,
        has_claims: bool,
    ) -> Option<Load> {
        match &mut self.phase {
            Phase::Idle => self.start_listing(shard, runs, compaction, wall),
            Phase::Listing { .. } => None,
            Phase::Fetching(fetching) if fetching.in_flight.is_some() || fetching.is_stopped => {
                None
            }
            Phase::Fetching(fetching) if fetching.queue.is_empty() => {
                let (until, next_page) = (fetching.until, fetching.finish_page(runs));
                self.phase = Phase::Idle;
                // A page that ends where it began would come again with the same limit.
                let limit = LIST_RUNS_MAX.max(2 * runs.index.len());
                self.list(shard, next_page?, until, limit)
            }
            Phase::Fetching(fetching) => fetching
                .has_room_for_next_run(runs, has_claims)
                .then(|| fetching.fetch(shard, runs)),
        }
    }

    fn start_listing(
        &mut self,
        shard: &ShardId,
        runs: &ResidentRuns,
        compaction: &CompactionScan,
        wall: Timestamp,
    ) -> Option<Load> {
        let loaded = runs.schedule.loaded().due;
        let is_short = loaded < wall.plus(PREFETCH_AHEAD_MIN);
        let may_load = !runs.memory.is_exhausted() || loaded <= wall;
        let until = wall.plus(PREFETCH_AHEAD).max(self.horizon);
        if !is_short || !may_load || compaction.blocks_load(until) {
            return None;
        }
        // Raised before the list is read: from now on appended messages up to it are kept.
        self.horizon = until;
        self.list(shard, loaded, until, LIST_RUNS_MAX)
    }

    fn list(
        &mut self,
        shard: &ShardId,
        from: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Option<Load> {
        self.phase = Phase::Listing { until };
        Some(Load::List(List {
            shard: shard.clone(),
            from,
            until,
            limit,
        }))
    }

    pub(super) fn on_list_reply(
        &mut self,
        runs: &mut ResidentRuns,
        listed: Vec<RunEntry>,
        has_more: bool,
    ) {
        let Phase::Listing { until } = self.phase else {
            return;
        };
        let next_page = listed.last().filter(|_| has_more).map(|run| run.least_due);
        let mut queue = Vec::new();
        for RunEntry {
            slice,
            name,
            least_due,
        } in listed
        {
            if !runs.index.contains(&name) {
                let least = Cursor::new(least_due, name.least_offset());
                queue.push(RunToFetch::new(least, slice, name));
            }
        }
        while let Some((due, slice, name)) = runs.index.pop_partial(until) {
            queue.push(RunToFetch::new(Cursor::new(due, Offset(0)), slice, name));
        }
        // Late messages are fetched in order of their offsets, so that W can move over them before
        // the whole backlog is loaded.
        let taken = runs.schedule.taken().cursor.due;
        let lists_all_late = next_page.is_none_or(|due| due > taken);
        let is_late = |run: &RunToFetch| lists_all_late && run.least.due <= taken;
        queue.sort_by_key(|run| {
            let late_offset = is_late(run).then(|| run.name.least_offset());
            (late_offset.is_none(), late_offset, run.least)
        });
        self.phase = Phase::Fetching(Fetching {
            late_runs: queue.iter().filter(|run| is_late(run)).count(),
            queue: queue.into(),
            until,
            keep_until: until,
            next_page,
            in_flight: None,
            is_stopped: false,
        });
    }

    /// The requested runs were added, except the last ones, whose sizes are in `left`: they did not
    /// fit into the reserved memory.
    pub(super) fn on_fetch_reply(&mut self, loaded: &mut ResidentRuns, left: Vec<usize>) {
        let Phase::Fetching(fetching) = &mut self.phase else {
            return;
        };
        let Some((mut runs, _)) = fetching.in_flight.take() else {
            return;
        };
        let rest = runs.split_off(runs.len().saturating_sub(left.len()));
        fetching.late_runs = fetching.late_runs.saturating_sub(runs.len());
        for (mut run, size) in rest.into_iter().zip(left).rev() {
            run.size = Some(size);
            fetching.queue.push_front(run);
        }
        if let Some(next) = fetching.queue.front() {
            if fetching.late_runs > 0 {
                let bound = next.name.least_offset();
                loaded.schedule.advance_late_loaded(bound);
            } else {
                loaded.mark_loaded_to(next.least.max(loaded.schedule.loaded()));
            }
        }
    }
}

impl Fetching {
    /// True if the next run may be fetched. If no message in memory can go out before it, the run
    /// may exceed the shard's part of the memory, or the shard would stop. All shards together may
    /// have one such run at a time.
    fn has_room_for_next_run(&mut self, runs: &mut ResidentRuns, has_claims: bool) -> bool {
        let Some(next) = self.queue.front() else {
            return true;
        };
        if next.size(&runs.memory) <= runs.memory.available() {
            return true;
        }
        if has_claims || runs.schedule.has_loaded_messages() {
            // Messages in memory go out first and free memory.
            return false;
        }
        if runs.memory.is_exhausted() {
            let least = next.least.due;
            self.shrink(runs, least);
            if runs.memory.is_exhausted() {
                // The messages of one instant need all of the memory.
                return true;
            }
        }
        !runs.memory.is_over_budget()
    }

    /// Memory is exhausted and nothing in it can be delivered yet. Drops the messages that are due
    /// last. The next run begins at `least`.
    ///
    /// The runs of a backlog overlap. No message may go out before all of them are loaded up to its
    /// position. So the bound is halved until everything before it fits. Only messages of one
    /// instant that are spread over several runs must be in memory together.
    fn shrink(&mut self, runs: &mut ResidentRuns, least: Timestamp) {
        // Late messages must stay, because W moves over them. Messages that are due at once are not
        // spread over time, so the bound does not go below the epoch.
        let taken = runs.schedule.taken().cursor.due;
        let low = least.max(taken).as_millis().max(0);
        let mut keep = self.keep_until.as_millis();
        while runs.memory.is_exhausted() && keep > low {
            keep = low + (keep - low) / 2;
            runs.drop_due_after(Timestamp::from_millis(keep));
        }
        self.keep_until = self.keep_until.min(Timestamp::from_millis(keep));
    }

    fn fetch(&mut self, shard: &ShardId, loaded: &ResidentRuns) -> Load {
        let memory = &loaded.memory;
        let reserved_max = memory.fetchable();
        let mut runs = Vec::new();
        let mut bytes_max = 0;
        while runs.len() < FETCH_RUNS_MAX
            && let Some(next) = self.queue.pop_front_if(|next| {
                runs.is_empty() || bytes_max + next.size(memory) <= reserved_max
            })
        {
            bytes_max += next.size(memory);
            runs.push(next);
        }
        let names = runs.iter().map(|run| (run.slice, run.name.clone()));
        let is_cut = self.keep_until < self.until;
        let load = FetchLoad {
            call: Fetch {
                shard: shard.clone(),
                runs: names.collect(),
            },
            bytes_max,
            keep_until: if is_cut {
                self.keep_until
            } else {
                memory.keep_until(self.until)
            },
            taken: loaded.schedule.taken(),
        };
        self.in_flight = Some((runs, memory.reserve(bytes_max)));
        Load::Fetch(load)
    }

    /// All listed runs are fetched. Returns where the next page begins, if there is one.
    fn finish_page(&self, runs: &mut ResidentRuns) -> Option<Timestamp> {
        let next_page = self.next_page.filter(|from| *from <= self.keep_until);
        let bound = match next_page {
            Some(from) => Cursor::new(from, Offset(0)).max(runs.schedule.loaded()),
            None => first_position_after(self.keep_until),
        };
        runs.mark_loaded_to(bound);
        next_page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{CLAIM_MESSAGES_MAX, LATE_CLAIM_INTERVAL};
    use crate::limit::{TAIL_POLL_INTERVAL, USUAL_RUN_MEMORY_BYTES};
    use crate::model::{Body, Disposition, Headers, Level, Watermark};
    use crate::run::test_messages::shard;
    use crate::run::{LoadedRun, RunDecoder, RunEncoder, record};
    use crate::store::{Lineage, Listed};
    use crate::timer::load::MemoryBudget;
    use crate::timer::load::{LoadResult, ReadOutcome, fetch_result};
    use crate::timer::shard::ShardState;
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::time::Duration;
    use tokio::time::Instant;

    const RUNS: u64 = 64;
    const RUN_MESSAGES: u64 = 500;
    const WALL: Timestamp = Timestamp::from_millis(1_000_000_000);
    const SLICE: Slice = Slice {
        level: Level::Hour,
        start: 0,
    };

    /// For each run the offsets of its messages, and the size of each message.
    type Recipe = Vec<(Vec<u64>, usize)>;

    /// The stored runs of a shard. Its messages are due in the order of their offsets.
    struct Backlog {
        runs: BTreeMap<RunName, Bytes>,
        count: u64,
    }

    impl Backlog {
        fn new(recipe: &Recipe) -> Self {
            let mut encoder = RunEncoder::new();
            let mut runs = BTreeMap::new();
            let mut count = 0;
            for (number, (offsets, size)) in recipe.iter().enumerate() {
                let payload = vec![b'x'; *size];
                let body = Body {
                    key: None,
                    payload: Some(&payload),
                    headers: Headers::from_block(&[]),
                    id: None,
                    target: None,
                    until: None,
                    dialect: None,
                    replaces: None,
                    sent_from: None,
                    disposition: Disposition::Deliver,
                };
                let mut bytes = Vec::new();
                record::encode(&body, &mut bytes);
                let position = |offset: &u64| {
                    Cursor::new(Timestamp::from_millis(*offset as i64), Offset(*offset))
                };
                let name = format!("1-{number:x}-{:x}-{:x}", offsets.len(), offsets[0]);
                let messages = offsets.iter().map(|offset| (position(offset), &bytes[..]));
                runs.insert(RunName::new(name), encoder.encode(messages).1);
                count += offsets.len() as u64;
            }
            Self { runs, count }
        }

        fn decode(name: &RunName, bytes: &Bytes) -> LoadedRun {
            let decoded = RunDecoder::plain().decode(&shard(), name.clone(), SLICE, bytes);
            decoded.expect("a valid run")
        }

        /// The size of each run in memory.
        fn sizes(&self) -> impl Iterator<Item = usize> {
            self.runs
                .iter()
                .map(|(name, bytes)| Self::decode(name, bytes).memory_size())
        }

        /// Answers a request as the loader does. Adds fetched runs to `fetched`.
        fn answer(&self, load: Load, fetched: &mut usize) -> LoadResult {
            let watermark = Watermark(self.count);
            match load {
                Load::Tail(_) => LoadResult::Tail {
                    watermark,
                    complete_to: watermark,
                    lineage: Lineage::default(),
                    hold: None,
                    pause: None,
                    runs: Vec::new(),
                },
                Load::List(List { from, until, .. }) => {
                    let entries = self.runs.keys().map(|name| RunEntry {
                        slice: SLICE,
                        name: name.clone(),
                        least_due: Timestamp::from_millis(name.least_offset().0 as i64),
                    });
                    LoadResult::List(Listed::Runs {
                        watermark,
                        lineage: Lineage::default(),
                        runs: entries
                            .filter(|run| (from..=until).contains(&run.least_due))
                            .collect(),
                        has_more: false,
                    })
                }
                Load::Fetch(fetch) => {
                    let runs = &fetch.call.runs;
                    *fetched += runs.len();
                    let blobs = runs
                        .iter()
                        .map(|(_, name)| self.runs.get(name).cloned())
                        .collect();
                    fetch_result(&fetch, blobs, &mut RunDecoder::plain())
                }
            }
        }
    }

    /// Claims due messages, `claims` times at most, and completes them. Returns their offsets.
    fn deliver(state: &mut ShardState, now: &mut Instant, claims: usize) -> Vec<u64> {
        let mut delivered = Vec::new();
        for _ in 0..claims {
            let limit = CLAIM_MESSAGES_MAX;
            let Some(taken) = state.take_due(WALL, *now, limit, Duration::ZERO, Duration::ZERO)
            else {
                break;
            };
            let mut offsets: Vec<_> = taken
                .messages
                .iter()
                .map(|(run, at)| run.run.place(*at as usize))
                .collect();
            offsets.sort_unstable();
            delivered.extend(offsets.iter().map(|position| position.offset.0));
            state.on_claimed(taken, Vec::new(), Vec::new(), *now);
            let number = state.in_flight.numbers().next().expect("one batch");
            let count = state.in_flight.open_messages();
            state.in_flight.complete(number, count);
            state.finish_batches(|_, _| ());
            *now += LATE_CLAIM_INTERVAL;
        }
        delivered
    }

    #[test]
    fn a_backlog_of_ten_times_the_budget_is_delivered_in_order() {
        let backlog = Backlog::new(&overlapping(RUNS, RUN_MESSAGES, 100));
        let whole: usize = backlog.sizes().sum();
        let (budget, run) = (whole / 10, whole / RUNS as usize);
        let memory = MemoryBudget::new(budget);
        let mut state = ShardState::for_test(1, &memory, Watermark(backlog.count));
        let mut now = Instant::now();
        let mut delivered = Vec::new();
        let (mut most, mut fetched) = (0, 0);
        while delivered.len() < backlog.count as usize {
            let before = (delivered.len(), fetched);
            while let Some(load) = state.next_request(WALL, now, false) {
                state.on_load_reply(backlog.answer(load, &mut fetched), now);
                most = most.max(memory.used_bytes());
            }
            delivered.extend(deliver(&mut state, &mut now, usize::MAX));
            now += LATE_CLAIM_INTERVAL;
            assert_ne!((delivered.len(), fetched), before, "there is progress");
        }
        assert!(
            delivered.iter().copied().eq(0..backlog.count),
            "in order of due times"
        );
        assert!(
            most <= budget + run,
            "{most} bytes were used of a budget of {budget}"
        );
        assert!(
            fetched <= 2 * 10 * RUNS as usize,
            "{fetched} fetches of {RUNS} runs: each round must free half of the budget"
        );
    }

    #[test]
    fn a_run_that_is_larger_than_expected_waits_for_memory_with_all_later_runs() {
        let sizes = [100, 100, 90_000, 100];
        let recipe = (0..)
            .zip(sizes)
            .map(|(run, size)| ((run * 10..run * 10 + 10).collect(), size))
            .collect();
        let backlog = Backlog::new(&recipe);
        let memory = MemoryBudget::new(1 << 30);
        let watermark = Watermark(backlog.count);
        let mut state = ShardState::for_test(1, &memory, watermark);
        let (now, mut fetched) = (Instant::now(), 0);
        let (name, bytes) = backlog.runs.iter().next().expect("four runs");
        let tail = LoadResult::Tail {
            watermark,
            complete_to: watermark,
            lineage: Lineage::default(),
            hold: None,
            pause: None,
            runs: vec![ReadOutcome::Loaded(Backlog::decode(name, bytes))],
        };
        state.on_load_reply(tail, now);
        let list = state
            .next_request(WALL, now, false)
            .expect("it is not loaded");
        state.on_load_reply(backlog.answer(list, &mut fetched), now);
        let mut fetch = || {
            let before = memory.used_bytes();
            let load = state.next_request(WALL, now, false)?;
            let Load::Fetch(fetch) = &load else {
                return None;
            };
            let (count, reserved) = (fetch.call.runs.len(), fetch.bytes_max);
            state.on_load_reply(backlog.answer(load, &mut fetched), now);
            let added = memory.used_bytes() - before;
            assert!(
                added <= reserved,
                "{added} bytes came, {reserved} were reserved"
            );
            Some(count)
        };
        assert_eq!((fetch(), fetch(), fetch()), (Some(3), Some(2), None));
        assert_eq!(deliver(&mut state, &mut Instant::now(), 9).len(), 40);
    }

    #[test]
    fn loading_stops_in_front_of_a_run_of_a_newer_version() {
        let mut first: Vec<u64> = (0..10).collect();
        first.push(11);
        let offsets = [first, vec![10, 12, 14], vec![13, 15]];
        let mut backlog = Backlog::new(&offsets.map(|offsets| (offsets, 100)).to_vec());
        let run = backlog.runs.values_mut().next_back().expect("three runs");
        let mut newer = run.to_vec();
        newer[4] += 2;
        *run = newer.into();
        let memory = MemoryBudget::new(1 << 30);
        let mut state = ShardState::for_test(1, &memory, Watermark(backlog.count));
        let (mut now, mut fetched) = (Instant::now(), 0);
        let mut delivered = Vec::new();
        for _ in 0..9 {
            while let Some(load) = state.next_request(WALL, now, false) {
                state.on_load_reply(backlog.answer(load, &mut fetched), now);
            }
            delivered.extend(deliver(&mut state, &mut now, 9));
            now += TAIL_POLL_INTERVAL;
        }
        assert_eq!(delivered, Vec::from_iter(0..=12), "13 is in the newer run");
        assert_eq!(fetched, 3, "it is not fetched again");
        assert!(state.load.unreadable.is_empty(), "it is not quarantined");
        assert_eq!(memory.used_bytes(), memory.used_and_reserved());
    }

    /// Runs that overlap completely: the first message of each run is due before the second of any.
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
        fn backlogs_of_many_shards_exceed_the_shared_budget_by_one_run_at_most(
            recipes in prop::collection::vec(recipe(), 1..40),
            part in 2..20_usize,
        ) {
            let backlogs: Vec<_> = recipes.iter().map(Backlog::new).collect();
            let (whole, run) = backlogs
                .iter()
                .flat_map(Backlog::sizes)
                .fold((0, 0), |(sum, most), size| (sum + size, size.max(most)));
            // Each shard's part of the budget holds two messages.
            let budget = whole / part + 100_000 * backlogs.len();
            let expected = run.max(USUAL_RUN_MEMORY_BYTES);
            let memory = MemoryBudget::new(budget);
            let mut states: Vec<_> = backlogs
                .iter()
                .zip(0..)
                .map(|(backlog, slot)| ShardState::for_test(slot, &memory, Watermark(backlog.count)))
                .collect();
            let mut delivered = vec![Vec::new(); states.len()];
            let (mut now, mut fetched, mut rounds) = (Instant::now(), 0, 0);
            while delivered.iter().zip(&backlogs).any(|(offsets, backlog)| offsets.len() < backlog.count as usize) {
                // All shards ask before any is answered.
                let requests: Vec<_> = states
                    .iter_mut()
                    .map(|state| state.next_request(WALL, now, false))
                    .collect();
                let reserved = memory.used_and_reserved();
                prop_assert!(reserved <= budget + expected, "{reserved} of {budget}");
                for (at, load) in requests.into_iter().enumerate() {
                    if let Some(load) = load {
                        states[at].on_load_reply(backlogs[at].answer(load, &mut fetched), now);
                    }
                    let used = memory.used_bytes();
                    prop_assert!(used <= budget + run, "{used} of {budget}, and {run} a run");
                }
                for (state, offsets) in states.iter_mut().zip(&mut delivered) {
                    offsets.extend(deliver(state, &mut now, 1));
                }
                now += LATE_CLAIM_INTERVAL;
                rounds += 1;
                prop_assert!(rounds < 20_000, "there is progress");
            }
            for (offsets, backlog) in delivered.iter().zip(&backlogs) {
                prop_assert!(offsets.iter().copied().eq(0..backlog.count), "in order of due times");
            }
        }
    }
}
