//! Publishes records on the target's thread and keeps each until its stream acknowledges it.
//!
//! Order: if a connection is lost, or the oldest record has no acknowledgement after
//! [`NATS_REQUEST_TIMEOUT`], the publisher opens a new connection. There it publishes every
//! unacknowledged record again, in the original order. Each record has a `Nats-Msg-Id`, so a stream
//! ignores the copies that it stored before, as long as its duplicate window lasts.
//!
//! Timeout: a record fails after [`NATS_DELIVERY_TIMEOUT`] without an acknowledgement on working
//! connections. Time without a connection does not count.
//!
//! Bound: at most [`NATS_UNACKED_PUBLISHES_MAX`] records are published and not acknowledged.
//!
//! The publish futures of async-nats cannot replace this file. Their client reconnects by itself
//! and sends its buffered records before the ones to repeat, which breaks the order. A future also
//! ends with the first reply, even of a program that is no stream. And each costs a channel, a
//! boxed timer and an inbox, which the row `nats` of the bench would show.

use super::no_responders::NoResponders;
use super::publish_connection::{LOOKUP_PREFIX, Notice, PublishConnection};
use super::publish_error::{may_have_stream, parse_ack};
use super::{PendingRecord, Shared};
use crate::broker::FailureKind::{MaybeDelivered, NotDelivered, Rejected};
use crate::broker::nats::Cluster;
use crate::broker::nats::limit::{
    NATS_DELIVERY_TIMEOUT, NATS_MESSAGES_PER_TURN_MAX, NATS_RECONNECT_DELAY_MAX,
    NATS_REQUEST_TIMEOUT, NATS_RETRY_DELAY, NATS_UNACKED_PUBLISHES_MAX,
};
use crate::broker::{DeliveryFailure, DeliveryReport};
use crate::health::HealthPart;
use crate::model::{DeadLetterReason, Offset, is_inbox};
use async_nats::{Message, StatusCode};
use futures_util::future::OptionFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

/// The state of the publisher thread.
pub(super) struct Publisher {
    cluster: Cluster,
    part: HealthPart,
    incoming: mpsc::Receiver<PendingRecord>,
    shared: Arc<Shared>,
    /// Unfinished records by number. Numbers ascend in the order in which records were accepted.
    pending: BTreeMap<u64, PendingRecord>,
    last_number: u64,
    /// Reports that the target has not received yet.
    finished: Vec<DeliveryReport>,
    no_responders: NoResponders,
}

/// Why the publisher leaves a connection.
enum ConnectionEnd {
    Lost(String),
    /// The connection works, but the oldest record was not acknowledged in time.
    NotAcknowledged,
}

