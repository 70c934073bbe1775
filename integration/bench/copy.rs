//! Copies from topic to topic with all records acknowledged, the baseline for all measurements on
//! Kafka.
//!
//! It uses the same client library as the service. One copy uses the Rust crate's API, and one uses
//! the fastest API of librdkafka, which is the floor.

use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::types::RDKafkaErrorCode;

use crate::LIMIT;
use crate::raw::{Reader, Sender};
use crate::topics::Topics;

/// Messages between two polls for delivery reports.
const SERVE_AFTER: usize = 4_096;

/// If no record arrives for this long, the copy has failed.
const SILENCE: Duration = Duration::from_secs(30);

/// Copies a number of records. The names are those of the source and the target topic.
pub(crate) type Copy = fn(&Topics<'_>, &str, &str, usize);

/// Polls a consumer and passes each record to a producer.
pub(crate) fn plain(topics: &Topics<'_>, from: &str, to: &str, count: usize) {
    let consumer: BaseConsumer = consumer_config(topics.addr())
        .create()
        .expect("a consumer of a valid configuration");
    let producer: BaseProducer = producer_config(topics.addr())
        .create()
        .expect("a producer of a valid configuration");
    consumer
        .assign(&topics.all_of(from))
        .expect("partitions can be assigned");
    for copied in 1..=count {
        let message = consumer
            .poll(SILENCE)
            .expect("a record to copy")
            .expect("a record to copy");
        let headers = message
            .headers()
            .expect("every message of the load has headers")
            .detach();
        let mut record = BaseRecord::<[u8], [u8]>::to(to).headers(headers);
        (record.key, record.payload) = (message.key(), message.payload());
        while let Err((error, back)) = producer.send(record) {
            assert_eq!(
                error.rdkafka_error_code(),
                Some(RDKafkaErrorCode::QueueFull),
                "the client takes what was read"
            );
            record = back;
            producer.poll(Duration::from_millis(10));
        }
        if copied % SERVE_AFTER == 0 {
            producer.poll(Duration::ZERO);
        }
    }
    producer.flush(LIMIT).expect("the broker answers");
}

/// Reads in batches, reuses the topic handle, and passes the headers on without parsing them.
pub(crate) fn best(topics: &Topics<'_>, from: &str, to: &str, count: usize) {
    let mut reader = Reader::new(&consumer_config(topics.addr()), &topics.all_of(from));
    let sender = Sender::new(&producer_config(topics.addr()), to);
    let (mut copied, mut heard) = (0, Instant::now());
    while copied < count {
        let came = reader.read(Duration::from_millis(1), |message| sender.forward(message));
        copied += came;
        heard = if came > 0 { Instant::now() } else { heard };
        assert!(
            heard.elapsed() < SILENCE,
            "only {copied} of {count} records came to be copied"
        );
        sender.serve(Duration::ZERO);
    }
    while sender.in_flight() > 0 {
        sender.serve(Duration::from_millis(10));
        assert!(heard.elapsed() < LIMIT, "the broker answers");
    }
}

/// The defaults hold 64 MiB, and a full queue pauses fetching for a second.
pub(crate) fn consumer_config(addr: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", addr)
        .set("group.id", "copy")
        .set("enable.auto.commit", "false");
    config
        .set("fetch.queue.backoff.ms", "10")
        .set("queued.max.messages.kbytes", "1048576");
    config
}

pub(crate) fn producer_config(addr: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", addr)
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random");
    config
        .set("linger.ms", "5")
        .set("queue.buffering.max.messages", "500000");
    config
}
