//! Sends the claimed messages of one shard in order, for plain and for transactional delivery.

use super::in_flight::{ClaimedBatch, Ticket, next_batch};
use super::outcome::ShardContext;
use super::producers::{Producers, Via};
use super::record::{Destination, RecordBuilder, RecordContext, Reroute};
use crate::broker::{DeliveryFailure, FailureKind, SendResult};
use crate::limit::RESEND_DELAY_MAX;
use crate::model::{Cursor, Reason, Timestamp};
use crate::schedule::InFlightClaims;
use crate::timer::lease::LeaseDeadline;
use crate::timer::shard::txn_state::TxnState;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use tokio::time::Instant;

/// Packed tickets of records to send again, the earliest first.
pub(crate) type Resends = BinaryHeap<Reverse<(Instant, u64)>>;

/// Sends messages of one shard.
pub(crate) struct ShardSender<'a> {
    pub(crate) context: ShardContext<'a>,
    pub(crate) producers: &'a mut Producers,
    pub(crate) record_builder: &'a mut RecordBuilder,
    pub(crate) via: Via,
    pub(crate) slot: u16,
    pub(crate) lease_deadline: &'a LeaseDeadline,
    pub(crate) now: Timestamp,
    /// Messages that may still be sent in this tick.
    pub(crate) room: usize,
}

/// The outcome of one attempt to send.
pub(crate) enum SendOutcome {
    /// The client has accepted the record and will report on it.
    Accepted,
    /// The message was cancelled and is not sent.
    Cancelled,
    /// The record must be built and sent again after this time.
    RetryAfter(Duration),
    /// This message and all later ones must wait: the message is not due by the current clock, or
    /// the client accepts nothing now.
    Blocked,
}

/// Which messages one round may send.
#[derive(Clone, Copy)]
pub(crate) struct SendLimits {
    /// Only the first batches, this many.
    pub(crate) batches: usize,
    /// No message after this position.
    pub(crate) until: Option<Cursor>,
}

/// How plain and transactional delivery record the outcome of each send.
pub(crate) enum DeliveryMode<'a> {
    /// A message that must be sent again waits in `resends`. Later messages are sent.
    Plain { resends: &'a mut Resends },
    /// A message that must be sent again aborts the transaction.
    Transaction { txn: &'a mut TxnState, now: Instant },
}

impl DeliveryMode<'_> {
    fn accepts_records(&self) -> bool {
        match self {
            Self::Plain { .. } => true,
            Self::Transaction { txn, now } => txn.accepts_records(*now),
        }
    }
}

/// The result of one round for one batch.
struct BatchProgress {
    /// Messages whose delivery is complete without a report.
    completed: usize,
    is_blocked: bool,
}

