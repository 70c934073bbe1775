//! Tests the outcome records of a route with a stock consumer: on Kafka with both kinds of delivery, and on NATS.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::env::{
    KafkaCluster, Outgoing, PATIENCE, Postdate, Producer, Record, Sink, eventually, kafka, nats,
    now_ms, redis, unique,
};
use crate::nats::{ALONE, create_streams};
use crate::service::config;

const ROUTES: &str = r#"
[route.plain]
source = { kafka = "main", topics = ["@.plain"] }
target = { kafka = "main", topic = "@.out" }
allow_replies = ["@.answers"]
outcomes = "@.outcomes"
dead_letter = { kafka = "main", topic = "@.dead" }

[route.exact]
source = { kafka = "main", topics = ["@.exact"] }
target = { kafka = "main", topic = "@.out" }
allow_replies = ["@.answers"]
outcomes = "@.outcomes"
dead_letter = { kafka = "main", topic = "@.dead" }
delivery = "exactly-once"
"#;

const NAMES: [&str; 6] = ["plain", "exact", "out", "answers", "outcomes", "dead"];
const DELIVERIES: [&str; 2] = ["plain", "exact"];

struct Scene {
    addr: String,
    deployment: String,
    postdate: Postdate,
}

impl Scene {
    fn start(area: &str) -> Self {
        let deployment = unique(area);
        for name in NAMES {
            kafka().create_topic(&format!("{deployment}.{name}"), 1, &[]);
        }
        Self::with(kafka().addr().to_owned(), deployment)
    }

    /// The broker with the outcome records is down.
    fn with_silent_topic(kafka: &mut KafkaCluster) -> Self {
        let deployment = unique("outcomes_silent");
        for name in NAMES {
            let topic = format!("{deployment}.{name}");
            match name {
                "outcomes" => kafka.create_topic_on(3, &topic),
                _ => kafka.create_topic(&topic, 1, &[]),
            }
        }
        kafka.nodes[2].kill();
        Self::with(kafka.addr(), deployment)
    }

    /// The topics must exist.
    fn with(addr: String, deployment: String) -> Self {
        let brokers = addr.replace(',', r#"", ""#);
        let config = config(&deployment, &ROUTES.replace('@', &deployment));
        let postdate = Postdate::ready_with(&config.replace(kafka().addr(), &brokers));
        Self {
            addr,
            deployment,
            postdate,
        }
    }

    fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.deployment)
    }

    fn sink(&self, name: &str) -> Sink {
        Sink::start(&self.addr, &[&self.topic(name)])
    }

    fn origin(&self, route: &str, offset: i64) -> String {
        format!(
            "{}/{route}/{}/0/{offset}",
            self.deployment,
            self.topic(route)
        )
    }
}

fn parsed(record: &Record) -> Value {
    let payload = record.payload.as_deref().expect("it has a payload");
    let json: Value = serde_json::from_slice(payload).expect("it is JSON");
    assert_eq!(
        record.key.as_deref(),
        json["origin"].as_str().map(str::as_bytes)
    );
    json
}

fn text(json: &Value, field: &str) -> String {
    json[field].as_str().unwrap_or_default().to_owned()
}

/// The outcomes of each message, by its origin, in order.
fn outcomes(records: &[Record]) -> BTreeMap<String, Vec<String>> {
    let mut outcomes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for record in records {
        let json = parsed(record);
        let of_message = outcomes.entry(text(&json, "origin")).or_default();
        of_message.push(text(&json, "outcome"));
    }
    outcomes
}

