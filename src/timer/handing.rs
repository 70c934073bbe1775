//! The part of the dispatcher that hands over what is claimed, and learns what became of it.

use super::dispatcher::Dispatcher;
use super::exactly;
use super::flying::Ticket;
use super::hand::{Hand, Handed, arrived, failed, tell};
use super::outlet::By;
use super::parting;
use super::queue::Queue;
use super::transacting::Transacting;
use super::work::Work;
use crate::broker::Report;
use crate::limit::RESEND_MIN;
use crate::metric::Arrivals;
use crate::model::Timestamp;
use crate::mutant::{self, Mutant};
use std::cmp::Reverse;
use tokio::time::Instant;

impl Dispatcher {
    /// Hands over what is claimed, in order, as far as the targets have room; those that have a flood come last.
    pub(super) fn hand_over(&mut self, now: Timestamp) {
        self.hand_over_exactly(now);
        self.works
            .values_mut()
            .for_each(|work| work.queued.choose());
        for queue in Queue::ALL {
            let is_of = |work: &Work| work.exact.is_none() && work.queued.queue() == queue;
            let share = queue.share(
                self.works
                    .values()
                    .filter(|work| is_of(work) && !work.flights.is_empty())
                    .count(),
            );
            for (shard, work) in self.works.iter_mut().filter(|(_, work)| is_of(work)) {
                if !parting::is_ours(work, shard, &self.ports.metric) {
                    // Another may hold the shard by now, and hand over what is claimed and not handed over.
                    continue;
                }
                let route = &self.options.routes[&shard.route];
                let (outlets, labels) = (&mut self.ports.outlets, &mut self.labels);
                let (origins, term, slot, by) =
                    (&work.origins, &work.term, work.slot, By::Queue(queue));
                let room = work.queued.room(share);
                let mut hand = Hand {
                    shard,
                    origins,
                    route,
                    outlets,
                    by,
                    labels,
                    slot,
                    term,
                    now,
                    room,
                };
                let mut is_stuck = false;
                while let Some((number, until)) = work.next_flight().filter(|_| !is_stuck) {
                    let Some(aloft) = work.flights.get_mut(number) else {
                        break;
                    };
                    let settled;
                    // What comes after one that is stuck must not overtake it (G4).
                    (settled, is_stuck) = hand.flight((aloft, number), until, &mut self.again);
                    work.flights.settle(number, settled);
                }
                let count = room - hand.room;
                work.queued.handed(
                    count,
                    share,
                    work.next_place().is_some_and(|place| place.due <= now),
                );
                work.land(|aloft, tally| tell(route, shard, (aloft, tally), now));
            }
        }
    }

    /// The same for shards whose messages go in transactions, each by a client of its own.
    fn hand_over_exactly(&mut self, now: Timestamp) {
        let flying = self
            .works
            .values()
            .filter(|work| work.exact.is_some() && !work.flights.is_empty());
        let share = Queue::Long.share(flying.count());
        for (shard, work) in &mut self.works {
            let Some(number) = work.exact.as_ref().and_then(Transacting::number) else {
                continue;
            };
            if !parting::is_ours(work, shard, &self.ports.metric) {
                continue;
            }
            let asked = work.asked_place();
            let Some(exact) = &mut work.exact else {
                continue;
            };
            let (route, outlets, labels) = (
                &self.options.routes[&shard.route],
                &mut self.ports.outlets,
                &mut self.labels,
            );
            let (origins, term, slot, by) =
                (&work.origins, &work.term, work.slot, By::Transactor(number));
            let room = share.saturating_sub(exact.in_client());
            let mut hand = Hand {
                shard,
                origins,
                route,
                outlets,
                by,
                labels,
                slot,
                term,
                now,
                room,
            };
            exactly::hand_over(&mut hand, &mut work.flights, exact, asked, Instant::now());
        }
    }

    /// Sends again what had to wait.
    pub(super) fn resend(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, ticket))) = self.again.peek().copied() {
            if at > now {
                return;
            }
            self.again.pop();
            self.send_again(ticket);
        }
    }

    fn send_again(&mut self, packed: u64) {
        let ticket = Ticket::unpack(packed);
        let Some(shard) = self.slots.get(ticket.slot) else {
            return;
        };
        let Some(work) = self.works.get_mut(shard) else {
            return;
        };
        if !work.is_ours(Instant::now()) {
            // If another holds the shard it hands this over itself.
            self.again
                .push(Reverse((Instant::now() + RESEND_MIN, packed)));
            return;
        }
        let Some(aloft) = work.flights.get_mut(ticket.flight) else {
            return;
        };
        let now = self.ports.clock.now();
        if aloft.place(usize::from(ticket.index)).due > now && !mutant::active(Mutant::NoLookAgain)
        {
            // The clock has stepped back since it was handed over first (G1).
            self.again
                .push(Reverse((Instant::now() + RESEND_MIN, packed)));
            return;
        }
        let route = &self.options.routes[&shard.route];
        let (outlets, labels) = (&mut self.ports.outlets, &mut self.labels);
        let (origins, term, slot, by) = (
            &work.origins,
            &work.term,
            work.slot,
            By::Queue(work.queued.queue()),
        );
        let mut hand = Hand {
            shard,
            origins,
            route,
            outlets,
            by,
            labels,
            slot,
            term,
            now,
            room: 1,
        };
        match hand.send(aloft, ticket.flight, usize::from(ticket.index)) {
            Handed::Taken => work.queued.again(),
            Handed::Settled => {}
            Handed::Again(wait) => self.again.push(Reverse((Instant::now() + wait, packed))),
            Handed::NotYet => self
                .again
                .push(Reverse((Instant::now() + RESEND_MIN, packed))),
        }
    }

    /// Learns what became of records.
    pub(super) fn land(&mut self, reports: &[Report]) {
        let (wall, now) = (self.ports.clock.now(), Instant::now());
        // Those of one claim mostly come one after the other: whose they are is looked up once for all of them.
        for reports in reports
            .chunk_by(|a, b| Ticket::unpack(a.ticket).is_of_flight_of(Ticket::unpack(b.ticket)))
        {
            let Ticket { slot, flight, .. } = Ticket::unpack(reports[0].ticket);
            let Some(shard) = self.slots.get(slot) else {
                continue;
            };
            let Some(work) = self.works.get_mut(shard) else {
                continue;
            };
            work.queued.reported(reports.len());
            let Some(aloft) = work.flights.get_mut(flight) else {
                continue;
            };
            let (route, mut arrivals, mut settled) =
                (&self.options.routes[&shard.route], Arrivals::default(), 0);
            for Report {
                ticket, outcome, ..
            } in reports
            {
                let index = usize::from(Ticket::unpack(*ticket).index);
                match outcome {
                    Ok(()) => {
                        arrived(
                            (route, &mut arrivals),
                            (shard, &work.origins),
                            (aloft, index),
                            wall,
                        );
                        settled += 1;
                    }
                    Err(failure) => {
                        let wait =
                            failed(route, (shard, &work.origins), (aloft, index), failure, wall);
                        self.again.push(Reverse((now + wait, *ticket)));
                    }
                }
            }
            arrivals.tell(&route.metric);
            work.flights.settle(flight, settled);
            work.land(|aloft, tally| tell(route, shard, (aloft, tally), wall));
        }
    }
}
