//! Sends the load to a Kafka topic, and paces a steady load for any destination.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;

use crate::LIMIT;
use crate::ends::Feed;
use crate::env::now_ms;
use crate::workload::{Message, Steady};

/// Name and value of the control header, in milliseconds. `postdate-at` takes an epoch time, and
/// `postdate-after` takes a delay.
pub(crate) type Control = (&'static str, i64);

/// Messages sent per reading of the clock, about half a millisecond's worth at full speed. One
/// reading per message took a tenth of the sending time.
const TOGETHER: usize = 256;

const QUEUE_MAX: &str = "20000";

/// An idempotent producer. It records only failed deliveries.
pub(crate) struct Feeder<'a> {
    client: BaseProducer<Refusals>,
    /// The messages go to the topics in turn.
    topics: Vec<String>,
    message: &'a Message,
}

#[derive(Default)]
struct Refusals(AtomicUsize);

impl ClientContext for Refusals {}

impl ProducerContext for Refusals {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        self.0
            .fetch_add(usize::from(result.is_err()), Ordering::Relaxed);
    }
}

impl<'a> Feeder<'a> {
    pub(crate) fn new(addr: &str, topic: &str, message: &'a Message) -> Feeder<'a> {
        Feeder::over(addr, vec![topic.to_owned()], message)
    }

    pub(crate) fn over(addr: &str, topics: Vec<String>, message: &'a Message) -> Feeder<'a> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", addr)
            .set("enable.idempotence", "true")
            .set("partitioner", "murmur2_random");
        // The load shares its cores with the measured service. The queue therefore fits into the
        // processor's cache, and successful deliveries are not reported.
        config
            .set("linger.ms", "5")
            .set("queue.buffering.max.messages", QUEUE_MAX)
            .set("delivery.report.only.error", "true");
        let client = config
            .create_with_context(Refusals::default())
            .expect("a producer of a valid configuration");
        Feeder {
            client,
            topics,
            message,
        }
    }

    /// Sends to a partition. `None` selects the partition by the key.
    pub(crate) fn send_to(&self, partition: Option<i32>, number: usize, (name, millis): Control) {
        self.send_headers(partition, number, &[(name, &millis.to_string())]);
    }

    /// Like [`Self::send_to`], with these control headers.
    pub(crate) fn send_headers(
        &self,
        partition: Option<i32>,
        number: usize,
        controls: &[(&str, &str)],
    ) {
        let (key, payload) = (self.message.key(number), self.message.payload(number));
        let own = self.message.headers.iter();
        let own = own.map(|(name, value)| (name.as_str(), value.as_str()));
        let capacity = controls.len() + own.len();
        let headers = controls.iter().copied().chain(own);
        let empty = OwnedHeaders::new_with_capacity(capacity);
        let headers = headers.fold(empty, |headers, (key, value)| {
            headers.insert(Header {
                key,
                value: Some(value),
            })
        });
        let mut record = BaseRecord::to(&self.topics[number % self.topics.len()])
            .key(&key)
            .payload(&payload)
            .headers(headers);
        record.partition = partition;
        while let Err((error, back)) = self.client.send(record) {
            assert_eq!(
                error.rdkafka_error_code(),
                Some(RDKafkaErrorCode::QueueFull),
                "the client takes the load"
            );
            record = back;
            self.serve();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Feed for Feeder<'_> {
    fn send(&self, number: usize, control: Control) {
        self.send_to(None, number, control);
    }

    fn serve(&self) {
        self.client.poll(Duration::ZERO);
    }

    fn finish(self) {
        self.client.flush(LIMIT).expect("the broker answers");
        assert_eq!(
            self.client.context().0.load(Ordering::Relaxed),
            0,
            "the broker takes the load"
        );
    }
}

/// Calls `send` with number and due time at a steady rate. About every millisecond it calls `pause`
/// with the number of messages sent. Returns the due times, fewer than rate times time if `send` is
/// too slow.
pub(crate) fn steadily(
    rate: usize,
    steady: &Steady,
    mut send: impl FnMut(usize, i64),
    mut pause: impl FnMut(usize),
) -> Vec<i64> {
    let (start, mut dues) = (
        Instant::now(),
        Vec::with_capacity(rate * steady.lasts.as_secs() as usize),
    );
    while start.elapsed() < steady.lasts {
        let wanted = start.elapsed().as_millis() as usize * rate / 1_000;
        if dues.len() == wanted {
            pause(dues.len());
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let now = now_ms();
        for number in dues.len()..wanted.min(dues.len() + TOGETHER) {
            dues.push(now + steady.delay.of(number));
            send(number, dues[number]);
        }
    }
    dues
}
