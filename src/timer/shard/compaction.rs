//! When the compactor looks at the runs of a shard, and which of its replacements may be made.

use crate::limit::{
    COMPACT_FIRST_SCAN_DELAY, COMPACT_FRONT_SCAN_INTERVAL, COMPACT_IDLE_SCAN_INTERVAL,
    COMPACT_SCAN_INTERVAL, COMPACT_STEP_PAUSE,
};
use crate::model::{Timestamp, Watermark};
use crate::timer::compactor::{CompactionResult, IdScan, Replacement};
use tokio::time::Instant;

/// Progress of the compaction scan over the runs of one shard.
///
/// The main scan reads the runs page by page, which may take hours. So every minute the first page
/// is scanned in between, because its runs begin soon. A shard that is clean and gets no new
/// messages rests (benchmark `idle`).
pub(crate) struct CompactionScan {
    /// The compactor has a task of this shard.
    in_progress: bool,
    /// No task before this time.
    pub(crate) next_at: Instant,
    /// Where the main scan continues.
    resume_from: Timestamp,
    /// When a scan of the earliest runs last found nothing to compact.
    front_clean_at: Instant,
    /// The current task scans the earliest runs, while the main scan is paused at `resume_from`.
    scans_front: bool,
    /// The watermark when the main scan began.
    watermark_at_start: Watermark,
    /// The watermark and the time when a main scan found nothing to compact.
    found_clean: Option<(Watermark, Instant)>,
    /// The store's replacement count after our last successful replacement.
    pub(crate) replacements: Option<u64>,
    /// Ids are left by a timer that stopped. So each owner scans them once, after it has loaded the shard.
    pub(crate) id_scan: IdScan,
    /// A replacement is being made. It is valid while the shard is not loaded up to this due time.
    pub(crate) replacing_until: Option<Timestamp>,
}

