//! Tests the operator commands `send`, `pending`, `ledger`, `workers` and `check`, with and without a
//! running service.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::env::{Kafka, PATIENCE, Postdate, Redis, eventually, kafka, now_ms, redis};
use crate::verdict::{LIMIT, Scene};

/// Runs a command in the service's folder, with its configuration.
fn run(service: &Postdate, arguments: &[&str]) -> Output {
    run_with(service, "config.toml", arguments, "")
}

fn run_with(service: &Postdate, config: &str, arguments: &[&str], input: &str) -> Output {
    run_in(service.folder(), config, arguments, input)
}

fn run_in(folder: &Path, config: &str, arguments: &[&str], input: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_postdate"));
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTDATE_"))
    {
        program.env_remove(name);
    }
    program
        .arg(arguments[0])
        .args(["--config", config])
        .args(&arguments[1..])
        .current_dir(folder);
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

fn told(output: &Output, code: i32) -> String {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
    assert!(
        code > 0 || err.is_empty(),
        "nothing but the answer is said: {err}"
    );
    format!("{out}{err}")
}

fn document(output: &Output, code: i32) -> Value {
    let text = told(output, code);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Verdict and finding of the check item with this subject.
fn item<'d>(check: &'d Value, subject: &str) -> (&'d str, &'d str) {
    let item = check["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["subject"] == subject);
    let item = item.unwrap_or_else(|| panic!("no item {subject}: {check:#}"));
    (
        item["verdict"].as_str().unwrap(),
        item["found"].as_str().unwrap(),
    )
}

fn sends_and_looks(postdate: &Postdate, scene: &Scene) {
    let sink = scene.sink();
    let send = |id, partition, [when, due]: [&str; 2]| {
        let line = [
            "send",
            "--route",
            "r",
            "--key",
            "k",
            "--partition",
            partition,
            when,
            due,
            "--id",
            id,
            "--json",
            "later",
        ];
        document(&run(postdate, &line), 0)
    };
    let sent = send("a:1", "0", ["--in", "1h"]);
    let origin = sent["origin"].as_str().unwrap().to_owned();
    assert!(
        origin.starts_with(&format!("{}/r/{}/", scene.deployment, scene.source)),
        "{origin}"
    );
    let found = eventually("the message waits under its id", PATIENCE, || {
        let output = run(postdate, &["pending", "--id", "a:1", "--json"]);
        (output.status.code() == Some(0)).then(|| document(&output, 0))
    });
    let place = &found["found"][0];
    for field in ["partition", "offset", "due_ms"] {
        assert_eq!(place[field], sent[field], "{field}");
    }
    assert!(told(&run(postdate, &["pending", "--id", "a:1"]), 0).contains("(in "));

    let is_found = |id| run(postdate, &["pending", "--id", id]).status.code() == Some(0);
    send("b:1", "1", ["--at", &sent["due_ms"].to_string()]);
    eventually("the second message waits under its id", PATIENCE, || {
        is_found("b:1").then_some(())
    });
    let report = document(&run(postdate, &["pending", "--json"]), 0);
    assert_eq!(
        (&report["total"]["messages"], &report["routes"][0]["route"]),
        (&Value::from(2), &Value::from("r"))
    );
    let hours = report["hours"].as_array().unwrap();
    let hour = sent["due_ms"].as_i64().unwrap() / 3_600_000 * 3_600_000;
    assert_eq!(
        (hours.len(), hours[0]["start_ms"].as_i64()),
        (1, Some(hour))
    );
    let text = told(&run(postdate, &["pending"]), 0);
    assert!(
        text.contains("DUE, BY HOUR (UTC)")
            && text.contains(" 2  ####")
            && !text.contains('\u{1b}'),
        "{text}"
    );

    // The key selects the same partition for both. The id selects the partition on which the
    // message waits.
    for (id, partition) in [("a:1", 0), ("b:1", 1)] {
        let cancel = [
            "send", "--route", "r", "--key", "k", "--cancel", "--id", id, "--json",
        ];
        assert_eq!(document(&run(postdate, &cancel), 0)["partition"], partition);
        eventually("the cancelled message is gone", PATIENCE, || {
            (!is_found(id)).then_some(())
        });
    }

    let line = [
        "send",
        "--route",
        "r",
        "--key",
        "k",
        "--header",
        "h=v",
        "--header",
        "postdate-spread=2s",
        "--in",
        "500ms",
        "--json",
        "-",
    ];
    let sent = document(&run_with(postdate, "config.toml", &line, "from a pipe"), 0);
    let arrived = sink.wait_for(1, LIMIT).remove(0);
    assert_eq!(
        (arrived.payload.as_deref(), arrived.key.as_deref()),
        (Some(&b"from a pipe"[..]), Some(&b"k"[..]))
    );
    assert_eq!(
        (arrived.header("h"), arrived.header("postdate-origin")),
        (Some("v"), sent["origin"].as_str())
    );
    assert_eq!(
        arrived.header("postdate-due"),
        Some(&*sent["due_ms"].to_string())
    );
    assert!(
        arrived.timestamp >= sent["due_ms"].as_i64().unwrap(),
        "early"
    );
}

#[test]
fn a_sent_message_is_found_while_it_waits_and_is_cancelled_or_arrives() {
    let scene = Scene::new(kafka(), "command_redis", 2);
    let postdate = Postdate::ready_with(&scene.config(redis()));
    sends_and_looks(&postdate, &scene);
}

#[test]
fn commands_ask_the_service_that_has_the_embedded_store() {
    let scene = Scene::new(kafka(), "command_folder", 2);
    let mut postdate = Postdate::start(&scene.config_stored("", ""));
    postdate.wait_until_ready();
    sends_and_looks(&postdate, &scene);
    told(
        &run(
            &postdate,
            &[
                "send", "--route", "r", "--in", "1h", "--id", "stays", "later",
            ],
        ),
        0,
    );
    eventually("it waits", PATIENCE, || {
        (run(&postdate, &["pending", "--id", "stays"]).status.code() == Some(0)).then_some(())
    });
    // Delivered messages leave the count after a while. Cancelled messages count until their due
    // time.
    let served =
        || -> Value { serde_json::from_str(&postdate.get("/pending").unwrap().1).unwrap() };
    eventually("it waits, beside what was cancelled", PATIENCE, || {
        (served()["total"]["messages"] == 3).then_some(())
    });
    let (status, body) = postdate.get("/pending").unwrap();
    let (served, mut printed): (Value, Value) = (
        serde_json::from_str(&body).unwrap(),
        document(&run(&postdate, &["pending", "--json"]), 0),
    );
    printed["at_ms"] = served["at_ms"].clone();
    assert_eq!((status, &served), (200, &printed), "the same document");
    assert_eq!(postdate.get("/pending?nonsense=1").unwrap().0, 400);
    let check = document(&run(&postdate, &["check", "--json"]), 0);
    assert!(
        item(&check, "folder").1.ends_with("a service runs"),
        "{check:#}"
    );

    let ledger = document(&run(&postdate, &["ledger", "--json"]), 0);
    let accepted = ledger["total"]["accepted"].as_u64().unwrap();
    assert!(ledger["balances"] == true && accepted >= 3, "{ledger:#}");
    let (_, served) = postdate.get("/ledger").unwrap();
    let served: Value = serde_json::from_str(&served).unwrap();
    assert_eq!(
        (&served["total"], postdate.get("/ledger?id=x").unwrap().0),
        (&ledger["total"], 400)
    );
    let shown = || {
        postdate
            .metrics()
            .sum_where("postdate_ledger_messages", &[("count", "accepted")]) as u64
    };
    eventually("the metrics show the ledger", PATIENCE, || {
        (shown() == accepted).then_some(())
    });
    assert!(
        postdate
            .metrics()
            .contains("postdate_ledger_difference_messages")
    );

    let workers = document(&run(&postdate, &["workers", "--json"]), 0);
    let worker = &workers["workers"][0];
    let is_live = worker["expires_in_ms"].as_u64() > Some(0) && worker["connected"] == true;
    assert!(is_live && workers["workers"][1].is_null(), "{workers:#}");
    assert_eq!(
        (
            &worker["delivers"]["shards"],
            &workers["without_worker"]["shards"]
        ),
        (&json!(2), &json!(0)),
        "{workers:#}"
    );
    assert!(told(&run(&postdate, &["workers"]), 0).contains("ingress,timer"));

    // The service has stopped, so the commands open the folder themselves.
    postdate.terminate();
    let workers = document(&run(&postdate, &["workers", "--json"]), 0);
    assert_eq!(
        (&workers["workers"], &workers["without_worker"]["shards"]),
        (&json!([]), &json!(2))
    );
    assert!(told(&run(&postdate, &["ledger"]), 0).contains(&format!("r {}/0", scene.source)));
    told(&run(&postdate, &["ledger", "--route", "nobody"]), 2);
    assert_eq!(
        document(&run(&postdate, &["pending", "--json"]), 0)["total"],
        printed["total"]
    );
    told(&run(&postdate, &["pending", "--id", "stays"]), 0);
}

#[test]
fn send_refuses_a_message_that_would_become_a_dead_letter() {
    let scene = Scene::new(kafka(), "command_refused", 1);
    let postdate = Postdate::start(&scene.config(redis()));
    let before = kafka().offsets(&scene.source, 0);
    for (line, words) in [
        (
            &["send", "--route", "r", "--in", "1 hour", "x"][..],
            "(invalid_after): postdate-after is \"1 hour\"",
        ),
        (
            &["send", "--route", "r", "--in", "99d", "x"],
            "(delay_above_max): ",
        ),
        (
            &[
                "send",
                "--route",
                "r",
                "--in",
                "1s",
                "--to",
                "elsewhere",
                "x",
            ],
            "(target_not_allowed): ",
        ),
        (
            &["send", "--route", "s", "--in", "1s", "x"],
            "choose from: r",
        ),
        (
            &[
                "send", "--route", "r", "--topic", "other", "--in", "1s", "x",
            ],
            "does not read a topic",
        ),
        (&["send", "--route", "r", "--in", "1s"], "required"),
    ] {
        let text = told(&run(&postdate, line), 2);
        assert!(text.contains(words), "{line:?}: {text}");
    }
    assert_eq!(kafka().offsets(&scene.source, 0), before);
}

#[test]
fn send_reports_unreachable_servers_within_half_a_minute() {
    let folder = tempfile::tempdir().unwrap();
    // The service honours this timeout, but a command must not wait that long.
    let properties = "properties = { \"delivery.timeout.ms\" = 600000 }";
    for (file, cluster, source, target) in [
        (
            "kafka.toml",
            format!("[kafka.main]\nbrokers = [\"127.0.0.1:1\"]\n{properties}"),
            "topics = [\"a\"]",
            "topic",
        ),
        (
            "nats.toml",
            "[nats.main]\nurl = \"nats://127.0.0.1:1\"".to_owned(),
            "stream = \"S\", subjects = [\"a\"]",
            "subject",
        ),
    ] {
        let kind = file.trim_end_matches(".toml");
        let config = format!(
            "deployment = \"d\"\n[store.redis]\nurl = \"redis://127.0.0.1:1\"\n{cluster}\n[route.r]\nsource = {{ {kind} = \"main\", {source} }}\n\
             target = {{ {kind} = \"main\", {target} = \"b\" }}\ndead_letter = {{ {kind} = \"main\", {target} = \"c\" }}\n"
        );
        std::fs::write(folder.path().join(file), config).unwrap();
    }
    std::thread::scope(|scope| {
        for file in ["kafka.toml", "nats.toml"] {
            let folder = folder.path();
            scope.spawn(move || {
                let begun = Instant::now();
                let said = told(
                    &run_in(
                        folder,
                        file,
                        &["send", "--route", "r", "--in", "1h", "--id", "x", "later"],
                        "",
                    ),
                    1,
                );
                assert!(
                    begun.elapsed() < Duration::from_secs(30),
                    "{file}: {:?}",
                    begun.elapsed()
                );
                assert!(
                    said.contains("main has not confirmed it within 10 s: ")
                        && said.contains("Connection refused"),
                    "{file}: {said}"
                );
                assert!(
                    said.contains("look before you send it again"),
                    "{file}: {said}"
                );
            });
        }
    });
}

#[test]
fn check_passes_a_good_setup() {
    let scene = Scene::new(kafka(), "command_good", 3);
    let postdate = Postdate::ready_with(&scene.config(redis()));
    let check = document(&run(&postdate, &["check", "--json"]), 0);
    assert_eq!(
        (
            check["fail"].as_u64(),
            item(&check, "reachable").0,
            item(&check, "scripts").0
        ),
        (Some(0), "ok", "ok"),
        "{check:#}"
    );
    assert_eq!(item(&check, "formats").0, "ok", "{check:#}");
    assert_eq!(
        item(&check, &scene.source),
        ("ok", "source of r: 3 partitions")
    );
    // The topic has the default retention of seven days, and `max_delay` is thirty days.
    let (verdict, found) = item(&check, &format!("{} retention", scene.source));
    assert!(
        verdict == "warn" && found.contains("kept for 7d, less than route.r.max_delay 30d"),
        "{found}"
    );
    assert_eq!(
        (
            item(&check, "maxmemory").0,
            item(&check, "persistence").0,
            item(&check, "clock").0
        ),
        ("warn", "ok", "ok")
    );
    let text = told(&run(&postdate, &["check"]), 0);
    assert!(text.contains(" ok, 2 warnings, 0 failed\n"), "{text}");
}

#[test]
fn check_names_missing_topics_and_messages_of_removed_routes() {
    let scene = Scene::new(kafka(), "command_missing", 2);
    let postdate = Postdate::ready_with(&scene.config(redis()));
    told(
        &run(
            &postdate,
            &[
                "send", "--route", "r", "--key", "k", "--in", "1h", "--id", "left", "x",
            ],
        ),
        0,
    );
    eventually("it waits", PATIENCE, || {
        (run(&postdate, &["pending", "--id", "left"]).status.code() == Some(0)).then_some(())
    });
    let renamed = scene
        .config(redis())
        .replace("[route.r]", "[route.renamed]")
        .replace(&format!("{}.dead", scene.deployment), "command.no.such");
    std::fs::write(postdate.folder().join("renamed.toml"), renamed).unwrap();
    let check = document(
        &run_with(&postdate, "renamed.toml", &["check", "--json"], ""),
        1,
    );
    assert_eq!(
        item(&check, "command.no.such"),
        ("fail", "dead-letter topic of renamed does not exist")
    );
    assert_eq!(item(&check, &scene.target).0, "ok");
    let (verdict, found) = item(&check, "route r");
    assert!(
        verdict == "warn"
            && found.starts_with("1 message of a route that the configuration no longer has"),
        "{found}"
    );
    let text = told(&run_with(&postdate, "renamed.toml", &["pending"], ""), 0);
    assert!(
        text.contains("r (!)") && text.contains("(!) route r: not in the configuration"),
        "{text}"
    );
    told(
        &run_with(
            &postdate,
            "renamed.toml",
            &["pending", "--route", "never"],
            "",
        ),
        2,
    );
}

#[test]
fn check_of_unsuitable_servers_fails_in_time_with_the_reason() {
    let scene = Scene::new(kafka(), "command_bad", 1);
    let evicting = Redis::start();
    ::redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory-policy")
        .arg("allkeys-lru")
        .exec(&mut evicting.client())
        .unwrap();
    let postdate = Postdate::start(
        &scene
            .config(&evicting)
            .replace(kafka().addr(), "127.0.0.1:1"),
    );
    let start = now_ms();
    let check = document(&run(&postdate, &["check", "--json"]), 1);
    assert!(now_ms() - start < 60_000, "it is bounded");
    let (verdict, found) = item(&check, "reachable");
    assert!(
        verdict == "fail" && found.contains("127.0.0.1:1"),
        "{found}"
    );
    let (verdict, found) = item(&check, "maxmemory-policy");
    assert!(
        verdict == "fail" && found.starts_with("allkeys-lru"),
        "{found}"
    );
    told(&run(&postdate, &["pending"]), 1);
    std::fs::write(postdate.folder().join("broken.toml"), "deployment = 7\n").unwrap();
    told(&run_with(&postdate, "broken.toml", &["check"], ""), 2);
}

#[test]
fn check_does_not_hang_on_a_paused_cluster() {
    let own = Kafka::start();
    let scene = Scene::new(&own, "command_paused", 1);
    let postdate = Postdate::start(&scene.config(redis()));
    own.pause();
    let check = document(&run(&postdate, &["check", "--json"]), 1);
    own.resume();
    assert_eq!(item(&check, "reachable").0, "fail");
    assert_eq!(item(&check, "redis reachable").0, "ok");
}
