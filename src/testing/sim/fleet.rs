//! Simulated fleets. Workers join, leave, are killed, frozen and cut off. Each has its own clock.
//!
//! In the end all faults heal. In addition to the checks for one process (`checker`), every shard
//! must have one holder, and the shard counts of two workers differ by at most one. No worker
//! delivers messages of a shard that another holds. Only messages in flight at a fault arrive
//! twice.

use crate::testing::sim::TAKEOVER_TIME;
use crate::testing::sim::checker;
use crate::testing::sim::faults::fleet::FleetFaults;
use crate::testing::sim::faults::nats::LONG;
use crate::testing::sim::process::{LEASE, Process};
use crate::testing::sim::process_control::ProcessControl;
use crate::testing::sim::workload::{SOON, Sender};
use crate::testing::sim::world::{SimDelivery, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const PARTITIONS: i32 = 7;

/// Time for the fleet to balance: a dead worker counts as alive until its lease expires.
const SETTLING: Duration = Duration::from_secs(30);

/// In milliseconds: a delivered message is acknowledged in the store within this time.
const ACKNOWLEDGE_DELAY: i64 = 1_000;

/// A fault of one process. Its messages in flight may arrive twice.
struct ProcessFault {
    process: usize,
    from: i64,
    until: i64,
}

pub(crate) struct Fleet {
    pub(crate) world: World,
    /// In the order in which they joined.
    pub(crate) processes: Vec<Process>,
    faults: Vec<ProcessFault>,
    joined: usize,
    pub(crate) random: StdRng,
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

    pub(crate) fn join(&mut self) {
        let member = ProcessControl::with_own_clock(&self.world, self.joined);
        self.world.note(format!("process {} joins", self.joined));
        self.joined += 1;
        self.processes
            .push(Process::join(&self.world, member, &mut self.random));
    }

    /// Allows duplicates of messages that the process had in flight between `from` and now.
    pub(crate) fn allow_duplicates(&mut self, process: usize, from: i64) {
        self.world.allow_duplicates();
        self.faults.push(ProcessFault {
            process,
            from,
            until: self.world.elapsed(),
        });
    }

    /// Stops all processes. Returns complaints about those that did not stop in time.
    async fn stop(&mut self) -> Vec<String> {
        let mut late = Vec::new();
        for mut process in self.processes.drain(..) {
            if !process.stop().await {
                late.push(format!(
                    "process {} did not stop in time",
                    process.control.number
                ));
            }
        }
        late
    }

    /// The number of shards that each process holds, and the number of free shards.
    fn shard_counts(&self) -> (BTreeMap<usize, usize>, usize) {
        let mut parts: BTreeMap<usize, usize> = self
            .processes
            .iter()
            .map(|process| (process.control.number, 0))
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

    fn is_balanced(&self) -> bool {
        let (parts, free) = self.shard_counts();
        free == 0
            && parts
                .values()
                .max()
                .zip(parts.values().min())
                .is_some_and(|(most, least)| most - least <= 1)
    }

    /// Waits until the shards are balanced and stay balanced.
    async fn wait_for_balance(&self) -> Option<String> {
        let end = Instant::now() + SETTLING;
        let mut even_since = None;
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(100)).await;
            even_since = if self.is_balanced() {
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
            self.shard_counts()
        ))
    }

    /// Messages that arrived twice although they were not in flight during a fault.
    fn unexpected_duplicates(&self, deliveries: &[SimDelivery]) -> Vec<String> {
        let mut first: BTreeMap<&str, &SimDelivery> = BTreeMap::new();
        let mut repeated = Vec::new();
        for delivery in deliveries {
            let Some(before) = first.insert(&delivery.uid, delivery) else {
                continue;
            };
            let was_in_flight = |fault: &ProcessFault| {
                let until = fault.until + i64::try_from(LEASE.as_millis()).expect("a second");
                fault.process == before.process
                    && (fault.from - ACKNOWLEDGE_DELAY..=until).contains(&before.at)
            };
            if !self.faults.iter().any(was_in_flight) {
                repeated.push(format!(
                    "delivered twice, but not in flight at a fault: {before:?} {delivery:?}"
                ));
            }
        }
        repeated
    }
}

/// Runs one fleet in its own runtime. Returns the trace and the broken promises.
pub(crate) fn run(
    seed: u64,
    length: Duration,
    faults: FleetFaults,
) -> crate::testing::sim::Outcome {
    run_in(seed, length, faults, |world| world)
}

/// Like [`run`], in a prepared world.
pub(crate) fn run_in(
    seed: u64,
    length: Duration,
    faults: FleetFaults,
    prepare: impl FnOnce(World) -> World,
) -> crate::testing::sim::Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = runtime.expect("a runtime without I/O can always be built");
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let world = prepare(World::with_partitions(PARTITIONS));
        let world = match faults {
            FleetFaults::Streams => world.on_streams(LONG),
            _ if faults.is_exactly_once() => world.with_exactly_once(),
            _ => world,
        };
        let mut fleet = Fleet::new(&world, StdRng::seed_from_u64(seed));
        let sender = Sender::new(&world, StdRng::seed_from_u64(seed ^ 1), SOON).over(PARTITIONS);
        let sending = tokio::task::spawn_local(sender.send_for(length));
        let end = Instant::now() + length;
        while Instant::now() < end {
            fleet.pause(2_500).await;
            fleet.step(faults).await;
        }
        let sent = sending.await.expect("the sender does not panic");
        fleet
            .processes
            .iter()
            .for_each(|process| process.control.clock.set_offset(0));
        world.mark_healed();
        let uneven = fleet.wait_for_balance().await;
        let mut broken = checker::check(&world, &sent).await;
        broken.extend(uneven);
        if !world.is_exactly_once() && !world.store_lost_writes() {
            broken.extend(fleet.unexpected_duplicates(&world.deliveries()));
        }
        broken.extend(fleet.stop().await);
        let has_leftovers = world.may_have_duplicates() && !checker::leftovers(&world).is_empty();
        if world.store_lost_writes() || has_leftovers {
            // A new worker finds and deletes what earlier ones have left, and delivered runs that the
            // store has again.
            fleet.join();
            tokio::time::sleep(TAKEOVER_TIME).await;
            world.check_ledgers();
            broken.extend(world.take_violations());
            broken.extend(checker::ledgers(&world, &sent));
            broken.extend(fleet.stop().await);
        }
        broken.extend(checker::leftovers(&world));
        crate::testing::sim::Outcome {
            trace: world.take_trace(),
            broken,
        }
    })
}
