//! One connection that publishes, and hears of what became of it. When it is lost it stays so: the client library would send later what it
//! had not sent, out of its order, so another connection takes its place, and the runtime on which this one lives ends with it.

use super::Cluster;
use super::failure;
use super::link::{options, unconnected};
use crate::broker::{Error, Failure};
use crate::limit::{NATS_ANSWER_MAX, NATS_NOTICES_MAX, NATS_WINDOW_MAX};
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
pub(super) struct Wire {
    client: Client,
    /// What answers are sent to, before the number of the record, or [`ASKED`] and that of the question.
    inbox: String,
    /// Where it is asked which streams take a subject.
    streams: String,
    answers: Subscriber,
    notices: mpsc::Receiver<Notice>,
}

enum Notice {
    Lost,
    Denied(String),
}

/// What a connection tells.
#[derive(Debug)]
pub(super) enum Heard {
    /// Of the record of that number: its sequence in the stream, or why it was not taken.
    Answer(u64, Result<u64, Failure>),
    /// Some program answered to the record of that number, and it is no stream.
    Foreign(u64),
    /// Nobody takes what is sent to the record's subject, says the server.
    NoStream(u64),
    /// The answer to the question of that number: whether some stream takes the subject.
    Taken(u64, bool),
    /// This client may not send to the subject.
    Denied(String),
    Lost,
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

const ASKED: char = '?';

/// Longer than the runtime of a connection that is lost lives on.
const NEVER: Duration = Duration::from_secs(3600);

impl Wire {
    pub(super) async fn open(cluster: &Cluster) -> Result<Self, Error> {
        let is_open = Arc::new(AtomicBool::new(false));
        let (opened, (tell, notices)) = (is_open.clone(), mpsc::channel(NATS_NOTICES_MAX));
        let options = options(cluster)?
            // Those of the records were looked at when they were taken over, and the others are its own.
            .skip_subject_validation(true)
            // Room for all that can be under way, each with a question: a client whose connection is lost takes nothing more off its hands.
            .client_capacity(2 * NATS_WINDOW_MAX)
            .reconnect_delay_callback(move |_| {
                if opened.load(Ordering::Relaxed) {
                    NEVER
                } else {
                    Duration::ZERO
                }
            })
            .event_callback(move |event| {
                let notice = match event {
                    Event::Disconnected | Event::Closed => Some(Notice::Lost),
                    Event::ServerError(ServerError::Other(words)) => {
                        failure::denied(&words).map(|subject| Notice::Denied(subject.to_owned()))
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
            .map_err(|error| unconnected(cluster, &error))?;
        is_open.store(true, Ordering::Relaxed);
        let inbox = format!("{}.", client.new_inbox());
        let lost = |error: &dyn std::error::Error| {
            Error::Unavailable(format!(
                "nats.{}: {}",
                cluster.name,
                super::link::chain(error)
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
        let answers = tokio::time::timeout(NATS_ANSWER_MAX, subscribed)
            .await
            .map_err(|error| lost(&error))??;
        Ok(Self {
            client,
            inbox,
            streams: cluster.api("STREAM.NAMES"),
            answers,
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
    pub(super) async fn ask(&self, number: u64, subject: &str) {
        let (reply, ask) = (
            format!("{}{ASKED}{number}", self.inbox),
            serde_json::json!({ "subject": subject }).to_string(),
        );
        // A loss of the connection is told by `heard`.
        let _lost = self
            .client
            .publish_with_reply(self.streams.clone(), reply, ask.into())
            .await;
    }

    /// Whether it is where questions go.
    pub(super) fn is_question(&self, subject: &str) -> bool {
        subject == self.streams
    }

    /// Safe to drop.
    pub(super) async fn heard(&mut self) -> Heard {
        loop {
            let answer = tokio::select! {
                biased;
                answer = self.answers.next() => answer,
                notice = self.notices.recv() => match notice {
                    Some(Notice::Denied(subject)) => return Heard::Denied(subject),
                    Some(Notice::Lost) | None => return Heard::Lost,
                },
            };
            let Some(answer) = answer else {
                return Heard::Lost;
            };
            let Some(place) = answer.subject.strip_prefix(self.inbox.as_str()) else {
                continue;
            };
            if let Some(number) = place
                .strip_prefix(ASKED)
                .and_then(|number| number.parse().ok())
            {
                return Heard::Taken(number, failure::may_be_taken(&answer.payload));
            }
            let Some(number) = place.parse().ok() else {
                continue;
            };
            if answer.status == Some(StatusCode::NO_RESPONDERS) {
                return Heard::NoStream(number);
            }
            return failure::of_answer(&answer.payload).map_or(Heard::Foreign(number), |answer| {
                Heard::Answer(number, answer)
            });
        }
    }
}
