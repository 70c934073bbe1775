//! Starts to read without the last commits, if the group coordinator does not answer in time.
//!
//! The store has the positions of a shard that it knows; only the rules history is missing. So the
//! reading assumes that the rules of this process begin at the watermark, behind everything that is
//! stored. It commits nothing. Once the coordinator has told the history, the assumed rules are
//! added to it, and the next commit has both.

use super::CallError;
use super::partition::AssignedPartition;
use super::read_loop::Ingress;
use super::shard_init::usable_commit;
use crate::broker::{self, PartitionInfo};
use crate::limit::{CONTROL_COORDINATOR_WAIT_MAX, COORDINATOR_WAIT_MAX};
use crate::model::{
    CommitMetadata, Offset, Partition, Pause, PositionRules, Progress, RulesHistory, Watermark,
};
use crate::store::StoredShard;
use futures_util::future::LocalBoxFuture;
use tokio::time::{Instant, timeout_at};

/// The metadata of the last commit of each asked partition.
type Commits = Vec<Option<String>>;

/// The assumption of a reading that does not know the last commit.
#[derive(Clone, Debug)]
pub(super) struct AssumedRules {
    /// The rules of this process hold from here on.
    from: Offset,
    info: PartitionInfo,
}

impl AssumedRules {
    /// `earlier`: what the last reading of the same partition assumed, and never committed.
    pub(super) fn new(earlier: Option<&Self>, info: &PartitionInfo, state: &StoredShard) -> Self {
        let from = state.watermark.max(state.delivered.watermark).offset();
        let earlier = earlier.filter(|it| it.info.identity == info.identity);
        Self {
            from: earlier.map_or(from, |it| it.from.min(from)),
            info: info.clone(),
        }
    }

    fn usable<'c>(&self, committed: Option<&'c CommitMetadata>) -> Option<&'c CommitMetadata> {
        usable_commit(committed, &self.info)
    }

    /// The rules of all offsets.
    pub(super) fn history(
        &self,
        own: &PositionRules,
        committed: Option<&CommitMetadata>,
    ) -> RulesHistory {
        let known = self.usable(committed).map(|it| it.rules.clone());
        known.unwrap_or_default().followed_by(own, self.from)
    }

    /// The greatest watermark that the store had by the commit.
    pub(super) fn stored(&self, committed: Option<&CommitMetadata>) -> Watermark {
        let stored = self.usable(committed).map(|it| it.stored);
        stored.map_or(Watermark(0), |it| it.min(Watermark(self.info.end_offset.0)))
    }

    /// The delivered pair of the commit.
    pub(super) fn delivered(&self, committed: Option<&CommitMetadata>) -> Progress {
        let committed = self.usable(committed);
        committed.map_or(Progress::START, |it| it.delivered)
    }

    pub(super) fn pause(&self, committed: Option<&CommitMetadata>) -> Option<Pause> {
        self.usable(committed).and_then(|it| it.pause.clone())
    }
}

/// The question for the commits of the partitions with assumed rules. At most one is in flight.
#[derive(Default)]
pub(super) enum CommitQuestion {
    #[default]
    None,
    Asked {
        answer: LocalBoxFuture<'static, Result<Commits, broker::Error>>,
        /// Each partition with the epoch of its reading.
        partitions: Vec<(Partition, u64)>,
    },
}

/// The partitions of a question, and its answer.
pub(super) struct CommitAnswer {
    partitions: Vec<(Partition, u64)>,
    commits: Result<Commits, broker::Error>,
}

impl CommitQuestion {
    /// Waits for the answer; forever if nothing is asked. Safe to drop.
    pub(super) async fn answer(&mut self) -> CommitAnswer {
        match self {
            Self::None => std::future::pending().await,
            Self::Asked { answer, partitions } => {
                let (commits, partitions) = (answer.await, std::mem::take(partitions));
                *self = Self::None;
                CommitAnswer {
                    partitions,
                    commits,
                }
            }
        }
    }
}

