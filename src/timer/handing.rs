//! The part of the dispatcher that hands over what is claimed, and learns what became of it.

use super::dispatcher::Dispatcher;
use super::exactly_once;
use super::flying::Ticket;
use super::hand::{SendOutcome, ShardSender, on_delivered, on_failed, trace_delivery};
use super::handover;
use super::outlet::Via;
use super::queue::Lane;
use super::transacting::TxnState;
use super::work::ShardState;
use crate::broker::DeliveryReport;
use crate::limit::RESEND_DELAY_MIN;
use crate::model::Timestamp;
use std::cmp::Reverse;
use tokio::time::Instant;

impl Dispatcher {
    /// Hands over what is claimed, in order, as far as the targets have room; those that have a flood come last.
    pub(super) fn deliver(&mut self, now: Timestamp) {
        self.deliver_in_transactions(now);
        self.shards
            .values_mut()
            .for_each(|work| work.lane.choose_lane());
        for queue in Lane::ALL {
            let is_of = |work: &ShardState| work.txn.is_none() && work.lane.lane() == queue;
            let share = queue.quota(
                self.shards
                    .values()
                    .filter(|work| is_of(work) && !work.in_flight.is_empty())
                    .count(),
            );
            for (shard, work) in self.shards.iter_mut().filter(|(_, work)| is_of(work)) {
                if !handover::check_lease(work, shard, &self.ports.metric) {
                    // Another may hold the shard by now, and hand over what is claimed and not handed over.
                    continue;
                }
                let route = &self.options.routes[&shard.route];
                let (outlets, labels) = (&mut self.ports.producers, &mut self.record_builder);
                let (origins, term, slot, by) = (
                    &work.origins,
                    &work.lease_deadline,
                    work.slot,
                    Via::Lane(queue),
                );
                let room = work.lane.room(share);
                let mut hand = ShardSender {
                    shard,
                    origins,
                    route,
                    producers: outlets,
                    via: by,
                    record_builder: labels,
                    slot,
                    lease_deadline: term,
                    now,
                    room,
                };
                let mut is_stuck = false;
                while let Some((number, until)) = work.next_batch().filter(|_| !is_stuck) {
                    let Some(aloft) = work.in_flight.get_mut(number) else {
                        break;
                    };
                    let settled;
                    // What comes after one that is stuck must not overtake it (G4).
                    (settled, is_stuck) =
                        hand.send_batch((aloft, number), until, &mut self.resends);
                    work.in_flight.complete(number, settled);
                }
                let count = room - hand.room;
                work.lane.on_sent(
                    count,
                    share,
                    work.next_unsent_place()
                        .is_some_and(|place| place.due <= now),
                );
                work.finish_batches(|aloft, tally| {
                    trace_delivery(route, shard, (aloft, tally), now)
                });
            }
        }
    }

    /// The same for shards whose messages go in transactions, each by a client of its own.
    fn deliver_in_transactions(&mut self, now: Timestamp) {
        let flying = self
            .shards
            .values()
            .filter(|work| work.txn.is_some() && !work.in_flight.is_empty());
        let share = Lane::Bulk.quota(flying.count());
        for (shard, work) in &mut self.shards {
            let Some(number) = work.txn.as_ref().and_then(TxnState::number) else {
                continue;
            };
            if !handover::check_lease(work, shard, &self.ports.metric) {
                continue;
            }
            let asked = work.pending_claim_place();
            let Some(exact) = &mut work.txn else {
                continue;
            };
            let (route, outlets, labels) = (
                &self.options.routes[&shard.route],
                &mut self.ports.producers,
                &mut self.record_builder,
            );
            let (origins, term, slot, by) = (
                &work.origins,
                &work.lease_deadline,
                work.slot,
                Via::Transactor(number),
            );
            let room = share.saturating_sub(exact.unreported());
            let mut hand = ShardSender {
                shard,
                origins,
                route,
                producers: outlets,
                via: by,
                record_builder: labels,
                slot,
                lease_deadline: term,
                now,
                room,
            };
            exactly_once::send_in_transaction(
                &mut hand,
                &mut work.in_flight,
                exact,
                asked,
                Instant::now(),
            );
        }
    }

