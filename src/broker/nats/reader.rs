//! One partition, read in order from where it is told: by a pull consumer that acknowledges nothing and is made anew, at the next offset,
//! whenever it skips a message, falls silent, brings nothing of what the stream has, or the connection is lost. Below the position asked for nothing is handed out.
//!
//! Every few seconds, and whenever it has caught up, it looks at the stream itself: only that shows where the partition ends, and that
//! messages were removed, or that the stream is another one of the same name.

use super::header::Incoming;
use super::link::{self, Link};
use super::stream::{self, Raw, StreamFacts};
use crate::broker::{Batch, Error, Event};
use crate::limit::{
    NATS_BATCH_BYTES_MAX, NATS_BATCH_MESSAGES_MAX, NATS_CONSUMER_IDLE, NATS_FETCH_MAX,
    NATS_GROUP_SILENCE_MAX, NATS_HEARTBEAT, NATS_LOOK_AGAIN, NATS_LOOK_INTERVAL, NATS_LOOKS_MAX,
    NATS_RETRY,
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
pub(super) struct Plan {
    pub(super) partition: Partition,
    pub(super) stream: String,
    pub(super) filter: String,
    pub(super) epoch: u64,
    /// The incarnation for which it was judged where reading begins; `None`: it was not asked for.
    pub(super) created: Option<i128>,
    /// Whether the headers of the server's own schedules are read.
    pub(super) keeps_schedules: bool,
    pub(super) shown: Rc<Shown>,
}

/// What a reader tells beside its events.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// The stream's end, as it was last heard of.
    pub(super) end: Cell<Option<Offset>>,
    /// Why nothing is read, for a person, if that has lasted.
    pub(super) trouble: RefCell<Option<String>>,
}

/// See the module's page.
pub(super) struct Reader {
    link: Link,
    plan: Plan,
    /// The next offset that may be handed out.
    next: u64,
    consumer: Option<Consumer>,
    /// The incarnation that is read.
    created: Option<i128>,
    /// Where the partition was told to end.
    ended: Option<u64>,
    look_at: Instant,
    /// What was passed over since the last look, as a filter makes it happen, or a purge.
    passed_over: Option<PassedOver>,
    /// How long the stream lets a consumer stay unasked.
    idle: Duration,
    /// Since when reading has failed.
    failing: Option<Instant>,
    /// From where on the last looks found what the consumer had not brought, and how many they were.
    overdue: (u64, u32),
    /// Its consumer failed: the next message may be the reason.
    is_doubtful: bool,
    is_over: bool,
}

/// Sequences that a consumer did not bring: from where, and how many in all.
#[derive(Clone, Copy)]
struct PassedOver {
    from: u64,
    count: u64,
}

struct Consumer {
    messages: pull::Stream,
    /// The number of the message that it hands out next.
    number: u64,
    /// Of the connection.
    losses: watch::Receiver<u64>,
}

/// What a consumer brought.
enum Brought {
    Message(Box<Message>, Place),
    Failed(String),
}

#[derive(Clone, Copy)]
struct Place {
    sequence: u64,
    timestamp: Option<Timestamp>,
    /// What it has not handed out yet of those that are there.
    pending: u64,
}

impl Reader {
    pub(super) fn new(link: Link, plan: Plan, from: Offset) -> Self {
        Self {
            created: plan.created,
            link,
            plan,
            next: from.0,
            consumer: None,
            ended: None,
            look_at: Instant::now(),
            passed_over: None,
            idle: NATS_CONSUMER_IDLE,
            failing: None,
            overdue: (0, 0),
            is_doubtful: false,
            is_over: false,
        }
    }

    /// The next event; for ever pending after it said that it is out of range. Not safe to drop: the source keeps it.
    pub(super) async fn next(mut self) -> (Event, Self) {
        loop {
            if self.is_over {
                std::future::pending::<()>().await;
            }
            match self.turn().await {
                Ok(Some(event)) => return (event, self),
                Ok(None) => {}
                Err(error) => {
                    self.consumer = None;
                    self.fails(&error.to_string());
                    tokio::time::sleep(NATS_RETRY).await;
                }
            }
        }
    }

    async fn turn(&mut self) -> Result<Option<Event>, Error> {
        let Some(mut consumer) = self.consumer.take() else {
            return self.begin().await;
        };
        let look_at = self.look_at;
        let brought = tokio::select! {
            biased;
            brought = consumer.next() => brought,
            () = tokio::time::sleep_until(look_at) => {
                self.consumer = Some(consumer);
                return self.look().await;
            }
        };
        match brought {
            Brought::Failed(why) => {
                self.is_doubtful = true;
                self.fails(&why);
                tokio::time::sleep(NATS_RETRY).await;
                Ok(None)
            }
            Brought::Message(message, place) => {
                self.works();
                Ok(self.collect(consumer, *message, place))
            }
        }
    }

