//! Intervals under kills, lost stores, outages and updates.

use super::{arrived, repeats, world};
use crate::model::{Partition, Timestamp};
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::Outcome;
use crate::testing::sim::faults::single::{Faults, inject};
use crate::testing::sim::process::Process;
use crate::testing::sim::scenarios::block_on_paused;
use crate::testing::sim::seeds::{assert_promises_kept, breaks_promises};
use crate::testing::sim::world::{SOURCE, World};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::time::Duration;

const SCHEDULES: usize = 5;

/// Together less than an occurrence may be late before it counts as missed.
const LENGTH: Duration = Duration::from_secs(30);
const SETTLING: Duration = Duration::from_secs(20);

fn interval_millis(schedule: usize) -> i64 {
    1_000 * (1 + schedule as i64 % 3)
}

/// Sends a definition that becomes a dead letter, which is late.
fn define_wrong(world: &World, schedule: usize) {
    let partition = Partition::new(SOURCE, schedule as i32 % 2);
    world.produce(
        &partition,
        "wrong",
        &[("postdate-every", "never".to_owned())],
    );
}

/// Sends the definition of a schedule, or its end. Returns the timestamp.
fn define(world: &World, schedule: usize, template: Option<&str>) -> Timestamp {
    let plain = ("own", "header");
    define_with(world, schedule, template, plain)
}

fn define_with(
    world: &World,
    schedule: usize,
    template: Option<&str>,
    header: (&str, &str),
) -> Timestamp {
    let now = world.now();
    let key = schedule.to_string();
    let interval = interval_millis(schedule).to_string();
    let headers = [
        ("postdate-every", interval.as_str()),
        ("postdate-missed", "all"),
        header,
    ];
    let headers = headers.map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
    let partition = Partition::new(SOURCE, schedule as i32 % 2);
    let parts = (Some(key.as_bytes()), template.map(str::as_bytes));
    world
        .cluster()
        .produce(&partition, Some(now), parts, headers);
    now
}

/// Returns the schedule and the time of each fire.
async fn update(world: World, mut random: StdRng) -> Vec<(usize, i64)> {
    let end = tokio::time::Instant::now() + LENGTH;
    let mut fires = Vec::new();
    while tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(random.random_range(500..6_000))).await;
        let schedule = random.random_range(0..SCHEDULES);
        world.note(format!("schedule {schedule} is updated"));
        // The time of a fire must not be one of the interval.
        if random.random_bool(0.5) && world.now().as_millis() % 1_000 != 0 {
            let fire = ("postdate-fire", "true");
            let at = define_with(&world, schedule, Some("fired"), fire);
            fires.push((schedule, at.as_millis()));
        } else {
            define(&world, schedule, Some("updated"));
        }
        if random.random_bool(0.3) {
            define_wrong(&world, schedule);
        }
    }
    fires
}

/// The schedules keep their intervals through all updates, so no planned time may be missing.
fn simulate(seed: u64, faults: Faults, is_exactly_once: bool) -> Outcome {
    block_on_paused(async {
        let (world, mut random) = (world(is_exactly_once), StdRng::seed_from_u64(seed));
        let mut process = Process::start(&world, &mut random);
        let all = 0..SCHEDULES;
        let begins: Vec<_> = all
            .clone()
            .map(|it| define(&world, it, Some("first")))
            .collect();
        let updates = tokio::task::spawn_local(update(world.clone(), StdRng::seed_from_u64(!seed)));
        inject(&world, &mut process, faults, LENGTH, &mut random).await;
        let fires = updates.await.expect("the updates do not panic");
        world.heal();
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(SETTLING).await;
        let ends: Vec<_> = all.clone().map(|it| define(&world, it, None)).collect();
        tokio::time::sleep(SETTLING).await;
        let mut broken = repeats(&world);
        if !process.stop().await {
            broken.push("the process did not stop in time".to_owned());
        }
        let arrived = arrived(&world);
        for (schedule, at) in fires {
            let of_schedule = arrived.get(&schedule.to_string());
            if !of_schedule.is_some_and(|arrived| arrived.contains(&at)) {
                broken.push(format!("schedule {schedule} has not fired at {at}"));
            }
        }
        for schedule in all {
            let none = BTreeSet::new();
            let arrived = arrived.get(&schedule.to_string()).unwrap_or(&none);
            let interval = interval_millis(schedule);
            let first = begins[schedule].as_millis().div_euclid(interval) + 1;
            let last = ends[schedule].as_millis().div_euclid(interval);
            for due in (first..=last).map(|number| number * interval) {
                if !arrived.contains(&due) {
                    broken.push(format!("schedule {schedule} has not delivered {due}"));
                }
            }
            let read_within = 5_000;
            let later = arrived.last().copied().unwrap_or(0) - ends[schedule].as_millis();
            if later > read_within {
                broken.push(format!(
                    "schedule {schedule} has not ended after {later} ms"
                ));
            }
        }
        world.check_ledgers();
        broken.extend(world.take_violations());
        Outcome {
            trace: world.take_trace(),
            broken,
        }
    })
}

