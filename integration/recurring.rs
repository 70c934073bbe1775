//! Tests recurring schedules on a compacted Kafka topic: deliveries, updates, ends and dead letters,
//! while workers are killed and the store is wiped.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::changes::{OPERATOR, READER, Service};
use crate::env::{
    Outgoing, Postdate, Producer, Record, Redis, Sink, kafka, now_ms, program, unique,
};
use crate::verdict::LIMIT;

const COMPACTED: &[(&str, &str)] = &[("cleanup.policy", "compact")];

struct Schedules {
    deployment: String,
    producer: Producer,
}

impl Schedules {
    fn new() -> Self {
        let deployment = unique("recurring");
        for (name, config) in [("schedules", COMPACTED), ("out", &[]), ("dead", &[])] {
            kafka().create_topic(&format!("{deployment}.{name}"), 1, config);
        }
        let producer = Producer::start(kafka().addr());
        Self {
            deployment,
            producer,
        }
    }

    fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.deployment)
    }

    fn config(&self, redis: &Redis) -> String {
        self.config_with(redis, "")
    }

    /// With one more line in the route.
    fn config_with(&self, redis: &Redis, line: &str) -> String {
        let routes = r#"
[route.reports]
source = { kafka = "main", topics = ["@.schedules"] }
target = { kafka = "main", topic = "@.out" }
dead_letter = { kafka = "main", topic = "@.dead" }
recurring = true
"#;
        format!(
            "deployment = \"{}\"\n[store.redis]\nurl = \"{}\"\n[kafka.main]\nbrokers = [\"{}\"]\n{}{line}\n",
            self.deployment,
            redis.url(),
            kafka().addr(),
            routes.replace('@', &self.deployment)
        )
    }

    /// Writes a record and returns the time at which the broker has it.
    fn put(&self, key: &str, payload: Option<&str>, headers: &[(&str, &str)]) -> i64 {
        let record = Outgoing::to(&self.topic("schedules")).key(key);
        let record = payload.into_iter().fold(record, Outgoing::payload);
        let add = |record: Outgoing, (name, value): &(&str, &str)| record.header(name, value);
        self.producer.send(&headers.iter().fold(record, add));
        self.producer.flush();
        now_ms()
    }
}

fn number(record: &Record, header: &str) -> i64 {
    let text = record.header(header);
    let number = text.and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("{header} of {record:?}"))
}

/// The planned times of each payload, in the order of arrival.
fn planned(records: &[Record]) -> BTreeMap<String, Vec<i64>> {
    let mut planned = BTreeMap::<String, Vec<i64>>::new();
    for record in records {
        let payload = String::from_utf8_lossy(record.payload.as_deref().unwrap_or_default());
        let times = planned.entry(payload.into_owned()).or_default();
        times.push(number(record, "postdate-due"));
    }
    planned
}

