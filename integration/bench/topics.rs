//! Creates the topics of a measurement, counts their records by offsets, and reads them from their
//! start.

use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::ends::{Arrived, Ends, Names};
use crate::env::{Kafka, PATIENCE, unique};
use crate::feeder::Feeder;
use crate::raw::Reader;
use crate::row::System;
use crate::workload::Message;

/// Stop reading a topic that yields no record for this long, even if its offsets promise more.
const SILENCE: Duration = Duration::from_secs(30);

/// Creates and inspects topics with one client. A new client per request would cost more than the
/// measured work.
pub(crate) struct Topics<'a> {
    kafka: &'a Kafka,
    asker: BaseConsumer,
    /// Partitions of each topic.
    pub(crate) partitions: i32,
}

impl<'a> Topics<'a> {
    pub(crate) fn new(kafka: &'a Kafka, partitions: i32) -> Topics<'a> {
        let asker = ClientConfig::new()
            .set("bootstrap.servers", kafka.addr())
            .create()
            .expect("a client of a valid configuration");
        Topics {
            kafka,
            asker,
            partitions,
        }
    }

    /// Returns the same for topics with another number of partitions.
    pub(crate) fn with(&self, partitions: i32) -> Topics<'a> {
        Topics::new(self.kafka, partitions)
    }

    pub(crate) fn addr(&self) -> &str {
        self.kafka.addr()
    }

    /// Deletes a topic that is no longer read, which frees disk space.
    pub(crate) fn remove(&self, topic: &str) {
        self.kafka.delete_topic(topic);
    }

    /// All partitions of a topic, from their first record.
    pub(crate) fn all_of(&self, topic: &str) -> TopicPartitionList {
        let mut partitions = TopicPartitionList::new();
        for partition in 0..self.partitions {
            partitions
                .add_partition_offset(topic, partition, Offset::Beginning)
                .expect("a valid offset");
        }
        partitions
    }
}

/// The lines of the configuration that define a route on the cluster `main`.
pub(crate) fn route(name: &str, names: &Names<'_>) -> String {
    let Names {
        source,
        target,
        dead,
        delivery,
    } = names;
    format!(
        r#"
[route.{name}]
source = {{ kafka = "main", topics = ["{source}"] }}
target = {{ kafka = "main", topic = "{target}" }}
dead_letter = {{ kafka = "main", topic = "{dead}" }}
delivery = "{delivery}"
"#
    )
}

impl Ends for Topics<'_> {
    const SYSTEM: System = System::Postdate;

    type Feeder<'f>
        = Feeder<'f>
    where
        Self: 'f;

    fn make(&self, name: &str) -> String {
        let topic = unique(name);
        self.kafka.create_topic(
            &topic,
            self.partitions,
            &[("message.timestamp.type", "LogAppendTime")],
        );
        topic
    }

    /// Counts by offsets. The load uses no transactions, whose markers would count too.
    fn held(&self, topic: &str) -> usize {
        let end = |partition| {
            self.asker
                .fetch_watermarks(topic, partition, PATIENCE)
                .expect("the broker answers")
                .1
        };
        (0..self.partitions)
            .map(|partition| usize::try_from(end(partition)).expect("an offset"))
            .sum()
    }

    fn feeder<'f>(&'f self, topic: &str, message: &'f Message) -> Feeder<'f> {
        Feeder::new(self.addr(), topic, message)
    }

    fn read(&self, topic: &str, mut each: impl FnMut(&Arrived<'_>)) {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", self.addr())
            .set("group.id", "ledger")
            .set("enable.auto.commit", "false");
        config.set("fetch.queue.backoff.ms", "10");
        let mut reader = Reader::new(&config, &self.all_of(topic));
        let (held, mut read, mut heard) = (self.held(topic), 0, Instant::now());
        while read < held && heard.elapsed() < SILENCE {
            let came = reader.read(Duration::from_millis(100), |message| {
                each(&Arrived {
                    key: message.key(),
                    payload: message.payload(),
                    stamp: message.timestamp(),
                });
            });
            read += came;
            heard = if came > 0 { Instant::now() } else { heard };
        }
    }

    fn route(&self, names: &Names<'_>) -> String {
        let (addr, route) = (self.addr(), route("bench", names));
        format!("\n[kafka.main]\nbrokers = [\"{addr}\"]\n{route}")
    }

    fn shards(&self, source: &str) -> Vec<String> {
        (0..self.partitions)
            .map(|partition| format!("{source}/{partition}"))
            .collect()
    }

    fn stored(&self, _shard: usize, watermark: usize) -> usize {
        watermark
    }
}
