//! Compaction: merges small runs, and splits runs that are too large to be loaded at once.
//!
//! `plan` chooses the runs of a shard, `merge` builds the new runs. Runs that are due soon are left
//! alone. The compactor writes no runs: it passes the new ones to the dispatcher, which knows which
//! messages are loaded, and replaces the old runs if that is still safe. A slow or stopped
//! compactor costs memory of the store, and never a message.
//!
//! The compactor also removes the ids of finished messages that an earlier timer left. A key of the ring can
//! only be removed when no id is stored under it.

mod merge;
mod plan;

use crate::encryption::StoredId;
use crate::limit::{
    COMPACT_FETCH_RUNS_MAX, COMPACT_IDS_MAX, COMPACT_REST_FACTOR, COMPACT_SCAN_INTERVAL,
    COMPACT_SCAN_RUNS_MAX, COMPACT_SKIPPED_RUNS_MAX, COMPACT_URGENT_REST_FACTOR, PREFETCH_AHEAD,
};
use crate::model::{Cursor, Progress, ShardId, Slice, Timestamp};
use crate::run::{LoadedRun, Run, RunBuilder, RunDecoder, RunName};
use crate::store::{Error, Fetch, FinishedIds, IdPosition, List, Listed, RunEntry, Store};
pub(crate) use plan::CompactionPolicy;
use plan::Job;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A shard to scan for compaction. The reply carries the same `tag`.
#[derive(Clone, Debug)]
pub(crate) struct CompactionTask {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    /// Messages due by then are loaded, or are being loaded.
    pub(crate) loaded_until: Timestamp,
    /// The due time at which the scan of the shard's runs starts.
    pub(crate) scan_from: Timestamp,
    /// The number of messages of one hour that can be loaded together.
    pub(crate) hour_messages_max: u64,
    pub(crate) id_scan: IdScan,
}

/// Progress of the removal of ids of finished messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdScan {
    /// Continues here; `None`: at the first id.
    At(Option<IdPosition>),
    Done,
}

#[derive(Debug)]
pub(crate) struct CompactionReply {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    pub(crate) result: CompactionResult,
}

#[derive(Debug)]
pub(crate) enum CompactionResult {
    Replace(Replacement),
    /// There is nothing to compact in this part of the shard. The scan continues at `resume_from`;
    /// `None` means that it reached the end. Ids of finished messages were removed up to `id_scan`.
    NothingToDo {
        resume_from: Option<Timestamp>,
        id_scan: IdScan,
    },
    /// The chosen runs cannot be improved, or not yet. The next scans skip them.
    NoGain,
    StoreUnavailable,
}

#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) inputs: Vec<(Slice, RunName)>,
    pub(crate) outputs: Vec<Run>,
    /// Ids that are hashed by another key than that of the outputs, and the places of their
    /// messages.
    pub(crate) renamed_ids: Vec<(StoredId, Cursor)>,
    /// The replacement is allowed only while the shard is not loaded up to this due time.
    pub(crate) valid_until: Timestamp,
}

pub(crate) struct Compactor {
    store: Rc<dyn Store>,
    tasks: mpsc::Receiver<CompactionTask>,
    replies: mpsc::Sender<CompactionReply>,
    policy: CompactionPolicy,
    decoder: RunDecoder,
    builder: RunBuilder,
    /// Runs to skip until messages are frozen up to the given due time. They are unreadable, or have
    /// a message that is due too soon.
    skipped: BTreeMap<RunName, Timestamp>,
    /// The same for runs that a merge or a split cannot improve.
    without_gain: BTreeMap<RunName, Timestamp>,
    /// When an urgent job was last found.
    last_urgent: Option<Instant>,
    /// The last job was the turn of a change of keys.
    changed_key: bool,
}

/// The messages that compaction drops, and those that it must not touch.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Delivered messages are dropped.
    delivered: Progress,
    /// Messages due by then may be loaded at any time.
    frozen_until: Timestamp,
}

impl Bounds {
    fn is_frozen(&self, place: Cursor) -> bool {
        place.due <= self.frozen_until
    }
}

impl Compactor {
    /// `builder` names the new runs. It has the keys of the process.
    pub(crate) fn new(
        store: Rc<dyn Store>,
        tasks: mpsc::Receiver<CompactionTask>,
        replies: mpsc::Sender<CompactionReply>,
        policy: CompactionPolicy,
        builder: RunBuilder,
    ) -> Self {
        Self {
            store,
            tasks,
            replies,
            policy,
            decoder: RunDecoder::new(builder.keys().clone()),
            builder,
            skipped: BTreeMap::new(),
            without_gain: BTreeMap::new(),
            last_urgent: None,
            changed_key: false,
        }
    }

