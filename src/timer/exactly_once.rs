//! Exactly once: hands over what is claimed in transactions, commits them with the pair that says what is delivered, and begins anew behind
//! the last committed pair wherever an end is unknown. What is in a transaction is not settled until that is committed (I4).

use super::Options;
use super::flying::{ClaimedBatch, Ticket, next_batch};
use super::hand::{SendOutcome, ShardSender, on_delivered, on_failed, trace_delivery};
use super::outlet::Producers;
use super::sealing;
use super::shard_slots::ShardSlots;
use super::transacting::{TxnAction, TxnInput, TxnState};
use super::work::{ShardPhase, ShardState};
use crate::broker::{
    DeliveryFailure, DeliveryReport, FailureKind, ProducerEvent, ProducerIdentity, TxnOffset,
};
use crate::limit::{
    RECOVERY_PRODUCERS_MAX, RESEND_DELAY_MAX, RESEND_DELAY_MIN, TRANSACTIONAL_PRODUCER_OPEN_AHEAD,
};
use crate::model::{Cursor, DeliveredMarker, Progress, Reason, ShardId, Timestamp};
use crate::schedule::InFlightClaims;
use crate::store::OutcomeCounts;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// What it takes to serve the transactors of works.
pub(super) struct TxnDriver<'a> {
    options: &'a Options,
    producers: &'a mut Producers,
    wall: Timestamp,
    now: Instant,
    stopping: bool,
}

impl<'a> TxnDriver<'a> {
    pub(super) fn new(
        options: &'a Options,
        outlets: &'a mut Producers,
        wall: Timestamp,
        stopping: bool,
    ) -> Self {
        Self {
            options,
            producers: outlets,
            wall,
            now: Instant::now(),
            stopping,
        }
    }

    /// Learns what happened to transactors.
    pub(super) fn on_events(
        &mut self,
        slots: &ShardSlots,
        works: &mut BTreeMap<ShardId, ShardState>,
        happened: Vec<(u64, ProducerEvent)>,
    ) {
        for (number, happened) in happened {
            let Some(shard) = slots.shard(Producers::slot_of(number)) else {
                continue;
            };
            let Some(work) = works.get_mut(shard) else {
                continue;
            };
            if work.txn.as_ref().and_then(TxnState::number) == Some(number) {
                self.on_event(shard, work, happened);
            }
        }
    }

    /// A work has ended.
    pub(super) fn on_shard_ended(&mut self, work: &ShardState) {
        let (route, number) = (
            &self.options.routes[&work.lease.shard.route],
            work.txn.as_ref().and_then(TxnState::number),
        );
        number
            .into_iter()
            .for_each(|number| self.producers.end_transactor(route, number));
    }

    /// The shard may soon be this worker's.
    pub(super) fn preconnect(&mut self, shard: &ShardId) {
        let route = &self.options.routes[&shard.route];
        if route.marker_group.is_some() {
            self.producers
                .preconnect(route, &self.transactional_name(shard));
        }
    }

    /// Does what is to be done for a work now.
    pub(super) fn drive(&mut self, shard: &ShardId, work: &mut ShardState) {
        let is_leaving = matches!(work.phase, ShardPhase::LeaseLost { .. });
        let sight = txn_input(work, self.wall, self.stopping);
        // To open is to fence whoever has it open: only who surely holds the lease may.
        let may_open =
            !has_no_more_work(work, self.stopping) && !work.lease_deadline.has_passed(self.now);
        let Some(exact) = work.txn.as_mut().filter(|_| !is_leaving) else {
            return;
        };
        let route = &self.options.routes[&shard.route];
        match exact.next_action(sight, self.now) {
            TxnAction::None => {}
            TxnAction::Open if !may_open => {}
            TxnAction::Open
                if !sight.has_work
                    && self.producers.recovery_opens(route) >= RECOVERY_PRODUCERS_MAX =>
            {
                exact.defer_recovery(self.now + RESEND_DELAY_MIN)
            }
            TxnAction::Open => {
                let number = self.producers.open_transactor(
                    route,
                    work.slot,
                    &self.transactional_name(shard),
                );
                exact.on_opening(number, self.now);
                if !sight.has_work {
                    self.producers.add_recovery_open(route, number);
                    exact.set_recovery_only();
                }
            }
            TxnAction::Commit { flights, pair } => {
                exact.on_committing(flights, pair, self.now);
                self.commit(shard, work, (pair, flights));
            }
            TxnAction::Abort => {
                exact
                    .number()
                    .into_iter()
                    .for_each(|number| self.producers.abort(route, number));
                exact.on_aborting(self.now);
            }
            TxnAction::Close => {
                exact
                    .number()
                    .into_iter()
                    .for_each(|number| self.producers.end_transactor(route, number));
                exact.on_ended(self.now);
            }
            TxnAction::Abandon => self.on_producer_lost(shard, work, "nothing is heard of it"),
        }
    }

