//! Which worker of a fleet is to have which shard. Pure: who knows the same workers and the same shards comes to the same answer.
//!
//! Each pair of a shard and a worker has a weight, which a hash of both decides (rendezvous hashing). The heaviest pair comes first, and a
//! worker has room for no more than its even part of the shards: so the parts differ by one at most. Without that bound only shards of a
//! worker that comes or goes would move, but 32 shards on three workers would commonly lie as 14, 10 and 8. No rule that looks at nothing
//! but workers and shards can have both: if what stays never moves, every shard follows an order of the workers of its own, and no orders
//! fill every fleet evenly. So some shards move between workers that stay: of 32 shards one to two beside the eight that must.

use crate::model::{ShardId, WorkerId};
use std::collections::BTreeMap;

/// The worker of each shard; empty if there is no worker.
pub(super) fn assign<'s>(
    workers: &[WorkerId],
    shards: &'s [ShardId],
) -> BTreeMap<&'s ShardId, WorkerId> {
    let mut placed = BTreeMap::new();
    if workers.is_empty() {
        return placed;
    }
    let (part, mut larger) = (shards.len() / workers.len(), shards.len() % workers.len());
    let mut loads = vec![0; workers.len()];
    for (_, shard, at) in by_weight(workers, shards) {
        let has_room = loads[at] < part || loads[at] == part && larger > 0;
        if !has_room || placed.contains_key(shard) {
            continue;
        }
        larger -= usize::from(loads[at] == part);
        loads[at] += 1;
        placed.insert(shard, workers[at]);
    }
    placed
}

/// All pairs of a shard and the place of a worker, the heaviest first.
fn by_weight<'s>(workers: &[WorkerId], shards: &'s [ShardId]) -> Vec<(u64, &'s ShardId, usize)> {
    let mut pairs = Vec::with_capacity(workers.len() * shards.len());
    for shard in shards {
        let hash = text_hash(&shard.to_string());
        pairs.extend(
            workers
                .iter()
                .enumerate()
                .map(|(at, worker)| (weight(hash, *worker), shard, at)),
        );
    }
    // Two that weigh the same are told apart by what all workers see alike.
    pairs.sort_unstable_by(|a, b| (b.0, a.1, workers[a.2]).cmp(&(a.0, b.1, workers[b.2])));
    pairs
}

fn weight(shard: u64, worker: WorkerId) -> u64 {
    let (high, low) = ((worker.0 >> 64) as u64, worker.0 as u64);
    mix(mix(shard ^ high) ^ low)
}

