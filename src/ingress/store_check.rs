//! Reads the stored state of all shards at an interval. This notices that the store lost data
//! even while nothing is appended, and gives the positions to commit.

use super::partition::NextStep;
use super::read_loop::Ingress;
use super::{Error, unless_stopped};
use crate::broker::OffsetCommit;
use crate::limit::{IDLE_OFFSET_COMMIT_INTERVAL, OFFSET_COMMIT_INTERVAL};
use crate::model::{Partition, ShardId};
use crate::store::{self, ShardPosition, StoredShard};
use tokio::time::Instant;

impl Ingress {
    /// Compares all partitions with the store and commits the positions that it has (I1).
    /// `is_final`: no append will follow.
    pub(super) async fn check_store(&mut self, is_final: bool) -> Result<(), Error> {
        let now = Instant::now();
        self.next_check_at = now + OFFSET_COMMIT_INTERVAL;
        // Brokers expire unchanged positions that are not committed again.
        let commit_unchanged = is_final || now >= self.commit_unchanged_at;
        for (id, partition) in &self.partitions {
            partition.report_lag(self.ports.source.known_end(id));
        }
        let states = match self.read_states(commit_unchanged).await {
            Ok(states) => states,
            Err(error) if error.is_transient() => {
                let watermarks = &self.ports.health.watermarks;
                watermarks.set_not_ready(error.to_string());
                return Ok(());
            }
            Err(error) => return Err(self.fatal(error)),
        };
        self.ports.health.watermarks.set_ready();
        let mut commits = Vec::new();
        for (id, state) in states {
            let (wall, now) = (self.ports.clock.now(), Instant::now());
            let Some(partition) = self.partitions.get_mut(&id) else {
                continue;
            };
            let next = state
                .as_ref()
                .map_or(NextStep::Reopen, |state| partition.on_state(state, wall));
            if let (NextStep::Continue, Some(state)) = (next, &state) {
                commits.extend(partition.next_commit(state, commit_unchanged, is_final, now));
            }
            self.take_step(&id, next, "the watermark in the store changed");
        }
        if commit_unchanged {
            self.commit_unchanged_at = Instant::now() + IDLE_OFFSET_COMMIT_INTERVAL;
        }
        self.commit(commits).await;
        Ok(())
    }

    /// Reads the state of all partitions that are read; without `all`, not of idle ones whose
    /// positions are unchanged. `None` for a shard that the store does not know.
    async fn read_states(
        &self,
        all: bool,
    ) -> Result<Vec<(Partition, Option<StoredShard>)>, store::Error> {
        let store = &self.ports.store;
        let now = Instant::now();
        let idle_positions = |shard: &ShardId| {
            let partition = self.partitions.get(&shard.partition).filter(|_| !all)?;
            partition.idle_positions(now)
        };
        let reading = (self.partitions.values()).filter(|partition| partition.is_reading());
        let mut shards: Vec<ShardId> = reading.map(|partition| partition.shard.clone()).collect();
        let idle: Vec<ShardId> = (shards.iter())
            .filter(|shard| idle_positions(shard).is_some())
            .cloned()
            .collect();
        if !idle.is_empty() {
            let mut found = store.positions(&idle).await?.into_iter();
            shards.retain(|shard| {
                let Some(known) = idle_positions(shard) else {
                    return true;
                };
                let is_unchanged = |found: ShardPosition| {
                    known == (found.watermark, found.delivered) || fault!(IngressAssumesIdleShard)
                };
                !found.next().flatten().is_some_and(is_unchanged)
            });
        }
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let states = store.state(&shards).await?;
        let ids = shards.into_iter().map(|shard| shard.partition);
        Ok(ids.zip(states).collect())
    }

    async fn commit(&mut self, commits: Vec<OffsetCommit>) {
        let health = &self.ports.health.commits;
        if commits.is_empty() {
            // A commit that failed comes again, unless its partition was revoked.
            return health.set_ready();
        }
        match unless_stopped(&self.stop, self.ports.source.commit(&commits)).await {
            None => {}
            Some(Ok(())) => {
                health.set_ready();
                for commit in commits {
                    if let Some(partition) = self.partitions.get_mut(&commit.partition) {
                        partition.last_commit = Some(commit);
                    }
                }
            }
            // After a store loss more records are read again. The next commit replaces this one.
            Some(Err(error)) => health.set_not_ready(format!("cannot commit offsets: {error}")),
        }
    }
}
