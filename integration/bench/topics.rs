//! The topics of a measurement: made, counted by their offsets, and read from their start.

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::env::{Kafka, PATIENCE, unique};

/// Makes topics, and asks for their ends with one client: a new one for each question would cost more than what is measured.
pub(crate) struct Topics<'a> {
    kafka: &'a Kafka,
    asker: BaseConsumer,
    /// Of each topic.
    pub(crate) partitions: i32,
}

impl<'a> Topics<'a> {
    pub(crate) fn new(kafka: &'a Kafka, partitions: i32) -> Topics<'a> {
        let asker = ClientConfig::new().set("bootstrap.servers", kafka.addr()).create().expect("a client of a valid configuration");
        Topics { kafka, asker, partitions }
    }

    pub(crate) fn addr(&self) -> &str {
        self.kafka.addr()
    }

    /// A new topic whose records bear the broker's own time of their arrival.
    pub(crate) fn make(&self, name: &str) -> String {
        let topic = unique(name);
        self.kafka.create_topic(&topic, self.partitions, &[("message.timestamp.type", "LogAppendTime")]);
        topic
    }

    /// Frees the disk of what nobody reads any more.
    pub(crate) fn remove(&self, topic: &str) {
        self.kafka.delete_topic(topic);
    }

    /// How many records it holds: nothing is deleted, and nobody uses transactions.
    pub(crate) fn held(&self, topic: &str) -> usize {
        let end = |partition| self.asker.fetch_watermarks(topic, partition, PATIENCE).expect("the broker answers").1;
        (0..self.partitions).map(|partition| usize::try_from(end(partition)).expect("an offset")).sum()
    }

    /// All partitions, from their first record on.
    pub(crate) fn all_of(&self, topic: &str) -> TopicPartitionList {
        let mut partitions = TopicPartitionList::new();
        for partition in 0..self.partitions {
            partitions.add_partition_offset(topic, partition, Offset::Beginning).expect("a valid offset");
        }
        partitions
    }
}
