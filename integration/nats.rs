//! Tests Postdate's promises for NATS users, on streams and subjects and between NATS and Kafka.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream::stream::{Config, RetentionPolicy};

use crate::env::{
    Nats, Outgoing, PATIENCE, Postdate, Producer, Redis, Sink, Stored, eventually, kafka, nats,
    now_ms, redis, rfc3339_in, unique,
};

/// A deployment with routes between NATS and Kafka, on its own streams and topics.
pub(crate) struct Bridge {
    name: String,
    postdate: Postdate,
}

const ROUTES: &str = r#"
[kafka.main]
brokers = ["KAFKA"]

[nats.edge]
url = "NATS"

[route.there]
source = { nats = "edge", stream = "@_IN", subjects = ["@.in.orders.*", "@.in.other"] }
target = { nats = "edge", subject = "@.out.all" }
allow = ["@.out.>", "@.nobody"]
dead_letter = { nats = "edge", subject = "@.dead" }
retry = { max_attempts = 2, backoff = "100ms" }

[route.mapped]
source = { nats = "edge", stream = "@_IN", subjects = ["@.in.mapped.*.*"] }
target = { nats = "edge", subject = "@.out.$2.$1" }
dead_letter = { nats = "edge", subject = "@.dead" }

[route.to_kafka]
source = { nats = "edge", stream = "@_IN", subjects = ["@.in.kafka.>"] }
target = { kafka = "main", topic = "@.target" }
dead_letter = { nats = "edge", subject = "@.dead" }
dialects = ["nats"]

[route.to_nats]
source = { kafka = "main", topics = ["@.delayed"] }
target = { nats = "edge", subject = "@.out.kafka" }
allow = ["@.out.*", "@.nobody"]
dead_letter = { kafka = "main", topic = "@.dead" }
dialects = ["nats"]
retry = { max_attempts = 2, backoff = "100ms" }
"#;

pub(crate) fn config(name: &str, redis: &str, nats: &str, routes: &str) -> String {
    let store = format!("deployment = \"{name}\"\n[store.redis]\nurl = \"{redis}\"\n");
    let routes = routes.replace('@', name);
    (store + &routes)
        .replace("KAFKA", kafka().addr())
        .replace("NATS", nats)
}

/// Creates a source stream, a target stream and a dead-letter stream.
pub(crate) fn create_streams(nats: &Nats, name: &str) {
    for (stream, subject) in [("IN", "in.>"), ("OUT", "out.>"), ("DEAD", "dead")] {
        nats.create_stream(&format!("{name}_{stream}"), &[&format!("{name}.{subject}")]);
    }
}

impl Bridge {
    pub(crate) fn start() -> Bridge {
        let name = unique("bridge");
        create_streams(nats(), &name);
        for topic in ["delayed", "target", "dead"] {
            kafka().create_topic(&format!("{name}.{topic}"), 1, &[]);
        }
        let postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), ROUTES));
        Bridge { name, postdate }
    }

    pub(crate) fn called(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    pub(crate) fn stream(&self, name: &str) -> String {
        format!("{}_{name}", self.name)
    }
}

pub(crate) fn due(stored: &Stored) -> i64 {
    stored
        .header("postdate-due")
        .expect("a due")
        .parse()
        .expect("a number")
}

/// The headers, except those that differ from run to run.
pub(crate) fn plain(stored: &Stored) -> Vec<(&str, &str)> {
    let own = ["postdate-due", "postdate-origin", "Nats-Msg-Id"];
    let headers = stored
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    headers.filter(|(name, _)| !own.contains(name)).collect()
}

