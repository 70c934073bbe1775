//! The rewriter: the work of the outer levels. It makes of runs that are thin, or too much to be loaded at once, runs that are neither, as long
//! as nothing of them is due soon. `plan` says which, `merge` makes them.
//!
//! It writes nothing itself: the dispatcher, which alone knows what is loaded, puts the new runs in the place of the old ones, or leaves it.
//! So a rewriter that is late, or stands still, costs memory of the store and never a message.

mod merge;
mod plan;

use crate::limit::{
    COMPACT_BYTES_MAX, COMPACT_FETCH_RUNS_MAX, COMPACT_REST_FACTOR, COMPACT_SCAN_INTERVAL,
    COMPACT_SCAN_RUNS_MAX, COMPACT_SKIPPED_RUNS_MAX, COMPACT_URGENT_REST_FACTOR, PREFETCH_AHEAD,
};
use crate::model::{Progress, ShardId, Slice, Timestamp};
use crate::run::{LoadedRun, Run, RunBuilder, RunDecoder, RunName};
use crate::store::{Error, Fetch, List, Listed, Store};
pub(crate) use plan::CompactionPolicy;
use plan::Job;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A shard to look at.
#[derive(Clone, Debug)]
pub(crate) struct CompactionTask {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    /// What is due by then is loaded, or about to be.
    pub(crate) loaded_until: Timestamp,
    /// Where in the list of runs to begin.
    pub(crate) scan_from: Timestamp,
    /// Messages of an hour that can be loaded together.
    pub(crate) hour_messages_max: u64,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct CompactionReply {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    pub(crate) result: CompactionResult,
}

#[derive(Debug)]
pub(crate) enum CompactionResult {
    Replace(Replacement),
    /// There is nothing to do in this part of the list. It goes on there; `None`: it was seen to its end.
    NothingToDo {
        resume_from: Option<Timestamp>,
    },
    /// Runs that looked as if there was something to gain, and are left alone now.
    NoGain,
    /// The store did not answer.
    StoreUnavailable,
}

/// Runs, and those that are to be in their place.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) inputs: Vec<(Slice, RunName)>,
    pub(crate) outputs: Vec<Run>,
    /// It may be done until the shard is loaded so far.
    pub(crate) valid_until: Timestamp,
}

/// See the module's page.
pub(crate) struct Compactor {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) tasks: mpsc::Receiver<CompactionTask>,
    pub(crate) replies: mpsc::Sender<CompactionReply>,
    pub(crate) policy: CompactionPolicy,
    /// For the names of its runs.
    pub(crate) writer: u64,
}

/// What the loop owns.
struct CompactorState {
    decoder: RunDecoder,
    builder: RunBuilder,
    /// Runs that are left alone until `beyond` has come so far: unreadable, not to be made fewer, or with a message that is due before.
    skipped: BTreeMap<RunName, Timestamp>,
    /// When something urgent was found last.
    last_urgent: Option<Instant>,
}