    fn transactional_name(&self, shard: &ShardId) -> ProducerIdentity {
        let (deployment, route, partition) =
            (&self.options.deployment, &shard.route, &shard.partition);
        ProducerIdentity {
            transactional_id: format!(
                "{deployment}.{route}.{}.{}",
                partition.topic, partition.index
            ),
            offset_group: self.options.routes[route]
                .marker_group
                .clone()
                .unwrap_or_default(),
            partition: partition.clone(),
            target_topics: self.options.routes[route].known_topics.clone(),
        }
    }

    fn commit(&mut self, shard: &ShardId, work: &ShardState, (pair, flights): (Progress, usize)) {
        let mut tally = work.outcomes;
        work.in_flight
            .iter()
            .take(flights)
            .for_each(|aloft| tally.add(aloft.outcomes(aloft.uncommitted())));
        let delivered = DeliveredMarker {
            delivered: pair,
            identity: work.identity.clone(),
            ledger_pair: work.ledger_since,
            uncounted: tally,
        };
        let marker = TxnOffset {
            offset: pair.watermark.offset(),
            metadata: delivered.to_string(),
        };
        let number = work.txn.as_ref().and_then(TxnState::number);
        number.into_iter().for_each(|number| {
            self.producers
                .commit(&self.options.routes[&shard.route], number, marker.clone())
        });
    }

    /// Something happened to the work's transactor.
    fn on_event(&mut self, shard: &ShardId, work: &mut ShardState, happened: ProducerEvent) {
        match happened {
            ProducerEvent::Opened(text) => {
                work.txn
                    .as_ref()
                    .and_then(TxnState::number)
                    .into_iter()
                    .for_each(|number| self.producers.remove_recovery_open(number));
                self.on_opened(shard, work, text.as_deref());
            }
            ProducerEvent::Reports(reports) => self.on_reports(shard, work, &reports),
            ProducerEvent::Committed => self.on_committed(shard, work),
            ProducerEvent::Aborted => {
                self.options.routes[&shard.route]
                    .metric
                    .transactions_aborted
                    .increment(1);
                work.rewind_uncommitted();
                work.txn
                    .iter_mut()
                    .for_each(|exact| exact.on_aborted(self.now));
            }
            ProducerEvent::Failed { is_fenced, reason } => {
                if is_fenced {
                    self.options.routes[&shard.route]
                        .metric
                        .producers_fenced
                        .increment(1);
                }
                self.on_producer_lost(shard, work, &reason);
            }
        }
    }

    fn on_opened(&mut self, shard: &ShardId, work: &mut ShardState, text: Option<&str>) {
        let known = work.in_flight.delivered();
        let delivered = text.map(DeliveredMarker::parse);
        if let Some(None) = delivered {
            // To begin without it would be to deliver again.
            tracing::error!(%shard, marker = text, "the marker of what is delivered is of a kind that this version does not know: its shard waits for a newer one");
            self.on_producer_lost(shard, work, "its marker is of an unknown kind");
            work.txn
                .iter_mut()
                .for_each(|exact| exact.abort_and_pause(self.now + RESEND_DELAY_MAX));
            return;
        }
        let marker = delivered
            .flatten()
            .filter(|delivered| delivered.identity == work.identity);
        let pair = marker
            .as_ref()
            .map_or(known, |marker| marker.delivered.greatest(known));
        tracing::debug!(%shard, ?pair, "transactor open");
        if fault!(ResendAfterUnknownCommit) && !work.in_flight.is_empty() {
            work.rewind_uncommitted();
        } else {
            work.restart_after(pair, self.now);
        }
        if let Some(marker) = marker
            .filter(|marker| marker.delivered == pair && marker.ledger_pair == work.delivered_sent)
        {
            // What the store was never told, by whoever committed it.
            (work.ledger_since, work.outcomes) = (marker.ledger_pair, marker.uncounted);
        }
        work.txn
            .iter_mut()
            .for_each(|exact| exact.on_opened(pair, self.now));
    }

