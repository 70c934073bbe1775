//! Delivers claimed messages: sends them in order, sends again what failed, and handles the
//! delivery reports.

pub(crate) mod alerts;
mod answers;
pub(crate) mod in_flight;
pub(crate) mod lanes;
pub(crate) mod outcome;
mod outcome_records;
pub(crate) mod producers;
mod record;
pub(crate) mod retry;
mod send;

use crate::broker::DeliveryReport;
use crate::clock::Clock;
use crate::limit::RESEND_DELAY_MIN;
use crate::metric::TimerMetrics;
use crate::model::Timestamp;
use crate::timer::handover;
use crate::timer::shard::txn_state::TxnState;
use crate::timer::shard::{ShardState, ShardStates};
use crate::timer::shard_slots::ShardSlots;
use answers::Readiness;
use in_flight::Ticket;
use lanes::Lane;
use producers::{Producers, Via};
use record::RecordBuilder;
use send::{SendOutcome, ShardSender};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use tokio::time::Instant;

/// Packed tickets of records to send again, the earliest first.
type Resends = BinaryHeap<Reverse<(Instant, u64)>>;

pub(crate) struct Delivery {
    pub(crate) producers: Producers,
    record_builder: RecordBuilder,
    resends: Resends,
}

impl Delivery {
    pub(crate) fn new(producers: Producers) -> Self {
        Self {
            producers,
            record_builder: RecordBuilder::default(),
            resends: Resends::new(),
        }
    }

    pub(crate) fn next_resend(&self) -> Option<Instant> {
        self.resends.peek().map(|Reverse((at, _))| *at)
    }

    /// Sends due messages of all shards as far as the clients have room. Shards with many due
    /// messages come last.
    pub(crate) fn deliver(
        &mut self,
        shards: &mut ShardStates,
        metric: &TimerMetrics,
        wall: Timestamp,
    ) {
        for state in shards.values_mut() {
            state.lane.choose_lane();
        }
        // Each exactly-once shard has a producer of its own, so it has no lane.
        let lane_of = |state: &ShardState| state.txn.is_none().then(|| state.lane.lane());
        for lane in [None, Some(Lane::Fast), Some(Lane::Bulk)] {
            let is_active =
                |state: &&ShardState| lane_of(state) == lane && !state.in_flight.is_empty();
            let quota =
                (lane.unwrap_or(Lane::Bulk)).quota(shards.values().filter(is_active).count());
            for state in shards.values_mut().filter(|state| lane_of(state) == lane) {
                let via = match lane {
                    Some(lane) => Via::Lane(lane),
                    None => match state.txn.as_ref().and_then(TxnState::number) {
                        Some(number) => Via::Transaction(number),
                        None => continue,
                    },
                };
                // Without a valid lease another worker may already deliver these messages.
                if handover::check_lease(state, metric) {
                    self.deliver_shard(state, via, quota, wall);
                }
            }
        }
    }

    fn deliver_shard(&mut self, state: &mut ShardState, via: Via, quota: usize, wall: Timestamp) {
        let room = match &state.txn {
            Some(txn) => quota.saturating_sub(txn.unreported()),
            None => state.lane.room(quota),
        };
        let mut sender = self.sender(state, via, room, wall);
        let batches_in_flight = state.in_flight.len();
        let commit_point =
            (state.txn.as_mut()).and_then(|txn| txn.commit_point(batches_in_flight, sender.now));
        let batches = commit_point.map_or(usize::MAX, |point| point.batches);
        let ends = [
            commit_point.map(|point| point.until),
            state.claim.pending_place(),
        ];
        let until = ends.into_iter().flatten().min();
        sender.send_batches(&mut state.in_flight, state.txn.as_mut(), batches, until);
        if state.txn.is_some() {
            return;
        }
        let sent = room - sender.room;
        let context = sender.context;
        let next = state.next_unsent_place();
        let has_more_due = next.is_some_and(|place| place.due <= wall);
        state.lane.on_sent(sent, quota, has_more_due);
        state.finish_batches(|batch, outcomes| context.trace_delivery(batch, outcomes, wall));
    }

