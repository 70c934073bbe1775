//! Tests the delay headers of other systems: one record of each system, as its own producers write
//! it.

use std::sync::OnceLock;

use crate::env::{Outgoing, PATIENCE, Record, Sink, eventually, kafka, now_ms};
use crate::service::{Attended, Header, STAMPED, Service, Topic, lines, send_all, text, with};

const TOPICS: &[Topic] = &[
    ("spoken", 1, &[]),
    ("unknown", 1, &[]),
    ("changed", 1, &[]),
    ("tried", 1, &[]),
    ("out", 1, STAMPED),
    ("to.named", 1, STAMPED),
    ("unknown.out", 1, &[]),
    ("changed.out", 1, &[]),
    ("dead", 1, &[]),
];

const ROUTES: &str = r#"
[route.spoken]
source = { kafka = "main", topics = ["@.spoken"] }
target = { kafka = "main", topic = "@.out" }
allow = ["@.to.*"]
dead_letter = { kafka = "main", topic = "@.dead" }
dialects = ["rabbitmq", "activemq", "rocketmq", "pulsar", "nats", "qstash", "karafka", "etf1"]

[route.unknown]
source = { kafka = "main", topics = ["@.unknown"] }
target = { kafka = "main", topic = "@.unknown.out" }
dead_letter = { kafka = "main", topic = "@.dead" }

[route.changed]
source = { kafka = "main", topics = ["@.changed"] }
target = { kafka = "main", topic = "@.changed.out" }
dead_letter = { kafka = "main", topic = "@.dead" }
dialects = ["karafka", "etf1"]

[route.tried]
source = { kafka = "main", topics = ["@.tried"] }
allow = ["@.to.*"]
dead_letter = { kafka = "main", topic = "@.dead" }
dialects = ["etf1"]
retry = { max_attempts = 1000, backoff = "100ms", backoff_max = "500ms" }
"#;

fn service() -> Attended {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    Service::attend(&SERVICE, "dialect", TOPICS, ROUTES)
}

/// A record of one system, with its expected due time and key. It names a target if its system can.
struct Spoken {
    headers: Vec<Header>,
    due: i64,
    key: Option<&'static [u8]>,
    names_target: bool,
}

fn spoken(headers: &[(&str, &str)], due: i64) -> Spoken {
    let headers = headers
        .iter()
        .map(|(name, value)| text(name, value))
        .collect();
    Spoken {
        headers,
        due,
        key: Some(b"key"),
        names_target: false,
    }
}

/// One record per system. All are due at whole seconds after `now`, because some systems count in
/// seconds.
fn table(service: &Service, now: i64) -> Vec<Spoken> {
    let target = service.topic("to.named");
    let second = now / 1_000 + 4;
    let (seconds, due) = (second.to_string(), second * 1_000);
    let at = format!("@at {}", rfc3339(second));
    let named = |key, spoken: Spoken| Spoken {
        key,
        names_target: true,
        ..spoken
    };
    let envelope = [
        ("schedule_schema_version", "1.0.0"),
        ("schedule_target_epoch", &seconds),
        ("schedule_source_type", "schedule"),
    ];
    let schedule = [
        ("scheduler-epoch", seconds.as_str()),
        ("scheduler-target-topic", &target),
    ];
    vec![
        spoken(&[("x-delay", "3001")], now + 3_001),
        spoken(
            &[
                ("AMQ_SCHEDULED_DELAY", "3002"),
                ("AMQ_SCHEDULED_REPEAT", "0"),
            ],
            now + 3_002,
        ),
        spoken(
            &[("TIMER_DELIVER_MS", &(now + 3_003).to_string())],
            now + 3_003,
        ),
        spoken(&[("TIMER_DELAY_MS", "3004")], now + 3_004),
        spoken(&[("TIMER_DELAY_SEC", "3")], now + 3_000),
        spoken(
            &[("__STARTDELIVERTIME", &(now + 3_005).to_string())],
            now + 3_005,
        ),
        spoken(&[("deliverAt", &(now + 3_006).to_string())], now + 3_006),
        spoken(&[("deliverAfter", "3007")], now + 3_007),
        named(
            Some(b"key"),
            spoken(
                &[("Nats-Schedule", &at), ("Nats-Schedule-Target", &target)],
                due,
            ),
        ),
        spoken(&[("Upstash-Delay", "3s")], now + 3_000),
        spoken(&[("Upstash-Not-Before", &seconds)], due),
        named(
            Some(b"own"),
            spoken(
                &[
                    &envelope[..],
                    &[
                        ("schedule_target_topic", &target),
                        ("schedule_target_key", "own"),
                    ],
                ]
                .concat(),
                due,
            ),
        ),
        named(
            None,
            spoken(
                &[&envelope[..], &[("schedule_target_topic", &target)]].concat(),
                due,
            ),
        ),
        named(
            Some(b"own"),
            spoken(
                &[&schedule[..], &[("scheduler-target-key", "own")]].concat(),
                due,
            ),
        ),
        named(
            Some(b""),
            spoken(
                &[&schedule[..], &[("scheduler-target-key", "")]].concat(),
                due,
            ),
        ),
    ]
}

