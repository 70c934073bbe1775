//! Tests the outcome records of a route with a stock consumer, on Kafka, with both kinds of delivery.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::env::{Outgoing, PATIENCE, Postdate, Producer, Record, Sink, kafka, now_ms, unique};
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
    deployment: String,
    postdate: Postdate,
}

impl Scene {
    fn start(area: &str) -> Self {
        let deployment = unique(area);
        for name in NAMES {
            kafka().create_topic(&format!("{deployment}.{name}"), 1, &[]);
        }
        let routes = ROUTES.replace('@', &deployment);
        let postdate = Postdate::ready_with(&config(&deployment, &routes));
        Self {
            deployment,
            postdate,
        }
    }

    fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.deployment)
    }

    fn sink(&self, name: &str) -> Sink {
        Sink::start(kafka().addr(), &[&self.topic(name)])
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
    let all = records.wait_for(2 * 9, PATIENCE);
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
            (6, vec!["delivered", "scheduled"]),
            (7, vec!["dead_lettered"]),
        ];
        for (offset, fates) in expected {
            let mut found = found.get(&origin(offset)).cloned().unwrap_or_default();
            if offset == 6 {
                // It is due at once, as its own schedule is.
                found.sort();
            }
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

/// Messages of each route that are sent around the kills.
const MESSAGES: i64 = 400;

#[test]
fn a_killed_process_loses_no_record_and_exactly_once_repeats_none() {
    let mut scene = Scene::start("outcomes_kill");
    let (records, arrivals) = (scene.sink("outcomes"), scene.sink("out"));
    let producer = Producer::start(kafka().addr());
    let first_due = now_ms() + 2_000;
    for number in 0..MESSAGES {
        for route in DELIVERIES {
            let message = Outgoing::to(&scene.topic(route)).partition(0);
            let due = first_due + number * 10;
            let message = message.header("postdate-at", due.to_string());
            producer.send(&message.payload(format!("{route}-{number}")));
        }
    }
    producer.flush();
    let arrived = |records: &[Record]| {
        let payload = |record: &Record| record.payload.clone().unwrap_or_default();
        records.iter().map(payload).collect::<BTreeSet<_>>().len()
    };
    let all = usize::try_from(MESSAGES).expect("a small number");
    for count in [all / 4, all] {
        arrivals.wait_until("a part of the messages", PATIENCE, |it| {
            arrived(it) >= count
        });
        scene.postdate.kill();
        scene.postdate.restart();
    }
    let is_ended = |fates: &Vec<String>| fates.iter().any(|fate| fate == "delivered");
    records.wait_until("the end of each message", PATIENCE, |records| {
        outcomes(records).values().filter(|it| is_ended(it)).count() == 2 * all
    });
    std::thread::sleep(Duration::from_secs(1));
    let found = outcomes(&records.records());
    for number in 0..MESSAGES {
        let plain: BTreeSet<&str> = found[&scene.origin("plain", number)]
            .iter()
            .map(String::as_str)
            .collect();
        assert_eq!(plain, BTreeSet::from(["delivered", "scheduled"]));
        let exact = &found[&scene.origin("exact", number)];
        assert_eq!(exact.len(), 2, "{number}: {exact:?}");
        assert!(exact.iter().any(|fate| fate == "scheduled") && is_ended(exact));
    }
    let arrivals = arrivals.records();
    let exact = arrivals.iter().filter(|record| {
        let payload = record.payload.as_deref().unwrap_or_default();
        payload.starts_with(b"exact-")
    });
    assert_eq!(exact.count(), all, "records repeat no message");
}
