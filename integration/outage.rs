//! Tests servers that fail, lose data or fill up: the service recovers without help from an
//! operator.
//!
//! It notices by itself, and reads messages that the store has lost again from the source log.

use std::time::{Duration, Instant};

use crate::env::{
    Kafka, Outgoing, Postdate, Producer, Redis, Sink, eventually, kafka, now_ms, redis,
};
use crate::verdict::{
    LIMIT, Lateness, Scene, ledger, number, wait_for_complaint, wait_until_ready,
};

/// Allowed extra lateness in milliseconds while other messages fail.
const ROOM: i64 = 200;

/// Maximum time until `/readyz` reports that a broker does not answer.
const NOTICED: Duration = Duration::from_secs(5);

#[test]
fn a_killed_and_restarted_redis_loses_nothing() {
    let mut redis = Redis::start();
    let mut scene = Scene::new(kafka(), "redis_killed", 2);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(&redis));
    scene.send(600, 0..4_000);
    sink.wait_for(100, LIMIT);
    redis.kill();
    scene.send(600, 0..4_000);
    wait_for_complaint(&postdate, &["the store is unavailable"]);
    redis.restart();
    let duplicates = scene.all_arrive(&sink);
    // The append-only file keeps every write. The same timer continues and knows its deliveries.
    assert!(duplicates <= 100, "{duplicates} duplicates");
    wait_until_ready(&postdate);
    scene.ledger_says_all_once(&postdate);
}

#[test]
fn a_rolled_back_redis_is_rebuilt_from_the_source_log() {
    let mut redis = Redis::start();
    let mut scene = Scene::new(kafka(), "rolled_back", 2);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(&redis));
    scene.send(600, 0..6_000);
    sink.wait_for(100, LIMIT);
    let snapshot = redis.snapshot();
    scene.send(600, 0..6_000);
    scene.wait_until_stored(&postdate, 1_200);
    let delivered = sink.wait_for(300, LIMIT).len();
    redis.roll_back_to(&snapshot);
    let duplicates = scene.all_arrive(&sink);
    // The same timer continues and knows its deliveries since the snapshot.
    assert!(
        duplicates <= delivered,
        "{duplicates} duplicates, more than the {delivered} that had been delivered"
    );
    wait_until_ready(&postdate);
    scene.ledger_says_none_twice(&postdate);
}

#[test]
fn an_emptied_redis_is_rebuilt_from_the_source_log() {
    let mut redis = Redis::start();
    let mut scene = Scene::new(kafka(), "emptied", 2);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(&redis));
    scene.send(600, 0..6_000);
    scene.wait_until_stored(&postdate, 600);
    let delivered = sink.wait_for(200, LIMIT).len();
    redis.flush_all();
    scene.send(600, 0..4_000);
    let duplicates = scene.all_arrive(&sink);
    assert!(duplicates <= delivered + 600, "{duplicates} duplicates");
    wait_until_ready(&postdate);
    scene.ledger_says_none_twice(&postdate);
}

#[test]
fn a_redis_emptied_while_no_process_runs_is_rebuilt_from_the_commit_metadata() {
    let mut redis = Redis::start();
    let mut scene = Scene::new(kafka(), "emptied_alone", 2);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config(&redis));
    scene.send(400, 0..1_000);
    scene.send(400, 10_000..12_000);
    let delivered = sink.wait_for(400, LIMIT).len();
    // The waiting messages have offsets below the committed one. Only the commit metadata tells
    // where to start.
    eventually("all is committed", LIMIT, || {
        (0..2)
            .all(|partition| scene.committed(partition).0 == 400)
            .then_some(())
    });
    postdate.kill();
    redis.flush_all();
    scene.send(200, 0..1_000);
    postdate.restart();
    let duplicates = scene.all_arrive(&sink);
    // The commit metadata is at most a second old. Deliveries after it may repeat, and here that
    // may be all of them.
    assert!(duplicates <= delivered, "{duplicates} duplicates");
    scene.ledger_says_none_twice(&postdate);
}

