//! One partition, read in order from where it is told: by a pull consumer that acknowledges nothing and is made anew, at the next offset,
//! whenever it skips a message, falls silent, brings nothing of what the stream has, or the connection is lost. Below the position asked for nothing is handed out.
//!
//! Every few seconds, and whenever it has caught up, it looks at the stream itself: only that shows where the partition ends, and that
//! messages were removed, or that the stream is another one of the same name.

use super::connection::{self, Connection};
use super::header::IncomingHeaders;
use super::stream_info::{self, StoredMessage, StreamInfo};
use crate::broker::{Error, Event, RecordBatch};
use crate::limit::{
    NATS_BATCH_MESSAGES_MAX, NATS_CONSUMER_HEARTBEAT_INTERVAL, NATS_CONSUMER_INACTIVE_TIMEOUT,
    NATS_FETCH_MESSAGES_MAX, NATS_RETRY_DELAY, NATS_SOURCE_FAILURE_GRACE, NATS_STALLED_CHECKS_MAX,
    NATS_STREAM_CHECK_INTERVAL, NATS_STREAM_RECHECK_DELAY, SOURCE_BATCH_BYTES_MAX,
};
use crate::model::header_name::SUBJECT;
use crate::model::{Offset, Partition, Timestamp};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::ConsumerErrorKind;
use async_nats::jetstream::{ErrorCode, Message};
use futures_util::{FutureExt as _, StreamExt as _};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// What is to be read.
#[derive(Clone, Debug)]
pub(super) struct ReaderOptions {
    pub(super) partition: Partition,
    pub(super) stream: String,
    pub(super) filter: String,
    pub(super) epoch: u64,
    /// The incarnation for which it was judged where reading begins; `None`: it was not asked for.
    pub(super) created: Option<i128>,
    /// Whether the headers of the server's own schedules are read.
    pub(super) reads_schedules: bool,
    pub(super) status: Rc<ReaderStatus>,
}

/// What a reader tells beside its events.
#[derive(Debug, Default)]
pub(super) struct ReaderStatus {
    /// The stream's end, as it was last heard of.
    pub(super) end: Cell<Option<Offset>>,
    /// Why nothing is read, for a person, if that has lasted.
    pub(super) error: RefCell<Option<String>>,
}

/// See the module's page.
pub(super) struct PartitionReader {
    connection: Connection,
    options: ReaderOptions,
    /// The next offset that may be handed out.
    next_offset: u64,
    consumer: Option<Consumer>,
    /// The incarnation that is read.
    created: Option<i128>,
    /// Where the partition was told to end.
    reported_end: Option<u64>,
    next_check: Instant,
    /// What was passed over since the last look, as a filter makes it happen, or a purge.
    skipped: Option<SkippedRange>,
    /// How long the stream lets a consumer stay unasked.
    consumer_idle_max: Duration,
    /// Since when reading has failed.
    failing_since: Option<Instant>,
    /// From where on the last looks found what the consumer had not brought, and how many they were.
    missing_checks: (u64, u32),
    /// Its consumer failed: the next message may be the reason.
    reads_next_directly: bool,
    is_out_of_range: bool,
}

/// Sequences that a consumer did not bring: from where, and how many in all.
#[derive(Clone, Copy)]
struct SkippedRange {
    from: u64,
    count: u64,
}

struct Consumer {
    messages: pull::Stream,
    /// The number of the message that it hands out next.
    next_sequence: u64,
    /// Of the connection.
    disconnects: watch::Receiver<u64>,
}

/// What a consumer brought.
enum Pulled {
    Message(Box<Message>, MessagePosition),
    Failed(String),
}

#[derive(Clone, Copy)]
struct MessagePosition {
    sequence: u64,
    timestamp: Option<Timestamp>,
    /// What it has not handed out yet of those that are there.
    pending: u64,
}

