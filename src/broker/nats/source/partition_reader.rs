//! Reads one partition in order, from a given offset, by a pull consumer without acknowledgements.
//!
//! The reader replaces its consumer when the consumer skips a message, sends no heartbeat,
//! withholds messages that the stream has, or loses its connection. The new consumer starts at the
//! next offset. The reader never returns a message below the requested offset.
//!
//! A consumer does not tell where the partition ends, whether messages were removed, or whether the
//! stream was replaced. So the reader fetches the stream's info every
//! [`NATS_STREAM_CHECK_INTERVAL`], and soon after it has caught up.

use super::pull_consumer::{MessagePosition, PullConsumer, Pulled};
use crate::broker::nats::connection::Connection;
use crate::broker::nats::header::IncomingHeaders;
use crate::broker::nats::stream_info::{self, StoredMessage, StreamInfo};
use crate::broker::{Error, Event, RecordBatch};
use crate::limit::{
    NATS_BATCH_MESSAGES_MAX, NATS_CONSUMER_INACTIVE_TIMEOUT, NATS_RETRY_DELAY,
    NATS_SOURCE_FAILURE_GRACE, NATS_STALLED_CHECKS_MAX, NATS_STREAM_CHECK_INTERVAL,
    NATS_STREAM_RECHECK_DELAY, SOURCE_BATCH_BYTES_MAX,
};
use crate::model::header_name::SUBJECT;
use crate::model::{Offset, Partition, Timestamp};
use async_nats::jetstream::Message;
use futures_util::FutureExt as _;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// The partition to read, and how.
#[derive(Clone, Debug)]
pub(super) struct ReaderOptions {
    pub(super) partition: Partition,
    pub(super) stream: String,
    /// The subject filter.
    pub(super) filter: String,
    pub(super) epoch: u64,
    /// Creation time of the stream to which the start offset belongs. `None`: any stream.
    pub(super) created: Option<i128>,
    /// The route understands the headers of NATS' own message schedules.
    pub(super) reads_schedules: bool,
    pub(super) status: Rc<ReaderStatus>,
}

/// The state of a reader, which the source can read at any time.
#[derive(Debug, Default)]
pub(super) struct ReaderStatus {
    /// The end of the stream at the last check.
    pub(super) end: Cell<Option<Offset>>,
    /// Why reading has failed for longer than [`NATS_SOURCE_FAILURE_GRACE`].
    pub(super) error: RefCell<Option<String>>,
}

/// The reader of one partition.
pub(super) struct PartitionReader {
    connection: Connection,
    options: ReaderOptions,
    /// The lowest offset that may be returned next.
    next_offset: u64,
    consumer: Option<PullConsumer>,
    /// Creation time of the stream that is read.
    created: Option<i128>,
    /// The end that was reported last.
    reported_end: Option<u64>,
    next_check: Instant,
    /// Offsets skipped since the last check: filtered out, or removed.
    skipped: Option<SkippedRange>,
    /// The stream deletes a consumer that is not pulled for this time.
    consumer_idle_max: Duration,
    failing_since: Option<Instant>,
    /// The offset of a message that the stream has and the consumer has not brought.
    missing_offset: u64,
    /// Number of checks in a row that found this offset missing.
    missing_checks: u32,
    /// The consumer failed and the next message may be the cause. It is read without a consumer.
    reads_next_directly: bool,
    /// The reader has reported that its position is out of range.
    is_out_of_range: bool,
}

/// Offsets that the consumer did not bring.
#[derive(Clone, Copy)]
struct SkippedRange {
    from: u64,
    count: u64,
}

impl PartitionReader {
    pub(super) fn new(connection: Connection, options: ReaderOptions, from: Offset) -> Self {
        Self {
            created: options.created,
            connection,
            options,
            next_offset: from.0,
            consumer: None,
            reported_end: None,
            next_check: Instant::now(),
            skipped: None,
            consumer_idle_max: NATS_CONSUMER_INACTIVE_TIMEOUT,
            failing_since: None,
            missing_offset: 0,
            missing_checks: 0,
            reads_next_directly: false,
            is_out_of_range: false,
        }
    }

