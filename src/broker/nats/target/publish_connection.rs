//! One connection for publishing, and the events that the server sends on it.
//!
//! The client never reconnects, because it would then send its buffered records out of order. The
//! publisher opens a new connection and drops the runtime of the lost one.

use super::publish_error;
use crate::broker::nats::Cluster;
use crate::broker::nats::connection::{connect_error, connect_options, error_chain};
use crate::broker::{DeliveryFailure, Error};
use crate::limit::{NATS_CONNECTION_EVENTS_MAX, NATS_REQUEST_TIMEOUT, NATS_UNACKED_PUBLISHES_MAX};
use async_nats::{
    Client, Event, HeaderMap, PublishErrorKind, ServerError, StatusCode, Subject, Subscriber,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// An open connection.
pub(super) struct PublishConnection {
    client: Client,
    /// Prefix of every reply subject. The number of the record follows, or [`LOOKUP_PREFIX`] and
    /// the number of the lookup.
    inbox: String,
    /// The API subject that returns the streams of a subject.
    lookup_subject: String,
    replies: Subscriber,
    notices: mpsc::Receiver<Notice>,
}

/// An event that the client library reports by its callback.
enum Notice {
    Disconnected,
    PermissionDenied(String),
}

/// An event of the connection.
#[derive(Debug)]
pub(super) enum PublishEvent {
    /// The stream's answer to the record of this number: its sequence, or why it was rejected.
    Acknowledged(u64, Result<u64, DeliveryFailure>),
    /// A program that is not a stream replied to the record of this number.
    ForeignReply(u64),
    /// No program listens on the subject of the record of this number.
    NoResponders(u64),
    /// The answer to the lookup of this number: whether some stream has the subject.
    StreamLookup(u64, bool),
    /// The client may not publish to this subject.
    PermissionDenied(String),
    Disconnected,
}

/// The record is larger than the server's `max_payload`.
#[derive(Debug)]
pub(super) struct TooLarge;

const LOOKUP_PREFIX: char = '?';

/// Longer than the runtime of a lost connection lives.
const NEVER: Duration = Duration::from_secs(3600);

impl PublishConnection {
    pub(super) async fn open(cluster: &Cluster) -> Result<Self, Error> {
        let is_open = Arc::new(AtomicBool::new(false));
        let was_opened = is_open.clone();
        let (notices_tx, notices) = mpsc::channel(NATS_CONNECTION_EVENTS_MAX);
        let options = connect_options(cluster)?
            // The target has checked the subjects of the records.
            .skip_subject_validation(true)
            // Room for each unacknowledged record and one lookup: a client whose connection is lost
            // takes no more commands, and `publish` would wait.
            .client_capacity(2 * NATS_UNACKED_PUBLISHES_MAX)
            .reconnect_delay_callback(move |_| {
                if was_opened.load(Ordering::Relaxed) {
                    NEVER
                } else {
                    Duration::ZERO
                }
            })
            .event_callback(move |event| {
                let notice = notice_of(event);
                let notices_tx = notices_tx.clone();
                async move {
                    if let Some(notice) = notice {
                        let _connection_dropped = notices_tx.send(notice).await;
                    }
                }
            });
        let client = options
            .connect(cluster.urls.as_slice())
            .await
            .map_err(|error| connect_error(cluster, &error))?;
        is_open.store(true, Ordering::Relaxed);
        let inbox = format!("{}.", client.new_inbox());
        let failed = |error: &dyn std::error::Error| {
            Error::Unavailable(format!("nats.{}: {}", cluster.name, error_chain(error)))
        };
        let subscribed = async {
            let replies = client
                .subscribe(format!("{inbox}*"))
                .await
                .map_err(|error| failed(&error))?;
            // The server must know the subscription before the first record.
            client.flush().await.map_err(|error| failed(&error))?;
            Ok(replies)
        };
        // A connection that is lost meanwhile never answers, so this needs a timeout.
        let replies = tokio::time::timeout(NATS_REQUEST_TIMEOUT, subscribed)
            .await
            .map_err(|error| failed(&error))??;
        Ok(Self {
            client,
            inbox,
            lookup_subject: cluster.api_subject("STREAM.NAMES"),
            replies,
            notices,
        })
    }

    /// The server's limit for headers and payload of one message, in bytes.
    pub(super) fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// Queues a record in the client. A lost connection is not an error here: see
    /// [`PublishEvent::Disconnected`].
    pub(super) async fn publish(
        &self,
        number: u64,
        subject: &Subject,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<(), TooLarge> {
        let reply = format!("{}{number}", self.inbox);
        let published = self
            .client
            .publish_with_reply_and_headers(subject.clone(), reply, headers, payload)
            .await;
        match published {
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => Err(TooLarge),
            _ => Ok(()),
        }
    }

    /// Asks whether some stream has a subject. The answer is a [`PublishEvent::StreamLookup`], or a
    /// [`PublishEvent::PermissionDenied`] for the lookup subject.
    pub(super) async fn look_up_stream(&self, number: u64, subject: &str) {
        let reply = format!("{}{LOOKUP_PREFIX}{number}", self.inbox);
        let request = serde_json::json!({ "subject": subject }).to_string();
        // A lost connection is reported by `next_event`.
        let _disconnected = self
            .client
            .publish_with_reply(self.lookup_subject.clone(), reply, request.into())
            .await;
    }

    pub(super) fn is_lookup_subject(&self, subject: &str) -> bool {
        subject == self.lookup_subject
    }

    /// Waits for the next event. Safe to drop.
    pub(super) async fn next_event(&mut self) -> PublishEvent {
        loop {
            let reply = tokio::select! {
                biased;
                reply = self.replies.next() => reply,
                notice = self.notices.recv() => match notice {
                    Some(Notice::PermissionDenied(subject)) => {
                        return PublishEvent::PermissionDenied(subject);
                    }
                    Some(Notice::Disconnected) | None => return PublishEvent::Disconnected,
                },
            };
            let Some(reply) = reply else {
                return PublishEvent::Disconnected;
            };
            let Some(token) = reply.subject.strip_prefix(self.inbox.as_str()) else {
                continue;
            };
            let lookup = token.strip_prefix(LOOKUP_PREFIX);
            if let Some(number) = lookup.and_then(|number| number.parse().ok()) {
                let has_stream = publish_error::may_have_stream(&reply.payload);
                return PublishEvent::StreamLookup(number, has_stream);
            }
            let Ok(number) = token.parse::<u64>() else {
                continue;
            };
            if reply.status == Some(StatusCode::NO_RESPONDERS) {
                return PublishEvent::NoResponders(number);
            }
            return match publish_error::parse_ack(&reply.payload) {
                Some(result) => PublishEvent::Acknowledged(number, result),
                None => PublishEvent::ForeignReply(number),
            };
        }
    }
}

fn notice_of(event: Event) -> Option<Notice> {
    match event {
        Event::Disconnected | Event::Closed => Some(Notice::Disconnected),
        Event::ServerError(ServerError::Other(text)) => {
            let subject = publish_error::denied_subject(&text)?;
            Some(Notice::PermissionDenied(subject.to_owned()))
        }
        _ => None,
    }
}
