//! Tests `delivery = "exactly-once"`: a read-committed consumer sees every message once, despite
//! failures.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::env::{
    Kafka, KafkaCluster, Outgoing, Postdate, Producer, Record, Redis, Sink, eventually, kafka,
    now_ms, redis,
};
use crate::verdict::{LIMIT, Scene, number, wait_for_complaint, wait_until_ready};

const EXACTLY_ONCE: &str = "delivery = \"exactly-once\"\n";

#[test]
fn a_process_that_is_killed_repeatedly_duplicates_nothing() {
    let mut scene = Scene::new(kafka(), "exact_killed", 2);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config_with(redis(), EXACTLY_ONCE));
    scene.survives_kills(&sink, &mut postdate);
    assert_eq!(scene.duplicates_at_the_end(), 0);
}

#[test]
fn workers_that_are_killed_and_restarted_in_turn_duplicate_nothing() {
    let mut scene = Scene::new(kafka(), "exact_loop", 8);
    let sink = scene.sink();
    let config = scene.config_with(redis(), EXACTLY_ONCE);
    let mut workers = [(); 3].map(|()| Postdate::ready_with(&config));
    assert_eq!(scene.survives_crash_loop(&sink, &mut workers), 0);
    assert_eq!(scene.duplicates_at_the_end(), 0);
}

#[test]
fn a_worker_resumed_after_its_lease_commits_nothing_that_another_has_delivered() {
    let mut scene = Scene::new(kafka(), "exact_frozen", 8);
    let sink = scene.sink();
    let config = scene.config_with(redis(), &format!("{EXACTLY_ONCE}[timer]\nlease = \"2s\""));
    let (first, second) = (Postdate::ready_with(&config), Postdate::ready_with(&config));
    let held = |postdate: &Postdate| postdate.metrics().sum("postdate_leases_held");
    eventually("both have their part", LIMIT, || {
        (held(&first) == 4.0 && held(&second) == 4.0).then_some(())
    });
    for _ in 0..2 {
        let arrived = sink.records().len();
        scene.send(4_000, 1_000..9_000);
        sink.wait_for(arrived + 400, LIMIT);
        second.pause();
        eventually("its shards are taken", LIMIT, || {
            (held(&first) == 8.0).then_some(())
        });
        sink.wait_for(arrived + 2_000, LIMIT);
        second.resume();
        eventually("it has its part again", LIMIT, || {
            (held(&second) == 4.0).then_some(())
        });
        assert_eq!(scene.all_arrive(&sink), 0);
    }
    assert_eq!(scene.duplicates_at_the_end(), 0);
    // The marker carries the counts that the frozen worker could not write to the store.
    scene.ledger_says_all_once(&first);
}

#[test]
fn a_rolled_back_or_emptied_redis_causes_no_duplicates() {
    let mut redis = Redis::start();
    let mut scene = Scene::new(kafka(), "exact_redis", 2);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config_with(&redis, EXACTLY_ONCE));
    scene.send(600, 0..6_000);
    sink.wait_for(100, LIMIT);
    let snapshot = redis.snapshot();
    scene.send(600, 0..6_000);
    scene.wait_until_stored(&postdate, 1_200);
    sink.wait_for(300, LIMIT);
    redis.roll_back_to(&snapshot);
    assert_eq!(scene.all_arrive(&sink), 0, "after a rollback");
    wait_until_ready(&postdate);
    scene.ledger_says_none_twice(&postdate);
    scene.send(600, 0..4_000);
    scene.wait_until_stored(&postdate, 1_800);
    sink.wait_for(1_400, LIMIT);
    // The process is lost together with the store. Only the brokers keep state.
    postdate.kill();
    redis.flush_all();
    scene.send(200, 0..1_000);
    postdate.restart();
    assert_eq!(scene.all_arrive(&sink), 0, "after the loss of everything");
    scene.ledger_says_none_twice(&postdate);
    redis.flush_all();
    scene.send(600, 0..4_000);
    assert_eq!(scene.all_arrive(&sink), 0, "after another loss");
    assert_eq!(scene.duplicates_at_the_end(), 0);
    scene.ledger_says_none_twice(&postdate);
}

