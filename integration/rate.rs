//! Tests the rate of a route: two processes share it, and it delays no other route.

use crate::env::{Outgoing, Postdate, Producer, Record, Sink, eventually, kafka, now_ms, redis};
use crate::verdict::{LIMIT, Scene};

const PARTITIONS: i32 = 8;
/// Messages per second. At this rate the messages take six seconds.
const RATE: i64 = 500;
const MESSAGES: usize = 3_000;

/// The time at which the broker stored the record that came last, and the time of the first one.
fn last_and_first(records: &[Record]) -> (i64, i64) {
    let times = || records.iter().map(|record| record.timestamp);
    (times().max().unwrap(), times().min().unwrap())
}

/// Messages that the rate of the route has delayed, as both processes count them.
fn delayed(processes: &[Postdate], route: &str) -> f64 {
    let name = "postdate_rate_lateness_seconds_count";
    let counts = processes.iter().map(|it| it.metrics());
    counts
        .map(|it| it.sum_where(name, &[("route", route)]))
        .sum()
}

/// True if `postdate pending` says that the rate holds messages of the route back.
fn is_held_back(postdate: &Postdate) -> bool {
    let output = postdate.command(&["pending"]);
    let text = String::from_utf8_lossy(&output.stdout);
    text.contains("route r: its rate holds due messages back")
}

#[test]
fn two_processes_keep_to_the_rate_of_a_route_and_other_routes_do_not_wait_for_it() {
    let mut scene = Scene::new(kafka(), "rate", PARTITIONS);
    let (other, target) = (
        format!("{}.other", scene.deployment),
        format!("{}.other.target", scene.deployment),
    );
    kafka().create_topic(&other, PARTITIONS, &[]);
    let stamped = [("message.timestamp.type", "LogAppendTime")];
    kafka().create_topic(&target, PARTITIONS, &stamped);
    let more = format!(
        r#"rate = {RATE}
[route.other]
source = {{ kafka = "main", topics = ["{other}"] }}
target = {{ kafka = "main", topic = "{target}" }}
dead_letter = {{ kafka = "main", topic = "{}.dead" }}
"#,
        scene.deployment
    );
    let config = scene.config_with(redis(), &more);
    let processes = [Postdate::ready_with(&config), Postdate::ready_with(&config)];
    let sink = scene.sink();
    let other_sink = Sink::start(kafka().addr(), &[&target]);

    let due = now_ms() + 6_000;
    scene.send(MESSAGES, 6_000..6_001);
    let producer = Producer::start(kafka().addr());
    for number in 0..MESSAGES {
        let partition = i32::try_from(number).unwrap() % PARTITIONS;
        let message = Outgoing::to(&other)
            .partition(partition)
            .key("k")
            .header("uid", number.to_string())
            .header("postdate-at", due.to_string());
        producer.send(&message);
    }
    producer.flush();

    eventually("pending names the limited route", LIMIT, || {
        is_held_back(&processes[0]).then_some(())
    });
    let others = other_sink.wait_for(MESSAGES, LIMIT);
    assert_eq!(scene.all_arrive(&sink), 0, "duplicates");
    let limited = sink.records();
    assert_eq!((others.len(), limited.len()), (MESSAGES, MESSAGES));
    let (last, first) = last_and_first(&limited);
    let (others_end, _) = last_and_first(&others);
    assert!(
        others_end < last,
        "the other route waited for the limited one"
    );
    // Each process may send a tenth of a second of its share at once.
    let took = last - first;
    eprintln!("{took} ms for {MESSAGES} at {RATE} a second");
    let least = (MESSAGES as i64 - RATE / 10) * 1_000 / RATE;
    assert!(took >= least * 9 / 10, "{took} ms: faster than the rate");
    let parts = processes.each_ref().map(|process| {
        let delivered = "postdate_delivered_total";
        process.metrics().sum_where(delivered, &[("route", "r")])
    });
    assert!(
        parts.iter().all(|part| *part > MESSAGES as f64 / 4.0),
        "{parts:?}: one of them sent almost all"
    );
    assert!(delayed(&processes, "r") > MESSAGES as f64 / 2.0);
    assert_eq!(delayed(&processes, "other"), 0.0);
    eventually("the limited route is up to date", LIMIT, || {
        (!is_held_back(&processes[1])).then_some(())
    });
}
