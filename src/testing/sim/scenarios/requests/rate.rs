//! A route with a rate: workers share it, and one of them dies; its target or its store is away.

use super::super::{block_on_paused, lateness};
use crate::model::Partition;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::{LEASE, Process};
use crate::testing::sim::process_control::ProcessControl;
use crate::testing::sim::world::{ANSWERS, Arrival, SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeSet;
use std::time::Duration;

const PARTITIONS: i32 = 4;
/// Messages per second.
const RATE: u32 = 40;
/// The greatest number of arrivals in a second. Each of two workers may send a burst, claims a tenth of a
/// second ahead, and sends at different speeds.
const MOST: usize = RATE as usize + 14;

/// Sends messages that are due two seconds from now, to all partitions in turn. Returns their due time.
fn send_backlog(world: &World, messages: i32) -> i64 {
    let due = world.now().as_millis() + 2_000;
    for number in 0..messages {
        let partition = Partition::new(SOURCE, number % PARTITIONS);
        let headers = [("postdate-at", due.to_string())];
        world.produce(&partition, &format!("{number:04}"), &headers);
    }
    due
}

async fn sleep_seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// The greatest number of arrivals within a second.
fn most_in_a_second(arrivals: &[Arrival]) -> usize {
    let mut times: Vec<i64> = arrivals.iter().map(|arrival| arrival.at).collect();
    times.sort_unstable();
    let ends = times
        .iter()
        .map(|from| times.partition_point(|at| *at < from + 1_000));
    let counts = ends.enumerate().map(|(start, end)| end - start);
    counts.max().unwrap_or(0)
}

/// Delivers 800 messages that are due at once. A worker is killed when half of them have arrived.
fn share_and_kill() -> Vec<Arrival> {
    block_on_paused(async {
        let world = World::with_partitions(PARTITIONS);
        world.set_rate(Some(RATE));
        let mut random = StdRng::seed_from_u64(1);
        let [mut dead, mut alive] = [0, 1].map(|number| {
            let control = ProcessControl::new(&world, number);
            Process::join(&world, control, &mut random)
        });
        tokio::time::sleep(10 * LEASE).await;
        let due = send_backlog(&world, 800);
        sleep_seconds(12).await;
        dead.kill(&world).await;
        sleep_seconds(60).await;
        assert!(world.balances().iter().all(|balance| balance.pending == 0));
        assert!(alive.stop().await);
        let early = world.arrivals().iter().filter(|it| it.at < due - 1).count();
        assert_eq!(early, 0, "messages are never early");
        world.arrivals()
    })
}

#[test]
fn workers_share_a_rate_and_one_of_them_dies() {
    let arrivals = share_and_kill();
    let uids: BTreeSet<&String> = arrivals.iter().map(|arrival| &arrival.uid).collect();
    assert_eq!(uids.len(), 800);
    let most = most_in_a_second(&arrivals);
    assert!(most <= MOST, "{most} in one second");
    // While both workers run, they use the whole rate.
    assert!(most >= RATE as usize * 8 / 10, "{most} in one second");
}

#[test]
fn claims_beyond_the_rate_are_caught() {
    let arrivals = fault_injection::with([InjectedFault::ClaimBeyondRate], share_and_kill);
    assert!(most_in_a_second(&arrivals) > MOST);
}

/// Delivers a backlog while the target is away for ten seconds.
fn target_outage() -> Vec<Arrival> {
    block_on_paused(async {
        let world = World::with_partitions(PARTITIONS);
        world.set_rate(Some(RATE));
        let mut process = Process::start(&world, &mut StdRng::seed_from_u64(1));
        sleep_seconds(1).await;
        send_backlog(&world, 800);
        sleep_seconds(5).await;
        world.hold_sends(true);
        sleep_seconds(10).await;
        world.hold_sends(false);
        sleep_seconds(40).await;
        assert!(process.stop().await);
        world.arrivals()
    })
}

/// The messages of one second wait for the end of the outage. They go out in addition to the next ones.
const MOST_AFTER_OUTAGE: usize = MOST + RATE as usize;

#[test]
fn after_an_outage_of_the_target_one_second_of_the_rate_goes_out_at_once() {
    let arrivals = target_outage();
    assert_eq!(arrivals.len(), 800);
    let most = most_in_a_second(&arrivals);
    assert!(most <= MOST_AFTER_OUTAGE, "{most} in one second");
}

#[test]
fn claims_that_pile_up_during_an_outage_are_caught() {
    let faults = [InjectedFault::ClaimDuringTargetOutage];
    let arrivals = fault_injection::with(faults, target_outage);
    assert!(most_in_a_second(&arrivals) > MOST_AFTER_OUTAGE);
}

/// The numbers of messages that are delivered and overdue. All are due at once, and take ten seconds.
/// Meanwhile the store is away for a time.
fn delivered_and_overdue(outage: Duration) -> (usize, usize) {
    block_on_paused(async {
        let world = World::with_partitions(PARTITIONS);
        world.set_rate(Some(RATE));
        world.set_overdue(Some(Duration::from_secs(4)), None);
        let mut process = Process::start(&world, &mut StdRng::seed_from_u64(1));
        sleep_seconds(1).await;
        send_backlog(&world, 400);
        sleep_seconds(6).await;
        if !outage.is_zero() {
            world.store_down(true);
            tokio::time::sleep(outage).await;
            world.store_down(false);
        }
        sleep_seconds(60).await;
        assert!(process.stop().await);
        let arrivals = world.arrivals();
        let overdue = arrivals.iter().filter(|arrival| arrival.is_dead).count();
        (arrivals.len() - overdue, overdue)
    })
}

#[test]
fn messages_that_wait_for_the_rate_are_not_overdue_and_those_that_wait_for_the_store_are() {
    assert_eq!(delivered_and_overdue(Duration::ZERO), (400, 0));
    let short = delivered_and_overdue(Duration::from_millis(1_500));
    assert_eq!(short, (400, 0), "the wait before the outage still counts");
    let (delivered, overdue) = delivered_and_overdue(Duration::from_secs(8));
    assert_eq!(delivered + overdue, 400);
    assert!(overdue > 150, "{overdue} were overdue");
}

#[test]
fn a_backlog_starves_neither_another_shard_nor_messages_without_a_delay() {
    let late = block_on_paused(async {
        let world = World::with_partitions(2);
        world.set_rate(Some(RATE));
        let mut process = Process::start(&world, &mut StdRng::seed_from_u64(1));
        sleep_seconds(1).await;
        let due = world.now().as_millis() + 2_000;
        for number in 0..800 {
            let headers = [("postdate-at", due.to_string())];
            world.produce(
                &Partition::new(SOURCE, 0),
                &format!("{number:04}"),
                &headers,
            );
        }
        sleep_seconds(4).await;
        // Four messages per second to each of two shards: far less than the rate.
        for _ in 0..40 {
            for partition in [0, 1] {
                let now = world.now().as_millis();
                let partition = Partition::new(SOURCE, partition);
                world.produce(&partition, &format!("fresh {now}"), &[]);
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        sleep_seconds(30).await;
        assert!(process.stop().await);
        lateness(&world)
    });
    assert_eq!(late.len(), 80);
    let latest = late.iter().max();
    assert!(latest.is_some_and(|late| *late < 1_000), "{latest:?} ms");
}

#[test]
fn answers_that_wait_for_messages_of_an_earlier_owner_do_not_stop_the_route() {
    const MESSAGES: i32 = 200;
    let world = block_on_paused(async {
        let world = World::with_partitions(1);
        let source = Partition::new(SOURCE, 0);
        let mut random = StdRng::seed_from_u64(1);
        let mut first = Process::start(&world, &mut random);
        sleep_seconds(1).await;
        world.hold_sends(true);
        let due = world.now().as_millis() + 1_000;
        for number in 0..MESSAGES {
            let headers = [
                ("postdate-at", due.to_string()),
                ("postdate-id", format!("id-{number}")),
            ];
            world.produce(&source, &format!("{number:04}"), &headers);
        }
        sleep_seconds(3).await;
        // The first owner has claimed all of them, so these cancels are too late.
        for number in MESSAGES - 20..MESSAGES {
            let headers = [
                ("postdate-op", "cancel".to_owned()),
                ("postdate-id", format!("id-{number}")),
                ("postdate-reply-to", ANSWERS.to_owned()),
            ];
            world.produce(&source, &format!("cancel {number}"), &headers);
        }
        sleep_seconds(2).await;
        first.kill(&world).await;
        world.hold_sends(false);
        world.set_rate(Some(5));
        let mut second = Process::start(&world, &mut random);
        sleep_seconds(120).await;
        assert!(second.stop().await);
        world
    });
    assert_eq!(world.cluster().records(ANSWERS).len(), 20);
    assert!(world.balances().iter().all(|balance| balance.pending == 0));
}
