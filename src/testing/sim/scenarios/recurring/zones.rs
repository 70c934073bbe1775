//! A year in four time zones. The workers run around each change of the clocks, and at other times.

use super::{arrived, repeats, world};
use crate::model::Partition;
use crate::testing::sim::Outcome;
use crate::testing::sim::clock::EPOCH;
use crate::testing::sim::process::Process;
use crate::testing::sim::scenarios::block_on_paused;
use crate::testing::sim::seeds::assert_promises_kept;
use crate::testing::sim::world::{SOURCE, World};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

const ZONES: [&str; 4] = [
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "UTC",
];

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// Fixed local times, also in the hours that the clocks skip and repeat.
const FIXED: &str = "0,1,29,30,31,58,59 0-3,23 * * *";
const MINUTES: [i8; 7] = [0, 1, 29, 30, 31, 58, 59];
const HOURS: [i8; 5] = [0, 1, 2, 3, 23];

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).expect("a zone of the bundled data")
}

fn local(zone: &TimeZone, at: i64) -> DateTime {
    let at = jiff::Timestamp::from_millisecond(at).expect("a time of this century");
    zone.to_datetime(at)
}

/// The starts of the times at which the workers run, before each change of the clocks in a year.
fn starts() -> Vec<i64> {
    let changes = ZONES.iter().flat_map(|name| {
        let zone = zone(name);
        let offset = move |at: i64| local(&zone, at).duration_since(local(&TimeZone::UTC, at));
        let half_hours = (EPOCH / HOUR * HOUR..EPOCH + 365 * DAY).step_by(HOUR as usize / 2);
        half_hours.filter(move |at| offset(*at - 1) != offset(*at))
    });
    let others = (1..4).map(|quarter| (EPOCH / DAY + 90 * quarter) * DAY);
    let mut starts: Vec<i64> = changes.chain(others).map(|at| at - 2 * MINUTE).collect();
    starts.sort_unstable();
    starts.dedup_by(|later, earlier| *later - *earlier < HOUR);
    starts
}

/// The due times of [`FIXED`]: the first instants at which the local clock shows a time or a later one.
fn fixed(zone: &TimeZone, times: Range<i64>) -> BTreeSet<i64> {
    let is_fixed = |time: DateTime| {
        MINUTES.contains(&time.minute()) && HOURS.contains(&time.hour()) && time.second() == 0
    };
    let mut shown = local(zone, times.start - 4 * HOUR);
    let mut due = BTreeSet::new();
    for at in (times.start - 4 * HOUR..times.end).step_by(1_000) {
        let now = local(zone, at);
        while shown < now {
            shown += Duration::from_secs(1);
            if is_fixed(shown) && times.contains(&at) {
                due.insert(at);
            }
        }
    }
    due
}

fn define(world: &World, id: &str, cron: &str, zone: &str) {
    let headers = [
        ("postdate-cron", cron.to_owned()),
        ("postdate-zone", zone.to_owned()),
        ("postdate-missed", "skip".to_owned()),
    ];
    world.produce(&Partition::new(SOURCE, 0), id, &headers);
}

/// Runs the workers from `start` on, with a kill and perhaps a lost store. Returns the due times that
/// are never missed.
async fn run(world: &World, process: &mut Process, random: &mut StdRng, start: i64) -> Range<i64> {
    process.kill(world).await;
    world.set_all_clocks(start - EPOCH - world.elapsed());
    process.ensure_running(world, random);
    tokio::time::sleep(Duration::from_secs(100)).await;
    process.kill(world).await;
    if random.random_bool(0.5) {
        world.wipe();
    }
    tokio::time::sleep(Duration::from_millis(random.random_range(0..5_000))).await;
    process.ensure_running(world, random);
    tokio::time::sleep(Duration::from_secs(120)).await;
    start + 10_000..world.now().as_millis() - 10_000
}

fn simulate(seed: u64, is_exactly_once: bool) -> Outcome {
    block_on_paused(async {
        let world = world(is_exactly_once);
        let mut random = StdRng::seed_from_u64(seed);
        let mut process = Process::start(&world, &mut random);
        for (number, zone) in ZONES.iter().enumerate() {
            define(&world, &format!("fixed-{number}"), FIXED, zone);
            define(&world, &format!("minutes-{number}"), "* * * * *", zone);
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        let mut broken = Vec::new();
        for start in starts() {
            let times = run(&world, &mut process, &mut random, start).await;
            let arrived = arrived(&world);
            for (number, name) in ZONES.iter().enumerate() {
                let minutes = times.clone().filter(|at| at % MINUTE == 0).collect();
                let fixed = fixed(&zone(name), times.clone());
                for (kind, expected) in [("fixed", fixed), ("minutes", minutes)] {
                    let id = format!("{kind}-{number}");
                    let none = BTreeSet::new();
                    let of_schedule = arrived.get(&id).unwrap_or(&none);
                    let found = of_schedule.range(times.clone()).copied().collect();
                    if expected != found {
                        broken.push(format!(
                            "{name}, {kind}, from {start}: expected {expected:?}, found {found:?}"
                        ));
                    }
                }
            }
        }
        assert!(process.stop().await);
        broken.extend(repeats(&world));
        world.check_ledgers();
        broken.extend(world.take_violations());
        Outcome {
            trace: world.take_trace(),
            broken,
        }
    })
}

#[test]
fn a_year_with_daylight_saving_has_each_occurrence() {
    assert!(starts().len() > 8, "three zones change their clocks twice");
    assert_promises_kept(0..2, |seed| simulate(seed, false));
    assert_promises_kept(2..4, |seed| simulate(seed, true));
}
