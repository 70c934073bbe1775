//! Tests the rate of a route: two processes share it, and it delays no other route.

use crate::env::{Outgoing, Postdate, Producer, Record, Sink, kafka, now_ms, redis};
use crate::verdict::{LIMIT, Scene};

const PARTITIONS: i32 = 8;
/// Messages per second. At this rate the messages take four seconds.
const RATE: usize = 100;
const MESSAGES: usize = 400;
/// The greatest number of arrivals in a second: the rate, a burst of each process, messages that were claimed
/// ahead, and those that a slow machine sends late.
const MOST: usize = RATE * 3 / 2;

/// The times at which the broker stored the records, in order.
fn times(records: &[Record]) -> Vec<i64> {
    let mut times: Vec<_> = records.iter().map(|record| record.timestamp).collect();
    times.sort_unstable();
    times
}

/// The greatest number of records within a second.
fn most_in_a_second(times: &[i64]) -> usize {
    let ends = (times.iter()).map(|from| times.partition_point(|at| *at < from + 1_000));
    let counts = ends.enumerate().map(|(start, end)| end - start);
    counts.max().unwrap_or(0)
}

/// Messages of the route that the rate has delayed, as both processes count them.
fn delayed(processes: &[Postdate], route: &str) -> f64 {
    let name = "postdate_rate_lateness_seconds_count";
    let counts = processes.iter().map(|it| it.metrics());
    counts
        .map(|it| it.sum_where(name, &[("route", route)]))
        .sum()
}

#[test]
fn two_processes_keep_to_the_rate_of_a_route_and_other_routes_do_not_wait_for_it() {
    let mut scene = Scene::new(kafka(), "rate", PARTITIONS);
    let deployment = scene.deployment.clone();
    let (other, target) = (
        format!("{deployment}.other"),
        format!("{deployment}.other.target"),
    );
    kafka().create_topic(&other, PARTITIONS, &[]);
    let stamped = [("message.timestamp.type", "LogAppendTime")];
    kafka().create_topic(&target, PARTITIONS, &stamped);
    let more = format!(
        r#"rate = {RATE}
[route.other]
source = {{ kafka = "main", topics = ["{other}"] }}
target = {{ kafka = "main", topic = "{target}" }}
dead_letter = {{ kafka = "main", topic = "{deployment}.dead" }}
"#
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

    let others = times(&other_sink.wait_for(MESSAGES, LIMIT));
    assert_eq!(scene.all_arrive(&sink), 0, "duplicates");
    let limited = times(&sink.records());
    assert_eq!((others.len(), limited.len()), (MESSAGES, MESSAGES));
    assert!(
        others.last() < limited.last(),
        "the other route waited for the limited one"
    );
    let most = most_in_a_second(&limited);
    eprintln!("at most {most} in a second, at a rate of {RATE}");
    assert!(most <= MOST, "{most} in a second");
    let parts = processes.each_ref().map(|process| {
        let delivered = "postdate_delivered_total";
        process.metrics().sum_where(delivered, &[("route", "r")])
    });
    // Each sends in proportion to its shards.
    assert!(parts.iter().all(|part| *part > 0.0), "{parts:?}");
    assert!(delayed(&processes, "r") > MESSAGES as f64 / 2.0);
    assert_eq!(delayed(&processes, "other"), 0.0);
}
