//! Tests `deploy/kafka/acls.sh`: its grants are enough, and each line is needed.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::env::{Guarded, Outgoing, Postdate, Producer, TENANT, eventually};
use crate::login;
use crate::verdict::{LIMIT, Scene};

const PASSWORD: &str = "open-sesame-of-this-test";
const SCRIPT: &str = include_str!("../deploy/kafka/acls.sh");
const PLAIN: &str = "at-least-once";
const EXACT: &str = "exactly-once";

/// How the lack of each right shows, in the order of the script's lines.
const MISSED: &[Missed] = &[
    Missed::Check("may not read it"),
    Missed::Check("may not write to it"),
    Missed::Service(&["Group authorization failed"]),
    Missed::Check("retention"),
    Missed::Check(".target"),
    Missed::Check(".dead"),
    Missed::Redrive(&["Topic authorization failed"]),
    // The client may only say that it finds no coordinator of the group.
    Missed::Redrive(&["Group authorization failed", "imed out", "oordinator"]),
    Missed::Redrive(&["Transactional Id authorization failed"]),
    // The rights from here on are granted only for exactly-once.
    Missed::Service(&["an empty transaction with the group"]),
];

#[derive(Clone, Copy, Debug)]
enum Missed {
    /// `postdate check` says this in an item whose verdict is not `ok`.
    Check(&'static str),
    /// `postdate redrive` fails with one of these texts.
    Redrive(&'static [&'static str]),
    /// The service logs one of these texts.
    Service(&'static [&'static str]),
}

/// Grants and revokes rights as an operator does.
struct Office<'a> {
    kafka: &'a Guarded,
    scene: &'a Scene,
    tool: PathBuf,
}

impl Office<'_> {
    /// Runs the script for routes of this delivery, with only those granting lines that `chosen`
    /// selects by number.
    fn run(&self, delivery: &str, action: &str, chosen: impl Fn(usize) -> bool) {
        let output = self.ran(delivery, action, chosen);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn ran(&self, delivery: &str, action: &str, chosen: impl Fn(usize) -> bool) -> Output {
        let mut number = 0;
        let mut keep = |line: &&str| {
            let grants = line.starts_with("acl --");
            number += usize::from(grants);
            !grants || chosen(number - 1)
        };
        let script: Vec<&str> = SCRIPT.lines().filter(&mut keep).collect();
        assert_eq!(
            number,
            MISSED.len(),
            "a line of the script is not known here"
        );
        let deployment = &self.scene.deployment;
        let mut sh = Command::new("sh");
        sh.arg("-c")
            .arg(script.join("\n"))
            .env("ACTION", action)
            .env("KAFKA_ACLS", &self.tool)
            .env("BOOTSTRAP", self.kafka.addr());
        sh.env("PRINCIPAL", format!("User:{TENANT}"))
            .env("DEPLOYMENT", deployment)
            .env("ROUTE", "r");
        sh.env("SOURCE", &self.scene.source)
            .env("TARGET", &self.scene.target)
            .env("DEAD_LETTER", format!("{deployment}.dead"));
        sh.env("DELIVERY", delivery).output().unwrap()
    }
}

/// The items of `postdate check` that are not `ok`.
fn complaints(postdate: &Postdate) -> String {
    let said = String::from_utf8_lossy(&postdate.command(&["check", "--json"]).stdout).into_owned();
    let document: serde_json::Value =
        serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    let items = document["items"]
        .as_array()
        .unwrap_or_else(|| panic!("{said}"))
        .clone();
    items
        .into_iter()
        .filter(|item| item["area"] == "kafka.main" && item["verdict"] != "ok")
        .map(|item| format!("{item}\n"))
        .collect()
}

/// The exit code and the output of `postdate redrive`.
fn redrive(postdate: &Postdate) -> (Option<i32>, String) {
    let output = postdate.command(&["redrive", "--route", "r", "--yes"]);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code(), said)
}

