//! Assigns the delivery and the reading of shards to workers. Pure: workers that know the same
//! workers and shards agree on the result.
//!
//! Each pair of a shard and a worker has a weight, a hash of both (rendezvous hashing). The
//! heaviest pairs are assigned first, and a worker takes an equal part of the shards at most. So
//! the workers' counts differ by one at most.
//!
//! Without that bound, only shards of a joining or leaving worker would move, but 32 shards on
//! three workers would commonly split as 14, 10 and 8. The bound moves some shards between the
//! remaining workers: one or two of 32, beside the eight that must move.

use crate::model::{Role, ShardId, WorkerEntry, WorkerId};
use std::collections::BTreeMap;

/// The workers that read and deliver each shard.
#[derive(Default)]
pub(super) struct Work<'s> {
    pub(super) readers: BTreeMap<&'s ShardId, WorkerId>,
    pub(super) timers: BTreeMap<&'s ShardId, WorkerId>,
}

/// Assigns each shard to one of the workers that serve its route. The timer of a shard also reads
/// it, if it has the role: an append is then known to the timer without a round trip.
pub(super) fn assign_work<'s>(
    workers: &BTreeMap<WorkerId, WorkerEntry>,
    shards: &'s [ShardId],
) -> Work<'s> {
    let with_role = |role, route: &str| {
        let serving = workers
            .iter()
            .filter(|(_, entry)| entry.serves(role, route));
        serving.map(|(id, _)| *id).collect::<Vec<_>>()
    };
    // Shards with the same workers are assigned together, so that their counts are even.
    let mut groups: BTreeMap<_, Vec<&ShardId>> = BTreeMap::new();
    for of_route in shards.chunk_by(|a, b| a.route == b.route) {
        let route = &of_route[0].route;
        let key = (
            with_role(Role::Timer, route),
            with_role(Role::Ingress, route),
        );
        groups.entry(key).or_default().extend(of_route);
    }
    let mut work = Work::default();
    for ((timers, readers), shards) in groups {
        let delivered = assign(&timers, &shards);
        let mut far = Vec::new();
        for shard in &shards {
            match delivered.get(shard).filter(|timer| readers.contains(timer)) {
                Some(timer) => _ = work.readers.insert(shard, *timer),
                None => far.push(*shard),
            }
        }
        work.readers.extend(assign(&readers, &far));
        work.timers.extend(delivered);
    }
    work
}

/// The worker of each shard. Empty if there is no worker.
fn assign<'s>(workers: &[WorkerId], shards: &[&'s ShardId]) -> BTreeMap<&'s ShardId, WorkerId> {
    let mut assigned = BTreeMap::new();
    if workers.is_empty() {
        return assigned;
    }
    let part = shards.len() / workers.len();
    let mut larger_parts = shards.len() % workers.len();
    let mut loads = vec![0; workers.len()];
    for pair in by_weight(workers, shards) {
        let load = &mut loads[pair.worker];
        let has_room = *load < part || *load == part && larger_parts > 0;
        if !has_room || assigned.contains_key(pair.shard) {
            continue;
        }
        larger_parts -= usize::from(*load == part);
        *load += 1;
        assigned.insert(pair.shard, workers[pair.worker]);
    }
    assigned
}

struct Pair<'s> {
    weight: u64,
    shard: &'s ShardId,
    worker: usize,
}

/// All pairs, heaviest first. Shard and worker break ties, so that all workers agree on the order.
fn by_weight<'s>(workers: &[WorkerId], shards: &[&'s ShardId]) -> Vec<Pair<'s>> {
    let mut pairs = Vec::with_capacity(workers.len() * shards.len());
    for &shard in shards {
        let hash = text_hash(&shard.to_string());
        pairs.extend(workers.iter().enumerate().map(|(index, worker)| Pair {
            weight: weight(hash, *worker),
            shard,
            worker: index,
        }));
    }
    pairs.sort_unstable_by(|a, b| {
        b.weight
            .cmp(&a.weight)
            .then_with(|| a.shard.cmp(b.shard))
            .then_with(|| workers[a.worker].cmp(&workers[b.worker]))
    });
    pairs
}

fn weight(shard: u64, worker: WorkerId) -> u64 {
    let high = (worker.0 >> 64) as u64;
    let low = worker.0 as u64;
    mix(mix(shard ^ high) ^ low)
}