    fn on_reports(&mut self, shard: &ShardId, work: &mut ShardState, reports: &[DeliveryReport]) {
        let route = &self.options.routes[&shard.route];
        let Some(exact) = &mut work.txn else { return };
        for DeliveryReport {
            ticket, outcome, ..
        } in reports
        {
            let Ticket {
                batch: flight,
                index,
                ..
            } = Ticket::unpack(*ticket);
            exact.on_report(self.now);
            let Err(failure) = outcome else { continue };
            let aloft = work
                .in_flight
                .get_mut(flight)
                .filter(|_| is_about_the_record(failure));
            let wait = aloft.map_or(RESEND_DELAY_MIN, |aloft| {
                on_failed(
                    route,
                    (shard, &work.origins),
                    (aloft, index.into()),
                    failure,
                    self.wall,
                )
            });
            exact.abort_and_pause(self.now + wait);
        }
    }

    fn on_committed(&mut self, shard: &ShardId, work: &mut ShardState) {
        let route = &self.options.routes[&shard.route];
        let Some(exact) = &mut work.txn else { return };
        let Some((flights, took)) = exact.on_committed(self.now) else {
            return;
        };
        let pair = exact.marker();
        route.metric.transactions_committed.increment(1);
        route.metric.commit_seconds.record(took.as_secs_f64());
        for aloft in work.in_flight.iter().take(flights) {
            for index in aloft
                .uncommitted()
                .filter(|index| !aloft.is_cancelled(aloft.place(*index)))
            {
                on_delivered(route, (shard, &work.origins), (aloft, index), self.wall);
            }
        }
        let wall = self.wall;
        work.settle_committed(flights, pair, |aloft, tally| {
            trace_delivery(route, shard, (aloft, tally), wall)
        });
    }

    fn on_producer_lost(&mut self, shard: &ShardId, work: &mut ShardState, reason: &str) {
        let Some(exact) = &mut work.txn else { return };
        tracing::warn!(%shard, reason, "transactor lost: another is opened, and what is not committed is delivered by it");
        exact.number().into_iter().for_each(|number| {
            self.producers
                .end_transactor(&self.options.routes[&shard.route], number)
        });
        exact.on_lost(self.now);
    }
}

impl ShardState {
    /// Has it deliver exactly once: nobody has handed anything over that could come again.
    pub(super) fn with_transactions(mut self, now: Instant) -> Self {
        self.txn = Some(TxnState::new(self.in_flight.delivered(), now));
        self.previous_owner_claim = Progress::START;
        self
    }

    /// Whether the store may be told what is delivered. A commit counts from where it was told last: not until its end is known.
    pub(super) fn may_report_delivered(&self) -> bool {
        !self.txn.as_ref().is_some_and(TxnState::commit_in_doubt) || fault!(AcknowledgeDuringCommit)
    }

    /// What of the first `flights` went in the transaction that is committed with `pair` is settled. `tell` is called for each part of it.
    fn settle_committed(
        &mut self,
        flights: usize,
        pair: Progress,
        mut tell: impl FnMut(&mut ClaimedBatch, OutcomeCounts),
    ) {
        for number in self.in_flight.numbers().take(flights) {
            let aloft = self.in_flight.get_mut(number).expect("it is one of theirs");
            let settled = aloft.uncommitted();
            let tally = aloft.outcomes(settled.clone());
            self.outcomes.add(tally);
            self.released_ids
                .extend(aloft.released_ids(settled.clone()));
            tell(aloft, tally);
            aloft.committed = aloft.next_unsent;
            self.in_flight.complete(number, settled.len());
        }
        self.in_flight.advance_delivered(pair);
        self.finish_batches(tell);
    }

    /// Forgets what is claimed, and begins anew behind a pair that is delivered.
    pub(super) fn restart_after(&mut self, pair: Progress, now: Instant) {
        if pair != self.schedule.taken() || self.has_claims() {
            if pair != self.in_flight.delivered() {
                // Another committed what lies between, or this one did and never heard of it: how many messages that was is not known.
                self.ledger_since = pair;
            }
            self.in_flight = InFlightClaims::new(pair);
            self.cancel_pending_claim();
            self.reload(pair, self.schedule.seen(), now);
        }
    }

    /// Nothing of what is claimed counts as handed over any more.
    fn rewind_uncommitted(&mut self) {
        if !fault!(ForgetAbortedMessages) {
            self.in_flight
                .iter_mut()
                .for_each(ClaimedBatch::rewind_uncommitted);
        }
    }

    /// The due of the first message that it holds; may be too early.
    pub(super) fn first_due(&self) -> Option<Timestamp> {
        self.schedule.next_due(Timestamp::AT_ONCE)
    }

