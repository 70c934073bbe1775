//! Tests two installations that share a store and a deployment name by mistake.

use std::time::Duration;

use crate::env::{Kafka, Postdate, Redis, eventually, kafka};
use crate::verdict::{LIMIT, Scene, wait_for_complaint, wait_until_ready};

#[test]
fn an_installation_never_delivers_the_messages_of_another_one() {
    let (other_kafka, redis) = (Kafka::start(), Redis::start());
    let mut scene = Scene::new(kafka(), "installation", 2);
    let sink = scene.sink();
    let config = scene.config(&redis);
    for topic in [&scene.source, &scene.target] {
        other_kafka.create_topic(topic, 2, &[]);
    }
    let target = scene.target.clone();
    let arrived_elsewhere = || {
        let ends = (0..2).map(|index| other_kafka.offsets(&target, index).1);
        ends.sum::<i64>()
    };
    let other_config = config.replace(kafka().addr(), other_kafka.addr());
    let mut first = Postdate::ready_with(&config);
    scene.send(400, 25_000..28_000);
    scene.wait_until_stored(&first, 400);

    // Both run: the second one ends before it delivers anything.
    let mut second = Postdate::start(&other_config);
    assert!(!second.wait_until_ended().success());
    let logs = second.logs();
    assert!(
        logs.contains("another installation with the same `deployment` uses it"),
        "{logs}"
    );
    assert!(logs.matches("cluster postdateTests").count() >= 2, "{logs}");
    assert!(first.ready());

    // The first one is stopped while its messages wait and become due.
    first.terminate();
    second.restart();
    wait_for_complaint(
        &second,
        &["belong to another installation", "postdate reset"],
    );
    eventually("the messages are due", LIMIT, || {
        (scene.overdue() == 400).then_some(())
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(arrived_elsewhere(), 0);
    second.terminate();
    first.restart();
    assert_eq!(scene.all_arrive(&sink), 0);

    // A move to the other cluster.
    first.terminate();
    let reset = second.command(&["reset", "--route", "r", "--topic", &scene.source]);
    assert!(reset.status.success(), "{reset:?}");
    second.restart();
    wait_until_ready(&second);
    assert_eq!(arrived_elsewhere(), 0);
}
