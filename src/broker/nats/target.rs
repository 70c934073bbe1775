//! The target port on NATS: a window of records that were published and not confirmed, on a thread of its own.
//!
//! Only the answer of a stream proves that it has a record. A record that has none when the connection is lost, or after
//! [`NATS_CONFIRM_MAX`], is sent again by another connection, along with all behind it and in their order. Each bears a `Nats-Msg-Id`, so that what the
//! stream has already is a no-op for as long as its duplicate window lasts. What stays unanswered by a cluster that does answer others is
//! given up after [`NATS_SEND_MAX`]; while the cluster is away, nothing is.

use super::doubt::Doubts;
use super::header::Carried;
use super::wire::{Heard, Wire};
use super::{Cluster, failure, header};
use crate::broker::reports::Reports;
use crate::broker::thread::Thread;
use crate::broker::{Error, Failure, Outgoing, Report, Sent, Target};
use crate::health::Part;
use crate::limit::{
    NATS_CONFIRM_MAX, NATS_RECONNECT_MAX, NATS_REPORTS_MAX, NATS_RETRY, NATS_SEND_BYTES_MAX, NATS_SEND_MAX, NATS_WINDOW_MAX,
};
use crate::model::header_name::SUBJECT;
use crate::model::{Offset, Reason, is_subject};
use async_nats::Subject;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The target port on one cluster.
pub(crate) struct NatsTarget {
    in_flight_max: usize,
    /// Taken over, and not handed out as reports yet.
    in_flight: usize,
    bytes: Arc<AtomicUsize>,
    max_payload: Arc<AtomicUsize>,
    /// Names what bears no id, along with a count.
    name: String,
    count: u64,
    /// `None`: closed.
    records: Option<mpsc::Sender<Pending>>,
    reports: Arc<Reports>,
    stop: CancellationToken,
    thread: Thread,
}

/// A record that is not settled.
struct Pending {
    ticket: u64,
    subject: Subject,
    headers: Carried,
    payload: Bytes,
    length: usize,
    /// When it was sent first, over the connections of a cluster that answers.
    since: Option<Instant>,
    /// When it was sent by this connection.
    sent: Instant,
}

impl NatsTarget {
    /// Takes over at most `in_flight_max` records that were not reported on yet. `name` is one that no other client has. `part` tells of
    /// the cluster.
    pub(crate) fn new(cluster: &Cluster, in_flight_max: usize, name: String, part: Part) -> Result<Self, Error> {
        let (records, incoming) = mpsc::channel(in_flight_max);
        let (reports, stop) = (Arc::<Reports>::default(), CancellationToken::new());
        let (bytes, max_payload) = (Arc::<AtomicUsize>::default(), Arc::new(AtomicUsize::new(usize::MAX)));
        let window = Window {
            cluster: cluster.clone(),
            part,
            incoming,
            reports: reports.clone(),
            stop: stop.clone(),
            bytes: bytes.clone(),
            max_payload: max_payload.clone(),
            pending: BTreeMap::new(),
            last: 0,
            settled: Vec::new(),
            doubts: Doubts::default(),
        };
        let thread = Thread::start("nats-target", move || window.serve()).map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self { in_flight_max, in_flight: 0, bytes, max_payload, name, count: 0, records: Some(records), reports, stop, thread })
    }

    /// What a record is published as, or why it cannot be.
    fn pending(&mut self, record: &Outgoing<'_>, ticket: u64) -> Result<Pending, Failure> {
        // Back to a source: where the message came by.
        let back = record.partition.is_some();
        let subject = if back { came_by(record) } else { Some(record.topic) };
        let subject = subject.filter(|subject| is_subject(subject)).ok_or_else(|| {
            let subject = subject.unwrap_or(record.topic);
            failure::refused(Reason::InvalidTarget, format!("`{}` is not a subject that can be sent to", subject.escape_debug()))
        })?;
        // Of a record that came by no subject it is somebody's invention.
        let has_none = record.origins.is_some_and(|origins| !origins.is_of_subjects());
        let left_out = (back || has_none).then_some(SUBJECT);
        let headers = header::outgoing(record, left_out).map_err(|detail| failure::refused(Reason::InvalidHeader, detail));
        let mut headers = headers?;
        let id = record.message_id().unwrap_or_else(|| {
            self.count += 1;
            format!("{}/{}", self.name, self.count)
        });
        headers.push(header::MESSAGE_ID, &id);
        let payload = record.payload.unwrap_or_default();
        let length = headers.wire_length(payload.len());
        let max = self.max_payload.load(Ordering::Relaxed);
        if length > max {
            return Err(too_large(length, max));
        }
        Ok(Pending {
            ticket,
            subject: Subject::from(subject),
            headers,
            payload: Bytes::copy_from_slice(payload),
            length,
            since: None,
            sent: Instant::now(),
        })
    }
}