#[test]
fn the_rights_of_the_script_are_enough_and_each_is_needed() {
    let kafka = Guarded::start(PASSWORD);
    let mut scene = Scene::new(&kafka, "rights", 1);
    let (sink, tool) = (scene.sink(), kafka.acl_tool());
    let user = (TENANT, "SCRAM-SHA-512", PASSWORD);
    let start = |scene: &Scene, more: &str| {
        Postdate::start(&login::config(
            &kafka,
            scene,
            user,
            &kafka.authority(),
            more,
        ))
    };
    let office = Office {
        kafka: &kafka,
        scene: &scene,
        tool: tool.clone(),
    };
    assert_eq!(
        office.ran("twice", "--add", |_| true).status.code(),
        Some(2)
    );
    office.run(PLAIN, "--add", |_| true);
    let mut plain = start(&scene, "max_delay = \"1h\"");
    plain.wait_until_ready();
    scene.send(20, 0..500);
    scene.all_arrive(&sink);
    assert_eq!(complaints(&plain), "");
    assert_eq!(plain.terminate().0.code(), Some(0), "{}", plain.logs());
    // The rights that were granted so far do not allow the group of the markers.
    let exact = "max_delay = \"1h\"\ndelivery = \"exactly-once\"";
    let mut without = start(&scene, exact);
    scene.send(20, 0..500);
    let refused = || {
        ["Transactional Id", "Group"].iter().any(|what| {
            without
                .logs()
                .contains(&format!("{what} authorization failed"))
        })
    };
    eventually("transactions are refused", LIMIT, || {
        refused().then_some(())
    });
    without.kill();
    assert_eq!(
        sink.records().len(),
        20,
        "nothing is delivered without them"
    );
    let office = Office {
        kafka: &kafka,
        scene: &scene,
        tool: tool.clone(),
    };
    office.run(EXACT, "--add", |_| true);
    let mut postdate = start(&scene, exact);
    postdate.wait_until_ready();
    scene.send(20, 0..500);
    scene.all_arrive(&sink);
    postdate.kill();
    for (line, missed) in MISSED.iter().enumerate() {
        let office = Office {
            kafka: &kafka,
            scene: &scene,
            tool: tool.clone(),
        };
        office.run(EXACT, "--remove --force", |each| each == line);
        match *missed {
            Missed::Check(words) => {
                let said = complaints(&postdate);
                assert!(
                    said.lines().count() >= 1 && said.contains(words),
                    "without line {line}: {said}"
                );
            }
            // Below.
            Missed::Redrive(_) => {}
            Missed::Service(words) => {
                let mut without = start(&scene, exact);
                let told =
                    |without: &Postdate| words.iter().any(|words| without.logs().contains(words));
                eventually(&format!("without line {line}: {words:?}"), LIMIT, || {
                    told(&without).then_some(())
                });
                without.kill();
            }
        }
        office.run(EXACT, "--add", |each| each == line);
    }
    // All rights are granted again, so the failures above had no other reason.
    postdate.restart();
    postdate.wait_until_ready();
    scene.send(20, 0..500);
    assert_eq!(scene.all_arrive(&sink), 0);
    scene.ledger_says_all_once(&postdate);
    let dead = format!("{}.dead", scene.deployment);
    let producer = Producer::start(kafka.addr());
    let bury = |number: u32| {
        let origin = format!("{}/r/{}/0/{number}", scene.deployment, scene.source);
        let letter = Outgoing::to(&dead)
            .payload("x")
            .header("postdate-after", "1h")
            .header("postdate-due", "1")
            .header("postdate-origin", origin)
            .header("postdate-error", "timed_out");
        producer.send(&letter);
        producer.flush();
    };
    bury(0);
    let (code, said) = redrive(&postdate);
    assert!(code == Some(0) && said.contains("Sent: 1."), "{said}");
    bury(1);
    for (line, missed) in MISSED.iter().enumerate() {
        let Missed::Redrive(words) = missed else {
            continue;
        };
        let office = Office {
            kafka: &kafka,
            scene: &scene,
            tool: tool.clone(),
        };
        office.run(EXACT, "--remove --force", |each| each == line);
        eventually(&format!("without line {line}: {words:?}"), LIMIT, || {
            let (code, said) = redrive(&postdate);
            (code == Some(1) && words.iter().any(|text| said.contains(text))).then_some(())
        });
        office.run(EXACT, "--add", |each| each == line);
    }
    eventually("the second one is sent", LIMIT, || {
        let (code, said) = redrive(&postdate);
        (code == Some(0) && said.contains("Sent: 1.")).then_some(())
    });
}
