//! Tests dead letters and their redrive: by the API, the console and the command line, on Kafka and NATS, with kills in the
//! middle, and with and without the right to do it.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::changes::{OPERATOR, READER, Service, run_at};
use crate::env::{
    Outgoing, PATIENCE, Postdate, Producer, Record, Sink, eventually, kafka, nats, now_ms, redis,
    unique,
};
use crate::nats::{config, create_streams};
use crate::verdict::Scene;

const PATH: &str = "/v1/routes/r/dead-letters";
const REDRIVE: &str = "/v1/routes/r/dead-letters:redrive";
const POST: [&str; 2] = ["--request", "POST"];

fn codes(report: &Value) -> Vec<(&str, u64)> {
    let codes = report["codes"].as_array().unwrap().iter();
    codes
        .map(|group| {
            (
                group["code"].as_str().unwrap(),
                group["count"].as_u64().unwrap(),
            )
        })
        .collect()
}

/// A dead letter of `route.r`, as the service writes it.
pub(crate) fn bury(producer: &Producer, scene: &Scene, number: usize, code: &str) {
    let dead = format!("{}.dead", scene.deployment);
    let origin = format!("{}/r/{}/0/{number}", scene.deployment, scene.source);
    let letter = Outgoing::to(&dead)
        .key(format!("k{number}"))
        .payload(number.to_string())
        .header("postdate-after", "1h")
        .header("postdate-due", "1700000000000")
        .header("postdate-origin", origin)
        .header("postdate-error", code)
        .header("postdate-error-detail", "no such topic");
    producer.send(&letter);
}

/// How often the source has each payload.
fn copies(records: &[Record]) -> BTreeMap<String, usize> {
    let mut copies = BTreeMap::new();
    for record in records {
        let payload = record.payload.clone().unwrap_or_default();
        *copies
            .entry(String::from_utf8(payload).unwrap())
            .or_default() += 1;
    }
    copies
}

#[test]
fn what_failed_is_listed_for_readers_and_redriven_by_an_operator_only() {
    let scene = Scene::new(kafka(), "redrive", 2);
    let missing = format!("{}.missing", scene.deployment);
    let rules =
        format!("allow = [\"{missing}\"]\nretry = {{ max_attempts = 4, backoff = \"1s\" }}");
    let service = Service::start(&scene.config_with(redis(), &rules));
    let producer = Producer::start(kafka().addr());
    let due = now_ms() + 500;
    for number in 0..6 {
        let message = Outgoing::to(&scene.source)
            .key(format!("k{number}"))
            .payload(number.to_string())
            .header("postdate-at", due.to_string())
            .header("postdate-to", &missing)
            .header("postdate-id", format!("id-{number}"))
            .header("x", "1");
        producer.send(&message);
    }
    let broken = Outgoing::to(&scene.source).header("postdate-after", "soon");
    producer.send(&broken);
    producer.flush();
    let report = eventually("all are dead letters", PATIENCE, || {
        let report = service.document(READER, PATH, &[], 200);
        let all = [("invalid_after", 1), ("unknown_target", 6)];
        let mut found = codes(&report);
        found.sort_unstable();
        (found == all).then_some(report.clone())
    });
    let groups = report["codes"].as_array().unwrap();
    let refused = groups.iter().find(|it| it["code"] == "invalid_after");
    let sample = &refused.unwrap()["samples"][0];
    assert!(
        sample["obstacle"]
            .as_str()
            .unwrap()
            .contains("it would fail again"),
        "{sample}"
    );

    assert_eq!(service.curl("of-nobody-at-all", PATH, &[]).0, 401);
    assert_eq!(service.curl(READER, REDRIVE, &POST).0, 403);
    assert_eq!(
        service
            .curl(OPERATOR, &format!("{REDRIVE}?code=none"), &POST)
            .0,
        400
    );
    let source = || Sink::read_to_end(kafka().addr(), &scene.source);
    let before = source().len();
    let dry = service.document(OPERATOR, REDRIVE, &POST, 200);
    assert_eq!(dry["redrive"]["dry_run"], true);
    assert_eq!(dry["redrive"]["redriven"], 6);
    assert_eq!(source().len(), before, "a dry run sends nothing");

    kafka().create_topic(&missing, 1, &[]);
    let one = format!("{REDRIVE}?key=k3&dry_run=false");
    let sent = service.document(OPERATOR, &one, &POST, 200);
    assert_eq!(sent["redrive"]["redriven"], 1);
    let all = format!("{REDRIVE}?dry_run=false&rate=1000");
    let sent = service.document(OPERATOR, &all, &POST, 200);
    assert_eq!(sent["redrive"]["redriven"], 5);
    let sent = service.document(OPERATOR, &all, &POST, 200);
    assert_eq!(sent["redrive"]["redriven"], 0);
    let sink = Sink::start(kafka().addr(), &[&missing]);
    let arrived = sink.wait_for(6, PATIENCE);
    assert!(copies(&arrived).values().all(|times| *times == 1));
    for record in &arrived {
        let origin = record.header("postdate-first-origin").unwrap();
        assert!(origin.starts_with(&format!("{}/r/{}/", scene.deployment, scene.source)));
        assert_ne!(record.header("postdate-origin"), Some(origin));
        assert_eq!(
            record.header("postdate-first-due"),
            Some(due.to_string().as_str())
        );
        assert_eq!(record.header("x"), Some("1"));
        assert_eq!(record.header("postdate-error"), None);
    }
    let left = service.document(READER, PATH, &[], 200);
    assert_eq!(codes(&left), [("invalid_after", 1)]);
    let redriven = service
        .0
        .get_with("/metrics", &format!("Authorization: Bearer {READER}"))
        .unwrap();
    assert!(
        redriven
            .1
            .contains("postdate_redriven_total{route=\"r\"} 6"),
        "{}",
        redriven.1
    );
    let audit = service.0.logs();
    let lines = audit
        .lines()
        .filter(|line| line.contains("\"action\":\"redrive\""));
    assert_eq!(lines.count(), 4, "each allowed request is audited: {audit}");
}