/// RFC 3339 text from the system's `date`.
fn rfc3339(second: i64) -> String {
    let output = std::process::Command::new("date")
        .args(["-u", "-d", &format!("@{second}"), "+%Y-%m-%dT%H:%M:%SZ"])
        .output();
    String::from_utf8(output.expect("date runs").stdout)
        .expect("text")
        .trim()
        .to_owned()
}

fn find<'r>(records: &'r [Record], origin: &str) -> &'r Record {
    records
        .iter()
        .find(|record| record.header("postdate-origin") == Some(origin))
        .unwrap_or_else(|| panic!("{origin} has arrived"))
}

#[test]
fn each_systems_record_arrives_at_its_due_time_and_target_without_its_headers() {
    let service = service();
    let (source, now) = (service.topic("spoken"), now_ms());
    let table = table(&service, now);
    let sinks =
        ["out", "to.named"].map(|topic| Sink::start(kafka().addr(), &[&service.topic(topic)]));
    let records = table.iter().enumerate().map(|(index, spoken)| {
        // In some systems a later record with the same key replaces an earlier one.
        let key = if spoken.names_target {
            format!("id-{index}")
        } else {
            "key".to_owned()
        };
        let key = if spoken.key == Some(b"key") {
            "key".to_owned()
        } else {
            key
        };
        let record = Outgoing::to(&source)
            .timestamp(now)
            .key(key)
            .payload("p")
            .header("own", "1")
            .null_header("own");
        with(record, &spoken.headers).header("own", "last")
    });
    let places = send_all(&records.collect::<Vec<_>>());

    let named = table.iter().filter(|spoken| spoken.names_target).count();
    let arrived = [
        sinks[0].wait_for(table.len() - named, PATIENCE),
        sinks[1].wait_for(named, PATIENCE),
    ];
    for (spoken, place) in table.iter().zip(places) {
        let origin = service.origin("spoken", &source, place);
        let record = find(&arrived[usize::from(spoken.names_target)], &origin);
        let own = [
            text("own", "1"),
            ("own".to_owned(), None),
            text("own", "last"),
        ];
        let labels = [
            text("postdate-due", &spoken.due.to_string()),
            text("postdate-origin", &origin),
        ];
        assert_eq!(
            lines(&record.headers),
            lines(&[&own[..], &labels].concat()),
            "{:?}",
            spoken.headers
        );
        assert_eq!(
            (record.key.as_deref(), record.payload.as_deref()),
            (spoken.key, Some(b"p".as_slice())),
            "{:?}",
            spoken.headers
        );
        assert!(
            record.timestamp >= spoken.due,
            "{:?} came {} ms early",
            spoken.headers,
            spoken.due - record.timestamp
        );
    }
}

