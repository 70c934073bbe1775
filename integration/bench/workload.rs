//! The messages that all measurements are made with, and the client that sends them to a source topic. What becomes of them is not its
//! affair.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;

use crate::LIMIT;

/// The control header and its value, in milliseconds: epoch for `postdate-at`, a delay for `postdate-after`.
pub(crate) type Control = (&'static str, i64);

/// Unique by number; 12 bytes up to a hundred million.
pub(crate) fn key(number: usize) -> String {
    format!("key-{number:08}")
}

/// The number that a key was made from.
pub(crate) fn number(key: &[u8]) -> Option<usize> {
    std::str::from_utf8(key).ok()?.strip_prefix("key-")?.parse().ok()
}

/// What a shop would send: 191 bytes up to ten million, and a quarter of it noise that no compression shrinks.
pub(crate) fn payload(number: usize) -> String {
    let noise = noise(number);
    let (customer, cents) = (100_000 + noise % 900_000, 100_000 + (noise >> 20) % 900_000);
    format!(
        r#"{{"order_id":"{noise:016x}-{:016x}","customer":{customer},"amount_cents":{cents},"currency":"EUR","status":"pending_payment","sku":"SKU-{:05}","note":"close unless paid","n":"{number:07}"}}"#,
        noise.rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9),
        (noise >> 40) % 100_000
    )
}

/// Scattered evenly over all 64-bit numbers, and the same for the same number.
fn noise(number: usize) -> u64 {
    (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A place in `0..span` for each number: evenly spread, and in no order.
pub(crate) fn spread(number: usize, span: Duration) -> i64 {
    let scattered = noise(number) ^ (noise(number) >> 31);
    ((u128::from(scattered.wrapping_mul(0x94D0_49BB_1331_11EB)) * span.as_millis()) >> 64) as i64
}

/// Sends messages to one topic, idempotent; of the answers only refusals are remembered.
pub(crate) struct Feeder {
    client: BaseProducer<Refusals>,
    topic: String,
}

#[derive(Default)]
struct Refusals(AtomicUsize);

impl ClientContext for Refusals {}

impl ProducerContext for Refusals {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        self.0.fetch_add(usize::from(result.is_err()), Ordering::Relaxed);
    }
}

impl Feeder {
    pub(crate) fn new(addr: &str, topic: &str) -> Feeder {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", addr).set("enable.idempotence", "true").set("partitioner", "murmur2_random");
        config.set("linger.ms", "5").set("queue.buffering.max.messages", "500000");
        let client = config.create_with_context(Refusals::default()).expect("a producer of a valid configuration");
        Feeder { client, topic: topic.to_owned() }
    }

    /// Message `number`, with one header of its own beside the control header; waits while the client is full.
    pub(crate) fn send(&self, number: usize, (name, millis): Control) {
        let (key, payload, millis) = (key(number), payload(number), millis.to_string());
        let headers = OwnedHeaders::new_with_capacity(2)
            .insert(Header { key: name, value: Some(&millis) })
            .insert(Header { key: "content-type", value: Some("application/json") });
        let mut record = BaseRecord::to(&self.topic).key(&key).payload(&payload).headers(headers);
        while let Err((error, back)) = self.client.send(record) {
            assert_eq!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::QueueFull), "the client takes the load");
            record = back;
            self.client.poll(Duration::from_millis(1));
        }
    }

    /// Takes in what the broker answered.
    pub(crate) fn serve(&self) {
        self.client.poll(Duration::ZERO);
    }

    /// Waits until the broker has taken everything.
    pub(crate) fn finish(self) {
        self.client.flush(LIMIT).expect("the broker answers");
        assert_eq!(self.client.context().0.load(Ordering::Relaxed), 0, "the broker takes the load");
    }
}
