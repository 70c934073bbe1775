//! Reads the stored state of all shards at an interval. This notices that the store lost data
//! even while nothing is appended, and gives the positions to commit.
//!
//! Reading and appending continue while a check waits for the store and the broker. So each answer
//! is compared with what was known of the partition when the check began.

use super::partition::{AssignedPartition, NextStep};
use super::quota::Waiting;
use super::read_loop::Ingress;
use super::{CallError, stopped_for_long};
use crate::broker::{self, OffsetCommit};
use crate::limit::{OFFSET_COMMIT_INTERVAL, OFFSET_COMMIT_REPEAT_INTERVAL};
use crate::model::{Offset, Progress, ShardId, Watermark};
use crate::store::{self, ShardPosition, Store, StoredShard};
use futures_util::future::LocalBoxFuture;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use tokio::time::{Instant, sleep_until};

/// The check that is in progress. At most one is.
#[derive(Default)]
pub(super) enum StoreCheck {
    #[default]
    None,
    Reading {
        states: LocalBoxFuture<'static, Result<States, store::Error>>,
        kind: CheckKind,
    },
    Committing {
        outcome: LocalBoxFuture<'static, Result<(), broker::Error>>,
        commits: Vec<OffsetCommit>,
    },
}

#[derive(Clone, Copy)]
pub(super) struct CheckKind {
    /// No append will follow.
    is_final: bool,
    /// A frozen worker may have sent an older commit late, so the last one is repeated.
    commits_unchanged: bool,
    /// Reading waits for deliveries.
    waits_for_quota: bool,
}

/// The asked shards and their states. `None`: the store does not know the shard.
type States = Vec<(Asked, Option<StoredShard>)>;

/// A partition as it was when the check began.
pub(super) struct Asked {
    shard: ShardId,
    epoch: u64,
    /// The watermark that the store must have. `None`: records were not stored yet.
    stored_to: Option<Watermark>,
    /// The source may have records that are not stored.
    is_behind: bool,
    /// The positions that the shard has if it is still idle.
    idle: Option<(Watermark, Progress)>,
    /// The messages that this worker had stored when the check began.
    stored_by_worker: Waiting,
    /// Reading waits for deliveries, so the shard must not wait for its source.
    ends_hold: bool,
}

/// An answer for which a check has waited.
pub(super) enum CheckAnswer {
    States(Result<States, store::Error>, CheckKind),
    Commit(Result<(), broker::Error>, Vec<OffsetCommit>),
}

impl StoreCheck {
    pub(super) fn is_running(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Waits for the next answer; forever if no check is in progress. Safe to drop.
    pub(super) async fn answer(&mut self) -> CheckAnswer {
        match self {
            Self::None => std::future::pending().await,
            Self::Reading { states, kind } => {
                let (states, kind) = (states.await, *kind);
                *self = Self::None;
                CheckAnswer::States(states, kind)
            }
            Self::Committing { outcome, commits } => {
                let (outcome, commits) = (outcome.await, std::mem::take(commits));
                *self = Self::None;
                CheckAnswer::Commit(outcome, commits)
            }
        }
    }
}

impl Asked {
    fn new(
        partition: &AssignedPartition,
        kind: CheckKind,
        known_end: Option<Offset>,
        now: Instant,
    ) -> Self {
        let idle = partition.idle_positions(now);
        let is_behind = partition.is_behind(known_end);
        let ends_hold = kind.waits_for_quota && is_behind && partition.waits_for_claim;
        Self {
            shard: partition.shard.clone(),
            epoch: partition.epoch(),
            stored_to: partition.stored_to(),
            is_behind,
            stored_by_worker: partition.waiting.stored_by_worker(),
            ends_hold,
            idle: idle.filter(|_| !kind.commits_unchanged && !ends_hold),
        }
    }

    fn is_unchanged(&self, found: &ShardPosition) -> bool {
        self.idle == Some((found.watermark, found.delivered)) || fault!(IngressAssumesIdleShard)
    }
}

impl Ingress {
    /// Compares all partitions with the store and commits the positions that it has (I1).
    pub(super) fn start_check(&mut self, is_final: bool) {
        let now = Instant::now();
        self.next_check_at = now + OFFSET_COMMIT_INTERVAL;
        let repeats = now >= self.commit_unchanged_at && !fault!(NeverRepeatCommits);
        let kind = CheckKind {
            is_final,
            commits_unchanged: is_final || repeats,
            waits_for_quota: self.waits_for_quota() && !fault!(QuotaKeepsHolds),
        };
        self.ask_for_commits();
        let mut asked = Vec::new();
        for partition in self.partitions.values() {
            let id = &partition.shard.partition;
            let known_end = self.ports.source.known_end(id);
            partition.report_lag(known_end);
            if partition.is_reading() {
                asked.push(Asked::new(partition, kind, known_end, now));
            }
        }
        let is_full = self.ports.appender.is_full.load(Ordering::Relaxed);
        let states = Box::pin(read_states(self.ports.store.clone(), asked, is_full));
        self.check = StoreCheck::Reading { states, kind };
    }

