//! A route over its quota: after a store loss its cancels hold, and its shards wait for no record
//! that is not read.

use super::super::block_on_paused;
use crate::ingress::Quota;
use crate::model::Partition;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

/// Records before and after the cancel. The source returns 500 at once, so the first process reads
/// 1,000 of all records: the cancel, and not the end.
const OTHERS: [usize; 2] = [700, 400];

const NEW_ROUTE_MESSAGES: usize = 2_000;

const fn quota(messages: u64) -> Quota {
    Quota {
        messages: Some(messages),
        bytes: None,
        refuses: false,
    }
}

/// The payloads that arrive, without the others, and the number of the others. The store loses
/// everything while the route is over its quota. The next process has a smaller quota.
fn arrivals() -> (Vec<String>, usize) {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let partition = Partition::new(SOURCE, 0);
        world.set_quota(quota(600));
        let start = world.now().as_millis();
        let send = |payload: &str, seconds: i64, id: &str| {
            let due = start + 1_000 * seconds;
            let headers = [
                ("postdate-at", due.to_string()),
                ("postdate-id", id.to_owned()),
            ];
            world.produce(&partition, payload, &headers);
        };
        let send_others = |count: usize| {
            for _ in 0..count {
                let due = start + 40_000;
                world.produce(&partition, "other", &[("postdate-at", due.to_string())]);
            }
        };
        send("cancelled", 12, "a");
        send("kept", 12, "b");
        send_others(OTHERS[0]);
        let headers = [
            ("postdate-op", "cancel".to_owned()),
            ("postdate-id", "a".to_owned()),
        ];
        world.produce(&partition, "cancel", &headers);
        send_others(OTHERS[1]);
        let mut process = Process::start(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(5)).await;
        process.kill(&world).await;
        world.wipe();
        world.set_quota(quota(100));
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(90)).await;
        process.stop().await;
        let arrivals = world.arrivals().into_iter().map(|arrival| arrival.uid);
        let (others, mut rest): (Vec<_>, Vec<_>) = arrivals.partition(|uid| uid == "other");
        rest.sort();
        (rest, others.len())
    })
}

fn expected() -> (Vec<String>, usize) {
    (vec!["kept".to_owned()], OTHERS.iter().sum())
}

#[test]
fn over_its_quota_a_route_delivers_after_a_store_loss_and_its_cancels_hold() {
    assert_eq!(arrivals(), expected());
}

/// The number of messages of a new route that arrive; all are due at once. The shard claims the
/// first batch, because it has no ids. An append renews the hold that the quota has ended before the
/// timer sees that, so the timer waits for the end of the log.
fn arrivals_of_a_new_route() -> usize {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        world.set_quota(quota(300));
        let due = world.now().as_millis().to_string();
        for _ in 0..NEW_ROUTE_MESSAGES {
            let headers = [("postdate-at", due.clone())];
            world.produce(&Partition::new(SOURCE, 0), "other", &headers);
        }
        let mut process = Process::start(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(60)).await;
        process.stop().await;
        world.arrivals().len()
    })
}

#[test]
fn over_its_quota_a_new_route_waits_for_no_record_that_is_not_read() {
    assert_eq!(arrivals_of_a_new_route(), NEW_ROUTE_MESSAGES);
    let faults = [InjectedFault::QuotaKeepsLaterHolds];
    let arrived = fault_injection::with(faults, arrivals_of_a_new_route);
    assert!(arrived < NEW_ROUTE_MESSAGES, "{arrived}");
}

#[test]
fn every_fault_injected_into_the_quota_is_caught() {
    let planted = [
        InjectedFault::QuotaStopsRebuild,
        InjectedFault::QuotaKeepsHolds,
    ];
    for injected in planted {
        let arrived = fault_injection::with([injected], arrivals);
        assert_ne!(arrived, expected(), "{injected:?}");
    }
}