/// The schedules of the route, by the command and by the API: id and state.
fn listed(postdate: &Postdate) -> Vec<(String, String)> {
    let list = |service: &[&str]| -> Value {
        let mut command = Command::new(program());
        let command = command.current_dir(postdate.folder());
        let command = command.args(["schedules", "list", "--json"]).args(service);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let report = list(&["--config", "config.toml"]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let states = |report: &Value| -> Vec<(String, String)> {
        let schedules = report["schedules"].as_array().unwrap().iter();
        schedules
            .map(|schedule| (text(&schedule["id"]), text(&schedule["state"])))
            .collect()
    };
    let (status, answer) = postdate.get("/v1/routes/reports/schedules").unwrap();
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(states(&answer), states(&report));
    let url = format!("http://127.0.0.1:{}", postdate.port());
    let asked = list(&["--url", &url, "--route", "reports"]);
    assert_eq!(states(&asked), states(&report));
    states(&report)
}

#[test]
fn a_schedule_is_delivered_until_it_is_updated_and_until_it_ends() {
    let redis = Redis::start();
    let schedules = Schedules::new();
    let sink = Sink::start(kafka().addr(), &[&schedules.topic("out")]);
    let dead = Sink::start(kafka().addr(), &[&schedules.topic("dead")]);
    let postdate = Postdate::ready_with(&schedules.config(&redis));
    let every = [("postdate-every", "1s"), ("own", "header")];
    schedules.put("daily", Some("one"), &every);
    schedules.put("wrong", Some("x"), &[("postdate-cron", "0 25 * * *")]);
    let first = &sink.wait_for(3, LIMIT)[..3];
    for record in first {
        let due = number(record, "postdate-due");
        assert_eq!(due % 1_000, 0, "{record:?}");
        assert_eq!(number(record, "postdate-next"), due + 1_000);
        assert_eq!(record.header("postdate-schedule"), Some("daily"));
        assert_eq!(record.header("postdate-cron"), None);
        assert_eq!(record.header("postdate-every"), None);
        assert_eq!(record.header("own"), Some("header"));
        let topic = schedules.topic("schedules");
        let origin = format!("{}/reports/{topic}/0/daily@{due}", schedules.deployment);
        assert_eq!(record.header("postdate-origin"), Some(&*origin));
    }
    let refused = dead.wait_for(1, LIMIT);
    assert_eq!(
        refused[0].header("postdate-error"),
        Some("invalid_schedule")
    );
    let pair = |id: &str, state: &str| (id.to_owned(), state.to_owned());
    let expected = [pair("daily", "active"), pair("wrong", "wrong")];
    assert_eq!(listed(&postdate), expected);
    schedules.put("daily", Some("two"), &every);
    let has_two = |records: &[Record]| planned(records).contains_key("two");
    let mut count = sink.records().len();
    while !has_two(&sink.records()) {
        count += 1;
        sink.wait_for(count, LIMIT);
    }
    schedules.put("daily", None, &[]);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let records = sink.records();
    let planned = planned(&records);
    let (one, two) = (&planned["one"], &planned["two"]);
    let all = [one.as_slice(), two].concat();
    let gaps = all.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.clone().all(|gap| gap == 1_000), "{planned:?}");
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(
        sink.records().len(),
        records.len(),
        "the schedule has ended"
    );
    assert_eq!(listed(&postdate), [pair("wrong", "wrong")]);
}

#[test]
fn a_killed_worker_and_a_wiped_store_lose_no_occurrence() {
    let mut redis = Redis::start();
    let schedules = Schedules::new();
    let sink = Sink::start(kafka().addr(), &[&schedules.topic("out")]);
    let config = schedules.config(&redis);
    let mut postdate = Postdate::ready_with(&config);
    for id in 0..20 {
        let headers = [("postdate-every", "1s"), ("postdate-missed", "all")];
        schedules.put(&format!("s{id}"), Some(&format!("s{id}")), &headers);
    }
    sink.wait_for(60, LIMIT);
    postdate.kill();
    let postdate = Postdate::ready_with(&config);
    let count = sink.records().len();
    sink.wait_for(count + 60, LIMIT);
    redis.flush_all();
    let count = sink.records().len();
    sink.wait_for(count + 200, LIMIT);
    drop(postdate);
    for (payload, mut times) in planned(&sink.records()) {
        times.sort_unstable();
        times.dedup();
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.clone().all(|gap| gap == 1_000), "{payload}: {times:?}");
    }
}

const RARELY: &str = "/v1/routes/reports/schedules/rarely";