impl PartitionReader {
    pub(super) fn new(link: Connection, plan: ReaderOptions, from: Offset) -> Self {
        Self {
            created: plan.created,
            connection: link,
            options: plan,
            next_offset: from.0,
            consumer: None,
            reported_end: None,
            next_check: Instant::now(),
            skipped: None,
            consumer_idle_max: NATS_CONSUMER_INACTIVE_TIMEOUT,
            failing_since: None,
            missing_checks: (0, 0),
            reads_next_directly: false,
            is_out_of_range: false,
        }
    }

    /// The next event; for ever pending after it said that it is out of range. Not safe to drop: the source keeps it.
    pub(super) async fn next(mut self) -> (Event, Self) {
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
        let look_at = self.next_check;
        let brought = tokio::select! {
            biased;
            brought = consumer.next() => brought,
            () = tokio::time::sleep_until(look_at) => {
                self.consumer = Some(consumer);
                return self.check_stream().await;
            }
        };
        match brought {
            Pulled::Failed(why) => {
                self.reads_next_directly = true;
                self.on_failure(&why);
                tokio::time::sleep(NATS_RETRY_DELAY).await;
                Ok(None)
            }
            Pulled::Message(message, place) => {
                self.on_success();
                Ok(self.read_batch(consumer, *message, place))
            }
        }
    }

    /// What passes by itself is a matter of the connection, which says it.
    fn on_failure(&mut self, why: &str) {
        tracing::debug!(partition = %self.options.partition, "reading begins anew: {why}");
        if self
            .failing_since
            .get_or_insert_with(Instant::now)
            .elapsed()
            > NATS_SOURCE_FAILURE_GRACE
        {
            self.options.status.error.replace(Some(format!(
                "{} is not read: {why}",
                self.options.partition
            )));
        }
    }

    fn on_success(&mut self) {
        if self.failing_since.take().is_some() {
            self.options.status.error.take();
        }
    }

    /// Looks where the stream stands, and makes a consumer.
    async fn open_consumer(&mut self) -> Result<Option<Event>, Error> {
        if let Some(event) = self.check_stream().await? {
            return Ok(Some(event));
        }
        if self.reads_next_directly {
            // One message in another way, so that none whose headers end the connection can hold up those behind it.
            self.reads_next_directly = false;
            if let Some(raw) = stream_info::read_message(
                &self.connection,
                (&self.options.stream, &self.options.filter),
                self.next_offset,
            )
            .await?
            {
                return Ok(Some(self.batch_of_one(&raw)));
            }
        }
        let losses = self.connection.disconnects();
        let of = format!("the stream {}", self.options.stream);
        let consumer = self
            .connection
            .context()
            .await?
            .create_consumer_on_stream(self.consumer_config(), self.options.stream.as_str())
            .await;
        let consumer = consumer.map_err(|error| match error.kind() {
            ConsumerErrorKind::JetStream(refusal) => {
                let few = refusal.error_code() == ErrorCode::MAXIMUM_CONSUMERS_LIMIT;
                let fix = if few {
                    "; raise max_consumers of the stream, or of the account"
                } else {
                    ""
                };
                Error::Rejected(format!(
                    "no consumer of the stream {}: {refusal}{fix}",
                    self.options.stream
                ))
            }
            _ => self.connection.request_error(&of, &error),
        })?;
        // The server's `max_request_batch`, of which it makes a limit of each consumer: what asks for more is refused.
        let allowed = usize::try_from(consumer.cached_info().config.max_batch)
            .ok()
            .filter(|allowed| *allowed > 0);
        let batch = allowed.map_or(NATS_FETCH_MESSAGES_MAX, |allowed| {
            allowed.min(NATS_FETCH_MESSAGES_MAX)
        });
        let messages = consumer
            .stream()
            .max_messages_per_batch(batch)
            .heartbeat(NATS_CONSUMER_HEARTBEAT_INTERVAL)
            .messages()
            .await;
        let messages = messages.map_err(|error| self.connection.request_error(&of, &error))?;
        self.consumer = Some(Consumer {
            messages,
            next_sequence: 1,
            disconnects: losses,
        });
        Ok(None)
    }

