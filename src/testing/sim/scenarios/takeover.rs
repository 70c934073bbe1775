//! A worker dies together with the group coordinator.

use super::block_on_paused;
use crate::model::{Offset, Partition};
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::{LEASE, Process};
use crate::testing::sim::process_control::ProcessControl;
use crate::testing::sim::world::{GROUP, SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

const PARTITIONS: i32 = 8;

/// The number of messages that arrive while the coordinator is silent, and the number of partitions
/// whose commit covers their message after that. One message is sent to each partition.
fn arrivals_and_commits() -> (usize, usize) {
    block_on_paused(async {
        let world = World::with_partitions(PARTITIONS);
        let mut random = StdRng::seed_from_u64(1);
        let [mut dead, mut alive] = [0, 1].map(|number| {
            let control = ProcessControl::new(&world, number);
            Process::join(&world, control, &mut random)
        });
        let partitions = || (0..PARTITIONS).map(|index| Partition::new(SOURCE, index));
        tokio::time::sleep(10 * LEASE).await;
        world.cluster().silence_coordinator(true);
        dead.kill(&world).await;
        tokio::time::sleep(3 * LEASE).await;
        for partition in partitions() {
            let delay = [("postdate-after", "1s".to_owned())];
            world.produce(&partition, &partition.to_string(), &delay);
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let arrived = world.arrivals().len();
        world.cluster().silence_coordinator(false);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let committed = |partition: &Partition| {
            let committed = world.cluster().committed_offset(GROUP, partition);
            committed.is_some_and(|(offset, _)| offset == Offset(1))
        };
        let committed = partitions().filter(committed).count();
        assert!(alive.stop().await);
        (arrived, committed)
    })
}

#[test]
fn a_takeover_does_not_wait_for_the_group_coordinator() {
    let all = PARTITIONS as usize;
    assert_eq!(arrivals_and_commits(), (all, all));
}

#[test]
fn a_takeover_that_waits_for_the_group_coordinator_is_caught() {
    let faults = [InjectedFault::WaitForCoordinator];
    let (arrived, _) = fault_injection::with(faults, arrivals_and_commits);
    assert!(arrived < PARTITIONS as usize, "{arrived}");
}