/// At this rate one call of the API does not send all of them.
#[test]
fn a_command_with_the_address_of_a_service_redrives_call_after_call() {
    const COUNT: usize = 14;
    let scene = Scene::new(kafka(), "redrive-address", 1);
    let service = Service::start(&scene.config_stored("", ""));
    let producer = Producer::start(kafka().addr());
    (0..COUNT).for_each(|number| bury(&producer, &scene, number, "unknown_target"));
    bury(&producer, &scene, COUNT, "timed_out");
    producer.flush();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://127.0.0.1:{}", service.0.port());
    let run = |token: &str, more: &[&str], code: i32| {
        let file = folder.path().join("token");
        std::fs::write(&file, token).unwrap();
        let fixed = ["redrive", "--route", "r", "--token-file", "token"];
        run_at(&url, folder.path(), &[&fixed[..], more].concat(), code)
    };
    let code = ["--code", "unknown_target"];
    let refused = run(READER, &code, 2);
    assert!(refused.contains("admin.operator_token"), "{refused}");
    let dry = run(OPERATOR, &code, 0);
    assert!(dry.contains("14 messages would be sent."), "{dry}");
    assert!(Sink::read_to_end(kafka().addr(), &scene.source).is_empty());
    let sends = [&code[..], &["--rate", "1", "--yes", "--output", "json"]].concat();
    let few = run(OPERATOR, &[&sends[..], &["--limit", "2"]].concat(), 0);
    let few: Value = serde_json::from_str(&few).unwrap();
    assert_eq!(few["redrive"]["redriven"], 2);
    let rest = run(OPERATOR, &sends, 0);
    let rest: Value = serde_json::from_str(&rest).unwrap();
    assert_eq!(rest["redrive"]["redriven"], 12);
    assert_eq!(
        (codes(&rest), &rest["more"]),
        (vec![("unknown_target", 12)], &false.into())
    );
    let calls = service.0.logs();
    let calls = calls.matches("\"action\":\"redrive\"").count();
    assert!(
        calls > 3,
        "the last command takes more than one call: {calls}"
    );
    let sent = copies(&Sink::read_to_end(kafka().addr(), &scene.source));
    assert_eq!(sent.len(), COUNT);
    assert!(sent.values().all(|times| *times == 1), "{sent:?}");
    let left = service.document(READER, PATH, &[], 200);
    assert_eq!(codes(&left), [("timed_out", 1)]);
}

