//! Injected faults in what an ingress learns about its source and commits to it.

use crate::broker::{Error, Event, GroupAdmin as _, OffsetCommit, PartitionInfo, Source};
use crate::model::{CommitMetadata, Offset, Partition, RulesHistory, Timestamp};
use crate::testing::sim::world::World;
use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;

/// A source that gives wrong answers if a fault is injected.
pub(crate) struct SourceFaults {
    pub(crate) world: World,
    pub(crate) inner: Box<dyn Source>,
}

#[async_trait(?Send)]
impl Source for SourceFaults {
    async fn next_event(&mut self) -> Result<Event, Error> {
        self.inner.next_event().await
    }

    fn describe(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Result<PartitionInfo, Error>>, Error>> {
        let answer = self.inner.describe(partitions);
        let (world, partitions) = (self.world.clone(), partitions.to_vec());
        Box::pin(async move {
            let mut described = answer.await?;
            if fault!(WaitForAllLeaders)
                && let Some(Err(error)) = described.iter().find(|info| info.is_err()).cloned()
            {
                described.fill(Err(error));
            }
            if fault!(IgnoreSourceRecreation) {
                for (partition, info) in partitions.iter().zip(&mut described) {
                    let Ok(info) = info else { continue };
                    info.identity = world.first_identity(partition, info.identity.take());
                }
            }
            Ok(described)
        })
    }

    fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Option<String>>, Error>> {
        let answer = self.inner.committed_metadata(partitions);
        let (world, partitions) = (self.world.clone(), partitions.to_vec());
        Box::pin(async move {
            let mut committed = answer.await?;
            if fault!(UseOldCommitAfterRecreation) {
                let described = world.cluster().catalog().describe(&partitions).await?;
                for (text, info) in committed.iter_mut().zip(described) {
                    if let Some(mut metadata) = text.as_deref().and_then(known_commit) {
                        metadata.identity = info.identity;
                        *text = Some(metadata.to_string());
                    }
                }
            }
            Ok(committed)
        })
    }

    fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> LocalBoxFuture<'static, Result<Vec<Offset>, Error>> {
        self.inner.offsets_at(partitions, time)
    }

    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64) {
        self.inner.start(partition, from, epoch);
    }

    fn stop(&mut self, partition: &Partition) {
        self.inner.stop(partition);
    }

    fn known_end(&self, partition: &Partition) -> Option<Offset> {
        self.inner.known_end(partition)
    }

    fn commit(
        &mut self,
        mut commits: Vec<OffsetCommit>,
    ) -> LocalBoxFuture<'static, Result<(), Error>> {
        if fault!(RestartAtCommittedOffset) {
            for commit in &mut commits {
                if let Some(mut metadata) = known_commit(&commit.metadata) {
                    metadata.lowest_pending = commit.offset;
                    commit.metadata = metadata.to_string();
                }
            }
        }
        if fault!(CommitWithoutRules) {
            for commit in &mut commits {
                if let Some(mut metadata) = known_commit(&commit.metadata) {
                    metadata.rules = RulesHistory::default();
                    commit.metadata = metadata.to_string();
                }
            }
        }
        if fault!(ForgetCommittedPause) {
            for commit in &mut commits {
                if let Some(mut metadata) = known_commit(&commit.metadata) {
                    metadata.pause = None;
                    commit.metadata = metadata.to_string();
                }
            }
        }
        self.inner.commit(commits)
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

fn known_commit(text: &str) -> Option<CommitMetadata> {
    CommitMetadata::parse(text).ok().flatten()
}
