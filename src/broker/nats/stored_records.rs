//! The [`StoredRecords`] port on NATS: each message is a request, so no consumer is needed.

use super::connection::Connection;
use super::header::IncomingHeaders;
use super::{Cluster, stream_info};
use crate::broker::{Error, RecordBatch, StoredRecords};
use crate::health::HealthPart;
use crate::limit::{DEAD_LETTER_FETCH_BYTES_MAX, DEAD_LETTERS_PER_READ_MAX};
use crate::model::{Offset, Partition, source_topic, split_source_topic};
use async_trait::async_trait;

pub(crate) struct NatsStoredRecords(Connection);

impl NatsStoredRecords {
    pub(crate) fn new(cluster: &Cluster, part: HealthPart) -> Self {
        Self(Connection::new(cluster, part))
    }
}

#[async_trait(?Send)]
impl StoredRecords for NatsStoredRecords {
    async fn topic_of(&mut self, destination: &str) -> Result<Option<String>, Error> {
        let streams = stream_info::names_for_subject(&self.0, destination).await?;
        Ok(streams
            .first()
            .map(|stream| source_topic(stream, destination)))
    }

    async fn read(
        &mut self,
        partition: &Partition,
        from: Offset,
        end: Offset,
    ) -> Result<(RecordBatch, Offset), Error> {
        let mut batch = RecordBatch::new(partition.clone(), 0);
        let (stream, subject) = split_source_topic(&partition.topic).unwrap_or_default();
        let mut next = from;
        while next < end
            && batch.len() < DEAD_LETTERS_PER_READ_MAX
            && batch.bytes() < DEAD_LETTER_FETCH_BYTES_MAX
        {
            let found = stream_info::read_message(&self.0, stream, subject, next.0).await?;
            let Some(message) = found else {
                next = end;
                break;
            };
            let (headers, payload) = stream_info::decode(&message)?;
            let headers = IncomingHeaders::of_bytes(&headers);
            batch.push(
                Offset(message.sequence),
                stream_info::timestamp(message.time.unix_timestamp_nanos()),
                headers.key().as_deref(),
                headers.payload(&payload),
                headers.headers(false),
            );
            next = Offset(message.sequence + 1);
        }
        Ok((batch, next))
    }
}
