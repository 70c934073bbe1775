//! What is under way with a target, on the target's thread: published and not confirmed, by one connection after the other.
//!
//! Only the answer of a stream proves that it has a record. A record that has none when the connection is lost, or after
//! [`NATS_ACK_TIMEOUT`], is sent again by another connection, along with all behind it and in their order. Each bears a `Nats-Msg-Id`, so that what the
//! stream has already is a no-op for as long as its duplicate window lasts. What stays unanswered by a cluster that does answer others is
//! given up after [`NATS_DELIVERY_TIMEOUT`]; while the cluster is away, nothing is.

use super::doubt::NoResponders;
use super::header::NatsHeaders;
use super::wire::{PublishConnection, PublishEvent};
use super::{Cluster, failure};
use crate::broker::delivery_reports::DeliveryReports;
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
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A record that is not settled.
pub(super) struct PendingRecord {
    pub(super) ticket: u64,
    pub(super) subject: Subject,
    pub(super) headers: NatsHeaders,
    pub(super) payload: Bytes,
    pub(super) length: usize,
    /// When it was sent first, over the connections of a cluster that answers.
    pub(super) first_sent: Option<Instant>,
    /// When it was sent by this connection.
    pub(super) last_sent: Instant,
    /// Whether some program answered to it that is no stream.
    pub(super) has_foreign_reply: bool,
}

/// What runs on the target's thread.
pub(super) struct Publisher {
    pub(super) cluster: Cluster,
    pub(super) part: HealthPart,
    pub(super) incoming: mpsc::Receiver<PendingRecord>,
    pub(super) reports: Arc<DeliveryReports>,
    pub(super) stop: CancellationToken,
    pub(super) pending_bytes: Arc<AtomicUsize>,
    pub(super) max_payload: Arc<AtomicUsize>,
    /// By their numbers, in the order in which they were sent.
    pub(super) pending: BTreeMap<u64, PendingRecord>,
    pub(super) last_number: u64,
    pub(super) finished: Vec<DeliveryReport>,
    pub(super) no_responders: NoResponders,
}

/// Why a connection is given up.
enum ConnectionEnd {
    Stopped,
    Lost(String),
    /// There was none.
    NotConnected(String),
    /// It is there, and the stream of what was sent first does not confirm it.
    Unconfirmed,
}

impl Publisher {
    pub(super) fn run(mut self) {
        while !self.stop.is_cancelled() {
            // One for each connection: with it ends whatever the client library still has to do for one that is lost.
            let runtime = match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
            {
                Ok(runtime) => runtime,
                Err(error) => {
                    return self
                        .part
                        .set_not_ready(format!("nats.{}: no runtime: {error}", self.cluster.name));
                }
            };
            match runtime.block_on(self.run_connection()) {
                ConnectionEnd::Stopped => break,
                ConnectionEnd::Unconfirmed => {}
                ConnectionEnd::Lost(why) => self.pause(&runtime, why, NATS_RETRY_DELAY),
                ConnectionEnd::NotConnected(why) => {
                    self.pause(&runtime, why, NATS_RECONNECT_DELAY_MAX)
                }
            }
        }
    }

    fn pause(&mut self, runtime: &Runtime, why: String, length: Duration) {
        self.part.set_not_ready(why);
        self.pending
            .values_mut()
            .for_each(|pending| pending.first_sent = None);
        let stop = self.stop.clone();
        runtime.block_on(async move { stop.run_until_cancelled(tokio::time::sleep(length)).await });
    }

    /// Whatever it waits for can be dropped: with a stop all that is under way is given up.
    async fn run_connection(&mut self) -> ConnectionEnd {
        let stop = self.stop.clone();
        let served = async {
            match PublishConnection::open(&self.cluster).await {
                Ok(wire) => self.publish_on(wire).await,
                Err(error) => ConnectionEnd::NotConnected(error.to_string()),
            }
        };
        stop.run_until_cancelled(served)
            .await
            .unwrap_or(ConnectionEnd::Stopped)
    }

