//! The servers of the store lose their power. Each one keeps a prefix of its writes since it last wrote
//! to its disk.
//!
//! This is what an append-only file of Redis and the journal of the embedded store allow: both are read
//! up to the first damaged byte. The embedded store answers only after it wrote to its disk. A disk
//! that keeps later writes and loses earlier ones is not simulated: both refuse such a file.

use super::{assert_kept, is_caught};
use crate::testing::fault_injection::InjectedFault;
use crate::testing::sim::faults::single::Faults;

#[test]
fn a_power_loss_of_the_store_loses_nothing() {
    assert_kept(96_200, Faults::POWER_LOSS, |world| world);
}

/// The shards and the sessions go back to different moments.
#[test]
fn a_power_loss_of_two_servers_loses_nothing() {
    assert_kept(96_400, Faults::POWER_LOSS, |world| {
        world.store().set_parts(2);
        world
    });
}

#[test]
fn an_append_that_is_not_one_write_is_caught() {
    let faults = [InjectedFault::AppendInTwoSteps];
    assert!(is_caught(&faults, 96_200, Faults::POWER_LOSS));
}
