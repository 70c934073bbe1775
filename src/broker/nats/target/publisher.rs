//! Publishes records on the target's thread and keeps each until its stream acknowledges it.
//!
//! Order: if a connection is lost, or the oldest record has no acknowledgement after
//! [`NATS_ACK_TIMEOUT`], the publisher opens a new connection. There it publishes every
//! unacknowledged record again, in the original order. Each record has a `Nats-Msg-Id`, so a stream
//! ignores the copies that it stored before, as long as its duplicate window lasts.
//!
//! Timeout: a record fails after [`NATS_DELIVERY_TIMEOUT`] without an acknowledgement on working
//! connections. Time without a connection does not count.
//!
//! Bound: at most [`NATS_UNACKED_PUBLISHES_MAX`] records are published and not acknowledged.
//!
//! The publish futures of async-nats cannot replace this file. They live on a client that
//! reconnects by itself and then sends its buffered records before the ones that must be repeated,
//! which breaks the order. A future also ends with the first reply, even if the reply comes from a
//! program that is no stream. And each future costs a channel, a boxed timer and a JSON parse.

use super::no_responders::NoResponders;
use super::publish_connection::{PublishConnection, PublishEvent, TooLarge};
use super::publish_error;
use crate::broker::event_queue::DeliveryReports;
use crate::broker::nats::Cluster;
use crate::broker::nats::header::NatsHeaders;
use crate::broker::{DeliveryFailure, DeliveryReport};
use crate::health::HealthPart;
use crate::limit::{
    NATS_ACK_TIMEOUT, NATS_DELIVERY_TIMEOUT, NATS_RECONNECT_DELAY_MAX, NATS_REPORTS_PER_TURN_MAX,
    NATS_RETRY_DELAY, NATS_UNACKED_PUBLISHES_MAX,
};
use crate::model::{Offset, Reason};
use async_nats::Subject;
use bytes::Bytes;
use futures_util::FutureExt as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// A record whose delivery report is outstanding.
pub(super) struct PendingRecord {
    pub(super) ticket: u64,
    pub(super) subject: Subject,
    pub(super) headers: NatsHeaders,
    pub(super) payload: Bytes,
    /// Bytes of headers and payload on the wire.
    pub(super) length: usize,
    /// First publish since the cluster was last unreachable.
    pub(super) first_sent: Option<Instant>,
    /// Publish on the current connection.
    pub(super) last_sent: Instant,
    /// A program that is not a stream has replied to this record.
    pub(super) has_foreign_reply: bool,
}

/// The state of the publisher thread.
pub(super) struct Publisher {
    pub(super) cluster: Cluster,
    pub(super) part: HealthPart,
    pub(super) incoming: mpsc::Receiver<PendingRecord>,
    pub(super) reports: Arc<DeliveryReports>,
    pub(super) stop: CancellationToken,
    pub(super) pending_bytes: Arc<AtomicUsize>,
    pub(super) max_payload: Arc<AtomicUsize>,
    /// Unfinished records by number. Numbers ascend in the order in which records were accepted.
    pub(super) pending: BTreeMap<u64, PendingRecord>,
    pub(super) last_number: u64,
    /// Reports that the target has not received yet.
    pub(super) finished: Vec<DeliveryReport>,
    pub(super) no_responders: NoResponders,
}

/// Why the publisher leaves a connection.
enum ConnectionEnd {
    Stopped,
    Lost(String),
    /// The connection could not be opened.
    NotConnected(String),
    /// The connection works, but the oldest record was not acknowledged in time.
    NotAcknowledged,
}

