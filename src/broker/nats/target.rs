//! The target port on NATS: what becomes of a record before it is published, and the thread on which `window` does so.

use super::doubt::NoResponders;
use super::window::{PendingRecord, Publisher, too_large};
use super::{Cluster, failure, header};
use crate::broker::client_thread::ClientThread;
use crate::broker::delivery_reports::DeliveryReports;
use crate::broker::{DeliveryFailure, DeliveryReport, Error, OutgoingRecord, SendResult, Target};
use crate::health::HealthPart;
use crate::limit::NATS_TARGET_BYTES_MAX;
use crate::model::header_name::{ORIGIN, SUBJECT};
use crate::model::{Reason, is_from_subject, is_subject};
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
    pending_bytes: Arc<AtomicUsize>,
    max_payload: Arc<AtomicUsize>,
    /// Names what bears no id, along with a count.
    name: String,
    count: u64,
    /// `None`: closed.
    records: Option<mpsc::Sender<PendingRecord>>,
    reports: Arc<DeliveryReports>,
    stop: CancellationToken,
    thread: ClientThread,
}

impl NatsTarget {
    /// Takes over at most `in_flight_max` records that were not reported on yet. `name` is one that no other client has. `part` tells of
    /// the cluster.
    pub(crate) fn new(
        cluster: &Cluster,
        in_flight_max: usize,
        name: String,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let (records, incoming) = mpsc::channel(in_flight_max);
        let (reports, stop) = (Arc::<DeliveryReports>::default(), CancellationToken::new());
        let (bytes, max_payload) = (
            Arc::<AtomicUsize>::default(),
            Arc::new(AtomicUsize::new(usize::MAX)),
        );
        let window = Publisher {
            cluster: cluster.clone(),
            part,
            incoming,
            reports: reports.clone(),
            stop: stop.clone(),
            pending_bytes: bytes.clone(),
            max_payload: max_payload.clone(),
            pending: BTreeMap::new(),
            last_number: 0,
            finished: Vec::new(),
            no_responders: NoResponders::default(),
        };
        let thread = ClientThread::start("nats-target", move || window.run())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            in_flight_max,
            in_flight: 0,
            pending_bytes: bytes,
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
    fn encode(
        &mut self,
        record: &OutgoingRecord<'_>,
        ticket: u64,
    ) -> Result<PendingRecord, DeliveryFailure> {
        // Back to a source: where the message came by.
        let back = record.partition.is_some();
        let subject = if back {
            source_subject(record)
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
            .extra_header(ORIGIN)
            .is_some_and(|origin| !is_from_subject(origin));
        let left_out = (back || is_invented).then_some(SUBJECT);
        let headers = header::encode(record, left_out)
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
            return SendResult::Failed(failure::closed());
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
            Some(Ok(room)) => {
                // Before the thread can take it off again.
                self.pending_bytes.fetch_add(length, Ordering::Relaxed);
                room.send(pending);
            }
            Some(Err(mpsc::error::TrySendError::Full(()))) => return SendResult::QueueFull,
            _ => return SendResult::Failed(failure::closed()),
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
