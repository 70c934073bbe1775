//! Tests cancelling and replacing waiting messages by their id.

use std::sync::OnceLock;

use crate::env::{Outgoing, PATIENCE, Record, Sink, kafka, now_ms};
use crate::service::{Attended, Service, Topic, send_all};

const TOPICS: &[Topic] = &[
    ("cancel", 2, &[]),
    ("replace", 1, &[]),
    ("missed", 2, &[]),
    ("cancel.out", 1, &[]),
    ("replace.out", 1, &[]),
    ("missed.out", 1, &[]),
    ("dead", 1, &[]),
];

/// One route per test, because metrics are counted by route.
const ROUTES: &str = r#"
[route.cancel]
source = { kafka = "main", topics = ["@.cancel"] }
target = { kafka = "main", topic = "@.cancel.out" }
dead_letter = { kafka = "main", topic = "@.dead" }

[route.replace]
source = { kafka = "main", topics = ["@.replace"] }
target = { kafka = "main", topic = "@.replace.out" }
dead_letter = { kafka = "main", topic = "@.dead" }

[route.missed]
source = { kafka = "main", topics = ["@.missed"] }
target = { kafka = "main", topic = "@.missed.out" }
dead_letter = { kafka = "main", topic = "@.dead" }
"#;

/// Time to store a message and its change, even on two busy cores.
const LEAD: i64 = 8_000;

fn service() -> Attended {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    Service::attend(&SERVICE, "change", TOPICS, ROUTES)
}

/// A delayed message on partition 0. Its key identifies it.
fn schedule(topic: &str, key: &str, due: i64) -> Outgoing {
    Outgoing::to(topic)
        .partition(0)
        .key(key)
        .header("postdate-at", due.to_string())
}

fn cancel(topic: &str, id: &str) -> Outgoing {
    Outgoing::to(topic)
        .partition(0)
        .header("postdate-op", "cancel")
        .header("postdate-id", id)
}

fn keys(records: &[Record]) -> Vec<&str> {
    records
        .iter()
        .map(|record| std::str::from_utf8(record.key.as_deref().expect("a key")).expect("text"))
        .collect()
}

#[test]
fn a_message_cancelled_while_it_waits_is_never_delivered() {
    let service = service();
    let (source, due) = (service.topic("cancel"), now_ms() + LEAD);
    let longest = "-._:".repeat(32);
    send_all(&[
        schedule(&source, "cancelled", due).header("postdate-id", "a"),
        schedule(&source, "the longest id", due).header("postdate-id", &longest),
        schedule(&source, "kept", due).header("postdate-id", "b"),
        schedule(&source, "without an id", due),
        // An id is known only on its own partition.
        schedule(&source, "elsewhere", due)
            .header("postdate-id", "a")
            .partition(1),
        // The message and its cancel are probably in one batch.
        schedule(&source, "in one breath", due).header("postdate-id", "c"),
        cancel(&source, "c"),
    ]);
    service.wait_until_waiting(&source, 5);
    send_all(&[
        // A cancel needs only its op and its id. Other content must not save the message.
        cancel(&source, "a")
            .header("postdate-after", "nonsense")
            .header("postdate-to", "nowhere")
            .key("k")
            .payload("p"),
        cancel(&source, &longest),
        schedule(&source, "marker", due + 1),
    ]);

    let arrived =
        Sink::start(kafka().addr(), &[&service.topic("cancel.out")]).wait_for(4, PATIENCE);
    let mut of_partition_0 = keys(&arrived);
    of_partition_0.retain(|key| *key != "elsewhere");
    assert_eq!(of_partition_0, ["kept", "without an id", "marker"]);
    service.wait_for_metric("postdate_cancelled_total", &[("route", "cancel")], 3);
    assert!(
        service
            .postdate
            .metrics()
            .sum_where("postdate_cancel_missed_total", &[("route", "cancel")])
            < 1.0
    );
}

#[test]
fn only_the_last_replacement_of_a_message_is_delivered() {
    let service = service();
    let (source, due) = (service.topic("replace"), now_ms() + LEAD);
    let first = |id: &str| schedule(&source, "old", due).header("postdate-id", id);
    let ids = [
        "later",
        "earlier",
        "thrice",
        "relayed",
        "forgotten",
        "in-one-breath",
    ];
    // This record is probably in one batch with the message that it replaces.
    let at_once = schedule(&source, "in one breath", due).header("postdate-id", "in-one-breath");
    send_all(
        &ids.iter()
            .map(|id| first(id))
            .chain([at_once])
            .collect::<Vec<_>>(),
    );
    service.wait_until_waiting(&source, 6);
    send_all(&[
        schedule(&source, "later", due + 2).header("postdate-id", "later"),
        schedule(&source, "earlier", due - 1).header("postdate-id", "earlier"),
        schedule(&source, "old", due - 2).header("postdate-id", "thrice"),
        schedule(&source, "thrice", due + 1).header("postdate-id", "thrice"),
        schedule(&source, "old", due + 1).header("postdate-id", "forgotten"),
        cancel(&source, "forgotten"),
        // A record without a delay replaces a waiting message, too.
        Outgoing::to(&source)
            .partition(0)
            .key("relayed")
            .header("postdate-id", "relayed"),
        schedule(&source, "marker", due + 3),
    ]);

    let arrived = Sink::start(kafka().addr(), &[&service.topic("replace.out")]).wait_until(
        "the marker",
        PATIENCE,
        |records| {
            records
                .iter()
                .any(|record| record.key.as_deref() == Some(b"marker"))
        },
    );
    assert_eq!(
        keys(&arrived),
        [
            "relayed",
            "earlier",
            "in one breath",
            "thrice",
            "later",
            "marker"
        ]
    );
    service.wait_for_metric("postdate_cancelled_total", &[("route", "replace")], 8);
    assert!(
        service
            .postdate
            .metrics()
            .sum_where("postdate_cancel_missed_total", &[("route", "replace")])
            < 1.0
    );
}

#[test]
fn a_cancel_that_comes_too_late_or_finds_nothing_is_counted_as_missed() {
    let service = service();
    let (source, now) = (service.topic("missed"), now_ms());
    let sink = Sink::start(kafka().addr(), &[&service.topic("missed.out")]);
    send_all(&[
        schedule(&source, "a", now).header("postdate-id", "a"),
        schedule(&source, "elsewhere", now + LEAD / 2)
            .header("postdate-id", "elsewhere")
            .partition(1),
    ]);
    sink.wait_until("a", PATIENCE, |records| {
        records
            .iter()
            .any(|record| record.key.as_deref() == Some(b"a"))
    });
    send_all(&[
        cancel(&source, "a"),
        cancel(&source, "never-heard-of"),
        cancel(&source, "elsewhere"),
    ]);

    service.wait_for_metric("postdate_cancel_missed_total", &[("route", "missed")], 3);
    // The id is free again. A cancel applies to the message that waits under the id now.
    send_all(&[
        schedule(&source, "again", now + 1).header("postdate-id", "a"),
        schedule(&source, "not any more", now_ms() + LEAD).header("postdate-id", "b"),
        cancel(&source, "b"),
        cancel(&source, "b"),
    ]);
    service.wait_for_metric("postdate_cancel_missed_total", &[("route", "missed")], 4);
    let mut arrived = sink.wait_for(3, PATIENCE);
    arrived.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(keys(&arrived), ["a", "again", "elsewhere"]);
    service.wait_for_metric("postdate_cancelled_total", &[("route", "missed")], 1);
}
