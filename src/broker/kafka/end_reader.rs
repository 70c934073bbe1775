//! Reads the records that arrive on a topic from now on, for a command that waits for one of them.

use super::error::client_creation_error;
use super::ffi::log_in;
use super::limit::KAFKA_REQUEST_TIMEOUT;
use super::login::Login;
use super::options::{ClientOptions, Cluster, NO_OPTIONS};
use crate::broker::Error;
use crate::broker::cluster::NewRecords;
use async_trait::async_trait;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::{Message as _, Offset, TopicPartitionList};
use tokio::time::Instant;

const OPTIONS: ClientOptions = ClientOptions {
    enforced: &[
        ("enable.auto.commit", "false"),
        ("isolation.level", "read_committed"),
        // The client demands a group. The reader does not join it, so it needs no right.
        ("group.id", "postdate"),
    ],
    ..NO_OPTIONS
};

/// A consumer without a group. Its calls block the thread.
pub(crate) struct EndReader(BaseConsumer);

impl EndReader {
    /// Starts at the current end of each partition.
    pub(crate) fn open(cluster: &Cluster, topic: &str) -> Result<Self, Error> {
        let mut config = cluster.config(&OPTIONS, &[]);
        let login = Login::take_from(&mut config)?;
        let created = config.create();
        let consumer: BaseConsumer = created.map_err(|error| client_creation_error(&error))?;
        log_in(consumer.client(), login.as_ref())?;
        let metadata = consumer.fetch_metadata(Some(topic), KAFKA_REQUEST_TIMEOUT);
        let metadata = metadata.map_err(|error| unavailable(&error))?;
        let mut ends = TopicPartitionList::new();
        for partition in metadata.topics().iter().flat_map(|it| it.partitions()) {
            let range = consumer.fetch_watermarks(topic, partition.id(), KAFKA_REQUEST_TIMEOUT);
            let (_, end) = range.map_err(|error| unavailable(&error))?;
            let added = ends.add_partition_offset(topic, partition.id(), Offset::Offset(end));
            added.map_err(|error| unavailable(&error))?;
        }
        if ends.count() == 0 {
            let reason = format!("the topic {topic} does not exist, or this login may not read it");
            return Err(Error::Rejected(reason));
        }
        consumer
            .assign(&ends)
            .map_err(|error| unavailable(&error))?;
        Ok(Self(consumer))
    }
}

#[async_trait(?Send)]
impl NewRecords for EndReader {
    async fn next(&mut self, end: Instant) -> Result<Option<Vec<u8>>, Error> {
        let wait = end.saturating_duration_since(Instant::now());
        match self.0.poll(wait) {
            None => Ok(None),
            Some(Ok(record)) => Ok(Some(record.payload().unwrap_or_default().to_vec())),
            Some(Err(error)) => Err(unavailable(&error)),
        }
    }
}

fn unavailable(error: &KafkaError) -> Error {
    Error::Unavailable(error.to_string())
}