impl Publisher {
    /// Runs until `stop` is cancelled or the target is dropped.
    pub(super) fn run(mut self) {
        while !self.stop.is_cancelled() {
            // One runtime per connection: dropping it ends all background work of a lost client.
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let reason = format!("nats.{}: no runtime: {error}", self.cluster.name);
                    return self.part.set_not_ready(reason);
                }
            };
            match runtime.block_on(self.run_connection()) {
                ConnectionEnd::Stopped => break,
                ConnectionEnd::NotAcknowledged => {}
                ConnectionEnd::Lost(reason) => self.pause(&runtime, reason, NATS_RETRY_DELAY),
                ConnectionEnd::NotConnected(reason) => {
                    self.pause(&runtime, reason, NATS_RECONNECT_DELAY_MAX);
                }
            }
        }
    }

    /// Waits before the next connection. Restarts the delivery timeout of every record.
    fn pause(&mut self, runtime: &Runtime, reason: String, delay: Duration) {
        self.part.set_not_ready(reason);
        for record in self.pending.values_mut() {
            record.first_sent = None;
        }
        let stop = self.stop.clone();
        runtime.block_on(async move { stop.run_until_cancelled(tokio::time::sleep(delay)).await });
    }

    /// Opens a connection and publishes on it until it ends. A stop gives up all pending records,
    /// so every wait inside can be dropped.
    async fn run_connection(&mut self) -> ConnectionEnd {
        let stop = self.stop.clone();
        let published = async {
            match PublishConnection::open(&self.cluster).await {
                Ok(connection) => self.publish_on(connection).await,
                Err(error) => ConnectionEnd::NotConnected(error.to_string()),
            }
        };
        stop.run_until_cancelled(published)
            .await
            .unwrap_or(ConnectionEnd::Stopped)
    }

    async fn publish_on(&mut self, mut connection: PublishConnection) -> ConnectionEnd {
        self.part.set_ready();
        self.max_payload
            .store(connection.max_payload(), Ordering::Relaxed);
        self.no_responders = NoResponders::default();
        let mut records = Vec::new();
        let mut result = self.publish_pending(&connection).await;
        loop {
            match result {
                Ok(()) => result = self.step(&mut connection, &mut records).await,
                Err(end) => return end,
            }
        }
    }

    /// Handles one event, one group of new records, or one timeout.
    async fn step(
        &mut self,
        connection: &mut PublishConnection,
        records: &mut Vec<PendingRecord>,
    ) -> Result<(), ConnectionEnd> {
        self.reports.push(&mut self.finished);
        let room = NATS_UNACKED_PUBLISHES_MAX
            .saturating_sub(self.pending.len())
            .min(NATS_REPORTS_PER_TURN_MAX);
        // The oldest record is acknowledged first.
        let oldest = self.pending.values().next();
        let ack_deadline =
            oldest.map_or_else(Instant::now, |record| record.last_sent) + NATS_ACK_TIMEOUT;
        let retry_at = self.no_responders.next_retry();
        // Every arm is safe to drop.
        tokio::select! {
            biased;
            event = connection.next_event() => self.on_events(connection, event).await,
            count = self.incoming.recv_many(records, room), if room > 0 => {
                if count == 0 {
                    return Err(ConnectionEnd::Stopped);
                }
                for record in records.drain(..) {
                    self.accept(connection, record).await?;
                }
                Ok(())
            }
            () = sleep_until(retry_at.unwrap_or(ack_deadline)), if retry_at.is_some() => {
                self.retry_blocked(connection).await
            }
            () = sleep_until(ack_deadline), if !self.pending.is_empty() => {
                if self.fail_foreign() {
                    return Ok(());
                }
                self.fail_expired();
                Err(ConnectionEnd::NotAcknowledged)
            }
        }
    }

    /// Publishes a new record, unless earlier records of its subject wait for a stream.
    async fn accept(
        &mut self,
        connection: &PublishConnection,
        record: PendingRecord,
    ) -> Result<(), ConnectionEnd> {
        self.last_number += 1;
        let number = self.last_number;
        let is_queued = self.no_responders.queue_if_blocked(&record.subject, number);
        self.pending.insert(number, record);
        if is_queued {
            return Ok(());
        }
        self.publish(connection, number).await
    }

    async fn publish_pending(
        &mut self,
        connection: &PublishConnection,
    ) -> Result<(), ConnectionEnd> {
        let numbers: Vec<u64> = self.pending.keys().copied().collect();
        for number in numbers {
            self.publish(connection, number).await?;
        }
        Ok(())
    }

    async fn publish(
        &mut self,
        connection: &PublishConnection,
        number: u64,
    ) -> Result<(), ConnectionEnd> {
        let Some(record) = self.pending.get_mut(&number) else {
            return Ok(());
        };
        record.last_sent = Instant::now();
        record.first_sent.get_or_insert(record.last_sent);
        let length = record.length;
        let publish = connection.publish(
            number,
            &record.subject,
            record.headers.to_map(),
            record.payload.clone(),
        );
        match tokio::time::timeout_at(record.last_sent + NATS_ACK_TIMEOUT, publish).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(TooLarge)) => {
                let max = connection.max_payload();
                self.finish(number, Err(publish_error::too_large(length, max)));
                Ok(())
            }
            Err(_) => Err(ConnectionEnd::Lost(format!(
                "nats.{} does not take published records: the connection is stuck",
                self.cluster.name
            ))),
        }
    }

    /// Publishes the records again that got "no responders" although a stream has their subject.
    async fn retry_blocked(&mut self, connection: &PublishConnection) -> Result<(), ConnectionEnd> {
        let now = Instant::now();
        for number in self.no_responders.take_due(now) {
            let record = self.pending.get(&number);
            if record.is_some_and(|record| record.is_expired(now)) {
                self.finish(number, Err(publish_error::not_acknowledged()));
            } else {
                self.publish(connection, number).await?;
            }
        }
        Ok(())
    }

    /// Asks whether a stream has the subject of a record that got "no responders".
    async fn on_no_responders(&mut self, connection: &PublishConnection, number: u64) {
        let Some(record) = self.pending.get(&number) else {
            return;
        };
        if let Some(lookup) = self.no_responders.block(&record.subject, number) {
            let asked = connection.look_up_stream(lookup, &record.subject);
            // If the connection is stuck, the missing acknowledgements end it.
            let _timed_out = tokio::time::timeout(NATS_ACK_TIMEOUT, asked).await;
        }
    }

    fn fail_without_stream(&mut self, numbers: Vec<u64>) {
        for number in numbers {
            if let Some(record) = self.pending.get(&number) {
                let failure = publish_error::no_stream(&record.subject);
                self.finish(number, Err(failure));
            }
        }
    }

    /// Handles an event and the events that are ready behind it.
    async fn on_events(
        &mut self,
        connection: &mut PublishConnection,
        first: PublishEvent,
    ) -> Result<(), ConnectionEnd> {
        let mut next = Some(first);
        while let Some(event) = next.take() {
            self.on_event(connection, event).await?;
            if self.finished.len() < NATS_REPORTS_PER_TURN_MAX {
                next = connection.next_event().now_or_never();
            }
        }
        Ok(())
    }

    async fn on_event(
        &mut self,
        connection: &PublishConnection,
        event: PublishEvent,
    ) -> Result<(), ConnectionEnd> {
        match event {
            PublishEvent::Acknowledged(number, result) => self.finish(number, result),
            PublishEvent::ForeignReply(number) => {
                if let Some(record) = self.pending.get_mut(&number) {
                    record.has_foreign_reply = true;
                }
            }
            PublishEvent::NoResponders(number) => self.on_no_responders(connection, number).await,
            PublishEvent::StreamLookup(lookup, has_stream) => {
                let now = Instant::now();
                let failed = self.no_responders.on_lookup(lookup, has_stream, now);
                self.fail_without_stream(failed);
            }
            PublishEvent::PermissionDenied(subject) if connection.is_lookup_subject(&subject) => {
                let failed = self.no_responders.on_lookup_denied();
                self.fail_without_stream(failed);
            }
            PublishEvent::PermissionDenied(subject) => self.fail_denied(&subject),
            PublishEvent::Disconnected => {
                return Err(ConnectionEnd::Lost(format!(
                    "nats.{} does not answer: the connection was lost",
                    self.cluster.name
                )));
            }
        }
        Ok(())
    }

    fn fail_denied(&mut self, subject: &str) {
        for number in self.numbers(|record| record.subject.as_str() == subject) {
            let detail = format!("this client may not publish to {subject}");
            let failure = publish_error::rejected(Reason::Unauthorized, detail);
            self.finish(number, Err(failure));
        }
    }

    /// Fails the overdue records to which only another program replied. Returns whether there were
    /// any: then the connection is not the reason for the timeout.
    fn fail_foreign(&mut self) -> bool {
        let numbers = self.numbers(|record| {
            record.has_foreign_reply && record.last_sent.elapsed() >= NATS_ACK_TIMEOUT
        });
        for number in &numbers {
            self.finish(*number, Err(publish_error::not_a_stream()));
        }
        !numbers.is_empty()
    }

    /// Fails the records whose delivery timeout has passed. The timer retries them.
    fn fail_expired(&mut self) {
        let now = Instant::now();
        for number in self.numbers(|record| record.is_expired(now)) {
            self.finish(number, Err(publish_error::not_acknowledged()));
        }
        self.reports.push(&mut self.finished);
    }

    fn numbers(&self, is_wanted: impl Fn(&PendingRecord) -> bool) -> Vec<u64> {
        self.pending
            .iter()
            .filter(|(_, record)| is_wanted(record))
            .map(|(number, _)| *number)
            .collect()
    }

    /// Removes a record and reports its result: the stream sequence, or the failure.
    fn finish(&mut self, number: u64, result: Result<u64, DeliveryFailure>) {
        let Some(PendingRecord { ticket, length, .. }) = self.pending.remove(&number) else {
            return;
        };
        self.pending_bytes.fetch_sub(length, Ordering::Relaxed);
        let (position, outcome) = match result {
            Ok(sequence) => (Some((0, Offset(sequence))), Ok(())),
            Err(failure) => (None, Err(failure)),
        };
        self.finished.push(DeliveryReport {
            ticket,
            position,
            outcome,
        });
    }
}

impl PendingRecord {
    fn is_expired(&self, now: Instant) -> bool {
        self.first_sent
            .is_some_and(|sent| sent + NATS_DELIVERY_TIMEOUT <= now)
    }
}
