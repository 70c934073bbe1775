//! A compactor that stops for an hour makes no message late.

use super::{ON_TIME, block_on_paused, lateness};
use crate::model::Partition;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::Process;
use crate::testing::sim::process_control::ProcessControl;
use crate::testing::sim::world::{SOURCE, World};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::ops::Range;
use std::time::Duration;

const PARTITIONS: i32 = 4;

/// Seconds before and after the stop.
const RUNNING_SECS: u64 = 120;

const HOUR: u64 = 3_600;

/// Delays of the messages in milliseconds, used in turn.
const DELAYS: [i64; 6] = [
    25_000,
    50 * 60_000,
    40_000,
    31 * 60_000,
    2 * 60_000,
    9 * 60_000,
];

/// The outcome of a fleet of two workers and one message per second.
struct FleetOutcome {
    late: Vec<i64>,
    sent: usize,
    /// Rewrites before, during and after the time in which the compactors may be stopped.
    rewrites: [usize; 3],
}

fn simulate(seconds: u64, stands: bool) -> FleetOutcome {
    block_on_paused(async {
        let (world, mut random) = (World::with_partitions(PARTITIONS), StdRng::seed_from_u64(1));
        let join = |number| {
            Process::join(
                &world,
                ProcessControl::with_own_clock(&world, number),
                &mut random,
            )
        };
        let mut fleet: Vec<_> = (0..2).map(join).collect();
        let start = world.now().as_millis();
        let end = start + 1_000 * (RUNNING_SECS + seconds + RUNNING_SECS) as i64;
        let mut sent = 0;
        for second in 0..RUNNING_SECS + seconds + RUNNING_SECS {
            if second == RUNNING_SECS || second == RUNNING_SECS + seconds {
                fleet.iter().for_each(|process| {
                    process
                        .control
                        .compactor
                        .set(stands && second == RUNNING_SECS);
                });
            }
            let due = world.now().as_millis()
                + DELAYS[second as usize % DELAYS.len()]
                + (37 * second % 1_000) as i64;
            if due < end - 1_000 {
                let partition = Partition::new(SOURCE, (second % PARTITIONS as u64) as i32);
                world.produce(
                    &partition,
                    &format!("{sent} {due}"),
                    &[("postdate-at", due.to_string())],
                );
                sent += 1;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let late = lateness(&world);
        for process in &mut fleet {
            assert!(process.stop().await);
        }
        let trace = world.take_trace();
        let rewrites = |seconds: Range<u64>| {
            let at = |at: i64| seconds.contains(&(at as u64 / 1_000));
            trace
                .iter()
                .filter(|line| line.what.contains(" runs as ") && at(line.at))
                .count()
        };
        // A rewrite that was ready before the stop is stored in its first seconds.
        let rewrites = [
            rewrites(0..RUNNING_SECS),
            rewrites(RUNNING_SECS + 10..RUNNING_SECS + seconds),
            rewrites(RUNNING_SECS + seconds..u64::MAX),
        ];
        FleetOutcome {
            late,
            sent,
            rewrites,
        }
    })
}

#[test]
fn a_compactor_that_stops_for_an_hour_makes_no_message_late() {
    for stands in [false, true] {
        let FleetOutcome {
            late,
            sent,
            rewrites,
        } = simulate(HOUR, stands);
        assert_eq!(late.len(), sent);
        assert!(
            late.iter().all(|late| ON_TIME.contains(late)),
            "{:?} ms late",
            late.iter().max()
        );
        assert!(
            rewrites[0] > 0 && rewrites[2] > 0 && (rewrites[1] == 0) == stands,
            "{rewrites:?}"
        );
    }
}

#[test]
fn a_timer_that_waits_for_its_compactor_is_late() {
    let late = |stands| {
        fault_injection::with([InjectedFault::LoadWaitsForCompactor], || {
            simulate(60, stands)
        })
        .late
    };
    assert!(late(false).iter().all(|late| ON_TIME.contains(late)));
    assert!(!late(true).iter().all(|late| ON_TIME.contains(late)));
}
