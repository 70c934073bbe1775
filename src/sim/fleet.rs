//! Simulated fleets: processes that join, leave as planned, are killed, frozen past their leases and cut off from the store or the brokers, each
//! with a clock of its own (`trouble`). At the end all heals, and besides what holds for one process (`checker`) this must: every shard has one
//! holder, the holders' parts differ by one at most, nobody handed over what another held, and only what was in flight at a fault came twice.

use super::TAKEN_OVER;
use super::checker;
use super::member::Member;
use super::process::{LEASE, Process};
use super::stream::LONG;
use super::trouble::Trouble;
use super::workload::{SOON, Sender};
use super::world::{Handed, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const PARTITIONS: i32 = 7;

/// How long processes are given to become even: a process that is gone counts as alive for a lease, and another one knows a moment later.
const SETTLING: Duration = Duration::from_secs(30);

/// What was delivered, and not told to the store, when a process was killed or cut off: what is told is told within so long.
const UNTOLD: i64 = 1_000;

/// Something that was done to a process, after which what it had in flight may come again.
struct Fault {
    process: usize,
    from: i64,
    until: i64,
}

pub(super) struct Fleet {
    pub(super) world: World,
    /// In the order in which they joined.
    pub(super) processes: Vec<Process>,
    faults: Vec<Fault>,
    joined: usize,
    pub(super) random: StdRng,
}

impl Fleet {
    fn new(world: &World, random: StdRng) -> Self {
        let mut fleet = Self {
            world: world.clone(),
            processes: Vec::new(),
            faults: Vec::new(),
            joined: 0,
            random,
        };
        fleet.join();
        fleet
    }

    pub(super) fn join(&mut self) {
        let member = Member::timed(&self.world, self.joined);
        self.world.note(format!("process {} joins", self.joined));
        self.joined += 1;
        self.processes
            .push(Process::join(&self.world, member, &mut self.random));
    }

    /// From a moment until now what a process has in flight may come again.
    pub(super) fn blame(&mut self, process: usize, from: i64) {
        self.world.disturb();
        self.faults.push(Fault {
            process,
            from,
            until: self.world.elapsed(),
        });
    }

    /// Ends all processes; answers which did not end in time.
    async fn stop(&mut self) -> Vec<String> {
        let mut late = Vec::new();
        for mut process in self.processes.drain(..) {
            if !process.stop().await {
                late.push(format!(
                    "process {} did not stop in time",
                    process.member.number
                ));
            }
        }
        late
    }

    /// How many shards each process holds, and how many nobody.
    fn parts(&self) -> (BTreeMap<usize, usize>, usize) {
        let mut parts: BTreeMap<usize, usize> = self
            .processes
            .iter()
            .map(|process| (process.member.number, 0))
            .collect();
        let mut free = 0;
        for partition in 0..PARTITIONS {
            match self
                .world
                .holder(partition)
                .and_then(|process| parts.get_mut(&process))
            {
                Some(part) => *part += 1,
                None => free += 1,
            }
        }
        (parts, free)
    }

    fn is_even(&self) -> bool {
        let (parts, free) = self.parts();
        free == 0
            && parts
                .values()
                .max()
                .zip(parts.values().min())
                .is_some_and(|(most, least)| most - least <= 1)
    }

    /// Waits until the shards are shared evenly, and stay so.
    async fn becomes_even(&self) -> Option<String> {
        let end = Instant::now() + SETTLING;
        let mut even_since = None;
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(100)).await;
            even_since = if self.is_even() {
                even_since.or(Some(Instant::now()))
            } else {
                None
            };
            if even_since.is_some_and(|since: Instant| since.elapsed() > 3 * LEASE) {
                return None;
            }
        }
        Some(format!(
            "the shards are not shared evenly: {:?}",
            self.parts()
        ))
    }

    /// What came more than once, though nothing of it can have been in flight when something happened to the process.
    fn repeated(&self, handed: &[Handed]) -> Vec<String> {
        let mut first: BTreeMap<&str, &Handed> = BTreeMap::new();
        let mut repeated = Vec::new();
        for handed in handed {
            let Some(before) = first.insert(&handed.uid, handed) else {
                continue;
            };
            let was_in_flight = |fault: &Fault| {
                let until = fault.until + i64::try_from(LEASE.as_millis()).expect("a second");
                fault.process == before.process
                    && (fault.from - UNTOLD..=until).contains(&before.at)
            };
            if !self.faults.iter().any(was_in_flight) {
                repeated.push(format!(
                    "twice, and not in flight at a fault: {before:?} {handed:?}"
                ));
            }
        }
        repeated
    }
}

