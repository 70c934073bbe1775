//! Tests `postdate init` and `postdate check --fix`: they change a broker only with `--apply`, a
//! repeat changes nothing, and the result delivers messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use async_nats::jetstream::stream::Config;
use serde_json::Value;

use crate::env::{
    Nats, Outgoing, PATIENCE, Postdate, Producer, Sink, folder, kafka, now_ms, program, redis,
    unique,
};

const FILE: &str = "postdate.toml";
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Runs Postdate in this folder, without a terminal.
fn run(folder: &Path, line: &[&str]) -> Output {
    let mut command = Command::new(program());
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTDATE_"))
    {
        command.env_remove(name);
    }
    command.args(line).current_dir(folder).stdin(Stdio::null());
    command.output().unwrap()
}

/// Runs a command that must end with this code, and returns its output.
fn said(folder: &Path, line: &[&str], code: i32) -> String {
    let output = run(folder, line);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{line:?}\n{out}\n{err}");
    format!("{out}{err}")
}

fn check(folder: &Path, flags: &[&str], code: i32) -> Value {
    let line = [&["check", "--config", FILE, "--json"], flags].concat();
    let text = said(folder, &line, code);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Number of steps of the plan, and how many of them were applied.
fn steps(document: &Value) -> (usize, usize) {
    let steps = document["plan"]["steps"].as_array().unwrap();
    let applied = steps.iter().filter(|step| step["applied"] == true).count();
    (steps.len(), applied)
}

/// Verdict and finding of an item.
fn item(document: &Value, subject: &str) -> (String, String) {
    let items = document["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["subject"] == subject);
    let item = item.unwrap_or_else(|| panic!("no item {subject}: {document:#}"));
    let text = |key: &str| item[key].as_str().unwrap().to_owned();
    (text("verdict"), text("found"))
}

/// Runs `init`, which plans three changes, then applies them, and then repeats it.
fn initialise(folder: &Path, line: &[&str]) {
    let planned = said(folder, line, 0);
    assert_eq!(planned.matches("  todo  ").count(), 3, "{planned}");
    assert!(planned.contains("nothing was changed"), "{planned}");
    let document = check(folder, &[], 1);
    assert_eq!(document["fail"], 3, "nothing was changed: {document:#}");
    assert!(document["plan"].is_null(), "{document:#}");
    let with_apply = [line, &["--apply"]].concat();
    let applied = said(folder, &with_apply, 0);
    assert_eq!(applied.matches("  done  ").count(), 3, "{applied}");
    assert!(applied.contains("0 failed"), "{applied}");
    check(folder, &[], 0);
    let repeated = said(folder, &with_apply, 0);
    assert!(
        repeated.starts_with("Unchanged") && repeated.contains("nothing to change"),
        "{repeated}"
    );
    let other = [line, &["--max-delay", "3d"]].concat();
    assert!(said(folder, &other, 2).contains("--force"));
}

fn configuration(folder: &Path) -> String {
    std::fs::read_to_string(folder.join(FILE)).unwrap()
}

/// Writes a configuration with this route into a new folder.
fn configured(cluster: &str, route: &str, name: &str) -> PathBuf {
    let folder = folder("init");
    let store = redis().url();
    let text = format!(
        "deployment = \"{name}\"\nstore.redis.url = \"{store}\"\n{cluster}\n[route.r]\n{route}\nmax_delay = \"2d\"\n"
    );
    std::fs::write(folder.join(FILE), text).unwrap();
    folder
}

#[test]
fn an_empty_kafka_gets_topics_and_delivers() {
    let (name, folder, broker) = (unique("init"), folder("init"), kafka());
    let [source, target, dead] = ["delayed", "target", "dead"].map(|it| format!("{name}.{it}"));
    let store = redis().url();
    let line = [
        &[
            "init",
            "--kafka",
            broker.addr(),
            "--store",
            &store,
            "--deployment",
            &name,
        ][..],
        &["--route", "r", "--source", &source, "--target", &target],
        &["--dead-letter", &dead, "--partitions", "3"],
    ]
    .concat();
    initialise(&folder, &line);
    let document = check(&folder, &[], 0);
    for (topic, partitions) in [
        (&source, "3 partitions"),
        (&target, "3 partitions"),
        (&dead, "1 partition"),
    ] {
        let (verdict, found) = item(&document, topic);
        assert!(verdict == "ok" && found.ends_with(partitions), "{found}");
    }
    let (_, found) = item(&document, &format!("{source} retention"));
    assert_eq!(found, "kept for 31d; the longest delay is 30d");
    let _postdate = Postdate::ready_with(&configuration(&folder));
    let sink = Sink::start(broker.addr(), &[&target]);
    let due = now_ms() + 1_000;
    let producer = Producer::start(broker.addr());
    producer.send(&Outgoing::to(&source).header("postdate-at", due.to_string()));
    producer.flush();
    let records = sink.wait_for(1, PATIENCE);
    assert!(records[0].timestamp >= due);
}

#[test]
fn a_short_retention_on_kafka_is_raised_only_on_request() {
    let (name, broker) = (unique("kept"), kafka());
    let source = format!("{name}.delayed");
    let hour = HOUR.as_millis().to_string();
    let settings = [("retention.ms", &*hour), ("retention.bytes", "5000000")];
    broker.create_topic(&source, 1, &settings);
    for topic in ["target", "dead"] {
        broker.create_topic(&format!("{name}.{topic}"), 1, &[]);
    }
    let cluster = format!("[kafka.main]\nbrokers = [\"{}\"]", broker.addr());
    let route = r#"source = { kafka = "main", topics = ["@.delayed"] }
target = { kafka = "main", topic = "@.target" }
dead_letter = { kafka = "main", topic = "@.dead" }"#
        .replace('@', &name);
    let folder = configured(&cluster, &route, &name);
    let retention = |document: &Value| item(document, &format!("{source} retention"));
    assert_eq!(steps(&check(&folder, &["--fix"], 0)), (1, 0));
    let (verdict, found) = retention(&check(&folder, &[], 0));
    assert!(
        verdict == "warn" && found.starts_with("kept for 1h, less than"),
        "{found}"
    );
    let document = check(&folder, &["--fix", "--apply"], 0);
    assert_eq!(steps(&document), (1, 1));
    assert_eq!(
        retention(&document).1,
        "kept for 3d; the longest delay is 2d"
    );
    let text = document.to_string();
    assert!(
        text.contains("keeps only 4.8 MiB"),
        "other settings stay: {text}"
    );
    assert_eq!(steps(&check(&folder, &["--fix", "--apply"], 0)), (0, 0));
}

#[test]
fn an_empty_nats_gets_streams_and_the_planned_rights_are_enough() {
    let (name, folder) = (unique("init"), folder("init"));
    let users =
        |more: &str| format!("authorization {{ users: [{{ user: test, password: test }}{more}] }}");
    let mut own = Nats::start_with(&users(""), Some(("test", "test")));
    let (store, url) = (redis().url(), own.url().replace("://", "://test:test@"));
    let line = [
        "init",
        "--nats",
        &url,
        "--store",
        &store,
        "--deployment",
        &name,
    ];
    initialise(&folder, &line);
    let document = check(&folder, &["--fix"], 0);
    let rights = &document["plan"]["rights"][0];
    assert_eq!(rights["area"], "nats.main");
    let permissions = rights["lines"][0].as_str().unwrap();
    let user = format!(", {{ user: postdate, password: secret, {permissions} }}");
    own.restart_with(&users(&user));
    let config = configuration(&folder).replace("test:test@", "postdate:secret@");
    let mut postdate = Postdate::ready_with(&config);
    let send = |count| {
        own.publish("delayed.orders", &[("postdate-after", "1s")], "x");
        own.wait_for("ORDERS", count, PATIENCE);
    };
    send(1);
    // A restart reads the commits in the bucket, which the first start created.
    assert_eq!(postdate.terminate().0.code(), Some(0));
    postdate.restart();
    postdate.wait_until_ready();
    send(2);
    assert!(postdate.command(&["check"]).status.success());
    let logs = postdate.logs();
    assert!(!logs.to_lowercase().contains("violation"), "{logs}");
}

#[test]
fn a_short_retention_on_nats_is_raised_only_on_request() {
    let (name, own) = (unique("kept"), Nats::start());
    own.create_stream_with(Config {
        name: "IN".to_owned(),
        subjects: vec!["in.>".to_owned()],
        max_age: HOUR,
        description: Some("kept".to_owned()),
        ..Config::default()
    });
    let cluster = format!("[nats.edge]\nurl = \"{}\"", own.url());
    let route = r#"source = { nats = "edge", stream = "IN", subjects = ["in.*"] }
target = { nats = "edge", subject = "out.$1" }
dead_letter = { nats = "edge", subject = "dead" }"#;
    let folder = configured(&cluster, route, &name);
    let settings = || {
        own.ask(async |context| {
            let stream = context.get_stream("IN").await.unwrap();
            stream.cached_info().config.clone()
        })
    };
    assert_eq!(steps(&check(&folder, &["--fix"], 0)), (3, 0));
    let before = settings();
    assert_eq!(before.max_age, HOUR);
    assert_eq!(steps(&check(&folder, &["--fix", "--apply"], 0)), (3, 3));
    let after = settings();
    assert_eq!(after.max_age, 3 * DAY);
    let others = Config {
        max_age: before.max_age,
        ..after
    };
    assert_eq!(others, before, "other settings stay");
    assert_eq!(steps(&check(&folder, &["--fix", "--apply"], 0)), (0, 0));
    let _postdate = Postdate::ready_with(&configuration(&folder));
    own.publish("in.a", &[("postdate-after", "1s")], "x");
    let stored = own.wait_for("OUT", 1, PATIENCE);
    assert_eq!(stored[0].subject, "out.a");
}
