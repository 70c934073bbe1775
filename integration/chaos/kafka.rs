//! Runs the Kafka clients of a chaos run: the producer, a producer of aborted transactions, and a
//! consumer.
//!
//! No record of an aborted transaction may arrive. The consumer reads only committed records.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::env::{Outgoing, Producer};
use crate::sender::{Load, payload};
use crate::server::{DEAD, PARTITIONS, SOURCE, TARGET};
use crate::tally::Count;

/// Payload of the records in aborted transactions.
const ABORTED: &str = "aborted";

/// Number of source partitions, from the first, that get aborted transactions. If a fault leaves
/// such a transaction open, `read_committed` consumers of the partition wait behind it.
pub(crate) const ABORTED_PARTITIONS: i32 = 2;

pub(crate) fn load(addr: &str, mut load: Load) {
    let producer = Producer::start_with(addr, &[("message.timeout.ms", "0")]);
    while let Some(batch) = load.batch() {
        for (number, due) in &batch {
            let key = format!("{:012}", number % 5_000);
            producer.send(
                &Outgoing::to(SOURCE)
                    .key(key)
                    .payload(payload(*number))
                    .header("postdate-at", due.to_string()),
            );
        }
        for ((number, _), receipt) in batch.iter().zip(producer.receipts()) {
            if let Ok(place) = receipt {
                load.lies(*number, place);
            }
        }
    }
}

/// Aborts one transaction per second until `stop` is set. After an error it retries with a new
/// client.
pub(crate) fn abort_transactions(addr: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", addr)
            .set("transactional.id", "chaos-aborts")
            .set("transaction.timeout.ms", "10000");
        let producer: BaseProducer = config
            .create()
            .expect("a producer of a valid configuration");
        let mut works = producer.init_transactions(Duration::from_secs(5)).is_ok();
        while works && !stop.load(Ordering::Relaxed) {
            works = abort_one(&producer).is_ok();
            std::thread::sleep(Duration::from_secs(1));
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn abort_one(producer: &BaseProducer) -> rdkafka::error::KafkaResult<()> {
    producer.begin_transaction()?;
    for number in 0..20 {
        let headers = OwnedHeaders::new().insert(Header {
            key: "postdate-after",
            value: Some("100ms"),
        });
        let record = BaseRecord::to(SOURCE)
            .payload(ABORTED)
            .key("k")
            .partition(number % ABORTED_PARTITIONS)
            .headers(headers);
        producer.send(record).map_err(|(error, _)| error)?;
    }
    producer.poll(Duration::from_millis(100));
    producer.abort_transaction(Duration::from_secs(5))
}

/// Reads until `stop` is set. Waits for a broker that is down.
pub(crate) fn read(addr: &str, count: &Count, stop: &AtomicBool) {
    let consumer = consumer(addr);
    while !stop.load(Ordering::Relaxed) {
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        count.see(
            message.topic(),
            message.payload().unwrap_or_default(),
            message.timestamp().to_millis().unwrap_or(0),
        );
    }
}

fn consumer(addr: &str) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", addr)
        .set("group.id", "chaos-tally")
        .set("enable.auto.commit", "false");
    config
        .set("isolation.level", "read_committed")
        .set("auto.offset.reset", "earliest")
        .set("reconnect.backoff.max.ms", "500");
    let consumer: BaseConsumer = config
        .create()
        .expect("a consumer of a valid configuration");
    let mut partitions = TopicPartitionList::new();
    for (topic, count) in [(TARGET, PARTITIONS), (DEAD, 1)] {
        for partition in 0..count {
            partitions
                .add_partition_offset(topic, partition, Offset::Beginning)
                .expect("a valid offset");
        }
    }
    consumer
        .assign(&partitions)
        .expect("partitions can be assigned");
    consumer
}
