//! Exactly once: hands over what is claimed in transactions, commits them with the pair that says what is delivered, and begins anew behind
//! the last committed pair wherever an end is unknown. What is in a transaction is not settled until that is committed (I4).

use super::Options;
use super::flying::{Aloft, Ticket, least};
use super::hand::{Hand, Handed, arrived, failed, tell};
use super::outlet::Outlets;
use super::sealing;
use super::slot::Slots;
use super::transacting::{Sight, Step, Transacting};
use super::work::{Phase, Work};
use crate::broker::{Failure, FailureKind, Happened, Marker, Report, Transactional};
use crate::limit::{RESEND_MAX, RESEND_MIN, TRANSACTOR_AHEAD, TRANSACTORS_LOOK_MAX};
use crate::metric::Arrivals;
use crate::model::{Claim, Cursor, Delivered, Reason, ShardId, Timestamp, Watermark};
use crate::mutant::{self, Mutant};
use crate::schedule::Flights;
use crate::store::Tally;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// What it takes to serve the transactors of works.
pub(super) struct Desk<'a> {
    options: &'a Options,
    outlets: &'a mut Outlets,
    wall: Timestamp,
    now: Instant,
    stopping: bool,
}

impl<'a> Desk<'a> {
    pub(super) fn new(
        options: &'a Options,
        outlets: &'a mut Outlets,
        wall: Timestamp,
        stopping: bool,
    ) -> Self {
        Self {
            options,
            outlets,
            wall,
            now: Instant::now(),
            stopping,
        }
    }

    /// Learns what happened to transactors.
    pub(super) fn hear_all(
        &mut self,
        slots: &Slots,
        works: &mut BTreeMap<ShardId, Work>,
        happened: Vec<(u64, Happened)>,
    ) {
        for (number, happened) in happened {
            let Some(shard) = slots.get(Outlets::slot(number)) else {
                continue;
            };
            let Some(work) = works.get_mut(shard) else {
                continue;
            };
            if work.exact.as_ref().and_then(Transacting::number) == Some(number) {
                self.hear(shard, work, happened);
            }
        }
    }

    /// A work has ended.
    pub(super) fn leave(&mut self, work: &Work) {
        let (route, number) = (
            &self.options.routes[&work.lease.shard.route],
            work.exact.as_ref().and_then(Transacting::number),
        );
        number
            .into_iter()
            .for_each(|number| self.outlets.end(route, number));
    }

    /// The shard may soon be this worker's.
    pub(super) fn expect(&mut self, shard: &ShardId) {
        let route = &self.options.routes[&shard.route];
        if route.markers.is_some() {
            self.outlets.expect(route, &self.name(shard));
        }
    }

    /// Does what is to be done for a work now.
    pub(super) fn serve(&mut self, shard: &ShardId, work: &mut Work) {
        let is_leaving = matches!(work.phase, Phase::Leaving { .. });
        let sight = sight(work, self.wall, self.stopping);
        // To open is to fence whoever has it open: only who surely holds the lease may.
        let may_open = !is_ending(work, self.stopping) && !work.term.has_run_out(self.now);
        let Some(exact) = work.exact.as_mut().filter(|_| !is_leaving) else {
            return;
        };
        let route = &self.options.routes[&shard.route];
        match exact.step(sight, self.now) {
            Step::None => {}
            Step::Open if !may_open => {}
            Step::Open if !sight.is_wanted && self.outlets.looks(route) >= TRANSACTORS_LOOK_MAX => {
                exact.put_off(self.now + RESEND_MIN)
            }
            Step::Open => {
                let number = self.outlets.open(route, work.slot, &self.name(shard));
                exact.opening(number, self.now);
                if !sight.is_wanted {
                    self.outlets.looking(route, number);
                    exact.looking();
                }
            }
            Step::Commit { flights, pair } => {
                let told = if mutant::active(Mutant::SeparateMarker) {
                    exact.marker()
                } else {
                    pair
                };
                exact.committing(flights, pair, self.now);
                self.commit(shard, work, (told, flights));
            }
            Step::Abort => {
                exact
                    .number()
                    .into_iter()
                    .for_each(|number| self.outlets.abort(route, number));
                exact.aborting(self.now);
            }
            Step::End => {
                exact
                    .number()
                    .into_iter()
                    .for_each(|number| self.outlets.end(route, number));
                exact.ended(self.now);
            }
            Step::GiveUp => self.lose(shard, work, "nothing is heard of it"),
        }
    }

