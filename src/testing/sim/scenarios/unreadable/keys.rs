//! Keys are rotated, taken away, and given back, while messages wait.

use super::super::block_on_paused;
use crate::encryption::test_rings::{line, ring};
use crate::model::{Partition, ShardId};
use crate::store::{Append, AppendEpoch, Appended, IdChange, IdChangeKind};
use crate::store::{ShardStore as _, StoreQuery as _};
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{ROUTE, SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

const HOUR: u64 = 3_600;

fn send(world: &World, partition: i32, uid: &str, seconds: u64) {
    let due = world.now().plus(Duration::from_secs(seconds)).as_millis();
    let headers = [
        ("postdate-at", due.to_string()),
        ("postdate-id", uid.to_owned()),
    ];
    world.produce(&Partition::new(SOURCE, partition), uid, &headers);
}

fn cancel(world: &World, id: &str) {
    let headers = [
        ("postdate-op", "cancel".to_owned()),
        ("postdate-id", id.to_owned()),
    ];
    world.produce(&Partition::new(SOURCE, 0), "cancel", &headers);
}

async fn sleep(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn arrived(world: &World) -> Vec<String> {
    let mut uids: Vec<_> = world.arrivals().into_iter().map(|it| it.uid).collect();
    uids.sort();
    uids
}

/// The ids of the used keys of partition 0; `plain` for data that is not encrypted.
async fn used_keys(world: &World) -> Vec<String> {
    let shard = ShardId::new(ROUTE, Partition::new(SOURCE, 0));
    let state = world.store().state(&[shard]).await.unwrap().remove(0);
    let state = state.expect("the shard exists");
    let id = |name: &str| name.split_once('-').expect("a name").1.to_owned();
    let uses = state.key_uses();
    uses.map(|(name, _)| name.map_or("plain".to_owned(), id))
        .collect()
}

/// Restarts the process with each of the rings, and cancels a message with each. Returns what
/// arrives in the end, and the keys that are used before the last ring.
fn rotate(rings: [&str; 4]) -> (Vec<String>, Vec<String>) {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let last = rings.len() - 1;
        world.set_keys(ring(rings[0]));
        let mut process = Process::start(&world, &mut random);
        (0..=last).for_each(|at| send(&world, 0, &format!("cancelled-{at}"), 10 * HOUR));
        send(&world, 0, "kept", 10 * HOUR);
        let mut used = Vec::new();
        for (at, text) in rings.iter().enumerate() {
            sleep(5).await;
            if at > 0 {
                process.kill(&world).await;
                world.set_keys(ring(text));
                process.ensure_running(&world, &mut random);
                sleep(15).await;
            }
            cancel(&world, &format!("cancelled-{at}"));
            sleep(if at + 1 == last { HOUR } else { 5 }).await;
            if at + 1 == last {
                used = used_keys(&world).await;
            }
        }
        sleep(10 * HOUR).await;
        assert!(process.stop().await);
        let balances = world.balances();
        assert!(balances.iter().all(|balance| balance.quarantined == 0));
        (arrived(&world), used)
    })
}

#[test]
fn a_cancel_holds_before_during_and_after_a_rotation() {
    let (a, b) = (line("a", 1), line("b", 2));
    let (a_b, b_a) = (format!("{a}{b}"), format!("{b}{a}"));
    let rotated = || rotate([&a, &a_b, &b_a, &b]);
    assert_eq!(rotated(), (vec!["kept".to_owned()], vec!["b".to_owned()]));
    let (arrived, _) = fault_injection::with([InjectedFault::KeepIdsOfOldKey], rotated);
    assert_eq!(arrived, ["cancelled-3", "kept"], "the fault is caught");
}

#[test]
fn encryption_is_turned_on_while_messages_wait() {
    let a = line("a", 1);
    let (plain_a, a_plain) = (format!("plain\n{a}"), format!("{a}plain\n"));
    let (arrived, used) = rotate(["plain", &plain_a, &a_plain, &a]);
    assert_eq!(
        (arrived, used),
        (vec!["kept".to_owned()], vec!["a".to_owned()])
    );
}

#[test]
fn a_shard_waits_for_its_key_and_the_others_do_not() {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let (a, b) = (line("a", 1), line("b", 2));
        world.set_keys(ring(&a));
        let mut process = Process::start(&world, &mut random);
        sleep(5).await;
        send(&world, 0, "cancelled", 120);
        send(&world, 0, "waits", 30);
        sleep(3).await;
        process.kill(&world).await;
        world.set_keys(ring(&b));
        process.ensure_running(&world, &mut random);
        cancel(&world, "cancelled");
        send(&world, 0, "behind", 30);
        send(&world, 1, "other", 30);
        sleep(300).await;
        assert_eq!(arrived(&world), ["other"]);
        assert!(process.reports_not_ready("shard r/in/0 waits for key `a` with fingerprint"));
        process.kill(&world).await;
        world.set_keys(ring(&format!("{b}{a}")));
        process.ensure_running(&world, &mut random);
        sleep(120).await;
        let after = arrived(&world);
        assert!(!process.reports_not_ready("waits for key"));
        assert!(after.contains(&"waits".to_owned()), "{after:?}");
        assert!(after.contains(&"behind".to_owned()), "{after:?}");
        let balances = world.balances();
        assert!(balances.iter().all(|balance| balance.quarantined == 0));
        assert!(process.stop().await);
    });
}

/// Leaves the id of a delivered message in the store, as a timer does that stops before it removes the id.
async fn leave_id(world: &World, shard: &ShardId, text: &str) {
    let state = world.store().state(std::slice::from_ref(shard)).await;
    let state = state.unwrap().remove(0).expect("the shard exists");
    let id = ring(text).stored_id(shard, "left");
    let change = IdChange::new(id, IdChangeKind::Schedule(state.delivered.cursor));
    let append = Append {
        pause: None,
        shard: shard.clone(),
        epoch: AppendEpoch {
            process: 99,
            number: 1,
        },
        identity: state.identity,
        from: state.watermark,
        to: state.watermark,
        runs: Vec::new(),
        changes: vec![change],
    };
    let appended = world.store().append(&[append]).await.unwrap();
    assert!(matches!(appended[..], [Appended::Done { .. }]));
}

/// The ids under the old key after a new owner has served the shard for a minute.
fn left_ids() -> u64 {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let (a, b) = (line("a", 1), line("b", 2));
        let shard = ShardId::new(ROUTE, Partition::new(SOURCE, 0));
        world.set_keys(ring(&a));
        let mut process = Process::start(&world, &mut random);
        send(&world, 0, "delivered", 10);
        sleep(60).await;
        process.kill(&world).await;
        leave_id(&world, &shard, &a).await;
        let both = ring(&format!("{b}{a}"));
        world.set_keys(both.clone());
        process.ensure_running(&world, &mut random);
        sleep(60).await;
        let ids = world.store().count_ids(&shard).await.unwrap();
        assert!(process.stop().await);
        ids.under(both.names().nth(1).expect("two keys"))
    })
}

#[test]
fn the_id_that_an_earlier_timer_left_needs_no_key() {
    assert_eq!(left_ids(), 0);
    let fault = [InjectedFault::KeepFinishedIds];
    assert_eq!(fault_injection::with(fault, left_ids), 1);
}
