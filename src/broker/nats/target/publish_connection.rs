//! One connection for publishing, and the events that the server sends on it.
//!
//! The client never reconnects, because it would then send its buffered records out of order. The
//! publisher opens a new connection and drops the runtime of the lost one.

use super::PendingRecord;
use super::publish_error;
use crate::broker::FailureKind::Rejected;
use crate::broker::nats::Cluster;
use crate::broker::nats::connection::{connect_error, connect_options, error_chain};
use crate::broker::nats::limit::{
    NATS_CONNECTION_EVENTS_MAX, NATS_REQUEST_TIMEOUT, NATS_UNACKED_PUBLISHES_MAX,
};
use crate::broker::{DeliveryFailure, Error};
use crate::model::DeadLetterReason;
use async_nats::{Client, ConnectOptions, Event, PublishErrorKind, ServerError, Subscriber};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

pub(super) struct PublishConnection {
    client: Client,
    /// Prefix of every reply subject. The number of the record follows, or [`LOOKUP_PREFIX`] and
    /// the number of the lookup.
    pub(super) inbox: String,
    /// The API subject that returns the streams of a subject.
    pub(super) lookup_subject: String,
    pub(super) replies: Subscriber,
    pub(super) notices: mpsc::Receiver<Notice>,
}

/// An event that the client library reports by its callback.
pub(super) enum Notice {
    Disconnected,
    /// The client may not publish to this subject.
    PermissionDenied(String),
}

pub(super) const LOOKUP_PREFIX: char = '?';

/// Longer than the runtime of a lost connection lives.
const NEVER: Duration = Duration::from_secs(3600);

impl PublishConnection {
    pub(super) async fn open(cluster: &Cluster) -> Result<Self, Error> {
        let is_open = Arc::new(AtomicBool::new(false));
        let (notices_tx, notices) = mpsc::channel(NATS_CONNECTION_EVENTS_MAX);
        let api = match &cluster.domain {
            Some(domain) => format!("$JS.{domain}.API"),
            None => "$JS.API".to_owned(),
        };
        let client = client_options(cluster, &is_open, notices_tx)?
            .connect(cluster.urls.as_slice())
            .await
            .map_err(|error| connect_error(cluster, &error))?;
        is_open.store(true, Ordering::Relaxed);
        let inbox = format!("{}.", client.new_inbox());
        let subscribed = async {
            let replies = client.subscribe(format!("{inbox}*")).await?;
            // The server must know the subscription before the first record.
            client.flush().await?;
            Ok::<_, async_nats::Error>(replies)
        };
        // A connection that is lost meanwhile never answers, so this needs a timeout.
        let replies = tokio::time::timeout(NATS_REQUEST_TIMEOUT, subscribed)
            .await
            .map_err(async_nats::Error::from)
            .flatten()
            .map_err(|error| {
                let text = error_chain(&*error);
                Error::Unavailable(format!("nats.{}: {text}", cluster.name))
            })?;
        Ok(Self {
            client,
            inbox,
            lookup_subject: format!("{api}.STREAM.NAMES"),
            replies,
            notices,
        })
    }

    /// Queues a record in the client. `Err`: it is too large. A lost connection is not an error
    /// here: a notice reports it.
    pub(super) async fn publish(
        &self,
        number: u64,
        record: &PendingRecord,
    ) -> Result<(), DeliveryFailure> {
        let publish = self.client.publish_with_reply_and_headers(
            record.subject.clone(),
            format!("{}{number}", self.inbox),
            record.headers.to_map(),
            record.payload.clone(),
        );
        match publish.await {
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                let max = self.client.max_payload();
                let detail = format!("headers and payload exceed {max} bytes (max_payload)");
                Err(DeliveryFailure::new(
                    Rejected,
                    DeadLetterReason::TooLarge,
                    detail,
                ))
            }
            _ => Ok(()),
        }
    }

    /// Asks whether some stream has a subject. If the connection is stuck, the missing
    /// acknowledgements end it.
    pub(super) async fn look_up_stream(&self, number: u64, subject: &str) {
        let reply = format!("{}{LOOKUP_PREFIX}{number}", self.inbox);
        let request = serde_json::json!({ "subject": subject }).to_string();
        let asked =
            self.client
                .publish_with_reply(self.lookup_subject.clone(), reply, request.into());
        let _timed_out = tokio::time::timeout(NATS_REQUEST_TIMEOUT, asked).await;
    }
}

fn client_options(
    cluster: &Cluster,
    is_open: &Arc<AtomicBool>,
    notices: mpsc::Sender<Notice>,
) -> Result<ConnectOptions, Error> {
    let is_open = is_open.clone();
    let options = connect_options(cluster)?
        // The target has checked the subjects of the records.
        .skip_subject_validation(true)
        // Room for each unacknowledged record and one lookup: a client whose connection is lost
        // takes no more commands, and `publish` would wait.
        .client_capacity(2 * NATS_UNACKED_PUBLISHES_MAX)
        .reconnect_delay_callback(move |_| {
            let is_reconnect = is_open.load(Ordering::Relaxed);
            if is_reconnect { NEVER } else { Duration::ZERO }
        })
        .event_callback(move |event| {
            let notices = notices.clone();
            async move {
                if let Some(notice) = notice_of(event) {
                    let _connection_dropped = notices.send(notice).await;
                }
            }
        });
    Ok(options)
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