#[test]
fn no_fault_loses_an_occurrence() {
    assert_promises_kept(0..2, |seed| simulate(seed, Faults::NONE, false));
    assert_promises_kept(100..120, |seed| simulate(seed, Faults::ALL, false));
    assert_promises_kept(200..205, |seed| simulate(seed, Faults::STORE_LOSES, false));
}

#[test]
fn exactly_once_no_fault_loses_or_repeats_an_occurrence() {
    assert_promises_kept(0..2, |seed| simulate(seed, Faults::NONE, true));
    assert_promises_kept(100..120, |seed| simulate(seed, Faults::ALL, true));
    assert_promises_kept(200..205, |seed| simulate(seed, Faults::STORE_LOSES, true));
}

#[test]
fn a_lost_marker_is_caught() {
    let faults = [InjectedFault::IgnoreMarker];
    assert!(breaks_promises(&faults, 100..120, |seed| {
        simulate(seed, Faults::ALL, true)
    }));
}

#[test]
fn a_fire_that_is_left_out_because_it_is_late_is_caught() {
    let faults = [InjectedFault::SkipLateFire];
    assert!(breaks_promises(&faults, 100..120, |seed| {
        simulate(seed, Faults::ALL, true)
    }));
}

#[test]
fn a_definition_that_ends_before_it_is_passed_is_caught() {
    let faults = [InjectedFault::EndWhenRead];
    assert!(breaks_promises(&faults, 100..140, |seed| {
        simulate(seed, Faults::ALL, false)
    }));
}

/// The number of deliveries of a schedule whose first due time is during an outage of all workers.
fn deliveries_after_an_outage(is_exactly_once: bool) -> usize {
    block_on_paused(async {
        let (world, mut random) = (world(is_exactly_once), StdRng::seed_from_u64(1));
        let mut process = Process::start(&world, &mut random);
        let due = world.now().plus(Duration::from_secs(60));
        let headers = [
            ("postdate-every", "1h".to_owned()),
            ("postdate-from", due.as_millis().to_string()),
        ];
        world.produce(&Partition::new(SOURCE, 0), "hourly", &headers);
        tokio::time::sleep(Duration::from_secs(30)).await;
        process.kill(&world).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(SETTLING).await;
        assert!(process.stop().await);
        world.arrivals().len()
    })
}

#[test]
fn an_outage_at_the_first_due_time_loses_no_schedule() {
    assert_eq!([false, true].map(deliveries_after_an_outage), [1, 1]);
}

#[test]
fn a_start_that_no_claim_keeps_is_caught() {
    let faults = [InjectedFault::KeepStartInMemory];
    let deliveries = fault_injection::with(faults, || deliveries_after_an_outage(false));
    assert_eq!(deliveries, 0);
}

/// A new shard without occurrences claims its start only.
#[test]
fn a_start_without_messages_does_not_delay_a_stop() {
    for is_exactly_once in [false, true] {
        block_on_paused(async {
            let (world, mut random) = (world(is_exactly_once), StdRng::seed_from_u64(1));
            let mut process = Process::start(&world, &mut random);
            tokio::time::sleep(SETTLING).await;
            assert!(process.stop().await, "exactly-once: {is_exactly_once}");
        });
    }
}