#[test]
fn unknown_dialects_pass_through_and_unsupported_delays_become_dead_letters() {
    let service = service();
    let now = now_ms();
    let unknown: Vec<Header> = table(&service, now)
        .into_iter()
        .flat_map(|spoken| spoken.headers)
        .collect();
    let passing = with(
        Outgoing::to(&service.topic("unknown"))
            .key("key")
            .payload("p"),
        &unknown,
    );
    let refused: &[(&str, &[(&str, &str)])] = &[
        (
            "dialect_conflict",
            &[("x-delay", "5"), ("deliverAfter", "5")],
        ),
        (
            "dialect_unsupported",
            &[("AMQ_SCHEDULED_DELAY", "5"), ("AMQ_SCHEDULED_REPEAT", "9")],
        ),
        ("dialect_unsupported", &[("Nats-Schedule", "@every 5m")]),
        ("delay_above_max", &[("x-delay", "4294967295")]),
        (
            "target_not_allowed",
            &[
                ("scheduler-epoch", "1"),
                ("scheduler-target-topic", "other"),
                ("scheduler-target-key", "own"),
            ],
        ),
    ];
    let sinks =
        ["unknown.out", "dead"].map(|topic| Sink::start(kafka().addr(), &[&service.topic(topic)]));
    let dead = refused.iter().map(|(_, headers)| {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| text(name, value))
            .collect();
        with(
            Outgoing::to(&service.topic("spoken"))
                .key("key")
                .payload("p"),
            &headers,
        )
    });
    let places = send_all(&[passing].into_iter().chain(dead).collect::<Vec<_>>());

    let origin = service.origin("unknown", &service.topic("unknown"), places[0]);
    let out = sinks[0].wait_for(1, PATIENCE);
    let record = find(&out, &origin);
    assert_eq!(lines(&record.headers[..unknown.len()]), lines(&unknown));
    assert_eq!(
        (record.headers.len(), record.key.as_deref()),
        (unknown.len() + 2, Some(b"key".as_slice()))
    );

    let letters = sinks[1].wait_for(refused.len(), PATIENCE);
    for ((code, headers), place) in refused.iter().zip(&places[1..]) {
        let letter = find(
            &letters,
            &service.origin("spoken", &service.topic("spoken"), *place),
        );
        let own: Vec<_> = headers
            .iter()
            .map(|(name, value)| text(name, value))
            .collect();
        assert_eq!(letter.header("postdate-error"), Some(*code), "{headers:?}");
        assert_eq!(lines(&letter.headers[..own.len()]), lines(&own));
        assert_eq!(letter.key.as_deref(), Some(b"key".as_slice()));
    }
}

#[test]
fn a_schedule_is_replaced_and_cancelled_by_its_key() {
    let service = service();
    let (source, due) = (service.topic("changed"), now_ms() / 1_000 + 8);
    let etf1 = |key: &str, payload: &str, second: i64| {
        Outgoing::to(&source)
            .key(key)
            .payload(payload)
            .header("scheduler-epoch", second.to_string())
            .header("scheduler-target-key", "k")
    };
    let karafka = |key: &str, kind: &str| {
        let record = Outgoing::to(&source)
            .key(key)
            .header("schedule_schema_version", "1.0.0")
            .header("schedule_source_type", kind);
        record.header("schedule_target_epoch", due.to_string())
    };
    send_all(&[
        etf1("replaced", "old", due),
        etf1("deleted", "never", due),
        etf1("tombstoned", "never", due),
        karafka("cancelled", "schedule").payload("never"),
        karafka("dispatched", "schedule").payload("never"),
    ]);
    service.wait_until_waiting(&source, 5);
    send_all(&[
        etf1("replaced", "new", due),
        Outgoing::to(&source).key("deleted"),
        // The scheduler writes its own tombstones with the headers of the record that it sent.
        Outgoing::to(&source)
            .key("tombstoned")
            .header("scheduler-epoch", due.to_string()),
        karafka("cancelled", "cancel"),
        karafka("dispatched", "tombstone"),
        etf1("marker", "marker", due + 1),
    ]);

    let arrived =
        Sink::start(kafka().addr(), &[&service.topic("changed.out")]).wait_for(2, PATIENCE);
    let payloads: Vec<_> = arrived
        .iter()
        .map(|record| record.payload.as_deref().expect("a payload"))
        .collect();
    assert_eq!(payloads, [b"new".as_slice(), b"marker"]);
    service.wait_for_metric("postdate_cancelled_total", &[("route", "changed")], 5);
}

#[test]
fn a_retried_message_keeps_its_key_and_loses_the_headers_of_its_dialect() {
    let service = service();
    let (source, target) = (service.topic("tried"), service.topic("to.later"));
    let second = now_ms() / 1_000 + 1;
    let record = Outgoing::to(&source)
        .key("id")
        .payload("p")
        .header("own", "1")
        .header("scheduler-epoch", second.to_string());
    let places = send_all(&[record
        .header("scheduler-target-topic", &target)
        .header("scheduler-target-key", "k")]);
    let retried = || {
        service
            .postdate
            .metrics()
            .sum_where("postdate_retried_total", &[("route", "tried")])
    };
    eventually("delivery fails for a while", PATIENCE, || {
        (retried() >= 3.0).then_some(())
    });
    kafka().create_topic(&target, 1, &[]);

    let record = Sink::start(kafka().addr(), &[&target])
        .wait_for(1, PATIENCE)
        .remove(0);
    let origin = service.origin("tried", &source, places[0]);
    let expected = [
        text("own", "1"),
        text("postdate-due", &(second * 1_000).to_string()),
        text("postdate-origin", &origin),
    ];
    assert_eq!(
        (lines(&record.headers), record.key.as_deref()),
        (lines(&expected), Some(b"k".as_slice()))
    );
}
