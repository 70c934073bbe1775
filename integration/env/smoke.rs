//! Tests the environment itself: its servers behave as the promise tests need, and its clients hide
//! no record.

use std::time::Duration;

use ::redis::cmd;
use rdkafka::types::RDKafkaErrorCode;

use super::{Kafka, Nats, Outgoing, PATIENCE, Producer, Record, Redis, Sink, kafka, redis, unique};

fn keys(records: &[Record]) -> Vec<&[u8]> {
    records
        .iter()
        .filter_map(|record| record.key.as_deref())
        .collect()
}

#[test]
fn kafka_keeps_its_records_over_a_kill() {
    let mut kafka = Kafka::start();
    kafka.create_topic("kept", 1, &[]);
    let producer = Producer::start(kafka.addr());
    let sink = Sink::start(kafka.addr(), &["kept"]);
    producer.send(&Outgoing::to("kept").key("before"));
    assert_eq!(producer.flush(), [(0, 0)]);
    sink.wait_for(1, PATIENCE);

    kafka.kill();
    producer.send(&Outgoing::to("kept").key("after"));
    kafka.restart();

    assert_eq!(producer.flush(), [(0, 1)]);
    assert_eq!(
        keys(&sink.wait_for(2, PATIENCE)),
        [b"before".as_slice(), b"after"]
    );
    kafka.stop();
}

#[test]
fn kafka_takes_the_properties_of_a_test() {
    let kafka = Kafka::start_with(&[("message.max.bytes", "2000")]);
    kafka.create_topic("small", 1, &[]);
    let producer = Producer::start(kafka.addr());
    producer.send(&Outgoing::to("small").payload([0; 1_000]));
    assert_eq!(producer.flush(), [(0, 0)]);
    producer.send(&Outgoing::to("small").payload([0; 3_000]));
    assert_eq!(
        producer.receipts(),
        [Err(RDKafkaErrorCode::MessageSizeTooLarge)]
    );
}

#[test]
fn records_come_back_to_the_last_null() {
    let topic = unique("nulls");
    kafka().create_topic(&topic, 2, &[]);
    let sent = [
        Outgoing::to(&topic)
            .partition(1)
            .timestamp(1_700_000_000_000),
        Outgoing::to(&topic).partition(1).key("").payload(""),
        Outgoing::to(&topic)
            .partition(1)
            .key("k")
            .payload([0, 255])
            .header("a", "1")
            .null_header("b")
            .header("a", "")
            .header("c", [255]),
    ];
    let producer = Producer::start(kafka().addr());
    sent.iter().for_each(|outgoing| producer.send(outgoing));
    assert_eq!(producer.flush(), [(1, 0), (1, 1), (1, 2)]);

    let got = Sink::start(kafka().addr(), &[&topic]).wait_for(3, PATIENCE);
    let parts: Vec<_> = got
        .iter()
        .map(|record| (record.key.as_deref(), record.payload.as_deref()))
        .collect();
    assert_eq!(
        parts,
        [
            (None, None),
            (Some([].as_slice()), Some([].as_slice())),
            (Some(b"k".as_slice()), Some([0, 255].as_slice()))
        ]
    );
    assert_eq!(got[0].timestamp, 1_700_000_000_000);
    let headers: Vec<_> = got[2]
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_deref()))
        .collect();
    assert_eq!(
        headers,
        [
            ("a", Some(b"1".as_slice())),
            ("b", None),
            ("a", Some(&[])),
            ("c", Some(&[255]))
        ]
    );
    assert_eq!(
        (got[2].header("a"), got[2].header("b"), got[2].header("c")),
        (Some("1"), None, None)
    );
}

#[test]
fn aborted_records_are_not_read() {
    let topic = unique("aborted");
    kafka().create_topic(&topic, 1, &[]);
    let producer = Producer::transactional(kafka().addr(), &topic);
    for (key, commit) in [("no", false), ("yes", true)] {
        producer.begin();
        producer.send(&Outgoing::to(&topic).key(key));
        producer.flush();
        if commit {
            producer.commit();
        } else {
            producer.abort();
        }
    }
    // The transaction's marker takes an offset, too.
    assert_eq!(kafka().offsets(&topic, 0), (0, 4));
    assert_eq!(
        keys(&Sink::read_to_end(kafka().addr(), &topic)),
        [b"yes".as_slice()]
    );
}