#[test]
fn the_console_redrives_with_a_form_from_its_own_pages() {
    let scene = Scene::new(kafka(), "redrive-form", 1);
    let service = Service::start(&scene.config_stored("", ""));
    let producer = Producer::start(kafka().addr());
    (0..3).for_each(|number| bury(&producer, &scene, number, "unknown_target"));
    producer.flush();
    let page = "/routes/r/dead-letters";
    let button = "Send again</button>";
    let shown = service.curl(READER, page, &[]).1;
    assert!(
        shown.contains("no such topic") && !shown.contains(button),
        "{shown}"
    );
    assert!(service.curl(OPERATOR, page, &[]).1.contains(button));
    let form = format!("{page}/redrive");
    let body = [
        "--data",
        "code=unknown_target&limit=2&rate=100&dry_run=false",
    ];
    let foreign = [&body[..], &["--header", "Sec-Fetch-Site: cross-site"]].concat();
    assert_eq!(service.curl(OPERATOR, &form, &foreign).0, 403);
    assert_eq!(service.curl(READER, &form, &body).0, 403);
    let (status, answer) = service.curl(OPERATOR, &form, &body);
    assert!(
        status == 200 && answer.contains("Sent again: 2. More may follow."),
        "{answer}"
    );
    let sink = Sink::start(kafka().addr(), &[&scene.target]);
    sink.wait_for(2, PATIENCE);
}