    /// A consumer that no limit of the stream, the account or the server forbids or holds up, but for that of their number. Of the limits of
    /// a fetch only the number of messages is set by others than who makes the consumer; bytes are not limited: a message above such a limit
    /// would stop it without a word.
    fn consumer_config(&self) -> pull::Config {
        pull::Config {
            description: Some("postdate".to_owned()),
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: self.next_offset.max(1),
            },
            ack_policy: AckPolicy::None,
            // Unset, it would be the stream's limit, and refused where the server's or the account's is lower.
            max_ack_pending: -1,
            filter_subject: self.options.filter.clone(),
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: self.consumer_idle_max,
            ..pull::Config::default()
        }
    }

    /// A batch that begins with a message, and has what else is there already.
    fn read_batch(
        &mut self,
        mut consumer: Consumer,
        first: Message,
        place: MessagePosition,
    ) -> Option<Event> {
        let mut batch = RecordBatch::new(self.options.partition.clone(), self.options.epoch);
        let mut more = Some((first, place));
        let mut pending = 0;
        while let Some((message, place)) = more.take() {
            pending = place.pending;
            if place.sequence >= self.next_offset {
                let headers = IncomingHeaders::of(message.headers.as_ref());
                self.push(
                    &mut batch,
                    (place.sequence, place.timestamp),
                    &message.subject,
                    (&headers, &message.payload),
                );
            }
            if batch.len() >= NATS_BATCH_MESSAGES_MAX || batch.bytes() >= SOURCE_BATCH_BYTES_MAX {
                break;
            }
            match consumer.next().now_or_never() {
                Some(Pulled::Message(message, place)) => more = Some((*message, place)),
                Some(Pulled::Failed(why)) => {
                    self.reads_next_directly = true;
                    self.on_failure(&why);
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

    fn batch_of_one(&mut self, raw: &StoredMessage) -> Event {
        let mut batch = RecordBatch::new(self.options.partition.clone(), self.options.epoch);
        self.push(
            &mut batch,
            (raw.sequence, raw.timestamp),
            &raw.subject,
            (&IncomingHeaders::of_bytes(&raw.headers), &raw.payload),
        );
        Event::Records(batch)
    }

    fn push(
        &mut self,
        batch: &mut RecordBatch,
        (sequence, timestamp): (u64, Option<Timestamp>),
        subject: &str,
        record: (&IncomingHeaders<'_>, &[u8]),
    ) {
        let (headers, payload) = record;
        self.skip_to(sequence);
        let key = headers.key();
        let own = headers
            .headers(self.options.reads_schedules)
            .filter(|(name, _)| *name != SUBJECT.as_bytes());
        let all = std::iter::once((SUBJECT.as_bytes(), Some(subject.as_bytes()))).chain(own);
        batch.push(
            (Offset(sequence), timestamp),
            key.as_deref(),
            headers.payload(payload),
            all,
        );
        self.next_offset = sequence + 1;
    }

    /// What the stream itself says: that it is another one, that messages are gone, or where the partition ends.
    async fn check_stream(&mut self) -> Result<Option<Event>, Error> {
        self.next_check = Instant::now() + NATS_STREAM_CHECK_INTERVAL;
        let Some(facts) = stream_info::fetch(&self.connection, &self.options.stream).await? else {
            // The group gives up a partition whose stream is gone.
            return Err(Error::Rejected(format!(
                "the stream {} does not exist",
                self.options.stream
            )));
        };
        self.options.status.end.set(Some(Offset(facts.end)));
        self.consumer_idle_max = facts
            .consumer_idle_max
            .map_or(NATS_CONSUMER_INACTIVE_TIMEOUT, |idle| {
                idle.min(NATS_CONSUMER_INACTIVE_TIMEOUT)
            });
        let created = *self.created.get_or_insert(facts.created);
        if let Some(removed) = self
            .removed_event(&facts)
            .filter(|_| facts.created == created)
        {
            self.next_check = Instant::now();
            return Ok(Some(removed));
        }
        if facts.created != created || !(facts.first..=facts.end).contains(&self.next_offset) {
            self.is_out_of_range = true;
            self.consumer = None;
            return Ok(Some(Event::OutOfRange {
                partition: self.options.partition.clone(),
                epoch: self.options.epoch,
            }));
        }
        let is_end = facts.end == self.next_offset
            || stream_info::read_message(
                &self.connection,
                (&self.options.stream, &self.options.filter),
                self.next_offset,
            )
            .await?
            .is_none();
        if !is_end {
            self.on_missing_message();
            return Ok(None);
        }
        if self.consumer.is_some() {
            self.on_success();
        }
        if self.reported_end == Some(facts.end) {
            return Ok(None);
        }
        if facts.is_covered_by(&self.options.filter) {
            // No other subject has them, so they are gone.
            self.skip_to(facts.end);
        }
        (self.next_offset, self.reported_end) = (facts.end, Some(facts.end));
        Ok(Some(Event::EndReached {
            partition: self.options.partition.clone(),
            epoch: self.options.epoch,
            at: Offset(facts.end),
        }))
    }

    /// The stream has a message that was not brought. A consumer may live and bring nothing all the same: one that was paused, or that its
    /// server has lost count of.
    fn on_missing_message(&mut self) {
        if self.consumer.is_none() {
            self.missing_checks = (self.next_offset, 0);
            return;
        }
        let looks = if self.missing_checks.0 == self.next_offset {
            self.missing_checks.1 + 1
        } else {
            1
        };
        self.missing_checks = (self.next_offset, looks);
        if looks >= NATS_STALLED_CHECKS_MAX {
            let (partition, next) = (&self.options.partition, self.next_offset);
            tracing::warn!(%partition, next, "the stream has messages, and the consumer that reads them brings nothing; it is made anew");
            self.consumer = None;
            self.reads_next_directly = true;
            self.on_failure("its consumers bring nothing of what the stream has");
        }
    }

    /// A consumer passes over what was removed before it came there, and says nothing.
    fn removed_event(&mut self, facts: &StreamInfo) -> Option<Event> {
        let SkippedRange { from, count } = self.skipped.take()?;
        let count = count.min(facts.removed_since(&self.options.filter, from));
        let ReaderOptions {
            partition, epoch, ..
        } = self.options.clone();
        (count > 0).then_some(Event::RecordsRemoved {
            partition,
            epoch,
            from: Offset(from),
            count,
        })
    }

    fn skip_to(&mut self, to: u64) {
        if to > self.next_offset {
            self.skipped
                .get_or_insert(SkippedRange {
                    from: self.next_offset,
                    count: 0,
                })
                .count += to - self.next_offset;
        }
    }
}

impl Consumer {
    /// Safe to drop.
    async fn next(&mut self) -> Pulled {
        let brought = tokio::select! {
            biased;
            brought = self.messages.next() => brought,
            // By itself it would ask again, and again, for what may be the reason.
            _ = self.disconnects.changed() => return Pulled::Failed("the connection was lost".to_owned()),
        };
        let message = match brought {
            Some(Ok(message)) => message,
            Some(Err(error)) => return Pulled::Failed(connection::error_chain(&error)),
            None => return Pulled::Failed("its consumer has ended".to_owned()),
        };
        let Ok(info) = message.info() else {
            return Pulled::Failed("its consumer brings what is no message of a stream".to_owned());
        };
        if info.consumer_sequence != self.next_sequence {
            return Pulled::Failed("its consumer has skipped a message".to_owned());
        }
        self.next_sequence += 1;
        let millis =
            i64::try_from(info.published.unix_timestamp_nanos().div_euclid(1_000_000)).ok();
        let place = MessagePosition {
            sequence: info.stream_sequence,
            timestamp: millis.map(Timestamp::from_millis),
            pending: info.pending,
        };
        Pulled::Message(Box::new(message), place)
    }
}