/// FNV-1a. Written here because workers of two versions must agree, so a library update must not
/// change it.
fn text_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The final step of splitmix64: spreads a difference of a few bits over all bits.
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

    fn assign<'s>(workers: &[WorkerId], shards: &'s [ShardId]) -> BTreeMap<&'s ShardId, WorkerId> {
        super::assign(workers, &shards.iter().collect::<Vec<_>>())
    }

    fn load(assigned: &BTreeMap<&ShardId, WorkerId>, worker: WorkerId) -> usize {
        assigned.values().filter(|owner| **owner == worker).count()
    }

    fn loads(workers: &[WorkerId], shards: &[ShardId]) -> Vec<usize> {
        let assigned = assign(workers, shards);
        workers
            .iter()
            .map(|worker| load(&assigned, *worker))
            .collect()
    }

    /// The number of shards that move, and the number that must move to give every worker its part.
    fn moves(before: &[WorkerId], after: &[WorkerId], shards: &[ShardId]) -> (usize, usize) {
        let old = assign(before, shards);
        let new = assign(after, shards);
        let moved = shards
            .iter()
            .filter(|shard| old[shard] != new[shard])
            .count();
        let must = before
            .iter()
            .map(|worker| load(&old, *worker).saturating_sub(load(&new, *worker)))
            .sum();
        (moved, must)
    }

    proptest! {
        #[test]
        fn every_shard_has_one_worker_and_the_counts_differ_by_one_at_most(
            count in 0..80,
            workers_max in 1..12_usize,
            seed: u64,
        ) {
            let (shards, workers) = (shards(count), workers(workers_max, seed));
            prop_assert_eq!(assign(&workers, &shards).len(), shards.len());
            let loads = loads(&workers, &shards);
            prop_assert!(
                loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1,
                "{:?}",
                loads
            );
            prop_assert_eq!(loads.iter().sum::<usize>(), shards.len());
        }

        #[test]
        fn the_assignment_does_not_depend_on_the_order_of_workers_and_shards(
            count in 0..40,
            workers_max in 1..8_usize,
            seed: u64,
        ) {
            let (mut shards, mut workers) = (shards(count), workers(workers_max, seed));
            let owned = |workers: &[WorkerId], shards: &[ShardId]| -> BTreeMap<ShardId, WorkerId> {
                assign(workers, shards)
                    .into_iter()
                    .map(|(shard, worker)| (shard.clone(), worker))
                    .collect()
            };
            let assigned = owned(&workers, &shards);
            workers.reverse();
            shards.reverse();
            prop_assert_eq!(assigned, owned(&workers, &shards));
        }

        #[test]
        fn a_second_worker_takes_half_and_nothing_else_moves(count in 0..80, seed: u64) {
            let (shards, workers) = (shards(count), workers(2, seed));
            for (before, after) in [(&workers[..1], &workers[..]), (&workers[..], &workers[1..])] {
                let (moved, must) = moves(before, after, &shards);
                prop_assert_eq!(moved, must);
            }
        }
    }

    #[test]
    fn few_shards_move_between_the_remaining_workers_when_one_joins_or_leaves() {
        for (count, workers_max, share_max) in [
            (32, 3, 0.3),
            (32, 4, 0.3),
            (100, 4, 0.2),
            (100, 8, 0.5),
            (7, 3, 0.3),
        ] {
            let shards = shards(count);
            let (mut sum_moved, mut sum_must) = (0, 0);
            let mut least_extra = usize::MAX;
            for seed in 0..200 {
                let workers = workers(workers_max, seed);
                for (before, after) in
                    [(&workers[..], &workers[1..]), (&workers[1..], &workers[..])]
                {
                    let (moved, must) = moves(before, after, &shards);
                    assert!(
                        moved >= must && moved <= 3 * must + workers_max,
                        "{moved} moved, {must} must, {workers_max} workers, seed {seed}"
                    );
                    sum_moved += moved;
                    sum_must += must;
                    least_extra = least_extra.min(moved - must);
                }
            }
            let share = (sum_moved - sum_must) as f64 / sum_must as f64;
            assert!(
                share < share_max,
                "{count} shards on {workers_max} workers: share of extra moves {share:.2}"
            );
            assert_eq!(least_extra, 0, "for some workers, only required moves");
        }
    }

    /// The bound that tests with real workers, which have random ids, can rely on.
    #[test]
    fn at_most_six_of_thirty_two_shards_move_extra_when_one_of_four_workers_leaves() {
        let shards = shards(32);
        let mut more_than_three = 0;
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
    fn thirty_two_shards_are_even_on_one_two_three_and_four_workers() {
        let (shards, all) = (shards(32), workers(4, 7));
        for workers in [&all[..1], &all[..2], &all[1..], &all[..]] {
            let loads = loads(workers, &shards);
            assert!(
                loads
                    .iter()
                    .all(|load| load.abs_diff(32 / workers.len()) <= 1),
                "{loads:?}"
            );
        }
    }

    /// Workers of two versions must agree.
    #[test]
    fn the_weights_never_change() {
        let owners = assign(&[WorkerId(1), WorkerId(2), WorkerId(3)], &shards(8))
            .into_values()
            .map(|worker| worker.0)
            .collect::<Vec<_>>();
        assert_eq!(owners, [2, 1, 1, 3, 3, 3, 2, 1]);
        assert_eq!(assign(&[], &shards(8)).len(), 0);
    }
}
