//! Tests `postdate reschedule --reply` while the service is killed: each answer agrees with what arrives. And
//! changes of rescheduled messages before Redis is emptied.

use std::path::Path;
use std::process::Command;
use std::thread::{sleep, spawn};
use std::time::Duration;

use serde_json::Value;

use crate::env::{
    Outgoing, PATIENCE, Postdate, Record, Redis, Sink, eventually, kafka, now_ms, program, redis,
    unique,
};
use crate::service::{config, send_all};

const ROUTES: &str = r#"
[timer]
lease = "1s"

[route.plain]
source = { kafka = "main", topics = ["@.plain"] }
target = { kafka = "main", topic = "@.out" }
allow_replies = ["@.answers"]
dead_letter = { kafka = "main", topic = "@.dead" }

[route.exact]
source = { kafka = "main", topics = ["@.exact"] }
target = { kafka = "main", topic = "@.out" }
allow_replies = ["@.answers"]
dead_letter = { kafka = "main", topic = "@.dead" }
delivery = "exactly-once"
"#;

/// For each message, in milliseconds after the start: its first due time, and the time of its reschedule.
/// The last one is about to be delivered.
const MESSAGES: [(i64, i64); 3] = [(14_000, 0), (14_000, 2_000), (7_000, 6_600)];

/// The due time that each reschedule asks for, after the start.
const LATER: i64 = 18_000;

/// The service is killed at these times: while reschedules are decided, and while messages go back
/// to their source.
const KILLS: [i64; 4] = [2_600, 6_900, 14_000, 14_700];

fn sleep_until(instant: i64) {
    sleep(Duration::from_millis(
        u64::try_from(instant - now_ms()).unwrap_or(0),
    ));
}

/// The exit status of `postdate reschedule`, and the document that it prints.
fn reschedule(folder: &Path, route: &str, id: &str, due: i64) -> (Option<i32>, Value) {
    let due = due.to_string();
    let mut command = Command::new(program());
    command.current_dir(folder).args(["reschedule", "--config"]);
    command.args(["config.toml", "--route", route, "--partition", "0"]);
    command.args(["--id", id, "--at", &due, "--reply", "--json"]);
    let output = command.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = serde_json::from_slice(&output.stdout);
    (
        output.status.code(),
        document.unwrap_or_else(|_| panic!("{errors}")),
    )
}

/// The arrivals of a message, and the due times that they show.
fn due_times(records: &[Record], id: &str) -> Vec<i64> {
    let due = |record: &Record| record.header("postdate-due")?.parse().ok();
    let own = records
        .iter()
        .filter(|record| record.payload.as_deref() == Some(id.as_bytes()));
    own.map(|record| due(record).expect("a due time")).collect()
}

#[test]
fn rescheduled_messages_arrive_at_the_answered_due_time_although_the_service_is_killed() {
    let deployment = unique("reschedule");
    let topic = |name: &str| format!("{deployment}.{name}");
    for name in ["plain", "exact", "out", "answers", "dead"] {
        kafka().create_topic(&topic(name), 1, &[]);
    }
    let mut postdate =
        Postdate::ready_with(&config(&deployment, &ROUTES.replace('@', &deployment)));
    let arrivals = Sink::start(kafka().addr(), &[&topic("out")]);
    let start = now_ms() + 1_000;
    let mut commands = Vec::new();
    for route in ["plain", "exact"] {
        for (number, (first, at)) in MESSAGES.into_iter().enumerate() {
            let (route, id) = (route.to_owned(), format!("{route}-{number}"));
            let message = Outgoing::to(&topic(&route)).partition(0).payload(&id);
            let message = message.header("postdate-id", &id);
            send_all(&[message.header("postdate-at", (start + first).to_string())]);
            let folder = postdate.folder().to_owned();
            commands.push(spawn(move || {
                sleep_until(start + at);
                let answer = reschedule(&folder, &route, &id, start + LATER);
                (route, id, start + first, answer)
            }));
        }
    }
    for kill in KILLS {
        sleep_until(start + kill);
        postdate.kill();
        postdate.restart();
    }
    let mut moved = 0;
    for command in commands {
        let (route, id, first, (status, document)) = command.join().expect("a command");
        let expected = match document["answer"]["outcome"].as_str() {
            Some("rescheduled") => (Some(0), start + LATER),
            Some("not_found") => (Some(3), first),
            Some("too_late") => (Some(4), first),
            _ => panic!("{id}: {status:?} {document}"),
        };
        moved += usize::from(status == Some(0));
        let seen = eventually(&format!("{id} arrives"), PATIENCE, || {
            Some(due_times(&arrivals.records(), &id)).filter(|seen| !seen.is_empty())
        });
        assert_eq!((status, seen[0]), expected, "{id}: {document}");
        let is_early = |record: &Record| {
            record.payload.as_deref() == Some(id.as_bytes()) && record.timestamp < expected.1
        };
        assert!(!arrivals.records().iter().any(is_early), "{id} is early");
        // A kill may repeat a message, with the same due time.
        sleep(Duration::from_millis(500));
        let seen = due_times(&arrivals.records(), &id);
        assert!(seen.iter().all(|due| *due == expected.1), "{id}: {seen:?}");
        assert!(route == "plain" || seen.len() == 1, "{id}: {seen:?}");
    }
    assert!(moved >= 4, "{moved} reschedules were in time");
}

