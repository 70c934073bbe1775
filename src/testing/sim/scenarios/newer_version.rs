//! A newer version has stored data of one shard that this version cannot read. The shard waits, and
//! the other one is delivered.

use super::block_on_paused;
use crate::model::{Partition, ShardId};
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{ROUTE, SOURCE, World};
use crate::testing::store::memory::MemoryStore;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

/// `set_newer` makes the data of a shard newer, or readable again. `reason`: a part of what the
/// process says meanwhile.
fn assert_shard_waits(set_newer: impl Fn(&MemoryStore, &ShardId, bool), reason: &str) {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let mut process = Process::start(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let due = world.now().as_millis() + 10_000;
        for index in 0..2 {
            let headers = [("postdate-at", due.to_string())];
            world.produce(&Partition::new(SOURCE, index), &index.to_string(), &headers);
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        process.kill(&world).await;
        let shard = ShardId::new(ROUTE, Partition::new(SOURCE, 0));
        set_newer(world.store(), &shard, true);
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let payloads = || Vec::from_iter(world.arrivals().into_iter().map(|arrival| arrival.uid));
        assert_eq!(payloads(), ["1"], "the other shard is delivered");
        assert!(process.reports_not_ready(reason));
        assert!(process.reports_not_ready("run the newer version"));

        process.kill(&world).await;
        set_newer(world.store(), &shard, false);
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let mut payloads = payloads();
        payloads.sort();
        assert_eq!(payloads, ["0", "1"], "nothing is lost or repeated");
        assert!(!process.reports_not_ready("newer version"));
        let balances = world.balances();
        assert!(balances.iter().all(|balance| balance.quarantined == 0));
        assert!(process.stop().await);
    });
}

#[test]
fn a_shard_with_a_slice_of_a_newer_version_waits() {
    assert_shard_waits(MemoryStore::set_newer_slice, "shard r/in/0 waits: ");
}

#[test]
fn a_shard_with_a_run_of_a_newer_version_waits() {
    let set_version = |store: &MemoryStore, shard: &ShardId, is_newer| {
        store.set_run_version(shard, if is_newer { 2 } else { 1 });
    };
    assert_shard_waits(set_version, "waits in front of a stored run");
}