#[test]
fn a_full_redis_keeps_delivering_and_stores_more_when_it_has_room() {
    let mut redis = Redis::start();
    let mut scene = Scene::new(kafka(), "full", 2);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(&redis));
    scene.send(300, 3_000..6_000);
    scene.wait_until_stored(&postdate, 300);
    redis.set_maxmemory(1);
    scene.send(300, 0..1_000);
    wait_for_complaint(&postdate, &["the store is full", "maxmemory"]);
    sink.wait_for(300, LIMIT);
    // Only messages that were stored before have arrived. The rest waits in the source log.
    assert!(sink.records().iter().all(|record| number(record) < 300));
    assert!(!postdate.ready());
    redis.set_maxmemory(0);
    scene.all_arrive(&sink);
    wait_until_ready(&postdate);
    scene.ledger_says_all_once(&postdate);
}

#[test]
fn a_killed_and_restarted_kafka_loses_nothing() {
    let mut kafka = Kafka::start();
    let mut scene = Scene::new(&kafka, "kafka_killed", 2);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(redis()));
    scene.send(600, 0..8_000);
    scene.wait_until_stored(&postdate, 600);
    sink.wait_for(100, LIMIT);
    let killed = Instant::now();
    kafka.kill();
    scene.load(600, 0..8_000);
    wait_for_complaint(&postdate, &["kafka.main does not answer", kafka.addr()]);
    let took = killed.elapsed();
    assert!(
        took < NOTICED,
        "it took {took:?} to notice that the broker is dead"
    );
    kafka.restart();
    scene.flush();
    let duplicates = scene.all_arrive(&sink);
    // Only messages in flight when the broker died may be duplicates.
    assert!(duplicates <= 300, "{duplicates} duplicates");
    wait_until_ready(&postdate);
    scene.ledger_says_all_once(&postdate);
}

#[test]
fn an_outage_longer_than_the_send_timeout_causes_no_retries_or_dead_letters() {
    let kafka = Kafka::start();
    let mut scene = Scene::new(&kafka, "kafka_long", 2);
    let sink = scene.sink();
    let config = scene.config(redis()).replace(
        "[route.r]",
        "properties = { \"message.timeout.ms\" = 11000 }\n[route.r]",
    );
    let postdate = Postdate::ready_with(&config);
    scene.send(600, 0..6_000);
    scene.wait_until_stored(&postdate, 600);
    kafka.pause();
    // A message is sent again after the client has given up its send.
    let given_up = || postdate.metrics().sum("postdate_possible_duplicates_total") > 0.0;
    eventually("sends are given up", LIMIT, || given_up().then_some(()));
    kafka.resume();
    scene.all_arrive(&sink);
    wait_until_ready(&postdate);
    for diverted in ["postdate_retried_total", "postdate_dead_lettered_total"] {
        assert!(postdate.metrics().sum(diverted) < 0.5, "{diverted}");
    }
    scene.ledger_says_all_once(&postdate);
}

#[test]
fn a_process_stops_cleanly_and_in_time_without_its_broker() {
    let mut kafka = Kafka::start();
    let mut scene = Scene::new(&kafka, "kafka_away", 2);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config(redis()));
    for in_flight in [true, false] {
        // Due messages are claimed but cannot be delivered. The offsets of stored messages cannot
        // be committed.
        scene.send(1_000, if in_flight { 0..3_000 } else { 60_000..70_000 });
        scene.wait_until_stored(&postdate, 1_000);
        // An offset commit is in flight when the broker dies.
        kafka.pause();
        std::thread::sleep(Duration::from_millis(1_500));
        kafka.kill();
        wait_for_complaint(&postdate, &["kafka.main does not answer"]);
        let (status, took) = postdate.terminate();
        assert!(status.success(), "{status}");
        eprintln!("in flight: {in_flight}; ended after {took:?}");
        assert!(
            took < Duration::from_secs(10),
            "it took {took:?} to end without a broker"
        );
        let logs = postdate.logs();
        assert!(!logs.contains("is abandoned"), "a client does not end");
        kafka.restart();
        postdate.restart();
        if in_flight {
            scene.all_arrive(&sink);
            scene.ledger_says_all_once(&postdate);
        }
    }
    let total = ledger(&scene.deployment, &postdate, |total| {
        total["accepted"] == 2_000
    });
    assert_eq!(
        (&total["pending"], &total["unsure"]),
        (&1_000.into(), &false.into()),
        "{total}"
    );
}

