//! Tests that bad and hostile input never blocks a partition and never vanishes.
//!
//! A bad record becomes a dead letter with its reason. A missing target is retried. A wrong
//! configuration is refused.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::env::{
    Outgoing, PATIENCE, Postdate, Producer, Record, Sink, eventually, kafka, now_ms, unique,
};
use crate::service::{self, Attended, Header, Service, Topic, lines, send_all, text, with};

const TOPICS: &[Topic] = &[
    ("open", 2, &[]),
    ("narrow", 1, &[]),
    ("nowhere", 1, &[]),
    ("odd", 1, &[]),
    ("patient", 1, &[]),
    ("hasty", 1, &[]),
    ("out", 1, &[]),
    ("odd.out", 1, &[]),
    ("to.deleted", 1, &[]),
    ("dead", 1, &[]),
    ("odd.dead", 1, &[]),
    ("hasty.dead", 1, &[]),
];

const ROUTES: &str = r#"
[route.open]
source = { kafka = "main", topics = ["@.open"] }
target = { kafka = "main", topic = "@.out" }
allow = ["*"]
dead_letter = { kafka = "main", topic = "@.dead" }
max_delay = "1h"

[route.narrow]
source = { kafka = "main", topics = ["@.narrow"] }
target = { kafka = "main", topic = "@.out" }
dead_letter = { kafka = "main", topic = "@.dead" }
without_delay = "dead-letter"

[route.nowhere]
source = { kafka = "main", topics = ["@.nowhere"] }
allow = ["@.out"]
dead_letter = { kafka = "main", topic = "@.dead" }

[route.odd]
source = { kafka = "main", topics = ["@.odd"] }
target = { kafka = "main", topic = "@.odd.out" }
dead_letter = { kafka = "main", topic = "@.odd.dead" }

[route.patient]
source = { kafka = "main", topics = ["@.patient"] }
allow = ["@.to.*"]
dead_letter = { kafka = "main", topic = "@.dead" }
retry = { max_attempts = 1000, backoff = "100ms", backoff_max = "500ms" }

[route.hasty]
source = { kafka = "main", topics = ["@.hasty"] }
allow = ["@.to.*"]
dead_letter = { kafka = "main", topic = "@.hasty.dead" }
retry = { max_attempts = 3, backoff = "100ms" }
"#;

fn service() -> Attended {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    Service::attend(&SERVICE, "bad_input", TOPICS, ROUTES)
}

/// A record that must be refused, and the expected code.
struct Bad {
    route: &'static str,
    /// The record's timestamp, or now.
    timestamp: Option<i64>,
    headers: Vec<Header>,
    code: &'static str,
}

/// A record on the route that allows the most.
fn bad(code: &'static str, headers: &[(&str, &str)]) -> Bad {
    bad_on("open", code, headers)
}

fn bad_on(route: &'static str, code: &'static str, headers: &[(&str, &str)]) -> Bad {
    Bad {
        route,
        timestamp: None,
        headers: headers
            .iter()
            .map(|(name, value)| text(name, value))
            .collect(),
        code,
    }
}

/// Each control header as null, empty, not UTF-8, and duplicated.
fn unreadable() -> Vec<Bad> {
    let mut table = Vec::new();
    for control in [
        "postdate-at",
        "postdate-after",
        "postdate-to",
        "postdate-id",
        "postdate-op",
        "postdate-retry",
    ] {
        let values = |code, values: &[Option<&[u8]>]| {
            let mut bad = bad(code, &[]);
            bad.headers = values
                .iter()
                .map(|value| (control.to_owned(), value.map(<[u8]>::to_vec)))
                .collect();
            bad
        };
        table.extend([
            values("empty_value", &[None]),
            values("empty_value", &[Some(b"")]),
        ]);
        table.extend([
            values("not_utf8", &[Some(b"1\xff")]),
            values("duplicate_header", &[Some(b"1"), Some(b"1")]),
        ]);
    }
    table
}