#[test]
fn messages_go_from_subject_to_subject_at_their_due_time() {
    let bridge = Bridge::start();
    let headers = [
        ("postdate-after", "1500ms"),
        ("b", "2"),
        ("a", "1"),
        ("b", "1"),
        ("Nats-Msg-Id", "mine"),
    ];
    let before = now_ms();
    let sequence = nats().publish(&bridge.called("in.orders.eu"), &headers, "one");
    nats().publish(
        &bridge.called("in.other"),
        &[
            ("postdate-after", "1s"),
            ("postdate-to", &bridge.called("out.x.y")),
        ],
        "two",
    );
    nats().publish(&bridge.called("in.other"), &[], "at once");
    nats().publish(
        &bridge.called("in.mapped.a.b"),
        &[("postdate-after", "2s")],
        "mapped",
    );
    let stored = nats().wait_for(&bridge.stream("OUT"), 4, PATIENCE);
    // They come from several subjects, so no order is promised.
    let by_payload = |payload: &str| {
        let found = stored.iter().find(|it| it.payload == payload.as_bytes());
        found.unwrap_or_else(|| panic!("{payload} is missing: {stored:?}"))
    };
    for (payload, subject, delay) in [
        ("at once", "out.all", None),
        ("two", "out.x.y", Some(1_000)),
        ("one", "out.all", Some(1_500)),
        ("mapped", "out.b.a", Some(2_000)),
    ] {
        let found = by_payload(payload);
        assert_eq!(found.subject, bridge.called(subject));
        let Some(delay) = delay else { continue };
        let early = due(found) - found.stored;
        assert!(early <= 0, "{payload} is {early} ms early");
        let planned = due(found) - before;
        assert!(planned >= delay, "{payload} is due after {planned} ms");
    }
    let one = by_payload("one");
    let subject = bridge.called("in.orders.eu");
    assert_eq!(
        plain(one),
        [
            ("a", "1"),
            ("b", "2"),
            ("b", "1"),
            ("postdate-subject", subject.as_str())
        ]
    );
    let origin = format!("{0}/there/{0}_IN:{0}.in.orders.*/0/{sequence}", bridge.name);
    assert_eq!(
        (one.header("postdate-origin"), one.header("Nats-Msg-Id")),
        (Some(origin.as_str()), Some(origin.as_str()))
    );
}

