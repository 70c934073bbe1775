//! Tests answers to schedules and cancels, on Kafka and NATS.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use async_nats::HeaderMap;
use futures_util::StreamExt as _;
use serde_json::Value;

use crate::env::{
    Outgoing, PATIENCE, Postdate, Producer, Record, Sink, kafka, nats, now_ms, redis, unique,
};
use crate::nats::config;
use crate::service::{Attended, Service, Topic, send_all};

const TOPICS: &[Topic] = &[
    ("plain", 1, &[]),
    ("exact", 1, &[]),
    ("out", 1, &[]),
    ("answers.plain", 1, &[]),
    ("answers.exact", 1, &[]),
    ("dead", 1, &[]),
    ("race", 1, &[]),
    ("race_exact", 1, &[]),
    ("race.out", 1, &[]),
    ("race.answers", 1, &[]),
    ("command", 1, &[]),
    ("command.answers", 1, &[]),
];

const ROUTES: &str = r#"
[route.plain]
source = { kafka = "main", topics = ["@.plain"] }
target = { kafka = "main", topic = "@.out" }
allow_replies = ["@.answers.*"]
dead_letter = { kafka = "main", topic = "@.dead" }

[route.exact]
source = { kafka = "main", topics = ["@.exact"] }
target = { kafka = "main", topic = "@.out" }
allow_replies = ["@.answers.*"]
dead_letter = { kafka = "main", topic = "@.dead" }
delivery = "exactly-once"

[route.race]
source = { kafka = "main", topics = ["@.race"] }
target = { kafka = "main", topic = "@.race.out" }
allow_replies = ["@.race.answers"]
dead_letter = { kafka = "main", topic = "@.dead" }

[route.race_exact]
source = { kafka = "main", topics = ["@.race_exact"] }
target = { kafka = "main", topic = "@.race.out" }
allow_replies = ["@.race.answers"]
dead_letter = { kafka = "main", topic = "@.dead" }
delivery = "exactly-once"

[route.command]
source = { kafka = "main", topics = ["@.command"] }
target = { kafka = "main", topic = "@.out" }
allow_replies = ["@.command.answers"]
dead_letter = { kafka = "main", topic = "@.dead" }
"#;

fn service() -> Attended {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    Service::attend(&SERVICE, "answers", TOPICS, ROUTES)
}

fn parsed(record: &Record) -> Value {
    let payload = record.payload.as_deref().expect("an answer has a payload");
    serde_json::from_slice(payload).expect("an answer is JSON")
}

/// The outcomes of the answers, each with the id of its request.
fn outcomes(records: &[Record]) -> Vec<(String, String)> {
    let text = |json: &Value, key: &str| json[key].as_str().unwrap_or_default().to_owned();
    let parse = |record: &Record| {
        let json = parsed(record);
        (text(&json, "request_id"), text(&json, "outcome"))
    };
    records.iter().map(parse).collect()
}

/// Sends requests one after the other and returns their answers.
fn answers(route: &str) -> Vec<Record> {
    let service = service();
    let (source, replies) = (
        service.topic(route),
        service.topic(&format!("answers.{route}")),
    );
    let sink = Sink::start(kafka().addr(), &[&replies]);
    let due = (now_ms() + 3_600_000).to_string();
    let request = |id: &str| {
        let request = Outgoing::to(&source).partition(0).key("k");
        let request = request.header("postdate-reply-to", &replies);
        request.header("postdate-request-id", id)
    };
    let requests = [
        request("1")
            .header("postdate-at", &due)
            .header("postdate-id", "a"),
        request("2")
            .header("postdate-at", &due)
            .header("postdate-id", "a"),
        request("3")
            .header("postdate-op", "cancel")
            .header("postdate-id", "a"),
        request("4")
            .header("postdate-op", "cancel")
            .header("postdate-id", "a"),
        request("5").header("postdate-after", "never"),
        // It has no delay, so it and its answer are due at once.
        request("6"),
    ];
    for (sent, request) in requests.iter().enumerate() {
        send_all(std::slice::from_ref(request));
        sink.wait_for(sent + 1, PATIENCE);
    }
    std::thread::sleep(Duration::from_millis(500));
    sink.records()
}

