//! Sends the load to a stream from a thread of its own, because the pacing code is synchronous.

use std::thread::JoinHandle;

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::client::{Sender, connect};
use super::copy::block_on;
use crate::ends::Feed;
use crate::feeder::Control;
use crate::workload::Message;

/// Limit of messages that wait between the two threads.
const QUEUE: usize = 4_096;

type Outgoing = (Subject, HeaderMap, Bytes);

/// Sends the load to the subjects of one stream, round-robin.
pub(crate) struct Feeder<'a> {
    subjects: Vec<Subject>,
    message: &'a Message,
    queue: mpsc::Sender<Outgoing>,
    thread: JoinHandle<()>,
}

impl<'a> Feeder<'a> {
    pub(super) fn new(addr: &str, subjects: Vec<Subject>, message: &'a Message) -> Feeder<'a> {
        let (queue, incoming) = mpsc::channel(QUEUE);
        let addr = addr.to_owned();
        let thread = std::thread::spawn(move || block_on(serve(&addr, incoming)));
        Feeder {
            subjects,
            message,
            queue,
            thread,
        }
    }

    /// Sends a message with exactly these headers to one subject.
    pub(super) fn send_to(&self, subject: Subject, number: usize, headers: HeaderMap) {
        let payload = Bytes::from(self.message.payload(number));
        self.queue
            .blocking_send((subject, headers, payload))
            .expect("the client takes the load");
    }

    /// The headers of the load, including its key.
    pub(super) fn headers(&self, number: usize) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("postdate-key", self.message.key(number));
        self.message
            .headers
            .iter()
            .for_each(|(name, value)| headers.insert(name.as_str(), value.as_str()));
        headers
    }
}

impl Feed for Feeder<'_> {
    fn send(&self, number: usize, (name, millis): Control) {
        let mut headers = self.headers(number);
        headers.insert(name, millis.to_string());
        self.send_to(
            self.subjects[number % self.subjects.len()].clone(),
            number,
            headers,
        );
    }

    fn serve(&self) {}

    fn finish(self) {
        drop(self.queue);
        self.thread.join().expect("the stream takes the load");
    }
}

async fn serve(addr: &str, mut incoming: mpsc::Receiver<Outgoing>) {
    let mut sender = Sender::open(&connect(addr).await).await;
    while let Some((subject, headers, payload)) = incoming.recv().await {
        sender.send(subject, headers, payload).await;
    }
    sender.finish().await;
}