impl CompactionScan {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            in_progress: false,
            next_at: now + COMPACT_FIRST_SCAN_DELAY,
            resume_from: Timestamp::AT_ONCE,
            front_clean_at: now,
            scans_front: false,
            watermark_at_start: Watermark(0),
            found_clean: None,
            replacements: None,
            id_scan: IdScan::At(None),
            replacing_until: None,
        }
    }

    /// The shard is loaded again. A replacement in progress continues.
    pub(super) fn restart(&mut self, now: Instant) {
        let replacing_until = self.replacing_until;
        *self = Self::new(now);
        self.replacing_until = replacing_until;
    }

    /// True if the shard must not be loaded up to `until` now. This lasts no longer than one store
    /// call, and no replacement is started for messages that are due soon.
    pub(super) fn blocks_load(&self, until: Timestamp) -> bool {
        let is_replacing = self.replacing_until.is_some_and(|valid| valid <= until);
        is_replacing && !fault!(LoadRunsBeingReplaced)
            || self.in_progress && fault!(LoadWaitsForCompactor)
    }

    /// Starts a task if it is time. Returns the due time from which the compactor scans.
    pub(crate) fn start(&mut self, seen: Watermark, now: Instant) -> Option<Timestamp> {
        if self.in_progress || self.replacing_until.is_some() || self.next_at > now {
            return None;
        }
        let is_first_page = self.resume_from.is_at_once();
        if is_first_page {
            let is_clean = self.found_clean.is_some_and(|(watermark, at)| {
                watermark == seen && now < at + COMPACT_IDLE_SCAN_INTERVAL
            });
            if is_clean {
                self.next_at = now + COMPACT_SCAN_INTERVAL;
                return None;
            }
            self.watermark_at_start = seen;
        }
        self.in_progress = true;
        self.scans_front =
            !is_first_page && now >= self.front_clean_at + COMPACT_FRONT_SCAN_INTERVAL;
        Some(if self.scans_front {
            Timestamp::AT_ONCE
        } else {
            self.resume_from
        })
    }

    /// Handles the result of a task. Returns the replacement that the compactor proposes.
    pub(crate) fn on_result(
        &mut self,
        result: CompactionResult,
        now: Instant,
    ) -> Option<Replacement> {
        self.in_progress = false;
        self.next_at = now + COMPACT_STEP_PAUSE;
        if let CompactionResult::NothingToDo { id_scan, .. } = &result {
            self.id_scan = id_scan.clone();
        }
        match result {
            CompactionResult::NoGain => {}
            CompactionResult::NothingToDo { .. } if self.scans_front => self.front_clean_at = now,
            CompactionResult::NothingToDo {
                resume_from: Some(from),
                ..
            } => {
                if self.resume_from.is_at_once() {
                    self.front_clean_at = now;
                }
                self.resume_from = from;
            }
            CompactionResult::NothingToDo { .. } if self.id_scan != IdScan::Done => {
                self.resume_from = Timestamp::AT_ONCE;
            }
            CompactionResult::NothingToDo {
                resume_from: None, ..
            } => {
                self.resume_from = Timestamp::AT_ONCE;
                self.found_clean = Some((self.watermark_at_start, now));
                self.next_at = now + COMPACT_SCAN_INTERVAL;
            }
            CompactionResult::StoreUnavailable => self.next_at = now + COMPACT_SCAN_INTERVAL,
            CompactionResult::Replace(replacement) => {
                // The end of a successful replacement brings this forward.
                self.next_at = now + COMPACT_SCAN_INTERVAL;
                return Some(replacement);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Level, Offset, Progress, Slice};
    use crate::run::test_messages::shard;
    use crate::run::{RunDecoder, RunEncoder, RunName};
    use crate::store::{AppendEpoch, Lineage, Listed, RunEntry};
    use crate::testing::fault_injection::{self, InjectedFault};
    use crate::timer::load::MemoryBudget;
    use crate::timer::load::{Load, LoadResult, StoredRun, decode_run, fetch_result};
    use crate::timer::run_replacement::{finish_replacement, next_task, valid_replacement};
    use crate::timer::shard::ShardState;
    use bytes::Bytes;
    use std::time::Duration;

    const WALL: Timestamp = Timestamp::from_millis(1_000);
    const HORIZON: Timestamp = Timestamp::from_millis(5_000);

    /// A shard of which the compactor has a task.
    fn scanning() -> ShardState {
        let mut state = ShardState::for_test(1, &MemoryBudget::new(1 << 20), Watermark(9));
        state.load.prefetch.horizon = HORIZON;
        let task = next_task(&mut state, WALL, Instant::now() + COMPACT_FIRST_SCAN_DELAY)
            .expect("it is time");
        assert_eq!(task.loaded_until, HORIZON);
        state
    }

    fn replace(valid_until: i64) -> CompactionResult {
        CompactionResult::Replace(Replacement {
            inputs: Vec::new(),
            outputs: Vec::new(),
            renamed_ids: Vec::new(),
            valid_until: Timestamp::from_millis(valid_until),
        })
    }

    fn nothing(resume_from: Option<i64>) -> CompactionResult {
        CompactionResult::NothingToDo {
            resume_from: resume_from.map(Timestamp::from_millis),
            id_scan: IdScan::Done,
        }
    }

    #[test]
    fn runs_are_replaced_only_while_none_of_them_is_loaded() {
        let now = Instant::now();
        let may_replace = |mut state: ShardState, valid_until, wall| {
            let result = replace(valid_until);
            valid_replacement(&mut state, result, wall, now).is_some()
        };
        assert!(may_replace(scanning(), 5_001, WALL));
        assert!(!may_replace(scanning(), 5_000, WALL), "it is loaded");
        let later = Timestamp::from_millis(5_001);
        assert!(!may_replace(scanning(), 5_001, later), "it is due");
        let mut loaded = scanning();
        loaded.load.prefetch.horizon = Timestamp::from_millis(6_000);
        assert!(!may_replace(loaded, 5_001, WALL), "it was loaded meanwhile");
    }

    #[test]
    fn a_compactor_that_does_not_answer_does_not_block_loading() {
        let mut state = scanning();
        let soon = WALL.plus(Duration::from_secs(3_600));
        let later = Instant::now() + COMPACT_IDLE_SCAN_INTERVAL;
        assert!(
            next_task(&mut state, soon, later).is_none(),
            "it has not answered the first task"
        );
        assert!(matches!(
            state.next_prefetch_request(soon, false),
            Some(Load::List(list)) if list.until > soon
        ));
    }

    #[test]
    fn a_shard_does_not_load_runs_that_are_being_replaced() {
        let mut state = scanning();
        let replaced = Timestamp::from_millis(30_000);
        state.compaction.replacing_until = Some(replaced);
        state.reload(Progress::START, Watermark(9), Instant::now());
        assert!(state.next_prefetch_request(replaced, false).is_none());
        assert!(
            state.next_prefetch_request(WALL, false).is_some(),
            "earlier runs are loaded"
        );
    }

    /// The tail with one run, of which only the messages that are due before `HORIZON` are loaded.
    fn partial_tail(slice: Slice, name: &RunName, bytes: &Bytes) -> LoadResult {
        let decoder = &mut RunDecoder::plain();
        let run = StoredRun {
            shard: &shard(),
            slice,
            name,
            bytes,
        };
        let run = decode_run(run, HORIZON, Progress::START, decoder);
        LoadResult::Tail {
            watermark: Watermark(9),
            complete_to: Watermark(9),
            lineage: Lineage::default(),
            hold: None,
            pause: None,
            runs: vec![run.expect("this version wrote it")],
        }
    }

    /// Loads a run partly, replaces it, and loads the rest. If the store `is_refilled`, it has lost
    /// everything meanwhile, and all messages were appended again, as one run. Returns whether the
    /// shard was loaded again, and whether the second message was loaded.
    fn load_after_replacement(is_refilled: bool) -> (bool, bool) {
        let mut state = scanning();
        let now = Instant::now();
        let watermark = Watermark(9);
        let generation = state.load.generation;
        let slice = Slice {
            level: Level::Hour,
            start: 0,
        };
        let position = |due, offset| Cursor::new(Timestamp::from_millis(due), Offset(offset));
        let (soon, later) = (position(4_000, 1), position(30_000, 2));
        let bytes = |positions: &[Cursor]| {
            let messages = positions.iter().map(|position| (*position, &b""[..]));
            RunEncoder::new().encode(messages).1
        };
        let (old, new) = (RunName::new("1-1-2-1"), RunName::new("1-2-1-2"));
        state.on_load_reply(partial_tail(slice, &old, &bytes(&[soon, later])), now);
        state.load.lineage = Some(Lineage::default());
        state.load.runs.mark_loaded_to(later);
        finish_replacement(&mut state, Some((1, &[(slice, old)])), now);
        let mut lineage = Lineage::default();
        if is_refilled {
            let (process, number) = (7, 2);
            lineage.appended(AppendEpoch { process, number }, Watermark(0));
        }
        let stored = if is_refilled {
            &[soon, later][..]
        } else {
            &[later]
        };
        while let Some(load) = state.next_prefetch_request(later.due, false) {
            let result = match load {
                Load::List(list) => {
                    let least_due = stored[0].due;
                    let entry = RunEntry {
                        slice,
                        name: new.clone(),
                        least_due,
                    };
                    let is_listed = (list.from..=list.until).contains(&least_due);
                    LoadResult::List(Listed::Runs {
                        watermark,
                        lineage,
                        runs: Vec::from_iter(is_listed.then_some(entry)),
                        has_more: false,
                    })
                }
                Load::Fetch(fetch) => {
                    let runs = fetch.call.runs.iter();
                    let blobs = runs
                        .map(|(_, name)| (*name == new).then(|| bytes(stored)))
                        .collect();
                    fetch_result(&fetch, blobs, &mut RunDecoder::plain())
                }
                Load::Tail(_) => unreachable!("prefetch does not poll the tail"),
            };
            state.on_load_reply(result, now);
        }
        let taken = state.load.runs.schedule.take(later.due, 9);
        let messages = taken.expect("the first one is due").messages;
        let mut places = messages
            .iter()
            .map(|(run, index)| run.run.place(*index as usize));
        let is_reloaded = state.load.generation != generation;
        (is_reloaded, places.any(|place| place == later))
    }

    #[test]
    fn a_replaced_run_that_is_missing_does_not_make_the_shard_load_again() {
        assert_eq!(load_after_replacement(false), (false, true));
        let fault = [InjectedFault::ForgetReplacedRun];
        let with_fault = fault_injection::with(fault, || load_after_replacement(false));
        assert_eq!(with_fault, (true, true), "it looks like a rollback");
    }

    #[test]
    fn a_message_of_a_replaced_run_is_loaded_after_the_store_was_refilled() {
        assert_eq!(load_after_replacement(true), (true, true));
        let fault = [InjectedFault::IgnoreRefilledRollback];
        let with_fault = fault_injection::with(fault, || load_after_replacement(true));
        assert_eq!(with_fault, (false, false), "the message is lost");
    }

    #[test]
    fn the_earliest_runs_are_scanned_every_minute_while_a_long_scan_is_in_progress() {
        let mut state = scanning();
        let mut now = Instant::now();
        let mut next_scan = |result, after| {
            valid_replacement(&mut state, result, WALL, now);
            now += after;
            let task = next_task(&mut state, WALL, now);
            task.map(|task| task.scan_from)
        };
        let at = |millis| Some(Timestamp::from_millis(millis));
        let front = Some(Timestamp::AT_ONCE);
        let no_gain = || CompactionResult::NoGain;
        assert_eq!(
            next_scan(nothing(Some(7_000)), COMPACT_SCAN_INTERVAL),
            at(7_000)
        );
        assert_eq!(next_scan(no_gain(), COMPACT_FRONT_SCAN_INTERVAL), front);
        assert_eq!(
            next_scan(no_gain(), COMPACT_STEP_PAUSE),
            front,
            "while there is something to do"
        );
        assert_eq!(
            next_scan(nothing(Some(3_000)), COMPACT_STEP_PAUSE),
            at(7_000),
            "the main scan continues"
        );
        assert_eq!(
            next_scan(nothing(Some(9_000)), COMPACT_STEP_PAUSE),
            at(9_000)
        );
        assert_eq!(
            next_scan(nothing(Some(11_000)), COMPACT_FRONT_SCAN_INTERVAL),
            front
        );
        assert_eq!(next_scan(nothing(None), COMPACT_STEP_PAUSE), at(11_000));
    }

    #[test]
    fn a_shard_rests_only_after_a_complete_scan() {
        let next_scan = |result, after| {
            let mut state = scanning();
            let now = Instant::now();
            valid_replacement(&mut state, result, WALL, now);
            let early = now + COMPACT_STEP_PAUSE.min(after) - Duration::from_millis(1);
            assert!(next_task(&mut state, WALL, early).is_none());
            let task = next_task(&mut state, WALL, now + after);
            task.map(|task| task.scan_from)
        };
        let front = Some(Timestamp::AT_ONCE);
        assert_eq!(
            next_scan(nothing(Some(7_000)), COMPACT_STEP_PAUSE),
            Some(Timestamp::from_millis(7_000))
        );
        assert_eq!(
            next_scan(CompactionResult::NoGain, COMPACT_STEP_PAUSE),
            front
        );
        assert_eq!(
            next_scan(CompactionResult::StoreUnavailable, COMPACT_SCAN_INTERVAL),
            front
        );
        assert_eq!(
            next_scan(replace(0), COMPACT_SCAN_INTERVAL),
            front,
            "it came too late"
        );
        assert_eq!(next_scan(nothing(None), COMPACT_SCAN_INTERVAL), None);
        assert_eq!(next_scan(nothing(None), COMPACT_IDLE_SCAN_INTERVAL), front);
    }
}