#[test]
fn every_request_gets_one_answer_with_its_outcome() {
    for route in ["plain", "exact"] {
        let answers = answers(route);
        let expected = [
            "scheduled",
            "replaced",
            "cancelled",
            "not_found",
            "refused",
            "scheduled",
        ];
        let expected = (1..).zip(expected);
        let expected: Vec<_> = expected
            .map(|(id, it)| (format!("{id}"), it.to_owned()))
            .collect();
        assert_eq!(outcomes(&answers), expected, "{route}");
        let [scheduled, replaced, cancelled] = [0, 1, 2].map(|at| parsed(&answers[at]));
        assert_eq!(replaced["replaced_origin"], scheduled["origin"]);
        assert_eq!(cancelled["origin"], replaced["origin"]);
        assert_eq!(cancelled["due"], replaced["due"]);
        assert_eq!(parsed(&answers[4])["code"], "invalid_after");
        assert!(answers.iter().all(|it| it.key.as_deref() == Some(b"k")));
    }
}

#[test]
fn a_forbidden_reply_target_gets_no_answer_and_the_message_is_delivered() {
    let service = service();
    let (source, target) = (service.topic("plain"), service.topic("out"));
    let sink = Sink::start(kafka().addr(), &[&target]);
    let message = Outgoing::to(&source)
        .partition(0)
        .payload("forbidden reply");
    send_all(&[message.header("postdate-reply-to", service.topic("dead"))]);
    let is_delivered = |records: &[Record]| {
        let mut payloads = records.iter().map(|record| record.payload.as_deref());
        payloads.any(|payload| payload == Some(b"forbidden reply"))
    };
    sink.wait_until(
        "the message with a forbidden reply target",
        PATIENCE,
        is_delivered,
    );
}

/// Messages of each route in the race.
const RACERS: i64 = 100;

#[test]
fn answers_to_cancels_around_the_due_time_agree_with_what_arrives() {
    let service = service();
    let (target, replies) = (service.topic("race.out"), service.topic("race.answers"));
    let arrivals = Sink::start(kafka().addr(), &[&target]);
    let answers = Sink::start(kafka().addr(), &[&replies]);
    let producer = Producer::start(kafka().addr());
    let routes = ["race", "race_exact"];
    let first_due = now_ms() + 3_000;
    let mut cancels = Vec::new();
    for number in 0..RACERS {
        let due = first_due + 20 * number;
        for route in routes {
            let name = format!("{route}-{number}");
            let source = service.topic(route);
            let to = || {
                Outgoing::to(&source)
                    .partition(0)
                    .header("postdate-id", &name)
            };
            let message = to().header("postdate-at", due.to_string());
            producer.send(&message.payload(&name));
            let cancel = to()
                .header("postdate-op", "cancel")
                .header("postdate-reply-to", &replies)
                .header("postdate-request-id", &name);
            // From 600 ms before the due time to 200 ms after it.
            cancels.push((due - 600 + number * 37 % 800, cancel));
        }
    }
    producer.flush();
    cancels.sort_by_key(|(at, _)| *at);
    for (at, cancel) in &cancels {
        let wait = Duration::from_millis(u64::try_from(at - now_ms()).unwrap_or(0));
        std::thread::sleep(wait);
        producer.send(cancel);
    }
    producer.flush();
    let records = answers.wait_for(cancels.len(), PATIENCE);
    assert_eq!(records.len(), cancels.len(), "one answer for each cancel");
    let outcomes = outcomes(&records);
    let of = |wanted: &str| {
        let names = outcomes.iter().filter(move |(_, it)| it == wanted);
        names.map(|(name, _)| name.clone()).collect::<BTreeSet<_>>()
    };
    let [cancelled, too_late, not_found] = ["cancelled", "too_late", "not_found"].map(of);
    let delivered: BTreeSet<String> = too_late.union(&not_found).cloned().collect();
    arrivals.wait_until("the messages that no cancel stopped", PATIENCE, |records| {
        records.len() >= delivered.len()
    });
    std::thread::sleep(Duration::from_millis(500));
    let payload = |record: &Record| {
        let bytes = record.payload.clone().unwrap_or_default();
        String::from_utf8(bytes).expect("a name")
    };
    let arrived: BTreeSet<String> = arrivals.records().iter().map(payload).collect();
    assert_eq!(arrived, delivered);
    for route in routes {
        let has = |names: &BTreeSet<String>| {
            let prefix = format!("{route}-");
            names.iter().any(|name| name.starts_with(&prefix))
        };
        assert!(has(&cancelled) && has(&delivered), "{route}: {outcomes:?}");
    }
}

