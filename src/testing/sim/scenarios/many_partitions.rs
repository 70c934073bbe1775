//! Several partitions of one process: one has no leader, or all have unstored batches at a stop.

use super::block_on_paused;
use crate::model::Partition;
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

/// More partitions than the queues between the ingress and its appender hold together.
const PARTITIONS: i32 = 64;

/// Sends a message to each of two partitions, of which the first has no leader. `lost_at_start`:
/// it has none when the process starts.
async fn only_the_other_partition_is_read(lost_at_start: bool) {
    let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
    let partition = |index| Partition::new(SOURCE, index);
    if lost_at_start {
        world.set_leaderless(&[partition(0)]);
    }
    let mut process = Process::start(&world, &mut random);
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.set_leaderless(&[partition(0)]);
    let due = world.now().as_millis() + 3_000;
    for index in 0..2 {
        let headers = [("postdate-at", due.to_string())];
        world.produce(&partition(index), &format!("{index} {due}"), &headers);
    }
    let arrived = || world.arrivals().len();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(arrived(), 1, "the partition with a leader is read");
    let is_reported = |process: &Process| process.reports_not_ready("the partition has no leader");
    assert!(is_reported(&process));
    world.set_leaderless(&[]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(arrived(), 2);
    assert!(!is_reported(&process));
    assert!(process.stop().await);
}

#[test]
fn a_partition_without_a_leader_does_not_stop_the_others_from_being_opened() {
    block_on_paused(only_the_other_partition_is_read(true));
}

#[test]
fn a_partition_that_loses_its_leader_is_reported_until_it_is_read_again() {
    block_on_paused(only_the_other_partition_is_read(false));
}

#[test]
fn a_process_with_many_partitions_stores_all_batches_before_it_stops() {
    block_on_paused(async {
        let (world, mut random) = (World::with_partitions(PARTITIONS), StdRng::seed_from_u64(1));
        let mut process = Process::start(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(5)).await;
        for index in 0..PARTITIONS {
            let delay = [("postdate-after", "1h".to_owned())];
            world.produce(&Partition::new(SOURCE, index), &index.to_string(), &delay);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let stored = || -> u64 { world.balances().iter().map(|balance| balance.pending).sum() };
        assert_eq!(stored(), 0, "the batches wait for more records");
        assert!(process.stop().await, "the process does not stop");
        assert_eq!(stored(), PARTITIONS as u64);
    });
}
