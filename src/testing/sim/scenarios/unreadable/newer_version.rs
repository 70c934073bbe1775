//! A newer version has written data of one shard that this version cannot read. The shard waits, and
//! the other one is delivered.

use super::super::block_on_paused;
use crate::broker::{GroupAdmin as _, OffsetCommit};
use crate::model::{Partition, RetryKeys, ShardId};
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::{Process, RETRY_KEY};
use crate::testing::sim::world::{GROUP, ROUTE, SOURCE, World};
use crate::testing::store::memory::MemoryStore;
use futures_util::FutureExt as _;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

fn partition(index: i32) -> Partition {
    Partition::new(SOURCE, index)
}

fn produce_due_in(world: &World, index: i32, uid: &str, millis: i64) {
    let due = world.now().as_millis() + millis;
    world.produce(&partition(index), uid, &[("postdate-at", due.to_string())]);
}

fn payloads(world: &World) -> Vec<String> {
    let mut payloads: Vec<_> = world.arrivals().into_iter().map(|it| it.uid).collect();
    payloads.sort();
    payloads
}

/// `set_newer` makes the data of a shard newer, or readable again. `reason`: a part of what the
/// process says meanwhile. Returns what arrived while the data was newer.
fn run(set_newer: impl Fn(&World, &ShardId, bool), reason: &str) -> Vec<String> {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let mut process = Process::start(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(5)).await;
        produce_due_in(&world, 0, "0", 10_000);
        produce_due_in(&world, 1, "1", 10_000);
        tokio::time::sleep(Duration::from_secs(3)).await;
        process.kill(&world).await;
        let shard = ShardId::new(ROUTE, partition(0));
        set_newer(&world, &shard, true);
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let meanwhile = payloads(&world);
        if meanwhile.len() > 1 {
            return meanwhile;
        }
        assert!(process.reports_not_ready(reason));
        assert!(process.reports_not_ready("run the newer version"));

        process.kill(&world).await;
        set_newer(&world, &shard, false);
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(payloads(&world), ["0", "1"], "nothing is lost or repeated");
        assert!(!process.reports_not_ready("newer version"));
        let balances = world.balances();
        assert!(balances.iter().all(|balance| balance.quarantined == 0));
        assert!(process.stop().await);
        meanwhile
    })
}

fn assert_shard_waits(set_newer: impl Fn(&World, &ShardId, bool), reason: &str) {
    assert_eq!(
        run(set_newer, reason),
        ["1"],
        "only the other shard is delivered"
    );
}

/// Changes the version of the last commit, and loses the store.
fn set_newer_commit(world: &World, shard: &ShardId, is_newer: bool) {
    let partition = &shard.partition;
    let commit = world.cluster().committed_offset(GROUP, partition);
    let (offset, text) = commit.expect("a commit");
    let (known, newer) = ("v2 ", "v99 ");
    let (from, to) = if is_newer {
        (known, newer)
    } else {
        (newer, known)
    };
    assert!(text.starts_with(from), "{text}");
    let commit = OffsetCommit {
        partition: partition.clone(),
        offset,
        metadata: text.replacen(from, to, 1),
    };
    let mut admin = world.cluster().catalog();
    let written = admin.commit_unused(GROUP, &[commit]).now_or_never();
    written.expect("no wait").expect("no member is left");
}

#[test]
fn a_shard_with_a_slice_of_a_newer_version_waits() {
    let set_newer = |world: &World, shard: &ShardId, is_newer| {
        MemoryStore::set_newer_slice(world.store(), shard, is_newer);
    };
    assert_shard_waits(set_newer, "shard r/in/0 waits: ");
}

#[test]
fn a_shard_with_a_run_of_a_newer_version_waits() {
    let set_version = |world: &World, shard: &ShardId, is_newer| {
        world
            .store()
            .set_run_version(shard, if is_newer { 3 } else { 1 });
    };
    assert_shard_waits(set_version, "waits for a newer version");
}

#[test]
fn a_shard_with_a_commit_of_a_newer_version_waits() {
    assert_shard_waits(set_newer_commit, "shard r/in/0 waits: ");
    let arrived = fault_injection::with([InjectedFault::IgnoreNewerCommit], || {
        run(set_newer_commit, "")
    });
    assert_eq!(arrived, ["0", "1"], "the fault is caught");
}

/// Sends a message, a retry of a newer version, and another message. Returns what arrives.
fn run_with_newer_retry() -> Vec<String> {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let mut process = Process::start(&world, &mut random);
        produce_due_in(&world, 0, "before", 5_000);
        let keys = RetryKeys::new(RETRY_KEY, false);
        let line = keys.newer_line("origin=sim/r/in/0/0 new=1", b"retry", b"retry");
        world.produce(&partition(0), "retry", &[("postdate-retry", line)]);
        produce_due_in(&world, 0, "behind", 5_000);
        produce_due_in(&world, 1, "other", 5_000);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let reason = "shard r/in/0 waits at offset 1: a newer version wrote the record";
        assert_eq!(
            process.reports_not_ready(reason),
            payloads(&world).len() == 2
        );
        assert!(process.stop().await);
        payloads(&world)
    })
}

#[test]
fn a_shard_waits_in_front_of_a_retry_of_a_newer_version() {
    assert_eq!(run_with_newer_retry(), ["before", "other"]);
    let arrived = fault_injection::with([InjectedFault::RejectNewerRetry], run_with_newer_retry);
    assert_eq!(
        arrived,
        ["before", "behind", "other", "retry"],
        "the fault is caught"
    );
}
