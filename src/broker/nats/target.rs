//! The target port on NATS: what becomes of a record before it is published, and the thread on which `window` does so.

use super::doubt::Doubts;
use super::window::{Pending, Window, too_large};
use super::{Cluster, failure, header};
use crate::broker::reports::Reports;
use crate::broker::thread::Thread;
use crate::broker::{Error, Failure, Outgoing, Report, Sent, Target};
use crate::health::Part;
use crate::limit::NATS_SEND_BYTES_MAX;
use crate::model::header_name::{ORIGIN, SUBJECT};
use crate::model::{Reason, is_of_subject, is_subject};
use async_nats::Subject;
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

impl NatsTarget {
    /// Takes over at most `in_flight_max` records that were not reported on yet. `name` is one that no other client has. `part` tells of
    /// the cluster.
    pub(crate) fn new(
        cluster: &Cluster,
        in_flight_max: usize,
        name: String,
        part: Part,
    ) -> Result<Self, Error> {
        let (records, incoming) = mpsc::channel(in_flight_max);
        let (reports, stop) = (Arc::<Reports>::default(), CancellationToken::new());
        let (bytes, max_payload) = (
            Arc::<AtomicUsize>::default(),
            Arc::new(AtomicUsize::new(usize::MAX)),
        );
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
        let thread = Thread::start("nats-target", move || window.serve())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            in_flight_max,
            in_flight: 0,
            bytes,
            max_payload,
            name,
            count: 0,
            records: Some(records),
            reports,
            stop,
            thread,
        })
    }

    /// What a record is published as, or why it cannot be.
    fn pending(&mut self, record: &Outgoing<'_>, ticket: u64) -> Result<Pending, Failure> {
        // Back to a source: where the message came by.
        let back = record.partition.is_some();
        let subject = if back {
            came_by(record)
        } else {
            Some(record.topic)
        };
        let subject = subject
            .filter(|subject| is_subject(subject))
            .ok_or_else(|| {
                let subject = subject.unwrap_or(record.topic);
                failure::refused(
                    Reason::InvalidTarget,
                    format!(
                        "`{}` is not a subject that can be sent to",
                        subject.escape_debug()
                    ),
                )
            })?;
        // Of a record that came by no subject it is somebody's invention.
        let is_invented = record
            .label(ORIGIN)
            .is_some_and(|origin| !is_of_subject(origin));
        let left_out = (back || is_invented).then_some(SUBJECT);
        let headers = header::outgoing(record, left_out)
            .map_err(|detail| failure::refused(Reason::InvalidHeader, detail));
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
            has_foreign_answer: false,
        })
    }
}

fn came_by<'a>(record: &Outgoing<'a>) -> Option<&'a str> {
    let (_, subject) = record
        .headers
        .iter()
        .find(|(name, _)| *name == SUBJECT.as_bytes())?;
    std::str::from_utf8(subject?).ok()
}

#[async_trait(?Send)]
impl Target for NatsTarget {
    fn send(&mut self, record: &Outgoing<'_>, ticket: u64) -> Sent {
        if self.records.is_none() {
            return Sent::Failed(failure::closed());
        }
        let is_full = self.in_flight >= self.in_flight_max
            || self.bytes.load(Ordering::Relaxed) >= NATS_SEND_BYTES_MAX;
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