/// FNV-1a. Written out, as a hash that processes of two versions must agree on may not change with a library.
fn text_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Spreads what differs in few bits over all of them: the last step of splitmix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    fn shards(count: i32) -> Vec<ShardId> {
        (0..count)
            .map(|index| ShardId::new("orders", Partition::new("orders.delayed", index)))
            .collect()
    }

    fn workers(count: usize, seed: u64) -> Vec<WorkerId> {
        let mut random = StdRng::seed_from_u64(seed);
        (0..count).map(|_| WorkerId(random.random())).collect()
    }

    fn load(placed: &BTreeMap<&ShardId, WorkerId>, worker: WorkerId) -> usize {
        placed.values().filter(|owner| **owner == worker).count()
    }

    /// How many shards move, and how many must, for the parts of those who stay to become smaller, and of those who go nothing.
    fn moves(before: &[WorkerId], after: &[WorkerId], shards: &[ShardId]) -> (usize, usize) {
        let (old, new) = (assign(before, shards), assign(after, shards));
        let moved = shards
            .iter()
            .filter(|shard| old[shard] != new[shard])
            .count();
        (
            moved,
            before
                .iter()
                .map(|worker| load(&old, *worker).saturating_sub(load(&new, *worker)))
                .sum(),
        )
    }

    proptest! {
        #[test]
        fn every_shard_has_one_worker_and_no_two_workers_differ_by_more_than_one(count in 0..80, fleet in 1..12_usize, seed: u64) {
            let (shards, workers) = (shards(count), workers(fleet, seed));
            let placed = assign(&workers, &shards);
            prop_assert_eq!(placed.len(), shards.len());
            let loads: Vec<_> = workers.iter().map(|worker| load(&placed, *worker)).collect();
            prop_assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{:?}", loads);
            prop_assert_eq!(loads.iter().sum::<usize>(), shards.len());
        }

        #[test]
        fn all_workers_come_to_the_same_answer_in_whatever_order_they_were_told(count in 0..40, fleet in 1..8_usize, seed: u64) {
            let (mut shards, mut workers) = (shards(count), workers(fleet, seed));
            let placed: BTreeMap<_, _> = assign(&workers, &shards).into_iter().map(|(shard, worker)| (shard.clone(), worker)).collect();
            workers.reverse();
            shards.reverse();
            let again: BTreeMap<_, _> = assign(&workers, &shards).into_iter().map(|(shard, worker)| (shard.clone(), worker)).collect();
            prop_assert_eq!(placed, again);
        }

        #[test]
        fn the_second_of_two_takes_half_and_nothing_else_moves(count in 0..80, seed: u64) {
            let (shards, workers) = (shards(count), workers(2, seed));
            for (before, after) in [(&workers[..1], &workers[..]), (&workers[..], &workers[1..])] {
                let (moved, must) = moves(before, after, &shards);
                prop_assert_eq!(moved, must);
            }
        }
    }

    /// One worker comes or goes, of fleets of all sizes: what moves beside what must.
    #[test]
    fn when_a_worker_comes_or_goes_little_moves_that_stays_within_its_part() {
        for (count, fleet, share) in [
            (32, 3, 0.3),
            (32, 4, 0.3),
            (100, 4, 0.2),
            (100, 8, 0.5),
            (7, 3, 0.3),
        ] {
            let (shards, mut sum, mut least) = (shards(count), (0, 0), usize::MAX);
            for seed in 0..200 {
                let workers = workers(fleet, seed);
                for (before, after) in
                    [(&workers[..], &workers[1..]), (&workers[1..], &workers[..])]
                {
                    let (moved, must) = moves(before, after, &shards);
                    assert!(
                        moved >= must && moved <= 3 * must + fleet,
                        "{moved} moved, {must} must, {fleet} workers, seed {seed}"
                    );
                    sum = (sum.0 + moved, sum.1 + must);
                    least = least.min(moved - must);
                }
            }
            let beside = (sum.0 - sum.1) as f64 / sum.1 as f64;
            assert!(
                beside < share,
                "{count} shards on {fleet} workers: {beside:.2} as many as must move beside them"
            );
            assert_eq!(
                least, 0,
                "there are fleets in which nothing moves but what must"
            );
        }
    }

    /// What a test with real workers, whose names are random, may expect.
    #[test]
    fn when_one_of_four_workers_leaves_at_most_six_of_thirty_two_shards_move_beside_its_own() {
        let (shards, mut more_than_three) = (shards(32), 0);
        for seed in 0..1_000 {
            let workers = workers(4, seed);
            let (moved, must) = moves(&workers, &workers[1..], &shards);
            assert!(moved - must <= 6, "{moved} moved, {must} must, seed {seed}");
            more_than_three += usize::from(moved - must > 3);
        }
        assert!(
            (20..80).contains(&more_than_three),
            "{more_than_three} of 1000"
        );
    }

    #[test]
    fn thirty_two_shards_are_even_on_one_two_four_and_three_workers() {
        let (shards, workers) = (shards(32), workers(4, 7));
        for fleet in [&workers[..1], &workers[..2], &workers[..], &workers[1..]] {
            let placed = assign(fleet, &shards);
            let loads: Vec<_> = fleet.iter().map(|worker| load(&placed, *worker)).collect();
            assert!(
                loads
                    .iter()
                    .all(|load| load.abs_diff(32 / fleet.len()) <= 1),
                "{loads:?}"
            );
        }
    }

    /// Two versions of this program in one fleet must agree.
    #[test]
    fn the_weights_are_what_they_always_were() {
        let placed = assign(&[WorkerId(1), WorkerId(2), WorkerId(3)], &shards(8))
            .into_values()
            .map(|worker| worker.0)
            .collect::<Vec<_>>();
        assert_eq!(placed, [2, 1, 1, 3, 3, 3, 2, 1]);
        assert_eq!(assign(&[], &shards(8)).len(), 0);
    }
}
