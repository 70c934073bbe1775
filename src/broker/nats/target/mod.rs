//! The target port on NATS: checks and encodes each record, and passes it to the publisher thread.

mod no_responders;
mod publish_connection;
mod publish_error;
mod publisher;

use self::publisher::Publisher;
use super::Cluster;
use super::header::{self, NatsHeaders};
use crate::broker::FailureKind::{ClientFailed, Rejected};
use crate::broker::event_queue::DeliveryReports;
use crate::broker::send_budget::SendBudget;
use crate::broker::{DeliveryFailure, DeliveryReport, Error, OutgoingRecord, SendResult, Target};
use crate::client_thread::ClientThread;
use crate::health::HealthPart;
use crate::model::header_name::{ORIGIN, SUBJECT};
use crate::model::{DeadLetterReason, is_from_subject, is_inbox, is_subject};
use async_nats::Subject;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) struct NatsTarget {
    /// Records that were accepted and whose report was not returned yet.
    in_flight: usize,
    /// The message id of a record that has none of its own is `<name>/<count>`.
    name: String,
    count: u64,
    shared: Arc<Shared>,
    /// Dropped before the thread, which waits for it.
    _stop: DropGuard,
    /// The channel has room for all records in flight.
    records: mpsc::Sender<PendingRecord>,
    thread: ClientThread,
}

/// The state that the target shares with its publisher.
struct Shared {
    reports: DeliveryReports,
    stop: CancellationToken,
    /// For the accepted records that are not finished.
    budget: Arc<SendBudget>,
}

/// A record whose delivery report is outstanding.
struct PendingRecord {
    ticket: u64,
    subject: Subject,
    headers: NatsHeaders,
    payload: Bytes,
    /// Bytes of headers and payload.
    bytes: usize,
    /// First publish since the cluster was last unreachable.
    first_sent: Option<Instant>,
    /// Publish on the current connection.
    last_sent: Instant,
    /// A program that is not a stream has replied to this record.
    has_foreign_reply: bool,
}

impl NatsTarget {
    /// Starts the publisher thread. The target accepts as many records without a report as fit into
    /// the budget. `name` must differ between all clients. `part` shows the health of the cluster.
    pub(crate) fn new(
        cluster: &Cluster,
        budget: Arc<SendBudget>,
        name: String,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let (records, incoming) = mpsc::channel(budget.records_max);
        let shared = Arc::new(Shared {
            reports: DeliveryReports::default(),
            stop: CancellationToken::new(),
            budget,
        });
        let publisher = Publisher::new(cluster.clone(), part, incoming, shared.clone());
        let thread = ClientThread::start("nats-target", move || publisher.run())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            in_flight: 0,
            name,
            count: 0,
            _stop: shared.stop.clone().drop_guard(),
            shared,
            records,
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
            record.headers.text(SUBJECT)
        } else {
            Some(record.topic)
        };
        let may_send = |subject: &&str| is_subject(subject) || is_inbox(subject);
        let Some(subject) = subject.filter(may_send) else {
            let subject = subject.unwrap_or(record.topic).escape_debug();
            let detail = format!("`{subject}` is not a subject that can be sent to");
            return Err(DeliveryFailure::new(
                Rejected,
                DeadLetterReason::InvalidTarget,
                detail,
            ));
        };
        // A record from Kafka has no subject, so a subject header on it was set by its producer.
        let is_foreign = record
            .extra_header(ORIGIN)
            .is_some_and(|origin| !is_from_subject(origin));
        let left_out = (is_retry || is_foreign).then_some(SUBJECT);
        let mut headers = header::encode(record, left_out).map_err(|detail| {
            DeliveryFailure::new(Rejected, DeadLetterReason::InvalidHeader, detail)
        })?;
        let id = record.message_id().unwrap_or_else(|| {
            self.count += 1;
            format!("{}/{}", self.name, self.count)
        });
        headers.push(header::MESSAGE_ID, &id);
        let payload = record.payload.unwrap_or_default();
        Ok(PendingRecord {
            ticket,
            subject: Subject::from(subject),
            bytes: headers.len() + payload.len(),
            headers,
            payload: Bytes::copy_from_slice(payload),
            first_sent: None,
            last_sent: Instant::now(),
            has_foreign_reply: false,
        })
    }
}

fn closed() -> SendResult {
    SendResult::Failed(DeliveryFailure::new(
        ClientFailed,
        DeadLetterReason::TimedOut,
        "the client is closed",
    ))
}

#[async_trait(?Send)]
impl Target for NatsTarget {
    fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        let shared = &self.shared;
        if shared.stop.is_cancelled() {
            return closed();
        }
        if self.in_flight >= shared.budget.records_max || !shared.budget.has_room() {
            return SendResult::QueueFull;
        }
        let pending = match self.encode(record, ticket) {
            Ok(pending) => pending,
            Err(failure) => return SendResult::Failed(failure),
        };
        // Added first, because the publisher subtracts it when it finishes the record.
        self.shared.budget.add(pending.bytes);
        if self.records.try_send(pending).is_err() {
            return closed();
        }
        self.in_flight += 1;
        SendResult::Accepted
    }

    async fn next_reports(&mut self) -> Vec<DeliveryReport> {
        let reports = self.shared.reports.take().await;
        self.in_flight -= reports.len();
        reports
    }

    async fn close(&mut self) {
        self.shared.stop.cancel();
        self.thread.join().await;
    }
}
