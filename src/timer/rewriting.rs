//! The lane that has the outer levels of a shard rewritten: when its runs are looked at, and whether what came of it may still be done.

use super::RouteOptions;
use super::compactor::{CompactionReply, CompactionResult, CompactionTask, Replacement};
use super::work::{ShardPhase, ShardState};
use crate::limit::{
    COMPACT_FIRST_SCAN_DELAY, COMPACT_FRONT_SCAN_INTERVAL, COMPACT_IDLE_SCAN_INTERVAL,
    COMPACT_SCAN_INTERVAL, COMPACT_STEP_PAUSE,
};
use crate::model::{Lease, ShardId, Slice, Timestamp, Watermark};
use crate::run::RunName;
use crate::store::{Error, ReplaceRuns, Replaced, Store};
use futures_util::future::{LocalBoxFuture, pending};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::Instant;

/// Where the looking stands.
pub(super) struct CompactionScan {
    in_progress: bool,
    /// Not before.
    next_at: Instant,
    /// Where in the list it goes on.
    resume_from: Timestamp,
    /// When its beginning, where what comes soon is, had nothing to do last; and whether that is what is looked at, though it goes on elsewhere.
    front_clean_at: Instant,
    scans_front: bool,
    /// What the shard held when the list was begun; and what it held, and when that was, when nothing was found to do.
    watermark_at_start: Watermark,
    found_clean: Option<(Watermark, Instant)>,
    /// So many the store has counted, by its answer to the last one.
    rewrite_count: Option<u64>,
    /// Runs are being put in the place of others, which may be done while the shard is loaded no further than that.
    replacing_before: Option<Timestamp>,
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
            rewrite_count: None,
            replacing_before: None,
        }
    }

    /// The shard is loaded anew: it is looked at anew too, but what is being swapped still is.
    pub(super) fn restarted(&self, now: Instant) -> Self {
        Self {
            replacing_before: self.replacing_before,
            ..Self::new(now)
        }
    }

    /// How many rewrites there are, if that is known before it is seen.
    pub(super) fn rewrite_count(&self) -> Option<u64> {
        self.rewrite_count
    }

    /// Whether the shard must not be loaded so far now. At most as long as a call of the store takes, and it is not begun for what is due soon.
    pub(super) fn blocks_load(&self, until: Timestamp) -> bool {
        let is_swapped = self.replacing_before.is_some_and(|before| before <= until);
        is_swapped && !fault!(LoadRunsBeingReplaced)
            || self.in_progress && fault!(LoadWaitsForCompactor)
    }
}

impl ShardState {
    /// What the rewriter is to look at now, if anything.
    pub(crate) fn next_compaction_job(
        &mut self,
        wall: Timestamp,
        now: Instant,
    ) -> Option<CompactionTask> {
        let (seen, lane) = (self.schedule.seen(), &mut self.compaction);
        if self.phase != ShardPhase::Active
            || lane.in_progress
            || lane.replacing_before.is_some()
            || lane.next_at > now
            || self.load_horizon.is_at_once()
        {
            return None;
        }
        if lane.resume_from.is_at_once() {
            if lane.found_clean.is_some_and(|(watermark, at)| {
                watermark == seen && now < at + COMPACT_IDLE_SCAN_INTERVAL
            }) {
                lane.next_at = now + COMPACT_SCAN_INTERVAL;
                return None;
            }
            lane.watermark_at_start = seen;
        }
        lane.in_progress = true;
        lane.scans_front = !lane.resume_from.is_at_once()
            && now >= lane.front_clean_at + COMPACT_FRONT_SCAN_INTERVAL;
        let from = if lane.scans_front {
            Timestamp::AT_ONCE
        } else {
            lane.resume_from
        };
        let hour_max = self.memory.messages_per_part(4);
        let loaded = if fault!(CompactRunsBeingLoaded) {
            Timestamp::AT_ONCE
        } else {
            self.load_horizon.max(wall)
        };
        Some(CompactionTask {
            shard: self.lease.shard.clone(),
            tag: self.load_generation(),
            loaded_until: loaded,
            scan_from: from,
            hour_messages_max: hour_max,
        })
    }