    fn name(&self, shard: &ShardId) -> Transactional {
        let (deployment, route, partition) =
            (&self.options.deployment, &shard.route, &shard.partition);
        Transactional {
            id: format!(
                "{deployment}.{route}.{}.{}",
                partition.topic, partition.index
            ),
            group: self.options.routes[route]
                .markers
                .clone()
                .unwrap_or_default(),
            partition: partition.clone(),
            reach: self.options.routes[route].reach.clone(),
        }
    }

    fn commit(&mut self, shard: &ShardId, work: &Work, (pair, flights): (Claim, usize)) {
        let mut tally = work.tally;
        work.flights
            .iter()
            .take(flights)
            .for_each(|aloft| tally.add(aloft.outcome(aloft.in_transaction())));
        let delivered = Delivered {
            pair,
            identity: work.identity.clone(),
            since: work.counted,
            tally,
        };
        let marker = Marker {
            offset: pair.watermark.offset(),
            text: delivered.to_string(),
        };
        let number = work.exact.as_ref().and_then(Transacting::number);
        number.into_iter().for_each(|number| {
            self.outlets
                .commit(&self.options.routes[&shard.route], number, marker.clone())
        });
    }

    /// Something happened to the work's transactor.
    fn hear(&mut self, shard: &ShardId, work: &mut Work, happened: Happened) {
        match happened {
            Happened::Opened(text) => {
                work.exact
                    .as_ref()
                    .and_then(Transacting::number)
                    .into_iter()
                    .for_each(|number| self.outlets.looked(number));
                self.opened(shard, work, text.as_deref());
            }
            Happened::Reports(reports) => self.reported(shard, work, &reports),
            Happened::Committed => self.committed(shard, work),
            Happened::Aborted => {
                self.options.routes[&shard.route]
                    .metric
                    .transactions_aborted
                    .increment(1);
                work.hand_over_again();
                work.exact
                    .iter_mut()
                    .for_each(|exact| exact.aborted(self.now));
            }
            Happened::Lost { is_fenced, reason } => {
                if is_fenced {
                    self.options.routes[&shard.route]
                        .metric
                        .transactors_fenced
                        .increment(1);
                }
                self.lose(shard, work, &reason);
            }
        }
    }

    fn opened(&mut self, shard: &ShardId, work: &mut Work, text: Option<&str>) {
        let known = work.flights.finished();
        let delivered = text.map(Delivered::parse);
        if let Some(None) = delivered {
            // To begin without it would be to deliver again.
            tracing::error!(%shard, marker = text, "the marker of what is delivered is of a kind that this version does not know: its shard waits for a newer one");
            self.lose(shard, work, "its marker is of an unknown kind");
            work.exact
                .iter_mut()
                .for_each(|exact| exact.fail(self.now + RESEND_MAX));
            return;
        }
        let marker = delivered.flatten().filter(|delivered| {
            delivered.identity == work.identity && !mutant::active(Mutant::IgnoresMarker)
        });
        let pair = marker.as_ref().map_or(known, |marker| {
            let is_plain = mutant::active(Mutant::PlainCursor);
            let pair = if is_plain {
                Claim::new(marker.pair.cursor, Watermark(i64::MAX.unsigned_abs()))
            } else {
                marker.pair
            };
            pair.greatest(known)
        });
        tracing::debug!(%shard, ?pair, "transactor open");
        if mutant::active(Mutant::KeepsFlights) && !work.flights.is_empty() {
            work.hand_over_again();
        } else {
            work.begin_behind(pair, self.now);
        }
        if let Some(marker) =
            marker.filter(|marker| marker.pair == pair && marker.since == work.told)
        {
            // What the store was never told, by whoever committed it.
            (work.counted, work.tally) = (marker.since, marker.tally);
        }
        work.exact
            .iter_mut()
            .for_each(|exact| exact.opened(pair, self.now));
    }