    async fn publish_on(&mut self, mut wire: PublishConnection) -> ConnectionEnd {
        self.part.set_ready();
        self.max_payload
            .store(wire.max_payload(), Ordering::Relaxed);
        self.no_responders = NoResponders::default();
        let mut records = Vec::new();
        let mut turned = self
            .publish_all(&wire, self.pending.keys().copied().collect())
            .await;
        loop {
            match turned {
                Ok(()) => turned = self.step(&mut wire, &mut records).await,
                Err(end) => return end,
            }
        }
    }

    async fn step(
        &mut self,
        wire: &mut PublishConnection,
        records: &mut Vec<PendingRecord>,
    ) -> Result<(), ConnectionEnd> {
        self.reports.push(&mut self.finished);
        let room = NATS_UNACKED_PUBLISHES_MAX
            .saturating_sub(self.pending.len())
            .min(NATS_REPORTS_PER_TURN_MAX);
        // What was sent first is to be confirmed first.
        let unconfirmed = self
            .pending
            .values()
            .next()
            .map_or_else(Instant::now, |pending| pending.last_sent)
            + NATS_ACK_TIMEOUT;
        // Every arm is safe to drop.
        tokio::select! {
            biased;
            heard = wire.next_event() => self.on_events(wire, heard).await,
            count = self.incoming.recv_many(records, room), if room > 0 => {
                if count == 0 {
                    return Err(ConnectionEnd::Stopped);
                }
                for record in records.drain(..) {
                    self.accept(wire, record).await?;
                }
                Ok(())
            }
            () = tokio::time::sleep_until(self.no_responders.next_retry().unwrap_or(unconfirmed)), if self.no_responders.next_retry().is_some() => {
                self.retry_blocked(wire).await
            }
            () = tokio::time::sleep_until(unconfirmed), if !self.pending.is_empty() => {
                if self.fail_foreign() {
                    return Ok(());
                }
                self.fail_expired();
                Err(ConnectionEnd::Unconfirmed)
            }
        }
    }

    async fn accept(
        &mut self,
        wire: &PublishConnection,
        record: PendingRecord,
    ) -> Result<(), ConnectionEnd> {
        self.last_number += 1;
        let waits = self
            .no_responders
            .queue_if_blocked(&record.subject, self.last_number);
        self.pending.insert(self.last_number, record);
        if waits {
            Ok(())
        } else {
            self.publish(wire, self.last_number).await
        }
    }

    async fn publish_all(
        &mut self,
        wire: &PublishConnection,
        numbers: Vec<u64>,
    ) -> Result<(), ConnectionEnd> {
        for number in numbers {
            self.publish(wire, number).await?;
        }
        Ok(())
    }

    async fn publish(
        &mut self,
        wire: &PublishConnection,
        number: u64,
    ) -> Result<(), ConnectionEnd> {
        let Some(pending) = self.pending.get_mut(&number) else {
            return Ok(());
        };
        pending.last_sent = Instant::now();
        pending.first_sent.get_or_insert(pending.last_sent);
        let length = pending.length;
        let publish = wire.publish(
            number,
            &pending.subject,
            pending.headers.to_map(),
            pending.payload.clone(),
        );
        match tokio::time::timeout_at(pending.last_sent + NATS_ACK_TIMEOUT, publish).await {
            Ok(Ok(())) => {}
            Ok(Err(())) => self.finish(number, Err(too_large(length, wire.max_payload()))),
            Err(_) => {
                return Err(ConnectionEnd::Lost(format!(
                    "nats.{} takes nothing",
                    self.cluster.name
                )));
            }
        }
        Ok(())
    }

    /// What no stream took, though there is one.
    async fn retry_blocked(&mut self, wire: &PublishConnection) -> Result<(), ConnectionEnd> {
        let now = Instant::now();
        for number in self.no_responders.take_due(now) {
            if self.pending.get(&number).is_some_and(|pending| {
                pending
                    .first_sent
                    .is_some_and(|since| since + NATS_DELIVERY_TIMEOUT <= now)
            }) {
                self.finish(number, Err(failure::not_confirmed()));
            } else {
                self.publish(wire, number).await?;
            }
        }
        Ok(())
    }