/// A record that names the message `id`, with an answer if `is_request` is set.
fn naming(topic: &str, id: &str, headers: &[(&str, String)], is_request: bool) -> Outgoing {
    let record = Outgoing::to(topic).partition(0).header("postdate-id", id);
    let record = match is_request {
        true => record.header("postdate-reply-to", topic_beside(topic, "answers")),
        false => record,
    };
    headers
        .iter()
        .fold(record, |record, (name, value)| record.header(name, value))
}

/// Another topic of the same test.
fn topic_beside(topic: &str, name: &str) -> String {
    let (deployment, _) = topic.split_once('.').expect("the deployment is in front");
    format!("{deployment}.{name}")
}

/// The last offset commit is older than the records that have gone back to their source.
#[test]
fn changes_of_rescheduled_messages_hold_when_redis_is_emptied_after_them() {
    let deployment = unique("moved");
    let topic = |name: &str| format!("{deployment}.{name}");
    for name in ["plain", "exact", "out", "answers", "dead"] {
        kafka().create_topic(&topic(name), 1, &[]);
    }
    let mut own = Redis::start();
    let config = config(&deployment, &ROUTES.replace('@', &deployment));
    let config = config.replace(&redis().url(), &own.url());
    let _postdate = Postdate::ready_with(&config);
    let sink = |names: &[&str]| {
        let topics: Vec<String> = names.iter().map(|name| topic(name)).collect();
        Sink::start(
            kafka().addr(),
            &Vec::from_iter(topics.iter().map(String::as_str)),
        )
    };
    let (sources, answers) = (sink(&["plain", "exact"]), sink(&["answers"]));
    let arrivals = sink(&["out", "dead"]);
    let start = now_ms() + 1_000;
    let at = |due: i64| ("postdate-at", (start + due).to_string());
    let op = |name: &str| ("postdate-op", name.to_owned());
    let ids =
        ["plain", "exact"].map(|route| [0, 1, 2, 3].map(|number| format!("{route}-{number}")));
    let ids: Vec<String> = ids.into_iter().flatten().collect();
    let source = |id: &str| topic(&id[..5]);
    let scheduled = ids.iter().flat_map(|id| {
        let message = naming(&source(id), id, &[at(1_000)], false).payload(id);
        let moved = naming(&source(id), id, &[op("reschedule"), at(15_000)], false);
        [message, moved]
    });
    send_all(&scheduled.collect::<Vec<_>>());
    let is_back = |record: &&Record| record.header("postdate-retry").is_some();
    let are_back = |records: &[Record]| records.iter().filter(is_back).count() >= ids.len();
    sources.wait_until("all are sent back", PATIENCE, are_back);
    let is_cancelled = |id: &str| id.ends_with(['0', '1']);
    let changes = ids.iter().map(|id| {
        let headers = match is_cancelled(id) {
            true => vec![op("cancel")],
            false => vec![op("reschedule"), at(20_000)],
        };
        naming(&source(id), id, &headers, true)
    });
    send_all(&changes.collect::<Vec<_>>());
    let answered = answers.wait_for(ids.len(), PATIENCE);
    own.flush_all();
    for answer in answered {
        let answer: Value = serde_json::from_slice(&answer.payload.unwrap()).unwrap();
        let id = answer["id"].as_str().unwrap();
        let expected = if is_cancelled(id) {
            "cancelled"
        } else {
            "rescheduled"
        };
        assert_eq!(answer["outcome"], expected, "{answer}");
    }
    let count = ids.len() / 2;
    arrivals.wait_for(count, PATIENCE);
    sleep_until(start + 22_000);
    for id in &ids {
        let mut seen = due_times(&arrivals.records(), id);
        if id.starts_with("plain") {
            seen.dedup();
        }
        let expected = if is_cancelled(id) {
            vec![]
        } else {
            vec![start + 20_000]
        };
        assert_eq!(seen, expected, "{id}");
    }
}
