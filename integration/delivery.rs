//! Tests delivery from a consumer's view: due time, target, order and content of each message.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::OnceLock;

use crate::env::{Outgoing, PATIENCE, Producer, Record, Sink, kafka, now_ms};
use crate::service::{Attended, Header, STAMPED, Service, Topic, lines, send_all, text, with};
use crate::verdict::Lateness;

/// A limit so small that tests can send records at it, above it and far above it.
const SMALL: &[(&str, &str)] = &[("max.message.bytes", "4000")];

/// Allowed extra lateness in milliseconds while another partition delivers a hundred thousand
/// messages. It is far below the time that those take.
const ROOM: i64 = 500;

/// Number of partitions over which keys are spread.
const SPREAD: i32 = 7;

const TOPICS: &[Topic] = &[
    ("due", 2, &[]),
    ("whole", 1, &[]),
    ("keys", 1, &[]),
    ("relays", 1, &[]),
    ("order", 1, &[]),
    ("many", 2, &[]),
    ("aborted", 1, &[]),
    ("limit", 1, &[]),
    ("tight", 1, &[]),
    ("keyed", 1, &[]),
    ("target", 1, STAMPED),
    ("exact", 1, STAMPED),
    ("to.due", 1, STAMPED),
    ("to.whole", 1, &[]),
    ("to.keys", SPREAD, &[]),
    ("to.relays", 1, &[]),
    ("to.order", 1, STAMPED),
    ("to.many", 4, STAMPED),
    ("to.aborted", 1, &[]),
    ("to.limit", 1, SMALL),
    ("to.tight", 1, SMALL),
    ("to.keyed", 1, SMALL),
    ("limit.probe", 1, SMALL),
    ("dead", 1, &[]),
    ("tight.dead", 1, SMALL),
    ("keyed.dead", 1, SMALL),
];

const ROUTES: &str = r#"
[route.main]
source = { kafka = "main", topics = ["@.due", "@.whole", "@.keys", "@.relays", "@.order", "@.many", "@.aborted", "@.limit"] }
target = { kafka = "main", topic = "@.target" }
allow = ["@.to.*", "@.exact"]
dead_letter = { kafka = "main", topic = "@.dead" }

[route.tight]
source = { kafka = "main", topics = ["@.tight"] }
target = { kafka = "main", topic = "@.to.tight" }
dead_letter = { kafka = "main", topic = "@.tight.dead" }

[route.keyed]
source = { kafka = "main", topics = ["@.keyed"] }
target = { kafka = "main", topic = "@.to.keyed" }
dead_letter = { kafka = "main", topic = "@.keyed.dead" }
"#;

fn service() -> Attended {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    Service::attend(&SERVICE, "delivery", TOPICS, ROUTES)
}

fn by_origin(records: Vec<Record>) -> BTreeMap<String, Record> {
    let count = records.len();
    let map: BTreeMap<_, _> = records
        .into_iter()
        .map(|record| {
            (
                record
                    .header("postdate-origin")
                    .expect("every record has one")
                    .to_owned(),
                record,
            )
        })
        .collect();
    assert_eq!(map.len(), count, "no origin arrives twice");
    map
}

fn keys(records: &[Record]) -> Vec<String> {
    records
        .iter()
        .map(|record| String::from_utf8(record.key.clone().expect("a key")).expect("text"))
        .collect()
}

