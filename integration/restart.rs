//! Tests a process that dies and restarts: no message is lost, and none arrives early.

use std::time::{Duration, Instant};

use crate::env::{Postdate, Sink, eventually, kafka, redis};
use crate::verdict::{LIMIT, Scene};

#[test]
fn a_process_that_is_killed_repeatedly_loses_nothing() {
    let mut scene = Scene::new(kafka(), "killed", 2);
    let sink = scene.sink();
    let config = scene.config_with(redis(), "[timer]\nlease = \"1s\"");
    let mut postdate = Postdate::ready_with(&config);
    scene.survives_kills(&sink, &mut postdate);
}

#[test]
fn a_process_that_starts_after_a_long_stop_delivers_the_backlog() {
    let mut scene = Scene::new(kafka(), "stopped", 2);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config(redis()));
    scene.send(500, 1_000..2_000);
    scene.wait_until_stored(&postdate, 500);
    postdate.kill();
    // Some of these messages are due while no process runs, and some later. No process has read
    // them yet.
    scene.send(500, 0..4_000);
    eventually("the backlog is overdue", LIMIT, || {
        (scene.overdue() >= 700).then_some(())
    });
    let already = sink.records().len();
    postdate.restart();
    let duplicates = scene.all_arrive(&sink);
    assert!(
        duplicates <= already,
        "{duplicates} duplicates, though only {already} had been handed over"
    );
    scene.ledger_says_all_once(&postdate);
}

#[test]
fn after_a_long_stop_overdue_messages_become_dead_letters_at_the_catch_up_rate() {
    let mut scene = Scene::new(kafka(), "overdue", 1);
    let sink = scene.sink();
    let dead = Sink::start(kafka().addr(), &[&format!("{}.dead", scene.deployment)]);
    let late = "overdue = \"dead-letter\"\noverdue_after = \"6s\"\ncatch_up_rate = 50\nsource =";
    let mut postdate = Postdate::ready_with(&scene.config(redis()).replace("source =", late));
    scene.send(100, 2_000..2_100);
    scene.wait_until_stored(&postdate, 100);
    postdate.kill();
    // The first hundred become overdue while no process runs. The next hundred are behind at the
    // restart, but not overdue.
    eventually("they are overdue", LIMIT, || {
        (scene.overdue() == 100).then_some(())
    });
    let overdue_at = Instant::now() + Duration::from_secs(7);
    scene.send(100, 5_000..5_100);
    eventually("they are overdue by far", LIMIT, || {
        (Instant::now() > overdue_at).then_some(())
    });
    postdate.restart();
    let records = dead.wait_for(100, LIMIT);
    assert!(
        records
            .iter()
            .all(|record| record.header("postdate-error") == Some("overdue")),
        "{records:?}"
    );
    let total = scene.ledger(&postdate);
    assert_eq!(total["accepted"], 200, "{total}");
    let (delivered, dead_lettered) = (
        total["delivered"].as_u64().unwrap(),
        total["dead_lettered"].as_u64().unwrap(),
    );
    assert_eq!(
        (
            delivered + dead_lettered,
            sink.wait_for(delivered as usize, LIMIT).len()
        ),
        (200, delivered as usize),
        "{total}"
    );
    assert!(dead_lettered >= 100, "{total}");
    // Dead letters keep to the catch-up rate, too.
    let (first, last) = (
        records.iter().map(|record| record.timestamp).min(),
        records.iter().map(|record| record.timestamp).max(),
    );
    let took = last.unwrap() - first.unwrap();
    assert!(took >= 1_500, "{took} ms for a hundred at fifty a second");
}
