//! What a claimer knows of the workers beside it, and which shards are its own by that. Pure.

use super::placement::assign;
use crate::model::{ShardId, WorkerId};
use crate::store::LiveWorker;
use std::collections::BTreeSet;

/// See the module's page.
pub(super) struct Membership {
    pub(super) me: WorkerId,
    /// All that live, in the order of their names; empty as long as this worker has not enrolled.
    live_workers: Vec<WorkerId>,
    /// Those of them that were not known before the last news.
    newcomers: BTreeSet<WorkerId>,
    mine: BTreeSet<ShardId>,
    /// Of newcomers, who look for nothing else from the moment that they are known.
    for_newcomers: BTreeSet<ShardId>,
}

impl Membership {
    pub(super) fn new(me: WorkerId) -> Self {
        Self {
            me,
            live_workers: Vec::new(),
            newcomers: BTreeSet::new(),
            mine: BTreeSet::new(),
            for_newcomers: BTreeSet::new(),
        }
    }

    /// Takes in who lives. Answers whether that is news.
    pub(super) fn update(&mut self, peers: &[LiveWorker]) -> bool {
        let mut alive: Vec<_> = peers.iter().map(|peer| peer.worker).collect();
        if let Err(at) = alive.binary_search(&self.me) {
            alive.insert(at, self.me);
        }
        let is_news = alive != self.live_workers;
        if is_news {
            self.newcomers = alive
                .iter()
                .filter(|worker| self.live_workers.binary_search(worker).is_err())
                .copied()
                .collect();
        }
        self.live_workers = alive;
        is_news
    }

    /// Finds out what is this worker's.
    pub(super) fn reassign(&mut self, shards: &[ShardId]) {
        let own_list = [self.me];
        let workers = if fault!(AssignByOwnList) {
            &own_list[..]
        } else {
            &self.live_workers
        };
        let placed = assign(workers, shards);
        let of = |is_one: &dyn Fn(&WorkerId) -> bool| {
            placed
                .iter()
                .filter(|(_, worker)| is_one(worker))
                .map(|(shard, _)| (*shard).clone())
                .collect()
        };
        self.mine = of(&|worker| *worker == self.me);
        self.for_newcomers = of(&|worker| *worker != self.me && self.newcomers.contains(worker));
    }

    /// Whether it is another's, who looks for it already.
    pub(super) fn is_for_newcomer(&self, shard: &ShardId) -> bool {
        self.for_newcomers.contains(shard)
    }

    pub(super) fn is_mine(&self, shard: &ShardId) -> bool {
        self.mine.contains(shard)
    }

    pub(super) fn assigned_count(&self) -> usize {
        self.mine.len()
    }

    pub(super) fn worker_count(&self) -> usize {
        self.live_workers.len()
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

    fn peers(workers: &[u128]) -> Vec<LiveWorker> {
        workers
            .iter()
            .map(|id| LiveWorker {
                worker: WorkerId(*id),
                expires_in: Duration::from_secs(1),
            })
            .collect()
    }

    #[test]
    fn nothing_is_a_workers_before_it_has_enrolled_and_all_is_while_it_is_alone() {
        let shards: Vec<_> = (0..8)
            .map(|index| ShardId::new("r", Partition::new("in", index)))
            .collect();
        let mut fleet = Membership::new(WorkerId(2));
        fleet.reassign(&shards);
        assert_eq!(fleet.assigned_count(), 0);
        assert!(
            fleet.update(&peers(&[])),
            "a store that does not name it is not believed"
        );
        fleet.reassign(&shards);
        assert_eq!((fleet.assigned_count(), fleet.is_alone()), (8, true));
        assert!(!fleet.update(&peers(&[2])));
        assert!(fleet.update(&peers(&[1, 2])));
        fleet.reassign(&shards);
        assert_eq!(
            (
                fleet.assigned_count(),
                fleet.worker_count(),
                fleet.is_alone()
            ),
            (4, 2, false)
        );
        let awaited = |fleet: &Membership| {
            shards
                .iter()
                .filter(|shard| fleet.is_for_newcomer(shard))
                .count()
        };
        assert_eq!(awaited(&fleet), 4, "the newcomer's");
        assert!(fleet.update(&peers(&[1, 2, 3])));
        fleet.reassign(&shards);
        assert!((2..=3).contains(&awaited(&fleet)), "of the last one only");
    }
}
