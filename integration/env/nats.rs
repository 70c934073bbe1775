//! Starts a real NATS server with JetStream and offers a plain client for it.
//!
//! The server keeps its port and its data when it is killed, so clients can reconnect.

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::stream::{Config, Stream};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, HeaderMap};
use futures_util::StreamExt as _;

use super::process::{Process, Signal, folder, free_port};
use super::{eventually, now_ms, servers};

pub(crate) struct Nats {
    port: u16,
    options: Options,
    folder: PathBuf,
    process: Process,
}

/// Builds the connection options of the tests' own clients.
pub(crate) type Options = Arc<dyn Fn() -> ConnectOptions + Send + Sync>;

/// A message as a stream stores it. Headers of the same name keep their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) sequence: u64,
    pub(crate) subject: String,
    /// Time at which the server stored it, in epoch milliseconds.
    pub(crate) stored: i64,
    /// Time at which this process read it, in epoch milliseconds.
    pub(crate) arrived: i64,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: Vec<u8>,
}

impl Stored {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

impl Nats {
    pub(crate) fn start() -> Nats {
        Nats::start_with("", None)
    }

    /// As `start`, with `more` lines in the server's configuration file. `login` is the user and
    /// password of the tests' own clients.
    pub(crate) fn start_with(more: &str, login: Option<(&str, &str)>) -> Nats {
        let login = login.map(|(user, password)| (user.to_owned(), password.to_owned()));
        let options = move || {
            let login = login.clone().into_iter();
            login.fold(ConnectOptions::new(), |options, (user, password)| {
                options.user_and_password(user, password)
            })
        };
        Nats::start_as(more, Arc::new(options))
    }

    /// As `start_with`, with custom connection options for the tests' own clients.
    pub(crate) fn start_as(more: &str, options: Options) -> Nats {
        let mut nats = Nats::begin(free_port(), ("", more), options);
        nats.wait();
        nats
    }

    /// As `start`, with JetStream limits in the syntax of the server's configuration file.
    pub(crate) fn start_limited(limits: &str) -> Nats {
        let mut nats = Nats::begin(
            free_port(),
            (&format!(", limits {{ {limits} }}"), ""),
            Arc::new(ConnectOptions::new),
        );
        nats.wait();
        nats
    }

    /// As `start`, in a JetStream domain.
    pub(crate) fn start_in(domain: &str, more: &str) -> Nats {
        let mut nats = Nats::begin(
            free_port(),
            (&format!(", domain: {domain}"), more),
            Arc::new(ConnectOptions::new),
        );
        nats.wait();
        nats
    }

    /// Starts three servers that form one cluster.
    pub(crate) fn start_cluster() -> [Nats; 3] {
        let routes = [free_port(), free_port(), free_port()];
        let all = routes
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .join(", ");
        let mut servers = [0, 1, 2].map(|at| {
            let more = format!("server_name: n{at}\ncluster {{ name: three, listen: \"127.0.0.1:{}\", routes: [{all}] }}", routes[at]);
            Nats::begin(free_port(), ("", &more), Arc::new(ConnectOptions::new))
        });
        servers.iter_mut().for_each(Nats::wait);
        servers
    }

    fn begin(port: u16, (jetstream, more): (&str, &str), options: Options) -> Nats {
        let folder = folder("nats");
        configure(&folder, port, (jetstream, more));
        let process = Process::start("nats-server", &folder, &mut server(&folder));
        Nats {
            port,
            options,
            folder,
            process,
        }
    }