impl Ingress {
    /// The last commits. `None`: the group coordinator does not answer in time, and the store knows
    /// all shards (`are_known`). Without a shard in the store, only the commit tells where the reading
    /// starts. A store that may have gone back is not trusted either, so a new session waits until it is
    /// settled. A pause that was just read must be in the commit, so the answer is awaited for longer.
    pub(super) async fn read_commits(
        &mut self,
        partitions: &[Partition],
        are_known: bool,
    ) -> Result<Option<Commits>, CallError> {
        let may_assume = are_known && !fault!(WaitForCoordinator);
        let mut known = partitions.iter().filter_map(|id| self.partitions.get(id));
        let has_unstored_pause = known.any(AssignedPartition::has_unstored_pause);
        let mut answer = self.ports.source.committed_metadata(partitions);
        let limit = match has_unstored_pause {
            true => CONTROL_COORDINATOR_WAIT_MAX,
            false => COORDINATOR_WAIT_MAX,
        };
        // More than once if a heartbeat has failed, or if the worker has another session.
        while let Some(settles_at) = self.ports.session_clock.settles_at()
            && may_assume
        {
            let end = settles_at.max(Instant::now() + limit);
            let early = self.answer_of(timeout_at(end, &mut answer)).await?.ok();
            let is_settled = self.ports.session_clock.is_settled(Instant::now());
            match early {
                None | Some(Err(broker::Error::Unavailable(_))) if is_settled => {
                    tracing::warn!(
                        route = %self.options.route,
                        partitions = partitions.len(),
                        "the group coordinator does not answer: reading starts at the watermark of the store, by the rules of this worker"
                    );
                    return Ok(None);
                }
                Some(commits) => return Ok(Some(commits?)),
                None => {}
            }
        }
        Ok(Some(self.answer_of(answer).await??))
    }

    /// Asks for the commits of the partitions with assumed rules. The epochs of their readings follow
    /// all others, so no earlier reader stores records by other rules any more.
    pub(super) fn ask_for_commits(&mut self) {
        let has_assumed = |it: &&AssignedPartition| it.is_reading() && it.assumed.is_some();
        let assumed = self.partitions.values().filter(has_assumed);
        let asked = assumed.map(|it| (it.shard.partition.clone(), it.epoch()));
        let partitions: Vec<(Partition, u64)> = asked.collect();
        if partitions.is_empty() || matches!(self.question, CommitQuestion::Asked { .. }) {
            return;
        }
        let ids: Vec<Partition> = partitions.iter().map(|(id, _)| id.clone()).collect();
        let answer = self.ports.source.committed_metadata(&ids);
        self.question = CommitQuestion::Asked { answer, partitions };
    }

    /// Adds the assumed rules to the committed ones. Without an answer, the next check asks again.
    pub(super) fn on_commits(&mut self, answer: CommitAnswer) -> Result<(), CallError> {
        let commits = match answer.commits {
            Ok(commits) => commits,
            Err(error) if error.is_transient() => {
                let reason = format!("cannot read the last offset commits: {error}");
                self.ports.health.commits.set_not_ready(reason);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        for ((id, epoch), text) in answer.partitions.into_iter().zip(commits) {
            let Some(mut partition) = self.partitions.reading(&id, epoch) else {
                continue;
            };
            match CommitMetadata::parse(text.as_deref().unwrap_or_default()) {
                Ok(committed) => {
                    let today = &self.options.rules;
                    partition.learn_rules(committed.as_ref(), &self.position_rules, today);
                }
                Err(error) => {
                    let reason = format!("shard {} waits: {error}", partition.shard);
                    drop(partition);
                    self.stop(&id, reason);
                }
            }
        }
        self.report_shards();
        self.report_commits();
        Ok(())
    }

    /// The commits are ready, unless the group coordinator still has to tell the last ones.
    pub(super) fn report_commits(&self) {
        let commits = &self.ports.health.commits;
        match &self.question {
            CommitQuestion::None => commits.set_ready(),
            CommitQuestion::Asked { partitions, .. } => commits.set_not_ready(format!(
                "the group coordinator does not tell the last offset commits of {} partitions",
                partitions.len()
            )),
        }
    }
}
