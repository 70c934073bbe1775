//! Tests several workers that share shards while they start, stop, die and freeze.
//!
//! Each test prints its times and does not assert them, because the machine may be busy.

use std::time::{Duration, Instant};

use crate::env::{Postdate, Sink, eventually, kafka, now_ms, redis};
use crate::verdict::{LIMIT, Lateness, Scene};

const PARTITIONS: i32 = 32;

/// Shards that may move in addition to those that must.
const SPARE: usize = 3;

fn start_timer(config: &str) -> Postdate {
    Postdate::start_with(config, &[("POSTDATE_ROLES", r#"["timer"]"#)])
}

fn timer(config: &str) -> Postdate {
    let mut timer = start_timer(config);
    timer.wait_until_ready();
    timer
}

fn ingress(config: &str) -> Postdate {
    Postdate::start_with(config, &[("POSTDATE_ROLES", r#"["ingress"]"#)])
}

fn held(timer: &Postdate) -> usize {
    timer.metrics().sum("postdate_leases_held") as usize
}

/// Waits until these workers hold all shards, in parts that differ by at most one. Returns the
/// elapsed time.
fn even(timers: &[&Postdate]) -> Duration {
    let start = Instant::now();
    let mut parts = Vec::new();
    eventually("the shards are shared evenly", LIMIT, || {
        let now: Vec<_> = timers.iter().map(|timer| held(timer)).collect();
        if parts != now {
            eprintln!("{:?}: {now:?}", start.elapsed());
            parts = now.clone();
        }
        let is_even = now.iter().max()? - now.iter().min()? <= 1;
        (is_even && now.iter().sum::<usize>() == PARTITIONS as usize).then_some(())
    });
    start.elapsed()
}

/// Number of leases that these workers have taken since they started.
fn taken(timers: &[&Postdate]) -> usize {
    timers
        .iter()
        .map(|timer| timer.metrics().sum("postdate_leases_taken_total") as usize)
        .sum()
}

/// Checks that only the shards that must move have moved, plus at most `more`.
fn hardly_more_moved(what: &str, moved: usize, must: usize, more: usize) {
    eprintln!("{what}: {moved} of {PARTITIONS} shards moved, and {must} had to");
    assert!(
        (must..=must + more).contains(&moved),
        "{what}: {moved} shards moved, and {must} had to"
    );
}

/// Makes a change under a load that began seconds before it. Prints how late the messages are that
/// are due before the change and during it.
fn meanwhile<T>(what: &str, scene: &mut Scene, sink: &Sink, change: impl FnOnce() -> T) -> T {
    let arrived = sink.records().len();
    let start = now_ms();
    scene.send(6_000, 2_000..14_000);
    sink.wait_for(arrived + 1_500, LIMIT);
    let began = now_ms();
    let changed = change();
    let ended = now_ms() + 500;
    assert_eq!(
        scene.all_arrive(sink),
        0,
        "nothing comes twice as long as nobody dies"
    );
    let records = sink.records();
    Lateness::of(&format!("before {what}"), &records, start + 2_000..began);
    Lateness::of(what, &records, began..ended);
    changed
}

#[test]
fn workers_share_shards_evenly_after_starts_and_stops_and_deliver_each_message_once() {
    let mut scene = Scene::new(kafka(), "fleet", PARTITIONS);
    let sink = scene.sink();
    let config = scene.config(redis());
    let _ingress = ingress(&config);
    let first = timer(&config);
    even(&[&first]);

    let what = "1 -> 2 workers";
    let before = taken(&[&first]);
    let second = meanwhile(what, &mut scene, &sink, || {
        let second = timer(&config);
        eprintln!("{what}: even after {:?}", even(&[&first, &second]));
        second
    });
    hardly_more_moved(what, taken(&[&first, &second]) - before, 16, SPARE);

    let what = "2 -> 4 workers at once";
    let before = taken(&[&first, &second]);
    let (third, mut fourth) = meanwhile(what, &mut scene, &sink, || {
        let (mut third, mut fourth) = (start_timer(&config), start_timer(&config));
        third.wait_until_ready();
        fourth.wait_until_ready();
        eprintln!(
            "{what}: even after {:?}",
            even(&[&first, &second, &third, &fourth])
        );
        (third, fourth)
    });
    // One of two new workers is seen first, so some shards move to it and then on to the other.
    hardly_more_moved(
        what,
        taken(&[&first, &second, &third, &fourth]) - before,
        16,
        SPARE + 6,
    );

    let what = "4 -> 3 workers, asked to end";
    let (before, part) = (taken(&[&first, &second, &third]), held(&fourth));
    meanwhile(what, &mut scene, &sink, || {
        let (status, took) = fourth.terminate();
        assert_eq!(status.code(), Some(0), "{}", fourth.logs());
        eprintln!(
            "{what}: ended after {took:?}, even after {:?} more",
            even(&[&first, &second, &third])
        );
    });
    // The remaining workers may swap shards. Their number depends on the names of the workers: it is
    // four to six in four of a hundred fleets.
    hardly_more_moved(
        what,
        taken(&[&first, &second, &third]) - before,
        part,
        SPARE + 3,
    );
    assert!(
        fourth.logs().contains("shard handed over"),
        "{}",
        fourth.logs()
    );

    let moved = |name: &str| {
        [&first, &second, &third]
            .iter()
            .map(|timer| timer.metrics().sum(name) as usize)
            .sum::<usize>()
    };
    let (taken, given) = (
        moved("postdate_leases_taken_total"),
        moved("postdate_leases_handed_over_total"),
    );
    eprintln!("{taken} leases taken and {given} handed over by the three that are left");
    assert!(taken >= given && moved("postdate_leases_lost_total") == 0);
    assert_eq!(moved("postdate_timer_workers"), 9, "each knows of three");
    scene.ledger_says_all_once(&first);
}

#[test]
fn the_shards_of_a_killed_worker_are_taken_over() {
    let mut scene = Scene::new(kafka(), "taken_over", PARTITIONS);
    let sink = scene.sink();
    let config = scene.config(redis());
    let _ingress = ingress(&config);
    let (first, second, mut third) = (timer(&config), timer(&config), timer(&config));
    even(&[&first, &second, &third]);
    let start = now_ms();
    scene.send(4_000, 3_000..16_000);
    sink.wait_for(500, LIMIT);
    let killed = now_ms();
    third.kill();
    let took = even(&[&first, &second]);
    eprintln!("all shards of a killed worker were taken after {took:?}");
    let duplicates = scene.all_arrive(&sink);
    eprintln!("{duplicates} duplicates");
    let records = sink.records();
    Lateness::of(
        "before a worker is killed",
        &records,
        start + 3_000..killed - 500,
    );
    Lateness::of("a worker killed", &records, killed - 500..i64::MAX);
    assert!(
        duplicates < 1_000,
        "{duplicates} duplicates: more than was in flight"
    );
    scene.ledger_says_all_once(&first);
}

#[test]
fn workers_that_are_killed_and_restarted_in_turn_lose_nothing() {
    let mut scene = Scene::new(kafka(), "crash_loop", PARTITIONS);
    let sink = scene.sink();
    let config = scene.config(redis());
    let mut workers = [(); 3].map(|()| Postdate::ready_with(&config));
    let duplicates = scene.survives_crash_loop(&sink, &mut workers);
    assert!(
        duplicates < scene.sent() / 2,
        "{duplicates} duplicates: more than was in flight"
    );
}

#[test]
fn a_worker_frozen_past_its_session_notices_and_does_not_deliver_the_shards_of_others() {
    let mut scene = Scene::new(kafka(), "frozen", PARTITIONS);
    let sink = scene.sink();
    let config = scene.config_with(redis(), "[timer]\nlease = \"2s\"");
    let _ingress = ingress(&config);
    let (first, second) = (timer(&config), timer(&config));
    even(&[&first, &second]);
    let start = now_ms();
    scene.send(6_000, 2_000..14_000);
    sink.wait_for(500, LIMIT);
    let frozen = now_ms();
    second.pause();
    let took = even(&[&first]);
    eprintln!("all shards of a frozen worker were taken after {took:?}");
    second.resume();
    eventually("it notices", LIMIT, || {
        second.logs().contains("lease lost").then_some(())
    });
    eprintln!("even again after {:?}", even(&[&first, &second]));
    let duplicates = scene.all_arrive(&sink);
    let records = sink.records();
    Lateness::of(
        "before a worker is frozen",
        &records,
        start + 2_000..frozen - 500,
    );
    Lateness::of("a worker frozen", &records, frozen - 500..i64::MAX);
    eprintln!(
        "{duplicates} duplicates; leases run out: {}",
        second.metrics().sum("postdate_leases_run_out_total")
    );
    // Half of the messages due within a moment, plus those that the client held when it was frozen.
    assert!(
        duplicates < 600,
        "{duplicates} duplicates: more than was in flight"
    );
    assert!(second.metrics().sum("postdate_leases_lost_total") > 0.0);
    scene.ledger_says_none_twice(&first);
}

#[test]
fn several_ingresses_share_a_source_and_lose_nothing_when_one_stops() {
    let mut scene = Scene::new(kafka(), "ingresses", 8);
    let sink = scene.sink();
    let config = scene.config(redis());
    let _timer = timer(&config);
    let (first, mut second) = (ingress(&config), ingress(&config));
    let stored = |ingress: &Postdate| ingress.metrics().sum("postdate_stored_total");
    eventually("both read", LIMIT, || {
        scene.send(80, 0..1_000);
        (stored(&first) > 0.0 && stored(&second) > 0.0).then_some(())
    });
    scene.send(1_000, 0..3_000);
    let (status, _) = second.terminate();
    assert_eq!(status.code(), Some(0));
    scene.send(500, 0..2_000);
    assert_eq!(
        scene.all_arrive(&sink),
        0,
        "what one stored the other does not store again"
    );
    second.restart();
    let before = stored(&first);
    second.wait_until_ready();
    eventually("it reads again", LIMIT, || {
        scene.send(80, 0..1_000);
        (stored(&second) > 0.0 && stored(&first) > before).then_some(())
    });
    second.kill();
    scene.send(300, 0..2_000);
    assert_eq!(
        scene.all_arrive(&sink),
        0,
        "what was read and not stored is read again, and nothing is stored twice"
    );
    scene.ledger_says_all_once(&first);
}

#[test]
fn workers_together_keep_to_the_catch_up_rate_of_their_route() {
    /// Messages per second. At this rate the backlog takes eight seconds.
    const RATE: i64 = 250;
    const BEHIND: usize = 2_000;
    let mut scene = Scene::new(kafka(), "catches_up", PARTITIONS);
    let sink = scene.sink();
    let config = scene
        .config(redis())
        .replace("source =", &format!("catch_up_rate = {RATE}\nsource ="));
    let ingress = ingress(&config);
    scene.send(BEHIND, 0..1_000);
    scene.wait_until_stored(&ingress, BEHIND);
    eventually("all of it is behind", LIMIT, || {
        (scene.overdue() == BEHIND).then_some(())
    });
    let timers = [start_timer(&config), start_timer(&config)];
    assert_eq!(scene.all_arrive(&sink), 0);
    even(&[&timers[0], &timers[1]]);
    let mut times: Vec<i64> = sink
        .records()
        .iter()
        .map(|record| record.timestamp)
        .collect();
    times.sort_unstable();
    // The bound allows for each worker's first claim, and for the time until the workers know each
    // other.
    let took = times[BEHIND - 1] - times[0];
    eprintln!("{took} ms for {BEHIND} at {RATE} a second");
    assert!(
        took >= BEHIND as i64 * 1_000 / RATE * 3 / 4,
        "{took} ms: each went at the rate of both"
    );
    let parts = timers
        .each_ref()
        .map(|timer| timer.metrics().sum("postdate_delivered_total"));
    assert!(
        parts.iter().all(|part| *part > BEHIND as f64 / 4.0),
        "{parts:?}: one of them did it all"
    );
    scene.ledger_says_all_once(&timers[0]);
}
