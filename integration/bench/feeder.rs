//! The client that sends messages to a source topic, or at a steady rate to wherever they wait. What becomes of them is not its affair.

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

/// The control header and its value, in milliseconds: epoch for `postdate-at`, a delay for `postdate-after`.
pub(crate) type Control = (&'static str, i64);

/// So many go out by one reading of the clock, some half a millisecond: at full speed, to read it for each was a tenth of all sending.
const TOGETHER: usize = 256;

const QUEUE_MAX: &str = "20000";

/// Sends messages to one topic, idempotent; of the answers only refusals are remembered.
pub(crate) struct Feeder<'a> {
    client: BaseProducer<Refusals>,
    topic: String,
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
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", addr)
            .set("enable.idempotence", "true")
            .set("partitioner", "murmur2_random");
        // A queue that its processor's cache can hold, and no reports of what went well: the load shares its cores with what is measured.
        config
            .set("linger.ms", "5")
            .set("queue.buffering.max.messages", QUEUE_MAX)
            .set("delivery.report.only.error", "true");
        let client = config
            .create_with_context(Refusals::default())
            .expect("a producer of a valid configuration");
        Feeder {
            client,
            topic: topic.to_owned(),
            message,
        }
    }

    /// Into one partition; none: that of its key.
    pub(crate) fn send_to(&self, partition: Option<i32>, number: usize, (name, millis): Control) {
        let (key, payload, millis) = (
            self.message.key(number),
            self.message.payload(number),
            millis.to_string(),
        );
        let own = &self.message.headers;
        let first = OwnedHeaders::new_with_capacity(1 + own.len()).insert(Header {
            key: name,
            value: Some(&millis),
        });
        let headers = own.iter().fold(first, |headers, (key, value)| {
            headers.insert(Header {
                key,
                value: Some(value),
            })
        });
        let mut record = BaseRecord::to(&self.topic)
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

/// Hands out a number and its due, as many as the time that passed demands; every millisecond `pause` is called with how many there were.
/// Answers when each was due: fewer than the rate times the time, if they could not be sent as fast.
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