    /// What passes by itself is a matter of the connection, which says it.
    fn fails(&mut self, why: &str) {
        tracing::debug!(partition = %self.plan.partition, "reading begins anew: {why}");
        if self.failing.get_or_insert_with(Instant::now).elapsed() > NATS_GROUP_SILENCE_MAX {
            self.plan
                .shown
                .trouble
                .replace(Some(format!("{} is not read: {why}", self.plan.partition)));
        }
    }

    fn works(&mut self) {
        if self.failing.take().is_some() {
            self.plan.shown.trouble.take();
        }
    }

    /// Looks where the stream stands, and makes a consumer.
    async fn begin(&mut self) -> Result<Option<Event>, Error> {
        if let Some(event) = self.look().await? {
            return Ok(Some(event));
        }
        if self.is_doubtful {
            // One message in another way, so that none whose headers end the connection can hold up those behind it.
            self.is_doubtful = false;
            if let Some(raw) = stream::message(
                &self.link,
                (&self.plan.stream, &self.plan.filter),
                self.next,
            )
            .await?
            {
                return Ok(Some(self.single(&raw)));
            }
        }
        let losses = self.link.losses();
        let of = format!("the stream {}", self.plan.stream);
        let consumer = self
            .link
            .context()
            .await?
            .create_consumer_on_stream(self.config(), self.plan.stream.as_str())
            .await;
        let consumer = consumer.map_err(|error| match error.kind() {
            ConsumerErrorKind::JetStream(refusal) => {
                let few = refusal.error_code() == ErrorCode::MAXIMUM_CONSUMERS_LIMIT;
                let fix = if few {
                    "; raise max_consumers of the stream, or of the account"
                } else {
                    ""
                };
                Error::Refused(format!(
                    "no consumer of the stream {}: {refusal}{fix}",
                    self.plan.stream
                ))
            }
            _ => self.link.unanswered(&of, &error),
        })?;
        // The server's `max_request_batch`, of which it makes a limit of each consumer: what asks for more is refused.
        let allowed = usize::try_from(consumer.cached_info().config.max_batch)
            .ok()
            .filter(|allowed| *allowed > 0);
        let batch = allowed.map_or(NATS_FETCH_MAX, |allowed| allowed.min(NATS_FETCH_MAX));
        let messages = consumer
            .stream()
            .max_messages_per_batch(batch)
            .heartbeat(NATS_HEARTBEAT)
            .messages()
            .await;
        let messages = messages.map_err(|error| self.link.unanswered(&of, &error))?;
        self.consumer = Some(Consumer {
            messages,
            number: 1,
            losses,
        });
        Ok(None)
    }