    /// Serves until the task channel is closed or `stop` is cancelled.
    pub(crate) async fn serve(mut self, stop: CancellationToken) -> Result<(), Error> {
        // Safe to drop: a compaction step only reads.
        let served = stop.run_until_cancelled(self.serve_tasks()).await;
        served.unwrap_or(Ok(()))
    }

    /// If the store is unavailable, the next task tries again. After each task, the loop rests in
    /// proportion to the work, because delivery needs the store and the processor more urgently.
    async fn serve_tasks(&mut self) -> Result<(), Error> {
        while let Some(task) = self.tasks.recv().await {
            let started_at = Instant::now();
            let result = match self.compact(&task).await {
                Err(error) if error.is_transient() => CompactionResult::StoreUnavailable,
                outcome => outcome?,
            };
            let CompactionTask { shard, tag, .. } = task;
            let reply = CompactionReply { shard, tag, result };
            if self.replies.send(reply).await.is_err() {
                break;
            }
            tokio::time::sleep(pause(self.last_urgent, started_at, Instant::now())).await;
        }
        Ok(())
    }

    async fn compact(&mut self, task: &CompactionTask) -> Result<CompactionResult, Error> {
        let shard = std::slice::from_ref(&task.shard);
        let stored = self.store.state(shard).await?.pop().flatten();
        let list = List {
            shard: task.shard.clone(),
            from: task.scan_from,
            until: Timestamp::MAX,
            limit: COMPACT_SCAN_RUNS_MAX,
        };
        let (mut runs, has_more) = match self.store.list(&[list]).await?.pop() {
            Some(Listed::Runs { runs, has_more, .. }) => (runs, has_more),
            _ => (Vec::new(), false),
        };
        let last = runs.last().filter(|_| has_more);
        let resume_from = last.map(|run| run.least_due.plus(Duration::from_millis(1)));
        let frozen_until = self.policy.frozen_until(task.loaded_until);
        let is_over = |skipped: &BTreeMap<RunName, Timestamp>, run: &RunEntry| {
            let until = skipped.get(&run.name);
            until.is_none_or(|until| *until <= frozen_until)
        };
        runs.retain(|run| is_over(&self.skipped, run));
        let old = (runs.iter()).filter(|run| self.builder.has_other_key(&run.name));
        let old_key = self.policy.plan_rewrite(old, frozen_until);
        runs.retain(|run| is_over(&self.without_gain, run));
        let job = self
            .policy
            .plan(&runs, frozen_until, task.hour_messages_max);
        let job = self.choose(job, old_key);
        let (Some(stored), Some(job)) = (stored, job) else {
            let id_scan = self.remove_finished_ids(task).await?;
            return Ok(CompactionResult::NothingToDo {
                resume_from,
                id_scan,
            });
        };
        if job.is_urgent {
            self.last_urgent = Some(Instant::now());
        }
        let bounds = Bounds {
            delivered: stored.delivered,
            frozen_until,
        };
        let replacement = self.build_replacement(&task.shard, job, bounds).await?;
        Ok(replacement.map_or(CompactionResult::NoGain, CompactionResult::Replace))
    }

    /// A change of keys takes turns with jobs that are not urgent. Without turns, a busy shard would keep its
    /// old keys.
    fn choose(&mut self, job: Option<Job>, key_change: Option<Job>) -> Option<Job> {
        let is_urgent = job.as_ref().is_some_and(|job| job.is_urgent);
        let changes_key = key_change.is_some() && !is_urgent && !self.changed_key;
        self.changed_key = changes_key;
        let (first, second) = if changes_key {
            (key_change, job)
        } else {
            (job, key_change)
        };
        first.or(second)
    }

    /// Removes ids of finished messages in the next part of the ids. The work of one task stays small, so that
    /// compaction continues in between.
    async fn remove_finished_ids(&self, task: &CompactionTask) -> Result<IdScan, Error> {
        let IdScan::At(from) = &task.id_scan else {
            return Ok(IdScan::Done);
        };
        if fault!(KeepFinishedIds) {
            return Ok(IdScan::Done);
        }
        let request = FinishedIds {
            shard: task.shard.clone(),
            from: from.clone(),
        };
        let next = self.store.remove_finished_ids(&[request]).await?.pop();
        let next = next.flatten().map(|next| IdScan::At(Some(next)));
        Ok(next.unwrap_or(IdScan::Done))
    }