    /// Host and port.
    pub(crate) fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.addr())
    }

    pub(crate) fn kill(&mut self) {
        self.process.end(Signal::KILL);
    }

    /// Shuts the server down gracefully, as an operator does.
    pub(crate) fn stop(&mut self) {
        self.process.end(Signal::TERM);
    }

    /// Restarts the server on the same port with the same data. Kills it first if it runs.
    pub(crate) fn restart(&mut self) {
        self.process.start_again(&mut server(&self.folder));
        self.wait();
    }

    /// As `restart`, with other `more` lines in the configuration file.
    pub(crate) fn restart_with(&mut self, more: &str) {
        configure(&self.folder, self.port, ("", more));
        self.restart();
    }

    /// CPU time used since the start.
    pub(crate) fn cpu(&self) -> Duration {
        self.process.cpu()
    }

    /// Stops the process: connections stay open and get no answer, as when the network drops every
    /// packet.
    pub(crate) fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    pub(crate) fn create_stream(&self, name: &str, subjects: &[&str]) {
        let subjects = subjects
            .iter()
            .map(|subject| (*subject).to_owned())
            .collect();
        self.create_stream_with(Config {
            name: name.to_owned(),
            subjects,
            ..Config::default()
        });
    }

    pub(crate) fn create_stream_with(&self, config: Config) {
        self.ask(async move |context| {
            drop(context.create_stream(config).await.expect("a new stream"));
        });
    }

    /// The names of all streams.
    pub(crate) fn streams(&self) -> Vec<String> {
        self.ask(async move |context| {
            context
                .stream_names()
                .map(|name| name.expect("an answer"))
                .collect()
                .await
        })
    }

    pub(crate) fn delete_stream(&self, name: &str) {
        self.ask(async move |context| {
            context
                .delete_stream(name)
                .await
                .expect("a stream that exists");
        });
    }

    /// Removes all messages before sequence `first`, as retention does.
    pub(crate) fn purge(&self, name: &str, first: u64) {
        self.ask(async move |context| {
            let stream = context
                .get_stream(name)
                .await
                .expect("a stream that exists");
            stream.purge().sequence(first).await.expect("a purge");
        });
    }

    /// Removes a stream's messages with this subject.
    pub(crate) fn purge_subject(&self, name: &str, subject: &str) {
        self.ask(async move |context| {
            let stream = context
                .get_stream(name)
                .await
                .expect("a stream that exists");
            stream.purge().filter(subject).await.expect("a purge");
        });
    }

    pub(crate) fn delete_message(&self, name: &str, sequence: u64) {
        self.ask(async move |context| {
            let stream = context
                .get_stream(name)
                .await
                .expect("a stream that exists");
            assert!(stream.delete_message(sequence).await.expect("an answer"));
        });
    }

    pub(crate) fn update_stream(&self, config: Config) {
        self.ask(async move |context| {
            drop(
                context
                    .update_stream(config)
                    .await
                    .expect("a stream of other limits"),
            );
        });
    }

    pub(crate) fn allow_consumers(&self, stream: &str, count: i32) {
        self.ask(async move |context| {
            let config = context
                .get_stream(stream)
                .await
                .expect("a stream that exists")
                .cached_info()
                .config
                .clone();
            context
                .update_stream(Config {
                    max_consumers: count,
                    ..config
                })
                .await
                .expect("a stream of other limits");
        });
    }

    /// Pauses the only consumer of a stream for an hour. It exists and sends heartbeats, but
    /// delivers no messages.
    pub(crate) fn pause_consumer(&self, stream: &str) {
        self.ask(async move |context| {
            let names = context
                .get_stream(stream)
                .await
                .expect("a stream that exists")
                .consumer_names();
            let names: Vec<String> = names.map(|name| name.expect("an answer")).collect().await;
            assert_eq!(names.len(), 1, "{names:?}");
            let until = serde_json::json!({ "pause_until": rfc3339_in(3_600) });
            let paused: serde_json::Value = context
                .request(format!("CONSUMER.PAUSE.{stream}.{}", names[0]), &until)
                .await
                .expect("an answer");
            assert_eq!(paused["paused"], true, "{paused}");
        });
    }

    /// Returns the message's sequence in the stream.
    pub(crate) fn publish(
        &self,
        subject: &str,
        headers: &[(&str, &str)],
        payload: impl AsRef<[u8]>,
    ) -> u64 {
        self.publish_all(subject, [(headers, payload)])[0]
    }

    /// Publishes all messages in order, then waits for all acknowledgements. Returns the sequences.
    pub(crate) fn publish_all<'a, P: AsRef<[u8]>>(
        &self,
        subject: &str,
        messages: impl IntoIterator<Item = (&'a [(&'a str, &'a str)], P)>,
    ) -> Vec<u64> {
        self.ask(async move |context| {
            let mut acks = Vec::new();
            for (headers, payload) in messages {
                let mut map = HeaderMap::new();
                headers
                    .iter()
                    .for_each(|(name, value)| map.append(*name, *value));
                let payload = payload.as_ref().to_vec().into();
                acks.push(
                    context
                        .publish_with_headers(subject.to_owned(), map, payload)
                        .await
                        .expect("a connection"),
                );
            }
            let mut sequences = Vec::new();
            for ack in acks {
                sequences.push(ack.await.expect("a stream behind the subject").sequence);
            }
            sequences
        })
    }

    /// Publishes over a raw connection, with headers that need not be valid text.
    pub(crate) fn publish_raw(&self, subject: &str, header: &[u8], payload: &[u8]) {
        let head = [b"NATS/1.0\r\n", header, b"\r\n\r\n"].concat();
        let line = format!(
            "CONNECT {{\"verbose\":false,\"headers\":true}}\r\nHPUB {subject} {} {}\r\n",
            head.len(),
            head.len() + payload.len()
        );
        let mut stream = std::net::TcpStream::connect(self.addr()).expect("the server listens");
        stream
            .write_all(&[line.as_bytes(), &head, payload, b"\r\nPING\r\n"].concat())
            .expect("it reads");
        let mut said = Vec::new();
        while !said.ends_with(b"PONG\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("it answers");
            said.extend(byte);
        }
    }

    /// All messages that a stream holds now.
    pub(crate) fn stored(&self, name: &str) -> Vec<Stored> {
        self.ask(async move |context| {
            let mut stream = context
                .get_stream(name)
                .await
                .expect("a stream that exists");
            stored(&mut stream).await
        })
    }

    /// Waits until a stream holds `count` messages and returns all its messages.
    pub(crate) fn wait_for(&self, name: &str, count: u64, limit: Duration) -> Vec<Stored> {
        eventually(&format!("{count} messages in {name}"), limit, || {
            (self.count(name) >= count).then_some(())
        });
        self.stored(name)
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.ask(async move |context| {
            let mut stream = context
                .get_stream(name)
                .await
                .expect("a stream that exists");
            stream.info().await.expect("an answer").state.messages
        })
    }

    /// Runs `call` with a new client on its own runtime, because tests are not asynchronous.
    pub(crate) fn ask<T>(&self, call: impl AsyncFnOnce(Context) -> T) -> T {
        let (url, options) = (self.url(), self.options.clone());
        block_on(async move {
            call(jetstream::new(
                connect(&url, &options).await.expect("the server answers"),
            ))
            .await
        })
    }

    fn wait(&mut self) {
        let (url, options) = (self.url(), self.options.clone());
        let answers = || {
            block_on(async {
                jetstream::new(connect(&url, &options).await.ok()?)
                    .query_account()
                    .await
                    .ok()
                    .map(drop)
            })
        };
        // Uses its own thread, because the test that starts a server may already run in a runtime.
        self.process.until("NATS answers", || {
            std::thread::scope(|scope| scope.spawn(answers).join().expect("no panic"))
        });
    }
}