    /// A consumer that no limit of the stream, the account or the server forbids or holds up, but for that of their number. Of the limits of
    /// a fetch only the number of messages is set by others than who makes the consumer; bytes are not limited: a message above such a limit
    /// would stop it without a word.
    fn config(&self) -> pull::Config {
        pull::Config {
            description: Some("postdate".to_owned()),
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: self.next.max(1),
            },
            ack_policy: AckPolicy::None,
            // Unset, it would be the stream's limit, and refused where the server's or the account's is lower.
            max_ack_pending: -1,
            filter_subject: self.plan.filter.clone(),
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: self.idle,
            ..pull::Config::default()
        }
    }

    /// A batch that begins with a message, and has what else is there already.
    fn collect(&mut self, mut consumer: Consumer, first: Message, place: Place) -> Option<Event> {
        let mut batch = Batch::new(self.plan.partition.clone(), self.plan.epoch);
        let mut more = Some((first, place));
        let mut pending = 0;
        while let Some((message, place)) = more.take() {
            pending = place.pending;
            if place.sequence >= self.next {
                let headers = Incoming::of(message.headers.as_ref());
                self.push(
                    &mut batch,
                    (place.sequence, place.timestamp),
                    &message.subject,
                    (&headers, &message.payload),
                );
            }
            if batch.len() >= NATS_BATCH_MESSAGES_MAX || batch.bytes() >= NATS_BATCH_BYTES_MAX {
                break;
            }
            match consumer.next().now_or_never() {
                Some(Brought::Message(message, place)) => more = Some((*message, place)),
                Some(Brought::Failed(why)) => {
                    self.is_doubtful = true;
                    self.fails(&why);
                    return (batch.len() > 0).then_some(Event::Records(batch));
                }
                None => {}
            }
        }
        if pending == 0 {
            self.look_at = self.look_at.min(Instant::now() + NATS_LOOK_AGAIN);
        }
        self.consumer = Some(consumer);
        (batch.len() > 0).then_some(Event::Records(batch))
    }

    fn single(&mut self, raw: &Raw) -> Event {
        let mut batch = Batch::new(self.plan.partition.clone(), self.plan.epoch);
        self.push(
            &mut batch,
            (raw.sequence, raw.timestamp),
            &raw.subject,
            (&Incoming::of_bytes(&raw.headers), &raw.payload),
        );
        Event::Records(batch)
    }

    fn push(
        &mut self,
        batch: &mut Batch,
        (sequence, timestamp): (u64, Option<Timestamp>),
        subject: &str,
        record: (&Incoming<'_>, &[u8]),
    ) {
        let (headers, payload) = record;
        self.pass_over(sequence);
        let key = headers.key();
        let own = headers
            .headers(self.plan.keeps_schedules)
            .filter(|(name, _)| *name != SUBJECT.as_bytes());
        let all = std::iter::once((SUBJECT.as_bytes(), Some(subject.as_bytes()))).chain(own);
        batch.push(
            (Offset(sequence), timestamp),
            key.as_deref(),
            headers.payload(payload),
            all,
        );
        self.next = sequence + 1;
    }

    /// What the stream itself says: that it is another one, that messages are gone, or where the partition ends.
    async fn look(&mut self) -> Result<Option<Event>, Error> {
        self.look_at = Instant::now() + NATS_LOOK_INTERVAL;
        let Some(facts) = stream::facts(&self.link, &self.plan.stream).await? else {
            // The group gives up a partition whose stream is gone.
            return Err(Error::Refused(format!(
                "the stream {} does not exist",
                self.plan.stream
            )));
        };
        self.plan.shown.end.set(Some(Offset(facts.end)));
        self.idle = facts
            .consumer_idle
            .map_or(NATS_CONSUMER_IDLE, |idle| idle.min(NATS_CONSUMER_IDLE));
        let created = *self.created.get_or_insert(facts.created);
        if let Some(removed) = self.removed(&facts).filter(|_| facts.created == created) {
            self.look_at = Instant::now();
            return Ok(Some(removed));
        }
        if facts.created != created || !(facts.first..=facts.end).contains(&self.next) {
            self.is_over = true;
            self.consumer = None;
            return Ok(Some(Event::OutOfRange {
                partition: self.plan.partition.clone(),
                epoch: self.plan.epoch,
            }));
        }
        let is_end = facts.end == self.next
            || stream::message(
                &self.link,
                (&self.plan.stream, &self.plan.filter),
                self.next,
            )
            .await?
            .is_none();
        if !is_end {
            self.wait_for_it();
            return Ok(None);
        }
        if self.consumer.is_some() {
            self.works();
        }
        if self.ended == Some(facts.end) {
            return Ok(None);
        }
        if facts.is_all_of(&self.plan.filter) {
            // No other subject has them, so they are gone.
            self.pass_over(facts.end);
        }
        (self.next, self.ended) = (facts.end, Some(facts.end));
        Ok(Some(Event::End {
            partition: self.plan.partition.clone(),
            epoch: self.plan.epoch,
            at: Offset(facts.end),
        }))
    }

    /// The stream has a message that was not brought. A consumer may live and bring nothing all the same: one that was paused, or that its
    /// server has lost count of.
    fn wait_for_it(&mut self) {
        if self.consumer.is_none() {
            self.overdue = (self.next, 0);
            return;
        }
        let looks = if self.overdue.0 == self.next {
            self.overdue.1 + 1
        } else {
            1
        };
        self.overdue = (self.next, looks);
        if looks >= NATS_LOOKS_MAX {
            let (partition, next) = (&self.plan.partition, self.next);
            tracing::warn!(%partition, next, "the stream has messages, and the consumer that reads them brings nothing; it is made anew");
            self.consumer = None;
            self.is_doubtful = true;
            self.fails("its consumers bring nothing of what the stream has");
        }
    }

    /// A consumer passes over what was removed before it came there, and says nothing.
    fn removed(&mut self, facts: &StreamFacts) -> Option<Event> {
        let PassedOver { from, count } = self.passed_over.take()?;
        let count = count.min(facts.gone(&self.plan.filter, from));
        let Plan {
            partition, epoch, ..
        } = self.plan.clone();
        (count > 0).then_some(Event::Removed {
            partition,
            epoch,
            from: Offset(from),
            count,
        })
    }

    fn pass_over(&mut self, to: u64) {
        if to > self.next {
            self.passed_over
                .get_or_insert(PassedOver {
                    from: self.next,
                    count: 0,
                })
                .count += to - self.next;
        }
    }
}

impl Consumer {
    /// Safe to drop.
    async fn next(&mut self) -> Brought {
        let brought = tokio::select! {
            biased;
            brought = self.messages.next() => brought,
            // By itself it would ask again, and again, for what may be the reason.
            _ = self.losses.changed() => return Brought::Failed("the connection was lost".to_owned()),
        };
        let message = match brought {
            Some(Ok(message)) => message,
            Some(Err(error)) => return Brought::Failed(link::chain(&error)),
            None => return Brought::Failed("its consumer has ended".to_owned()),
        };
        let Ok(info) = message.info() else {
            return Brought::Failed(
                "its consumer brings what is no message of a stream".to_owned(),
            );
        };
        if info.consumer_sequence != self.number {
            return Brought::Failed("its consumer has skipped a message".to_owned());
        }
        self.number += 1;
        let millis =
            i64::try_from(info.published.unix_timestamp_nanos().div_euclid(1_000_000)).ok();
        let place = Place {
            sequence: info.stream_sequence,
            timestamp: millis.map(Timestamp::from_millis),
            pending: info.pending,
        };
        Brought::Message(Box::new(message), place)
    }
}
