//! A stream read, and a stream written to, each as fast as the client library lets: the answers to all publishes come on one subject, and a
//! consumer is asked on one, so that a message costs neither a subscription nor a clone of the client.

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::{Client, ConnectOptions, HeaderMap, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use std::time::Duration;

/// Messages that are published and not confirmed; a stream refuses more than ten thousand.
const WINDOW: usize = 8_000;

/// Messages that are asked for at once.
const FETCH: usize = 10_000;

/// Nothing comes for so long: it never will.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

pub(super) async fn connect(addr: &str) -> Client {
    ConnectOptions::new()
        .skip_subject_validation(true)
        .connect(addr)
        .await
        .expect("the server answers")
}

/// One stream from its start, in its order.
pub(super) struct Reader {
    client: Client,
    /// Where the consumer is asked, and where it answers.
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

    /// Waits for it. Not more than the stream has.
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
            // A timer for each message would cost more than the message.
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

/// Publishes, with a window of messages that are not confirmed.
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

    /// Takes in what was answered. A refusal ends the measurement.
    pub(super) fn serve(&mut self) {
        while let Some(answer) = self.answers.next().now_or_never() {
            self.take(&answer.expect("a connection"));
        }
    }

    /// Waits until all is confirmed.
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