#[test]
fn a_killed_broker_causes_no_duplicates() {
    let mut kafka = KafkaCluster::start(3);
    let mut scene = Scene::on_cluster(&kafka, "exact_kafka", 2);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config_with(redis(), EXACTLY_ONCE));
    for round in 1..=2 {
        scene.send(600, 0..6_000);
        sink.wait_for(round * 600 - 500, LIMIT);
        kafka.nodes[round].kill();
        kafka.nodes[round].restart();
        assert_eq!(scene.all_arrive(&sink), 0);
    }
    wait_until_ready(&postdate);
    assert_eq!(scene.duplicates_at_the_end(), 0);
    scene.ledger_says_all_once(&postdate);
}

/// A clean shutdown of a broker does not always end open transactions first.
#[test]
fn a_clean_shutdown_of_a_broker_loses_and_duplicates_nothing() {
    let mut kafka = KafkaCluster::start(3);
    let mut scene = Scene::on_cluster(&kafka, "exact_stopped", 2);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config_with(redis(), EXACTLY_ONCE));
    for round in 1..=3 {
        scene.send(3_000, 0..6_000);
        sink.wait_for(round * 3_000 - 2_500, LIMIT);
        kafka.nodes[round - 1].stop();
        kafka.nodes[round - 1].restart();
        assert_eq!(scene.all_arrive(&sink), 0);
    }
    wait_until_ready(&postdate);
    assert_eq!(scene.duplicates_at_the_end(), 0);
    scene.ledger_says_all_once(&postdate);
}

/// A foreign producer leaves a transaction open on the target, and on the source, where retries go.
/// Consumers of committed messages wait behind it.
#[test]
fn a_transaction_that_stays_open_is_reported_until_it_ends() {
    let mut scene = Scene::new(kafka(), "exact_open", 1);
    let sink = scene.sink();
    let postdate = Postdate::ready_with(&scene.config_with(redis(), EXACTLY_ONCE));
    scene.send(1, 0..1);
    sink.wait_for(1, LIMIT);
    let producer = Producer::transactional(kafka().addr(), &format!("{}-open", scene.deployment));
    producer.begin();
    let topics = [scene.source.clone(), scene.target.clone()];
    for topic in &topics {
        producer.send(&Outgoing::to(topic).partition(0).header("uid", "never"));
    }
    producer.flush();
    scene.send(1, 0..1);
    let wait_for_log = |text: &str| {
        eventually(text, 2 * LIMIT, || {
            let logs = postdate.logs();
            let is_named = |topic: &&String| {
                let mut lines = logs.lines();
                lines.any(|line| line.contains(text) && line.contains(topic.as_str()))
            };
            (topics.iter().filter(is_named).count() == 2).then_some(())
        });
    };
    wait_for_log("a hanging transaction");
    producer.abort();
    wait_for_log("the open transaction on a partition has ended");
    assert_eq!(scene.all_arrive(&sink), 0);
    assert_eq!(scene.duplicates_at_the_end(), 0);
}

/// A foreign producer whose transaction is aborted.
fn produce_in_vain(scene: &Scene, addr: &str) {
    let producer = Producer::transactional(addr, &format!("{}-in-vain", scene.deployment));
    producer.begin();
    for _ in 0..10 {
        producer.send(
            &Outgoing::to(&scene.source)
                .partition(0)
                .header("uid", "never")
                .header("postdate-after", "100ms"),
        );
    }
    producer.flush();
    producer.abort();
}

