//! Tests headers, keys, subjects and times between NATS and Kafka when producers write more than
//! they need to.

use crate::env::{
    Nats, Outgoing, PATIENCE, Postdate, Producer, Record, Redis, Sink, eventually, kafka, nats,
};
use crate::nats::{Bridge, due, plain};

/// The headers as text, except those that Postdate adds.
fn texts(record: &Record) -> Vec<String> {
    let own = ["postdate-due", "postdate-origin", "postdate-subject"];
    let headers = record
        .headers
        .iter()
        .filter(|(name, _)| !own.contains(&name.as_str()));
    headers
        .map(|(name, value)| {
            format!(
                "{name}={}",
                String::from_utf8_lossy(value.as_deref().unwrap_or(b"null"))
            )
        })
        .collect()
}

#[test]
fn headers_of_the_server_never_arrive_on_a_topic_and_equal_names_keep_their_order() {
    let bridge = Bridge::start();
    let target = Sink::start(kafka().addr(), &[&bridge.called("target")]);
    let theirs = [
        ("Nats-ScheduleX", "1"),
        ("Nats-Msg-Id", "mine"),
        ("nats-anything", "1"),
        ("NATS-TTLX", "1"),
    ];
    let headers = [
        &theirs[..],
        &[
            ("postdate-after", "1s"),
            ("h", "2"),
            ("a", "x"),
            ("h", "1"),
            ("h", ""),
        ],
    ]
    .concat();
    nats().publish(&bridge.called("in.kafka.eu"), &headers, "x");
    let records = target.wait_for(1, PATIENCE);
    assert_eq!(texts(&records[0]), ["a=x", "h=2", "h=1", "h="]);
}

#[test]
fn a_delay_starts_when_the_server_stores_the_message() {
    let bridge = Bridge::start();
    nats().publish(
        &bridge.called("in.orders.eu"),
        &[("postdate-after", "1500ms")],
        "x",
    );
    let arrived = nats().wait_for(&bridge.stream("OUT"), 1, PATIENCE);
    assert_eq!(
        due(&arrived[0]),
        nats().stored(&bridge.stream("IN"))[0].stored + 1_500
    );
}

/// Envelope headers that a Kafka producer writes do not reach NATS. The record's own key and
/// payload count.
#[test]
fn envelope_headers_of_a_kafka_record_are_left_out_on_nats() {
    let bridge = Bridge::start();
    let to = || {
        Outgoing::to(&bridge.called("delayed"))
            .header("postdate-after", "1s")
            .header("h", "1")
    };
    let forged = |outgoing: Outgoing| {
        let outgoing = outgoing
            .header("postdate-key", "forged")
            .header("postdate-key-base64", "Zm9yZ2Vk");
        outgoing
            .header("postdate-null-payload", "true")
            .header("postdate-subject", "forged")
    };
    let producer = Producer::start(kafka().addr());
    producer.send(&forged(to().key("k").payload("")));
    producer.send(&forged(to().payload("x")));
    producer.flush();
    let stored = nats().wait_for(&bridge.stream("OUT"), 2, PATIENCE);
    assert_eq!(plain(&stored[0]), [("h", "1"), ("postdate-key", "k")]);
    assert_eq!(plain(&stored[1]), [("h", "1")]);
}