/// Formats with the system's `date`, so that Postdate's own code does not check itself. The zone is
/// in POSIX notation: `IST-5:30` is east of UTC.
fn rfc3339(millis: i64, zone: &str) -> String {
    let (seconds, fraction) = (millis.div_euclid(1_000), millis.rem_euclid(1_000));
    let mut date = Command::new("date");
    date.env("TZ", zone).args([
        "-d",
        &format!("@{seconds}.{fraction:03}"),
        "+%Y-%m-%dT%H:%M:%S.%3N%:z",
    ]);
    let output = date.output().expect("date runs");
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

#[test]
fn a_message_arrives_after_its_due_time_and_never_before() {
    let service = service();
    let source = service.topic("due");
    let now = now_ms();
    let hour = 3_600_000;
    // Columns: record timestamp, header name, header value, expected due time.
    let table: Vec<(i64, &str, String, i64)> = vec![
        (now, "postdate-after", "3000".to_owned(), now + 3_000),
        (now, "postdate-after", "3s50ms".to_owned(), now + 3_050),
        (
            now - hour,
            "postdate-after",
            "1h3s100ms".to_owned(),
            now + 3_100,
        ),
        (
            now - 49 * hour,
            "postdate-after",
            "2d60m3s150ms".to_owned(),
            now + 3_150,
        ),
        (
            now + 2_000,
            "postdate-after",
            "1200ms".to_owned(),
            now + 3_200,
        ),
        (
            now - hour,
            "postdate-at",
            (now + 3_250).to_string(),
            now + 3_250,
        ),
        (
            now,
            "postdate-at",
            rfc3339(now + 3_300, "UTC0"),
            now + 3_300,
        ),
        (
            now,
            "postdate-at",
            rfc3339(now + 3_350, "IST-5:30"),
            now + 3_350,
        ),
        (
            now,
            "postdate-at",
            rfc3339(now + 3_400, "NST3:30"),
            now + 3_400,
        ),
        (
            now,
            "postdate-at",
            rfc3339(now + 3_450, "UTC0").replace("+00:00", "Z"),
            now + 3_450,
        ),
    ];
    let targets = [None, Some("to.due"), Some("exact")];
    let sinks = ["target", "to.due", "exact"]
        .map(|target| Sink::start(kafka().addr(), &[&service.topic(target)]));
    let records: Vec<_> = (table.iter().enumerate())
        .flat_map(|(index, row)| targets.iter().map(move |target| (index, row, target)))
        .map(|(index, (timestamp, name, value, _), target)| {
            let record = Outgoing::to(&source)
                .partition(i32::from(index % 2 == 1))
                .timestamp(*timestamp)
                .key(index.to_string());
            let record = record.header(name, value);
            target.map_or(record.clone(), |target| {
                record.header("postdate-to", service.topic(target))
            })
        })
        .collect();
    let places = send_all(&records);

    let arrived = sinks
        .each_ref()
        .map(|sink| by_origin(sink.wait_for(table.len(), PATIENCE)));
    for (at, place) in places.into_iter().enumerate() {
        let (row, target) = (at / targets.len(), at % targets.len());
        let (_, _, value, due) = &table[row];
        let origin = service.origin("main", &source, place);
        let record = arrived[target]
            .get(&origin)
            .unwrap_or_else(|| panic!("{origin} ({value}) is at {:?}", targets[target]));
        assert_eq!(record.key.as_deref(), Some(row.to_string().as_bytes()));
        assert_eq!(
            lines(&record.headers),
            lines(&[
                text("postdate-due", &due.to_string()),
                text("postdate-origin", &origin)
            ]),
            "{value}"
        );
        assert!(
            record.timestamp >= *due,
            "{value}: {} ms early",
            due - record.timestamp
        );
    }
}

#[test]
fn a_record_arrives_unchanged_except_for_its_control_headers() {
    let service = service();
    let source = service.topic("whole");
    let every_byte: Vec<u8> = (0..=255).collect();
    let headers: Vec<Header> = vec![
        text("a", "1"),
        ("b".to_owned(), None),
        text("a", "1"),
        ("b".to_owned(), Some(every_byte.clone())),
        text("", "no name"),
        ("empty".to_owned(), Some(Vec::new())),
        text("Postdate-After", "in another case it is none of ours"),
        text("postdate-after ", "nor is this"),
        text("postdate-errors", "nor this"),
        text("größe", "0"),
        ("a".to_owned(), None),
    ];
    // Columns: key, payload, and headers that are not Postdate's.
    type Row<'r> = (Option<&'r [u8]>, Option<&'r [u8]>, &'r [Header]);
    let table: [Row<'_>; 6] = [
        (None, None, &[]),
        (Some(b""), Some(b""), &[]),
        (None, Some(b"payload"), &headers),
        (Some(b"{key}:/\0\r\n"), None, &headers[..3]),
        (Some(&every_byte), Some(&every_byte), &headers[3..]),
        (Some(b"key"), Some(&[0; 100_000]), &headers[4..5]),
    ];
    let controls = |at: &str| {
        [
            text("postdate-at", at),
            text("postdate-to", &service.topic("to.whole")),
            text("postdate-op", "schedule"),
        ]
    };
    let forged = [
        text("postdate-origin", "forged"),
        text("postdate-due", "1"),
        text("postdate-error", "x"),
        text("postdate-error-detail", "y"),
    ];
    let due = (now_ms() + 500).to_string();
    let sent: Vec<_> = (table.iter().enumerate())
        .map(|(index, (key, payload, headers))| {
            // Postdate's headers are before, among and behind the other headers.
            let (front, back) = headers.split_at(headers.len() / 2);
            let record = with(
                Outgoing::to(&source),
                &[text("postdate-id", &format!("whole-{index}"))],
            );
            let record = with(
                with(with(with(record, front), &controls(&due)), back),
                &forged,
            );
            let record = if let Some(key) = key {
                record.key(key)
            } else {
                record
            };
            if let Some(payload) = payload {
                record.payload(payload)
            } else {
                record
            }
        })
        .collect();
    let places = send_all(&sent);

    let arrived = by_origin(
        Sink::start(kafka().addr(), &[&service.topic("to.whole")]).wait_for(table.len(), PATIENCE),
    );
    for ((key, payload, headers), place) in table.iter().zip(places) {
        let origin = service.origin("main", &source, place);
        let record = &arrived[&origin];
        let expected: Vec<Header> = headers
            .iter()
            .cloned()
            .chain([text("postdate-due", &due), text("postdate-origin", &origin)])
            .collect();
        assert_eq!(
            (record.key.as_deref(), record.payload.as_deref()),
            (*key, *payload)
        );
        assert_eq!(lines(&record.headers), lines(&expected));
    }
}

