//! A process that stops while every partition has a batch that is not stored yet.

use super::block_on_paused;
use crate::model::Partition;
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

/// More partitions than the queues between the ingress and its appender hold together.
const PARTITIONS: i32 = 64;

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
