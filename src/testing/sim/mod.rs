//! Simulation: the real roles on a memory broker and a memory store, in one paused runtime.
//!
//! Processes are killed, the store is rolled back and wiped, and clocks jump. In the end all
//! faults heal, and the arrived messages are compared with the sent ones.
//!
//! All randomness comes from the seed and all time from the paused clock, so a seed repeats a run
//! exactly.

mod checker;
mod clock;
mod compaction_trace;
mod delivery_observer;
mod duplicate_counter;
mod faults;
mod fleet;
mod lease_audit;
mod mutants;
mod process;
mod process_control;
mod scenarios;
mod seeds;
mod trace;
mod workload;
mod world;

use faults::single::Faults;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;
use world::World;

/// Time to load a shard after a takeover and to store its delivered pair.
const TAKEOVER_TIME: Duration = Duration::from_secs(20);

/// The parameters of one simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// The time in which messages are sent and faults are injected.
    pub(crate) length: Duration,
    pub(crate) faults: Faults,
    /// Possible delays of messages, in milliseconds.
    pub(crate) delays: &'static [i64],
    pub(crate) delivery: Delivery,
    /// Each run of the process has other routing rules.
    pub(crate) changes_rules: bool,
}

/// The kind of broker and the delivery promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    AtLeastOnce,
    ExactlyOnce,
    /// NATS streams with a duplicate window of this length.
    Streams(Duration),
}

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// All events, in time order.
    pub(crate) trace: Vec<trace::TraceLine>,
    /// Broken promises.
    pub(crate) broken: Vec<String>,
}

/// Runs a simulation in its own runtime.
pub(crate) fn run(plan: Plan) -> Outcome {
    run_in(plan, |world| world)
}

/// Like [`run`], in a prepared world.
pub(crate) fn run_in(plan: Plan, prepare: impl FnOnce(World) -> World) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = runtime.expect("a runtime without I/O can always be built");
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let mut random = StdRng::seed_from_u64(plan.seed);
        let world = match plan.delivery {
            Delivery::AtLeastOnce => World::new(),
            Delivery::ExactlyOnce => World::new().with_exactly_once(),
            Delivery::Streams(window) => World::new().on_streams(window),
        };
        let world = if plan.changes_rules {
            world.with_changing_rules()
        } else {
            world
        };
        let world = prepare(world);
        let mut process = process::Process::start(&world, &mut random);
        let sender =
            workload::Sender::new(&world, StdRng::seed_from_u64(plan.seed ^ 1), plan.delays);
        let sending = tokio::task::spawn_local(sender.send_for(plan.length));
        faults::single::inject(&world, &mut process, plan.faults, plan.length, &mut random).await;
        let sent = sending.await.expect("the sender does not panic");
        let sent = world.acknowledged(sent);
        world.heal();
        process.ensure_running(&world, &mut random);
        let mut broken = checker::check(&world, &sent).await;
        if !process.stop().await {
            broken.push("a process did not stop in time".to_owned());
        }
        let has_leftovers = world.may_have_duplicates() && !checker::leftovers(&world).is_empty();
        if world.store_lost_writes() || has_leftovers {
            // A new owner finds and deletes what earlier ones have left, and delivered runs that the
            // store has again.
            process.ensure_running(&world, &mut random);
            tokio::time::sleep(TAKEOVER_TIME).await;
            world.check_ledgers();
            broken.extend(world.take_violations());
            broken.extend(checker::ledgers(&world, &sent));
            process.stop().await;
        }
        broken.extend(checker::leftovers(&world));
        Outcome {
            trace: world.take_trace(),
            broken,
        }
    })
}
