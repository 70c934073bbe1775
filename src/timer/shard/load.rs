//! Loads the messages of a shard: requests to the loader, its replies, and rollbacks of the store.
//!
//! A lower watermark shows a rollback directly. If other processes have appended since, the
//! watermark may look right. The lineage that comes with the store's replies then shows it.

use super::hold::LoadHold;
use super::prefetch::Prefetch;
use super::tail_poll::TailPoll;
use crate::limit::{CLAIM_MESSAGES_MAX, TAIL_POLL_INTERVAL};
use crate::model::{Cursor, Offset, Pause, Progress, ShardId, Slice, Timestamp, Watermark};
use crate::run::{LoadedRun, RunName};
use crate::schedule::{RunIndex, Schedule};
use crate::store::{Hold, Lineage, Listed, StoredShard, Tail};
use crate::timer::load::{
    BlockedRun, Load, LoadResult, MemoryAccount, ReadOutcome, ResidentRun, TailLoad,
};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct ShardLoad {
    shard: ShardId,
    pub(crate) runs: ResidentRuns,
    /// Replies with another generation were requested before everything was dropped.
    pub(crate) generation: u64,
    /// The lineage of the store as the loader last saw it. `None` while nothing is loaded: then
    /// there is nothing that the store could contradict.
    pub(crate) lineage: Option<Lineage>,
    pub(crate) prefetch: Prefetch,
    pub(crate) tail: TailPoll,
    /// Runs that cannot be decoded, until they are in quarantine.
    pub(crate) unreadable: Vec<(Slice, RunName)>,
    /// The run of a newer version that was just found. Loading has stopped in front of it.
    pub(super) newer: Option<BlockedRun>,
    pub(super) hold: LoadHold,
    /// The newest that a reply, the state at the start or the commit has shown.
    pause: Option<Pause>,
}

impl ShardLoad {
    pub(super) fn new(
        shard: &ShardId,
        slot: u16,
        start: Progress,
        state: &StoredShard,
        memory: Rc<MemoryAccount>,
        now: Instant,
    ) -> Self {
        let (watermark, hold) = (state.watermark, state.hold);
        if watermark < hold {
            tracing::info!(%shard, %watermark, until = %hold,
                "delivery waits until the source is read up to `until`: a record there may cancel a waiting message");
        }
        Self {
            shard: shard.clone(),
            runs: ResidentRuns::new(start, watermark, memory),
            // Replies to requests of an earlier tenure must not match.
            generation: u64::from(slot) << 32,
            lineage: None,
            prefetch: Prefetch::new(),
            tail: TailPoll::new(now),
            unreadable: Vec::new(),
            newer: None,
            hold: LoadHold::new(hold),
            pause: state.pause.clone(),
        }
    }

    pub(crate) fn schedule(&self) -> &Schedule<ResidentRun> {
        &self.runs.schedule
    }

    /// True while nothing may be loaded or claimed.
    pub(super) fn is_held(&self) -> bool {
        self.is_paused() || self.hold.is_active(self.schedule().seen())
    }

    pub(crate) fn is_paused(&self) -> bool {
        let is_paused = self.pause.as_ref().is_some_and(|pause| pause.is_paused);
        is_paused && !fault!(ClaimWhilePaused)
    }

    pub(crate) fn pause(&self) -> Option<&Pause> {
        self.pause.as_ref()
    }

    /// A store that was rolled back may have an older one.
    pub(super) fn learn_pause(&mut self, pause: Pause) {
        self.pause = Pause::newest(self.pause.take(), Some(pause));
    }

    /// The greatest watermark that this tenure has seen, also before a rollback.
    pub(crate) fn greatest_seen(&self) -> Watermark {
        self.schedule().seen().max(self.hold.until())
    }

    /// Drops everything in memory and loads it again.
    pub(super) fn restart(&mut self, taken: Progress, watermark: Watermark, now: Instant) {
        // A store that is behind `seen` has lost writes. Otherwise this holds nothing.
        if !fault!(ForgetSeenWatermark) {
            self.hold.raise(self.schedule().seen());
        }
        self.runs = ResidentRuns::new(taken, watermark, self.runs.memory.clone());
        self.lineage = None;
        self.hold.restart();
        self.prefetch.restart();
        self.tail = TailPoll::new(now);
        self.generation += 1;
    }