impl Compactor {
    /// Serves until the chores' channel is closed or `stop` is cancelled. A store that does not answer now is asked again with the next chore.
    /// Between two chores it rests in proportion to the work that the first was: the store and the machine have more urgent things to do.
    pub(crate) async fn serve(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut tools = CompactorState::new(self.writer);
        loop {
            // Dropped at any await it has changed nothing: it only reads.
            let chore = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                chore = self.tasks.recv() => chore,
            };
            let Some(chore) = chore else { return Ok(()) };
            let begun = Instant::now();
            let outcome = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                outcome = self.compact(&chore, &mut tools) => outcome,
            };
            let found = match outcome {
                Ok(found) => found,
                Err(error) if error.is_transient() => CompactionResult::StoreUnavailable,
                Err(error) => return Err(error),
            };
            if self
                .replies
                .send(CompactionReply {
                    shard: chore.shard,
                    tag: chore.tag,
                    result: found,
                })
                .await
                .is_err()
            {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(tools.pause(begun, Instant::now())) => {}
            }
        }
    }

    async fn compact(
        &self,
        chore: &CompactionTask,
        tools: &mut CompactorState,
    ) -> Result<CompactionResult, Error> {
        let list = List {
            shard: chore.shard.clone(),
            from: chore.scan_from,
            until: Timestamp::MAX,
            limit: COMPACT_SCAN_RUNS_MAX,
        };
        let delivered = self
            .store
            .state(std::slice::from_ref(&chore.shard))
            .await?
            .pop()
            .flatten()
            .map(|state| state.delivered);
        let (mut runs, is_cut) = match self.store.list(&[list]).await?.pop() {
            Some(Listed::Runs {
                runs,
                has_more: more,
                ..
            }) => (runs, more),
            _ => (Vec::new(), false),
        };
        let more = if is_cut {
            runs.last()
                .map(|run| run.least_due.plus(Duration::from_millis(1)))
        } else {
            None
        };
        let beyond = self.policy.frozen_until(chore.loaded_until);
        runs.retain(|run| {
            tools
                .skipped
                .get(&run.name)
                .is_none_or(|until| *until <= beyond)
        });
        match delivered.zip(self.policy.plan(&runs, beyond, chore.hour_messages_max)) {
            Some((delivered, job)) => {
                tools.last_urgent = if job.is_urgent {
                    Some(Instant::now())
                } else {
                    tools.last_urgent
                };
                self.build_replacement(&chore.shard, job, (delivered, beyond), tools)
                    .await
            }
            None => Ok(CompactionResult::NothingToDo { resume_from: more }),
        }
    }

    async fn build_replacement(
        &self,
        shard: &ShardId,
        job: Job,
        (delivered, beyond): (Progress, Timestamp),
        tools: &mut CompactorState,
    ) -> Result<CompactionResult, Error> {
        let inputs = self
            .fetch_inputs(shard, job.runs, (delivered, beyond), tools)
            .await?;
        let outputs = merge::merge_runs(
            &inputs,
            job.kind,
            (delivered, beyond),
            &self.policy,
            &mut tools.builder,
        );
        let Some(outputs) = outputs.filter(|_| !inputs.is_empty()) else {
            return Ok(CompactionResult::NoGain);
        };
        if let Some(until) = self
            .policy
            .no_gain_until(&inputs, &outputs, job.kind, beyond)
        {
            inputs
                .iter()
                .for_each(|run| tools.skip(run.name().clone(), until));
            return Ok(CompactionResult::NoGain);
        }
        let inputs = inputs
            .iter()
            .map(|run| (run.slice(), run.name().clone()))
            .collect();
        let before = outputs
            .iter()
            .map(|run| run.summary.least_due())
            .min()
            .map_or(Timestamp::MAX, |due| {
                self.policy.replacement_valid_until(due)
            });
        Ok(CompactionResult::Replace(Replacement {
            inputs,
            outputs,
            valid_until: before,
        }))
    }

    /// The runs that can be rewritten now, as many as there is memory for.
    async fn fetch_inputs(
        &self,
        shard: &ShardId,
        runs: Vec<(Slice, RunName)>,
        (delivered, beyond): (Progress, Timestamp),
        tools: &mut CompactorState,
    ) -> Result<Vec<LoadedRun>, Error> {
        let (mut inputs, mut held) = (Vec::new(), 0);
        for part in runs.chunks(COMPACT_FETCH_RUNS_MAX) {
            let fetch = Fetch {
                shard: shard.clone(),
                runs: part.to_vec(),
            };
            let blobs = self.store.fetch(&[fetch]).await?.pop().unwrap_or_default();
            for ((slice, name), bytes) in part.iter().zip(blobs) {
                let Some(bytes) = bytes else { continue };
                let loaded = tools.decoder.decode(name.clone(), *slice, &bytes);
                match loaded
                    .map_err(|_| Timestamp::MAX)
                    .and_then(|run| ready_to_compact(run, delivered, beyond))
                {
                    Ok(run) => {
                        held += run.memory_size();
                        inputs.push(run);
                    }
                    Err(until) => tools.skip(name.clone(), until),
                }
                if held > COMPACT_BYTES_MAX {
                    return Ok(inputs);
                }
            }
        }
        Ok(inputs)
    }
}

impl CompactorState {
    fn new(writer: u64) -> Self {
        Self {
            decoder: RunDecoder::new(),
            builder: RunBuilder::new(writer),
            skipped: BTreeMap::new(),
            last_urgent: None,
        }
    }

    /// How long to rest after a look that began then. Not much where there is something urgent, in whichever shard.
    fn pause(&self, begun: Instant, now: Instant) -> Duration {
        let is_urgent = self
            .last_urgent
            .is_some_and(|found| now < found + COMPACT_SCAN_INTERVAL);
        let times = if is_urgent {
            COMPACT_URGENT_REST_FACTOR
        } else {
            COMPACT_REST_FACTOR
        };
        (now.duration_since(begun) * times).min(COMPACT_SCAN_INTERVAL)
    }

    fn skip(&mut self, name: RunName, until: Timestamp) {
        if self.skipped.len() >= COMPACT_SKIPPED_RUNS_MAX {
            self.skipped.clear();
        }
        self.skipped.insert(name, until);
    }
}

/// A run of which nothing that is left is due by `beyond`; else when to look at it again: what is left of it may be delivered a while after
/// it was due.
fn ready_to_compact(
    run: LoadedRun,
    delivered: Progress,
    beyond: Timestamp,
) -> Result<LoadedRun, Timestamp> {
    let mut places = (0..run.len())
        .map(|index| run.place(index))
        .take_while(|place| place.due <= beyond);
    if places.all(|place| delivered.covers(place)) {
        Ok(run)
    } else {
        Err(beyond.plus(PREFETCH_AHEAD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_in_proportion_to_its_work_less_while_something_is_urgent_and_never_for_long() {
        let (begun, mut tools) = (Instant::now(), CompactorState::new(1));
        let now = begun + Duration::from_millis(10);
        assert_eq!(
            tools.pause(begun, now),
            Duration::from_millis(10) * COMPACT_REST_FACTOR
        );
        assert_eq!(
            tools.pause(begun, begun + Duration::from_secs(9)),
            COMPACT_SCAN_INTERVAL
        );
        tools.last_urgent = Some(begun);
        assert_eq!(
            tools.pause(begun, now),
            Duration::from_millis(10) * COMPACT_URGENT_REST_FACTOR
        );
        let later = begun + COMPACT_SCAN_INTERVAL;
        assert_eq!(
            tools.pause(later, later + Duration::from_millis(10)),
            Duration::from_millis(10) * COMPACT_REST_FACTOR,
            "it was done"
        );
    }
}
