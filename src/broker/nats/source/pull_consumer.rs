//! A pull consumer without acknowledgements. It reports an error instead of skipping a message.

use crate::broker::Error;
use crate::broker::nats::connection::{Connection, error_chain};
use crate::limit::{NATS_CONSUMER_HEARTBEAT_INTERVAL, NATS_FETCH_MESSAGES_MAX};
use crate::model::Timestamp;
use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{ConsumerError, ConsumerErrorKind};
use async_nats::jetstream::{ErrorCode, Message};
use futures_util::StreamExt as _;
use std::time::Duration;
use tokio::sync::watch;

/// A consumer on one stream.
pub(super) struct PullConsumer {
    messages: pull::Stream,
    /// The consumer's own number of the message that it brings next.
    next_sequence: u64,
    /// Changes when the connection is lost.
    disconnects: watch::Receiver<u64>,
}

/// The next item of a consumer.
pub(super) enum Pulled {
    Message(Box<Message>, MessagePosition),
    /// The consumer must be replaced, for this reason.
    Failed(String),
}

#[derive(Clone, Copy)]
pub(super) struct MessagePosition {
    /// The message's offset.
    pub(super) sequence: u64,
    pub(super) timestamp: Option<Timestamp>,
    /// Messages of the stream that the consumer has not brought yet.
    pub(super) pending: u64,
}

impl PullConsumer {
    /// Creates a consumer that starts at offset `from`. The server deletes it when it is not pulled
    /// for `inactive_max`.
    pub(super) async fn create(
        connection: &Connection,
        stream: &str,
        filter: &str,
        from: u64,
        inactive_max: Duration,
    ) -> Result<Self, Error> {
        // Subscribed first, so that a loss during the creation is seen.
        let disconnects = connection.disconnects();
        let consumer = connection
            .context()
            .await?
            .create_consumer_on_stream(config(filter, from, inactive_max), stream)
            .await
            .map_err(|error| create_error(connection, stream, &error))?;
        let messages = consumer
            .stream()
            .max_messages_per_batch(fetch_size(&consumer))
            .heartbeat(NATS_CONSUMER_HEARTBEAT_INTERVAL)
            .messages()
            .await
            .map_err(|error| connection.request_error(&format!("the stream {stream}"), &error))?;
        Ok(Self {
            messages,
            next_sequence: 1,
            disconnects,
        })
    }

    /// Waits for the next item. Safe to drop.
    pub(super) async fn next(&mut self) -> Pulled {
        let pulled = tokio::select! {
            biased;
            pulled = self.messages.next() => pulled,
            // Otherwise the client would repeat the fetch, which may be what breaks the connection.
            _ = self.disconnects.changed() => {
                return Pulled::Failed("the connection was lost".to_owned());
            }
        };
        let message = match pulled {
            Some(Ok(message)) => message,
            Some(Err(error)) => return Pulled::Failed(error_chain(&error)),
            None => return Pulled::Failed("the consumer was deleted".to_owned()),
        };
        let Ok(info) = message.info() else {
            return Pulled::Failed("the consumer sent a message without a sequence".to_owned());
        };
        if info.consumer_sequence != self.next_sequence {
            return Pulled::Failed("the consumer skipped a message".to_owned());
        }
        self.next_sequence += 1;
        let nanos = info.published.unix_timestamp_nanos();
        let millis = i64::try_from(nanos.div_euclid(1_000_000)).ok();
        let position = MessagePosition {
            sequence: info.stream_sequence,
            timestamp: millis.map(Timestamp::from_millis),
            pending: info.pending,
        };
        Pulled::Message(Box::new(message), position)
    }
}

/// Settings that respect every limit of the stream, the account and the server, except their maximum
/// number of consumers. There is no byte limit: a larger message would stop the consumer silently.
fn config(filter: &str, from: u64, inactive_max: Duration) -> pull::Config {
    pull::Config {
        description: Some("postdate".to_owned()),
        deliver_policy: DeliverPolicy::ByStartSequence {
            start_sequence: from.max(1),
        },
        ack_policy: AckPolicy::None,
        // The default is the stream's limit. The server rejects it if its own limit is lower.
        max_ack_pending: -1,
        filter_subject: filter.to_owned(),
        memory_storage: true,
        num_replicas: 1,
        inactive_threshold: inactive_max,
        ..pull::Config::default()
    }
}

fn create_error(connection: &Connection, stream: &str, error: &ConsumerError) -> Error {
    let ConsumerErrorKind::JetStream(refusal) = error.kind() else {
        return connection.request_error(&format!("the stream {stream}"), error);
    };
    let fix = match refusal.error_code() {
        ErrorCode::MAXIMUM_CONSUMERS_LIMIT => {
            "; raise max_consumers of the stream, or of the account"
        }
        _ => "",
    };
    Error::Rejected(format!(
        "no consumer of the stream {stream}: {refusal}{fix}"
    ))
}

/// Messages per fetch. The server's `max_request_batch` is a limit of each consumer: it rejects a
/// larger fetch.
fn fetch_size(consumer: &consumer::PullConsumer) -> usize {
    match usize::try_from(consumer.cached_info().config.max_batch) {
        Ok(allowed) if allowed > 0 => allowed.min(NATS_FETCH_MESSAGES_MAX),
        _ => NATS_FETCH_MESSAGES_MAX,
    }
}