/// `postdate redrive` in the folder of a service, which need not run.
fn start_redrive(postdate: &Postdate, route: &str, rate: &str) -> Child {
    let limits = ["--limit", "100000", "--rate", rate, "--yes"];
    Command::new(env!("CARGO_BIN_EXE_postdate"))
        .args(["redrive", "--config", "config.toml", "--route", route])
        .args(limits)
        .current_dir(postdate.folder())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn finish(postdate: &Postdate, route: &str, more: &[&str]) -> Value {
    let fixed = [
        "redrive", "--route", route, "--yes", "--limit", "100000", "--rate", "10000", "--output",
        "json",
    ];
    let output = postdate.command(&[&fixed[..], more].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}{errors}");
    serde_json::from_str(&said).unwrap()
}

#[test]
fn a_redrive_that_is_killed_and_repeated_loses_and_doubles_nothing_on_kafka() {
    const COUNT: usize = 3_000;
    let scene = Scene::new(kafka(), "redrive-killed", 1);
    let mut postdate = Postdate::start(&scene.config(redis()));
    postdate.kill();
    let producer = Producer::start(kafka().addr());
    for number in 0..COUNT {
        let code = ["unknown_target", "timed_out"][number / 10 % 2];
        bury(&producer, &scene, number, code);
    }
    producer.flush();
    let source = || Sink::read_to_end(kafka().addr(), &scene.source);
    for least in [200, 900] {
        let mut killed = start_redrive(&postdate, "r", "400");
        eventually("some are sent", PATIENCE, || {
            // A slow broker may end it early. Then an operator repeats it.
            if killed.try_wait().unwrap().is_some() {
                killed = start_redrive(&postdate, "r", "400");
            }
            (source().len() >= least).then_some(())
        });
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
    let some = source().len();
    assert!(some < COUNT, "the kill came in the middle");
    let rest = finish(&postdate, "r", &["--code", "timed_out"]);
    assert_eq!(codes(&rest).len(), 1);
    let rest = finish(&postdate, "r", &[]);
    assert!(rest["redrive"]["redriven"].as_u64().unwrap() > 0);
    let found = copies(&source());
    assert_eq!(found.len(), COUNT);
    assert!(
        found.values().all(|times| *times == 1),
        "{:?}",
        found.iter().find(|(_, times)| **times > 1)
    );
    let again = finish(&postdate, "r", &[]);
    assert_eq!(again["redrive"]["redriven"], 0);
}

const NATS_ROUTE: &str = r#"
[nats.edge]
url = "NATS"

[route.r]
source = { nats = "edge", stream = "@_IN", subjects = ["@.in.*"] }
target = { nats = "edge", subject = "@.out.all" }
allow = ["@.out.>", "@.late"]
dead_letter = { nats = "edge", subject = "@.dead" }
retry = { max_attempts = 3, backoff = "300ms" }

[route.other]
source = { nats = "edge", stream = "@_IN", subjects = ["@.in.other.>"] }
target = { nats = "edge", subject = "@.out.other" }
dead_letter = { nats = "edge", subject = "@.dead" }
without_delay = "dead-letter"
"#;

#[test]
fn a_redrive_that_is_killed_and_repeated_loses_and_doubles_nothing_on_nats() {
    const COUNT: usize = 400;
    let name = unique("redrive");
    create_streams(nats(), &name);
    let postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), NATS_ROUTE));
    let (subject, late) = (format!("{name}.in.eu"), format!("{name}.late"));
    let headers = [
        ("postdate-after", "100ms"),
        ("postdate-to", late.as_str()),
        ("x", "1"),
    ];
    let payloads: Vec<String> = (0..COUNT).map(|number| number.to_string()).collect();
    let messages = payloads.iter().map(|payload| (&headers[..], payload));
    nats().publish_all(&subject, messages);
    nats().publish(&format!("{name}.in.other.a"), &[("x", "1")], "refused");
    nats().wait_for(&format!("{name}_DEAD"), COUNT as u64 + 1, PATIENCE);
    let source = format!("{name}_IN");
    let before = nats().count(&source);
    nats().create_stream(&format!("{name}_LATE"), &[&late]);
    let mut killed = start_redrive(&postdate, "r", "100");
    eventually("some are sent", PATIENCE, || {
        (nats().count(&source) >= before + 100).then_some(())
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(nats().count(&source) < before + COUNT as u64);
    let rest = finish(&postdate, "r", &[]);
    assert_eq!(codes(&rest), [("unknown_target", codes(&rest)[0].1)]);
    let stored = nats().wait_for(&format!("{name}_LATE"), COUNT as u64, PATIENCE);
    let payloads: std::collections::BTreeSet<_> =
        stored.iter().map(|stored| stored.payload.clone()).collect();
    assert_eq!((stored.len(), payloads.len()), (COUNT, COUNT));
    assert_eq!(stored[0].header("x"), Some("1"));
    assert_eq!(stored[0].header("postdate-subject"), Some(subject.as_str()));
    let origin = stored[0].header("postdate-first-origin").unwrap();
    assert!(
        origin.starts_with(&format!("{name}/r/{name}_IN:")),
        "{origin}"
    );
    let again = finish(&postdate, "r", &[]);
    assert_eq!(again["redrive"]["redriven"], 0);
    assert_eq!(nats().count(&format!("{name}_LATE")), COUNT as u64);
    let other = finish(&postdate, "other", &[]);
    assert_eq!(codes(&other), [("missing_due", 1)]);
    assert_eq!(other["redrive"]["redriven"], 0);
}

#[test]
fn the_command_line_counts_before_it_sends() {
    let scene = Scene::new(kafka(), "redrive-lines", 1);
    let mut postdate = Postdate::start(&scene.config(redis()));
    postdate.kill();
    let producer = Producer::start(kafka().addr());
    (0..3).for_each(|number| bury(&producer, &scene, number, "unknown_target"));
    producer.flush();
    let run = |more: &[&str], code: i32| {
        let output = postdate.command(&[&["redrive", "--route", "r"], more].concat());
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        said
    };
    let counted = run(&[], 0);
    assert!(
        counted.contains("unknown_target") && counted.contains("3 messages would be sent"),
        "{counted}"
    );
    let none = run(&["--code", "timed_out"], 0);
    assert!(none.contains("No dead letter meets"), "{none}");
    assert!(run(&["--code", "wrong"], 2).contains("not in the list"));
    assert!(run(&["--from", "yesterday"], 2).contains("from:"));
    let sent = run(&["--limit", "2", "--yes"], 0);
    assert!(
        sent.contains("Sent: 2.") && sent.contains("More may follow"),
        "{sent}"
    );
    let later = format!("{}", now_ms() + 60_000);
    assert!(run(&["--from", &later], 0).contains("No dead letter meets"));
    assert!(run(&["--to", &later, "--yes"], 0).contains("Sent: 1."));
}