    /// Sends again what had to wait.
    pub(super) fn resend_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, ticket))) = self.resends.peek().copied() {
            if at > now {
                return;
            }
            self.resends.pop();
            self.resend(ticket);
        }
    }

    fn resend(&mut self, packed: u64) {
        let ticket = Ticket::unpack(packed);
        let Some(shard) = self.slots.shard(ticket.slot) else {
            return;
        };
        let Some(work) = self.shards.get_mut(shard) else {
            return;
        };
        if !work.may_deliver(Instant::now()) {
            // If another holds the shard it hands this over itself.
            self.resends
                .push(Reverse((Instant::now() + RESEND_DELAY_MIN, packed)));
            return;
        }
        let Some(aloft) = work.in_flight.get_mut(ticket.batch) else {
            return;
        };
        let now = self.ports.clock.now();
        if aloft.place(usize::from(ticket.index)).due > now && !fault!(NoDueCheckAtResend) {
            // The clock has stepped back since it was handed over first (G1).
            self.resends
                .push(Reverse((Instant::now() + RESEND_DELAY_MIN, packed)));
            return;
        }
        let route = &self.options.routes[&shard.route];
        let (outlets, labels) = (&mut self.ports.producers, &mut self.record_builder);
        let (origins, term, slot, by) = (
            &work.origins,
            &work.lease_deadline,
            work.slot,
            Via::Lane(work.lane.lane()),
        );
        let mut hand = ShardSender {
            shard,
            origins,
            route,
            producers: outlets,
            via: by,
            record_builder: labels,
            slot,
            lease_deadline: term,
            now,
            room: 1,
        };
        match hand.send(aloft, ticket.batch, usize::from(ticket.index)) {
            SendOutcome::Accepted => work.lane.on_resent(),
            SendOutcome::Cancelled => {}
            SendOutcome::RetryAfter(wait) => {
                self.resends.push(Reverse((Instant::now() + wait, packed)))
            }
            SendOutcome::Blocked => self
                .resends
                .push(Reverse((Instant::now() + RESEND_DELAY_MIN, packed))),
        }
    }

    /// Learns what became of records.
    pub(super) fn on_delivery_reports(&mut self, reports: &[DeliveryReport]) {
        let (wall, now) = (self.ports.clock.now(), Instant::now());
        // Those of one claim mostly come one after the other: whose they are is looked up once for all of them.
        for reports in reports
            .chunk_by(|a, b| Ticket::unpack(a.ticket).is_same_batch(Ticket::unpack(b.ticket)))
        {
            let Ticket {
                slot,
                batch: flight,
                ..
            } = Ticket::unpack(reports[0].ticket);
            let Some(shard) = self.slots.shard(slot) else {
                continue;
            };
            let Some(work) = self.shards.get_mut(shard) else {
                continue;
            };
            work.lane.on_reports(reports.len());
            let Some(aloft) = work.in_flight.get_mut(flight) else {
                continue;
            };
            let route = &self.options.routes[&shard.route];
            let mut settled = 0;
            for DeliveryReport {
                ticket, outcome, ..
            } in reports
            {
                let index = usize::from(Ticket::unpack(*ticket).index);
                match outcome {
                    Ok(()) => {
                        on_delivered(route, (shard, &work.origins), (aloft, index), wall);
                        settled += 1;
                    }
                    Err(failure) => {
                        let wait =
                            on_failed(route, (shard, &work.origins), (aloft, index), failure, wall);
                        self.resends.push(Reverse((now + wait, *ticket)));
                    }
                }
            }
            work.in_flight.complete(flight, settled);
            work.finish_batches(|aloft, tally| trace_delivery(route, shard, (aloft, tally), wall));
        }
    }
}
