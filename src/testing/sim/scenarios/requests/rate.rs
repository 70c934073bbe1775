//! A route with a rate: two workers share it, and one of them dies.

use crate::model::Partition;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::{LEASE, Process};
use crate::testing::sim::process_control::ProcessControl;
use crate::testing::sim::scenarios::block_on_paused;
use crate::testing::sim::world::{Arrival, SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeSet;
use std::time::Duration;

const PARTITIONS: i32 = 4;
/// Messages per second. At this rate all messages take 20 seconds.
const RATE: u32 = 40;
const MESSAGES: i32 = 800;
/// Less than most messages wait for the rate, and more than a takeover takes.
const OVERDUE_AFTER: Duration = Duration::from_secs(6);

/// Delivers messages that are due at the same time. A worker is killed when half of them have arrived.
fn deliver() -> Vec<Arrival> {
    block_on_paused(async {
        let world = World::with_partitions(PARTITIONS);
        world.set_rate(Some(RATE));
        world.set_overdue(Some(OVERDUE_AFTER), None);
        let mut random = StdRng::seed_from_u64(1);
        let [mut dead, mut alive] = [0, 1].map(|number| {
            let control = ProcessControl::new(&world, number);
            Process::join(&world, control, &mut random)
        });
        tokio::time::sleep(10 * LEASE).await;
        let due = world.now().as_millis() + 2_000;
        for number in 0..MESSAGES {
            let partition = Partition::new(SOURCE, number % PARTITIONS);
            let uid = format!("{number:04}");
            world.produce(&partition, &uid, &[("postdate-at", due.to_string())]);
        }
        tokio::time::sleep(Duration::from_secs(12)).await;
        dead.kill(&world).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(world.balances().iter().all(|balance| balance.pending == 0));
        assert!(alive.stop().await);
        let early = world.arrivals().iter().filter(|it| it.at < due - 1).count();
        assert_eq!(early, 0, "messages are never early");
        world.arrivals()
    })
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

/// Each worker may send two bursts of its share at once. The network delays some messages.
const MOST: usize = RATE as usize + 20;

#[test]
fn workers_share_a_rate_and_a_takeover_makes_no_waiting_message_overdue() {
    let arrivals = deliver();
    let uids: BTreeSet<&String> = arrivals.iter().map(|arrival| &arrival.uid).collect();
    assert_eq!(uids.len(), MESSAGES as usize);
    let dead = arrivals.iter().filter(|arrival| arrival.is_dead).count();
    assert_eq!(dead, 0, "the wait for the rate does not count");
    let most = most_in_a_second(&arrivals);
    assert!(most <= MOST, "{most} in one second");
    // While both workers run, they use the whole rate.
    assert!(most >= RATE as usize * 8 / 10, "{most} in one second");
}

#[test]
fn claims_beyond_the_rate_are_caught() {
    let arrivals = fault_injection::with([InjectedFault::ClaimBeyondRate], deliver);
    assert!(most_in_a_second(&arrivals) > MOST);
}

#[test]
fn a_forgotten_wait_for_the_rate_is_caught() {
    let arrivals = fault_injection::with([InjectedFault::ForgetRateWait], deliver);
    let dead = arrivals.iter().filter(|arrival| arrival.is_dead).count();
    assert!(dead > 0, "a takeover made messages overdue");
}