#[test]
fn conflicting_key_and_payload_headers_of_a_nats_message_follow_fixed_rules() {
    let bridge = Bridge::start();
    let target = Sink::start(kafka().addr(), &[&bridge.called("target")]);
    let sent: [(&[(&str, &str)], &str); 5] = [
        (
            &[("postdate-key", "first"), ("postdate-key", "second")],
            "0",
        ),
        (
            &[("postdate-key", "text"), ("postdate-key-base64", "/wA=")],
            "1",
        ),
        (&[("postdate-key-base64", "no base64")], "2"),
        (
            &[("postdate-null-payload", "true")],
            "a payload all the same",
        ),
        (
            &[
                ("postdate-null-payload", "yes"),
                ("postdate-subject", "forged"),
            ],
            "",
        ),
    ];
    let subject = bridge.called("in.kafka.eu");
    for (place, (headers, payload)) in sent.iter().enumerate() {
        let after = format!("{}ms", 1_000 + 100 * place);
        nats().publish(
            &subject,
            &[*headers, &[("postdate-after", after.as_str())]].concat(),
            payload,
        );
    }
    let records = target.wait_for(sent.len(), PATIENCE);
    let found: Vec<_> = records
        .iter()
        .map(|record| (record.key.as_deref(), record.payload.as_deref()))
        .collect();
    let expected: [(Option<&[u8]>, Option<&[u8]>); 5] = [
        (Some(b"first"), Some(b"0")),
        (Some(&[255, 0]), Some(b"1")),
        (Some(b"no base64"), Some(b"2")),
        (None, Some(b"a payload all the same")),
        (None, Some(b"")),
    ];
    assert_eq!(found, expected);
    for record in &records {
        assert_eq!(
            (texts(record), record.header("postdate-subject")),
            (vec![], Some(subject.as_str()))
        );
    }
}

#[test]
fn a_target_with_a_dollar_is_literal_and_an_invalid_subject_is_a_dead_letter() {
    let bridge = Bridge::start();
    let literal = bridge.called("out.$1");
    nats().publish(
        &bridge.called("in.orders.eu"),
        &[("postdate-after", "1s"), ("postdate-to", &literal)],
        "x",
    );
    assert_eq!(
        nats().wait_for(&bridge.stream("OUT"), 1, PATIENCE)[0].subject,
        literal
    );
    nats().publish(
        &bridge.called("in.mapped.a.größe"),
        &[("postdate-after", "1s")],
        "x",
    );
    let dead = nats().wait_for(&bridge.stream("DEAD"), 1, PATIENCE);
    assert_eq!(
        dead[0].header("postdate-error"),
        Some("invalid_target"),
        "{:?}",
        dead[0].headers
    );
}

/// Uses the file unchanged, except for the server addresses.
#[test]
fn the_example_configuration_of_a_bridge_works_as_written() {
    let (own, store) = (Nats::start(), Redis::start());
    for (stream, subject) in [("DELAYED", "delayed.>"), ("EVENTS", "events.>")] {
        own.create_stream(stream, &[subject]);
    }
    for topic in ["orders.delayed", "orders", "orders.dead"] {
        kafka().create_topic(topic, 1, &[]);
    }
    let file = include_str!("../config/bridge.toml");
    let file = file
        .replace("redis://127.0.0.1:6379", &store.url())
        .replace("127.0.0.1:9092", kafka().addr());
    let file = file.replace("nats://127.0.0.1:4222", &own.url());
    let postdate = Postdate::ready_with(&file);
    let orders = Sink::start(kafka().addr(), &["orders"]);
    own.publish(
        "delayed.orders.eu",
        &[("postdate-after", "1s"), ("postdate-key", "k")],
        "there",
    );
    let there = orders.wait_for(1, PATIENCE);
    assert_eq!(
        (there[0].key.as_deref(), there[0].payload.as_deref()),
        (Some(&b"k"[..]), Some(&b"there"[..]))
    );
    let producer = Producer::start(kafka().addr());
    producer.send(
        &Outgoing::to("orders.delayed")
            .key("k")
            .payload("back")
            .header("postdate-after", "1s"),
    );
    producer.send(
        &Outgoing::to("orders.delayed")
            .payload("named")
            .header("postdate-after", "2s")
            .header("postdate-to", "events.named"),
    );
    producer.flush();
    let back = own.wait_for("EVENTS", 2, PATIENCE);
    let found: Vec<_> = back
        .iter()
        .map(|stored| (stored.subject.as_str(), stored.payload.as_slice()))
        .collect();
    assert_eq!(
        found,
        [("events.orders", &b"back"[..]), ("events.named", b"named")]
    );
    assert_eq!(back[0].header("postdate-key"), Some("k"));
    let check = postdate.command(&["check"]);
    assert!(
        check.status.success(),
        "{}",
        String::from_utf8_lossy(&check.stdout)
    );
    eventually("nothing is amiss", PATIENCE, || {
        postdate.ready().then_some(())
    });
}