#[test]
fn the_commands_accept_subjects() {
    let bridge = Bridge::start();
    let (subject, dead) = (bridge.called("in.mapped.x.y"), bridge.called("dead"));
    let said = |arguments: &[&str]| {
        let output = bridge.postdate.command(arguments);
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let (sent, text) = said(&[
        "send",
        "--route",
        "mapped",
        "--subject",
        &subject,
        "--in",
        "1h",
        "--id",
        "later",
        "payload",
    ]);
    assert!(
        sent && text.contains(&bridge.called("out.y.x")) && text.contains(" offset 1"),
        "{text}"
    );
    let (sent, text) = said(&["send", "--route", "mapped", "--in", "1s", "payload"]);
    assert!(!sent && text.contains("--subject"), "{text}");
    let (sent, text) = said(&[
        "send",
        "--route",
        "there",
        "--subject",
        &dead,
        "--in",
        "1s",
        "payload",
    ]);
    assert!(
        !sent && text.contains("does not read the subject"),
        "{text}"
    );
    eventually("it waits", PATIENCE, || {
        said(&["pending", "--id", "later"]).0.then_some(())
    });
    let (fine, text) = said(&["check"]);
    assert!(fine && text.contains("limits retention"), "{text}");
    let (sent, text) = said(&[
        "send",
        "--route",
        "mapped",
        "--subject",
        &subject,
        "--id",
        "later",
        "--cancel",
    ]);
    assert!(sent, "{text}");
    eventually("it waits no more", PATIENCE, || {
        (!said(&["pending", "--id", "later"]).0).then_some(())
    });
}

#[test]
fn a_refused_message_becomes_a_dead_letter_with_its_reason() {
    let bridge = Bridge::start();
    let wrong = [
        (&[("postdate-after", "soon")][..], "invalid_after"),
        (
            &[("postdate-after", "1s"), ("postdate-to", "elsewhere")],
            "target_not_allowed",
        ),
        (
            &[("postdate-after", "1s"), ("postdate-to", "out.*")],
            "invalid_target",
        ),
        (
            &[("postdate-after", "1s"), ("postdate-to", "$JS.API.INFO")],
            "invalid_target",
        ),
    ];
    for (headers, _) in &wrong {
        nats().publish(&bridge.called("in.other"), headers, "x");
    }
    let looped = bridge.called("in.orders.eu");
    nats().publish(
        &bridge.called("in.other"),
        &[("postdate-after", "1s"), ("postdate-to", &looped)],
        "x",
    );
    let stored = nats().wait_for(&bridge.stream("DEAD"), 5, PATIENCE);
    let found: Vec<_> = stored
        .iter()
        .map(|stored| stored.header("postdate-error").expect("a reason"))
        .collect();
    let expected: Vec<_> = wrong
        .iter()
        .map(|(_, reason)| *reason)
        .chain(["target_is_source"])
        .collect();
    assert_eq!(found, expected);
    assert_eq!(
        stored[0].header("postdate-after"),
        Some("soon"),
        "what it brought stays on it"
    );
    let sequence = nats().publish(
        &bridge.called("in.orders.eu"),
        &[
            ("postdate-after", "1s"),
            ("postdate-to", &bridge.called("nobody")),
        ],
        "x",
    );
    let dead = nats()
        .wait_for(&bridge.stream("DEAD"), 6, PATIENCE)
        .pop()
        .unwrap();
    let origin = format!("{0}/there/{0}_IN:{0}.in.orders.*/0/{sequence}", bridge.name);
    assert_eq!(
        (
            dead.header("postdate-error"),
            dead.header("postdate-origin")
        ),
        (Some("unknown_target"), Some(origin.as_str()))
    );
    assert_eq!(
        nats().count(&bridge.stream("IN")),
        7,
        "it went back through its source once"
    );
}

#[test]
fn kafka_records_arrive_on_a_subject_byte_for_byte() {
    let bridge = Bridge::start();
    let to = bridge.called("delayed");
    let producer = Producer::start(kafka().addr());
    let sent = [
        Outgoing::to(&to)
            .key("text")
            .payload([0, 255])
            .header("postdate-after", "1s")
            .header("h", "1")
            .header("Nats-Msg-Id", "x"),
        Outgoing::to(&to)
            .key([255, 0])
            .payload("")
            .header("postdate-after", "1s"),
        Outgoing::to(&to)
            .header("postdate-after", "1s")
            .header("empty", ""),
        Outgoing::to(&to)
            .payload("bad")
            .header("postdate-after", "1s")
            .header("binary", [255]),
        Outgoing::to(&to)
            .payload("null")
            .header("postdate-after", "1s")
            .null_header("null"),
        Outgoing::to(&to)
            .payload("nobody")
            .header("postdate-after", "1s")
            .header("postdate-to", bridge.called("nobody")),
    ];
    let dead = Sink::start(kafka().addr(), &[&bridge.called("dead")]);
    sent.iter().for_each(|outgoing| producer.send(outgoing));
    producer.flush();
    let stored = nats().wait_for(&bridge.stream("OUT"), 3, PATIENCE);
    let found: Vec<_> = stored
        .iter()
        .map(|stored| (plain(stored), stored.payload.as_slice()))
        .collect();
    assert_eq!(
        found,
        [
            (
                vec![("h", "1"), ("postdate-key", "text")],
                [0, 255].as_slice()
            ),
            (vec![("postdate-key-base64", "/wA=")], b"".as_slice()),
            (
                vec![("empty", ""), ("postdate-null-payload", "true")],
                b"".as_slice()
            ),
        ]
    );
    let dead = dead.wait_for(3, PATIENCE);
    let mut found: Vec<_> = dead
        .iter()
        .map(|record| record.header("postdate-error").expect("a reason"))
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        ["invalid_header", "invalid_header", "unknown_target"]
    );
}