    /// Whether there is a stream for the record, which the server says there is not.
    async fn on_no_responders(&mut self, wire: &PublishConnection, number: u64) {
        let Some(pending) = self.pending.get(&number) else {
            return;
        };
        if let Some(question) = self.no_responders.block(&pending.subject, number) {
            // In vain where the connection takes nothing: that is noticed by what was sent over it.
            let _in_vain = tokio::time::timeout(
                NATS_ACK_TIMEOUT,
                wire.look_up_stream(question, &pending.subject),
            )
            .await;
        }
    }

    fn fail_without_stream(&mut self, numbers: Vec<u64>) {
        for number in numbers {
            let failure = self
                .pending
                .get(&number)
                .map(|pending| failure::no_stream(&pending.subject));
            failure
                .into_iter()
                .for_each(|failure| self.finish(number, Err(failure)));
        }
    }

    /// Takes what was heard, and what else there is to hear at once.
    async fn on_events(
        &mut self,
        wire: &mut PublishConnection,
        first: PublishEvent,
    ) -> Result<(), ConnectionEnd> {
        let mut next = Some(first);
        while let Some(heard) = next.take() {
            match heard {
                PublishEvent::Acknowledged(number, answer) => self.finish(number, answer),
                PublishEvent::ForeignReply(number) => self
                    .pending
                    .get_mut(&number)
                    .into_iter()
                    .for_each(|pending| pending.has_foreign_reply = true),
                PublishEvent::NoResponders(number) => self.on_no_responders(wire, number).await,
                PublishEvent::StreamLookup(question, is_taken) => {
                    let failed = self
                        .no_responders
                        .on_lookup(question, is_taken, Instant::now());
                    self.fail_without_stream(failed);
                }
                PublishEvent::PermissionDenied(subject) if wire.is_lookup_subject(&subject) => {
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
            if self.finished.len() < NATS_REPORTS_PER_TURN_MAX {
                next = wire.next_event().now_or_never();
            }
        }
        Ok(())
    }

    fn fail_denied(&mut self, subject: &str) {
        let numbers: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.subject.as_str() == subject)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            let detail = format!("this client may not publish to {subject}");
            self.finish(number, Err(failure::refused(Reason::Unauthorized, detail)));
        }
    }

    /// What is waited for in vain because no stream, but some other program, answers on its subject. Whether there was any: so the connection is not
    /// the reason.
    fn fail_foreign(&mut self) -> bool {
        let is_over = |pending: &PendingRecord| {
            pending.has_foreign_reply && pending.last_sent.elapsed() >= NATS_ACK_TIMEOUT
        };
        let numbers: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| is_over(pending))
            .map(|(number, _)| *number)
            .collect();
        numbers
            .iter()
            .for_each(|number| self.finish(*number, Err(failure::not_a_stream())));
        !numbers.is_empty()
    }

    /// What nobody has confirmed for so long that another attempt is no better than a way back through the source.
    fn fail_expired(&mut self) {
        let is_given_up = |pending: &PendingRecord| {
            pending
                .first_sent
                .is_some_and(|since| since.elapsed() >= NATS_DELIVERY_TIMEOUT)
        };
        let numbers: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| is_given_up(pending))
            .map(|(number, _)| *number)
            .collect();
        numbers
            .into_iter()
            .for_each(|number| self.finish(number, Err(failure::not_confirmed())));
        self.reports.push(&mut self.finished);
    }

    fn finish(&mut self, number: u64, answer: Result<u64, DeliveryFailure>) {
        let Some(PendingRecord { ticket, length, .. }) = self.pending.remove(&number) else {
            return;
        };
        self.pending_bytes.fetch_sub(length, Ordering::Relaxed);
        let (place, outcome) = match answer {
            Ok(sequence) => (Some((0, Offset(sequence))), Ok(())),
            Err(failure) => (None, Err(failure)),
        };
        self.finished.push(DeliveryReport {
            ticket,
            position: place,
            outcome,
        });
    }
}

pub(super) fn too_large(length: usize, max: usize) -> DeliveryFailure {
    failure::refused(
        Reason::TooLarge,
        format!("headers and payload have {length} bytes; the server takes {max} (max_payload)"),
    )
}