/// The hashes are Kafka's own test vectors for murmur2, plus the empty key.
#[test]
fn a_key_goes_to_the_partition_that_the_java_client_would_choose() {
    let service = service();
    let table: [(&[u8], i32); 7] = [
        (b"", 0x106e_08d9),
        (b"21", -973_932_308),
        (b"foobar", -790_332_482),
        (b"a-little-bit-long-string", -985_981_536),
        (b"a-little-bit-longer-string", -1_486_304_829),
        (
            b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
            -58_897_971,
        ),
        (b"abc", 479_470_107),
    ];
    let records = table.iter().flat_map(|(key, _)| {
        let record = Outgoing::to(&service.topic("keys"))
            .key(key)
            .header("postdate-to", service.topic("to.keys"));
        [record.clone(), record.header("postdate-after", "300")]
    });
    send_all(&records.collect::<Vec<_>>());

    let arrived = Sink::start(kafka().addr(), &[&service.topic("to.keys")])
        .wait_for(2 * table.len(), PATIENCE);
    for (key, hash) in table {
        let partitions: Vec<_> = arrived
            .iter()
            .filter(|record| record.key.as_deref() == Some(key))
            .map(|record| record.partition)
            .collect();
        assert_eq!(
            partitions,
            [(hash & i32::MAX) % SPREAD; 2],
            "of {}",
            key.escape_ascii()
        );
    }
}