    /// The rewriter has looked. Answers what is to be done about it, if it may still be done.
    fn on_compaction_result(
        &mut self,
        found: CompactionResult,
        wall: Timestamp,
        now: Instant,
    ) -> Option<Replacement> {
        let lane = &mut self.compaction;
        lane.in_progress = false;
        lane.next_at = now + COMPACT_SCAN_INTERVAL;
        match found {
            CompactionResult::Replace(swap) => {
                return self.may_replace(&swap, wall).then_some(swap);
            }
            CompactionResult::NothingToDo { .. } if lane.scans_front => {
                (lane.front_clean_at, lane.next_at) = (now, now + COMPACT_STEP_PAUSE)
            }
            CompactionResult::NothingToDo { resume_from: None } => {
                (lane.resume_from, lane.found_clean) =
                    (Timestamp::AT_ONCE, Some((lane.watermark_at_start, now)))
            }
            CompactionResult::NothingToDo {
                resume_from: Some(from),
            } => {
                lane.front_clean_at = if lane.resume_from.is_at_once() {
                    now
                } else {
                    lane.front_clean_at
                };
                (lane.resume_from, lane.next_at) = (from, now + COMPACT_STEP_PAUSE);
            }
            CompactionResult::NoGain => lane.next_at = now + COMPACT_STEP_PAUSE,
            CompactionResult::StoreUnavailable => {}
        }
        None
    }

    /// Nothing of the new runs is loaded, or about to be.
    fn may_replace(&self, swap: &Replacement, wall: Timestamp) -> bool {
        self.phase == ShardPhase::Active
            && (self.load_horizon.max(wall) < swap.valid_until || fault!(CompactRunsBeingLoaded))
    }

    /// The store has put others in the place of these runs.
    fn on_replaced(&mut self, inputs: &[(Slice, RunName)], now: Instant) {
        self.compaction.next_at = now + COMPACT_STEP_PAUSE;
        if !fault!(ForgetReplacedRun) {
            inputs
                .iter()
                .for_each(|(_, name)| self.inventory.mark_replaced(name));
        }
    }
}

/// Puts runs in the place of others, one shard after the other, beside all else: what is due does not wait for it.
///
/// What comes of a call that fails, or is dropped, is not known, and need not be: whichever runs are there when they are needed are found by
/// listing, and a run that is found gone makes the shard load again.
#[derive(Default)]
pub(super) struct ReplacementCall {
    found: Option<CompactionReply>,
    in_flight: Option<LocalBoxFuture<'static, ReplacementReply>>,
}

/// What came of a swap.
pub(super) struct ReplacementReply {
    lease: Lease,
    after: u64,
    inputs: Vec<(Slice, RunName)>,
    outcome: Result<Vec<Replaced>, Error>,
}

impl ReplacementCall {
    /// Whether it can take in what the rewriter has found: one at a time, so that what is held is bounded.
    pub(super) fn is_idle(&self) -> bool {
        self.found.is_none() && self.in_flight.is_none()
    }

    pub(super) fn add_result(&mut self, done: CompactionReply) {
        self.found = Some(done);
    }

    /// Begins what was found, if it may still be done.
    pub(super) fn start(
        &mut self,
        store: &Rc<dyn Store>,
        works: &mut BTreeMap<ShardId, ShardState>,
        wall: Timestamp,
    ) {
        let Some(CompactionReply {
            shard,
            tag,
            result: found,
        }) = self.found.take()
        else {
            return;
        };
        let Some(work) = works
            .get_mut(&shard)
            .filter(|work| work.load_generation() == tag)
        else {
            return;
        };
        let Some(Replacement {
            inputs,
            outputs,
            valid_until: before,
        }) = work.on_compaction_result(found, wall, Instant::now())
        else {
            return;
        };
        let Some(after) = work.rewrite_count() else {
            return;
        };
        work.compaction.replacing_before = Some(before);
        let (store, request) = (
            store.clone(),
            ReplaceRuns {
                lease: work.lease.clone(),
                known_replacements: after,
                inputs,
                outputs,
            },
        );
        self.in_flight = Some(Box::pin(async move {
            let outcome = store.replace_runs(std::slice::from_ref(&request)).await;
            ReplacementReply {
                lease: request.lease,
                after,
                inputs: request.inputs,
                outcome,
            }
        }));
    }