#[test]
fn each_fate_of_a_message_has_a_record() {
    let scene = Scene::start("outcomes");
    let (records, answers) = (scene.sink("outcomes"), scene.sink("answers"));
    let due = now_ms() + 3_600_000;
    for route in DELIVERIES {
        let to = scene.topic(route);
        let with_id = |id: &str| {
            let request = Outgoing::to(&to).partition(0).header("postdate-id", id);
            request.header("postdate-at", due.to_string())
        };
        let cancel = |id: &str| {
            let request = Outgoing::to(&to).partition(0).header("postdate-id", id);
            request.header("postdate-op", "cancel")
        };
        let replies = scene.topic("answers");
        let producer = Producer::start(kafka().addr());
        for request in [
            with_id("a"),
            with_id("a"),
            cancel("a").header("postdate-reply-to", &replies),
            cancel("a"),
            with_id("b"),
            Outgoing::to(&to)
                .partition(0)
                .header("postdate-op", "reschedule")
                .header("postdate-id", "b")
                .header("postdate-at", (due + 1).to_string()),
            Outgoing::to(&to).partition(0).payload("at once"),
            Outgoing::to(&to)
                .partition(0)
                .header("postdate-after", "never"),
        ] {
            producer.send(&request);
            producer.flush();
        }
    }
    let all = records.wait_for(2 * 8, PATIENCE);
    answers.wait_for(2, PATIENCE);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(records.records().len(), all.len());
    let found = outcomes(&all);
    for route in DELIVERIES {
        let origin = |offset| scene.origin(route, offset);
        let expected = [
            (0, vec!["scheduled", "replaced"]),
            (1, vec!["scheduled", "cancelled"]),
            (4, vec!["scheduled", "rescheduled"]),
            (6, vec!["delivered"]),
            (7, vec!["dead_lettered"]),
        ];
        for (offset, fates) in expected {
            let found = found.get(&origin(offset)).cloned().unwrap_or_default();
            assert_eq!(found, fates, "{route} {offset}");
        }
        let all: Vec<Value> = all.iter().map(parsed).collect();
        let of = |offset, outcome: &str| {
            let mut of = all.iter().filter(|it| text(it, "origin") == origin(offset));
            of.find(|it| it["outcome"] == outcome).expect("a record")
        };
        assert_eq!(of(0, "replaced")["by"], origin(1).as_str());
        assert_eq!(of(1, "cancelled")["by"], origin(2).as_str());
        assert_eq!(of(4, "rescheduled")["due"], due + 1);
        assert_eq!(of(4, "rescheduled")["id"], "b");
        assert_eq!(of(6, "delivered")["due"], Value::Null);
        assert_eq!(of(7, "dead_lettered")["code"], "invalid_after");
    }
}

/// Sends messages to each route, due at intervals of 10 ms from now on.
fn send(scene: &Scene, name: &str, count: i64) {
    let producer = Producer::start(&scene.addr);
    let first_due = now_ms() + 2_000;
    for number in 0..count {
        for route in DELIVERIES {
            let message = Outgoing::to(&scene.topic(route)).partition(0);
            let due = first_due + number * 10;
            let message = message.header("postdate-at", due.to_string());
            producer.send(&message.payload(format!("{route}-{name}{number}")));
        }
    }
    producer.flush();
}

fn payloads(records: &[Record]) -> BTreeSet<Vec<u8>> {
    let payloads = records.iter().map(|record| record.payload.clone());
    payloads.flatten().collect()
}

/// The number of messages of the exactly-once route.
fn exact(records: &[Record]) -> usize {
    let payloads = records
        .iter()
        .filter_map(|record| record.payload.as_deref());
    payloads
        .filter(|payload| payload.starts_with(b"exact-"))
        .count()
}

/// Messages of each route around the kills, and after the last one.
const MESSAGES: usize = 400;
const LAST: usize = 50;

#[test]
fn a_killed_process_repeats_no_record_of_an_exactly_once_route() {
    let mut scene = Scene::start("outcomes_kill");
    let (records, arrivals) = (scene.sink("outcomes"), scene.sink("out"));
    send(&scene, "a", MESSAGES as i64);
    for count in [MESSAGES / 2, 2 * MESSAGES] {
        arrivals.wait_until("a part of the messages", PATIENCE, |it| {
            payloads(it).len() >= count
        });
        scene.postdate.kill();
        scene.postdate.restart();
    }
    send(&scene, "b", LAST as i64);
    let fates = ["delivered", "scheduled"].map(str::to_owned);
    let is_complete = |found: &Vec<String>| fates.iter().all(|fate| found.contains(fate));
    records.wait_until("the records of the last messages", PATIENCE, |records| {
        let found = outcomes(records);
        let last = MESSAGES..MESSAGES + LAST;
        let mut origins = DELIVERIES.iter().flat_map(|route| {
            last.clone()
                .map(|offset| scene.origin(route, offset as i64))
        });
        origins.all(|origin| found.get(&origin).is_some_and(is_complete))
    });
    for (origin, mut found) in outcomes(&records.records()) {
        found.sort();
        let count = found.len();
        found.dedup();
        let is_plain = origin.contains("/plain/");
        assert!(
            is_plain || found.len() == count,
            "{origin}: {count} records"
        );
        assert!(found.iter().all(|fate| fates.contains(fate)), "{found:?}");
    }
    assert_eq!(exact(&arrivals.records()), MESSAGES + LAST);
}