#[test]
fn messages_without_a_delay_arrive_in_source_order_and_overtake_delayed_ones() {
    let service = service();
    let source = service.topic("relays");
    let start = now_ms();
    let record = |key: &str| {
        Outgoing::to(&source)
            .key(key)
            .timestamp(start)
            .header("postdate-to", service.topic("to.relays"))
    };
    let mut records = vec![record("waits").header("postdate-after", "1h")];
    records.extend((0..2_000).map(|index| record(&index.to_string())));
    let places = send_all(&records);

    let arrived =
        Sink::start(kafka().addr(), &[&service.topic("to.relays")]).wait_for(2_000, PATIENCE);
    assert_eq!(
        keys(&arrived),
        (0..2_000)
            .map(|index| index.to_string())
            .collect::<Vec<_>>()
    );
    let (first, place) = (&arrived[0], places[1]);
    let expected = [
        text("postdate-due", &start.to_string()),
        text("postdate-origin", &service.origin("main", &source, place)),
    ];
    assert_eq!(
        lines(&first.headers),
        lines(&expected),
        "a relay is due when it was sent"
    );
}

/// The order holds for messages that are stored before they are due. A slow machine gets more time.
#[test]
fn delayed_messages_arrive_in_the_order_of_due_and_offset() {
    const COUNT: u32 = 500;
    let service = service();
    let source = service.topic("order");
    let sink = Sink::start(kafka().addr(), &[&service.topic("to.order")]);
    let mut before = 0;
    for lead in [3_000, 10_000, 30_000] {
        // Steps of seven cycle through twenty due times, so each due time has many offsets.
        let first = now_ms() + lead;
        let due = |index: u32| first + i64::from(index * 7 % 20) * 50;
        let records = (0..COUNT).map(|index| {
            let record = Outgoing::to(&source)
                .key(index.to_string())
                .header("postdate-at", due(index).to_string());
            record.header("postdate-to", service.topic("to.order"))
        });
        send_all(&records.collect::<Vec<_>>());
        let in_time = service.wait_before(first, &source, COUNT);

        let arrived = sink
            .wait_for(before + COUNT as usize, PATIENCE)
            .split_off(before);
        if in_time {
            let mut expected: Vec<u32> = (0..COUNT).collect();
            expected.sort_by_key(|index| (due(*index), *index));
            assert_eq!(
                keys(&arrived),
                expected.iter().map(u32::to_string).collect::<Vec<_>>()
            );
            return;
        }
        before += COUNT as usize;
    }
    panic!("not even in 30 seconds are {COUNT} messages stored");
}

#[test]
fn a_hundred_thousand_due_in_one_millisecond_arrive_once_each_and_starve_no_other_partition() {
    const COUNT: usize = 100_000;
    let service = service();
    let sink = Sink::start(kafka().addr(), &[&service.topic("to.many")]);
    let due = now_ms() + 8_000;
    let record = Outgoing::to(&service.topic("many"))
        .header("postdate-at", due.to_string())
        .header("postdate-to", service.topic("to.many"));
    let producer = Producer::start(kafka().addr());
    // The other partition has a message every 20 ms, from three seconds before `due` to three
    // seconds after it.
    for (index, due) in (due - 3_000..due + 3_000).step_by(20).enumerate() {
        let record =
            Outgoing::to(&service.topic("many")).header("postdate-to", service.topic("to.many"));
        producer.send(
            &record
                .partition(1)
                .key(format!("other {index}"))
                .header("postdate-at", due.to_string()),
        );
    }
    for index in 0..COUNT {
        producer.send(&record.clone().partition(0).key(index.to_string()));
    }
    let all = COUNT + 300;
    assert_eq!(producer.flush().len(), all);

    let arrived = sink.wait_for(all, 2 * PATIENCE);
    let due_of = |record: &Record| {
        record
            .header("postdate-due")
            .and_then(|due| due.parse::<i64>().ok())
            .expect("a due")
    };
    let early = arrived
        .iter()
        .filter(|record| record.timestamp < due_of(record))
        .count();
    assert_eq!((arrived.len(), early), (all, 0));
    assert_eq!(
        keys(&arrived).iter().collect::<BTreeSet<_>>().len(),
        all,
        "no message arrives twice"
    );
    let (other, many): (Vec<_>, Vec<_>) = arrived.iter().partition(|record| {
        record
            .key
            .as_deref()
            .is_some_and(|key| key.starts_with(b"other"))
    });
    let last = many
        .iter()
        .map(|record| record.timestamp)
        .max()
        .expect("they arrived");
    let before = Lateness::of(
        "before a hundred thousand are due",
        other.iter().copied(),
        due - 3_000..due - 500,
    );
    let during = Lateness::of(
        "of another partition meanwhile",
        other.iter().copied(),
        due..last.max(due + 100),
    );
    assert!(
        during.greatest() <= before.greatest() + ROOM,
        "a hundred thousand took {} ms",
        last - due
    );
}

