//! Reads and writes a stream as fast as the client library allows.
//!
//! All acknowledgements arrive on one subject, and all requests of a consumer use one inbox. A
//! message therefore needs no subscription and no clone of the client.

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::{Client, ConnectOptions, HeaderMap, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use std::time::Duration;

/// Limit of unconfirmed messages. A stream refuses more than ten thousand.
const WINDOW: usize = 8_000;

/// Messages per request to the consumer.
const FETCH: usize = 10_000;

/// If no message arrives for this long, the measurement has failed.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

pub(super) async fn connect(addr: &str) -> Client {
    ConnectOptions::new()
        .skip_subject_validation(true)
        .connect(addr)
        .await
        .expect("the server answers")
}

/// Reads one stream from its start, in order.
pub(super) struct Reader {
    client: Client,
    /// Subject for requests to the consumer, and the subject of its replies.
    ask: Subject,
    inbox: Subject,
    messages: Subscriber,
    under_way: usize,
}

impl Reader {
    pub(super) async fn open(client: &Client, stream: &str) -> Reader {
        let config = pull::Config {
            ack_policy: AckPolicy::None,
            memory_storage: true,
            inactive_threshold: SILENCE,
            ..pull::Config::default()
        };
        let consumer = async_nats::jetstream::new(client.clone())
            .create_consumer_on_stream(config, stream)
            .await
            .expect("a consumer");
        let inbox = Subject::from(client.new_inbox());
        let messages = client.subscribe(inbox.clone()).await.expect("a connection");
        let ask = Subject::from(format!(
            "$JS.API.CONSUMER.MSG.NEXT.{stream}.{}",
            consumer.cached_info().name
        ));
        Reader {
            client: client.clone(),
            ask,
            inbox,
            messages,
            under_way: 0,
        }
    }

    /// Waits for the next message. Do not call this more often than the stream has messages.
    pub(super) async fn next(&mut self) -> Message {
        loop {
            if self.under_way <= FETCH / 2 {
                let batch = Bytes::from(format!(r#"{{"batch":{FETCH}}}"#));
                self.client
                    .publish_with_reply(self.ask.clone(), self.inbox.clone(), batch)
                    .await
                    .expect("a connection");
                self.under_way += FETCH;
            }
            // A timeout for each message would cost more than the message.
            let message = match self.messages.next().now_or_never() {
                Some(message) => message,
                None => tokio::time::timeout(SILENCE, self.messages.next())
                    .await
                    .expect("the stream has more"),
            };
            let message = message.expect("a connection");
            if message.status.is_none_or(|status| status == StatusCode::OK) {
                self.under_way -= 1;
                return message;
            }
        }
    }
}

/// Publishes messages, with a limited number of unconfirmed ones.
pub(super) struct Sender {
    client: Client,
    inbox: Subject,
    answers: Subscriber,
    under_way: usize,
}

impl Sender {
    pub(super) async fn open(client: &Client) -> Sender {
        let inbox = Subject::from(client.new_inbox());
        let answers = client.subscribe(inbox.clone()).await.expect("a connection");
        Sender {
            client: client.clone(),
            inbox,
            answers,
            under_way: 0,
        }
    }

    pub(super) async fn send(&mut self, subject: Subject, headers: HeaderMap, payload: Bytes) {
        self.serve();
        while self.under_way >= WINDOW {
            self.hear().await;
        }
        let sent = self
            .client
            .publish_with_reply_and_headers(subject, self.inbox.clone(), headers, payload)
            .await;
        sent.expect("a connection, and a message that is not too large");
        self.under_way += 1;
    }

    /// Handles the acknowledgements that arrived. Panics if the stream refused a message.
    pub(super) fn serve(&mut self) {
        while let Some(answer) = self.answers.next().now_or_never() {
            self.take(&answer.expect("a connection"));
        }
    }

    /// Waits until every message is confirmed.
    pub(super) async fn finish(&mut self) {
        while self.under_way > 0 {
            self.hear().await;
        }
    }

    async fn hear(&mut self) {
        let answer = tokio::time::timeout(SILENCE, self.answers.next())
            .await
            .expect("the stream answers")
            .expect("a connection");
        self.take(&answer);
    }

    fn take(&mut self, answer: &Message) {
        let is_taken = answer.status.is_none() && answer.payload.starts_with(br#"{"stream""#);
        assert!(
            is_taken,
            "the stream takes the message: {:?} {}",
            answer.status,
            String::from_utf8_lossy(&answer.payload)
        );
        self.under_way -= 1;
    }
}
