//! A paused route delivers nothing, and loses nothing.

use super::super::block_on_paused;
use super::holds::{RECORD_BYTES, RECORDS_BETWEEN};
use crate::ingress::Quota;
use crate::model::{Control, Partition, RetryKeys, ShardId, Timestamp};
use crate::store::ShardStore as _;
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::faults::single::{Faults, inject};
use crate::testing::sim::process::{Process, RETRY_KEY};
use crate::testing::sim::seeds::chosen;
use crate::testing::sim::world::{ROUTE, SOURCE, World};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const PARTITIONS: i32 = 2;
/// The time before the pause, the length of the pause, and the time until all is delivered.
const BEFORE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(30);
const SETTLING: Duration = Duration::from_secs(90);
/// Messages that were claimed before the pause arrive within this time.
const CLAIMED_MS: i64 = 2_000;

fn partition(index: i32) -> Partition {
    Partition::new(SOURCE, index)
}

/// Writes a control record of now to a partition.
fn control(world: &World, index: i32, pauses: bool) {
    control_of(world, index, pauses, world.now());
}

/// Writes a control record to a partition, as `command::control` does. One with the same time is a copy.
fn control_of(world: &World, index: i32, pauses: bool, at: Timestamp) {
    let origin = format!("sim/{ROUTE}/{SOURCE}/{index}/0");
    let control = Control {
        pauses,
        origin: &origin,
        at,
        note: "why (who)".into(),
    };
    let keys = RetryKeys::new(RETRY_KEY, false);
    let line = control.signed_line(&keys).expect("it has a key");
    let header = (&b"postdate-retry"[..], Some(line.as_bytes()));
    let (now, parts) = (Some(world.now()), (None, None));
    world
        .cluster()
        .produce(&partition(index), now, parts, [header]);
}

fn send(world: &World, index: i32, uid: &str, delay_ms: i64) {
    let due = world.now().as_millis() + delay_ms;
    world.produce(&partition(index), uid, &[("postdate-at", due.to_string())]);
}

