//! Several processes that share the work: they come, go, die and freeze. Times are printed, and held against bounds that a busy machine keeps.

use std::time::{Duration, Instant};

use crate::env::{Postdate, Record, Sink, eventually, kafka, redis};
use crate::verdict::{LIMIT, Scene, number};

const PARTITIONS: i32 = 32;

/// What a killed worker's shards wait for at most, on a machine with nothing else to do.
const TAKEOVER: Duration = Duration::from_secs(6);

fn timer(config: &str) -> Postdate {
    let mut timer = Postdate::start_with(config, &[("POSTDATE_ROLES", r#"["timer"]"#)]);
    timer.wait_until_ready();
    timer
}

fn ingress(config: &str) -> Postdate {
    Postdate::start_with(config, &[("POSTDATE_ROLES", r#"["ingress"]"#)])
}

fn held(timer: &Postdate) -> usize {
    timer.metrics().sum("postdate_leases_held") as usize
}

/// Waits until all shards are held, by these workers in parts that differ by one at most; answers how long that took.
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

/// Leases that these workers took, in all their time.
fn taken(timers: &[&Postdate]) -> usize {
    timers.iter().map(|timer| timer.metrics().sum("postdate_leases_taken_total") as usize).sum()
}

/// Only those shards change hands that have to, but for a few that make the parts even.
fn hardly_more_moved(what: &str, moved: usize, must: usize) {
    eprintln!("{what}: {moved} of {PARTITIONS} shards moved, and {must} had to");
    assert!((must..=must + 3).contains(&moved), "{what}: {moved} shards moved, and {must} had to");
}

/// Milliseconds after their due, by the broker's stamp, of the messages from that number on.
fn lateness(scene: &Scene, sink: &Sink, from: usize, what: &str) -> i64 {
    let records = sink.records();
    let due = |record: &Record| record.header("postdate-due").and_then(|due| due.parse::<i64>().ok()).expect("a due");
    let late = records.iter().filter(|record| number(record) >= from).map(|record| record.timestamp - due(record));
    let mut late: Vec<_> = late.collect();
    late.sort_unstable();
    let at = |share: usize| late[(late.len() - 1) * share / 1_000];
    eprintln!(
        "{what}: {} messages, p50 {} ms, p99 {} ms, p99.9 {} ms, greatest {} ms after the due",
        late.len(),
        at(500),
        at(990),
        at(999),
        at(1_000)
    );
    assert!(scene.sent() >= from);
    at(1_000)
}

#[test]
fn workers_that_come_and_go_share_the_shards_evenly_and_messages_hardly_wait_for_it() {
    let mut scene = Scene::new(kafka(), "fleet", PARTITIONS);
    let sink = scene.sink();
    let config = scene.config(redis());
    let _ingress = ingress(&config);
    let first = timer(&config);
    even(&[&first]);
    // Before anything moves: what the machine itself makes of it today.
    scene.send(2_000, 2_000..6_000);
    scene.all_arrive(&sink);
    lateness(&scene, &sink, 0, "one worker");

    let from = scene.sent();
    scene.send(6_000, 4_000..16_000);
    let before = taken(&[&first]);
    let second = timer(&config);
    eprintln!("1 -> 2 workers: even after {:?}", even(&[&first, &second]));
    hardly_more_moved("1 -> 2 workers", taken(&[&first, &second]) - before, 16);
    scene.all_arrive(&sink);
    lateness(&scene, &sink, from, "1 -> 2 workers");

    let from = scene.sent();
    scene.send(6_000, 4_000..16_000);
    let before = taken(&[&first, &second]);
    let third = timer(&config);
    eprintln!("2 -> 3 workers: even after {:?}", even(&[&first, &second, &third]));
    hardly_more_moved("2 -> 3 workers", taken(&[&first, &second, &third]) - before, 10);
    let before = taken(&[&first, &second, &third]);
    let mut fourth = timer(&config);
    eprintln!("3 -> 4 workers: even after {:?}", even(&[&first, &second, &third, &fourth]));
    hardly_more_moved("3 -> 4 workers", taken(&[&first, &second, &third, &fourth]) - before, 8);
    scene.all_arrive(&sink);
    lateness(&scene, &sink, from, "2 -> 4 workers");

    let from = scene.sent();
    scene.send(6_000, 2_000..12_000);
    let (before, part) = (taken(&[&first, &second, &third]), held(&fourth));
    let (status, took) = fourth.terminate();
    assert_eq!(status.code(), Some(0), "{}", fourth.logs());
    eprintln!("4 -> 3 workers, asked to end, which took {took:?}: even after {:?} more", even(&[&first, &second, &third]));
    hardly_more_moved("4 -> 3 workers", taken(&[&first, &second, &third]) - before, part);
    assert!(fourth.logs().contains("shard handed over"), "{}", fourth.logs());
    let duplicates = scene.all_arrive(&sink);
    assert_eq!(duplicates, 0, "nothing comes twice as long as nobody dies");
    let greatest = lateness(&scene, &sink, from, "4 -> 3 workers");
    assert!(greatest < 2_000, "{greatest} ms: that is no planned hand-over any more");

    let moved = |name: &str| [&first, &second, &third].iter().map(|timer| timer.metrics().sum(name) as usize).sum::<usize>();
    let (taken, given) = (moved("postdate_leases_taken_total"), moved("postdate_leases_handed_over_total"));
    eprintln!("{taken} leases taken and {given} handed over by the three that are left");
    assert!(taken >= given && moved("postdate_leases_lost_total") == 0);
    assert_eq!(moved("postdate_timer_workers"), 9, "each knows of three");
    scene.ledger_says_all_once(&first);
}

#[test]
fn the_shards_of_a_killed_worker_are_taken_when_its_leases_end() {
    let mut scene = Scene::new(kafka(), "taken_over", PARTITIONS);
    let sink = scene.sink();
    let config = scene.config(redis());
    let _ingress = ingress(&config);
    let (first, second, mut third) = (timer(&config), timer(&config), timer(&config));
    even(&[&first, &second, &third]);
    scene.send(4_000, 3_000..16_000);
    sink.wait_for(500, LIMIT);
    third.kill();
    let took = even(&[&first, &second]);
    eprintln!("all shards of a killed worker were taken after {took:?}");
    assert!(took < 2 * TAKEOVER, "{took:?}");
    let duplicates = scene.all_arrive(&sink);
    lateness(&scene, &sink, 0, "a worker killed");
    eprintln!("{duplicates} duplicates");
    assert!(duplicates < 1_000, "{duplicates} duplicates: more than was in flight");
    scene.ledger_says_all_once(&first);
}

#[test]
fn a_worker_that_was_frozen_past_its_lease_notices_and_hands_nothing_over_that_another_has() {
    let mut scene = Scene::new(kafka(), "frozen", PARTITIONS);
    let sink = scene.sink();
    let config = scene.config_with(redis(), "[timer]\nlease = \"2s\"");
    let _ingress = ingress(&config);
    let (first, second) = (timer(&config), timer(&config));
    even(&[&first, &second]);
    scene.send(6_000, 2_000..14_000);
    sink.wait_for(300, LIMIT);
    second.pause();
    eprintln!("all shards of a frozen worker were taken after {:?}", even(&[&first]));
    second.resume();
    eventually("it notices", LIMIT, || second.logs().contains("lease lost").then_some(()));
    eprintln!("even again after {:?}", even(&[&first, &second]));
    let duplicates = scene.all_arrive(&sink);
    eprintln!("{duplicates} duplicates; leases run out: {}", second.metrics().sum("postdate_leases_run_out_total"));
    // Half of what falls due within a moment, and what its client had when it was frozen.
    assert!(duplicates < 600, "{duplicates} duplicates: more than was in flight");
    assert!(second.metrics().sum("postdate_leases_lost_total") > 0.0);
    scene.ledger_says_none_twice(&first);
}

#[test]
fn several_ingresses_share_a_source_and_one_that_goes_leaves_nothing_behind() {
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
    assert_eq!(scene.all_arrive(&sink), 0, "what one stored the other does not store again");
    second.restart();
    let before = stored(&first);
    second.wait_until_ready();
    eventually("it reads again", LIMIT, || {
        scene.send(80, 0..1_000);
        (stored(&second) > 0.0 && stored(&first) > before).then_some(())
    });
    second.kill();
    scene.send(300, 0..2_000);
    assert_eq!(scene.all_arrive(&sink), 0, "what was read and not stored is read again, and nothing is stored twice");
    scene.ledger_says_all_once(&first);
}