    /// True if a delivery will soon free memory. False while the shard cannot claim, because only a
    /// poll of the tail ends that state. A shard also cannot claim messages of listed runs that the
    /// tail has not shown.
    pub(super) fn frees_memory_soon(&self, is_claim_slow: bool, claim_time: Timestamp) -> bool {
        let schedule = self.schedule();
        let late_max = self.runs.memory.messages_per_part(64);
        let late_max = late_max.clamp(1, CLAIM_MESSAGES_MAX as u64);
        let may_claim = !self.is_held() && schedule.seen() >= schedule.taken().watermark;
        if fault!(FullMemoryStopsTail) {
            let next_due = schedule.next_due(Timestamp::AT_ONCE);
            return next_due.is_some_and(|due| due <= claim_time);
        }
        let next_due = schedule.next_ready_due().filter(|due| !due.is_at_once());
        let is_overdue = next_due.is_some_and(|due| due.plus(TAIL_POLL_INTERVAL) <= claim_time);
        let has_late = schedule.next_late_due().is_some();
        let is_late_full = has_late && schedule.late_count() as u64 >= late_max;
        may_claim && (is_claim_slow || is_late_full || is_overdue)
    }

    /// Returns the request of a tail poll if it is time.
    pub(super) fn next_tail_request(
        &mut self,
        now: Instant,
        joins_batch: bool,
        frees_memory_soon: bool,
    ) -> Option<Load> {
        if !self.tail.is_due(now, joins_batch) {
            return None;
        }
        let ResidentRuns {
            schedule, memory, ..
        } = &self.runs;
        if frees_memory_soon && memory.is_exhausted() {
            // Deliver the messages in memory first. If the store cuts the tail meanwhile, the shard
            // is loaded again within the budget. Otherwise read on, even without memory: the
            // tail may be due before the messages in memory.
            self.tail.postpone(now);
            return None;
        }
        let (limit, bytes) = memory.tail_limits();
        // A position check does not tell whether the hold has ended.
        let is_held = self.is_held();
        let is_likely = self.tail.is_likely_to_find();
        // An unlikely find has no reservation, so it is a single run.
        let bytes_max = if is_likely { bytes } else { bytes / limit };
        let hinted = self.tail.start(is_likely.then(|| memory.reserve(bytes)));
        let until = self.prefetch.horizon;
        Some(Load::Tail(TailLoad {
            call: Tail {
                shard: self.shard.clone(),
                after: schedule.seen(),
                until,
                limit,
                bytes_max,
            },
            keep_until: memory.keep_until(until),
            hinted: hinted || is_held,
        }))
    }

    /// Handles a reply of the loader. Returns false if the store does not know the shard.
    pub(super) fn on_reply(&mut self, result: LoadResult, now: Instant) -> bool {
        match result {
            LoadResult::UnknownShard | LoadResult::List(Listed::Unknown) => return false,
            LoadResult::TailGap { watermark } => self.on_tail_gap(watermark, now),
            LoadResult::Tail {
                watermark,
                complete_to,
                lineage,
                hold,
                pause,
                runs,
            } => {
                if !self.detect_rollback(watermark, Some(lineage), now) {
                    let found = complete_to > self.schedule().seen();
                    self.tail.finish(found, complete_to < watermark, now);
                    self.on_tail(complete_to, (hold, pause), runs, now);
                    if self.is_paused() {
                        // For the compactor.
                        self.lineage = Some(lineage);
                    }
                }
            }
            LoadResult::List(Listed::Runs {
                watermark,
                lineage,
                runs,
                has_more,
            }) => {
                if !self.detect_rollback(watermark, Some(lineage), now) {
                    self.lineage = Some(lineage);
                    self.prefetch.on_list_reply(&mut self.runs, runs, has_more);
                }
            }
            LoadResult::Fetch { reads, left, newer } => {
                self.on_fetch_reply(reads, left, newer, now);
            }
            // The watermark that was seen stays, so no claim covers a message behind it.
            LoadResult::BlockedTail(run) => {
                self.tail.stop();
                self.newer = Some(run);
            }
        }
        true
    }

    /// The runs hold everything that was stored up to `complete_to`. While the shard is held they are
    /// dropped, and nothing is loaded.
    fn on_tail(
        &mut self,
        complete_to: Watermark,
        (hold, pause): (Option<Hold>, Option<Pause>),
        runs: Vec<ReadOutcome>,
        now: Instant,
    ) {
        let (was_held, was_paused) = (self.is_held(), self.is_paused());
        if let Some(hold) = hold {
            self.hold.update(hold, self.schedule().seen());
        }
        if let Some(pause) = pause {
            self.learn_pause(pause);
        }
        let is_paused = self.is_paused();
        if is_paused != was_paused {
            let note = self.pause.as_ref().map_or("", |pause| &pause.note);
            let change = if is_paused { "paused" } else { "resumed" };
            tracing::info!(shard = %self.shard, note, "delivery of the shard is {change}");
        }
        let is_held = is_paused || self.hold.is_active(complete_to);
        if is_held && !was_held {
            return self.restart(self.schedule().claimed(), complete_to, now);
        }
        if was_held && !is_held && !was_paused {
            tracing::info!(shard = %self.shard, watermark = %complete_to, "the source is read again: delivery of the shard starts");
        }
        for run in runs.into_iter().filter(|_| !is_held) {
            self.add_run(run);
        }
        self.runs.schedule.advance_seen(complete_to);
    }

