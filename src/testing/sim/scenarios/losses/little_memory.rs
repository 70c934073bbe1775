//! Timers with little memory, whose store loses writes. No message has an id, so no shard waits for its
//! source: a timer then has messages in memory that it must not claim yet.

use super::{assert_kept, run};
use crate::testing::fault_injection::InjectedFault;
use crate::testing::sim::Delivery;
use crate::testing::sim::faults::single::Faults;
use crate::testing::sim::process::MEMORY;
use crate::testing::sim::seeds::breaks_promises;
use crate::testing::sim::world::World;

fn little_memory(world: World) -> World {
    world.without_ids().with_memory(MEMORY / 8)
}

#[test]
fn timers_with_little_memory_deliver_everything_after_a_loss() {
    assert_kept(96_600, Faults::STORE_LOSES, little_memory);
    assert_kept(96_800, Faults::KILLS_AND_LOSSES, little_memory);
}

#[test]
fn a_timer_whose_full_memory_stops_the_tail_is_caught() {
    let faults = [InjectedFault::FullMemoryStopsTail];
    assert!(breaks_promises(&faults, 96_600..96_800, |seed| {
        run(
            seed,
            Delivery::AtLeastOnce,
            Faults::STORE_LOSES,
            little_memory,
        )
    }));
}