#[test]
fn messages_arrive_on_a_topic_byte_for_byte() {
    let bridge = Bridge::start();
    let target = Sink::start(kafka().addr(), &[&bridge.called("target")]);
    let subject = bridge.called("in.kafka.eu.berlin");
    nats().publish(
        &subject,
        &[("postdate-after", "1s"), ("postdate-key", "k"), ("h", "1")],
        [0, 255],
    );
    nats().publish(
        &subject,
        &[
            ("postdate-after", "1100ms"),
            ("postdate-key-base64", "/wA="),
        ],
        "",
    );
    nats().publish(
        &subject,
        &[
            ("postdate-after", "1200ms"),
            ("postdate-null-payload", "true"),
        ],
        "",
    );
    let records = target.wait_for(3, PATIENCE);
    let header = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
    let parts: Vec<_> = records
        .iter()
        .map(|record| (record.key.as_deref(), record.payload.as_deref()))
        .collect();
    let expected: [(Option<&[u8]>, Option<&[u8]>); 3] = [
        (Some(b"k"), Some(&[0, 255])),
        (Some(&[255, 0]), Some(b"")),
        (None, None),
    ];
    assert_eq!(parts, expected);
    assert_eq!(
        records[0].headers[..2],
        [header("postdate-subject", &subject), header("h", "1")]
    );
}

/// The producer was written for the NATS server's own schedules, and Kafka passes their headers
/// through.
#[test]
fn the_servers_own_schedule_headers_are_understood_and_never_passed_on() {
    let bridge = Bridge::start();
    let (at, to) = (
        format!("@at {}", rfc3339_in(2)),
        bridge.called("out.scheduled"),
    );
    let producer = Producer::start(kafka().addr());
    let source = bridge.called("delayed");
    producer.send(
        &Outgoing::to(&source)
            .payload("x")
            .header("Nats-Schedule", &*at)
            .header("Nats-Schedule-Target", &*to),
    );
    producer.flush();
    let stored = nats().wait_for(&bridge.stream("OUT"), 1, PATIENCE);
    assert_eq!(
        (stored[0].subject.as_str(), plain(&stored[0])),
        (to.as_str(), vec![])
    );
}

/// One route between two streams, for tests that disturb their servers.
pub(crate) const ALONE: &str = r#"
[nats.edge]
url = "NATS"

[route.orders]
source = { nats = "edge", stream = "@_IN", subjects = ["@.in.a", "@.in.b"] }
target = { nats = "edge", subject = "@.out.orders" }
dead_letter = { nats = "edge", subject = "@.dead" }
"#;

pub(crate) const MANY: u64 = 2_000;

pub(crate) fn publish_many(nats: &Nats, name: &str, from: u64, delay: &str) {
    for (place, subject) in [(0, "in.a"), (1, "in.b")] {
        let headers: &[(&str, &str)] = &[("postdate-after", delay)];
        let mine = (from..from + MANY).filter(|number| number % 2 == place);
        nats.publish_all(
            &format!("{name}.{subject}"),
            mine.map(|number| (headers, number.to_string())),
        );
    }
}

/// Checks that each number arrived exactly once.
pub(crate) fn assert_each_once(stored: &[Stored], count: u64) {
    let numbers: Vec<u64> = stored
        .iter()
        .map(|stored| {
            std::str::from_utf8(&stored.payload)
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    assert_eq!(
        numbers.iter().copied().collect::<BTreeSet<_>>(),
        (0..count).collect()
    );
    assert_eq!(numbers.len() as u64, count, "none twice");
}

#[test]
fn a_killed_service_delivers_each_message_once_within_the_duplicate_window() {
    let name = unique("killed");
    create_streams(nats(), &name);
    let mut postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), ALONE));
    publish_many(nats(), &name, 0, "3s");
    let out = format!("{name}_OUT");
    eventually("some are delivered", PATIENCE, || {
        (nats().count(&out) > 0).then_some(())
    });
    postdate.kill();
    postdate.restart();
    publish_many(nats(), &name, MANY, "1s");
    nats().wait_for(&out, 2 * MANY, PATIENCE);
    std::thread::sleep(Duration::from_secs(2));
    assert_each_once(&nats().stored(&out), 2 * MANY);
}