    fn on_tail_gap(&mut self, watermark: Watermark, now: Instant) {
        if fault!(IgnoreRollback) && watermark < self.schedule().seen() {
            self.tail.finish(false, false, now);
        } else if !self.detect_rollback(watermark, None, now) {
            tracing::info!(shard = %self.shard,
                "too many runs were appended since the last poll: loading the shard again");
            self.restart(self.schedule().claimed(), watermark, now);
        }
    }

    fn on_fetch_reply(
        &mut self,
        reads: Vec<ReadOutcome>,
        left: Vec<usize>,
        newer: Option<BlockedRun>,
        now: Instant,
    ) {
        let mut missing = 0;
        for read in reads {
            missing += usize::from(!self.add_run(read));
        }
        if missing == 0 {
            self.prefetch.on_fetch_reply(&mut self.runs, left);
            if newer.is_some() {
                self.prefetch.stop();
                self.newer = newer;
            }
            return;
        }
        // Only the lease holder deletes or replaces runs. So the store was rolled back, or the lease
        // is lost. The store may hold the same messages in runs that are not known here.
        tracing::warn!(shard = %self.shard, runs = missing,
            "runs are missing in the store: loading the shard again");
        self.restart(self.schedule().claimed(), self.schedule().seen(), now);
    }

    /// Returns false if the run is missing in the store and was not replaced.
    fn add_run(&mut self, read: ReadOutcome) -> bool {
        match read {
            ReadOutcome::Missing(name) => return self.runs.index.remove_if_replaced(&name),
            ReadOutcome::Corrupt { slice, name, why } => {
                tracing::error!(shard = %self.shard, run = %name,
                    least_offset = %name.least_offset(), messages = name.count(),
                    "a stored run is unreadable ({why}): moving it to the shard's quarantine");
                self.unreadable.push((slice, name));
            }
            ReadOutcome::Loaded(run) => self.runs.add(run),
        }
        true
    }

    /// Loads the shard again if the watermark or the lineage of the store shows a rollback. Returns
    /// whether it does.
    ///
    /// Checking the lineage only here is safe, because the load horizon advances only with a list
    /// reply, and each list reply is checked. Replies come in the order of the store calls.
    pub(super) fn detect_rollback(
        &mut self,
        watermark: Watermark,
        lineage: Option<Lineage>,
        now: Instant,
    ) -> bool {
        let seen = self.schedule().seen();
        if self.schedule().is_rolled_back(watermark) {
            tracing::warn!(shard = %self.shard, %seen, %watermark,
                "the store has lost messages: loading the shard again");
        } else if let Some(lineage) = lineage
            && let Some(known) = &mut self.lineage
            && !lineage.continues(&std::mem::replace(known, lineage), seen)
            && !fault!(IgnoreRefilledRollback)
        {
            tracing::warn!(shard = %self.shard,
                "the store has lost messages and was refilled: loading the shard again");
        } else {
            return false;
        }
        self.restart(self.schedule().claimed(), watermark, now);
        true
    }
}

/// The runs of one shard that are in memory: the schedule of their messages, and the index of their
/// names.
pub(crate) struct ResidentRuns {
    pub(crate) schedule: Schedule<ResidentRun>,
    pub(crate) index: RunIndex,
    pub(crate) memory: Rc<MemoryAccount>,
}

impl ResidentRuns {
    /// Without runs. Loading begins after `taken`.
    pub(super) fn new(taken: Progress, watermark: Watermark, memory: Rc<MemoryAccount>) -> Self {
        Self {
            schedule: Schedule::new(taken, watermark),
            index: RunIndex::default(),
            memory,
        }
    }

    pub(super) fn add(&mut self, run: LoadedRun) {
        let not_loaded_from = run.first_dropped_due;
        self.index
            .insert(&run.name, run.slice, &run.summary, not_loaded_from);
        if let Some(due) = not_loaded_from {
            // The run was read with an older bound than other runs in memory.
            self.schedule.lower_loaded(Cursor::new(due, Offset(0)));
        }
        self.schedule
            .add_run(Rc::new(ResidentRun::new(run, &self.memory)));
    }