#[test]
fn refused_messages_become_dead_letters_once_and_aborted_records_are_ignored() {
    let mut scene = Scene::new(kafka(), "exact_refused", 2);
    let sink = scene.sink();
    let (small, missing, dead) = (
        format!("{}.small", scene.deployment),
        format!("{}.missing", scene.deployment),
        format!("{}.dead", scene.deployment),
    );
    kafka().create_topic(&small, 1, &[("max.message.bytes", "2000")]);
    let more = format!(
        "{EXACTLY_ONCE}allow = [\"{small}\", \"{missing}\"]\nretry = {{ max_attempts = 2, backoff = \"200ms\" }}"
    );
    let postdate = Postdate::ready_with(&scene.config_with(redis(), &more));
    let producer = Producer::start(kafka().addr());
    let due = now_ms() + 3_000;
    let wanted = 200;
    for index in 0..wanted {
        let record = Outgoing::to(&scene.source)
            .partition(index % 2)
            .header("uid", index.to_string())
            .header("postdate-at", due.to_string());
        let record = match index % 20 {
            7 => record.header("postdate-to", &small).payload([b'x'; 4_000]),
            13 => record.header("postdate-to", &missing),
            _ => record.header("postdate-to", &small),
        };
        producer.send(&record);
        if index == 50 {
            producer.flush();
            produce_in_vain(&scene, kafka().addr());
        }
    }
    producer.flush();
    scene.send(400, 2_000..6_000);
    assert_eq!(scene.all_arrive(&sink), 0);
    let count = |topic: &str| {
        let mut times: BTreeMap<usize, usize> = BTreeMap::new();
        Sink::read_to_end(kafka().addr(), topic)
            .iter()
            .for_each(|record| *times.entry(number(record)).or_default() += 1);
        times
    };
    let expected = |goes: fn(usize) -> bool| {
        (0..wanted as usize)
            .filter(|index| goes(index % 20))
            .map(|index| (index, 1))
            .collect()
    };
    let (taken, refused): (BTreeMap<_, _>, BTreeMap<_, _>) = (
        expected(|kind| kind != 7 && kind != 13),
        expected(|kind| kind == 7 || kind == 13),
    );
    eventually("all went their way", LIMIT, || {
        (count(&small).len() >= taken.len() && count(&dead).len() >= refused.len()).then_some(())
    });
    assert_eq!((count(&small), count(&dead)), (taken, refused));
    assert_eq!(scene.duplicates_at_the_end(), 0);
    let total = scene.ledger(&postdate);
    // Each message for the missing topic was retried once through the source, and was accepted
    // again.
    let told = ["accepted", "delivered", "dead_lettered", "sent_back"]
        .map(|count| total[count].as_u64().unwrap());
    assert_eq!(told, [610, 580, 20, 10], "{total}");
    let metrics = postdate.metrics();
    assert!(
        metrics.sum("postdate_transactions_aborted_total") > 0.0
            && metrics.sum("postdate_transactions_committed_total") > 0.0
    );
}

#[test]
fn a_route_over_two_clusters_is_refused_at_start() {
    let scene = Scene::new(kafka(), "exact_two", 1);
    let config = scene.config_with(
        redis(),
        &format!("{EXACTLY_ONCE}[kafka.other]\nbrokers = [\"127.0.0.1:1\"]"),
    );
    let target = format!(
        "target = {{ kafka = \"main\", topic = \"{}\" }}",
        scene.target
    );
    assert!(config.contains(&target));
    let mut postdate = Postdate::start(&config.replace(&target, &target.replace("main", "other")));
    assert!(!postdate.wait_until_ended().success());
    let logs = postdate.logs();
    assert!(
        logs.contains("exactly-once needs one cluster")
            && logs.contains("no transaction spans both"),
        "{logs}"
    );
}

#[test]
fn an_idle_shard_needs_no_producer_and_a_stopped_one_leaves_nothing_in_flight() {
    let mut scene = Scene::new(kafka(), "exact_idle", 4);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config_with(redis(), EXACTLY_ONCE));
    scene.send(400, 500..3_000);
    sink.wait_for(100, LIMIT);
    let (status, took) = postdate.terminate();
    assert_eq!(status.code(), Some(0), "{}", postdate.logs());
    assert!(took < Duration::from_secs(10), "{took:?}");
    postdate.restart();
    assert_eq!(scene.all_arrive(&sink), 0);
    assert_eq!(scene.duplicates_at_the_end(), 0);
    scene.ledger_says_all_once(&postdate);
}

