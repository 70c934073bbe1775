//! Messages whose id waits already on a route that keeps the first one, and messages that expire.

use super::super::block_on_paused;
use crate::model::{OnDuplicate, Partition};
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

/// Runs a process that is killed after a second and started again nine seconds later. `send` gets the
/// time of the start. Returns what arrived, with a mark on dead letters.
fn through_a_kill(on_duplicate: OnDuplicate, send: impl Fn(&World, i64)) -> Vec<(String, bool)> {
    block_on_paused(async {
        let world = World::new();
        world.set_on_duplicate(on_duplicate);
        world.allow_duplicates();
        let mut random = StdRng::seed_from_u64(1);
        let mut process = Process::start(&world, &mut random);
        send(&world, world.now().as_millis());
        tokio::time::sleep(Duration::from_secs(1)).await;
        process.kill(&world).await;
        tokio::time::sleep(Duration::from_secs(9)).await;
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(40)).await;
        world.check_ledgers();
        assert_eq!(world.take_violations(), Vec::<String>::new());
        assert!(world.balances().iter().all(|balance| balance.pending == 0));
        assert!(process.stop().await);
        let arrivals = world.arrivals().into_iter();
        let mut arrived: Vec<_> = arrivals.map(|it| (it.uid, it.is_dead)).collect();
        arrived.sort();
        arrived.dedup();
        arrived
    })
}

fn produce(world: &World, uid: &str, headers: &[(&str, String)]) {
    world.produce(&Partition::new(SOURCE, 0), uid, headers);
}

fn uids(arrived: Vec<(String, bool)>) -> Vec<String> {
    arrived.into_iter().map(|(uid, _)| uid).collect()
}

#[test]
fn the_first_message_of_an_id_is_kept_or_replaced() {
    let send = |world: &World, start: i64| {
        for (uid, id, after) in [
            ("a1", "a", 300),
            ("a2", "a", 600),
            ("b1", "b", 15_000),
            ("b2", "b", 20_000),
            ("b3", "b", 17_000),
        ] {
            let headers = [
                ("postdate-at", (start + after).to_string()),
                ("postdate-id", id.to_owned()),
            ];
            produce(world, uid, &headers);
        }
    };
    let arrived = || uids(through_a_kill(OnDuplicate::KeepFirst, send));
    assert_eq!(arrived(), ["a1", "b1"]);
    let replaced = through_a_kill(OnDuplicate::Replace, send);
    assert_eq!(uids(replaced), ["a2", "b3"]);
    let with_fault = fault_injection::with([InjectedFault::AlwaysTakeId], arrived);
    assert_ne!(with_fault, ["a1", "b1"]);
}

#[test]
fn a_message_is_not_sent_after_its_time() {
    let arrived = through_a_kill(OnDuplicate::Replace, |world, start| {
        for (uid, after, until) in [
            ("in time", 300, 400_000),
            ("late", 3_000, 5_000),
            ("late, and still wanted", 3_000, 400_000),
            ("never", 15_000, 14_000),
        ] {
            let headers = [
                ("postdate-at", (start + after).to_string()),
                ("postdate-until", (start + until).to_string()),
            ];
            produce(world, uid, &headers);
        }
    });
    let dead = |uid: &str| uid == "late" || uid == "never";
    assert!(
        arrived.iter().all(|(uid, is_dead)| *is_dead == dead(uid)),
        "{arrived:?}"
    );
    assert_eq!(arrived.len(), 4, "{arrived:?}");
}
