//! Tests that run whole simulations.

mod brokers;
mod clocks;
mod compaction_levels;
mod compactor_stopped;
mod fleet;
mod idle_rollback;
mod losses;
mod many_partitions;
mod nats;
mod recurring;
mod requests;
mod rules_change;
mod single;
mod takeover;
mod truncation;
mod two_clusters;
mod unreadable;

use crate::testing::sim::world::{Arrival, World};
use std::future::Future;
use std::ops::Range;

/// Runs the future in a runtime with its own paused clock.
fn block_on_paused<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    tokio::task::LocalSet::new().block_on(
        &runtime.expect("a runtime without I/O can always be built"),
        body,
    )
}

/// The lateness of each message in milliseconds. Its payload is a number and its due time.
fn lateness(world: &World) -> Vec<i64> {
    let late =
        |arrival: &Arrival| Some(arrival.at - arrival.uid.split_once(' ')?.1.parse::<i64>().ok()?);
    world.arrivals().iter().filter_map(late).collect()
}

/// Simulated time does not depend on the machine.
const ON_TIME: Range<i64> = 0..20;
