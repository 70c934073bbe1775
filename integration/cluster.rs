//! Tests several clusters in one process: a failing cluster delays only its own messages.

use crate::env::{
    Kafka, Outgoing, PATIENCE, Postdate, Producer, Redis, Sink, eventually, kafka, redis, unique,
};
use crate::verdict::{LIMIT, Scene, ledger, number};

/// An address without a listener.
const NOWHERE: &str = "127.0.0.1:1";

#[test]
fn an_unreachable_cluster_delays_only_its_own_messages() {
    // More than a process may have in flight. It takes 8 partitions, because each shard has a lower
    // limit of its own.
    const BACKLOG: usize = 130_000;
    let mut scene = Scene::new(kafka(), "away", 1);
    let delayed = format!("{}.nowhere", scene.deployment);
    kafka().create_topic(&delayed, 8, &[]);
    let away = format!(
        r#"
[kafka.away]
brokers = ["{NOWHERE}"]
[route.away]
source = {{ kafka = "main", topics = ["{delayed}"] }}
target = {{ kafka = "away", topic = "nowhere" }}
dead_letter = {{ kafka = "main", topic = "{}.dead" }}
"#,
        scene.deployment
    );
    let postdate = Postdate::start(&scene.config_with(redis(), &away));
    let producer = Producer::start(kafka().addr());
    (0..BACKLOG).for_each(|index| {
        producer.send(
            &Outgoing::to(&delayed)
                .partition((index % 8) as i32)
                .key("k")
                .header("postdate-after", "0"),
        );
    });
    producer.flush();
    eventually("the backlog is stored", LIMIT, || {
        let stored = postdate
            .metrics()
            .sum_where("postdate_stored_total", &[("route", "away")]);
        (stored >= BACKLOG as f64).then_some(())
    });
    eventually("much of it is under way", LIMIT, || {
        (postdate.metrics().sum("postdate_in_flight_messages") >= 70_000.0).then_some(())
    });
    let sink = scene.sink();
    scene.send(300, 0..5_000);
    assert_eq!(scene.all_arrive(&sink), 0);
}

/// The first message is in flight to a silent cluster when its shard is lost. The second message
/// gets the same place in the next claim. The late result of the first must not count for it.
#[test]
fn a_late_result_of_a_lost_shard_does_not_count_for_the_next_claim() {
    let (silent, mut redis) = (Kafka::start(), Redis::start());
    let deployment = unique("left_behind");
    let (source, target, dead) = (
        format!("{deployment}.delayed"),
        format!("{deployment}.target"),
        format!("{deployment}.dead"),
    );
    kafka().create_topic(&source, 1, &[]);
    kafka().create_topic(&dead, 1, &[]);
    silent.create_topic(&target, 1, &[("max.message.bytes", "4000")]);
    let postdate = Postdate::ready_with(&format!(
        r#"
deployment = "{deployment}"
[store.redis]
url = "{}"
[kafka.main]
brokers = ["{}"]
[kafka.silent]
brokers = ["{}"]
[route.r]
source = {{ kafka = "main", topics = ["{source}"] }}
target = {{ kafka = "silent", topic = "{target}" }}
dead_letter = {{ kafka = "main", topic = "{dead}" }}
"#,
        redis.url(),
        kafka().addr(),
        silent.addr()
    ));
    let under_way = |what: &str| {
        eventually(what, LIMIT, || {
            (postdate.metrics().sum("postdate_in_flight_messages") == 1.0).then_some(())
        });
    };
    let send = |uid: &str, record: Outgoing| {
        let producer = Producer::start(kafka().addr());
        producer.send(&record.key("k").header("uid", uid));
        producer.flush();
    };
    eventually("the shard is taken", LIMIT, || {
        postdate.logs().contains("lease acquired").then_some(())
    });
    silent.pause();
    send(
        "1",
        Outgoing::to(&source)
            .header("postdate-after", "0")
            .header("postdate-id", "a"),
    );
    under_way("the first is under way");
    // The cancel is too late for now, but in time when the source is read again.
    send(
        "0",
        Outgoing::to(&source)
            .header("postdate-op", "cancel")
            .header("postdate-id", "a"),
    );
    eventually("the cancel came too late", LIMIT, || {
        (postdate.metrics().sum("postdate_cancel_missed_total") == 1.0).then_some(())
    });
    redis.flush_all();
    send(
        "2",
        Outgoing::to(&source)
            .header("postdate-after", "0")
            .payload(vec![0; 20_000]),
    );
    eventually("the shard is taken again", LIMIT, || {
        (postdate.logs().matches("lease acquired").count() == 2).then_some(())
    });
    under_way("the second is under way");
    silent.resume();
    let letter = Sink::start(kafka().addr(), &[&dead])
        .wait_for(1, PATIENCE)
        .remove(0);
    assert_eq!(
        (number(&letter), letter.header("postdate-error")),
        (2, Some("too_large"))
    );
    let total = ledger(&deployment, &postdate, |total| {
        total["pending"] == 0 && total["unsure"] == false
    });
    assert_eq!(total["dead_lettered"], 1, "{total}");
}