#[test]
fn a_restarted_server_loses_and_duplicates_nothing() {
    let name = unique("restarted");
    let mut own = Nats::start();
    create_streams(&own, &name);
    let postdate = Postdate::ready_with(&config(&name, &redis().url(), &own.url(), ALONE));
    publish_many(&own, &name, 0, "3s");
    let out = format!("{name}_OUT");
    eventually("some are delivered", PATIENCE, || {
        (own.count(&out) > 0).then_some(())
    });
    own.kill();
    eventually("it says so", PATIENCE, || (!postdate.ready()).then_some(()));
    own.restart();
    publish_many(&own, &name, MANY, "1s");
    own.wait_for(&out, 2 * MANY, PATIENCE);
    eventually("it is ready again", PATIENCE, || {
        postdate.ready().then_some(())
    });
    assert_each_once(&own.stored(&out), 2 * MANY);
}

#[test]
fn a_wiped_store_is_rebuilt_from_the_stream() {
    let name = unique("wiped");
    create_streams(nats(), &name);
    let mut own = Redis::start();
    let _postdate = Postdate::ready_with(&config(&name, &own.url(), &nats().url(), ALONE));
    publish_many(nats(), &name, 0, "8s");
    std::thread::sleep(Duration::from_secs(2));
    own.flush_all();
    let out = format!("{name}_OUT");
    nats().wait_for(&out, MANY, PATIENCE);
    assert_each_once(&nats().stored(&out), MANY);
}

#[test]
fn two_processes_share_a_stream_and_one_takes_over_from_the_other() {
    let name = unique("shared");
    create_streams(nats(), &name);
    let text = config(&name, &redis().url(), &nats().url(), ALONE);
    let (mut one, two) = (Postdate::ready_with(&text), Postdate::ready_with(&text));
    publish_many(nats(), &name, 0, "2s");
    let out = format!("{name}_OUT");
    nats().wait_for(&out, MANY, PATIENCE);
    one.kill();
    publish_many(nats(), &name, MANY, "1s");
    nats().wait_for(&out, 2 * MANY, PATIENCE);
    assert_each_once(&nats().stored(&out), 2 * MANY);
    assert!(two.ready());
}

#[test]
fn purged_and_recreated_streams_are_noticed_and_logged() {
    let name = unique("purged");
    create_streams(nats(), &name);
    let mut postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), ALONE));
    let (source, subject) = (format!("{name}_IN"), format!("{name}.in.a"));
    nats().publish(&subject, &[], "first");
    nats().wait_for(&format!("{name}_OUT"), 1, PATIENCE);
    postdate.terminate();
    let last = (0..3)
        .map(|_| nats().publish(&subject, &[], "unseen"))
        .max()
        .unwrap();
    nats().purge(&source, last + 1);
    postdate.restart();
    eventually("the gap is said", PATIENCE, || {
        postdate.logs().contains("no longer retains").then_some(())
    });
    nats().publish(&subject, &[], "second");
    nats().wait_for(&format!("{name}_OUT"), 2, PATIENCE);
    nats().delete_stream(&source);
    nats().create_stream(&source, &[&format!("{name}.in.>")]);
    nats().publish(&subject, &[], "of another stream");
    eventually("the other stream is told from the first", PATIENCE, || {
        postdate.logs().contains("was recreated").then_some(())
    });
    assert!(!postdate.ready());
    assert_eq!(nats().count(&format!("{name}_OUT")), 2);
}

