//! Reads the stored state of all shards at an interval. This finds a store that lost data although
//! nothing is appended, and gives the positions to commit.

use super::partitions::Partitions;
use crate::limit::{IDLE_OFFSET_COMMIT_INTERVAL, OFFSET_COMMIT_INTERVAL};
use crate::model::{Partition, ShardId};
use crate::store::{self, ShardPosition, Store, StoredShard};
use std::collections::BTreeSet;
use tokio::time::Instant;

/// When the next check is due, and when it also commits unchanged positions.
pub(super) struct StoreCheck {
    next_at: Instant,
    commit_unchanged_at: Instant,
}

impl StoreCheck {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next_at: now,
            commit_unchanged_at: now + IDLE_OFFSET_COMMIT_INTERVAL,
        }
    }

    pub(super) fn next_at(&self) -> Instant {
        self.next_at
    }

    pub(super) fn start(&mut self, now: Instant) {
        self.next_at = now + OFFSET_COMMIT_INTERVAL;
    }

    /// Returns `true` if unchanged positions are committed again, so that the broker does not
    /// expire them.
    pub(super) fn commits_unchanged(&self, now: Instant) -> bool {
        now >= self.commit_unchanged_at
    }

    /// Starts the next interval if unchanged positions were due.
    pub(super) fn finish(&mut self, now: Instant) {
        if self.commits_unchanged(now) {
            self.commit_unchanged_at = now + IDLE_OFFSET_COMMIT_INTERVAL;
        }
    }

    /// Reads the state of all partitions that are read, except idle ones whose positions are
    /// unchanged. `None` for a shard that the store does not know.
    pub(super) async fn read_states(
        &self,
        store: &dyn Store,
        partitions: &Partitions,
    ) -> Result<Vec<(Partition, Option<StoredShard>)>, store::Error> {
        let unchanged = self.unchanged_partitions(store, partitions).await?;
        let (ids, shards): (Vec<Partition>, Vec<ShardId>) = partitions
            .iter()
            .filter(|(id, partition)| partition.is_reading() && !unchanged.contains(id))
            .map(|(id, partition)| (id.clone(), partition.shard().clone()))
            .unzip();
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let states = store.state(&shards).await?;
        Ok(ids.into_iter().zip(states).collect())
    }

    /// The idle partitions whose shards are still at their last known positions.
    async fn unchanged_partitions<'p>(
        &self,
        store: &dyn Store,
        partitions: &'p Partitions,
    ) -> Result<BTreeSet<&'p Partition>, store::Error> {
        let now = Instant::now();
        if self.commits_unchanged(now) {
            return Ok(BTreeSet::new());
        }
        let idle: Vec<_> = partitions
            .iter()
            .filter(|(_, partition)| partition.is_reading())
            .filter_map(|(id, partition)| {
                Some((id, partition.shard(), partition.idle_positions(now)?))
            })
            .collect();
        if idle.is_empty() {
            return Ok(BTreeSet::new());
        }
        let shards: Vec<_> = idle.iter().map(|(_, shard, _)| (*shard).clone()).collect();
        let found = store.positions(&shards).await?;
        let is_unchanged = |position: &ShardPosition, known| {
            known == (position.watermark, position.delivered) || fault!(IngressAssumesIdleShard)
        };
        let unchanged = idle
            .into_iter()
            .zip(found)
            .filter(|((_, _, known), found)| {
                found
                    .as_ref()
                    .is_some_and(|found| is_unchanged(found, *known))
            });
        Ok(unchanged.map(|((id, ..), _)| id).collect())
    }
}