    fn reported(&mut self, shard: &ShardId, work: &mut Work, reports: &[Report]) {
        let route = &self.options.routes[&shard.route];
        let Some(exact) = &mut work.exact else { return };
        for Report {
            ticket, outcome, ..
        } in reports
        {
            let Ticket { flight, index, .. } = Ticket::unpack(*ticket);
            exact.reported(self.now);
            let Err(failure) = outcome else { continue };
            let aloft = work.flights.get_mut(flight).filter(|_| is_verdict(failure));
            let wait = aloft.map_or(RESEND_MIN, |aloft| {
                failed(
                    route,
                    (shard, &work.origins),
                    (aloft, index.into()),
                    failure,
                    self.wall,
                )
            });
            exact.fail(self.now + wait);
        }
    }

    fn committed(&mut self, shard: &ShardId, work: &mut Work) {
        let route = &self.options.routes[&shard.route];
        let Some(exact) = &mut work.exact else { return };
        let before = exact.marker();
        let Some((flights, took)) = exact.committed(self.now) else {
            return;
        };
        let pair = exact.marker();
        if mutant::active(Mutant::SeparateMarker) && before != pair {
            exact.committing(flights, pair, self.now);
            return self.commit(shard, work, (pair, flights));
        }
        route.metric.transactions_committed.increment(1);
        route.metric.commit_time.record(took.as_secs_f64());
        let mut arrivals = Arrivals::default();
        for aloft in work.flights.iter().take(flights) {
            for index in aloft
                .in_transaction()
                .filter(|index| !aloft.is_cancelled(aloft.place(*index)))
            {
                arrived(
                    (route, &mut arrivals),
                    (shard, &work.origins),
                    (aloft, index),
                    self.wall,
                );
            }
        }
        arrivals.tell(&route.metric);
        let wall = self.wall;
        work.settle(flights, pair, |aloft, tally| {
            tell(route, shard, (aloft, tally), wall)
        });
    }

    fn lose(&mut self, shard: &ShardId, work: &mut Work, reason: &str) {
        let Some(exact) = &mut work.exact else { return };
        tracing::warn!(%shard, reason, "transactor lost: another is opened, and what is not committed is delivered by it");
        exact
            .number()
            .into_iter()
            .for_each(|number| self.outlets.end(&self.options.routes[&shard.route], number));
        exact.lost(self.now);
    }
}

impl Work {
    /// Has it deliver exactly once: nobody has handed anything over that could come again.
    pub(super) fn exactly_once(mut self, now: Instant) -> Self {
        self.exact = Some(Transacting::new(self.flights.finished(), now));
        self.suspect = Claim::START;
        self
    }

    /// Whether the store may be told what is delivered. A commit counts from where it was told last: not until its end is known.
    pub(super) fn may_tell(&self) -> bool {
        !self.exact.as_ref().is_some_and(Transacting::is_in_doubt)
            || mutant::active(Mutant::TellsMeanwhile)
    }

    /// What of the first `flights` went in the transaction that is committed with `pair` is settled. `tell` is called for each part of it.
    fn settle(&mut self, flights: usize, pair: Claim, mut tell: impl FnMut(&mut Aloft, Tally)) {
        for number in self.flights.numbers().take(flights) {
            let aloft = self.flights.get_mut(number).expect("it is one of theirs");
            let settled = aloft.in_transaction();
            let tally = aloft.outcome(settled.clone());
            self.tally.add(tally);
            self.ids.extend(aloft.ids(settled.clone()));
            tell(aloft, tally);
            aloft.done = aloft.next;
            self.flights.settle(number, settled.len());
        }
        self.flights.finish(pair);
        self.land(tell);
    }

    /// Forgets what is claimed, and begins anew behind a pair that is delivered.
    pub(super) fn begin_behind(&mut self, pair: Claim, now: Instant) {
        if pair != self.schedule.taken() || self.has_claims() {
            if pair != self.flights.finished() {
                // Another committed what lies between, or this one did and never heard of it: how many messages that was is not known.
                self.counted = pair;
            }
            self.flights = Flights::new(pair);
            self.forget_take();
            self.reload(pair, self.schedule.seen(), now);
        }
    }

    /// Nothing of what is claimed counts as handed over any more.
    fn hand_over_again(&mut self) {
        if !mutant::active(Mutant::ForgetsUndone) {
            self.flights.iter_mut().for_each(Aloft::undo);
        }
    }

