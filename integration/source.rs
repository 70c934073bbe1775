//! Tests a source that changes: recreated topics, added partitions, and records deleted before they
//! were read.

use std::process::Command;

use crate::env::{Postdate, eventually, kafka, redis};
use crate::verdict::{LIMIT, Scene, wait_for_complaint, wait_until_ready};

#[test]
fn a_recreated_source_topic_waits_for_its_reset_and_continues_without_a_restart() {
    let mut scene = Scene::new(kafka(), "recreated", 2);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(redis()));
    // Some messages are delivered before the topic is recreated, and some still wait.
    scene.send(100, 0..500);
    scene.send(200, 8_000..12_000);
    scene.wait_until_stored(&postdate, 300);
    sink.wait_for(100, LIMIT);
    kafka().delete_topic(&scene.source);
    kafka().create_topic(&scene.source, 2, &[]);
    wait_for_complaint(
        &postdate,
        &[
            "recreated",
            "postdate reset --config",
            "--route r",
            &format!("--topic {}", scene.source),
        ],
    );
    scene.all_arrive(&sink);

    scene.renew_producer(2);
    scene.send(50, -1_000..0);
    scene.send_without_delay();
    eventually("the shards are drained", LIMIT, || {
        reset(&postdate, &scene.source)
    });
    scene.send(50, 0..2_000);
    let duplicates = scene.all_arrive(&sink);
    assert_eq!(duplicates, 0);
    wait_until_ready(&postdate);
    let logs = postdate.logs();
    let said: Vec<&str> = logs
        .lines()
        .filter(|line| line.contains("shard stopped"))
        .collect();
    assert_eq!(
        said.len(),
        1,
        "it concerns the topic, not each of its partitions: {said:#?}"
    );
}

/// Runs `postdate reset`, which is refused while messages wait. Returns `None` in that case.
fn reset(postdate: &Postdate, topic: &str) -> Option<()> {
    let mut reset = Command::new(env!("CARGO_BIN_EXE_postdate"));
    reset
        .args(["reset", "--config"])
        .arg(postdate.folder().join("config.toml"))
        .args(["--route", "r", "--topic", topic]);
    let output = reset.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() || said.contains("still wait"),
        "{said}"
    );
    output.status.success().then_some(())
}

#[test]
fn added_partitions_are_served() {
    let mut scene = Scene::new(kafka(), "grown", 1);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(redis()));
    scene.send(50, 0..1_000);
    scene.all_arrive(&sink);
    kafka().add_partitions(&scene.source, 3);
    scene.renew_producer(3);
    scene.send(150, 0..1_000);
    let duplicates = scene.all_arrive(&sink);
    assert_eq!(duplicates, 0);
    wait_until_ready(&postdate);
}

#[test]
fn records_deleted_before_they_were_read_are_counted_and_the_rest_is_delivered() {
    let mut scene = Scene::new(kafka(), "overtaken", 1);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config(redis()));
    scene.send(50, 0..1_000);
    scene.all_arrive(&sink);
    let (status, _) = postdate.terminate();
    assert!(status.success(), "{status}");
    scene.send(100, 0..1_000);
    kafka().delete_records(&scene.source, 0, 120);
    scene.forget(50..120);
    postdate.restart();
    let duplicates = scene.all_arrive(&sink);
    assert_eq!(duplicates, 0);
    let gap = postdate.metrics().sum("postdate_source_gap_messages_total");
    assert!((gap - 70.0).abs() < f64::EPSILON, "{gap} of 70");
    assert!(postdate.logs().contains("the source no longer retains"));
    wait_until_ready(&postdate);
    scene.ledger_says_all_once(&postdate);
}