#[test]
fn a_silent_broker_is_noticed_soon_and_costs_no_partition() {
    let kafka = Kafka::start();
    let mut scene = Scene::new(&kafka, "kafka_silent", 2);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(redis()));
    scene.send(600, 0..8_000);
    sink.wait_for(100, LIMIT);
    let paused = Instant::now();
    kafka.pause();
    wait_for_complaint(&postdate, &["kafka.main does not answer"]);
    let took = paused.elapsed();
    assert!(
        took < NOTICED,
        "it took {took:?} to notice that the broker is silent"
    );
    let stalled = || postdate.metrics().sum("postdate_stalled_seconds");
    eventually("what was handed over is told to stand still", LIMIT, || {
        (stalled() >= 3.0).then_some(())
    });
    kafka.resume();
    wait_until_ready(&postdate);
    let logs = postdate.logs();
    assert!(!logs.contains("partition revoked"), "{logs}");
    let part = "source client of kafka.main";
    let outages = logs.lines().filter(|line| {
        line.contains(part) && line.contains("not ready: kafka.main does not answer")
    });
    assert_eq!(outages.count(), 1, "an outage is said once");
    let duplicates = scene.all_arrive(&sink);
    assert!(duplicates <= 600, "{duplicates} duplicates");
    eventually("nothing stands still", LIMIT, || {
        (stalled() == 0.0).then_some(())
    });
    scene.ledger_says_all_once(&postdate);
}

#[test]
fn a_process_without_a_partition_is_ready() {
    let mut scene = Scene::new(kafka(), "spare", 1);
    let config = scene.config(redis());
    let [first, second] = [(); 2].map(|()| Postdate::ready_with(&config));
    let reads = |worker: &Postdate| {
        let logs = worker.logs();
        let count = |what| logs.matches(what).count();
        count("partition assigned") > count("partition revoked")
    };
    eventually("one of them reads the partition", LIMIT, || {
        (reads(&first) != reads(&second)).then_some(())
    });
    let (mut reader, mut spare) = if reads(&first) {
        (first, second)
    } else {
        (second, first)
    };
    spare.wait_until_ready();
    let (status, _) = reader.terminate();
    assert!(status.success(), "{status}");
    let sink = scene.sink();
    scene.send(50, 0..500);
    scene.all_arrive(&sink);
    spare.wait_until_ready();
    scene.ledger_says_all_once(&spare);
}

#[test]
fn a_missing_target_topic_is_named_while_other_work_continues() {
    let mut scene = Scene::new(kafka(), "no_target", 1);
    let retry = "[route.r.retry]\nbackoff = \"500ms\"\nbackoff_max = \"1s\"\nmax_attempts = 1000";
    let postdate = Postdate::ready_with(&scene.config_with(redis(), retry));
    kafka().delete_topic(&scene.target);
    scene.send(20, 0..500);
    let named = format!("`{}` (unknown_target)", scene.target);
    let degraded = || {
        postdate
            .get("/readyz")
            .filter(|(_, body)| body.contains("degraded"))
    };
    let (status, body) = eventually("the topic is named", LIMIT, degraded);
    assert_eq!(status, 200, "{body}");
    assert!(body.contains(&named), "{body}");
    let logs = postdate.logs();
    assert!(
        logs.lines().any(|line| line.contains("WARN")
            && line.contains(&scene.target)
            && line.contains("unknown_target")),
        "{logs}"
    );
    kafka().create_topic(
        &scene.target,
        1,
        &[("message.timestamp.type", "LogAppendTime")],
    );
    let sink = scene.sink();
    assert_eq!(scene.all_arrive(&sink), 0);
    eventually("nothing is amiss any more", LIMIT, || {
        degraded().is_none().then_some(())
    });
    scene.ledger(&postdate);
}