/// Uses one subject, so that missing messages can be counted exactly.
#[test]
fn messages_that_are_purged_while_they_are_read_are_counted() {
    const SENT: u64 = 2 * MANY;
    let name = unique("removed");
    create_streams(nats(), &name);
    let routes = ALONE.replace(", \"@.in.b\"", "");
    let postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), &routes));
    let (source, subject, out) = (
        format!("{name}_IN"),
        format!("{name}.in.a"),
        format!("{name}_OUT"),
    );
    nats().publish(&subject, &[], "0");
    nats().wait_for(&out, 1, PATIENCE);
    // The process still reads messages that the server has already sent. The others are gone before
    // the process asks for them.
    postdate.pause();
    nats().publish_all(
        &subject,
        (1..SENT).map(|number| (&[][..], number.to_string())),
    );
    nats().purge(&source, SENT);
    postdate.resume();
    let gone = |postdate: &Postdate| postdate.metrics().sum("postdate_source_gap_messages_total");
    eventually("all are accounted for", PATIENCE, || {
        (nats().count(&out) as f64 + gone(&postdate) >= SENT as f64).then_some(())
    });
    assert!(gone(&postdate) > 0.0);
    assert_eq!(nats().count(&out) + gone(&postdate) as u64, SENT);
    // The gap is noticed while reading, or earlier by a check of the stream.
    let words = [
        "by a purge or a limit before they were read",
        "the source no longer retains",
    ];
    assert!(
        words.iter().any(|words| postdate.logs().contains(words)),
        "{}",
        postdate.logs()
    );
}

/// The header of the bad message makes the client library end every connection that receives it.
#[test]
fn a_message_that_no_client_can_read_blocks_nothing() {
    let name = unique("unreadable");
    create_streams(nats(), &name);
    let _postdate = Postdate::ready_with(&config(&name, &redis().url(), &nats().url(), ALONE));
    let subject = format!("{name}.in.a");
    nats().publish_raw(&subject, b"h: \xff", b"bad");
    nats().publish(&subject, &[], "good");
    assert_eq!(
        nats().wait_for(&format!("{name}_OUT"), 1, PATIENCE)[0].payload,
        b"good"
    );
    let dead = nats().wait_for(&format!("{name}_DEAD"), 1, PATIENCE);
    assert_eq!(
        (dead[0].header("postdate-error"), dead[0].payload.len()),
        (Some("invalid_header"), 0),
        "by reference"
    );
}

#[test]
fn a_message_above_the_servers_lowered_limit_blocks_nothing() {
    let (mut own, name) = (Nats::start_with("max_payload: 8MB", None), unique("large"));
    create_streams(&own, &name);
    let subject = format!("{name}.in.a");
    own.publish(&subject, &[], "x".repeat(6 * 1024 * 1024));
    own.publish(&subject, &[], "good");
    own.restart_with("max_payload: 1MB");
    let _postdate = Postdate::ready_with(&config(&name, &redis().url(), &own.url(), ALONE));
    assert_eq!(
        own.wait_for(&format!("{name}_OUT"), 1, PATIENCE)[0].payload,
        b"good"
    );
    let dead = own.wait_for(&format!("{name}_DEAD"), 1, PATIENCE);
    assert_eq!(
        (dead[0].header("postdate-error"), dead[0].payload.len()),
        (Some("too_large"), 0),
        "by reference"
    );
}

#[test]
fn a_work_queue_stream_is_refused_until_it_is_created_again() {
    let name = unique("queue");
    create_streams(nats(), &name);
    nats().delete_stream(&format!("{name}_IN"));
    nats().create_stream_with(Config {
        name: format!("{name}_IN"),
        subjects: vec![format!("{name}.in.>")],
        retention: RetentionPolicy::WorkQueue,
        ..Config::default()
    });
    let postdate = Postdate::start(&config(&name, &redis().url(), &nats().url(), ALONE));
    let told = || {
        let (status, body) = postdate.get("/readyz")?;
        (status == 503 && body.contains("work-queue retention")).then_some(())
    };
    eventually("the stream is refused", PATIENCE, told);
    let check = postdate.command(&["check"]);
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(
        !check.status.success() && text.contains("work-queue retention"),
        "{text}"
    );
    // The process continues. Once the stream is created again, its route is served.
    nats().delete_stream(&format!("{name}_IN"));
    nats().create_stream(&format!("{name}_IN"), &[&format!("{name}.in.>")]);
    eventually("the route is served", PATIENCE, || {
        postdate.ready().then_some(())
    });
}
