//! Delivers claimed messages: sends them in order, sends again what failed, and handles the
//! delivery reports.

pub(crate) mod alerts;
pub(crate) mod in_flight;
pub(crate) mod lanes;
pub(crate) mod outcome;
pub(crate) mod producers;
pub(crate) mod record;
pub(crate) mod retry;
pub(crate) mod send;

use crate::broker::DeliveryReport;
use crate::clock::Clock;
use crate::limit::RESEND_DELAY_MIN;
use crate::metric::TimerMetrics;
use crate::model::{ShardId, Timestamp};
use crate::timer::Options;
use crate::timer::handover;
use crate::timer::shard::txn_state::TxnState;
use crate::timer::shard::{ShardState, ShardStates};
use crate::timer::shard_slots::ShardSlots;
use in_flight::Ticket;
use lanes::Lane;
use outcome::ShardContext;
use producers::{Producers, Via};
use record::RecordBuilder;
use send::{DeliveryMode, Resends, SendLimits, SendOutcome, ShardSender};
use std::cmp::Reverse;
use tokio::time::Instant;

/// The delivery part of a dispatcher.
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

    /// When the next record must be sent again.
    pub(crate) fn next_resend(&self) -> Option<Instant> {
        self.resends.peek().map(|Reverse((at, _))| *at)
    }

    /// Sends due messages of all shards as far as the clients have room. Shards with many due
    /// messages come last.
    pub(crate) fn deliver(
        &mut self,
        shards: &mut ShardStates,
        options: &Options,
        metric: &TimerMetrics,
        now: Timestamp,
    ) {
        let is_active = |state: &ShardState| state.txn.is_some() && !state.in_flight.is_empty();
        let quota = Lane::Bulk.quota(shards.values().filter(|state| is_active(state)).count());
        for (shard, state) in &mut *shards {
            // Each exactly-once shard has a producer of its own.
            let Some(number) = state.txn.as_ref().and_then(TxnState::number) else {
                continue;
            };
            if handover::check_lease(state, shard, metric) {
                self.deliver_in_transaction(shard, state, options, number, quota, now);
            }
        }
        for state in shards.values_mut() {
            state.lane.choose_lane();
        }
        for lane in Lane::ALL {
            let uses_lane = |state: &ShardState| state.txn.is_none() && state.lane.lane() == lane;
            let is_active = |state: &&ShardState| uses_lane(state) && !state.in_flight.is_empty();
            let quota = lane.quota(shards.values().filter(is_active).count());
            for (shard, state) in shards.iter_mut().filter(|(_, state)| uses_lane(state)) {
                // Without a valid lease another worker may already deliver these messages.
                if handover::check_lease(state, shard, metric) {
                    self.deliver_plain(shard, state, options, lane, quota, now);
                }
            }
        }
    }

    fn deliver_plain(
        &mut self,
        shard: &ShardId,
        state: &mut ShardState,
        options: &Options,
        lane: Lane,
        quota: usize,
        now: Timestamp,
    ) {
        let origins = state.origins.clone();
        let context = ShardContext {
            shard,
            origins: &origins,
            route: &options.routes[&shard.route],
        };
        let limits = SendLimits {
            batches: usize::MAX,
            until: state.claim.pending_position(),
        };
        let room = state.lane.room(quota);
        let mut sender = ShardSender {
            context,
            producers: &mut self.producers,
            record_builder: &mut self.record_builder,
            via: Via::Lane(lane),
            slot: state.slot,
            lease_deadline: state.ownership.deadline(),
            now,
            room,
        };
        let mut mode = DeliveryMode::Plain {
            resends: &mut self.resends,
        };
        sender.send_batches(&mut state.in_flight, limits, &mut mode);
        let sent = room - sender.room;
        let has_more_due = state
            .next_unsent_position()
            .is_some_and(|position| position.due <= now);
        state.lane.on_sent(sent, quota, has_more_due);
        state.finish_batches(|batch, outcomes| context.trace_delivery(batch, outcomes, now));
    }

    fn deliver_in_transaction(
        &mut self,
        shard: &ShardId,
        state: &mut ShardState,
        options: &Options,
        number: u64,
        quota: usize,
        wall: Timestamp,
    ) {
        let pending_claim = state.claim.pending_position();
        let Some(txn) = &mut state.txn else { return };
        let now = Instant::now();
        let commit_point = txn.commit_point(state.in_flight.len(), now);
        let limits = SendLimits {
            batches: commit_point.map_or(usize::MAX, |point| point.batches),
            until: [commit_point.map(|point| point.until), pending_claim]
                .into_iter()
                .flatten()
                .min(),
        };
        let mut sender = ShardSender {
            context: ShardContext {
                shard,
                origins: &state.origins,
                route: &options.routes[&shard.route],
            },
            producers: &mut self.producers,
            record_builder: &mut self.record_builder,
            via: Via::Transaction(number),
            slot: state.slot,
            lease_deadline: state.ownership.deadline(),
            now: wall,
            room: quota.saturating_sub(txn.unreported()),
        };
        let mut mode = DeliveryMode::Transaction { txn, now };
        sender.send_batches(&mut state.in_flight, limits, &mut mode);
    }

    /// Sends the records whose pause after a failure is over.
    pub(crate) fn resend_due(
        &mut self,
        shards: &mut ShardStates,
        slots: &ShardSlots,
        options: &Options,
        clock: &dyn Clock,
    ) {
        let now = Instant::now();
        while let Some(Reverse((at, ticket))) = self.resends.peek().copied() {
            if at > now {
                return;
            }
            self.resends.pop();
            if let Some(wait) = self.resend(shards, slots, options, clock.now(), ticket) {
                self.resends.push(Reverse((Instant::now() + wait, ticket)));
            }
        }
    }

    /// Sends one record again. Returns how long it must wait if it could not be sent.
    fn resend(
        &mut self,
        shards: &mut ShardStates,
        slots: &ShardSlots,
        options: &Options,
        now: Timestamp,
        ticket: u64,
    ) -> Option<std::time::Duration> {
        let Ticket { slot, batch, index } = Ticket::unpack(ticket);
        let shard = slots.shard(slot)?;
        let state = shards.get_mut(shard)?;
        if !state.ownership.may_deliver(Instant::now()) {
            // If another worker holds the lease, it delivers this message itself.
            return Some(RESEND_DELAY_MIN);
        }
        let claimed = state.in_flight.get_mut(batch)?;
        let index = usize::from(index);
        if claimed.position(index).due > now && !fault!(NoDueCheckAtResend) {
            // The clock has stepped back since the first attempt (G1).
            return Some(RESEND_DELAY_MIN);
        }
        let mut sender = ShardSender {
            context: ShardContext {
                shard,
                origins: &state.origins,
                route: &options.routes[&shard.route],
            },
            producers: &mut self.producers,
            record_builder: &mut self.record_builder,
            via: Via::Lane(state.lane.lane()),
            slot,
            lease_deadline: state.ownership.deadline(),
            now,
            room: 1,
        };
        match sender.send(claimed, batch, index) {
            SendOutcome::Accepted => {
                state.lane.on_resent();
                None
            }
            SendOutcome::Cancelled => None,
            SendOutcome::RetryAfter(wait) => Some(wait),
            SendOutcome::Blocked => Some(RESEND_DELAY_MIN),
        }
    }

    /// Handles delivery reports of plain delivery.
    pub(crate) fn on_reports(
        &mut self,
        shards: &mut ShardStates,
        slots: &ShardSlots,
        options: &Options,
        reports: &[DeliveryReport],
        wall: Timestamp,
    ) {
        // Most reports of one batch follow each other, so the shard is looked up once for them.
        let is_same_batch = |a: &DeliveryReport, b: &DeliveryReport| {
            Ticket::unpack(a.ticket).is_same_batch(Ticket::unpack(b.ticket))
        };
        for reports in reports.chunk_by(is_same_batch) {
            let Ticket { slot, batch, .. } = Ticket::unpack(reports[0].ticket);
            let Some(shard) = slots.shard(slot) else {
                continue;
            };
            let Some(state) = shards.get_mut(shard) else {
                continue;
            };
            state.lane.on_reports(reports.len());
            let Some(claimed) = state.in_flight.get_mut(batch) else {
                continue;
            };
            let origins = state.origins.clone();
            let context = ShardContext {
                shard,
                origins: &origins,
                route: &options.routes[&shard.route],
            };
            let mut completed = 0;
            for report in reports {
                let index = usize::from(Ticket::unpack(report.ticket).index);
                match &report.outcome {
                    Ok(()) => {
                        context.on_delivered(claimed, index, wall);
                        completed += 1;
                    }
                    Err(failure) => {
                        let wait = context.on_failed(claimed, index, failure, wall);
                        self.resends
                            .push(Reverse((Instant::now() + wait, report.ticket)));
                    }
                }
            }
            state.in_flight.complete(batch, completed);
            state.finish_batches(|batch, outcomes| context.trace_delivery(batch, outcomes, wall));
        }
    }
}