/// A change of the schedule by the command. Returns its document.
fn change_by_command(service: &Service, action: &str) -> Value {
    let output = Command::new(program())
        .current_dir(service.0.folder())
        .args(["schedules", action, "--config", "config.toml"])
        .args(["--id", "rarely", "--yes", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn change_by_api(service: &Service, action: &str) -> Value {
    let path = format!("{RARELY}:{action}");
    let post = ["--request", "POST"];
    assert_eq!(service.curl(READER, &path, &post).0, 403);
    service.document(OPERATOR, &path, &post, 200)
}

/// The same by a command with the address of the service. Returns the exit status and its output.
fn ask(service: &Service, arguments: &[&str]) -> (Option<i32>, String) {
    let token = service.0.folder().join("token");
    std::fs::write(&token, OPERATOR).unwrap();
    let output = Command::new(program())
        .args(arguments)
        .args(["--url", &format!("http://127.0.0.1:{}", service.0.port())])
        .arg("--token-file")
        .arg(token)
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).unwrap())
}

#[test]
fn an_operator_shows_pauses_resumes_and_fires_a_schedule() {
    let mut redis = Redis::start();
    let schedules = Schedules::new();
    let sink = Sink::start(kafka().addr(), &[&schedules.topic("out")]);
    let config = schedules.config_with(&redis, "delivery = \"exactly-once\"");
    let mut service = Service::start(&config);
    let every = [
        ("postdate-every", "100d"),
        ("postdate-times", "2"),
        ("own", "header"),
    ];
    schedules.put("rarely", Some("report"), &every);

    let shown = service.document(READER, RARELY, &[], 200);
    assert_eq!(shown["state"], "active");
    assert_eq!(shown["payload"], Value::Null, "hidden");
    assert_eq!(shown["preview"]["schedule"], "every 100d");
    let last = shown["preview"]["next"][1]["due_ms"].clone();
    assert_eq!(
        service
            .curl(READER, "/v1/routes/reports/schedules/none", &[])
            .0,
        404
    );
    let show = ["schedules", "show", "--route", "reports", "--id"];
    let (status, text) = ask(&service, &[&show[..], &["rarely"]].concat());
    assert!(status == Some(0) && text.contains("own: header"), "{text}");
    assert_eq!(ask(&service, &[&show[..], &["none"]].concat()).0, Some(3));

    let fired = change_by_api(&service, "fire");
    assert_eq!(
        (&fired["offset"], &fired["state"]),
        (&Value::from(1), &Value::from("active"))
    );
    let record = sink.wait_for(1, LIMIT).remove(0);
    assert_eq!(record.header("own"), Some("header"));
    assert_eq!(record.header("postdate-fire"), None);
    assert!(number(&record, "postdate-next") > number(&record, "postdate-due"));
    let origin = format!("rarely@{}", number(&record, "postdate-due"));
    assert!(record.header("postdate-origin").unwrap().ends_with(&origin));

    assert_eq!(change_by_command(&service, "pause")["offset"], 2);
    assert_eq!(change_by_api(&service, "pause")["offset"], Value::Null);
    let pair = |state: &str| vec![("rarely".to_owned(), state.to_owned())];
    let states = || {
        let report = service.document(READER, "/v1/routes/reports/schedules", &[], 200);
        let schedules = report["schedules"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        schedules
            .map(|it| (text(&it["id"]), text(&it["state"])))
            .collect::<Vec<_>>()
    };
    assert_eq!(states(), pair("paused"));
    let fire = [
        "schedules",
        "fire",
        "--route",
        "reports",
        "--id",
        "rarely",
        "--yes",
    ];
    let (status, text) = ask(&service, &fire);
    assert!(status == Some(0) && text.contains("once more"), "{text}");
    let record = sink.wait_for(2, LIMIT).remove(1);
    assert_eq!(record.header("postdate-next"), None, "it is paused");
    assert_eq!(change_by_api(&service, "resume")["offset"], 4);
    assert_eq!(states(), pair("active"));
    let shown = service.document(READER, RARELY, &[], 200);
    assert_eq!(
        shown["preview"]["next"][1]["due_ms"], last,
        "two times in all"
    );
    let audit = service.0.logs();
    for action in ["fire", "resume"] {
        assert!(
            audit.contains(&format!("\"action\":\"{action}-schedule\"")),
            "{audit}"
        );
    }

    // The pair covers each fire, although the topic still has its record.
    change_by_api(&service, "fire");
    sink.wait_for(3, LIMIT);
    std::thread::sleep(std::time::Duration::from_secs(2));
    service.0.kill();
    redis.flush_all();
    let service = Service::start(&config);
    change_by_api(&service, "fire");
    sink.wait_for(4, LIMIT);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let due = |record: &Record| number(record, "postdate-due");
    let mut dues: Vec<i64> = sink.records().iter().map(due).collect();
    dues.dedup();
    assert_eq!(dues.len(), 4, "each fire once");
    assert_eq!(sink.records().len(), 4);
}