    /// Whether something is claimed or due soon.
    fn has_work_soon(&self, wall: Timestamp) -> bool {
        let soon = wall.plus(TRANSACTIONAL_PRODUCER_OPEN_AHEAD);
        self.has_claims()
            || self.schedule.late_count() > 0
            || self.first_due().is_some_and(|due| due <= soon)
    }
}

/// Whether it says something of the record: all else is undone along with its transaction, and tried again.
fn is_about_the_record(failure: &DeliveryFailure) -> bool {
    match failure.kind {
        FailureKind::Rejected => true,
        FailureKind::NotDelivered => failure.reason != Reason::TimedOut,
        FailureKind::MaybeDelivered | FailureKind::ClientFailed => false,
    }
}

fn txn_input(work: &ShardState, wall: Timestamp, stopping: bool) -> TxnInput {
    // Asked for only when all of a transaction is reported on: else nothing depends on it.
    let exact = work.txn.as_ref().filter(|exact| exact.is_fully_reported());
    let pair = exact.and_then(|exact| sealing::commit_pair(&work.in_flight, exact.highest_place()));
    let is_hurried = stopping || work.phase != ShardPhase::Active;
    TxnInput {
        has_work: work.has_work_soon(wall),
        commit_now: is_hurried,
        is_reporting_delivered: work.is_reporting_delivered(),
        pair,
    }
}

/// Whether nothing more is to be delivered.
fn has_no_more_work(work: &ShardState, stopping: bool) -> bool {
    (stopping || work.phase != ShardPhase::Active) && !work.has_claims()
}

/// When there is something to do for the work's transactor that nothing will announce.
pub(super) fn next_wakeup(
    work: &ShardState,
    wall: Timestamp,
    now: Instant,
    stopping: bool,
) -> Option<Instant> {
    let exact = work
        .txn
        .as_ref()
        .filter(|_| !matches!(work.phase, ShardPhase::LeaseLost { .. }))?;
    if work.is_reporting_delivered() {
        return exact.abort_at();
    }
    if has_no_more_work(work, stopping) {
        return None;
    }
    if exact.number().is_none() && work.lease_deadline.has_passed(now) {
        // Nobody says when the lease is renewed.
        return Some(now + RESEND_DELAY_MIN);
    }
    let is_wanted = work.has_work_soon(wall);
    let soon = work
        .first_due()
        .filter(|_| exact.number().is_none() && !is_wanted);
    let soon = soon.map(|due| {
        now + due
            .since(wall)
            .saturating_sub(TRANSACTIONAL_PRODUCER_OPEN_AHEAD)
    });
    [exact.next_wakeup(is_wanted, now), soon]
        .into_iter()
        .flatten()
        .min()
}

/// Hands over what is claimed and due, in order, as far as it may go along in the transaction under way.
/// Nothing at or past `asked` goes.
pub(super) fn send_in_transaction(
    hand: &mut ShardSender<'_>,
    flights: &mut InFlightClaims<ClaimedBatch>,
    exact: &mut TxnState,
    asked: Option<Cursor>,
    now: Instant,
) {
    let seal = exact.commit_point(flights.len(), now);
    let among = seal.map_or(usize::MAX, |seal| seal.batches);
    while exact.accepts_records(now)
        && let Some((number, until)) = next_batch(flights.numbered().take(among))
        && let Some(aloft) = flights.get_mut(number)
    {
        let until = [until, seal.map(|seal| seal.until), asked]
            .into_iter()
            .flatten()
            .min();
        if !send_batch(hand, (aloft, number), until, exact, now) {
            return;
        }
    }
}

/// A flight, in order, up to a place that belongs to another; `false`: what comes next must wait.
fn send_batch(
    hand: &mut ShardSender<'_>,
    (aloft, number): (&mut ClaimedBatch, u32),
    until: Option<Cursor>,
    exact: &mut TxnState,
    now: Instant,
) -> bool {
    let mut is_moved = false;
    while let Some(place) = aloft
        .next_unsent_place()
        .filter(|place| until.is_none_or(|until| *place <= until))
    {
        if hand.room == 0 {
            return false;
        }
        match hand.send_next(aloft, number) {
            SendOutcome::Accepted => {
                exact.on_sent(place, true, now);
                hand.room -= 1;
            }
            SendOutcome::Cancelled => exact.on_sent(place, false, now),
            // It goes another way from here.
            SendOutcome::RetryAfter(Duration::ZERO) => continue,
            SendOutcome::RetryAfter(wait) => {
                exact.abort_and_pause(now + wait);
                return false;
            }
            SendOutcome::Blocked => return false,
        }
        aloft.next_unsent += 1;
        is_moved = true;
    }
    is_moved
}