    fn sender(
        &mut self,
        state: &ShardState,
        via: Via,
        room: usize,
        wall: Timestamp,
    ) -> ShardSender<'_> {
        ShardSender {
            context: state.context.clone(),
            producers: &mut self.producers,
            record_builder: &mut self.record_builder,
            resends: &mut self.resends,
            via,
            slot: state.slot,
            lease_clock: state.ownership.clock.clone(),
            may_claim: state.ownership.is_active(),
            wall,
            now: Instant::now(),
            room,
        }
    }

    pub(crate) fn resend_due(
        &mut self,
        shards: &mut ShardStates,
        slots: &ShardSlots,
        clock: &dyn Clock,
    ) {
        let now = Instant::now();
        while let Some(Reverse((at, ticket))) = self.resends.peek().copied()
            && at <= now
        {
            self.resends.pop();
            if let Some(wait) = self.resend(shards, slots, clock.now(), ticket) {
                self.resends.push(Reverse((Instant::now() + wait, ticket)));
            }
        }
    }

    /// Sends one record again. Returns how long it must wait if it could not be sent.
    fn resend(
        &mut self,
        shards: &mut ShardStates,
        slots: &ShardSlots,
        wall: Timestamp,
        ticket: u64,
    ) -> Option<Duration> {
        let Ticket { slot, batch, index } = Ticket::unpack(ticket);
        let state = slots.state(shards, slot)?;
        if !state.ownership.may_deliver(Instant::now()) {
            // If another worker holds the lease, it delivers this message itself.
            return Some(RESEND_DELAY_MIN);
        }
        let index = usize::from(index);
        let claimed = state.in_flight.get_mut(batch)?;
        if claimed.place(index).due > wall && !fault!(NoDueCheckAtResend) {
            // The clock has stepped back since the first attempt (G1).
            return Some(RESEND_DELAY_MIN);
        }
        if claimed.depends_on_other(index) {
            let (may_claim, now) = (state.ownership.is_active(), Instant::now());
            match answers::prepare(&mut state.in_flight, batch, index, None, may_claim, now) {
                Readiness::Ready => state.in_flight.get_mut(batch)?.end_wait(),
                Readiness::Waits | Readiness::Blocks(_) => return Some(RESEND_DELAY_MIN),
            }
        }
        let mut sender = self.sender(state, Via::Lane(state.lane.lane()), 1, wall);
        let claimed = state.in_flight.get_mut(batch)?;
        let outcome = match claimed.is_cancelled(claimed.place(index)) {
            true => SendOutcome::Cancelled,
            false => sender.send(claimed, batch, index),
        };
        match outcome {
            SendOutcome::Accepted => {
                state.lane.on_resent();
                None
            }
            SendOutcome::Cancelled => {
                let context = state.context.clone();
                context.tell_outcome(claimed, index);
                claimed.acknowledge(index);
                state.in_flight.complete(batch, 1);
                state.finish_batches(|batch, outcomes| {
                    context.trace_delivery(batch, outcomes, wall);
                });
                None
            }
            SendOutcome::RetryAfter(wait) => Some(wait),
            SendOutcome::MustWait => Some(RESEND_DELAY_MIN),
        }
    }

    pub(crate) fn on_reports(
        &mut self,
        shards: &mut ShardStates,
        slots: &ShardSlots,
        reports: &[DeliveryReport],
        wall: Timestamp,
    ) {
        // Most reports of one batch follow each other, so the shard is looked up once for them.
        let batch_of = |report: &DeliveryReport| {
            let Ticket { slot, batch, .. } = Ticket::unpack(report.ticket);
            (slot, batch)
        };
        for reports in reports.chunk_by(|a, b| batch_of(a) == batch_of(b)) {
            let (slot, number) = batch_of(&reports[0]);
            let Some(state) = slots.state(shards, slot) else {
                continue;
            };
            state.lane.on_reports(reports.len());
            let context = state.context.clone();
            let Some(batch) = state.in_flight.get_mut(number) else {
                continue;
            };
            let mut completed = 0;
            for report in reports {
                let index = usize::from(Ticket::unpack(report.ticket).index);
                match &report.outcome {
                    Ok(()) => {
                        context.on_delivered(batch, index, wall);
                        batch.acknowledge(index);
                        completed += 1;
                    }
                    Err(failure) => {
                        let at = Instant::now() + context.on_failed(batch, index, failure, wall);
                        self.resends.push(Reverse((at, report.ticket)));
                    }
                }
            }
            state.in_flight.complete(number, completed);
            state.finish_batches(|batch, outcomes| context.trace_delivery(batch, outcomes, wall));
        }
    }
}
