//! The target port on NATS: checks and encodes each record, and passes it to the publisher thread.
//!
//! | file | duty |
//! |---|---|
//! | `publisher` | publishes records in order and keeps them until they are acknowledged |
//! | `publish_connection` | one connection for publishing, and its events |
//! | `no_responders` | records whose subject has no stream at the moment |
//! | `publish_error` | maps the server's replies to delivery failures |

mod no_responders;
mod publish_connection;
mod publish_error;
mod publisher;

use self::publisher::{PendingRecord, Publisher};
use super::{Cluster, header};
use crate::broker::event_queue::DeliveryReports;
use crate::broker::{DeliveryFailure, DeliveryReport, Error, OutgoingRecord, SendResult, Target};
use crate::client_thread::ClientThread;
use crate::health::HealthPart;
use crate::limit::NATS_TARGET_BYTES_MAX;
use crate::model::header_name::{ORIGIN, SUBJECT};
use crate::model::{Reason, is_from_subject, is_subject};
use async_nats::Subject;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The target port on one cluster.
pub(crate) struct NatsTarget {
    in_flight_max: usize,
    /// Records that were accepted and whose report was not returned yet.
    in_flight: usize,
    /// Bytes of the accepted records that are not finished.
    pending_bytes: Arc<AtomicUsize>,
    /// The server's limit for headers and payload of one message.
    max_payload: Arc<AtomicUsize>,
    /// With `count` it makes the message id of a record that has none of its own.
    name: String,
    count: u64,
    /// `None` after [`Target::close`].
    records: Option<mpsc::Sender<PendingRecord>>,
    reports: Arc<DeliveryReports>,
    stop: CancellationToken,
    thread: ClientThread,
}

impl NatsTarget {
    /// Starts the publisher thread. The target accepts at most `in_flight_max` records without a
    /// report. `name` must differ between all clients. `part` shows the health of the cluster.
    pub(crate) fn new(
        cluster: &Cluster,
        in_flight_max: usize,
        name: String,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let (records, incoming) = mpsc::channel(in_flight_max);
        let reports = Arc::<DeliveryReports>::default();
        let stop = CancellationToken::new();
        let pending_bytes = Arc::<AtomicUsize>::default();
        let max_payload = Arc::new(AtomicUsize::new(usize::MAX));
        let publisher = Publisher {
            cluster: cluster.clone(),
            part,
            incoming,
            reports: reports.clone(),
            stop: stop.clone(),
            pending_bytes: pending_bytes.clone(),
            max_payload: max_payload.clone(),
            pending: Default::default(),
            last_number: 0,
            finished: Vec::new(),
            no_responders: Default::default(),
        };
        let thread = ClientThread::start("nats-target", move || publisher.run())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            in_flight_max,
            in_flight: 0,
            pending_bytes,
            max_payload,
            name,
            count: 0,
            records: Some(records),
            reports,
            stop,
            thread,
        })
    }

    /// Encodes a record as NATS carries it. `Err`: NATS cannot carry it, or not to this subject.
    fn encode(
        &mut self,
        record: &OutgoingRecord<'_>,
        ticket: u64,
    ) -> Result<PendingRecord, DeliveryFailure> {
        // Only a retry through the source names a partition. It goes to the original subject.
        let is_retry = record.partition.is_some();
        let subject = if is_retry {
            source_subject(record)
        } else {
            Some(record.topic)
        };
        let subject = subject
            .filter(|subject| is_subject(subject))
            .ok_or_else(|| {
                let subject = subject.unwrap_or(record.topic).escape_debug();
                publish_error::rejected(
                    Reason::InvalidTarget,
                    format!("`{subject}` is not a subject that can be sent to"),
                )
            })?;
        // A record from Kafka has no subject, so a subject header on it was set by its producer.
        let is_foreign = record
            .extra_header(ORIGIN)
            .is_some_and(|origin| !is_from_subject(origin));
        let left_out = (is_retry || is_foreign).then_some(SUBJECT);
        let mut headers = header::encode(record, left_out)
            .map_err(|detail| publish_error::rejected(Reason::InvalidHeader, detail))?;
        let id = record.message_id().unwrap_or_else(|| {
            self.count += 1;
            format!("{}/{}", self.name, self.count)
        });
        headers.push(header::MESSAGE_ID, &id);
        let payload = record.payload.unwrap_or_default();
        let length = headers.wire_length(payload.len());
        let max = self.max_payload.load(Ordering::Relaxed);
        if length > max {
            return Err(publish_error::too_large(length, max));
        }
        Ok(PendingRecord {
            ticket,
            subject: Subject::from(subject),
            headers,
            payload: Bytes::copy_from_slice(payload),
            length,
            first_sent: None,
            last_sent: Instant::now(),
            has_foreign_reply: false,
        })
    }
}

/// The subject from which the message was read.
fn source_subject<'a>(record: &OutgoingRecord<'a>) -> Option<&'a str> {
    let (_, subject) = record
        .headers
        .iter()
        .find(|(name, _)| *name == SUBJECT.as_bytes())?;
    std::str::from_utf8(subject?).ok()
}

#[async_trait(?Send)]
impl Target for NatsTarget {
    fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        if self.records.is_none() {
            return SendResult::Failed(publish_error::closed());
        }
        let is_full = self.in_flight >= self.in_flight_max
            || self.pending_bytes.load(Ordering::Relaxed) >= NATS_TARGET_BYTES_MAX;
        if is_full && self.in_flight > 0 {
            return SendResult::QueueFull;
        }
        let pending = match self.encode(record, ticket) {
            Ok(pending) => pending,
            Err(failure) => return SendResult::Failed(failure),
        };
        let length = pending.length;
        match self.records.as_ref().map(mpsc::Sender::try_reserve) {
            Some(Ok(permit)) => {
                // Added first, because the publisher subtracts it when it finishes the record.
                self.pending_bytes.fetch_add(length, Ordering::Relaxed);
                permit.send(pending);
            }
            Some(Err(mpsc::error::TrySendError::Full(()))) => return SendResult::QueueFull,
            _ => return SendResult::Failed(publish_error::closed()),
        }
        self.in_flight += 1;
        SendResult::Accepted
    }

    async fn next_reports(&mut self) -> Vec<DeliveryReport> {
        let reports = self.reports.take().await;
        self.in_flight -= reports.len();
        reports
    }

    async fn close(&mut self) {
        self.records = None;
        self.stop.cancel();
        self.thread.join().await;
    }
}

impl Drop for NatsTarget {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