    async fn build_replacement(
        &mut self,
        shard: &ShardId,
        job: Job,
        bounds: Bounds,
    ) -> Result<Option<Replacement>, Error> {
        let inputs = self.fetch_inputs(shard, job.runs, bounds).await?;
        let (policy, builder) = (&self.policy, &mut self.builder);
        let outputs = merge::merge_runs(shard, &inputs, job.kind, bounds, policy, builder);
        let Some(outputs) = outputs.filter(|_| !inputs.is_empty()) else {
            return Ok(None);
        };
        let no_gain_until = policy.no_gain_until(&inputs, &outputs, job.kind, bounds.frozen_until);
        if let Some(until) = no_gain_until {
            for run in &inputs {
                skip(&mut self.without_gain, run.name.clone(), until);
            }
            return Ok(None);
        }
        let renamed_ids = renamed_ids(shard, &inputs, bounds, builder);
        let least_due = outputs.iter().map(|run| run.summary.least_due()).min();
        let valid_until = least_due.map(|due| policy.replacement_valid_until(due));
        let inputs = inputs.iter().map(|run| (run.slice, run.name.clone()));
        Ok(Some(Replacement {
            inputs: inputs.collect(),
            outputs,
            renamed_ids,
            valid_until: valid_until.unwrap_or(Timestamp::MAX),
        }))
    }

    /// Fetches the runs that can be compacted now, until they exceed the bytes of a job.
    async fn fetch_inputs(
        &mut self,
        shard: &ShardId,
        runs: Vec<(Slice, RunName)>,
        bounds: Bounds,
    ) -> Result<Vec<LoadedRun>, Error> {
        let mut inputs: Vec<LoadedRun> = Vec::new();
        let (mut used, mut renamed) = (0, 0);
        for part in runs.chunks(COMPACT_FETCH_RUNS_MAX) {
            let fetch = Fetch {
                shard: shard.clone(),
                runs: part.to_vec(),
            };
            let blobs = self.store.fetch(&[fetch]).await?.pop().unwrap_or_default();
            for ((slice, name), bytes) in part.iter().zip(blobs) {
                let Some(bytes) = bytes else { continue };
                match self.decoder.decode(shard, name.clone(), *slice, &bytes) {
                    Ok(run) if is_ready(&run, bounds) => {
                        renamed += ids_to_rename(&run, &self.builder).count();
                        if renamed > COMPACT_IDS_MAX && !inputs.is_empty() {
                            return Ok(inputs);
                        }
                        used += run.memory_size();
                        inputs.push(run);
                    }
                    // Its frozen messages may be delivered some time after they were due.
                    Ok(_) => {
                        let until = bounds.frozen_until.plus(PREFETCH_AHEAD);
                        skip(&mut self.skipped, name.clone(), until);
                    }
                    Err(_) => skip(&mut self.skipped, name.clone(), Timestamp::MAX),
                }
                if used > self.policy.job_bytes_max {
                    return Ok(inputs);
                }
            }
        }
        Ok(inputs)
    }
}

fn skip(skipped: &mut BTreeMap<RunName, Timestamp>, name: RunName, until: Timestamp) {
    if skipped.len() >= COMPACT_SKIPPED_RUNS_MAX {
        skipped.clear();
    }
    skipped.insert(name, until);
}

/// The ids of the messages whose key changes. An id has the key of the run that holds its message.
fn renamed_ids(
    shard: &ShardId,
    inputs: &[LoadedRun],
    bounds: Bounds,
    builder: &RunBuilder,
) -> Vec<(StoredId, Cursor)> {
    let mut ids = Vec::new();
    for run in inputs.iter().filter(|_| !fault!(KeepIdsOfOldKey)) {
        for message in ids_to_rename(run, builder).filter_map(|index| run.message(index)) {
            if !bounds.delivered.covers(message.place)
                && let Some(id) = message.body.id
            {
                ids.push((builder.keys().stored_id(shard, id), message.place));
            }
        }
    }
    ids
}

/// The messages with an id whose key changes.
fn ids_to_rename(run: &LoadedRun, builder: &RunBuilder) -> impl Iterator<Item = usize> {
    let changes = builder.has_other_key(&run.name);
    (0..run.len()).filter(move |index| changes && run.has_id(*index))
}

/// The rest after a task that began at `started_at`. It is shorter while any shard has urgent work.
fn pause(last_urgent: Option<Instant>, started_at: Instant, now: Instant) -> Duration {
    let is_urgent = last_urgent.is_some_and(|found_at| now < found_at + COMPACT_SCAN_INTERVAL);
    let factor = if is_urgent {
        COMPACT_URGENT_REST_FACTOR
    } else {
        COMPACT_REST_FACTOR
    };
    (now.duration_since(started_at) * factor).min(COMPACT_SCAN_INTERVAL)
}

