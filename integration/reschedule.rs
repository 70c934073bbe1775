//! Tests `postdate reschedule --reply` while the service is killed: each answer agrees with what arrives.

use std::path::Path;
use std::process::Command;
use std::thread::{sleep, spawn};
use std::time::Duration;

use serde_json::Value;

use crate::env::{
    Outgoing, PATIENCE, Postdate, Record, Sink, eventually, kafka, now_ms, program, unique,
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
