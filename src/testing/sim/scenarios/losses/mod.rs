//! Scenarios in which the store, a part of it, or the offset commits are lost.

mod expired_commits;
mod little_memory;
mod power_loss;
mod store_parts;

use crate::testing::fault_injection::InjectedFault;
use crate::testing::sim::faults::single::Faults;
use crate::testing::sim::seeds::{assert_promises_kept, breaks_promises};
use crate::testing::sim::workload::SOON;
use crate::testing::sim::world::World;
use crate::testing::sim::{Delivery, Outcome, Plan, run_in};
use std::time::Duration;

fn run(
    seed: u64,
    delivery: Delivery,
    faults: Faults,
    prepare: impl FnOnce(World) -> World,
) -> Outcome {
    let plan = Plan {
        seed,
        length: Duration::from_secs(20),
        faults,
        delays: SOON,
        delivery,
        changes_rules: false,
    };
    run_in(plan, prepare)
}

/// Runs 30 seeds from `first` on, and with exactly-once delivery 30 from `first + 100` on.
fn assert_kept(first: u64, faults: Faults, prepare: fn(World) -> World) {
    for (first, delivery) in [
        (first, Delivery::AtLeastOnce),
        (first + 100, Delivery::ExactlyOnce),
    ] {
        assert_promises_kept(first..first + 30, |seed| {
            run(seed, delivery, faults, prepare)
        });
    }
}

/// True if at least one seed reveals the injected faults.
fn is_caught(injected: &[InjectedFault], first: u64, faults: Faults) -> bool {
    breaks_promises(injected, first..first + 60, |seed| {
        run(seed, Delivery::AtLeastOnce, faults, |world| world)
    })
}