    /// Waits until no check is in progress. A process that stops waits for each answer only for a short
    /// time. The loop shows meanwhile that it moves, and stores its batches.
    pub(super) async fn finish_check(&mut self) -> Result<(), CallError> {
        let mut stopped = pin!(stopped_for_long(self.stop.clone()));
        while self.check.is_running() {
            self.ports.health.source.heartbeat();
            let wake_at = self.next_append_or_heartbeat();
            // Each arm is safe to drop: all keep everything that they have not returned.
            tokio::select! {
                biased;
                answer = self.check.answer() => {
                    self.on_check_answer(answer)?;
                    stopped.set(stopped_for_long(self.stop.clone()));
                }
                () = &mut stopped => self.check = StoreCheck::None,
                Some(result) = self.ports.appender.results.recv() => self.on_append_result(result),
                () = sleep_until(wake_at) => {}
            }
            self.send_appends();
        }
        Ok(())
    }

    pub(super) fn on_check_answer(&mut self, answer: CheckAnswer) -> Result<(), CallError> {
        match answer {
            CheckAnswer::States(Ok(states), kind) => {
                self.ports.health.watermarks.set_ready();
                self.on_states(states, kind);
                self.report_quota();
            }
            CheckAnswer::States(Err(error), _) if error.is_transient() => {
                let watermarks = &self.ports.health.watermarks;
                watermarks.set_not_ready(error.to_string());
            }
            CheckAnswer::States(Err(error), _) => return Err(error.into()),
            CheckAnswer::Commit(outcome, commits) => self.on_commit(outcome, commits),
        }
        Ok(())
    }

    fn on_states(&mut self, states: States, kind: CheckKind) {
        let (wall, now) = (self.ports.clock.now(), Instant::now());
        let mut commits = Vec::new();
        for (asked, state) in states {
            let id = &asked.shard.partition;
            let Some(mut partition) = self.partitions.reading(id, asked.epoch) else {
                continue;
            };
            let next = (state.as_ref()).map_or(NextStep::Reopen, |state| {
                partition.checked(state, asked.stored_by_worker);
                partition.report_keys(state.other_keys(&self.options.keys));
                partition.on_state(state, asked.stored_to, wall)
            });
            if let (NextStep::Continue, Some(state)) = (next, &state) {
                commits.extend(partition.next_commit(
                    state,
                    kind.commits_unchanged,
                    kind.is_final,
                    now,
                ));
            }
            drop(partition);
            self.take_step(id, next, "the watermark in the store changed");
        }
        if kind.commits_unchanged {
            self.commit_unchanged_at = now + OFFSET_COMMIT_REPEAT_INTERVAL;
        }
        if commits.is_empty() {
            // A commit that failed comes again, unless its partition was revoked.
            return self.report_commits();
        }
        let outcome = self.ports.source.commit(commits.clone());
        self.check = StoreCheck::Committing { outcome, commits };
    }

    fn on_commit(&mut self, outcome: Result<(), broker::Error>, commits: Vec<OffsetCommit>) {
        for commit in commits {
            let Some(mut partition) = self.partitions.get_mut(&commit.partition) else {
                continue;
            };
            match outcome {
                Ok(()) => partition.last_commit = Some(commit),
                Err(_) => partition.on_failed_commit(),
            }
        }
        match outcome {
            Ok(()) => self.report_commits(),
            // After a store loss more records are read again. The next commit replaces this one.
            Err(error) => {
                let reason = format!("cannot commit offsets: {error}");
                self.ports.health.commits.set_not_ready(reason);
            }
        }
    }
}

/// Reads the states of the asked shards, except of those that are still idle.
async fn read_states(
    store: Rc<dyn Store>,
    mut asked: Vec<Asked>,
    is_full: bool,
) -> Result<States, store::Error> {
    // The log cannot be read further. Deliveries, which free memory, do not wait for that: G6 goes
    // before G5. A quota ends no hold without need: an ended hold protects no cancel until the next
    // append.
    let ended = asked.iter().filter(|asked| {
        is_full && asked.is_behind && !fault!(FullStoreKeepsHolds) || asked.ends_hold
    });
    let ended: Vec<ShardId> = ended.map(|asked| asked.shard.clone()).collect();
    if !ended.is_empty() {
        store.end_holds(&ended).await?;
    }
    let idle = asked.iter().filter(|asked| asked.idle.is_some());
    let idle: Vec<ShardId> = idle.map(|asked| asked.shard.clone()).collect();
    if !idle.is_empty() {
        let mut found = store.positions(&idle).await?.into_iter();
        asked.retain(|asked| {
            let found = (asked.idle.is_some()).then(|| found.next().flatten());
            !(found.flatten()).is_some_and(|found| asked.is_unchanged(&found))
        });
    }
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let shards: Vec<ShardId> = asked.iter().map(|asked| asked.shard.clone()).collect();
    let states = store.state(&shards).await?;
    Ok(asked.into_iter().zip(states).collect())
}
