//! Reads one partition in order, from a given offset, by a pull consumer without acknowledgements.
//!
//! The reader replaces its consumer when the consumer skips a message, sends no heartbeat,
//! withholds messages that the stream has, or loses its connection.
//!
//! A consumer does not tell where the partition ends, whether messages were removed, or whether the
//! stream was replaced. So the reader fetches the stream's info at an interval.

use super::pull_consumer::{PullConsumer, PulledMessage};
use crate::broker::nats::connection::Connection;
use crate::broker::nats::header::IncomingHeaders;
use crate::broker::nats::limit::{
    NATS_MESSAGES_PER_TURN_MAX, NATS_RETRY_DELAY, NATS_SOURCE_FAILURE_GRACE,
    NATS_STALLED_CHECKS_MAX, NATS_STREAM_CHECK_INTERVAL,
};
use crate::broker::nats::stream_info::{self, StreamInfo};
use crate::broker::{Error, Event, RecordBatch};
use crate::limit::SOURCE_BATCH_BYTES_MAX;
use crate::model::header_name::SUBJECT;
use crate::model::{Offset, Partition, Timestamp};
use async_nats::jetstream::stream::RawMessage;
use futures_util::{FutureExt as _, Stream, stream};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::time::{Instant, sleep, sleep_until};

/// The partition to read, and how.
pub(super) struct ReaderOptions {
    pub(super) partition: Partition,
    pub(super) stream: String,
    pub(super) filter: String,
    pub(super) epoch: u64,
    /// Creation time of the stream to which the start offset belongs. `None`: any stream.
    pub(super) created: Option<i128>,
    /// The route understands the headers of NATS' own message schedules.
    pub(super) reads_schedules: bool,
    /// Bytes of one fetch. A larger message makes it larger.
    pub(super) fetch_bytes_max: usize,
    pub(super) status: Rc<ReaderStatus>,
}

/// The state of a reader, which the source can read at any time.
#[derive(Default)]
pub(super) struct ReaderStatus {
    /// The end of the stream at the last check.
    pub(super) end: Cell<Option<Offset>>,
    /// Why reading has failed for longer than [`NATS_SOURCE_FAILURE_GRACE`].
    pub(super) error: RefCell<Option<String>>,
}

pub(super) struct PartitionReader {
    connection: Rc<Connection>,
    options: ReaderOptions,
    /// The lowest offset that may be returned next.
    next_offset: u64,
    consumer: Option<PullConsumer>,
    /// The end that was reported last.
    reported_end: Option<u64>,
    next_check: Instant,
    /// Number of offsets that were filtered out or removed since the last check, and the first one.
    skipped: u64,
    skipped_from: u64,
    failing_since: Option<Instant>,
    /// The offset of a message that the stream has and the consumer withholds.
    missing_offset: u64,
    /// Number of checks in a row that found this offset missing.
    missing_checks: u32,
    /// The consumer failed and the next message may be the cause. It is read without a consumer.
    reads_next_directly: bool,
}

impl PartitionReader {
    pub(super) fn new(connection: Rc<Connection>, options: ReaderOptions, from: Offset) -> Self {
        Self {
            connection,
            options,
            next_offset: from.0,
            consumer: None,
            reported_end: None,
            next_check: Instant::now(),
            skipped: 0,
            skipped_from: 0,
            failing_since: None,
            missing_offset: 0,
            missing_checks: 0,
            reads_next_directly: false,
        }
    }

