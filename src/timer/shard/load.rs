//! Loads the messages of a shard: requests to the loader, its replies, and rollbacks of the store.

use super::prefetch::{FetchOutcome, Prefetch};
use super::resident_runs::ResidentRuns;
use super::rollback::RollbackDetector;
use super::tail_poll::TailPoll;
use crate::limit::{CLAIM_MESSAGES_MAX, TAIL_POLL_INTERVAL_MAX};
use crate::model::{Progress, ShardId, Slice, Timestamp, Watermark};
use crate::run::RunName;
use crate::schedule::Schedule;
use crate::store::Lineage;
use crate::timer::load::{Load, LoadResult, MemoryAccount, ReadOutcome, ResidentRun};
use std::rc::Rc;
use tokio::time::Instant;

/// The load state of one shard.
pub(crate) struct ShardLoad {
    shard: ShardId,
    runs: ResidentRuns,
    /// Replies with another generation were requested before everything was dropped.
    generation: u64,
    rollback: RollbackDetector,
    prefetch: Prefetch,
    tail: TailPoll,
    /// Runs that cannot be decoded, until they are in quarantine.
    unreadable: Vec<(Slice, RunName)>,
}

/// The effect of a reply.
pub(super) enum LoadOutcome {
    Applied,
    /// The store was rolled back: everything in memory was dropped and is loaded again.
    Restarted,
    UnknownShard,
}