impl ShardSender<'_> {
    /// Sends due messages of all batches in order of their positions (G4), until one is blocked.
    pub(crate) fn send_batches(
        &mut self,
        in_flight: &mut InFlightClaims<ClaimedBatch>,
        limits: SendLimits,
        mode: &mut DeliveryMode<'_>,
    ) {
        while mode.accepts_records()
            && let Some((number, others)) = next_batch(in_flight.numbered().take(limits.batches))
            && let Some(batch) = in_flight.get_mut(number)
        {
            let until = [others, limits.until].into_iter().flatten().min();
            let first = batch.next_unsent();
            let progress = self.send_batch(batch, number, until, mode);
            let has_moved = batch.next_unsent() > first;
            in_flight.complete(number, progress.completed);
            if progress.is_blocked || !has_moved {
                return;
            }
        }
    }

    /// Sends messages of one batch up to `until`, where another batch continues.
    fn send_batch(
        &mut self,
        batch: &mut ClaimedBatch,
        number: u32,
        until: Option<Cursor>,
        mode: &mut DeliveryMode<'_>,
    ) -> BatchProgress {
        let mut completed = 0;
        let blocked = |completed| BatchProgress {
            completed,
            is_blocked: true,
        };
        while let Some(position) = batch.next_position()
            && until.is_none_or(|until| position <= until)
        {
            if self.room == 0 {
                return blocked(completed);
            }
            match (self.send_next(batch, number), &mut *mode) {
                (SendOutcome::Blocked, _) => return blocked(completed),
                (SendOutcome::Accepted, DeliveryMode::Plain { .. }) => self.room -= 1,
                (SendOutcome::Accepted, DeliveryMode::Transaction { txn, now }) => {
                    self.room -= 1;
                    txn.on_sent(position, true, *now);
                }
                (SendOutcome::Cancelled, DeliveryMode::Plain { .. }) => completed += 1,
                // Completed when the transaction is committed.
                (SendOutcome::Cancelled, DeliveryMode::Transaction { txn, now }) => {
                    txn.on_sent(position, false, *now);
                }
                (SendOutcome::RetryAfter(wait), DeliveryMode::Plain { resends }) => {
                    let ticket = self.ticket(number, batch.next_unsent());
                    resends.push(Reverse((Instant::now() + wait, ticket)));
                }
                // A rerouted message goes to its new destination in the same transaction.
                (SendOutcome::RetryAfter(Duration::ZERO), DeliveryMode::Transaction { .. }) => {
                    continue;
                }
                (SendOutcome::RetryAfter(wait), DeliveryMode::Transaction { txn, now }) => {
                    txn.abort_and_pause(*now + wait);
                    return blocked(completed);
                }
            }
            batch.advance();
        }
        BatchProgress {
            completed,
            is_blocked: false,
        }
    }

    fn ticket(&self, batch: u32, index: usize) -> u64 {
        let index = u16::try_from(index).expect("a claim holds fewer than 65,536 messages");
        Ticket {
            slot: self.slot,
            batch,
            index,
        }
        .pack()
    }

    /// Sends the next message of a batch.
    fn send_next(&mut self, batch: &mut ClaimedBatch, number: u32) -> SendOutcome {
        let index = batch.next_unsent();
        let position = batch.position(index);
        // The message was claimed ahead of its due time, and the clock may have stepped back (G1).
        // The lease is checked for each message, because the process may freeze between two.
        if position.due > self.now && !fault!(NoDueCheckAtSend)
            || self.lease_deadline.has_passed(Instant::now())
        {
            return SendOutcome::Blocked;
        }
        if batch.is_cancelled(position) {
            return SendOutcome::Cancelled;
        }
        self.dead_letter_if_overdue(batch, index, position);
        let outcome = self.send(batch, number, index);
        if matches!(outcome, SendOutcome::Accepted) {
            batch.link_trace(&self.context.route.tracer, self.now);
        }
        outcome
    }

    /// Reroutes a message to the dead-letter topic if it is later than its route allows. Applies
    /// only to the first delivery of a message that had a due time.
    fn dead_letter_if_overdue(&self, batch: &mut ClaimedBatch, index: usize, position: Cursor) {
        let route = self.context.route;
        let Some(overdue_after) = route.overdue_after else {
            return;
        };
        let late = self.now.since(position.due);
        if late < overdue_after || !batch.is_first_delivery(index) || batch.reroute(index).is_some()
        {
            return;
        }
        let detail = format!(
            "it was due {} and is {} s late; overdue_after is {} s",
            position.due.to_rfc3339(),
            late.as_secs(),
            overdue_after.as_secs()
        );
        let reroute = Reroute::dead_letter(Reason::Overdue, detail);
        route
            .alerts
            .on_rerouted(self.context.shard, position.offset, &reroute);
        batch.set_reroute(index, reroute);
    }

    /// Builds the record of one message and gives it to its client.
    pub(crate) fn send(
        &mut self,
        batch: &mut ClaimedBatch,
        number: u32,
        index: usize,
    ) -> SendOutcome {
        let context = self.context;
        let ticket = self.ticket(number, index);
        let Some(message) = batch.message(index) else {
            // The checksum of the run is right, so a newer version has written the record.
            let position = batch.position(index);
            tracing::error!(shard = %context.shard, ?position,
                "a stored message has an unknown format: upgrade Postdate to deliver its shard");
            return SendOutcome::RetryAfter(RESEND_DELAY_MAX);
        };
        let known = batch.reroute(index);
        let (target, rejected) = match known {
            Some(_) => (Cow::Borrowed(""), None),
            None => match context.first_target(&message) {
                Ok(target) => (target, None),
                Err(reroute) => (Cow::Borrowed(""), Some(reroute)),
            },
        };
        let reroute = known.or(rejected.as_ref());
        let destination = reroute.map_or(Destination::Target, |reroute| reroute.destination);
        let record_context = RecordContext {
            shard: context.shard,
            origins: context.origins,
            target: &target,
            dead_letter: &context.route.dead_letter,
        };
        let record = self.record_builder.build(record_context, &message, reroute);
        let result = self.producers.send(
            context.route,
            destination,
            self.via,
            &record.outgoing(),
            ticket,
        );
        if let Some(reroute) = rejected {
            let offset = message.position.offset;
            let alerts = &context.route.alerts;
            alerts.on_rerouted(context.shard, offset, &reroute);
            batch.set_reroute(index, reroute);
        }
        match result {
            SendResult::Accepted => SendOutcome::Accepted,
            SendResult::QueueFull => SendOutcome::Blocked,
            // The client is being replaced. Later messages must not overtake this one (G4).
            SendResult::Failed(DeliveryFailure {
                kind: FailureKind::ClientFailed,
                ..
            }) => SendOutcome::Blocked,
            SendResult::Failed(failure) => {
                SendOutcome::RetryAfter(context.on_failed(batch, index, &failure, self.now))
            }
        }
    }
}