#[test]
fn aborted_records_are_not_delivered_and_block_nothing() {
    let service = service();
    let source = service.topic("aborted");
    let record = |key: &str| {
        Outgoing::to(&source)
            .key(key)
            .header("postdate-to", service.topic("to.aborted"))
    };
    let producer = Producer::transactional(kafka().addr(), &source);
    let transaction = |keys: &[&str], delay: &str, commit: bool| {
        producer.begin();
        keys.iter()
            .for_each(|key| producer.send(&record(key).header("postdate-after", delay)));
        producer.flush();
        if commit {
            producer.commit();
        } else {
            producer.abort();
        }
    };
    transaction(&["no"], "0", false);
    transaction(&["a", "b"], "1", true);
    transaction(&["never", "nor this"], "100", false);
    let sink = Sink::start(kafka().addr(), &[&service.topic("to.aborted")]);
    sink.wait_for(2, PATIENCE);
    // The partition now ends with an aborted transaction. The next message must be read
    // nevertheless.
    transaction(&["neither"], "0", false);
    send_all(&[record("last").header("postdate-after", "1s")]);

    assert_eq!(keys(&sink.wait_for(3, PATIENCE)), ["a", "b", "last"]);
}

/// The largest payload that the broker accepts on a `SMALL` topic with this key and these headers.
fn largest_payload(topic: &str, key: &str, headers: &[Header]) -> usize {
    let producer = Producer::start(kafka().addr());
    let (mut fits, mut refused) = (0, 8_000);
    while refused - fits > 1 {
        let middle = usize::midpoint(fits, refused);
        producer.send(&with(Outgoing::to(topic).key(key), headers).payload(vec![b'x'; middle]));
        let receipt = producer.receipts().remove(0);
        *(if receipt.is_ok() {
            &mut fits
        } else {
            &mut refused
        }) = middle;
    }
    fits
}