#[test]
fn a_topic_that_takes_no_records_loses_and_repeats_no_message() {
    let mut kafka = KafkaCluster::start(3);
    let mut scene = Scene::with_silent_topic(&mut kafka);
    let arrivals = scene.sink("out");
    send(&scene, "a", 100);
    arrivals.wait_for(200, PATIENCE);
    // The pair of these messages is stored.
    let is_done =
        || (scene.postdate.metrics().sum("postdate_pending_messages") == 0.0).then_some(());
    eventually("no message waits", PATIENCE, is_done);
    scene.postdate.kill();
    scene.postdate.restart();
    send(&scene, "b", 100);
    arrivals.wait_until("all messages", PATIENCE, |it| payloads(it).len() == 400);
    let (status, _) = scene.postdate.terminate();
    assert!(status.success());
    assert_eq!(arrivals.records().len(), 400);
    let logs = scene.postdate.logs();
    let reason = "the process stops before their acknowledgement";
    assert!(logs.contains(reason), "the records are counted: {logs}");
}

#[test]
fn records_for_a_missing_topic_are_counted() {
    let scene = Scene::start("outcomes_missing");
    kafka().delete_topic(&scene.topic("outcomes"));
    let arrivals = scene.sink("out");
    send(&scene, "a", 20);
    arrivals.wait_for(40, PATIENCE);
    eventually("all records are dropped", PATIENCE, || {
        let metrics = scene.postdate.metrics();
        let missing = metrics.sum("postdate_outcome_records_missing_total");
        (missing == 80.0).then_some(())
    });
    assert_eq!(arrivals.records().len(), 40);
}

#[test]
fn a_message_of_nats_that_fails_has_a_record_of_each_attempt() {
    let name = unique("outcomes_nats");
    create_streams(nats(), &name);
    let audit = format!("{name}_AUDIT");
    nats().create_stream(&audit, &[&format!("{name}.audit")]);
    let routes = format!(
        "{ALONE}allow = [\"@.none.*\"]\noutcomes = \"@.audit\"\n\
         retry = {{ max_attempts = 2, backoff = \"100ms\", backoff_max = \"200ms\" }}\n"
    );
    let nats_config = crate::nats::config(&name, &redis().url(), &nats().url(), &routes);
    let _postdate = Postdate::ready_with(&nats_config);
    // No stream has this subject.
    let to = format!("{name}.none.a");
    let headers: &[(&str, &str)] = &[("postdate-after", "1s"), ("postdate-to", &to)];
    nats().publish_all(&format!("{name}.in.a"), [(headers, "a".to_owned())]);
    nats().wait_for(&audit, 3, PATIENCE);
    let origin = format!("{name}/orders/{name}_IN:{name}.in.a/0/1");
    let mut found = Vec::new();
    for stored in nats().stored(&audit) {
        let json: Value = serde_json::from_slice(&stored.payload).expect("it is JSON");
        assert_eq!(text(&json, "origin"), origin);
        assert_eq!(
            stored.header("Nats-Msg-Id"),
            stored.header("postdate-outcome")
        );
        found.push((
            text(&json, "outcome"),
            text(&json, "code"),
            json["attempt"].clone(),
        ));
    }
    let expected = [
        ("scheduled", "", Value::Null),
        ("retried", "unknown_target", 1.into()),
        ("dead_lettered", "unknown_target", Value::Null),
    ];
    let expected =
        expected.map(|(outcome, code, attempt)| (outcome.to_owned(), code.to_owned(), attempt));
    assert_eq!(found, expected);
}
