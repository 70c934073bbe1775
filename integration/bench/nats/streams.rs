//! Creates the streams of a measurement, counts their messages, and reads them from their start.

use async_nats::{Client, HeaderMap, Message as Incoming, Subject};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::client::{Reader, connect};
use super::feeder::Feeder;
use crate::ends::{Arrived, Ends, Names};
use crate::env::{Nats, unique};
use crate::row::System;
use crate::workload::Message;

/// Creates and inspects streams with one client.
pub(crate) struct Streams {
    addr: String,
    runtime: Runtime,
    client: Client,
    /// Number of subjects per stream, one for each partition of a topic: `<stream>.0` and so on.
    subjects: usize,
}

impl Streams {
    pub(crate) fn new(nats: &Nats, subjects: i32) -> Streams {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(connect(&nats.addr()));
        Streams {
            addr: nats.addr(),
            runtime,
            client,
            subjects: usize::try_from(subjects).expect("a number of subjects"),
        }
    }

    pub(super) fn addr(&self) -> &str {
        &self.addr
    }

    /// Creates a stream for all subjects below its name. `more` holds additional fields of the
    /// configuration.
    pub(super) fn make_with(&self, name: &str, more: &Value) -> String {
        let stream = unique(name);
        let mut config = json!({ "name": stream, "subjects": [format!("{stream}.>")], "storage": "file", "retention": "limits" });
        let (all, more) = (
            config.as_object_mut().expect("an object"),
            more.as_object().expect("an object"),
        );
        all.extend(more.clone());
        let answer = self.ask(&format!("$JS.API.STREAM.CREATE.{stream}"), &config);
        assert!(answer.get("error").is_none(), "a new stream: {answer}");
        stream
    }

    /// Deletes a stream that is no longer read, which frees disk space.
    pub(super) fn remove(&self, stream: &str) {
        self.ask(&format!("$JS.API.STREAM.DELETE.{stream}"), &json!({}));
    }

    /// Deletes all streams, so that one measurement does not slow down the next.
    pub(super) fn clear(&self) {
        let found = self.ask("$JS.API.STREAM.NAMES", &json!({}));
        let names = found["streams"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        names.for_each(|stream| self.remove(stream));
    }

    /// The server's information about a stream.
    pub(super) fn info(&self, stream: &str, asked: &Value) -> Value {
        let answer = self.ask(&format!("$JS.API.STREAM.INFO.{stream}"), asked);
        assert!(
            answer.get("error").is_none(),
            "a stream that exists: {answer}"
        );
        answer
    }

    /// Reads `count` messages of a stream from its start.
    pub(super) fn each(&self, stream: &str, count: usize, mut each: impl FnMut(&Incoming)) {
        self.runtime.block_on(async {
            let mut reader = Reader::open(&self.client, stream).await;
            for _ in 0..count {
                each(&reader.next().await);
            }
        });
    }

    fn ask(&self, subject: &str, asked: &Value) -> Value {
        let answer = self.runtime.block_on(
            self.client
                .request(subject.to_owned(), asked.to_string().into()),
        );
        serde_json::from_slice(&answer.expect("the server answers").payload).expect("JSON")
    }
}

/// When the server stored the message, in epoch milliseconds. The time is the eighth token of the
/// reply subject of a consumer's message.
pub(super) fn stamp(message: &Incoming) -> i64 {
    let reply = message.reply.as_deref().unwrap_or_default();
    let nanos: Option<i64> = reply.split('.').nth(7).and_then(|token| token.parse().ok());
    nanos.expect("a consumer's message") / 1_000_000
}

impl Ends for Streams {
    const SYSTEM: System = System::Nats;

    type Feeder<'f>
        = Feeder<'f>
    where
        Self: 'f;

    fn make(&self, name: &str) -> String {
        self.make_with(name, &json!({}))
    }

    fn held(&self, stream: &str) -> usize {
        let info = self.info(stream, &json!({}));
        info["state"]["messages"]
            .as_u64()
            .map_or(0, |messages| messages as usize)
    }

    fn feeder<'f>(&'f self, stream: &str, message: &'f Message) -> Feeder<'f> {
        let subjects =
            (0..self.subjects).map(|subject| Subject::from(format!("{stream}.{subject}")));
        Feeder::new(&self.addr, subjects.collect(), message)
    }

    fn read(&self, stream: &str, mut each: impl FnMut(&Arrived<'_>)) {
        self.each(stream, self.held(stream), |message| {
            let key = message
                .headers
                .as_ref()
                .and_then(|headers: &HeaderMap| headers.get("postdate-key"));
            let key = key.map_or(&b""[..], |key| key.as_str().as_bytes());
            each(&Arrived {
                key,
                payload: &message.payload,
                stamp: stamp(message),
            });
        });
    }

    fn route(&self, names: &Names<'_>) -> String {
        let Names {
            source,
            target,
            dead,
            delivery,
        } = names;
        let subjects: Vec<String> = (0..self.subjects)
            .map(|subject| format!("{source}.{subject}"))
            .collect();
        format!(
            r#"
[nats.edge]
url = "nats://{}"
[route.bench]
source = {{ nats = "edge", stream = "{source}", subjects = {subjects:?} }}
target = {{ nats = "edge", subject = "{target}.all" }}
dead_letter = {{ nats = "edge", subject = "{dead}.all" }}
delivery = "{delivery}"
"#,
            self.addr
        )
    }

    fn shards(&self, source: &str) -> Vec<String> {
        // The store's names escape the colon between stream and filter subject.
        (0..self.subjects)
            .map(|subject| format!("{source}%3a{source}.{subject}/0"))
            .collect()
    }

    /// Offsets are sequences of the whole stream. The load fills the subjects round-robin, so each
    /// subject has its share of them.
    fn stored(&self, shard: usize, watermark: usize) -> usize {
        (watermark + self.subjects).saturating_sub(2 + shard) / self.subjects
    }
}
