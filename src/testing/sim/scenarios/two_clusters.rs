//! Two installations with the same deployment name and the same store, each with its own cluster.

use super::block_on_paused;
use crate::model::Partition;
use crate::testing::sim::process::Process;
use crate::testing::sim::process_control::ProcessControl;
use crate::testing::sim::world::{SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

const PARTITIONS: i32 = 4;

/// The payloads that arrive at the first and the second cluster. All are sent to the first one.
fn arrivals() -> (Vec<String>, Vec<String>) {
    block_on_paused(async {
        let mut random = StdRng::seed_from_u64(1);
        let first = World::with_partitions(PARTITIONS);
        let mut owner = Process::start(&first, &mut random);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let second = first.with_same_store(PARTITIONS);
        let control = ProcessControl::new(&second, 1);
        let mut intruder = Process::join(&second, control, &mut random);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let due = first.now().as_millis() + 5_000;
        for index in 0..PARTITIONS {
            let headers = [("postdate-at", due.to_string())];
            first.produce(&Partition::new(SOURCE, index), &index.to_string(), &headers);
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
        owner.stop().await;
        intruder.stop().await;
        let payloads = |world: &World| {
            let arrivals = world.arrivals().into_iter();
            arrivals.map(|arrival| arrival.uid).collect()
        };
        (payloads(&first), payloads(&second))
    })
}

/// Breaks G2: the timer of the second installation acquires shards of the first one. It delivers
/// their messages to its own cluster and acknowledges them. Remove `should_panic` when G2 holds.
#[test]
#[should_panic(expected = "messages arrived at the wrong cluster")]
fn an_installation_with_the_name_of_another_one_does_not_deliver_its_messages() {
    let (first, second) = arrivals();
    assert!(
        second.is_empty(),
        "messages arrived at the wrong cluster: {second:?}"
    );
    assert_eq!(first.len(), PARTITIONS as usize);
}