    /// All events of the reader. [`Event::OutOfRange`] is the last one.
    pub(super) fn into_events(self) -> impl Stream<Item = Event> {
        stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            let event = reader.next_event().await;
            let is_last = matches!(event, Event::OutOfRange { .. });
            Some((event, (!is_last).then_some(reader)))
        })
    }

    async fn next_event(&mut self) -> Event {
        loop {
            match self.step().await {
                Ok(Some(event)) => return event,
                Ok(None) => {}
                Err(reason) => {
                    self.on_failure(&reason);
                    sleep(NATS_RETRY_DELAY).await;
                }
            }
        }
    }

    /// `Err`: the consumer must be replaced, for this reason.
    async fn step(&mut self) -> Result<Option<Event>, String> {
        let Some(consumer) = &mut self.consumer else {
            return self
                .open_consumer()
                .await
                .map_err(|error| error.to_string());
        };
        let pulled = tokio::select! {
            biased;
            pulled = consumer.next() => pulled,
            () = sleep_until(self.next_check) => {
                return self.check_stream().await.map_err(|error| error.to_string());
            }
        };
        self.reads_next_directly = pulled.is_err();
        let first = pulled?;
        self.on_success();
        Ok(self.read_batch(first))
    }

    /// Drops the consumer. Reports only lasting failures; the connection reports shorter ones.
    fn on_failure(&mut self, reason: &str) {
        self.consumer = None;
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

    async fn open_consumer(&mut self) -> Result<Option<Event>, Error> {
        if let Some(event) = self.check_stream().await? {
            return Ok(Some(event));
        }
        // A message whose headers break the connection would otherwise block all behind it.
        if std::mem::take(&mut self.reads_next_directly)
            && let Some(message) = self.next_stored_message().await?
        {
            let (headers, payload) = stream_info::decode(&message)?;
            let mut batch = self.new_batch();
            self.push(
                &mut batch,
                message.sequence,
                stream_info::timestamp(message.time.unix_timestamp_nanos()),
                &message.subject,
                &IncomingHeaders::of_bytes(&headers),
                &payload,
            );
            return Ok(Some(Event::Records(batch)));
        }
        let consumer = PullConsumer::create(&self.connection, &self.options, self.next_offset);
        self.consumer = Some(consumer.await?);
        Ok(None)
    }

    /// A batch of the first message and of those that the client has received already.
    fn read_batch(&mut self, first: PulledMessage) -> Option<Event> {
        let mut batch = self.new_batch();
        let mut next = Some(first);
        while let Some(pulled) = next.take() {
            if pulled.sequence >= self.next_offset {
                self.push(
                    &mut batch,
                    pulled.sequence,
                    pulled.timestamp,
                    &pulled.message.subject,
                    &IncomingHeaders::of(pulled.message.headers.as_ref()),
                    &pulled.message.payload,
                );
            }
            let is_full = batch.len() >= NATS_MESSAGES_PER_TURN_MAX
                || batch.bytes() >= SOURCE_BATCH_BYTES_MAX;
            let consumer = self.consumer.as_mut().filter(|_| !is_full);
            match consumer.and_then(|consumer| consumer.next().now_or_never()) {
                Some(Ok(pulled)) => next = Some(pulled),
                Some(Err(reason)) => {
                    self.reads_next_directly = true;
                    self.on_failure(&reason);
                }
                None => {}
            }
        }
        (batch.len() > 0).then_some(Event::Records(batch))
    }

    fn new_batch(&self) -> RecordBatch {
        RecordBatch::new(self.options.partition.clone(), self.options.epoch)
    }

    fn push(
        &mut self,
        batch: &mut RecordBatch,
        sequence: u64,
        timestamp: Option<Timestamp>,
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
        let payload = headers.payload(payload);
        batch.push(Offset(sequence), timestamp, key.as_deref(), payload, all);
        self.next_offset = sequence + 1;
    }

    /// Fetches the stream's info. Reports a replaced stream, removed messages, or the end.
    async fn check_stream(&mut self) -> Result<Option<Event>, Error> {
        self.next_check = Instant::now() + NATS_STREAM_CHECK_INTERVAL;
        let stream = &self.options.stream;
        let info = stream_info::fetch(&self.connection, stream).await?;
        let missing = || Error::Rejected(format!("the stream {stream} does not exist"));
        let info = info.ok_or_else(missing)?;
        self.options.status.end.set(Some(Offset(info.end)));
        let is_same_stream = *self.options.created.get_or_insert(info.created) == info.created;
        if is_same_stream && let Some(removed) = self.removed_event(&info) {
            self.next_check = Instant::now();
            return Ok(Some(removed));
        }
        if !is_same_stream || !(info.first..=info.end).contains(&self.next_offset) {
            return Ok(Some(Event::OutOfRange {
                partition: self.options.partition.clone(),
                epoch: self.options.epoch,
            }));
        }
        if info.end != self.next_offset && self.next_stored_message().await?.is_some() {
            self.on_missing_message();
            return Ok(None);
        }
        if self.consumer.is_some() {
            self.on_success();
        }
        if self.reported_end.replace(info.end) == Some(info.end) {
            return Ok(None);
        }
        if info.is_covered_by(&self.options.filter) {
            // The filter matches every subject, so the messages up to the end were removed.
            self.skip_to(info.end);
        }
        self.next_offset = info.end;
        Ok(Some(Event::EndReached {
            partition: self.options.partition.clone(),
            epoch: self.options.epoch,
            at: Offset(info.end),
        }))
    }

    async fn next_stored_message(&self) -> Result<Option<RawMessage>, Error> {
        let ReaderOptions { stream, filter, .. } = &self.options;
        stream_info::read_message(&self.connection, stream, filter, self.next_offset).await
    }

    /// Recreates a consumer that repeatedly withholds a message that the stream has. A paused
    /// consumer does this, and one whose server lost its state.
    fn on_missing_message(&mut self) {
        let next_offset = self.next_offset;
        let is_same = std::mem::replace(&mut self.missing_offset, next_offset) == next_offset;
        self.missing_checks = match self.consumer {
            None => 0,
            Some(_) if is_same => self.missing_checks + 1,
            Some(_) => 1,
        };
        if self.missing_checks >= NATS_STALLED_CHECKS_MAX {
            let partition = &self.options.partition;
            tracing::warn!(
                %partition,
                next_offset,
                "the consumer withholds messages that the stream has: recreating it"
            );
            self.reads_next_directly = true;
            self.on_failure("its consumers withhold messages that the stream has");
        }
    }

    /// The event for messages that were removed before they were read. A consumer skips them
    /// silently, as it skips other subjects, so their number is an upper bound.
    fn removed_event(&mut self, info: &StreamInfo) -> Option<Event> {
        let removed = info.removed_since(&self.options.filter, self.skipped_from);
        let count = std::mem::take(&mut self.skipped).min(removed);
        (count > 0).then(|| Event::RecordsRemoved {
            partition: self.options.partition.clone(),
            epoch: self.options.epoch,
            from: Offset(self.skipped_from),
            count,
        })
    }

    fn skip_to(&mut self, offset: u64) {
        if offset > self.next_offset {
            if self.skipped == 0 {
                self.skipped_from = self.next_offset;
            }
            self.skipped += offset - self.next_offset;
        }
    }
}