/// Tests one route in one process. A failing message is in flight for seconds until its client
/// gives up. Then it goes back through the source as a retry.
#[test]
fn messages_to_a_failing_target_make_no_others_late() {
    const FAILING: usize = 400;
    let mut scene = Scene::new(kafka(), "one_fails", 2);
    let missing = format!("{}.missing", scene.deployment);
    let more = format!(
        "allow = [\"{}\", \"{missing}\"]\n[route.r.retry]\nbackoff = \"2s\"\nbackoff_max = \"2s\"\nmax_attempts = 1000",
        scene.target
    );
    let postdate = Postdate::ready_with(&scene.config_with(redis(), &more));
    let sink = scene.sink();
    let start = now_ms();
    scene.send(5_000, 2_000..17_000);
    // The failing messages are due from the sixth second on, in the first of two partitions.
    let producer = Producer::start(kafka().addr());
    for index in 0..FAILING {
        let due = start + 6_000 + 10 * index as i64;
        let record = Outgoing::to(&scene.source)
            .partition(0)
            .key("k")
            .header("uid", index.to_string());
        producer.send(
            &record
                .header("postdate-at", due.to_string())
                .header("postdate-to", &missing),
        );
    }
    producer.flush();
    assert_eq!(scene.all_arrive(&sink), 0);
    let retried = postdate.metrics().sum("postdate_retried_total");
    assert!(retried >= FAILING as f64, "only {retried} failed");
    let records = sink.records();
    for (partition, words) in ["of the same partition", "of the other partition"]
        .into_iter()
        .enumerate()
    {
        let of = || {
            records
                .iter()
                .filter(|record| number(record) % 2 == partition)
        };
        let before = Lateness::of(
            &format!("{words} before a target fails"),
            of(),
            start + 2_000..start + 6_000,
        );
        let during = Lateness::of(
            &format!("{words} meanwhile"),
            of(),
            start + 6_000..start + 17_000,
        );
        assert!(
            during.at(990) <= before.at(990) + ROOM
                && during.greatest() <= before.greatest() + 4 * ROOM,
            "{words}"
        );
    }
    kafka().create_topic(&missing, 1, &[]);
    let mut late: Vec<_> = Sink::start(kafka().addr(), &[&missing])
        .wait_for(FAILING, LIMIT)
        .iter()
        .map(number)
        .collect();
    late.sort_unstable();
    assert!(
        late.into_iter().eq(0..FAILING),
        "each arrives when it can, and once"
    );
    let total = scene.ledger(&postdate);
    let told = ["delivered", "dead_lettered", "quarantined", "cancelled"]
        .map(|count| total[count].as_u64().unwrap());
    assert_eq!(told, [5_000 + FAILING as u64, 0, 0, 0], "{total}");
}

#[test]
fn a_redis_rolled_back_while_no_process_runs_is_rebuilt_from_the_source_log() {
    let mut redis = Redis::start();
    let mut scene = Scene::new(kafka(), "rolled_back_alone", 2);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config(&redis));
    scene.send(200, 0..1_000);
    scene.send(200, 8_000..10_000);
    sink.wait_for(200, LIMIT);
    let snapshot = redis.snapshot();
    scene.send(400, 0..1_000);
    let delivered = sink.wait_for(600, LIMIT).len();
    postdate.kill();
    redis.roll_back_to(&snapshot);
    scene.send(200, -1_000..1_000);
    postdate.restart();
    let duplicates = scene.all_arrive(&sink);
    assert!(duplicates <= delivered, "{duplicates} duplicates");
    wait_until_ready(&postdate);
    scene.ledger_says_none_twice(&postdate);
}

#[test]
fn a_temporarily_silent_redis_loses_nothing() {
    let redis = Redis::start();
    let mut scene = Scene::new(kafka(), "silent", 2);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config(&redis));
    scene.send(600, 0..8_000);
    sink.wait_for(100, LIMIT);
    redis.pause();
    wait_for_complaint(&postdate, &["did not answer in time"]);
    redis.resume();
    let duplicates = scene.all_arrive(&sink);
    assert!(duplicates <= 100, "{duplicates} duplicates");
    wait_until_ready(&postdate);
    scene.ledger_says_all_once(&postdate);
}