fn came_by<'a>(record: &Outgoing<'a>) -> Option<&'a str> {
    let (_, subject) = record.headers.iter().find(|(name, _)| *name == SUBJECT.as_bytes())?;
    std::str::from_utf8(subject?).ok()
}

fn too_large(length: usize, max: usize) -> Failure {
    failure::refused(Reason::TooLarge, format!("headers and payload have {length} bytes; the server takes {max} (max_payload)"))
}

#[async_trait(?Send)]
impl Target for NatsTarget {
    fn send(&mut self, record: &Outgoing<'_>, ticket: u64) -> Sent {
        if self.records.is_none() {
            return Sent::Failed(failure::closed());
        }
        let is_full = self.in_flight >= self.in_flight_max || self.bytes.load(Ordering::Relaxed) >= NATS_SEND_BYTES_MAX;
        if is_full && self.in_flight > 0 {
            return Sent::Full;
        }
        let pending = match self.pending(record, ticket) {
            Ok(pending) => pending,
            Err(failure) => return Sent::Failed(failure),
        };
        let length = pending.length;
        match self.records.as_ref().map(mpsc::Sender::try_reserve) {
            Some(Ok(room)) => {
                // Before the thread can take it off again.
                self.bytes.fetch_add(length, Ordering::Relaxed);
                room.send(pending);
            }
            Some(Err(mpsc::error::TrySendError::Full(()))) => return Sent::Full,
            _ => return Sent::Failed(failure::closed()),
        }
        self.in_flight += 1;
        Sent::Taken
    }

    async fn reports(&mut self) -> Vec<Report> {
        let reports = self.reports.take().await;
        self.in_flight -= reports.len();
        reports
    }

    async fn close(&mut self) {
        self.records = None;
        self.stop.cancel();
        self.thread.end().await;
    }
}

impl Drop for NatsTarget {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What runs on the target's thread.
struct Window {
    cluster: Cluster,
    part: Part,
    incoming: mpsc::Receiver<Pending>,
    reports: Arc<Reports>,
    stop: CancellationToken,
    bytes: Arc<AtomicUsize>,
    max_payload: Arc<AtomicUsize>,
    /// By their numbers, in the order in which they were sent.
    pending: BTreeMap<u64, Pending>,
    last: u64,
    settled: Vec<Report>,
    doubts: Doubts,
}

/// Why a connection is given up.
enum End {
    Stopped,
    Lost(String),
    /// There was none.
    Unmade(String),
    /// It is there, and the stream of what was sent first does not confirm it.
    Unconfirmed,
}

impl Window {
    fn serve(mut self) {
        while !self.stop.is_cancelled() {
            // One for each connection: with it ends whatever the client library still has to do for one that is lost.
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return self.part.not_ready(format!("nats.{}: no runtime: {error}", self.cluster.name)),
            };
            match runtime.block_on(self.serve_connection()) {
                End::Stopped => break,
                End::Unconfirmed => {}
                End::Lost(why) => self.pause(&runtime, why, NATS_RETRY),
                End::Unmade(why) => self.pause(&runtime, why, NATS_RECONNECT_MAX),
            }
        }
    }

    fn pause(&mut self, runtime: &Runtime, why: String, length: Duration) {
        self.part.not_ready(why);
        self.pending.values_mut().for_each(|pending| pending.since = None);
        let stop = self.stop.clone();
        runtime.block_on(async move { stop.run_until_cancelled(tokio::time::sleep(length)).await });
    }

    async fn serve_connection(&mut self) -> End {
        let stop = self.stop.clone();
        let opened = tokio::select! {
            biased;
            () = stop.cancelled() => return End::Stopped,
            opened = Wire::open(&self.cluster) => opened,
        };
        let mut wire = match opened {
            Ok(wire) => wire,
            Err(error) => return End::Unmade(error.to_string()),
        };
        self.part.ready();
        self.max_payload.store(wire.max_payload(), Ordering::Relaxed);
        self.doubts = Doubts::default();
        let numbers: Vec<u64> = self.pending.keys().copied().collect();
        for number in numbers {
            self.publish(&wire, number).await;
        }
        let mut records = Vec::new();
        loop {
            self.reports.put(&mut self.settled);
            let room = NATS_WINDOW_MAX.saturating_sub(self.pending.len()).min(NATS_REPORTS_MAX);
            // What was sent first is to be confirmed first.
            let unconfirmed = self.pending.values().next().map_or_else(Instant::now, |pending| pending.sent) + NATS_CONFIRM_MAX;
            // Every arm is safe to drop.
            tokio::select! {
                biased;
                () = stop.cancelled() => return End::Stopped,
                heard = wire.heard() => {
                    if let Some(end) = self.hear(&mut wire, heard).await {
                        return end;
                    }
                }
                count = self.incoming.recv_many(&mut records, room), if room > 0 => {
                    if count == 0 {
                        return End::Stopped;
                    }
                    for record in records.drain(..) {
                        self.take(&wire, record).await;
                    }
                }
                () = tokio::time::sleep_until(self.doubts.next().unwrap_or(unconfirmed)), if self.doubts.next().is_some() => {
                    self.publish_again(&wire).await;
                }
                () = tokio::time::sleep_until(unconfirmed), if !self.pending.is_empty() => {
                    self.give_up();
                    return End::Unconfirmed;
                }
            }
        }
    }