impl ShardLoad {
    pub(super) fn new(
        shard: &ShardId,
        slot: u16,
        start: Progress,
        watermark: Watermark,
        memory: Rc<MemoryAccount>,
        now: Instant,
    ) -> Self {
        Self {
            shard: shard.clone(),
            runs: ResidentRuns::new(start, watermark, memory),
            // Replies to an earlier period of ownership must not match.
            generation: u64::from(slot) << 32,
            rollback: RollbackDetector::default(),
            prefetch: Prefetch::new(),
            tail: TailPoll::new(now),
            unreadable: Vec::new(),
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn runs_mut(&mut self) -> &mut ResidentRuns {
        &mut self.runs
    }

    pub(crate) fn schedule(&self) -> &Schedule<ResidentRun> {
        self.runs.schedule()
    }

    pub(crate) fn memory(&self) -> &Rc<MemoryAccount> {
        self.runs.memory()
    }

    /// Runs that begin at this due time or before are loaded, or about to be.
    pub(crate) fn horizon(&self) -> Timestamp {
        self.prefetch.horizon()
    }

    /// Time of the next tail poll, or `None` while a reply is awaited.
    pub(super) fn next_tail_poll(&self) -> Option<Instant> {
        self.tail.next_at()
    }

    /// The number of run replacements in the store, as of the last reply.
    pub(crate) fn known_replacements(&self) -> Option<u64> {
        self.rollback.replacements()
    }

    /// Drops everything in memory and loads it again.
    pub(super) fn restart(&mut self, taken: Progress, watermark: Watermark, now: Instant) {
        self.runs.restart(taken, watermark);
        self.rollback.forget();
        self.prefetch.restart();
        self.tail = TailPoll::new(now);
        self.generation += 1;
    }

    pub(crate) fn on_hint(&mut self, least_due: Timestamp, wall: Timestamp, now: Instant) {
        self.tail.on_hint(least_due, wall, now);
    }

    pub(super) fn next_prefetch_request(
        &mut self,
        wall: Timestamp,
        has_claims: bool,
        is_blocked: impl FnOnce(Timestamp) -> bool,
    ) -> Option<Load> {
        self.prefetch
            .next_request(&mut self.runs, wall, has_claims, is_blocked)
    }

    pub(super) fn is_tail_poll_due(&self, now: Instant) -> bool {
        self.tail.is_due(now, false)
    }

    /// Returns the request of a tail poll if it is time. `is_full`: no further message of the shard
    /// may be claimed.
    pub(super) fn next_tail_request(
        &mut self,
        now: Instant,
        joins_batch: bool,
        is_full: bool,
    ) -> Option<Load> {
        if !self.tail.is_due(now, joins_batch) {
            return None;
        }
        let memory = self.runs.memory();
        let is_backlogged = self.runs.schedule().late_count() > CLAIM_MESSAGES_MAX || is_full;
        if is_backlogged && memory.is_exhausted() {
            // Deliver the messages in memory first. If the store cuts the tail in the meantime, the shard
            // is loaded again within the budget.
            self.tail.postpone(now + TAIL_POLL_INTERVAL_MAX);
            return None;
        }
        let (limit, bytes) = memory.tail_limits();
        let is_likely = self.tail.is_likely_to_find();
        let reservation = is_likely.then(|| memory.reserve(bytes));
        let hinted = self.tail.start(reservation);
        let until = self.prefetch.horizon();
        let keep_until = if memory.is_half_free() {
            Timestamp::MAX
        } else {
            until
        };
        Some(Load::Tail {
            after: self.runs.schedule().seen(),
            until,
            keep_until,
            limit,
            hinted,
        })
    }

    pub(super) fn on_reply(&mut self, result: LoadResult, now: Instant) -> LoadOutcome {
        let has_restarted = match result {
            LoadResult::UnknownShard => return LoadOutcome::UnknownShard,
            LoadResult::TailGap { watermark } => self.on_tail_gap(watermark, now),
            LoadResult::Tail {
                watermark,
                complete_to,
                lineage,
                runs,
            } => {
                if self.detect_rollback_by_lineage(watermark, lineage, now) {
                    return LoadOutcome::Restarted;
                }
                let found = complete_to > self.runs.schedule().seen();
                self.tail.finish(found, complete_to < watermark, now);
                for run in runs {
                    self.add_run(run);
                }
                self.runs.advance_seen(complete_to);
                false
            }
            LoadResult::List {
                watermark,
                lineage,
                runs,
                has_more,
            } => {
                if self.detect_rollback_by_lineage(watermark, lineage, now) {
                    return LoadOutcome::Restarted;
                }
                self.rollback.set(lineage);
                self.prefetch.on_list_reply(&mut self.runs, runs, has_more);
                false
            }
            LoadResult::Fetch { reads, left } => self.on_fetch_reply(reads, left, now),
        };
        if has_restarted {
            LoadOutcome::Restarted
        } else {
            LoadOutcome::Applied
        }
    }

    fn on_tail_gap(&mut self, watermark: Watermark, now: Instant) -> bool {
        let seen = self.runs.schedule().seen();
        if fault!(IgnoreRollback) && watermark < seen {
            self.tail.finish(false, false, now);
            return false;
        }
        if !self.detect_rollback(watermark, now) {
            tracing::info!(shard = %self.shard,
                "the store no longer holds the tail up to the last poll: loading the shard again");
            self.restart(self.runs.schedule().taken(), watermark, now);
        }
        true
    }

    fn on_fetch_reply(&mut self, reads: Vec<ReadOutcome>, left: Vec<usize>, now: Instant) -> bool {
        let missing = reads.iter().filter_map(|read| match read {
            ReadOutcome::Missing { slice, name } => Some((*slice, name.clone())),
            _ => None,
        });
        let missing = missing.collect();
        for read in reads {
            self.add_run(read);
        }
        let outcome = self.prefetch.on_fetch_reply(&mut self.runs, missing, left);
        let FetchOutcome::RolledBack { unreadable } = outcome else {
            return false;
        };
        for (slice, name) in unreadable {
            tracing::error!(shard = %self.shard, run = %name, messages = name.count(),
                "a stored run has no content: moving it to the shard's quarantine");
            self.unreadable.push((slice, name));
        }
        tracing::warn!(shard = %self.shard,
            "a run has disappeared from the store: loading the shard again");
        let schedule = self.runs.schedule();
        self.restart(schedule.taken(), schedule.seen(), now);
        true
    }

    fn add_run(&mut self, read: ReadOutcome) {
        match read {
            ReadOutcome::Missing { .. } => {}
            ReadOutcome::Corrupt { slice, name, why } => {
                tracing::error!(shard = %self.shard, run = %name,
                    least_offset = %name.least_offset(), messages = name.count(),
                    "a stored run is unreadable ({why}): moving it to the shard's quarantine");
                self.unreadable.push((slice, name));
            }
            ReadOutcome::Loaded(run) => self.runs.add(run),
        }
    }

    /// Reloads the shard if the store's watermark shows a rollback. Returns whether it does.
    pub(super) fn detect_rollback(&mut self, watermark: Watermark, now: Instant) -> bool {
        let schedule = self.runs.schedule();
        let is_rolled_back = schedule.is_rolled_back(watermark);
        if is_rolled_back {
            tracing::warn!(shard = %self.shard, seen = %schedule.seen(), %watermark,
                "the store has lost messages: loading the shard again");
            self.restart(schedule.taken(), watermark, now);
        }
        is_rolled_back
    }

    /// Like [`Self::detect_rollback`], and also finds a rollback after which others have appended.
    fn detect_rollback_by_lineage(
        &mut self,
        watermark: Watermark,
        lineage: Lineage,
        now: Instant,
    ) -> bool {
        if self.detect_rollback(watermark, now) {
            return true;
        }
        let schedule = self.runs.schedule();
        let is_refilled = self.rollback.is_refilled(lineage, schedule.seen());
        if is_refilled {
            tracing::warn!(shard = %self.shard,
                "the store has lost messages and was refilled: loading the shard again");
            self.restart(schedule.taken(), watermark, now);
        }
        is_refilled
    }

    /// Takes the runs to quarantine.
    pub(crate) fn take_unreadable(&mut self) -> Vec<(Slice, RunName)> {
        std::mem::take(&mut self.unreadable)
    }

    pub(crate) fn restore_unreadable(&mut self, runs: Vec<(Slice, RunName)>) {
        self.unreadable.extend(runs);
    }
}

#[cfg(test)]
impl ShardLoad {
    pub(super) fn set_horizon(&mut self, horizon: Timestamp) {
        self.prefetch.set_horizon(horizon);
    }
}
