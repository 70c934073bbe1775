//! Tests the move to another Kafka cluster that docs/upgrade.md describes: messages wait meanwhile, and
//! each arrives once.

use std::collections::BTreeSet;

use crate::env::{Kafka, Postdate, Redis, Sink, eventually, kafka};
use crate::verdict::{LIMIT, Scene};

/// The configuration of the old installation, which now delivers to the new cluster.
fn with_new_target(config: &str, scene: &Scene, new: &Kafka) -> String {
    let target = |cluster: &str| {
        format!(
            r#"target = {{ kafka = "{cluster}", topic = "{}" }}"#,
            scene.target
        )
    };
    let moved = config.replace(&target("main"), &target("new"));
    assert_ne!(moved, config);
    format!("{moved}\n[kafka.new]\nbrokers = [\"{}\"]\n", new.addr())
}

#[test]
fn what_waits_during_a_move_to_another_cluster_arrives_once() {
    let (old_kafka, new_kafka, redis) = (kafka(), Kafka::start(), Redis::start());
    let mut old = Scene::new(old_kafka, "leaving", 2);
    let mut new = Scene::new(&new_kafka, "coming", 2);
    let stamped = [("message.timestamp.type", "LogAppendTime")];
    new_kafka.create_topic(&old.target, 2, &stamped);
    let old_sink = old.sink();
    let moved_sink = Sink::start(new_kafka.addr(), &[&old.target]);
    let new_sink = new.sink();
    let mut leaving = Postdate::ready_with(&old.config(&redis));
    // Due before, during and after the move.
    old.send(600, 500..20_000);
    old.wait_until_stored(&leaving, 600);
    old_sink.wait_for(50, LIMIT);

    // The new installation has its own name, and shares the store.
    let coming = Postdate::ready_with(&new.config(&redis));
    leaving.terminate();
    let leaving = Postdate::ready_with(&with_new_target(&old.config(&redis), &old, &new_kafka));
    // Some producers still send to the old cluster.
    old.send(100, 0..5_000);
    new.send(200, 500..10_000);
    assert_eq!(new.all_arrive(&new_sink), 0);

    let records = eventually("all messages of the old installation arrive", LIMIT, || {
        let records = [old_sink.records(), moved_sink.records()].concat();
        (records.len() >= old.sent()).then_some(records)
    });
    let ledger = old.ledger(&leaving);
    assert_eq!(ledger["delivered"], 700, "{ledger}");
    let origins: BTreeSet<_> = records
        .iter()
        .map(|record| record.header("postdate-origin"))
        .collect();
    assert_eq!((records.len(), origins.len()), (700, 700));
    assert_eq!(old.judge(&records), 0);
    assert!(moved_sink.records().len() >= 100);
    assert_eq!(new.ledger(&coming)["delivered"], 200);
}
