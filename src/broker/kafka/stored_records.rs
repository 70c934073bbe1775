//! The [`StoredRecords`] port on Kafka: a consumer of one partition at a time, which joins no group.

use super::error::needs_operator;
use super::ffi::{Message, NativeConsumer};
use super::health::{ClusterHealth, is_connection_error};
use super::limit::KAFKA_REQUEST_TIMEOUT;
use super::options::{ClientOptions, Cluster, NO_OPTIONS, kbytes};
use super::partition_list;
use crate::broker::{Error, RecordBatch, StoredRecords};
use crate::health::HealthPart;
use crate::limit::{DEAD_LETTER_FETCH_BYTES_MAX, DEAD_LETTER_POLL_INTERVAL, REDRIVE_BATCH_MAX};
use crate::model::{Offset, Partition, Timestamp};
use async_trait::async_trait;
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::time::{Instant, sleep};

const OPTIONS: ClientOptions = ClientOptions {
    limits: &[
        ("fetch.wait.max.ms", 100),
        ("fetch.max.bytes", DEAD_LETTER_FETCH_BYTES_MAX as u64),
        (
            "queued.max.messages.kbytes",
            kbytes(DEAD_LETTER_FETCH_BYTES_MAX as u64),
        ),
        // Any record that the broker accepts can be read.
        ("receive.message.max.bytes", 1024 * 1024 * 1024),
    ],
    enforced: &[
        ("auto.offset.reset", "error"),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("enable.partition.eof", "true"),
        ("isolation.level", "read_committed"),
    ],
    ..NO_OPTIONS
};

/// Dropping it closes the client, which blocks for a moment.
pub(crate) struct KafkaStoredRecords {
    consumer: NativeConsumer,
    health: ClusterHealth,
    assigned: Option<Partition>,
    /// The offset of the next record of that partition. `None`: unknown after an error or the end.
    next: Option<Offset>,
}

impl KafkaStoredRecords {
    /// librdkafka needs a group name, but does not use this one.
    pub(crate) fn new(cluster: &Cluster, group: &str, part: HealthPart) -> Result<Self, Error> {
        let config = cluster.config(&OPTIONS, &[("group.id", group.to_owned())]);
        Ok(Self {
            consumer: NativeConsumer::new(&config, REDRIVE_BATCH_MAX)?,
            health: ClusterHealth::new(&cluster.name, part),
            assigned: None,
            next: None,
        })
    }

    fn start(&mut self, partition: &Partition, from: Offset) -> Result<(), Error> {
        if let Some(last) = self.assigned.take() {
            let mut removed = TopicPartitionList::new();
            removed.add_partition(&last.topic, last.index);
            self.consumer.unassign(&removed).map_err(Error::Fatal)?;
        }
        let mut added = TopicPartitionList::new();
        partition_list::add(&mut added, partition, from, None);
        self.consumer.assign(&added).map_err(Error::Fatal)?;
        (self.assigned, self.next) = (Some(partition.clone()), None);
        Ok(())
    }

    /// Adds the fetched records, without waiting. Returns the offset behind them, and whether the end was reached.
    fn fetch(&mut self, batch: &mut RecordBatch, from: Offset) -> Result<(Offset, bool), Error> {
        let (mut next, mut is_end, mut failed) = (from, false, None);
        let Self {
            consumer, health, ..
        } = self;
        consumer.read(|message| match message.error() {
            None => next = add(message, batch, next),
            Some((Code::PartitionEOF, _)) => is_end = true,
            Some((code, text)) if is_connection_error(code) => health.record_error(code, text),
            Some((code, text)) => failed = Some((code, text)),
        });
        let partition = &batch.partition;
        match failed {
            None => Ok((next, is_end)),
            Some((Code::AutoOffsetReset | Code::OffsetOutOfRange, _)) => Err(Error::Unavailable(
                format!("records of {partition} were removed meanwhile: try again"),
            )),
            Some((code, text)) if needs_operator(code) => Err(Error::Rejected(format!(
                "{partition} cannot be read: {text}"
            ))),
            Some((_, text)) => Err(Error::Unavailable(format!(
                "{partition} cannot be read: {text}"
            ))),
        }
    }
}

/// The offset behind the record.
fn add(message: &Message<'_>, batch: &mut RecordBatch, next: Offset) -> Offset {
    match u64::try_from(message.offset()) {
        Ok(offset) if offset >= next.0 => {
            batch.push(
                Offset(offset),
                message.timestamp().map(Timestamp::from_millis),
                message.key(),
                message.payload(),
                message.headers(),
            );
            Offset(offset + 1)
        }
        _ => next,
    }
}

#[async_trait(?Send)]
impl StoredRecords for KafkaStoredRecords {
    async fn topic_of(&mut self, destination: &str) -> Result<Option<String>, Error> {
        Ok(Some(destination.to_owned()))
    }

    async fn read(
        &mut self,
        partition: &Partition,
        from: Offset,
        end: Offset,
    ) -> Result<(RecordBatch, Offset), Error> {
        let mut batch = RecordBatch::new(partition.clone(), 0);
        if from >= end {
            return Ok((batch, end));
        }
        if self.assigned.as_ref() != Some(partition) || self.next.take() != Some(from) {
            self.start(partition, from)?;
        }
        let until = Instant::now() + KAFKA_REQUEST_TIMEOUT;
        loop {
            let (native, health) = (&self.consumer.native, &self.health);
            native.serve_events(|event| health.on_client_event(event));
            let (next, is_end) = self.fetch(&mut batch, from)?;
            if is_end {
                // librdkafka reports an end once. It lies at or behind `end`, which was known before.
                return Ok((batch, end.max(next)));
            }
            if batch.len() > 0 {
                self.next = Some(next);
                return Ok((batch, next));
            }
            if Instant::now() > until {
                let reason = self.health.outage_reason();
                let reason = reason.unwrap_or_else(|| format!("{partition} is not answered"));
                return Err(Error::Unavailable(reason));
            }
            sleep(DEAD_LETTER_POLL_INTERVAL).await;
        }
    }
}