/// Two routes have a small target. The dead-letter topic of `main` has room for a whole record, the
/// one of `tight` does not.
#[test]
fn a_record_at_the_targets_limit_is_delivered_and_only_larger_ones_become_dead_letters() {
    let service = service();
    let due = (now_ms() + 6_000).to_string();
    let origin = service.origin("main", &service.topic("limit"), (0, 1));
    let labels = [text("postdate-due", &due), text("postdate-origin", &origin)];
    let largest = largest_payload(&service.topic("limit.probe"), "1", &labels);
    // The origin on route `tight` is one byte longer than on `main`, so its largest payload is one
    // byte smaller.
    for (route, source, dead, exact) in [
        ("main", "limit", "dead", largest),
        ("tight", "tight", "tight.dead", largest - 1),
    ] {
        let source = service.topic(source);
        let target = service.topic(if route == "main" {
            "to.limit"
        } else {
            "to.tight"
        });
        let sizes = [10, exact, 10, exact + 1, 10, 50_000, exact, 10];
        let records = sizes.iter().enumerate().map(|(index, size)| {
            let record = Outgoing::to(&source)
                .key(index.to_string())
                .payload(vec![b'x'; *size])
                .header("postdate-at", &due);
            if route == "main" {
                record.header("postdate-to", &target)
            } else {
                record
            }
        });
        send_all(&records.collect::<Vec<_>>());

        let is_here = |record: &&Record| {
            record
                .header("postdate-origin")
                .is_some_and(|origin| origin.contains(&source))
        };
        let dead = Sink::start(kafka().addr(), &[&service.topic(dead)]).wait_until(
            "two dead letters",
            PATIENCE,
            |records| records.iter().filter(is_here).count() >= 2,
        );
        let mut dead: Vec<_> = dead.iter().filter(is_here).collect();
        dead.sort_by_key(|record| &record.key);
        let mut arrived = Sink::start(kafka().addr(), &[&target]).wait_for(6, PATIENCE);
        arrived.sort_by_key(|record| record.key.clone());
        let got: Vec<_> = arrived
            .iter()
            .map(|record| record.payload.as_ref().map_or(0, Vec::len))
            .collect();
        assert_eq!(
            (keys(&arrived).concat(), got),
            ("012467".to_owned(), vec![10, exact, 10, 10, exact, 10]),
            "{route}"
        );
        for (letter, index) in dead.iter().zip([3, 5]) {
            let origin = service.origin(route, &source, (0, index));
            let detail = letter
                .header("postdate-error-detail")
                .expect("a detail")
                .to_owned();
            let size = sizes[usize::try_from(index).unwrap()];
            let labels = [
                text("postdate-due", &due),
                text("postdate-origin", &origin),
                text("postdate-error", "too_large"),
                text("postdate-error-detail", &detail),
            ];
            assert_eq!(letter.key.as_deref(), Some(index.to_string().as_bytes()));
            if route == "main" {
                assert_eq!(
                    letter.payload.as_ref().map(Vec::len),
                    Some(size),
                    "whole, where there is room for it"
                );
                let own = [text("postdate-at", &due), text("postdate-to", &target)];
                assert_eq!(lines(&letter.headers), lines(&[&own[..], &labels].concat()));
            } else {
                assert_eq!(letter.payload, None, "by reference, where there is not");
                assert_eq!(lines(&letter.headers), lines(&labels));
                assert!(detail.contains(&format!("{size} bytes")), "{detail}");
            }
        }
    }
    for route in ["main", "tight"] {
        service.wait_for_metric(
            "postdate_dead_lettered_total",
            &[("route", route), ("reason", "too_large")],
            2,
        );
    }
}

#[test]
fn a_record_with_a_too_large_key_becomes_a_dead_letter_without_it_and_blocks_nothing() {
    const SIZE: usize = 5_000;
    let service = service();
    let source = service.topic("keyed");
    let record = |key: &str| {
        Outgoing::to(&source)
            .key(key)
            .payload(b"payload")
            .header("postdate-after", "10")
    };
    let place = send_all(&[record(&"k".repeat(SIZE)), record("next")])[0];

    let letter = Sink::start(kafka().addr(), &[&service.topic("keyed.dead")])
        .wait_for(1, PATIENCE)
        .remove(0);
    assert_eq!((&letter.key, &letter.payload), (&None, &None));
    assert_eq!(letter.header("postdate-error"), Some("too_large"));
    assert_eq!(
        letter.header("postdate-origin"),
        Some(service.origin("keyed", &source, place).as_str())
    );
    assert!(
        letter
            .header("postdate-error-detail")
            .is_some_and(|detail| detail.contains(&SIZE.to_string())),
        "{:?}",
        letter.headers
    );
    assert_eq!(
        keys(&Sink::start(kafka().addr(), &[&service.topic("to.keyed")]).wait_for(1, PATIENCE)),
        ["next"]
    );
    service.wait_until_none_waits(&source);
}
