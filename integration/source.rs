//! Tests a source that changes: recreated topics, added partitions, and records deleted before they
//! were read.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use crate::env::{Postdate, eventually, kafka, redis, rfc3339_in};
use crate::verdict::{LIMIT, Scene, wait_for_complaint, wait_until_ready};

#[test]
fn a_recreated_source_topic_waits_for_its_reset_and_is_read_from_its_start() {
    let mut scene = Scene::new(kafka(), "recreated", 2);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config(redis()));
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
    let said = reset(&postdate, &scene.source);
    assert!(said.is_err_and(|said| said.contains("the deployment still has live workers (1)")));
    postdate.terminate();
    let said = reset(&postdate, &scene.source).unwrap();
    assert!(
        said.contains(&format!("{}/0 offset 0", scene.source)),
        "{said}"
    );
    postdate.restart();
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

/// Runs `postdate reset`. Returns its output, or its errors if it failed.
fn reset(postdate: &Postdate, topic: &str) -> Result<String, String> {
    let output = postdate.command(&["reset", "--route", "r", "--topic", topic]);
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn a_route_without_a_commit_starts_where_its_option_says() {
    let mut scene = Scene::new(kafka(), "start", 2);
    let sink = scene.sink();
    scene.send(50, -1_000..0);
    scene.flush();
    let time = rfc3339_in(1);
    std::thread::sleep(Duration::from_millis(1_200));
    scene.send(60, -1_000..0);
    scene.flush();
    scene.forget(0..50);
    let skipped = |postdate: &Postdate| {
        let decision = [("decision", "skipped")];
        let metrics = postdate.metrics();
        metrics.sum_where("postdate_start_records_total", &decision) as usize
    };

    let config = scene.config_with(redis(), &format!("start = \"{time}\""));
    let mut at_time = Postdate::ready_with(&config);
    assert_eq!(scene.all_arrive(&sink), 0);
    assert_eq!(skipped(&at_time), 50);
    assert!(at_time.logs().contains("no usable offset commit"));
    at_time.terminate();

    // Another deployment has no commits. It reads nothing of before, and an added partition from
    // its first record.
    let other = scene.config_with(redis(), "start = \"end\"");
    let other = other.replace("deployment = \"", "deployment = \"other-");
    let mut at_end = Postdate::ready_with(&other);
    assert_eq!(skipped(&at_end), 110);
    kafka().add_partitions(&scene.source, 3);
    scene.renew_producer(3);
    scene.send(90, 0..1_000);
    assert_eq!(scene.all_arrive(&sink), 0);

    // Now there are commits, and the option means nothing.
    at_end.terminate();
    scene.send(30, 0..1_000);
    scene.flush();
    at_end.restart();
    assert_eq!(scene.all_arrive(&sink), 0);
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

/// The lag of the partition 0 of the source, by Kafka's own tool, if the group has no members.
fn lag_of_memberless_group(scene: &Scene) -> Option<u64> {
    let described = kafka().describe_group(&format!("{}.r", scene.deployment));
    assert!(described.contains("has no active members"), "{described}");
    let row = described
        .lines()
        .find(|line| line.contains(&scene.source))?;
    // The columns are group, topic, partition, committed offset, end and lag.
    row.split_whitespace().nth(5)?.parse().ok()
}

#[test]
fn tools_show_the_lag_of_a_group_although_it_has_no_members() {
    let mut scene = Scene::new(kafka(), "lag", 1);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config(redis()));
    scene.send(50, -1_000..0);
    scene.all_arrive(&sink);
    let has_no_lag = || (lag_of_memberless_group(&scene)? == 0).then_some(());
    eventually("everything is committed", LIMIT, has_no_lag);
    postdate.terminate();
    scene.send(20, 0..1_000);
    assert_eq!(lag_of_memberless_group(&scene), Some(20));
    postdate.restart();
    assert_eq!(scene.all_arrive(&sink), 0);
}

/// A worker of version 0.1.0 is a member of the group.
#[test]
fn nothing_is_read_while_the_group_has_a_member() {
    let mut scene = Scene::new(kafka(), "member", 1);
    let sink = scene.sink();
    let member: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka().addr())
        .set("group.id", format!("{}.r", scene.deployment))
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    member.subscribe(&[&scene.source]).unwrap();
    eventually("the member has its partition", LIMIT, || {
        drop(member.poll(Duration::from_millis(100)));
        (member.assignment().ok()?.count() == 1).then_some(())
    });
    let postdate = Postdate::start(&scene.config(redis()));
    scene.send(50, 0..1_000);
    wait_for_complaint(&postdate, &["has members", "Postdate 0.1.0"]);
    std::thread::sleep(Duration::from_secs(2));
    let stored = postdate.metrics().sum("postdate_stored_total");
    assert!(stored < 0.5, "{stored}");
    drop(member);
    assert_eq!(scene.all_arrive(&sink), 0);
    wait_until_ready(&postdate);
}