/// Runs one fleet in a runtime of its own; answers what happened and which promises were broken.
pub(crate) fn run(seed: u64, length: Duration, trouble: Trouble) -> super::Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = runtime.expect("a runtime without I/O can always be built");
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let world = World::of(PARTITIONS);
        let world = match trouble {
            Trouble::Streams => world.on_streams(LONG),
            _ if trouble.is_exactly_once() => world.delivering_exactly_once(),
            _ => world,
        };
        let mut fleet = Fleet::new(&world, StdRng::seed_from_u64(seed));
        let sender = Sender::new(&world, StdRng::seed_from_u64(seed ^ 1), SOON).over(PARTITIONS);
        let sending = tokio::task::spawn_local(sender.send_for(length));
        let end = Instant::now() + length;
        while Instant::now() < end {
            fleet.pause(2_500).await;
            fleet.step(trouble).await;
        }
        let sent = sending.await.expect("the sender does not panic");
        fleet
            .processes
            .iter()
            .for_each(|process| process.member.clock.set_off(0));
        let uneven = fleet.becomes_even().await;
        let mut broken = checker::check(&world, &sent).await;
        broken.extend(uneven);
        if !world.is_exactly_once() && !world.store_lost_writes() {
            broken.extend(fleet.repeated(&world.handed()));
        }
        broken.extend(fleet.stop().await);
        if world.store_lost_writes() {
            // As in a single process: who takes over finds what the store may hold again.
            fleet.join();
            tokio::time::sleep(TAKEN_OVER).await;
            world.audit();
            broken.extend(world.take_accusations());
            broken.extend(checker::ledgers(&world, &sent));
            broken.extend(fleet.stop().await);
        }
        super::Outcome {
            trace: world.take_trace(),
            broken,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::seeds::{assert_kept, is_broken_by};
    use super::*;
    use crate::mutant::{self, Mutant};

    const LENGTH: Duration = Duration::from_secs(20);

    /// Few steps each, so that many can be run.
    const SHORT: Duration = Duration::from_secs(7);

    #[test]
    fn a_seed_repeats_a_fleet_to_the_letter() {
        for trouble in [
            Trouble::None,
            Trouble::All,
            Trouble::StoreLoses,
            Trouble::Streams,
            Trouble::ExactlyOnceStoreLoses,
        ] {
            let (first, second) = (run(5, LENGTH, trouble), run(5, LENGTH, trouble));
            assert!(first.trace.len() > 50);
            assert_eq!(first, second);
        }
    }

    #[test]
    fn workers_that_come_and_go_as_planned_share_evenly_and_deliver_everything_exactly_once() {
        assert_kept(0..10, |seed| run(seed, LENGTH, Trouble::None));
        assert_kept(10_000..10_100, |seed| run(seed, SHORT, Trouble::None));
    }

    #[test]
    fn through_kills_freezes_cuts_and_clocks_nothing_is_lost_early_or_handed_over_by_who_does_not_hold_it()
     {
        assert_kept(1_000..1_020, |seed| run(seed, LENGTH, Trouble::All));
        assert_kept(20_000..20_220, |seed| run(seed, SHORT, Trouble::All));
    }

    #[test]
    fn a_fleet_whose_store_forgets_loses_nothing_and_its_ledgers_close() {
        assert_kept(5_000..5_010, |seed| run(seed, LENGTH, Trouble::StoreLoses));
        assert_kept(60_000..60_150, |seed| run(seed, SHORT, Trouble::StoreLoses));
    }

    #[test]
    fn on_streams_of_which_two_read_the_same_for_a_while_a_fleet_loses_nothing_and_nothing_comes_twice()
     {
        assert_kept(3_000..3_010, |seed| run(seed, LENGTH, Trouble::Streams));
        assert_kept(30_000..30_100, |seed| run(seed, SHORT, Trouble::Streams));
    }

    #[test]
    fn exactly_once_a_fleet_delivers_nothing_twice_though_processes_die_and_wake() {
        assert_kept(70_000..70_150, |seed| {
            run(seed, SHORT, Trouble::ExactlyOnce)
        });
    }

    #[test]
    fn exactly_once_a_fleet_delivers_nothing_twice_though_the_store_forgets_too() {
        assert_kept(4_000..4_010, |seed| {
            run(seed, LENGTH, Trouble::ExactlyOnceStoreLoses)
        });
        assert_kept(40_000..40_150, |seed| {
            run(seed, SHORT, Trouble::ExactlyOnceStoreLoses)
        });
    }

    #[test]
    fn every_fault_planted_in_a_fleet_is_caught() {
        let planted = [
            (Mutant::IgnoresTerm, Trouble::All),
            (Mutant::NoLookAgain, Trouble::All),
            (Mutant::HandsOverEarly, Trouble::None),
            (Mutant::HandsOverUntold, Trouble::None),
            (Mutant::PlacesByOwnList, Trouble::None),
            (Mutant::TakesOthers, Trouble::None),
            (Mutant::RewindsToCommit, Trouble::StoreLoses),
            (Mutant::TalliesNothing, Trouble::All),
        ];
        let is_caught = |mutant, trouble| {
            is_broken_by(&[mutant], 2_000..2_100, |seed| run(seed, LENGTH, trouble))
        };
        let missed: Vec<_> = planted
            .into_iter()
            .filter(|(mutant, trouble)| !is_caught(*mutant, *trouble))
            .collect();
        assert_eq!(missed, []);
    }
    /// It would fence whoever has the shard by then.
    #[test]
    fn who_opens_a_transactor_without_a_look_at_its_lease_is_accused_of_that() {
        let opens = |broken: &String| broken.contains(" opens a transactor of ");
        let is_accused = |seed| {
            run(seed, LENGTH, Trouble::ExactlyOnce)
                .broken
                .iter()
                .any(opens)
        };
        assert!(mutant::with([Mutant::IgnoresTerm], || (2_000..2_100).any(is_accused)));
    }
}