#[test]
fn send_and_cancel_with_reply_print_the_outcome_and_set_the_exit_code() {
    let service = service();
    let run = |command: &[&str], arguments: &[&str]| {
        let line = [command, &["--route", "command"], arguments].concat();
        let output = service.postdate.command(&line);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text + &errors)
    };
    let send = |arguments: &[&str]| run(&["send", "--key", "k"], arguments);
    let (code, text) = send(&["--in", "1h", "--id", "a", "--reply", "--json", "x"]);
    let receipt: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    let answer = &receipt["answer"];
    assert_eq!((code, &answer["outcome"]), (Some(0), &"scheduled".into()));
    assert_eq!(answer["origin"], receipt["origin"]);
    let (code, text) = run(&["cancel"], &["--id", "a", "--reply"]);
    let origin = receipt["origin"].as_str().expect("an origin");
    assert!(
        code == Some(0) && text.contains(&format!("cancelled {origin}\n")),
        "{text}"
    );
    let (code, text) = run(&["cancel"], &["--id", "a", "--reply"]);
    assert!(
        code == Some(2) && text.contains("no message waits with id a"),
        "{text}"
    );
    let (code, text) = send(&["--cancel", "--id", "a", "--reply"]);
    assert!(
        code == Some(3) && text.contains("not found on partition 0"),
        "{text}"
    );
    let elsewhere = format!("--reply={}", service.topic("dead"));
    let (code, text) = send(&["--cancel", "--id", "a", &elsewhere]);
    assert!(
        code == Some(2) && text.contains("target_not_allowed"),
        "{text}"
    );
}

const NATS_ROUTES: &str = r#"
[nats.edge]
url = "NATS"

[route.answers]
source = { nats = "edge", stream = "@_IN", subjects = ["@.in"] }
target = { nats = "edge", subject = "@.out" }
allow_replies = ["_INBOX.>"]
dead_letter = { nats = "edge", subject = "@.dead" }
"#;

#[test]
fn a_requester_on_nats_gets_the_answer_in_its_inbox() {
    let name = unique("answers");
    nats().create_stream(&format!("{name}_IN"), &[&format!("{name}.in")]);
    nats().create_stream(
        &format!("{name}_OUT"),
        &[&format!("{name}.out"), &format!("{name}.dead")],
    );
    let _service = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), NATS_ROUTES));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let outcome = runtime.block_on(async {
        let client = async_nats::connect(nats().url()).await.unwrap();
        let inbox = client.new_inbox();
        let mut answers = client.subscribe(inbox.clone()).await.unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("postdate-op", "cancel");
        headers.insert("postdate-id", "a");
        headers.insert("postdate-reply-to", inbox.as_str());
        client
            .publish_with_headers(format!("{name}.in"), headers, "".into())
            .await
            .unwrap();
        client.flush().await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, answers.next()).await;
        let answer = answer.expect("an answer in time").expect("a connection");
        let json: Value = serde_json::from_slice(&answer.payload).unwrap();
        json["outcome"].as_str().unwrap_or_default().to_owned()
    });
    assert_eq!(outcome, "not_found");
}
