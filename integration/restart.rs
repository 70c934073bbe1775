//! A process that dies and comes back: nothing that it had taken on is lost, and nothing comes before its time.

use crate::env::{Kafka, Postdate, kafka, redis};
use crate::verdict::{LIMIT, Scene};

#[test]
fn a_process_that_is_killed_again_and_again_loses_nothing() {
    // The group gives up a member that died as soon as it is allowed to: reading, too, is to be killed in its midst.
    let kafka = Kafka::start_with(&[("group.min.session.timeout.ms", "500")]);
    let mut scene = Scene::new(&kafka, "killed", 2);
    let sink = scene.sink();
    let config = scene.config_with(redis(), "[timer]\nlease = \"1s\"").replace("6000", "1000");
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
    // Some of these fall due while nobody is there, some later, and none of them was read.
    scene.send(500, 0..4_000);
    crate::env::eventually("the backlog is overdue", LIMIT, || (scene.overdue() >= 700).then_some(()));
    let already = sink.records().len();
    postdate.restart();
    let duplicates = scene.all_arrive(&sink);
    assert!(duplicates <= already, "{duplicates} duplicates, though only {already} had been handed over");
}