    /// The next event. Never returns after [`Event::OutOfRange`]. Not safe to drop, so the source
    /// keeps the future.
    pub(super) async fn next_event(mut self) -> (Event, Self) {
        loop {
            if self.is_out_of_range {
                std::future::pending::<()>().await;
            }
            match self.step().await {
                Ok(Some(event)) => return (event, self),
                Ok(None) => {}
                Err(error) => {
                    self.consumer = None;
                    self.on_failure(&error.to_string());
                    tokio::time::sleep(NATS_RETRY_DELAY).await;
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Option<Event>, Error> {
        let Some(mut consumer) = self.consumer.take() else {
            return self.open_consumer().await;
        };
        let next_check = self.next_check;
        let pulled = tokio::select! {
            biased;
            pulled = consumer.next() => pulled,
            () = tokio::time::sleep_until(next_check) => {
                self.consumer = Some(consumer);
                return self.check_stream().await;
            }
        };
        match pulled {
            Pulled::Failed(reason) => {
                self.reads_next_directly = true;
                self.on_failure(&reason);
                tokio::time::sleep(NATS_RETRY_DELAY).await;
                Ok(None)
            }
            Pulled::Message(message, position) => {
                self.on_success();
                Ok(self.read_batch(consumer, *message, position))
            }
        }
    }

    /// Reports a failure to the source after a grace time. The connection reports shorter ones.
    fn on_failure(&mut self, reason: &str) {
        let partition = &self.options.partition;
        tracing::debug!(%partition, reason, "recreating the consumer");
        let failing_since = self.failing_since.get_or_insert_with(Instant::now);
        if failing_since.elapsed() > NATS_SOURCE_FAILURE_GRACE {
            let error = format!("{partition} cannot be read: {reason}");
            self.options.status.error.replace(Some(error));
        }
    }

    fn on_success(&mut self) {
        if self.failing_since.take().is_some() {
            self.options.status.error.take();
        }
    }

    /// Checks the stream, then creates a consumer at the next offset.
    async fn open_consumer(&mut self) -> Result<Option<Event>, Error> {
        if let Some(event) = self.check_stream().await? {
            return Ok(Some(event));
        }
        if self.reads_next_directly {
            // A message whose headers break the connection would otherwise block all behind it.
            self.reads_next_directly = false;
            if let Some(message) = self.next_stored_message().await? {
                return Ok(Some(self.batch_of_one(&message)));
            }
        }
        let consumer = PullConsumer::create(
            &self.connection,
            &self.options.stream,
            &self.options.filter,
            self.next_offset,
            self.consumer_idle_max,
        );
        self.consumer = Some(consumer.await?);
        Ok(None)
    }

    /// A batch of the first message and of those that the client has received already.
    fn read_batch(
        &mut self,
        mut consumer: PullConsumer,
        first: Message,
        position: MessagePosition,
    ) -> Option<Event> {
        let mut batch = self.new_batch();
        let mut next = Some((first, position));
        let mut pending = 0;
        while let Some((message, position)) = next.take() {
            pending = position.pending;
            if position.sequence >= self.next_offset {
                self.push_message(&mut batch, &message, position);
            }
            if batch.len() >= NATS_BATCH_MESSAGES_MAX || batch.bytes() >= SOURCE_BATCH_BYTES_MAX {
                break;
            }
            match consumer.next().now_or_never() {
                Some(Pulled::Message(message, position)) => next = Some((*message, position)),
                Some(Pulled::Failed(reason)) => {
                    self.reads_next_directly = true;
                    self.on_failure(&reason);
                    return (batch.len() > 0).then_some(Event::Records(batch));
                }
                None => {}
            }
        }
        if pending == 0 {
            self.next_check = self
                .next_check
                .min(Instant::now() + NATS_STREAM_RECHECK_DELAY);
        }
        self.consumer = Some(consumer);
        (batch.len() > 0).then_some(Event::Records(batch))
    }

    fn batch_of_one(&mut self, message: &StoredMessage) -> Event {
        let mut batch = self.new_batch();
        self.push(
            &mut batch,
            (message.sequence, message.timestamp),
            &message.subject,
            &IncomingHeaders::of_bytes(&message.headers),
            &message.payload,
        );
        Event::Records(batch)
    }

    fn new_batch(&self) -> RecordBatch {
        RecordBatch::new(self.options.partition.clone(), self.options.epoch)
    }

    fn push_message(
        &mut self,
        batch: &mut RecordBatch,
        message: &Message,
        position: MessagePosition,
    ) {
        self.push(
            batch,
            (position.sequence, position.timestamp),
            &message.subject,
            &IncomingHeaders::of(message.headers.as_ref()),
            &message.payload,
        );
    }

    fn push(
        &mut self,
        batch: &mut RecordBatch,
        (sequence, timestamp): (u64, Option<Timestamp>),
        subject: &str,
        headers: &IncomingHeaders<'_>,
        payload: &[u8],
    ) {
        self.skip_to(sequence);
        let key = headers.key();
        // The subject header is always the one that the message was published to.
        let own = headers
            .headers(self.options.reads_schedules)
            .filter(|(name, _)| *name != SUBJECT.as_bytes());
        let all = std::iter::once((SUBJECT.as_bytes(), Some(subject.as_bytes()))).chain(own);
        batch.push(
            Offset(sequence),
            timestamp,
            key.as_deref(),
            headers.payload(payload),
            all,
        );
        self.next_offset = sequence + 1;
    }

    /// Fetches the stream's info. Reports a replaced stream, removed messages, or the end.
    async fn check_stream(&mut self) -> Result<Option<Event>, Error> {
        self.next_check = Instant::now() + NATS_STREAM_CHECK_INTERVAL;
        let stream = self.options.stream.as_str();
        let Some(info) = stream_info::fetch(&self.connection, stream).await? else {
            // The group revokes a partition without a stream.
            return Err(Error::Rejected(format!(
                "the stream {stream} does not exist"
            )));
        };
        self.options.status.end.set(Some(Offset(info.end)));
        self.consumer_idle_max = info
            .consumer_idle_max
            .map_or(NATS_CONSUMER_INACTIVE_TIMEOUT, |idle| {
                idle.min(NATS_CONSUMER_INACTIVE_TIMEOUT)
            });
        let created = *self.created.get_or_insert(info.created);
        let is_same_stream = info.created == created;
        if let Some(removed) = self.removed_event(&info).filter(|_| is_same_stream) {
            self.next_check = Instant::now();
            return Ok(Some(removed));
        }
        if !is_same_stream || !(info.first..=info.end).contains(&self.next_offset) {
            self.is_out_of_range = true;
            self.consumer = None;
            return Ok(Some(Event::OutOfRange {
                partition: self.options.partition.clone(),
                epoch: self.options.epoch,
            }));
        }
        let is_at_end = info.end == self.next_offset || self.next_stored_message().await?.is_none();
        if !is_at_end {
            self.on_missing_message();
            return Ok(None);
        }
        if self.consumer.is_some() {
            self.on_success();
        }
        Ok(self.end_event(&info))
    }

    /// The event that the partition ends here, once per end.
    fn end_event(&mut self, info: &StreamInfo) -> Option<Event> {
        if self.reported_end == Some(info.end) {
            return None;
        }
        if info.is_covered_by(&self.options.filter) {
            // The filter matches every subject, so the messages up to the end were removed.
            self.skip_to(info.end);
        }
        self.next_offset = info.end;
        self.reported_end = Some(info.end);
        Some(Event::EndReached {
            partition: self.options.partition.clone(),
            epoch: self.options.epoch,
            at: Offset(info.end),
        })
    }

    /// The first message of the partition from the next offset on, read without a consumer.
    async fn next_stored_message(&self) -> Result<Option<StoredMessage>, Error> {
        stream_info::read_message(
            &self.connection,
            &self.options.stream,
            &self.options.filter,
            self.next_offset,
        )
        .await
    }

    /// Recreates a consumer that repeatedly withholds a message that the stream has. A paused
    /// consumer does this, and one whose server lost its state.
    fn on_missing_message(&mut self) {
        let next_offset = self.next_offset;
        if self.missing_offset != next_offset {
            self.missing_offset = next_offset;
            self.missing_checks = 0;
        }
        if self.consumer.is_none() {
            self.missing_checks = 0;
            return;
        }
        self.missing_checks += 1;
        if self.missing_checks >= NATS_STALLED_CHECKS_MAX {
            let partition = &self.options.partition;
            tracing::warn!(
                %partition,
                next_offset,
                "the consumer does not bring messages that the stream has: recreating it"
            );
            self.consumer = None;
            self.reads_next_directly = true;
            self.on_failure("its consumers do not bring messages that the stream has");
        }
    }

    /// The event for messages that were removed before they were read. A consumer skips them
    /// silently, as it skips other subjects, so their number is an upper bound.
    fn removed_event(&mut self, info: &StreamInfo) -> Option<Event> {
        let SkippedRange { from, count } = self.skipped.take()?;
        let count = count.min(info.removed_since(&self.options.filter, from));
        (count > 0).then(|| Event::RecordsRemoved {
            partition: self.options.partition.clone(),
            epoch: self.options.epoch,
            from: Offset(from),
            count,
        })
    }

    fn skip_to(&mut self, offset: u64) {
        if offset > self.next_offset {
            let skipped = self.skipped.get_or_insert(SkippedRange {
                from: self.next_offset,
                count: 0,
            });
            skipped.count += offset - self.next_offset;
        }
    }
}