    /// The due of the first message that it holds; may be too early.
    pub(super) fn first_due(&self) -> Option<Timestamp> {
        self.schedule.next_due(Timestamp::AT_ONCE)
    }

    /// Whether something is claimed or due soon.
    fn is_wanted(&self, wall: Timestamp) -> bool {
        let soon = wall.plus(TRANSACTOR_AHEAD);
        self.has_claims()
            || self.schedule.late() > 0
            || self.first_due().is_some_and(|due| due <= soon)
    }
}

/// Whether it says something of the record: all else is undone along with its transaction, and tried again.
fn is_verdict(failure: &Failure) -> bool {
    match failure.kind {
        FailureKind::Refused => true,
        FailureKind::NotNow => failure.reason != Reason::TimedOut,
        FailureKind::Unknown | FailureKind::Closed => false,
    }
}

fn sight(work: &Work, wall: Timestamp, stopping: bool) -> Sight {
    // Asked for only when all of a transaction is reported on: else nothing depends on it.
    let exact = work.exact.as_ref().filter(|exact| exact.is_reported());
    let pair = exact.and_then(|exact| sealing::pair(&work.flights, exact.until()));
    let is_hurried = stopping || work.phase != Phase::Active;
    Sight {
        is_wanted: work.is_wanted(wall),
        is_hurried,
        is_being_told: work.is_being_told(),
        pair,
    }
}

/// Whether nothing more is to be delivered.
fn is_ending(work: &Work, stopping: bool) -> bool {
    (stopping || work.phase != Phase::Active) && !work.has_claims()
}

/// When there is something to do for the work's transactor that nothing will announce.
pub(super) fn wake(work: &Work, wall: Timestamp, now: Instant, stopping: bool) -> Option<Instant> {
    let exact = work
        .exact
        .as_ref()
        .filter(|_| !matches!(work.phase, Phase::Leaving { .. }))?;
    if work.is_being_told() {
        return exact.patience();
    }
    if is_ending(work, stopping) {
        return None;
    }
    if exact.number().is_none() && work.term.has_run_out(now) {
        // Nobody says when the lease is renewed.
        return Some(now + RESEND_MIN);
    }
    let is_wanted = work.is_wanted(wall);
    let soon = work
        .first_due()
        .filter(|_| exact.number().is_none() && !is_wanted);
    let soon = soon.map(|due| now + due.since(wall).saturating_sub(TRANSACTOR_AHEAD));
    [exact.wake(is_wanted, now), soon]
        .into_iter()
        .flatten()
        .min()
}

/// Hands over what is claimed and due, in order, as far as it may go along in the transaction under way.
/// Nothing at or past `asked` goes.
pub(super) fn hand_over(
    hand: &mut Hand<'_>,
    flights: &mut Flights<Aloft>,
    exact: &mut Transacting,
    asked: Option<Cursor>,
    now: Instant,
) {
    let seal = exact.sealed(flights.len(), now);
    let among = seal.map_or(usize::MAX, |seal| seal.flights);
    while exact.is_taking(now)
        && let Some((number, until)) = least(flights.numbered().take(among))
        && let Some(aloft) = flights.get_mut(number)
    {
        let until = [until, seal.map(|seal| seal.until), asked]
            .into_iter()
            .flatten()
            .min();
        if !flight(hand, (aloft, number), until, exact, now) {
            return;
        }
    }
}

/// A flight, in order, up to a place that belongs to another; `false`: what comes next must wait.
fn flight(
    hand: &mut Hand<'_>,
    (aloft, number): (&mut Aloft, u32),
    until: Option<Cursor>,
    exact: &mut Transacting,
    now: Instant,
) -> bool {
    let mut is_moved = false;
    while let Some(place) = aloft
        .next_place()
        .filter(|place| until.is_none_or(|until| *place <= until))
    {
        if hand.room == 0 {
            return false;
        }
        match hand.over(aloft, number) {
            Handed::Taken => {
                exact.handed(place, true, now);
                hand.room -= 1;
            }
            Handed::Settled => exact.handed(place, false, now),
            // It goes another way from here.
            Handed::Again(Duration::ZERO) => continue,
            Handed::Again(wait) => {
                exact.fail(now + wait);
                return false;
            }
            Handed::NotYet => return false,
        }
        aloft.next += 1;
        is_moved = true;
    }
    is_moved
}
