//! Simulation: the roles as they are, on the memory broker and the memory store, in one paused runtime and from one seed. Processes are
//! killed, the store is rolled back and wiped, clocks step; at the end all heals, and what arrived is held against what was sent.
//!
//! Everything random comes from the seed and everything timed from the paused clock, so a seed repeats a run to the letter.

mod checker;
mod fault;
mod fleet;
mod member;
mod process;
mod slow;
mod workload;
mod world;

use fault::Faults;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;
#[cfg(test)]
use workload::{FAR, SOON};
use world::World;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// How long messages are sent and faults injected.
    pub(crate) length: Duration,
    pub(crate) faults: Faults,
    /// How long messages wait.
    pub(crate) delays: &'static [i64],
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// What happened, a line each, with the simulated time.
    pub(crate) trace: Vec<String>,
    /// Promises that were broken.
    pub(crate) broken: Vec<String>,
}

/// Runs a plan in a runtime of its own.
pub(crate) fn run(plan: Plan) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O can always be built");
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let mut random = StdRng::seed_from_u64(plan.seed);
        let world = World::new();
        let mut process = process::Process::start(&world, &mut random);
        let sender = workload::Sender::new(&world, StdRng::seed_from_u64(plan.seed ^ 1), plan.delays);
        let sending = tokio::task::spawn_local(sender.send_for(plan.length));
        fault::inject(&world, &mut process, plan.faults, plan.length, &mut random).await;
        let sent = sending.await.expect("the sender does not panic");
        world.heal();
        process.ensure_running(&world, &mut random);
        let broken = checker::check(&world, &sent).await;
        let mut broken = broken;
        if !process.stop().await {
            broken.push("a stopping process did not end".to_owned());
        }
        Outcome { trace: world.take_trace(), broken }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;
    use crate::mutant::{self, Mutant};

    fn plan(seed: u64, faults: Faults, delays: &'static [i64]) -> Plan {
        Plan { seed, length: Duration::from_secs(20), faults, delays }
    }

    /// How many of so many seeds break a promise; the first is shown.
    fn broken(seeds: std::ops::Range<u64>, faults: Faults, delays: &'static [i64]) -> Option<(u64, Vec<String>)> {
        seeds.map(|seed| (seed, run(plan(seed, faults, delays)).broken)).find(|(_, broken)| !broken.is_empty())
    }

    #[test]
    fn the_same_seed_gives_the_same_trace() {
        for (seed, delays) in (0..6).zip([SOON, FAR].into_iter().cycle()) {
            let (first, second) = (run(plan(seed, Faults::ALL, delays)), run(plan(seed, Faults::ALL, delays)));
            assert!(first.trace.len() > 50, "almost nothing happened: {:?}", first.trace);
            assert_eq!(first, second);
        }
    }

    #[test]
    fn without_faults_everything_arrives_exactly_once_and_in_order() {
        assert_eq!(broken(0..60, Faults::NONE, SOON), None);
    }

    #[test]
    fn nothing_is_lost_or_early_through_kills_rollbacks_wipes_and_clock_steps() {
        assert_eq!(broken(1_000..1_150, Faults::ALL, SOON), None);
    }

    #[test]
    fn a_confirmed_cancel_is_never_delivered_while_the_store_keeps_what_it_acknowledged() {
        assert_eq!(broken(2_000..2_060, Faults::STORE_KEEPS, SOON), None);
    }

    #[test]
    fn runs_that_are_merged_and_split_before_they_are_due_lose_and_repeat_nothing() {
        for (seeds, faults) in [(4_000..4_008, Faults::NONE), (4_100..4_115, Faults::ALL), (4_200..4_207, Faults::STORE_LOSES)] {
            let rewritten = |seed| run(plan(seed, faults, FAR)).trace.iter().any(|line| line.contains(" runs became "));
            assert!(seeds.clone().take(3).any(rewritten), "nothing was rewritten");
            assert_eq!(broken(seeds, faults, FAR), None);
        }
    }

    /// A message that cannot be handed over now waits where it stands, and so does what comes after it (G4).
    #[test]
    fn messages_keep_their_order_while_a_producer_that_failed_for_good_is_replaced() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let arrivals = tokio::task::LocalSet::new().block_on(&runtime, async {
            let world = World::new();
            let mut process = process::Process::start(&world, &mut StdRng::seed_from_u64(1));
            let (start, partition) = (world.now().as_millis(), Partition::new(world::SOURCE, 0));
            for number in 0..1_000 {
                world.produce(&partition, &format!("{number:04}"), &[("postdate-at", (start + 2_000 + number).to_string())]);
            }
            for failed in [true, false, true, false] {
                tokio::time::sleep(Duration::from_millis(1_150)).await;
                world.producers_failed(failed);
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(process.stop().await);
            world.arrivals()
        });
        assert_eq!(arrivals.len(), 1_000);
        assert!(arrivals.iter().all(|arrival| !arrival.is_dead));
        // Two target partitions, one after the other.
        assert_eq!(arrivals.windows(2).filter(|pair| pair[0].uid > pair[1].uid).count(), 1);
    }

    /// So a store that begins anew from the commit repeats nothing.
    #[test]
    fn an_orderly_end_commits_what_is_delivered_until_then() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let world = World::new();
            let mut process = process::Process::start(&world, &mut StdRng::seed_from_u64(1));
            let (due, partition) = (world.now().as_millis() + 2_000, Partition::new(world::SOURCE, 0));
            for number in 0..100 {
                world.produce(&partition, &number.to_string(), &[("postdate-at", due.to_string())]);
            }
            tokio::time::sleep(Duration::from_millis(1_900)).await;
            world.hold_reports(true);
            tokio::time::sleep(Duration::from_millis(500)).await;
            let late = world.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                late.hold_reports(false);
            });
            assert!(process.stop().await);
            assert_eq!(world.arrivals().len(), 100);
            assert_eq!(world.committed(&partition).await, Some(world.delivered(&partition).await));
        });
    }

    #[test]
    fn every_planted_fault_is_caught() {
        let planted = [
            (Mutant::NoCompare, Faults::ALL),
            (Mutant::BlindWatermark, Faults::ALL),
            (Mutant::DeletesEarly, Faults::ALL),
            (Mutant::SkipsLate, Faults::ALL),
            (Mutant::RewindsToCommit, Faults::ALL),
            (Mutant::ClaimsBack, Faults::STORE_KEEPS),
            (Mutant::NoLastLook, Faults::ALL),
            (Mutant::ReusesNames, Faults::ALL),
            (Mutant::IgnoresRollback, Faults::STORE_LOSES),
        ];
        assert_eq!(missed(planted, SOON), []);
    }

    #[test]
    fn every_fault_planted_in_the_rewriting_is_caught() {
        let planted = [Mutant::RewriteDrops, Mutant::RewriteDoubles, Mutant::RewriteRaces].map(|mutant| (mutant, Faults::NONE));
        assert_eq!(missed(planted, FAR), []);
    }

    /// The faults that no seed shows.
    fn missed(planted: impl IntoIterator<Item = (Mutant, Faults)>, delays: &'static [i64]) -> Vec<Mutant> {
        let caught = |mutant, faults| mutant::with(Some(mutant), || broken(3_000..3_400, faults, delays)).is_some();
        planted.into_iter().filter(|(mutant, faults)| !caught(*mutant, *faults)).map(|(mutant, _)| mutant).collect()
    }
}
