//! Sends the claimed messages of one shard in order, for plain and for transactional delivery.

use super::Resends;
use super::answers::{self, Readiness};
use super::in_flight::{ClaimedBatch, Ticket};
use super::outcome::ShardContext;
use super::producers::{Producers, Via};
use super::record::{AddedHeaders, Destination, RecordBuilder, Reroute};
use crate::broker::{FailureKind, SendResult};
use crate::limit::{RESEND_DELAY_MAX, RESEND_DELAY_MIN};
use crate::model::{Cursor, DeadLetterReason, Timestamp};
use crate::schedule::InFlightClaims;
use crate::timer::lease::LeaseClock;
use crate::timer::shard::txn_state::TxnState;
use crate::wheel::Wheel;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct ShardSender<'a> {
    pub(super) context: Rc<ShardContext>,
    pub(super) producers: &'a mut Producers,
    pub(super) record_builder: &'a mut RecordBuilder,
    pub(super) resends: &'a mut Resends,
    pub(super) via: Via,
    pub(super) slot: u16,
    pub(super) lease_clock: LeaseClock,
    /// The shard may still claim messages, so an answer may come.
    pub(super) may_claim: bool,
    pub(super) wall: Timestamp,
    pub(super) now: Instant,
    /// Messages that may still be sent in this tick.
    pub(super) room: usize,
}

pub(super) enum SendOutcome {
    /// The client has accepted the record and will report on it.
    Accepted,
    Cancelled,
    /// The record must be built and sent again after this time.
    RetryAfter(Duration),
    /// This message and all later ones must wait: the message is not due by the current clock, or
    /// the client accepts nothing now.
    MustWait,
}