    /// Waits for the one under way; for ever, if there is none. Safe to drop: the call goes on with the next.
    pub(super) async fn reply(&mut self) -> ReplacementReply {
        let Some(under_way) = &mut self.in_flight else {
            return pending().await;
        };
        let swapped = under_way.await;
        self.in_flight = None;
        swapped
    }
}

/// Takes in what came of a swap; answers the shard if it is not ours any more.
pub(super) fn apply_replacement(
    works: &mut BTreeMap<ShardId, ShardState>,
    routes: &BTreeMap<Arc<str>, RouteOptions>,
    ReplacementReply {
        lease,
        after,
        inputs,
        outcome,
    }: ReplacementReply,
) -> Result<Option<ShardId>, Error> {
    // Of a lease that has ended it says nothing about the one that the shard is held by since.
    let Some(work) = works
        .get_mut(&lease.shard)
        .filter(|work| work.lease == lease)
    else {
        return Ok(None);
    };
    let shard = lease.shard;
    // If it is not known whether it was counted, the next look tells.
    (
        work.compaction.replacing_before,
        work.compaction.rewrite_count,
    ) = (None, None);
    match outcome.map(|outcomes| outcomes.first().copied()) {
        Ok(Some(Replaced::Done)) => {
            work.compaction.rewrite_count = Some(after + 1);
            work.on_replaced(&inputs, Instant::now());
            routes[&shard.route]
                .metric
                .compacted_runs
                .increment(inputs.len() as u64);
        }
        Ok(Some(Replaced::Fenced | Replaced::Unknown)) => return Ok(Some(shard)),
        Ok(Some(Replaced::Conflict) | None) => {}
        Err(error) if error.is_transient() => {
            tracing::debug!(%shard, %error, "runs were not rewritten")
        }
        Err(error) => return Err(error),
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::load::MemoryBudget;
    use super::super::load::{FetchBounds, Load, LoadResult, decode_run, fetch_result};
    use super::*;
    use crate::model::{Cursor, Level, Offset, Progress};
    use crate::run::{RunDecoder, RunEncoder};
    use crate::store::{Lineage, RunEntry};
    use crate::testing::fault_injection::{self, InjectedFault};
    use std::time::Duration;

    const WALL: Timestamp = Timestamp::from_millis(1_000);

    /// A shard whose runs are being looked at.
    fn looking() -> ShardState {
        let mut work = ShardState::for_test(1, &MemoryBudget::new(1 << 20), Watermark(9));
        work.load_horizon = Timestamp::from_millis(5_000);
        let chore = work
            .next_compaction_job(WALL, Instant::now() + COMPACT_FIRST_SCAN_DELAY)
            .unwrap();
        assert_eq!(chore.loaded_until, work.load_horizon);
        work
    }

    fn swap(before: i64) -> CompactionResult {
        CompactionResult::Replace(Replacement {
            inputs: Vec::new(),
            outputs: Vec::new(),
            valid_until: Timestamp::from_millis(before),
        })
    }

    #[test]
    fn runs_are_put_in_their_place_only_as_long_as_nothing_of_them_is_loaded() {
        let now = Instant::now();
        assert!(
            looking()
                .on_compaction_result(swap(5_001), WALL, now)
                .is_some()
        );
        assert!(
            looking()
                .on_compaction_result(swap(5_000), WALL, now)
                .is_none(),
            "it is loaded"
        );
        assert!(
            looking()
                .on_compaction_result(swap(5_001), Timestamp::from_millis(5_001), now)
                .is_none(),
            "it is due"
        );
        let mut risen = looking();
        risen.load_horizon = Timestamp::from_millis(6_000);
        assert!(
            risen.on_compaction_result(swap(5_001), WALL, now).is_none(),
            "it was loaded meanwhile"
        );
    }

    #[test]
    fn a_rewriter_that_stands_still_keeps_nothing_from_being_loaded() {
        let mut work = looking();
        let soon = WALL.plus(Duration::from_secs(3_600));
        assert!(
            work.next_compaction_job(soon, Instant::now() + COMPACT_IDLE_SCAN_INTERVAL)
                .is_none(),
            "it has not answered the first"
        );
        assert!(
            matches!(work.next_prefetch_request(soon), Some(Load::List { until, .. }) if until > soon)
        );
    }

    #[test]
    fn a_shard_is_not_loaded_past_what_is_being_swapped_however_long_that_takes() {
        let mut work = looking();
        work.compaction.replacing_before = Some(Timestamp::from_millis(30_000));
        work.reload(Progress::START, Watermark(9), Instant::now());
        assert!(
            work.next_prefetch_request(Timestamp::from_millis(30_000))
                .is_none()
        );
        assert!(
            work.next_prefetch_request(WALL).is_some(),
            "what lies before it is"
        );
    }

    /// A run is loaded up to some message, and that one is in another run by then. Answers whether the shard was loaded again.
    fn is_loaded_again_to_read_on() -> bool {
        let mut work = looking();
        let (watermark, tag, slice, now) = (
            Watermark(9),
            work.load_generation(),
            Slice {
                level: Level::Hour,
                start: 0,
            },
            Instant::now(),
        );
        let place = |due, offset| Cursor::new(Timestamp::from_millis(due), Offset(offset));
        let (soon, later) = (place(4_000, 1), place(30_000, 2));
        let bytes = |places: Vec<Cursor>| {
            RunEncoder::new()
                .encode(places.into_iter().map(|place| (place, &b""[..])))
                .1
        };
        let (old, new) = (RunName::new("1-1-2-1"), RunName::new("1-2-1-2"));
        let cut = decode_run(
            slice,
            &old,
            Some(&bytes(vec![soon, later])),
            work.load_horizon,
            Progress::START,
            &mut RunDecoder::new(),
        );
        work.on_load_reply(
            LoadResult::Tail {
                watermark,
                seen: watermark,
                history: Lineage::default(),
                runs: vec![cut],
            },
            now,
        );
        work.on_replaced(&[(slice, old)], now);
        while let Some(what) = work.next_prefetch_request(later.due) {
            let answer = match what {
                Load::List { .. } => {
                    let runs = vec![RunEntry {
                        slice,
                        name: new.clone(),
                        least_due: later.due,
                    }];
                    LoadResult::List {
                        watermark,
                        history: Lineage::default(),
                        runs,
                        more: false,
                    }
                }
                Load::Fetch {
                    runs,
                    bytes: held,
                    keep_until: keep,
                    taken,
                } => {
                    let blobs = runs
                        .iter()
                        .map(|(_, name)| (*name == new).then(|| bytes(vec![later])))
                        .collect();
                    fetch_result(
                        &runs,
                        blobs,
                        FetchBounds {
                            bytes_max: held,
                            keep_until: keep,
                            taken,
                        },
                        &mut RunDecoder::new(),
                    )
                }
                Load::Tail { .. } => unreachable!("a fill does not follow what is appended"),
            };
            work.on_load_reply(answer, now);
        }
        let take = work.schedule.take(later.due, 9).expect("both are due");
        let taken: Vec<_> = take
            .messages
            .iter()
            .map(|(resident, index)| resident.run.place(*index as usize))
            .collect();
        assert!(taken.ends_with(&[later]));
        work.load_generation() != tag
    }

    #[test]
    fn a_run_that_is_gone_because_it_was_rewritten_does_not_make_the_shard_load_again() {
        assert!(!is_loaded_again_to_read_on());
        assert!(
            fault_injection::with(
                [InjectedFault::ForgetReplacedRun],
                is_loaded_again_to_read_on
            ),
            "it seems that the store went back"
        );
    }

    #[test]
    fn the_beginning_of_the_list_is_looked_at_every_minute_however_long_the_rest_of_it_takes() {
        let (mut work, mut now) = (looking(), Instant::now());
        let page = Timestamp::from_millis(7_000);
        let mut look = |work: &mut ShardState, found, after| {
            work.on_compaction_result(found, WALL, now);
            now += after;
            work.next_compaction_job(WALL, now)
                .map(|chore| chore.scan_from)
        };
        let more = |from| CompactionResult::NothingToDo {
            resume_from: Some(Timestamp::from_millis(from)),
        };
        assert_eq!(
            look(&mut work, more(7_000), COMPACT_SCAN_INTERVAL),
            Some(page)
        );
        assert_eq!(
            look(
                &mut work,
                CompactionResult::NoGain,
                COMPACT_FRONT_SCAN_INTERVAL
            ),
            Some(Timestamp::AT_ONCE)
        );
        assert_eq!(
            look(&mut work, CompactionResult::NoGain, COMPACT_STEP_PAUSE),
            Some(Timestamp::AT_ONCE),
            "as long as there is something to do"
        );
        assert_eq!(
            look(&mut work, more(3_000), COMPACT_STEP_PAUSE),
            Some(page),
            "it goes on where it was"
        );
        assert_eq!(
            look(&mut work, more(9_000), COMPACT_STEP_PAUSE),
            Some(Timestamp::from_millis(9_000))
        );
        assert_eq!(
            look(&mut work, more(11_000), COMPACT_FRONT_SCAN_INTERVAL),
            Some(Timestamp::AT_ONCE)
        );
        assert_eq!(
            look(
                &mut work,
                CompactionResult::NothingToDo { resume_from: None },
                COMPACT_STEP_PAUSE
            ),
            Some(Timestamp::from_millis(11_000))
        );
    }

    #[test]
    fn a_shard_rests_only_after_its_list_was_seen_to_the_end() {
        let again = |found, after| {
            let (mut work, now) = (looking(), Instant::now());
            work.on_compaction_result(found, WALL, now);
            assert!(
                work.next_compaction_job(
                    WALL,
                    now + COMPACT_STEP_PAUSE.min(after) - Duration::from_millis(1)
                )
                .is_none(),
                "not before"
            );
            work.next_compaction_job(WALL, now + after)
                .map(|chore| chore.scan_from)
        };
        let page = Timestamp::from_millis(7_000);
        assert_eq!(
            again(
                CompactionResult::NothingToDo {
                    resume_from: Some(page)
                },
                COMPACT_STEP_PAUSE
            ),
            Some(page)
        );
        assert_eq!(
            again(CompactionResult::NoGain, COMPACT_STEP_PAUSE),
            Some(Timestamp::AT_ONCE)
        );
        assert_eq!(
            again(CompactionResult::StoreUnavailable, COMPACT_SCAN_INTERVAL),
            Some(Timestamp::AT_ONCE)
        );
        assert_eq!(
            again(swap(0), COMPACT_SCAN_INTERVAL),
            Some(Timestamp::AT_ONCE),
            "one that came too late"
        );
        assert_eq!(
            again(
                CompactionResult::NothingToDo { resume_from: None },
                COMPACT_SCAN_INTERVAL
            ),
            None
        );
        assert_eq!(
            again(
                CompactionResult::NothingToDo { resume_from: None },
                COMPACT_IDLE_SCAN_INTERVAL
            ),
            Some(Timestamp::AT_ONCE)
        );
    }
}