/// Delivered messages and dead letters arrive once each, in the order of (due, offset). Together
/// they keep to the catch-up rate.
#[test]
fn after_a_long_stop_overdue_messages_become_dead_letters_once_at_the_catch_up_rate() {
    const RATE: usize = 100;
    const OVERDUE: i64 = 10_000;
    let mut scene = Scene::new(kafka(), "exact_overdue", 1);
    let dead = format!("{}.dead", scene.deployment);
    let late = format!(
        "{EXACTLY_ONCE}overdue = \"dead-letter\"\noverdue_after = \"{OVERDUE}ms\"\ncatch_up_rate = {RATE}"
    );
    let mut postdate = Postdate::ready_with(&scene.config_with(redis(), &late));
    // The due times of each second batch lie among those of the first batch.
    (0..2).for_each(|_| scene.send(50, 2_000..2_100));
    (0..2).for_each(|_| scene.send(150, 8_500..8_600));
    scene.wait_until_stored(&postdate, 400);
    postdate.kill();
    let all_behind = scene.due(399).max(scene.due(99) + OVERDUE);
    eventually("some are overdue, the others behind", LIMIT, || {
        (now_ms() > all_behind + 1_000).then_some(())
    });
    postdate.restart();
    let total = scene.ledger(&postdate);
    let [accepted, delivered, dead_lettered] =
        ["accepted", "delivered", "dead_lettered"].map(|count| total[count].as_u64().unwrap());
    assert_eq!((accepted, delivered + dead_lettered), (400, 400), "{total}");

    let [arrived, letters] =
        [&scene.target, &dead].map(|topic| Sink::read_to_end(kafka().addr(), topic));
    let mut all: Vec<_> = arrived.iter().chain(&letters).map(number).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..400), "each comes once");
    assert!(
        letters.len() >= 100 && arrived.len() >= 100,
        "{} dead letters",
        letters.len()
    );
    assert!(
        letters
            .iter()
            .all(|letter| letter.header("postdate-error") == Some("overdue")),
        "{letters:?}"
    );
    let lateness = |record: &Record| record.timestamp - scene.due(number(record));
    assert!(
        letters.iter().all(|letter| lateness(letter) >= OVERDUE),
        "{letters:?}"
    );
    // The overdue check runs at the first delivery attempt. The message may arrive some
    // transactions later.
    assert!(
        arrived
            .iter()
            .all(|record| lateness(record) < OVERDUE + 2_000),
        "{arrived:?}"
    );
    for records in [&arrived, &letters] {
        assert!(
            records
                .iter()
                .map(|record| (scene.due(number(record)), number(record)))
                .is_sorted(),
            "by due and offset"
        );
    }
    let times = || {
        arrived
            .iter()
            .chain(&letters)
            .map(|record| record.timestamp)
    };
    let took = times().max().unwrap() - times().min().unwrap();
    eprintln!("{delivered} delivered and {dead_lettered} dead letters in {took} ms");
    assert!(
        (3_200..12_000).contains(&took),
        "{took} ms for 400 at {RATE} a second"
    );
}

/// A transaction is open when all brokers fail, so its client cannot end it.
#[test]
fn a_process_stops_cleanly_and_in_time_when_its_brokers_fail() {
    let mut kafka = KafkaCluster::start(3);
    let mut scene = Scene::on_cluster(&kafka, "exact_away", 4);
    let sink = scene.sink();
    let mut postdate = Postdate::ready_with(&scene.config_with(redis(), EXACTLY_ONCE));
    let mut complaints = Vec::new();
    for what in ["killed", "killed for a while", "silent", "starting"] {
        let said = postdate.logs().len();
        let arrived = sink.records().len();
        scene.send(2_000, 0..4_000);
        sink.wait_for(arrived + 300, LIMIT);
        for node in &mut kafka.nodes {
            match what {
                "silent" => node.pause(),
                _ => node.kill(),
            }
        }
        let (status, took) = std::thread::scope(|scope| {
            if what == "killed for a while" {
                wait_for_complaint(&postdate, &["kafka.main does not answer"]);
            }
            if what == "starting" {
                let addr = kafka.nodes[0].addr().to_owned();
                scope.spawn(|| kafka.restart_all());
                eventually("it accepts connections", LIMIT, || {
                    std::net::TcpStream::connect(&addr).ok()
                });
            }
            postdate.terminate()
        });
        let logs = postdate.logs().split_off(said);
        eprintln!("{what}: ended with {status} after {took:?}");
        if !status.success() || took > Duration::from_secs(10) {
            complaints.push(format!("{what}: {status} after {took:?}:\n{logs}"));
        }
        match what {
            "silent" => kafka.nodes.iter().for_each(Kafka::resume),
            "starting" => {}
            _ => kafka.restart_all(),
        }
        postdate.restart();
        assert_eq!(scene.all_arrive(&sink), 0, "{what}");
    }
    assert_eq!(scene.duplicates_at_the_end(), 0);
    scene.ledger_says_all_once(&postdate);
    assert!(complaints.is_empty(), "{}", complaints.join("\n\n"));
}