#[test]
fn topics_change_while_they_are_read() {
    let topic = unique("changing");
    let sink = Sink::start(kafka().addr(), &[&topic]);
    kafka().create_topic(&topic, 1, &[("retention.ms", "-1")]);
    let producer = Producer::start(kafka().addr());
    producer.send(&Outgoing::to(&topic).key("first"));
    producer.send(&Outgoing::to(&topic).key("second"));
    producer.flush();
    kafka().delete_records(&topic, 0, 1);
    kafka().add_partitions(&topic, 2);
    // An existing client learns of a new partition only when its metadata expires. A new client
    // asks at once.
    let producer = Producer::start(kafka().addr());
    producer.send(&Outgoing::to(&topic).partition(1).key("third"));
    producer.flush();

    sink.wait_until("the new partition's record", PATIENCE, |records| {
        records.iter().any(|record| record.partition == 1)
    });
    assert_eq!(kafka().offsets(&topic, 0), (1, 2));
    kafka().delete_topic(&topic);
}

#[test]
fn redis_put_back_to_a_snapshot_forgets_what_came_later() {
    let mut server = Redis::start();
    let set = |server: &Redis, key: &str| {
        cmd("SET")
            .arg(key)
            .arg(1)
            .exec(&mut server.client())
            .unwrap();
    };
    let keys = |server: &Redis| {
        let mut keys: Vec<String> = cmd("KEYS").arg("*").query(&mut server.client()).unwrap();
        keys.sort();
        keys
    };
    set(&server, "before");
    let snapshot = server.snapshot();
    set(&server, "after");
    server.restart();
    assert_eq!(keys(&server), ["after", "before"]);

    server.roll_back_to(&snapshot);
    assert_eq!(keys(&server), ["before"]);
    set(&server, "later");
    server.roll_back_to(&snapshot);
    assert_eq!(keys(&server), ["before"]);

    server.flush_all();
    assert!(keys(&server).is_empty());
}

#[test]
fn a_full_redis_refuses_to_write() {
    let mut server = Redis::start();
    server.set_maxmemory(1);
    let error = cmd("SET")
        .arg("key")
        .arg(1)
        .exec(&mut server.client())
        .unwrap_err();
    assert_eq!(error.code(), Some("OOM"));
    server.set_maxmemory(0);
    cmd("SET")
        .arg("key")
        .arg(1)
        .exec(&mut server.client())
        .unwrap();
}

#[test]
fn a_paused_server_answers_when_it_is_resumed() {
    let server = Redis::start();
    let mut client = server.client();
    client
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    server.pause();
    assert!(cmd("PING").exec(&mut client).is_err());
    server.resume();
    cmd("PING").exec(&mut server.client()).unwrap();
}

#[test]
fn the_shared_redis_is_one() {
    cmd("SET")
        .arg(unique("shared"))
        .arg(1)
        .exec(&mut redis().client())
        .unwrap();
    assert_eq!(redis().url(), redis().url());
}

#[test]
fn nats_keeps_its_messages_over_a_kill() {
    let mut nats = Nats::start();
    nats.create_stream("kept", &["kept.>"]);
    assert_eq!(
        nats.publish("kept.a", &[("b", "1"), ("a", "2"), ("b", "3")], [0, 255]),
        1
    );
    nats.kill();
    nats.restart();
    assert_eq!(nats.publish("kept.b", &[], ""), 2);
    let stored = nats.wait_for("kept", 2, PATIENCE);
    let headers = [("a", "2"), ("b", "1"), ("b", "3")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(
        (stored[0].headers.as_slice(), stored[0].payload.as_slice()),
        (headers.as_slice(), [0, 255].as_slice())
    );
    assert_eq!(
        (
            stored[1].sequence,
            stored[1].subject.as_str(),
            stored[1].payload.len()
        ),
        (2, "kept.b", 0)
    );
    nats.purge("kept", 2);
    assert_eq!(nats.stored("kept").len(), 1);
}