impl ShardSender<'_> {
    /// Sends due messages of the first `batches` batches in order of their places (G4), up to
    /// `until`, or to the first that must wait.
    pub(super) fn send_batches(
        &mut self,
        in_flight: &mut InFlightClaims<ClaimedBatch>,
        mut txn: Option<&mut TxnState>,
        batches: usize,
        until: Option<Cursor>,
    ) {
        if let Some(txn) = txn
            .as_deref_mut()
            .filter(|txn| txn.accepts_records(self.now))
            && let Some(claim) = in_flight.first_complete()
        {
            // It has no messages. The transaction commits its pair.
            txn.on_sent(claim.cursor, false, self.now);
        }
        // The claims of a backlog overlap, so the next message is often that of another batch.
        let mut unsent = Wheel::new();
        for (number, batch) in in_flight.numbered().take(batches) {
            if let Some(place) = batch.next_place() {
                unsent.insert(place, number);
            }
        }
        while (txn.as_deref()).is_none_or(|txn| txn.accepts_records(self.now))
            && let Some(number) = unsent.pop()
        {
            match self.prepare_next(in_flight, number, txn.as_deref_mut()) {
                Readiness::Ready => {
                    let until = [unsent.next_place(), until].into_iter().flatten().min();
                    if !self.send_part(in_flight, number, until, txn.as_deref_mut()) {
                        return;
                    }
                }
                Readiness::Waits => {}
                Readiness::Blocks(_) => return,
            }
            if let Some(place) = in_flight.get_mut(number).and_then(|it| it.next_place()) {
                unsent.insert(place, number);
            }
        }
    }

    /// Sends messages of one batch up to `until`. Returns false if the next one must wait.
    fn send_part(
        &mut self,
        in_flight: &mut InFlightClaims<ClaimedBatch>,
        number: u32,
        until: Option<Cursor>,
        txn: Option<&mut TxnState>,
    ) -> bool {
        let Some(batch) = in_flight.get_mut(number) else {
            return false;
        };
        let first = batch.next_unsent();
        let (completed, must_wait) = self.send_batch(batch, number, until, txn);
        let has_moved = batch.next_unsent() > first;
        in_flight.complete(number, completed);
        !must_wait && has_moved
    }

    /// Prepares the next message of a batch. Leaves out a message that waits for another one, and
    /// sends it later. A transaction that has passed the place of a message that blocks is aborted.
    fn prepare_next(
        &mut self,
        in_flight: &mut InFlightClaims<ClaimedBatch>,
        number: u32,
        txn: Option<&mut TxnState>,
    ) -> Readiness {
        let Some(batch) = in_flight.get_mut(number) else {
            return Readiness::Ready;
        };
        let index = batch.next_unsent();
        if !batch.depends_on_other(index) {
            return Readiness::Ready;
        }
        let (current, may_claim) = (txn.as_deref(), self.may_claim);
        let readiness = answers::prepare(in_flight, number, index, current, may_claim, self.now);
        match (readiness, txn) {
            (Readiness::Waits, _) => {
                let ticket = Ticket::new(self.slot, number, index).pack();
                self.resends
                    .push(Reverse((Instant::now() + RESEND_DELAY_MIN, ticket)));
                if let Some(batch) = in_flight.get_mut(number) {
                    batch.leave_out();
                }
            }
            (Readiness::Blocks(place), Some(txn))
                if txn.has_records() && place <= txn.highest_place() =>
            {
                txn.abort_and_pause(self.now + RESEND_DELAY_MIN);
            }
            _ => {}
        }
        readiness
    }

    /// Sends messages of one batch up to `until`, where another batch continues. Returns how many
    /// are complete without a report, and whether one must wait.
    fn send_batch(
        &mut self,
        batch: &mut ClaimedBatch,
        number: u32,
        until: Option<Cursor>,
        mut txn: Option<&mut TxnState>,
    ) -> (usize, bool) {
        let mut completed = 0;
        let first = batch.next_unsent();
        while let Some(place) = batch.next_place()
            && until.is_none_or(|until| place <= until)
            && (batch.next_unsent() == first || !batch.depends_on_other(batch.next_unsent()))
        {
            let outcome = if self.room == 0 {
                SendOutcome::MustWait
            } else {
                self.send_next(batch, number)
            };
            if matches!(outcome, SendOutcome::Accepted) {
                self.room -= 1;
            }
            match (outcome, txn.as_deref_mut()) {
                (SendOutcome::MustWait, _) => return (completed, true),
                (SendOutcome::Accepted, None) => {}
                (SendOutcome::Cancelled, None) => {
                    self.context.tell_outcome(batch, batch.next_unsent());
                    batch.acknowledge(batch.next_unsent());
                    completed += 1;
                }
                (SendOutcome::RetryAfter(wait), None) => {
                    let ticket = Ticket::new(self.slot, number, batch.next_unsent()).pack();
                    self.resends.push(Reverse((Instant::now() + wait, ticket)));
                }
                (SendOutcome::Accepted, Some(txn)) => {
                    txn.on_sent(batch.end_with(place), true, self.now);
                }
                // Completed when the transaction is committed.
                (SendOutcome::Cancelled, Some(txn)) => {
                    txn.on_sent(batch.end_with(place), false, self.now);
                }
                // A rerouted message goes to its new destination in the same transaction.
                (SendOutcome::RetryAfter(Duration::ZERO), Some(_)) => continue,
                (SendOutcome::RetryAfter(wait), Some(txn)) => {
                    txn.abort_and_pause(self.now + wait);
                    return (completed, true);
                }
            }
            batch.advance();
        }
        (completed, false)
    }

    fn send_next(&mut self, batch: &mut ClaimedBatch, number: u32) -> SendOutcome {
        let index = batch.next_unsent();
        let place = batch.place(index);
        // The message was claimed ahead of its due time, and the clock may have stepped back (G1).
        // The lease is checked for each message, because the process may freeze between two.
        if place.due > self.wall && !fault!(NoDueCheckAtSend)
            || self.lease_clock.may_be_taken(Instant::now())
        {
            return SendOutcome::MustWait;
        }
        if batch.is_cancelled(place) {
            return SendOutcome::Cancelled;
        }
        self.dead_letter_if_overdue(batch, index, place);
        let outcome = self.send(batch, number, index);
        if matches!(outcome, SendOutcome::Accepted) {
            batch.link_trace(&self.context.route.tracer, self.wall);
        }
        outcome
    }

    /// Reroutes a message to the dead-letter topic if it is later than its route allows. Applies
    /// only to the first delivery of a message that had a due time. It must be late by the store's
    /// time too, because a worker whose clock is ahead delivers late by its own clock. Lateness by the
    /// rate of the route does not count.
    fn dead_letter_if_overdue(&self, batch: &mut ClaimedBatch, index: usize, place: Cursor) {
        let ShardContext { shard, route, .. } = &*self.context;
        let Some(overdue_after) = route.overdue_after else {
            return;
        };
        let now = self.wall.min(self.lease_clock.store_time(self.now));
        let by_rate = batch.lateness_by_rate(place.due);
        let lateness = batch.lateness(place.due, now).saturating_sub(by_rate);
        if lateness < overdue_after
            || !batch.has_not_failed(index)
            || batch.reroutes.contains_key(&index)
        {
            return;
        }
        let without_rate = match by_rate.as_secs() {
            0 => String::new(),
            seconds => format!(", without {seconds} s by the rate of the route"),
        };
        let detail = format!(
            "it was due {} and is {} s late{without_rate}; overdue_after is {} s",
            place.due.to_rfc3339(),
            lateness.as_secs(),
            overdue_after.as_secs()
        );
        let reroute = Reroute::dead_letter(DeadLetterReason::Overdue, detail);
        route.alerts.on_rerouted(shard, place.offset, &reroute);
        batch.reroutes.insert(index, reroute);
    }

    pub(super) fn send(
        &mut self,
        batch: &mut ClaimedBatch,
        number: u32,
        index: usize,
    ) -> SendOutcome {
        let context = &*self.context;
        let route = &*context.route;
        let Some(message) = batch.message(index) else {
            // The checksum of the run is right, so a newer version has written the record.
            let offset = batch.place(index).offset;
            route.alerts.on_newer_message(&context.shard, offset);
            return SendOutcome::RetryAfter(RESEND_DELAY_MAX);
        };
        let is_expired = message.body.until.is_some_and(|until| until < self.wall);
        if is_expired && !batch.reroutes.contains_key(&index) {
            let expired = context.expired(&message);
            route
                .alerts
                .on_rerouted(&context.shard, message.place.offset, &expired);
            context.reroute(batch, index, expired);
            return self.send(batch, number, index);
        }
        let reroute = batch.reroutes.get(&index);
        if reroute.is_some_and(|it| it.destination == Destination::Dropped) {
            return SendOutcome::Cancelled;
        }
        let effect = batch.effect(index);
        let target = match reroute {
            Some(_) => Cow::Borrowed(""),
            None => match context.first_target(&message) {
                Ok(target) => target,
                Err(reroute) => {
                    let offset = message.place.offset;
                    route.alerts.on_rerouted(&context.shard, offset, &reroute);
                    context.reroute(batch, index, reroute);
                    return self.send(batch, number, index);
                }
            },
        };
        let destination = reroute.map_or(Destination::Target, |reroute| reroute.destination);
        let mut added = AddedHeaders::default();
        let builder = &mut *self.record_builder;
        let record = builder.build(context, &target, &message, effect, reroute, &mut added);
        let ticket = Ticket::new(self.slot, number, index).pack();
        match (self.producers).send(route, destination, self.via, &record, ticket) {
            SendResult::Accepted => SendOutcome::Accepted,
            SendResult::QueueFull => SendOutcome::MustWait,
            // The client is being replaced. Later messages must not overtake this one (G4).
            SendResult::Failed(failure) if failure.kind == FailureKind::ClientFailed => {
                SendOutcome::MustWait
            }
            SendResult::Failed(failure) => {
                SendOutcome::RetryAfter(context.on_failed(batch, index, &failure, self.wall))
            }
        }
    }
}