    async fn take(&mut self, wire: &Wire, record: Pending) {
        self.last += 1;
        let waits = self.doubts.holds(&record.subject, self.last);
        self.pending.insert(self.last, record);
        if !waits {
            self.publish(wire, self.last).await;
        }
    }

    async fn publish(&mut self, wire: &Wire, number: u64) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        pending.sent = Instant::now();
        pending.since.get_or_insert(pending.sent);
        let length = pending.length;
        let published = wire.publish(number, &pending.subject, pending.headers.map(), pending.payload.clone()).await;
        if published.is_err() {
            self.settle(number, Err(too_large(length, wire.max_payload())));
        }
    }

    /// What no stream took, though there is one.
    async fn publish_again(&mut self, wire: &Wire) {
        let now = Instant::now();
        for number in self.doubts.due(now) {
            if self.pending.get(&number).is_some_and(|pending| pending.since.is_some_and(|since| since + NATS_SEND_MAX <= now)) {
                self.settle(number, Err(failure::unanswered()));
            } else {
                self.publish(wire, number).await;
            }
        }
    }

    /// Whether there is a stream for the record, which the server says there is not.
    async fn doubt(&mut self, wire: &Wire, number: u64) {
        let Some(pending) = self.pending.get(&number) else { return };
        if let Some(question) = self.doubts.doubt(&pending.subject, number) {
            wire.ask(question, &pending.subject).await;
        }
    }

    fn no_stream(&mut self, numbers: Vec<u64>) {
        for number in numbers {
            let failure = self.pending.get(&number).map(|pending| failure::no_stream(&pending.subject));
            failure.into_iter().for_each(|failure| self.settle(number, Err(failure)));
        }
    }

    /// Takes what was heard, and what else there is to hear at once.
    async fn hear(&mut self, wire: &mut Wire, first: Heard) -> Option<End> {
        let mut next = Some(first);
        while let Some(heard) = next.take() {
            match heard {
                Heard::Answer(number, answer) => self.settle(number, answer),
                Heard::NoStream(number) => self.doubt(wire, number).await,
                Heard::Taken(question, is_taken) => {
                    let failed = self.doubts.told(question, is_taken, Instant::now());
                    self.no_stream(failed);
                }
                Heard::Denied(subject) if wire.is_question(&subject) => {
                    let failed = self.doubts.untold();
                    self.no_stream(failed);
                }
                Heard::Denied(subject) => self.deny(&subject),
                Heard::Lost => return Some(End::Lost(format!("nats.{} does not answer: the connection was lost", self.cluster.name))),
            }
            if self.settled.len() < NATS_REPORTS_MAX {
                next = wire.heard().now_or_never();
            }
        }
        None
    }

    fn deny(&mut self, subject: &str) {
        let numbers: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| pending.subject.as_str() == subject).map(|(number, _)| *number).collect();
        for number in numbers {
            let detail = format!("this client may not publish to {subject}");
            self.settle(number, Err(failure::refused(Reason::Unauthorized, detail)));
        }
    }

    /// What nobody has confirmed for so long that another attempt is no better than a way back through the source.
    fn give_up(&mut self) {
        let is_given_up = |pending: &Pending| pending.since.is_some_and(|since| since.elapsed() >= NATS_SEND_MAX);
        let numbers: Vec<u64> = self.pending.iter().filter(|(_, pending)| is_given_up(pending)).map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.settle(number, Err(failure::unanswered())));
        self.reports.put(&mut self.settled);
    }

    fn settle(&mut self, number: u64, answer: Result<u64, Failure>) {
        let Some(Pending { ticket, length, .. }) = self.pending.remove(&number) else { return };
        self.bytes.fetch_sub(length, Ordering::Relaxed);
        let (place, outcome) = match answer {
            Ok(sequence) => (Some((0, Offset(sequence))), Ok(())),
            Err(failure) => (None, Err(failure)),
        };
        self.settled.push(Report { ticket, place, outcome });
    }
}
