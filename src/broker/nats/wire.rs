//! One connection that publishes, and hears of what became of it. When it is lost it stays so: the client library would send later what it
//! had not sent, out of its order, so another connection takes its place, and the runtime on which this one lives ends with it.

use super::Cluster;
use super::connection::{connect_error, connect_options};
use super::failure;
use crate::broker::{DeliveryFailure, Error};
use crate::limit::{NATS_CONNECTION_EVENTS_MAX, NATS_REQUEST_TIMEOUT, NATS_UNACKED_PUBLISHES_MAX};
use async_nats::subject::ToSubject;
use async_nats::{
    Client, Event, HeaderMap, PublishErrorKind, ServerError, StatusCode, Subject, Subscriber,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// See the module's page.
pub(super) struct PublishConnection {
    client: Client,
    /// What answers are sent to, before the number of the record, or [`LOOKUP_PREFIX`] and that of the question.
    inbox: String,
    /// Where it is asked which streams take a subject.
    lookup_subject: String,
    replies: Subscriber,
    notices: mpsc::Receiver<Notice>,
}

enum Notice {
    Disconnected,
    PermissionDenied(String),
}

/// What a connection tells.
#[derive(Debug)]
pub(super) enum PublishEvent {
    /// Of the record of that number: its sequence in the stream, or why it was not taken.
    Acknowledged(u64, Result<u64, DeliveryFailure>),
    /// Some program answered to the record of that number, and it is no stream.
    ForeignReply(u64),
    /// Nobody takes what is sent to the record's subject, says the server.
    NoResponders(u64),
    /// The answer to the question of that number: whether some stream takes the subject.
    StreamLookup(u64, bool),
    /// This client may not send to the subject.
    PermissionDenied(String),
    Disconnected,
}

/// Where the answer to a record goes. The library copies a text that it is given.
struct Reply<'a> {
    inbox: &'a str,
    number: u64,
}

impl ToSubject for Reply<'_> {
    fn to_subject(&self) -> Subject {
        let mut subject = String::with_capacity(self.inbox.len() + 20);
        subject.push_str(self.inbox);
        subject.push_str(&self.number.to_string());
        Subject::from(subject)
    }
}

const LOOKUP_PREFIX: char = '?';

/// Longer than the runtime of a connection that is lost lives on.
const NEVER: Duration = Duration::from_secs(3600);

impl PublishConnection {
    pub(super) async fn open(cluster: &Cluster) -> Result<Self, Error> {
        let is_open = Arc::new(AtomicBool::new(false));
        let (opened, (tell, notices)) =
            (is_open.clone(), mpsc::channel(NATS_CONNECTION_EVENTS_MAX));
        let options = connect_options(cluster)?
            // Those of the records were looked at when they were taken over, and the others are its own.
            .skip_subject_validation(true)
            // Room for all that can be under way, each with a question: a client whose connection is lost takes nothing more off its hands.
            .client_capacity(2 * NATS_UNACKED_PUBLISHES_MAX)
            .reconnect_delay_callback(move |_| {
                if opened.load(Ordering::Relaxed) {
                    NEVER
                } else {
                    Duration::ZERO
                }
            })
            .event_callback(move |event| {
                let notice = match event {
                    Event::Disconnected | Event::Closed => Some(Notice::Disconnected),
                    Event::ServerError(ServerError::Other(words)) => {
                        failure::denied_subject(&words)
                            .map(|subject| Notice::PermissionDenied(subject.to_owned()))
                    }
                    _ => None,
                };
                let tell = tell.clone();
                async move {
                    if let Some(notice) = notice {
                        let _nobody_listens_any_more = tell.send(notice).await;
                    }
                }
            });
        let client = options
            .connect(cluster.urls.as_slice())
            .await
            .map_err(|error| connect_error(cluster, &error))?;
        is_open.store(true, Ordering::Relaxed);
        let inbox = format!("{}.", client.new_inbox());
        let lost = |error: &dyn std::error::Error| {
            Error::Unavailable(format!(
                "nats.{}: {}",
                cluster.name,
                super::connection::error_chain(error)
            ))
        };
        let subscribed = async {
            let answers = client
                .subscribe(format!("{inbox}*"))
                .await
                .map_err(|error| lost(&error))?;
            // Answers may come only after the server knows where to.
            client.flush().await.map_err(|error| lost(&error))?;
            Ok(answers)
        };
        // A connection that is lost meanwhile answers nothing, and is not made again.
        let answers = tokio::time::timeout(NATS_REQUEST_TIMEOUT, subscribed)
            .await
            .map_err(|error| lost(&error))??;
        Ok(Self {
            client,
            inbox,
            lookup_subject: cluster.api_subject("STREAM.NAMES"),
            replies: answers,
            notices,
        })
    }

    /// What the server takes at most: headers and payload.
    pub(super) fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// Hands a record over to the client. `Err`: it is larger than the server takes; that the connection is lost is told by
    /// [`Wire::heard`].
    pub(super) async fn publish(
        &self,
        number: u64,
        subject: &Subject,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<(), ()> {
        let reply = Reply {
            inbox: &self.inbox,
            number,
        };
        match self
            .client
            .publish_with_reply_and_headers(subject.clone(), reply, headers, payload)
            .await
        {
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => Err(()),
            _ => Ok(()),
        }
    }

    /// Asks whether some stream takes a subject. That this client may not ask is told as of any subject: see [`Wire::is_question`].
    pub(super) async fn look_up_stream(&self, number: u64, subject: &str) {
        let (reply, ask) = (
            format!("{}{LOOKUP_PREFIX}{number}", self.inbox),
            serde_json::json!({ "subject": subject }).to_string(),
        );
        // A loss of the connection is told by `heard`.
        let _lost = self
            .client
            .publish_with_reply(self.lookup_subject.clone(), reply, ask.into())
            .await;
    }

    /// Whether it is where questions go.
    pub(super) fn is_lookup_subject(&self, subject: &str) -> bool {
        subject == self.lookup_subject
    }

    /// Safe to drop.
    pub(super) async fn next_event(&mut self) -> PublishEvent {
        loop {
            let answer = tokio::select! {
                biased;
                answer = self.replies.next() => answer,
                notice = self.notices.recv() => match notice {
                    Some(Notice::PermissionDenied(subject)) => return PublishEvent::PermissionDenied(subject),
                    Some(Notice::Disconnected) | None => return PublishEvent::Disconnected,
                },
            };
            let Some(answer) = answer else {
                return PublishEvent::Disconnected;
            };
            let Some(place) = answer.subject.strip_prefix(self.inbox.as_str()) else {
                continue;
            };
            if let Some(number) = place
                .strip_prefix(LOOKUP_PREFIX)
                .and_then(|number| number.parse().ok())
            {
                return PublishEvent::StreamLookup(
                    number,
                    failure::may_have_stream(&answer.payload),
                );
            }
            let Some(number) = place.parse().ok() else {
                continue;
            };
            if answer.status == Some(StatusCode::NO_RESPONDERS) {
                return PublishEvent::NoResponders(number);
            }
            return failure::parse_ack(&answer.payload)
                .map_or(PublishEvent::ForeignReply(number), |answer| {
                    PublishEvent::Acknowledged(number, answer)
                });
        }
    }
}