/// Values that the grammars reject although they look similar to valid ones.
fn out_of_grammar() -> Vec<Bad> {
    let after = "abc|1e9|+5| 5 |5 |1.5|0x10|NaN|inf|1h 30m|30m1h|1H|-1h|18446744073709551616|9223372036854775808|１";
    let at = "abc|1e12|+1| 1|NaN|inf|18446744073709551616|-9223372036854775808|tomorrow|2027-01-31T09:00:00|2027-01-31 09:00:00Z|\
              2027-02-30T09:00:00Z|2027-01-31T23:59:60Z";
    let after = after
        .split('|')
        .map(|value| bad("invalid_after", &[("postdate-after", value)]));
    after
        .chain(
            at.split('|')
                .map(|value| bad("invalid_at", &[("postdate-at", value)])),
        )
        .collect()
}

fn refused(service: &Service, now: i64) -> Vec<Bad> {
    let (after, at) = (
        ("postdate-after", "1"),
        ("postdate-at", "2027-01-31T09:00:00Z"),
    );
    let mut table = [unreadable(), out_of_grammar()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    table.extend([
        bad_on("narrow", "missing_due", &[]),
        bad("missing_due", &[("postdate-op", "schedule")]),
    ]);
    table.extend([
        bad("delay_above_max", &[("postdate-after", "3600001")]),
        bad(
            "delay_above_max",
            &[("postdate-after", "9223372036854775807")],
        ),
        bad(
            "delay_above_max",
            &[("postdate-at", &(now + 3_700_000).to_string())],
        ),
        bad(
            "delay_above_max",
            &[("postdate-at", "9999-12-31T23:59:59Z")],
        ),
        bad("at_and_after", &[after, at]),
        bad_on("nowhere", "no_target", &[after]),
        bad_on(
            "nowhere",
            "target_not_allowed",
            &[after, ("postdate-to", "elsewhere")],
        ),
        bad_on(
            "narrow",
            "target_not_allowed",
            &[after, ("postdate-to", &service.topic("odd.out"))],
        ),
        bad(
            "target_is_source",
            &[after, ("postdate-to", &service.topic("open"))],
        ),
        bad(
            "target_is_source",
            &[after, ("postdate-to", &service.topic("hasty"))],
        ),
        bad("invalid_id", &[after, ("postdate-id", "a b")]),
        bad("invalid_id", &[after, ("postdate-id", &"x".repeat(129))]),
        bad("invalid_op", &[after, ("postdate-op", "Schedule")]),
        bad("cancel_without_id", &[("postdate-op", "cancel")]),
        bad("invalid_retry", &[("postdate-retry", "attempt=1"), after]),
        bad(
            "invalid_retry",
            &[(
                "postdate-retry",
                &forged_retry(service, "narrow", 0, "", now),
            )],
        ),
        bad(
            "invalid_retry",
            &[(
                "postdate-retry",
                &forged_retry(service, "open", 1_000_000, "", now),
            )],
        ),
        bad(
            "invalid_retry",
            &[(
                "postdate-retry",
                &forged_retry(service, "open", 0, "", now + 4_000_000),
            )],
        ),
        bad(
            "target_is_source",
            &[(
                "postdate-retry",
                &forged_retry(service, "open", 0, &service.topic("narrow"), now),
            )],
        ),
    ]);
    let targets = "a*|orders.>|a b|..|a/b|a\0b|a\nb|__consumer_offsets|$JS.API.INFO|$SYS.x|ä";
    for target in targets.split('|').chain([&*"x".repeat(250)]) {
        table.push(bad("invalid_target", &[after, ("postdate-to", target)]));
    }
    // The table leaves out zero, because a producer takes zero for "now".
    for timestamp in [1, 946_684_799_999] {
        table.push(Bad {
            timestamp: Some(timestamp),
            ..bad("invalid_timestamp", &[after])
        });
    }
    let mut many = bad("too_many_headers", &[after]);
    many.headers
        .extend((0..10_000).map(|index| text("h", &index.to_string())));
    let mut long = bad("too_many_headers", &[after]);
    long.headers.push(text("long", &"x".repeat(300_000)));
    table.extend([many, long]);
    table
}

/// A `postdate-retry` value in Postdate's own format, with forged content.
fn forged_retry(service: &Service, route: &str, offset: i64, target: &str, at: i64) -> String {
    let origin = service.origin(route, &service.topic(route), (0, offset));
    format!("attempt=1 origin={origin} due={at} target={target} error=unknown_target at={at}")
}

const FORGED: [(&str, &str); 4] = [
    ("postdate-origin", "forged"),
    ("postdate-due", "1"),
    ("postdate-error", "forged"),
    ("postdate-error-detail", "forged"),
];

#[test]
fn a_refused_record_becomes_a_dead_letter_with_its_reason_and_its_content() {
    let service = service();
    let now = now_ms();
    let table = refused(&service, now);
    let payloads = [Some(b"payload".as_slice()), Some(b""), None];
    let records = table.iter().enumerate().map(|(index, bad)| {
        let record = Outgoing::to(&service.topic(bad.route))
            .partition(0)
            .timestamp(bad.timestamp.unwrap_or(now));
        let forged = FORGED.map(|(name, value)| text(name, value));
        let record = with(
            with(record.header("own", "1").null_header("own"), &bad.headers),
            &forged,
        )
        .header("own", "last");
        let record = if let Some(payload) = payloads[index % 3] {
            record.payload(payload)
        } else {
            record
        };
        if index % 2 == 0 {
            record.key(index.to_string())
        } else {
            record
        }
    });
    let places = send_all(&records.collect::<Vec<_>>());
    // One valid record follows the bad ones on each partition.
    let good =
        [("open", 0), ("open", 1), ("narrow", 0), ("nowhere", 0)].map(|(route, partition)| {
            let record = Outgoing::to(&service.topic(route))
                .partition(partition)
                .key(route);
            record
                .header("postdate-after", "10")
                .header("postdate-to", service.topic("out"))
        });
    send_all(&good);

    let out = Sink::start(kafka().addr(), &[&service.topic("out")]).wait_for(good.len(), PATIENCE);
    assert!(
        out.iter()
            .all(|record| record.header("postdate-error").is_none())
    );
    let letters =
        Sink::start(kafka().addr(), &[&service.topic("dead")]).wait_for(table.len(), PATIENCE);
    assert_eq!(
        (out.len(), letters.len()),
        (good.len(), table.len()),
        "neither more nor fewer"
    );
    let letters: BTreeMap<_, _> = letters
        .into_iter()
        .map(|record| (record.header("postdate-origin").unwrap().to_owned(), record))
        .collect();
    let mut counts = BTreeMap::new();
    for (index, (bad, place)) in table.iter().zip(places).enumerate() {
        let origin = service.origin(bad.route, &service.topic(bad.route), place);
        let letter = letters
            .get(&origin)
            .unwrap_or_else(|| panic!("{origin} is a dead letter"));
        let asked = &bad.headers[..bad.headers.len().min(3)];
        assert_eq!(
            letter.header("postdate-error"),
            Some(bad.code),
            "{asked:?}: {:?}",
            letter.header("postdate-error-detail")
        );
        let detail = letter
            .header("postdate-error-detail")
            .expect("a detail")
            .to_owned();
        assert!(
            !detail.is_empty() && detail != "forged" && detail.len() <= 512,
            "{detail}"
        );
        // The dead letter omits `postdate-retry`: a producer must not write it, and it would take
        // effect again.
        let own = bad
            .headers
            .iter()
            .filter(|(name, _)| name != "postdate-retry")
            .cloned();
        let labels = [
            text("postdate-origin", &origin),
            text("postdate-error", bad.code),
            text("postdate-error-detail", &detail),
        ];
        let expected: Vec<Header> = [text("own", "1"), ("own".to_owned(), None)]
            .into_iter()
            .chain(own)
            .chain([text("own", "last")])
            .chain(labels)
            .collect();
        assert!(
            letter.headers == expected,
            "{asked:?} and no other headers: {:?}",
            &letter.headers[..letter.headers.len().min(12)]
        );
        assert_eq!(
            letter.key.as_deref(),
            (index % 2 == 0)
                .then(|| index.to_string())
                .as_ref()
                .map(String::as_bytes)
        );
        assert_eq!(letter.payload.as_deref(), payloads[index % 3]);
        *counts.entry((bad.route, bad.code)).or_insert(0) += 1;
    }
    for ((route, code), count) in counts {
        service.wait_for_metric(
            "postdate_dead_lettered_total",
            &[("route", route), ("reason", code)],
            count,
        );
    }
    assert_eq!(
        Sink::read_to_end(kafka().addr(), &service.topic("dead")).len(),
        table.len(),
        "nor has anything come since"
    );
}

#[test]
fn odd_but_unambiguous_due_times_are_delivered_at_once() {
    let service = service();
    let source = service.topic("odd");
    let now = now_ms();
    let ahead = now + 600_000;
    // Columns: record timestamp, header, expected due time.
    type Row<'r> = (i64, Option<(&'r str, &'r str)>, i64);
    let table: [Row<'_>; 9] = [
        (now, None, now),
        (now, Some(("postdate-after", "-5")), now - 5),
        (now, Some(("postdate-after", "0")), now),
        (
            now,
            Some(("postdate-at", "1577836800000")),
            1_577_836_800_000,
        ),
        (
            now,
            Some(("postdate-at", "2020-01-01T00:00:00Z")),
            1_577_836_800_000,
        ),
        (now, Some(("postdate-at", "1700000000")), 1_700_000_000),
        (now, Some(("postdate-at", "-1")), -1),
        (
            ahead,
            Some(("postdate-at", "1577836800000")),
            1_577_836_800_000,
        ),
        (1, None, 1),
    ];
    let records = table.iter().map(|(timestamp, header, _)| {
        let record = Outgoing::to(&source).timestamp(*timestamp);
        header.map_or(record.clone(), |(name, value)| record.header(name, value))
    });
    let places = send_all(&records.collect::<Vec<_>>());

    let arrived =
        Sink::start(kafka().addr(), &[&service.topic("odd.out")]).wait_for(table.len(), PATIENCE);
    for ((_, header, due), place) in table.iter().zip(places) {
        let origin = service.origin("odd", &source, place);
        let found = arrived
            .iter()
            .find(|record| record.header("postdate-origin") == Some(&origin));
        let record = found.unwrap_or_else(|| panic!("{header:?} arrived"));
        assert_eq!(
            lines(&record.headers),
            lines(&[
                text("postdate-due", &due.to_string()),
                text("postdate-origin", &origin)
            ]),
            "{header:?}"
        );
    }
    service.wait_for_metric("postdate_suspicious_due_total", &[("route", "odd")], 2);
    service.wait_for_metric("postdate_timestamp_ahead_total", &[("route", "odd")], 1);
}

/// A broker limits the compressed size of a batch. A small compressed record may therefore exceed
/// the target's limit once it is unpacked.
#[test]
fn a_record_that_unpacks_above_the_targets_limit_becomes_a_dead_letter_by_reference() {
    const SIZE: usize = 8_000_000;
    let service = service();
    let source = service.topic("odd");
    let producer = Producer::start_with(kafka().addr(), &[("compression.type", "zstd")]);
    producer.send(
        &Outgoing::to(&source)
            .key("bomb")
            .payload(vec![0; SIZE])
            .header("postdate-after", "10"),
    );
    let place = producer.flush()[0];

    let letter = Sink::start(kafka().addr(), &[&service.topic("odd.dead")])
        .wait_for(1, PATIENCE)
        .remove(0);
    assert_eq!(
        (letter.key.as_deref(), &letter.payload),
        (Some(b"bomb".as_slice()), &None)
    );
    assert_eq!(letter.header("postdate-error"), Some("too_large"));
    assert_eq!(
        letter.header("postdate-origin"),
        Some(service.origin("odd", &source, place).as_str())
    );
    assert!(
        letter
            .header("postdate-error-detail")
            .is_some_and(|detail| detail.contains(&SIZE.to_string())),
        "{:?}",
        letter.headers
    );
}

fn retried(service: &Service, route: &str) -> f64 {
    service.postdate.metrics().sum_where(
        "postdate_retried_total",
        &[("route", route), ("reason", "unknown_target")],
    )
}

#[test]
fn a_message_is_retried_until_its_missing_target_exists() {
    let service = service();
    let source = service.topic("patient");
    let due = (now_ms() + 3_000).to_string();
    let (later, deleted) = (service.topic("to.later"), service.topic("to.deleted"));
    let record = |target: &str| {
        let record = Outgoing::to(&source)
            .key("k")
            .payload("p")
            .header("own", "1")
            .null_header("own")
            .header("postdate-at", &due);
        record
            .header("postdate-to", target)
            .header("postdate-due", "forged")
    };
    let places = send_all(&[record(&later), record(&deleted)]);
    service.wait_until_waiting(&source, 2);
    kafka().delete_topic(&deleted);
    eventually("deliveries fail for a while", PATIENCE, || {
        (retried(&service, "patient") >= 4.0).then_some(())
    });
    [&later, &deleted]
        .into_iter()
        .for_each(|target| kafka().create_topic(target, 1, &[]));

    for (target, place) in [later, deleted].iter().zip(places) {
        let record: Record = Sink::start(kafka().addr(), &[target])
            .wait_for(1, PATIENCE)
            .remove(0);
        let origin = service.origin("patient", &source, place);
        let own = [
            text("own", "1"),
            ("own".to_owned(), None),
            text("postdate-due", &due),
            text("postdate-origin", &origin),
        ];
        assert_eq!(
            (record.key.as_deref(), record.payload.as_deref()),
            (Some(b"k".as_slice()), Some(b"p".as_slice()))
        );
        assert_eq!(
            lines(&record.headers),
            lines(&own),
            "as if it had arrived at the first attempt"
        );
    }
}

#[test]
fn a_message_whose_target_stays_missing_becomes_a_dead_letter_after_its_attempts() {
    let service = service();
    let (source, due, target) = (
        service.topic("hasty"),
        (now_ms() + 100).to_string(),
        service.topic("to.never"),
    );
    let missing = Outgoing::to(&source)
        .key("k")
        .payload("p")
        .header("own", "1")
        .header("postdate-at", &due);
    let places = send_all(&[missing
        .header("postdate-to", &target)
        .header("postdate-id", "an-id")]);

    let letter = Sink::start(kafka().addr(), &[&service.topic("hasty.dead")])
        .wait_for(1, PATIENCE)
        .remove(0);
    let detail = letter
        .header("postdate-error-detail")
        .expect("a detail")
        .to_owned();
    let expected = [
        text("own", "1"),
        text("postdate-at", &due),
        text("postdate-to", &target),
        text("postdate-id", "an-id"),
        text("postdate-due", &due),
        text(
            "postdate-origin",
            &service.origin("hasty", &source, places[0]),
        ),
        text("postdate-error", "unknown_target"),
        text("postdate-error-detail", &detail),
    ];
    assert_eq!(lines(&letter.headers), lines(&expected));
    assert_eq!(
        (letter.key.as_deref(), letter.payload.as_deref()),
        (Some(b"k".as_slice()), Some(b"p".as_slice()))
    );
    service.wait_for_metric(
        "postdate_dead_lettered_total",
        &[("route", "hasty"), ("reason", "unknown_target")],
        1,
    );
    assert!(
        (retried(&service, "hasty") - 2.0).abs() < 0.5,
        "three attempts are two retries"
    );
}

/// A message that was stored under wider rules must obey the current rules when it is due.
#[test]
fn a_target_that_is_no_longer_allowed_when_its_message_is_due_is_refused_and_audited() {
    let deployment = unique("audited");
    let topic = |name: &str| format!("{deployment}.{name}");
    let (source, target, dead) = (topic("in"), topic("out"), topic("dead"));
    [&source, &target, &dead]
        .into_iter()
        .for_each(|topic| kafka().create_topic(topic, 1, &[]));
    let wide = service::config(
        &deployment,
        &format!(
            "[route.orders]\nsource = {{ kafka = \"main\", topics = [\"{source}\"] }}\nallow = [\"{target}\"]\n\
             dead_letter = {{ kafka = \"main\", topic = \"{dead}\" }}\n"
        ),
    );
    let mut service = Service {
        postdate: Postdate::ready_with(&wide),
        deployment,
    };
    let due = (now_ms() + 8_000).to_string();
    let message = Outgoing::to(&source)
        .header("postdate-at", &due)
        .header("postdate-to", &target);
    let place = send_all([&message])[0];
    service.wait_until_waiting(&source, 1);
    service.postdate.terminate();
    let config = service.postdate.folder().join("config.toml");
    let narrow = std::fs::read_to_string(&config)
        .unwrap()
        .replace(&format!("[\"{target}\"]\ndead"), "[\"another\"]\ndead");
    std::fs::write(&config, narrow).unwrap();
    service.postdate.restart();
    service.postdate.wait_until_ready();
    let later = send_all([&message])[0];

    let letters = Sink::start(kafka().addr(), &[&dead]).wait_for(2, PATIENCE);
    for place in [place, later] {
        let origin = service.origin("orders", &source, place);
        let letter = letters
            .iter()
            .find(|letter| letter.header("postdate-origin") == Some(&origin))
            .expect("a dead letter of it");
        assert_eq!(letter.header("postdate-error"), Some("target_not_allowed"));
        let audit = service
            .postdate
            .logs()
            .lines()
            .filter(|line| line.contains("postdate::audit") && line.contains(&origin))
            .count();
        assert_eq!(audit, 1, "{origin} in {}", service.postdate.logs());
    }
    assert!(Sink::read_to_end(kafka().addr(), &target).is_empty());
}

#[test]
fn a_wrong_configuration_is_refused_with_its_key_and_a_fix() {
    let deployment = unique("refused");
    let route = |more: &str| {
        let route = "[route.orders]\nsource = { kafka = \"main\", topics = [\"in\"] }\ntarget = { kafka = \"main\", topic = \"out\" }\n";
        service::config(
            &deployment,
            &format!("{route}dead_letter = {{ kafka = \"main\", topic = \"dead\" }}\n{more}\n"),
        )
    };
    let sound = route("");
    type Row<'r> = (String, &'r [(&'r str, &'r str)], &'r str);
    let table: [Row<'_>; 6] = [
        (route("max_dealy = \"3d\""), &[], "route.orders.max_dealy"),
        (route("max_delay = \"-1h\""), &[], "route.orders.max_delay"),
        (
            route("[route.orders.retry]\nmax_attempts = 0"),
            &[],
            "route.orders.retry.max_attempts",
        ),
        (
            sound.replace("topic = \"out\"", "topic = \"in\""),
            &[],
            "route.orders.target.topic",
        ),
        (sound.replace(&deployment, "not a name"), &[], "deployment"),
        (
            sound.clone(),
            &[("POSTDATE_ROUTE__ORDERS__WITHOUT_DELAY", "drop")],
            "POSTDATE_ROUTE__ORDERS__WITHOUT_DELAY",
        ),
    ];
    for (config, variables, named) in table {
        let mut postdate = Postdate::start_with(&config, variables);
        assert_eq!(postdate.wait_until_ended().code(), Some(2), "{named}");
        let logs = postdate.logs();
        assert!(
            logs.contains(named) && logs.contains("fix:"),
            "{named}: {logs}"
        );
    }
}
