//! What a claimer knows of the workers beside it, and which shards are its own by that. Pure.

use super::placement::place;
use crate::model::{ShardId, Worker};
use crate::mutant::{self, Mutant};
use crate::store::Peer;
use std::collections::BTreeSet;

/// See the module's page.
pub(super) struct Fleet {
    pub(super) me: Worker,
    /// All that live, in the order of their names; empty as long as this worker has not enrolled.
    alive: Vec<Worker>,
    /// Those of them that were not known before the last news.
    newcomers: BTreeSet<Worker>,
    mine: BTreeSet<ShardId>,
    /// Of newcomers, who look for nothing else from the moment that they are known.
    awaited: BTreeSet<ShardId>,
}

impl Fleet {
    pub(super) fn new(me: Worker) -> Self {
        Self {
            me,
            alive: Vec::new(),
            newcomers: BTreeSet::new(),
            mine: BTreeSet::new(),
            awaited: BTreeSet::new(),
        }
    }

    /// Takes in who lives. Answers whether that is news.
    pub(super) fn learn(&mut self, peers: &[Peer]) -> bool {
        let mut alive: Vec<_> = peers.iter().map(|peer| peer.worker).collect();
        if let Err(at) = alive.binary_search(&self.me) {
            alive.insert(at, self.me);
        }
        let is_news = alive != self.alive;
        if is_news {
            self.newcomers = alive
                .iter()
                .filter(|worker| self.alive.binary_search(worker).is_err())
                .copied()
                .collect();
        }
        self.alive = alive;
        is_news
    }

    /// Finds out what is this worker's.
    pub(super) fn place(&mut self, shards: &[ShardId]) {
        let own_list = [self.me];
        let workers = if mutant::active(Mutant::PlacesByOwnList) {
            &own_list[..]
        } else {
            &self.alive
        };
        let placed = place(workers, shards);
        let of = |is_one: &dyn Fn(&Worker) -> bool| {
            placed
                .iter()
                .filter(|(_, worker)| is_one(worker))
                .map(|(shard, _)| (*shard).clone())
                .collect()
        };
        self.mine = of(&|worker| *worker == self.me);
        self.awaited = of(&|worker| *worker != self.me && self.newcomers.contains(worker));
    }

    /// Whether it is another's, who looks for it already.
    pub(super) fn is_awaited(&self, shard: &ShardId) -> bool {
        self.awaited.contains(shard)
    }

    pub(super) fn is_mine(&self, shard: &ShardId) -> bool {
        self.mine.contains(shard)
    }

    pub(super) fn mine(&self) -> usize {
        self.mine.len()
    }

    pub(super) fn workers(&self) -> usize {
        self.alive.len()
    }

    pub(super) fn is_alone(&self) -> bool {
        self.alive.len() <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;
    use std::time::Duration;

    fn peers(workers: &[u128]) -> Vec<Peer> {
        workers
            .iter()
            .map(|id| Peer {
                worker: Worker(*id),
                left: Duration::from_secs(1),
            })
            .collect()
    }

    #[test]
    fn nothing_is_a_workers_before_it_has_enrolled_and_all_is_while_it_is_alone() {
        let shards: Vec<_> = (0..8)
            .map(|index| ShardId::new("r", Partition::new("in", index)))
            .collect();
        let mut fleet = Fleet::new(Worker(2));
        fleet.place(&shards);
        assert_eq!(fleet.mine(), 0);
        assert!(
            fleet.learn(&peers(&[])),
            "a store that does not name it is not believed"
        );
        fleet.place(&shards);
        assert_eq!((fleet.mine(), fleet.is_alone()), (8, true));
        assert!(!fleet.learn(&peers(&[2])));
        assert!(fleet.learn(&peers(&[1, 2])));
        fleet.place(&shards);
        assert_eq!(
            (fleet.mine(), fleet.workers(), fleet.is_alone()),
            (4, 2, false)
        );
        let awaited = |fleet: &Fleet| {
            shards
                .iter()
                .filter(|shard| fleet.is_awaited(shard))
                .count()
        };
        assert_eq!(awaited(&fleet), 4, "the newcomer's");
        assert!(fleet.learn(&peers(&[1, 2, 3])));
        fleet.place(&shards);
        assert!((2..=3).contains(&awaited(&fleet)), "of the last one only");
    }
}