/// Waits until the store says that the shards are paused, or that none is.
async fn reported(world: &World, partitions: Range<i32>, pauses: bool) {
    let shard = |index| ShardId::new(ROUTE, partition(index));
    let shards: Vec<_> = partitions.map(shard).collect();
    loop {
        let states = world.store().state(&shards).await.unwrap_or_default();
        let mut states = states.iter().map(Option::as_ref);
        let is_reached = states.all(|it| it.is_some_and(|state| state.is_paused() == pauses));
        if is_reached {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Sends messages, pauses the route meanwhile, and resumes it. Returns the messages, and the time between the
/// report of the pause and the resume.
async fn tell(world: &World, mut random: StdRng) -> (BTreeSet<String>, Range<i64>) {
    let mut uids = BTreeSet::new();
    let mut send_for = async |length: Duration, random: &mut StdRng| {
        let end = Instant::now() + length;
        while Instant::now() < end {
            let uid = format!("m{}", uids.len());
            let (index, delay) = (
                random.random_range(0..PARTITIONS),
                random.random_range(-500..15_000),
            );
            send(world, index, &uid, delay);
            uids.insert(uid);
            sleep(Duration::from_millis(random.random_range(20..200))).await;
        }
    };
    // Some records have copies or are repeated, so that a fetch has several.
    let tell_all = |pauses: bool, random: &mut StdRng| {
        for index in 0..PARTITIONS {
            let (at, later) = (world.now(), random.random_range(0..3));
            control_of(world, index, pauses, at);
            for _ in 0..random.random_range(0..3) {
                control_of(
                    world,
                    index,
                    pauses,
                    Timestamp::from_millis(at.as_millis() + later),
                );
            }
        }
    };
    send_for(BEFORE, &mut random).await;
    tell_all(true, &mut random);
    reported(world, 0..PARTITIONS, true).await;
    world.note("all shards report that they are paused");
    let start = world.now().as_millis();
    send_for(PAUSE, &mut random).await;
    let end = world.now().as_millis();
    tell_all(false, &mut random);
    world.note("resumed");
    (uids, start..end)
}

/// The broken promises.
fn run(seed: u64, is_exactly_once: bool, faults: Faults) -> Vec<String> {
    block_on_paused(async {
        let mut random = StdRng::seed_from_u64(seed);
        let world = match is_exactly_once {
            true => World::new().with_exactly_once(),
            false => World::new(),
        };
        let has_faults = faults != Faults::NONE;
        if has_faults {
            world.allow_duplicates();
        }
        let mut process = Process::start(&world, &mut random);
        let teller = tell(&world, StdRng::seed_from_u64(random.random()));
        let inject = async {
            if has_faults {
                inject(&world, &mut process, faults, BEFORE + PAUSE, &mut random).await;
            }
        };
        let ((uids, paused), ()) = tokio::join!(teller, inject);
        world.heal();
        process.ensure_running(&world, &mut random);
        sleep(SETTLING).await;
        process.stop().await;
        let mut wrong = world.take_violations();
        let arrivals = world.arrivals();
        let silent = paused.start + CLAIMED_MS..paused.end;
        let early = arrivals.iter().filter(|it| silent.contains(&it.at));
        wrong.extend(early.map(|it| format!("{} arrives in the pause {silent:?}", it.uid)));
        let arrived: BTreeSet<String> = arrivals.into_iter().map(|it| it.uid).collect();
        wrong.extend(
            uids.difference(&arrived)
                .map(|uid| format!("{uid} is lost")),
        );
        wrong
    })
}

fn assert_kept(seeds: Range<u64>, is_exactly_once: bool, faults: Faults) {
    for seed in chosen(seeds) {
        let wrong = run(seed, is_exactly_once, faults);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    }
}

#[test]
fn a_paused_route_delivers_nothing_and_loses_nothing() {
    for is_exactly_once in [false, true] {
        assert_kept(0..3, is_exactly_once, Faults::NONE);
        assert_kept(100..115, is_exactly_once, Faults::KILLS_AND_LOSSES);
    }
}

#[test]
fn a_claim_of_a_paused_shard_is_caught() {
    let faults = [InjectedFault::ClaimWhilePaused];
    let is_kept = || run(1, false, Faults::NONE).is_empty();
    assert!(!fault_injection::with(faults, is_kept));
}

/// The worker is away while records are written, so it reads all of them in one fetch. Each record pauses or
/// resumes the shard, at a time. Returns whether the shard is paused then, in the store, and whether a message
/// arrives that is due behind them.
fn state_after(seed: u64, records: &[(bool, i64)]) -> (bool, bool) {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(seed));
        let mut process = Process::start(&world, &mut random);
        send(&world, 0, "first", 500);
        if !records[0].0 {
            control(&world, 0, true);
            reported(&world, 0..1, true).await;
        }
        sleep(Duration::from_millis(random.random_range(3_000..6_000))).await;
        process.kill(&world).await;
        let start = world.now().as_millis();
        for (pauses, after) in records {
            control_of(&world, 0, *pauses, Timestamp::from_millis(start + after));
        }
        send(&world, 0, "message", 3_000);
        process.ensure_running(&world, &mut random);
        sleep(Duration::from_secs(20)).await;
        let states = world
            .store()
            .state(&[ShardId::new(ROUTE, partition(0))])
            .await;
        let state = states.expect("the store answers").remove(0);
        process.stop().await;
        let has_arrived = world.arrivals().iter().any(|it| it.uid == "message");
        (state.is_some_and(|state| state.is_paused()), has_arrived)
    })
}

const PAUSED: (bool, bool) = (true, false);
const RESUMED: (bool, bool) = (false, true);

