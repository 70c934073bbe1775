//! A pull consumer without acknowledgements. It reports an error instead of skipping a message.

use super::partition_reader::ReaderOptions;
use crate::broker::Error;
use crate::broker::nats::connection::{Connection, error_chain};
use crate::broker::nats::limit::{NATS_FETCH_MESSAGES_MAX, NATS_STREAM_CHECK_INTERVAL};
use crate::broker::nats::stream_info;
use crate::model::Timestamp;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::ConsumerErrorKind;
use async_nats::jetstream::{ErrorCode, Message};
use futures_util::StreamExt as _;
use tokio::sync::watch;

pub(super) struct PullConsumer {
    messages: pull::Stream,
    /// The consumer's sequence of the next message. Another sequence shows a skipped message.
    next_sequence: u64,
    /// Changes when the connection is lost.
    disconnects: watch::Receiver<u64>,
}

/// A message from a consumer.
pub(super) struct PulledMessage {
    pub(super) message: Message,
    /// The message's offset.
    pub(super) sequence: u64,
    pub(super) timestamp: Option<Timestamp>,
}

impl PullConsumer {
    /// Creates a consumer that starts at offset `from`. The server deletes it when it is not pulled
    /// for five seconds, or for the limit of its stream.
    pub(super) async fn create(
        connection: &Connection,
        options: &ReaderOptions,
        from: u64,
    ) -> Result<Self, Error> {
        let ReaderOptions { stream, filter, .. } = options;
        // Subscribed first, so that a loss during the creation is seen.
        let disconnects = connection.state.disconnects.subscribe();
        let context = connection.context().await?;
        let created = context.create_consumer_on_stream(config(filter, from), stream.as_str());
        let consumer = created.await.map_err(|error| {
            let ConsumerErrorKind::JetStream(rejection) = error.kind() else {
                return connection.request_error(&format!("the stream {stream}"), &error);
            };
            let fix = match rejection.error_code() {
                ErrorCode::MAXIMUM_CONSUMERS_LIMIT => {
                    "; raise max_consumers of the stream, or of the account"
                }
                _ => "",
            };
            Error::Rejected(format!(
                "the stream {stream} rejects a consumer: {rejection}{fix}"
            ))
        })?;
        // The server's `max_request_batch` is a limit of each consumer: it rejects a larger fetch.
        let fetch_max = match usize::try_from(consumer.cached_info().config.max_batch) {
            Ok(allowed) if allowed > 0 => allowed.min(NATS_FETCH_MESSAGES_MAX),
            _ => NATS_FETCH_MESSAGES_MAX,
        };
        // A message above the byte limit would stop the consumer silently. The server accepts none
        // above `max_payload`.
        let message_max = context.client().max_payload();
        let messages = consumer
            .stream()
            .max_messages_per_batch(fetch_max)
            .max_bytes_per_batch(options.fetch_bytes_max.max(message_max))
            .heartbeat(NATS_STREAM_CHECK_INTERVAL)
            .messages()
            .await
            .map_err(|error| connection.request_error(&format!("the stream {stream}"), &error))?;
        Ok(Self {
            messages,
            next_sequence: 1,
            disconnects,
        })
    }

    /// Waits for the next message. `Err`: the consumer must be replaced, for this reason.
    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<PulledMessage, String> {
        let pulled = tokio::select! {
            biased;
            pulled = self.messages.next() => pulled,
            // Otherwise the client would repeat the fetch, which may be what breaks the connection.
            _ = self.disconnects.changed() => return Err("the connection was lost".to_owned()),
        };
        let message = pulled
            .ok_or("the consumer was deleted")?
            .map_err(|error| error_chain(&error))?;
        let info = message
            .info()
            .map_err(|_| "the consumer sent a message without a sequence")?;
        if info.consumer_sequence != self.next_sequence {
            return Err("the consumer skipped a message".to_owned());
        }
        self.next_sequence += 1;
        Ok(PulledMessage {
            sequence: info.stream_sequence,
            timestamp: stream_info::timestamp(info.published.unix_timestamp_nanos()),
            message,
        })
    }
}

/// Settings that respect every limit of the stream, the account and the server, except their maximum
/// number of consumers.
fn config(filter: &str, from: u64) -> pull::Config {
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
        ..pull::Config::default()
    }
}