    /// Everything before `bound` is in memory, except for partial runs that an older bound has cut.
    pub(super) fn mark_loaded_to(&mut self, bound: Cursor) {
        let first_missing = self.index.first_unloaded_due();
        let loaded = first_missing.map_or(bound, |due| bound.min(Cursor::new(due, Offset(0))));
        self.schedule.set_loaded(loaded);
    }

    /// Frees the memory of messages that are due after `horizon`.
    pub(super) fn drop_due_after(&mut self, horizon: Timestamp) {
        let index = &mut self.index;
        self.schedule
            .trim(first_position_after(horizon), |resident| {
                // No store has a run of occurrences, so nothing of it may be dropped.
                if !resident.run.is_computed
                    && let Some(due) = resident.keep_until(horizon)
                {
                    index.set_unloaded_from(&resident.run.name, Some(due));
                }
            });
    }
}

/// The first position after every message that is due at `due` or before.
pub(super) fn first_position_after(due: Timestamp) -> Cursor {
    Cursor::new(due.plus(Duration::from_millis(1)), Offset(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::AppendEpoch;
    use crate::testing::fault_injection::{self, InjectedFault};
    use crate::timer::load::MemoryBudget;
    use crate::timer::run_replacement::known_replacements;
    use crate::timer::shard::ShardState;

    fn list(watermark: Watermark, lineage: Lineage) -> LoadResult {
        LoadResult::List(Listed::Runs {
            watermark,
            lineage,
            runs: Vec::new(),
            has_more: false,
        })
    }

    /// A shard that has received an empty list with this lineage.
    fn listed(lineage: Lineage) -> ShardState {
        let memory = MemoryBudget::new(1 << 20);
        let mut state = ShardState::for_test(1, &memory, Watermark(262));
        let now = Instant::now();
        assert!(matches!(
            state.next_request(Timestamp::from_millis(1_000_000), now, false),
            Some(Load::List(_))
        ));
        state.on_load_reply(list(Watermark(262), lineage), now);
        state
    }

    /// True if a later reply makes the shard load again.
    fn reloads(state: &mut ShardState, watermark: u64, lineage: Lineage, is_list: bool) -> bool {
        let watermark = Watermark(watermark);
        let generation = state.load.generation;
        let reply = if is_list {
            list(watermark, lineage)
        } else {
            LoadResult::Tail {
                watermark,
                complete_to: watermark,
                lineage,
                hold: None,
                pause: None,
                runs: Vec::new(),
            }
        };
        assert!(state.on_load_reply(reply, Instant::now()));
        state.load.generation != generation
    }

    #[test]
    fn a_rolled_back_shard_is_loaded_again_even_if_its_watermark_has_recovered() {
        let epoch = |number| AppendEpoch { process: 7, number };
        let mut known = Lineage {
            replacements: 3,
            ..Lineage::default()
        };
        known.appended(epoch(1), Watermark(0));
        let undone = Lineage {
            replacements: 2,
            ..known
        };
        let (mut refilled, mut taken_over) = (known, known);
        refilled.appended(epoch(2), Watermark(30));
        taken_over.appended(epoch(2), Watermark(262));
        for is_list in [false, true] {
            for (watermark, lineage, expected) in [
                (262, known, false),
                (262, undone, true),
                (262, refilled, true),
                (300, refilled, true),
                (300, taken_over, false),
                (261, known, true),
            ] {
                assert_eq!(
                    reloads(&mut listed(known), watermark, lineage, is_list),
                    expected,
                    "{watermark} {lineage:?}"
                );
            }
        }
        let faults = [InjectedFault::IgnoreRefilledRollback];
        assert!(
            !fault_injection::with(faults, || reloads(&mut listed(known), 262, refilled, true)),
            "only the lineage shows that the store was refilled"
        );
        let mut state = listed(known);
        assert!(!reloads(&mut state, 300, taken_over, false));
        assert!(!reloads(&mut state, 300, taken_over, false));
        assert!(
            reloads(&mut state, 300, undone, false),
            "it is older than the lineage seen since"
        );
        assert!(
            !reloads(&mut state, 300, undone, false) && known_replacements(&state).is_none(),
            "nothing is loaded that it could contradict"
        );
        assert!(!reloads(&mut state, 300, undone, true));
        assert_eq!(known_replacements(&state), Some(2));
        assert!(reloads(&mut state, 300, Lineage::default(), false));
    }
}