/// Returns whether all frozen messages of the run are delivered.
fn is_ready(run: &LoadedRun, bounds: Bounds) -> bool {
    (0..run.len())
        .map(|index| run.place(index))
        .take_while(|place| bounds.is_frozen(*place))
        .all(|place| bounds.delivered.covers(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallClock;
    use crate::encryption::KeyRing;
    use crate::encryption::test_rings::{line, ring};
    use crate::model::{Level, Watermark};
    use crate::run::EncodedMessage;
    use crate::run::test_messages::{TestMessage, at};
    use crate::store::ShardStore as _;
    use crate::testing::store::memory::MemoryStore;
    use crate::testing::store::requests::{append_at, new_shard};
    use plan::JobKind;

    fn compactor(store: &MemoryStore, keys: KeyRing) -> Compactor {
        let builder = RunBuilder::new(1, keys);
        let (tasks, replies) = (mpsc::channel(1).1, mpsc::channel(1).0);
        let policy = CompactionPolicy::DEFAULT;
        Compactor::new(Rc::new(store.clone()), tasks, replies, policy, builder)
    }

    #[test]
    fn a_change_of_keys_takes_turns_with_jobs_that_are_not_urgent() {
        let store = MemoryStore::new(Rc::new(WallClock));
        let mut compactor = compactor(&store, KeyRing::plain());
        let job = |kind, is_urgent| {
            let runs = Vec::new();
            Some(Job {
                runs,
                kind,
                is_urgent,
            })
        };
        let mut choose = |is_urgent| {
            let merge = job(JobKind::MergeSlice, is_urgent);
            let chosen = compactor.choose(merge, job(JobKind::Encrypt, false));
            chosen.expect("there are two").kind
        };
        let chosen = [false, false, false, true, true, false].map(&mut choose);
        let (merge, encrypt) = (JobKind::MergeSlice, JobKind::Encrypt);
        assert_eq!(chosen, [encrypt, merge, encrypt, merge, merge, encrypt]);
        let only = compactor.choose(None, job(JobKind::Encrypt, false));
        assert!(only.is_some());
    }

    /// A script that renames many ids blocks Redis.
    #[tokio::test]
    async fn a_change_of_keys_takes_no_more_runs_than_it_may_rename_ids() {
        let store = MemoryStore::new(Rc::new(WallClock));
        let shard = new_shard("t").shard;
        store.open(&[new_shard("t")]).await.unwrap();
        let old = ring(&line("a", 1));
        let slice = Slice::at(Level::Hour, Timestamp::from_millis(1));
        let with_id = TestMessage {
            id: Some("id".to_owned()),
            ..TestMessage::default()
        };
        let record = with_id.record();
        let mut builder = RunBuilder::new(2, old);
        let count = COMPACT_IDS_MAX as u64 / 2;
        let mut names = Vec::new();
        for run in 0..3 {
            let message = |offset| EncodedMessage {
                slice,
                place: at(1, offset),
                record: &record,
            };
            let mut messages: Vec<_> = (run * count..(run + 1) * count).map(message).collect();
            let runs = builder.build(&shard, &mut messages, None);
            names.extend(runs.iter().map(|run| (run.slice, run.name.clone())));
            let mut append = append_at("t", at(1, 0));
            append.from = Watermark(run * count);
            append.to = Watermark((run + 1) * count);
            append.runs = runs;
            append.changes = Vec::new();
            store.append(&[append]).await.unwrap();
        }
        let bounds = Bounds {
            delivered: Progress::START,
            frozen_until: Timestamp::AT_ONCE,
        };
        let fetched = async |keys: &str| {
            let mut compactor = compactor(&store, ring(keys));
            let inputs = compactor.fetch_inputs(&shard, names.clone(), bounds);
            inputs.await.unwrap().len()
        };
        assert_eq!(fetched(&(line("b", 2) + &line("a", 1))).await, 2);
        assert_eq!(fetched(&line("a", 1)).await, 3, "no key changes");
    }

    #[test]
    fn the_pause_is_proportional_to_the_work_shorter_while_urgent_and_limited() {
        let started_at = Instant::now();
        let work = Duration::from_millis(10);
        let urgent_at = started_at;
        let normal = |started_at, now| pause(None, started_at, now);
        assert_eq!(
            normal(started_at, started_at + work),
            work * COMPACT_REST_FACTOR
        );
        assert_eq!(
            normal(started_at, started_at + Duration::from_secs(9)),
            COMPACT_SCAN_INTERVAL
        );
        let urgent = |started_at, now| pause(Some(urgent_at), started_at, now);
        assert_eq!(
            urgent(started_at, started_at + work),
            work * COMPACT_URGENT_REST_FACTOR
        );
        let later = started_at + COMPACT_SCAN_INTERVAL;
        assert_eq!(
            urgent(later, later + work),
            work * COMPACT_REST_FACTOR,
            "the urgent work is done"
        );
    }
}