#[test]
fn a_record_behind_a_control_record_of_the_same_fetch_does_not_hide_it() {
    for seed in chosen(0..5) {
        let state = |records: &[(bool, i64)]| state_after(seed, records);
        assert_eq!(
            state(&[(true, 1), (true, 1)]),
            PAUSED,
            "a copy, seed {seed}"
        );
        assert_eq!(
            state(&[(false, 1), (false, 1)]),
            RESUMED,
            "a copy, seed {seed}"
        );
        assert_eq!(
            state(&[(false, 1), (false, 2)]),
            RESUMED,
            "twice, seed {seed}"
        );
        let resumed = [(true, 1), (false, 2), (true, 1), (false, 3), (true, 2)];
        assert_eq!(state(&resumed), RESUMED, "old copies, seed {seed}");
    }
    let copied = || state_after(1, &[(true, 1), (true, 1)]);
    let hidden = fault_injection::with([InjectedFault::RecordHidesPause], copied);
    assert_eq!(hidden, RESUMED, "the test sees a hidden pause");
}

/// A paused route gets far more messages than its quota, and is resumed. Returns how many of them arrive.
fn arrivals_over_quota() -> usize {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        world.set_quota(Quota {
            messages: Some(10),
            bytes: None,
            refuses: false,
        });
        let mut process = Process::start(&world, &mut random);
        sleep(Duration::from_secs(2)).await;
        (0..PARTITIONS).for_each(|index| control(&world, index, true));
        reported(&world, 0..PARTITIONS, true).await;
        for number in 0..60 {
            send(&world, number % PARTITIONS, &format!("m{number}"), 500);
        }
        sleep(Duration::from_secs(10)).await;
        (0..PARTITIONS).for_each(|index| control(&world, index, false));
        sleep(Duration::from_secs(30)).await;
        process.stop().await;
        world.arrivals().len()
    })
}

#[test]
fn a_route_that_is_over_its_quota_is_resumed() {
    assert_eq!(arrivals_over_quota(), 60);
    let faults = [InjectedFault::QuotaStopsResume];
    assert_eq!(fault_injection::with(faults, arrivals_over_quota), 0);
}

/// The process dies and the store loses everything, as soon as the pause is reported. Returns whether the
/// message arrives in the pause, and after it.
fn arrives_after_loss() -> (bool, bool) {
    block_on_paused(async {
        let (world, mut random) = (World::new(), StdRng::seed_from_u64(1));
        let mut process = Process::start(&world, &mut random);
        send(&world, 0, "message", 8_000);
        // Between two commits.
        sleep(Duration::from_millis(3_400)).await;
        // Several batches are between the message and the record of the pause. No message has an id, so
        // the timer does not wait for the records behind it.
        let payload = "x".repeat(RECORD_BYTES);
        for _ in 0..5 * RECORDS_BETWEEN {
            send(&world, 0, &payload, 3_600_000);
        }
        control(&world, 0, true);
        reported(&world, 0..1, true).await;
        process.kill(&world).await;
        world.wipe();
        sleep(Duration::from_secs(12)).await;
        process.ensure_running(&world, &mut random);
        // The message is stored again, and the record of the pause is not.
        while world.balances().iter().all(|it| it.accepted == 0) {
            sleep(Duration::from_millis(1)).await;
        }
        process.kill(&world).await;
        world.set_leaderless(&[partition(0)]);
        process.ensure_running(&world, &mut random);
        sleep(Duration::from_secs(10)).await;
        world.set_leaderless(&[]);
        sleep(Duration::from_secs(10)).await;
        let has_arrived = || world.arrivals().iter().any(|it| it.uid == "message");
        let in_pause = has_arrived();
        control(&world, 0, false);
        sleep(Duration::from_secs(20)).await;
        process.stop().await;
        (in_pause, has_arrived())
    })
}

#[test]
fn a_reported_pause_survives_the_loss_of_the_store() {
    assert_eq!(arrives_after_loss(), (false, true));
    for fault in [
        InjectedFault::PauseBeforeCommit,
        InjectedFault::ForgetCommittedPause,
    ] {
        let (in_pause, _) = fault_injection::with([fault], arrives_after_loss);
        assert!(in_pause, "{fault:?}");
    }
}
