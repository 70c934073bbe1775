//! The live workers, and which shards are assigned to this one. Pure.

use super::assignment::assign;
use crate::model::{ShardId, SourceIdentity, WorkerId};
use crate::store::{Error, Heartbeat, LiveWorker};
use std::collections::BTreeSet;

pub(super) struct Membership {
    pub(super) me: WorkerId,
    /// The ids of all clusters that this worker has read from, once every source has answered. It
    /// keeps ids that a cluster has lost, so that it agrees with workers that know the old id.
    pub(super) clusters: BTreeSet<Box<str>>,
    /// All live workers, sorted. Empty until this worker has sent its first heartbeat.
    pub(super) live_workers: Vec<WorkerId>,
    /// The workers that joined with the last change.
    newcomers: BTreeSet<WorkerId>,
    /// The shards that are assigned to this worker.
    pub(super) mine: BTreeSet<ShardId>,
    /// Shards assigned to newcomers, which already try to acquire them.
    for_newcomers: BTreeSet<ShardId>,
}

impl Membership {
    pub(super) fn new(me: WorkerId) -> Self {
        Self {
            me,
            clusters: BTreeSet::new(),
            live_workers: Vec::new(),
            newcomers: BTreeSet::new(),
            mine: BTreeSet::new(),
            for_newcomers: BTreeSet::new(),
        }
    }

    /// Records the clusters of all shards. Only some of them would look like another installation to
    /// a worker that has seen only others.
    pub(super) fn add_clusters(&mut self, shards: &[(ShardId, SourceIdentity)]) {
        let clusters = shards.iter().filter_map(|(_, identity)| identity.cluster());
        self.clusters.extend(clusters.map(Box::from));
    }

    /// The live workers, unless the store refuses this worker: the others read from other clusters.
    pub(super) fn admitted(&self, heartbeat: Heartbeat) -> Result<Vec<LiveWorker>, Error> {
        let others = match heartbeat {
            Heartbeat::Workers(workers) => return Ok(workers),
            Heartbeat::OtherClusters(others) => others,
        };
        let list = |clusters: BTreeSet<Box<str>>| Vec::from_iter(clusters).join(", ");
        Err(Error::Unusable(format!(
            "another installation with the same `deployment` uses it: its workers read from cluster {}, and this one \
             reads from cluster {}. Give each installation its own `deployment` or its own store. To move to another \
             cluster, stop all workers of the old one first",
            list(others),
            list(self.clusters.clone())
        )))
    }

    /// Records which workers are alive. This worker is always one of them. Returns whether the
    /// membership changed.
    pub(super) fn update(&mut self, workers: &[LiveWorker]) -> bool {
        let mut live: Vec<_> = workers.iter().map(|worker| worker.worker).collect();
        if let Err(at) = live.binary_search(&self.me) {
            live.insert(at, self.me);
        }
        if live == self.live_workers {
            return false;
        }
        self.newcomers = live
            .iter()
            .filter(|worker| self.live_workers.binary_search(worker).is_err())
            .copied()
            .collect();
        self.live_workers = live;
        true
    }

    pub(super) fn reassign(&mut self, shards: &[ShardId]) {
        self.mine.clear();
        self.for_newcomers.clear();
        for (shard, worker) in assign(&self.live_workers, shards) {
            if worker == self.me {
                self.mine.insert(shard.clone());
            } else if self.newcomers.contains(&worker) {
                self.for_newcomers.insert(shard.clone());
            }
        }
    }

    pub(super) fn is_for_newcomer(&self, shard: &ShardId) -> bool {
        self.for_newcomers.contains(shard)
    }

    pub(super) fn is_mine(&self, shard: &ShardId) -> bool {
        self.mine.contains(shard)
    }

    pub(super) fn is_alone(&self) -> bool {
        self.live_workers.len() <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;
    use std::time::Duration;

    fn workers(ids: &[u128]) -> Vec<LiveWorker> {
        ids.iter()
            .map(|id| LiveWorker {
                worker: WorkerId(*id),
                expires_in: Duration::from_secs(1),
            })
            .collect()
    }

    #[test]
    fn a_worker_owns_nothing_before_its_first_heartbeat_and_everything_while_it_is_alone() {
        let shards: Vec<_> = (0..8)
            .map(|index| ShardId::new("r", Partition::new("in", index)))
            .collect();
        let mut membership = Membership::new(WorkerId(2));
        membership.reassign(&shards);
        assert_eq!(membership.mine.len(), 0);
        assert!(
            membership.update(&workers(&[])),
            "this worker counts even if the store does not list it"
        );
        membership.reassign(&shards);
        assert_eq!(membership.mine.len(), 8);
        assert!(membership.is_alone());
        assert!(!membership.update(&workers(&[2])));
        assert!(membership.update(&workers(&[1, 2])));
        membership.reassign(&shards);
        assert_eq!(membership.mine.len(), 4);
        assert_eq!(membership.live_workers.len(), 2);
        assert!(!membership.is_alone());
        let for_newcomers = |membership: &Membership| {
            shards
                .iter()
                .filter(|shard| membership.is_for_newcomer(shard))
                .count()
        };
        assert_eq!(for_newcomers(&membership), 4);
        assert!(membership.update(&workers(&[1, 2, 3])));
        membership.reassign(&shards);
        assert!(
            (2..=3).contains(&for_newcomers(&membership)),
            "only worker 3 is a newcomer now"
        );
    }
}