impl Publisher {
    pub(super) fn new(
        cluster: Cluster,
        part: HealthPart,
        incoming: mpsc::Receiver<PendingRecord>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            cluster,
            part,
            incoming,
            shared,
            pending: BTreeMap::new(),
            last_number: 0,
            finished: Vec::new(),
            no_responders: NoResponders::default(),
        }
    }

    /// Runs until `stop` is cancelled. A stop gives up all pending records.
    pub(super) fn run(mut self) {
        let stop = self.shared.stop.clone();
        while !stop.is_cancelled() {
            // One runtime per connection: dropping it ends all background work of a lost client.
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let reason = format!("nats.{}: no runtime: {error}", self.cluster.name);
                    self.part.set_not_ready(reason);
                    std::thread::park_timeout(NATS_RECONNECT_DELAY_MAX);
                    continue;
                }
            };
            runtime.block_on(stop.run_until_cancelled(self.run_connection()));
        }
    }

    /// Opens a connection and publishes on it until it ends.
    async fn run_connection(&mut self) {
        let (reason, delay) = match PublishConnection::open(&self.cluster).await {
            Ok(mut connection) => {
                let Err(end) = self.publish_on(&mut connection).await;
                self.shared.reports.push(&mut self.finished);
                match end {
                    ConnectionEnd::NotAcknowledged => return,
                    ConnectionEnd::Lost(reason) => (reason, NATS_RETRY_DELAY),
                }
            }
            Err(error) => (error.to_string(), NATS_RECONNECT_DELAY_MAX),
        };
        self.part.set_not_ready(reason);
        for record in self.pending.values_mut() {
            record.first_sent = None;
        }
        tokio::time::sleep(delay).await;
    }

    async fn publish_on(
        &mut self,
        connection: &mut PublishConnection,
    ) -> Result<Infallible, ConnectionEnd> {
        self.part.set_ready();
        self.no_responders = NoResponders::default();
        let unacknowledged: Vec<u64> = self.pending.keys().copied().collect();
        for number in unacknowledged {
            self.publish(connection, number).await?;
        }
        let mut records = Vec::new();
        loop {
            self.step(connection, &mut records).await?;
        }
    }

    /// Handles one event, one group of new records, or one timeout.
    async fn step(
        &mut self,
        connection: &mut PublishConnection,
        records: &mut Vec<PendingRecord>,
    ) -> Result<(), ConnectionEnd> {
        self.shared.reports.push(&mut self.finished);
        let room = NATS_UNACKED_PUBLISHES_MAX
            .saturating_sub(self.pending.len())
            .min(NATS_MESSAGES_PER_TURN_MAX);
        // It is enough to watch the oldest record, which was also published first. Only while its
        // subject is blocked, it is published again and again. A later record without an
        // acknowledgement then fails in `retry_blocked`, after its delivery timeout.
        let oldest = self.pending.values().next();
        let ack_deadline = oldest.map(|record| record.last_sent + NATS_REQUEST_TIMEOUT);
        let ack_timeout = OptionFuture::from(ack_deadline.map(sleep_until));
        let retry = OptionFuture::from(self.no_responders.next_retry().map(sleep_until));
        // Every arm is safe to drop.
        tokio::select! {
            biased;
            Some(reply) = connection.replies.next() => {
                self.on_reply(connection, &reply).await;
                while self.finished.len() < NATS_MESSAGES_PER_TURN_MAX
                    && let Some(Some(reply)) = connection.replies.next().now_or_never()
                {
                    self.on_reply(connection, &reply).await;
                }
            }
            notice = connection.notices.recv() => match notice {
                Some(Notice::PermissionDenied(subject)) => self.on_denied(connection, &subject),
                Some(Notice::Disconnected) | None => {
                    return Err(self.lost("does not answer: the connection was lost"));
                }
            },
            count = self.incoming.recv_many(records, room), if room > 0 => {
                if count == 0 {
                    // The target was dropped and has cancelled `stop`.
                    std::future::pending::<()>().await;
                }
                for record in records.drain(..) {
                    self.last_number += 1;
                    let number = self.last_number;
                    let is_queued = self.no_responders.queue_if_blocked(&record.subject, number);
                    self.pending.insert(number, record);
                    if !is_queued {
                        self.publish(connection, number).await?;
                    }
                }
            }
            Some(()) = retry => self.retry_blocked(connection).await?,
            // A reply of another program shows that the connection is not the reason.
            Some(()) = ack_timeout => if !self.fail_foreign() {
                self.fail_expired();
                return Err(ConnectionEnd::NotAcknowledged);
            },
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
        let deadline = record.last_sent + NATS_REQUEST_TIMEOUT;
        // The inbox of a requester is in no stream, so nothing acknowledges the record.
        let is_unacknowledged = is_inbox(&record.subject);
        match timeout_at(deadline, connection.publish(number, record)).await {
            Ok(Ok(())) if is_unacknowledged => {
                self.finish(number, Ok(0));
                Ok(())
            }
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => {
                self.finish(number, Err(failure));
                Ok(())
            }
            Err(_) => Err(self.lost("does not take published records: the connection is stuck")),
        }
    }

    fn lost(&self, reason: &str) -> ConnectionEnd {
        ConnectionEnd::Lost(format!("nats.{} {reason}", self.cluster.name))
    }

    /// Fails all records that are too old, and publishes those again that got "no responders"
    /// although a stream has their subject.
    async fn retry_blocked(&mut self, connection: &PublishConnection) -> Result<(), ConnectionEnd> {
        self.fail_expired();
        for number in self.no_responders.take_due(Instant::now()) {
            self.publish(connection, number).await?;
        }
        Ok(())
    }

    async fn on_reply(&mut self, connection: &PublishConnection, reply: &Message) {
        let Some(token) = reply.subject.strip_prefix(connection.inbox.as_str()) else {
            return;
        };
        let lookup = token.strip_prefix(LOOKUP_PREFIX);
        if let Some(lookup) = lookup.and_then(|lookup| lookup.parse().ok()) {
            let (has_stream, now) = (may_have_stream(&reply.payload), Instant::now());
            let failed = self.no_responders.on_lookup(lookup, has_stream, now);
            return self.fail_without_stream(failed);
        }
        let Ok(number) = token.parse() else {
            return;
        };
        if reply.status == Some(StatusCode::NO_RESPONDERS) {
            if let Some(record) = self.pending.get(&number)
                && let Some(lookup) = self.no_responders.block(&record.subject, number)
            {
                connection.look_up_stream(lookup, &record.subject).await;
            }
        } else if let Some(result) = parse_ack(&reply.payload) {
            self.finish(number, result);
        } else if let Some(record) = self.pending.get_mut(&number) {
            record.has_foreign_reply = true;
        }
    }

    /// This client may not publish to a subject.
    fn on_denied(&mut self, connection: &PublishConnection, subject: &str) {
        if subject == connection.lookup_subject {
            let failed = self.no_responders.on_lookup_denied();
            return self.fail_without_stream(failed);
        }
        let detail = format!("this client may not publish to {subject}");
        let failure = DeliveryFailure::new(Rejected, DeadLetterReason::Unauthorized, detail);
        self.fail_where(&failure, |record| record.subject.as_str() == subject);
    }

    fn fail_without_stream(&mut self, numbers: Vec<u64>) {
        for number in numbers {
            if let Some(record) = self.pending.get(&number) {
                let detail = format!("no stream takes the subject {}", record.subject);
                let failure =
                    DeliveryFailure::new(NotDelivered, DeadLetterReason::UnknownTarget, detail);
                self.finish(number, Err(failure));
            }
        }
    }

    /// Fails the overdue records to which only another program replied. Returns whether there were
    /// any.
    fn fail_foreign(&mut self) -> bool {
        let detail = "a program that is not a stream answers on the subject";
        let failure = DeliveryFailure::new(NotDelivered, DeadLetterReason::UnknownTarget, detail);
        self.fail_where(&failure, |record| {
            record.has_foreign_reply && record.last_sent.elapsed() >= NATS_REQUEST_TIMEOUT
        })
    }

    /// Fails the records whose delivery timeout has passed. The timer retries them.
    fn fail_expired(&mut self) {
        let detail = "the stream did not acknowledge it in time";
        let failure = DeliveryFailure::new(MaybeDelivered, DeadLetterReason::TimedOut, detail);
        self.fail_where(&failure, |record| {
            let first_sent = record.first_sent;
            first_sent.is_some_and(|sent| sent.elapsed() >= NATS_DELIVERY_TIMEOUT)
        });
    }

    /// Fails the records that `has_failed` selects. Returns whether there were any.
    fn fail_where(
        &mut self,
        failure: &DeliveryFailure,
        has_failed: impl Fn(&PendingRecord) -> bool,
    ) -> bool {
        let pending = self.pending.iter();
        let failed = pending.filter(|(_, record)| has_failed(record));
        let failed: Vec<u64> = failed.map(|(number, _)| *number).collect();
        for number in &failed {
            self.finish(*number, Err(failure.clone()));
        }
        !failed.is_empty()
    }

    /// Removes a record and reports its result: the stream sequence, or the failure.
    fn finish(&mut self, number: u64, result: Result<u64, DeliveryFailure>) {
        let Some(record) = self.pending.remove(&number) else {
            return;
        };
        self.shared.budget.remove(record.bytes);
        self.finished.push(DeliveryReport {
            ticket: record.ticket,
            position: result.as_ref().ok().map(|sequence| (0, Offset(*sequence))),
            outcome: result.map(|_| ()),
        });
    }
}
