//! Tests a broker that freezes and coordinates the consumer groups. It leads no partition of the route, so
//! only the group coordinator is missing.
//!
//! It asserts that all messages arrive, and no time. The unit tests of the ingress have the time that a start waits.

use crate::env::{KafkaCluster, Postdate, eventually, now_ms, redis};
use crate::verdict::{LIMIT, Lateness, Scene, wait_for_complaint, wait_until_ready};

const PARTITIONS: i32 = 6;

const MESSAGES: usize = 600;

/// No other broker has the offsets of the groups, so none becomes coordinator.
const ONE_COORDINATOR: [(&str, &str); 2] = [
    ("offsets.topic.replication.factor", "1"),
    ("offsets.topic.num.partitions", "1"),
];

#[test]
fn a_frozen_group_coordinator_stops_no_reading_delivery_or_takeover() {
    let kafka = KafkaCluster::start_with(3, &ONE_COORDINATOR);
    let coordinator = kafka.coordinator();
    let mut scene = Scene::without_node(&kafka, coordinator, "coordinator", PARTITIONS);
    let sink = scene.sink();
    let config = scene.config(redis());
    let mut first = Postdate::ready_with(&config);
    let mut second = Postdate::ready_with(&config);
    scene.send(MESSAGES, 0..2_000);
    scene.all_arrive(&sink);

    kafka.nodes[coordinator].pause();
    let mut arrives = |what: &str, event: &mut dyn FnMut()| {
        let start = now_ms();
        scene.load(MESSAGES, 1_000..4_000);
        event();
        scene.flush();
        scene.all_arrive(&sink);
        Lateness::of(what, &sink.records(), start..i64::MAX);
    };
    arrives("without a group coordinator", &mut || {});
    wait_for_complaint(&second, &["cannot commit offsets"]);
    arrives("a worker was killed", &mut || first.kill());
    // This session is younger than the lease, so the worker trusts no store at first.
    let mut third = None;
    arrives("another worker alone", &mut || {
        second.kill();
        third = Some(Postdate::start(&config));
    });
    let third = third.expect("it was started");
    let logs = third.logs();
    assert!(
        logs.contains("the group coordinator does not answer: reading starts"),
        "{logs}"
    );

    kafka.nodes[coordinator].resume();
    wait_until_ready(&third);
    let sent = i64::try_from(scene.sent()).expect("a few");
    eventually("all is committed", LIMIT, || {
        let committed = (0..PARTITIONS).map(|partition| scene.committed(partition).0);
        (committed.sum::<i64>() == sent).then_some(())
    });
    scene.ledger_says_all_once(&third);
}
