//! Clocks of workers and of the store that are wrong for long, or that jump forward and back.

use super::{block_on_paused, lateness};
use crate::model::Partition;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::faults::single::Faults;
use crate::testing::sim::faults::slow_store::CLAIM_REFUSED;
use crate::testing::sim::process::Process;
use crate::testing::sim::process_control::ProcessControl;
use crate::testing::sim::seeds::{assert_promises_kept, breaks_promises};
use crate::testing::sim::workload::FAR;
use crate::testing::sim::world::{SOURCE, World};
use crate::testing::sim::{Delivery, Outcome, Plan, run};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::ops::Range;
use std::time::Duration;

/// In milliseconds, by the clock of the brokers. Lateness by a clock that is `n` ahead is `n` more.
/// `CLOCK_SKEW_MAX` is two seconds.
const BESIDE_A_WRONG_CLOCK: Range<i64> = -2_000..1_000;

/// In milliseconds.
const AFTER_A_JUMP: Range<i64> = 0..2_000;

/// In milliseconds. The dead worker can stay in the list of live workers, which is also kept by the
/// clock of the store. Then a live one takes its shards after `UNASSIGNED_ACQUIRE_INTERVAL`.
const AFTER_A_TAKEOVER: Range<i64> = 0..31_000;

/// What a run showed.
struct Seen {
    lateness: Vec<i64>,
    /// Every message arrived, and none is a dead letter.
    all_delivered: bool,
    refused_claims: usize,
}

impl Seen {
    fn of(world: &World, messages: usize) -> Self {
        let lateness = lateness(world);
        let has_dead = world.arrivals().iter().any(|arrival| arrival.is_dead);
        let trace = world.take_trace();
        let refused = trace
            .iter()
            .filter(|line| line.what.contains(CLAIM_REFUSED));
        Self {
            refused_claims: refused.count(),
            all_delivered: lateness.len() == messages && !has_dead,
            lateness,
        }
    }

    fn is_within(&self, range: &Range<i64>) -> bool {
        self.all_delivered && self.lateness.iter().all(|late| range.contains(late))
    }
}

/// A payload with its number and its due time. The due time is by the clock of the brokers.
fn send(world: &World, start: i64, number: i64, delay: i64) {
    let due = start + world.elapsed() + delay;
    let headers = [("postdate-at", due.to_string())];
    let partition = Partition::new(SOURCE, (number % 2) as i32);
    world.produce(&partition, &format!("{number} {due}"), &headers);
}

/// The clocks are wrong for the whole run, by these milliseconds. A message is sent every 100 ms.
/// The store is away for some seconds in the middle, and no message is due then.
fn with_wrong_clocks(worker: i64, store: i64) -> Seen {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let start = world.now().as_millis();
        world.set_overdue(Some(Duration::from_secs(3)), None);
        world.clock().set_offset(worker);
        world.store_clock().set_offset(store);
        let mut process = Process::start(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(2)).await;
        for outage in [false, true] {
            if outage {
                tokio::time::sleep(Duration::from_secs(15)).await;
                world.store_down(true);
                tokio::time::sleep(Duration::from_secs(20)).await;
                world.store_down(false);
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            for number in 0..200 {
                send(&world, start, number, 1_000 + number % 7 * 500);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(process.stop().await);
        Seen::of(&world, 400)
    })
}

/// The worker delivers late by its own clock, but only by as much as its clock is wrong.
#[test]
fn a_worker_whose_clock_is_ahead_keeps_delivering() {
    for (worker, store) in [
        (1_500, 0),
        (3_000, 0),
        (10_000, 0),
        (0, -3_000),
        (0, -10_000),
    ] {
        let seen = with_wrong_clocks(worker, store);
        // By the clock of the store.
        let range = BESIDE_A_WRONG_CLOCK.start - store..BESIDE_A_WRONG_CLOCK.end - store;
        assert!(
            seen.is_within(&range),
            "{worker} {store}: {:?}..={:?}",
            seen.lateness.iter().min(),
            seen.lateness.iter().max()
        );
        assert!(seen.refused_claims <= 4, "{}", seen.refused_claims);
    }
}

#[test]
fn a_worker_that_claims_by_its_own_clock_is_refused_again_and_again() {
    let seen = fault_injection::with([InjectedFault::ClaimByOwnClock], || {
        with_wrong_clocks(3_000, 0)
    });
    assert!(!seen.is_within(&BESIDE_A_WRONG_CLOCK) && seen.refused_claims > 100);
}

/// The clocks of worker and store jump one minute forward, and back two seconds later. Messages
/// with a short delay and, in front of them, with a longer one are sent all the time.
fn after_a_jump() -> Seen {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let start = world.now().as_millis();
        let mut process = Process::start(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(2)).await;
        for number in 0..400 {
            match number {
                100 => world.set_all_clocks(60_000),
                120 => world.set_all_clocks(0),
                _ => {}
            }
            let is_long = number / 2 % 10 == 0;
            send(&world, start, number, if is_long { 25_000 } else { 1_000 });
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(process.stop().await);
        Seen::of(&world, 400)
    })
}

#[test]
fn a_clock_that_jumps_forward_and_back_blocks_no_shard() {
    let seen = after_a_jump();
    assert!(
        seen.is_within(&AFTER_A_JUMP),
        "{:?}..={:?}",
        seen.lateness.iter().min(),
        seen.lateness.iter().max()
    );
    let follows = [InjectedFault::FollowClockStepsAtOnce];
    assert!(!fault_injection::with(follows, after_a_jump).is_within(&AFTER_A_JUMP));
}

fn with_random_jumps(seed: u64) -> Outcome {
    run(Plan {
        seed,
        length: Duration::from_secs(20),
        faults: Faults::CLOCK_JUMPS,
        delays: FAR,
        delivery: Delivery::AtLeastOnce,
        changes_rules: false,
    })
}

#[test]
fn random_jumps_forward_and_back_make_no_message_late() {
    assert_promises_kept(80_000..80_030, with_random_jumps);
    let follows = [InjectedFault::FollowClockStepsAtOnce];
    assert!(breaks_promises(&follows, 80_000..80_030, with_random_jumps));
}

/// A worker dies while the clock of the store is one hour ahead. The clock is set back, and another
/// worker takes over.
fn after_a_death_in_the_future() -> Seen {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let start = world.now().as_millis();
        let mut process = Process::start(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.store_clock().set_offset(3_600_000);
        tokio::time::sleep(Duration::from_secs(2)).await;
        process.kill(&world).await;
        world.store_clock().set_offset(0);
        let control = ProcessControl::new(&world, 1);
        let mut process = Process::join(&world, control, &mut random);
        for number in 0..10 {
            send(&world, start, number, 5_000);
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(process.stop().await);
        Seen::of(&world, 10)
    })
}

#[test]
fn a_lease_of_a_dead_worker_does_not_outlive_a_step_back_of_the_stores_clock() {
    let seen = after_a_death_in_the_future();
    assert!(seen.is_within(&AFTER_A_TAKEOVER), "{:?}", seen.lateness);
}