async fn connect(url: &str, options: &Options) -> Result<Client, async_nats::ConnectError> {
    options()
        .connection_timeout(Duration::from_secs(2))
        .connect(url)
        .await
}

async fn stored(stream: &mut Stream) -> Vec<Stored> {
    let count = stream.info().await.expect("an answer").state.messages;
    let config = pull::OrderedConfig {
        deliver_policy: DeliverPolicy::All,
        ..pull::OrderedConfig::default()
    };
    let mut found = Vec::new();
    if count == 0 {
        return found;
    }
    let mut messages = stream
        .create_consumer(config)
        .await
        .expect("a consumer")
        .messages()
        .await
        .expect("messages");
    while let Some(message) = messages.next().await {
        let message = message.expect("a message");
        let info = message.info().expect("of a stream");
        let mut headers: Vec<(String, String)> = Vec::new();
        for (name, values) in message.headers.iter().flat_map(HeaderMap::iter) {
            headers.extend(
                values
                    .iter()
                    .map(|value| (name.to_string(), value.as_str().to_owned())),
            );
        }
        headers.sort_by(|one, other| one.0.cmp(&other.0));
        found.push(Stored {
            sequence: info.stream_sequence,
            subject: message.subject.to_string(),
            stored: i64::try_from(info.published.unix_timestamp_nanos() / 1_000_000)
                .expect("this century"),
            arrived: now_ms(),
            headers,
            payload: message.payload.to_vec(),
        });
        if info.pending == 0 {
            break;
        }
    }
    found
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}

fn configure(folder: &Path, port: u16, (jetstream, more): (&str, &str)) {
    let text = format!(
        "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {:?}{jetstream} }}\n{more}\n",
        folder.join("data")
    );
    std::fs::write(folder.join("nats.conf"), text).unwrap();
}

fn server(folder: &Path) -> Command {
    let program = servers().join("nats/bin/nats-server");
    assert!(
        program.exists(),
        "there is no NATS server in {}: run `make servers`",
        program.display()
    );
    let mut server = Command::new(program);
    server.arg("-c").arg(folder.join("nats.conf"));
    server
}

pub(crate) fn rfc3339_in(seconds: i64) -> String {
    let output = Command::new("date")
        .args([
            "-u",
            "-d",
            &format!("+{seconds} seconds"),
            "+%Y-%m-%dT%H:%M:%SZ",
        ])
        .output();
    String::from_utf8(output.expect("date runs").stdout)
        .expect("text")
        .trim()
        .to_owned()
}
