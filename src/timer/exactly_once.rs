//! Drives the transactional producers of exactly-once shards.
//!
//! Claimed messages are sent in transactions. Each commit includes the marker, the pair that covers
//! all delivered messages. After an unknown result the shard restarts after the last committed
//! marker. A message is delivered only when its transaction is committed (I4). Its outcome record is sent after
//! that, and is not part of the transaction.

use super::delivery::in_flight::Ticket;
use super::delivery::producers::Producers;
use super::shard::commit_point::commit_pair;
use super::shard::txn_state::{TxnAction, TxnInput, TxnState};
use super::shard::{ShardState, ShardStates};
use super::shard_slots::ShardSlots;
use crate::broker::{DeliveryFailure, DeliveryReport, FailureKind, ProducerEvent, TxnOffset};
use crate::limit::{
    RECOVERY_PRODUCERS_MAX, RESEND_DELAY_MAX, RESEND_DELAY_MIN, TRANSACTIONAL_PRODUCER_OPEN_AHEAD,
};
use crate::model::{DeadLetterReason, DeliveredMarker, Timestamp};
use std::collections::BTreeMap;
use tokio::time::Instant;

pub(super) struct TxnDriver<'a> {
    pub(super) producers: &'a mut Producers,
    pub(super) wall: Timestamp,
    pub(super) stopping: bool,
}

impl TxnDriver<'_> {
    pub(super) fn on_events(
        &mut self,
        slots: &ShardSlots,
        shards: &mut ShardStates,
        events: Vec<(u64, ProducerEvent)>,
    ) {
        for (number, event) in events {
            if let Some(state) = slots.state(shards, number as u16)
                && state.txn.as_ref().and_then(TxnState::number) == Some(number)
            {
                self.on_event(state, event);
            }
        }
    }

    pub(super) fn discard(&mut self, state: &ShardState) {
        if let Some(number) = state.txn.as_ref().and_then(TxnState::number) {
            self.producers
                .transactional(&state.context.route)
                .discard(number);
        }
    }

    pub(super) fn drive_all(&mut self, shards: &mut ShardStates) {
        // Recoveries are limited per cluster, so that an unreachable cluster delays no other.
        let mut recoveries: BTreeMap<String, usize> = BTreeMap::new();
        for state in shards.values() {
            if state.txn.as_ref().is_some_and(TxnState::is_recovering) {
                let cluster = state.context.route.source_cluster.clone();
                *recoveries.entry(cluster).or_default() += 1;
            }
        }
        for state in shards.values_mut() {
            if state.txn.is_some() && !state.ownership.is_lost() {
                self.drive(state, &mut recoveries);
            }
        }
    }

    fn drive(&mut self, state: &mut ShardState, recoveries: &mut BTreeMap<String, usize>) {
        let now = Instant::now();
        let input = txn_input(state, self.wall, self.stopping);
        // Opening fences another owner, so it needs a lease that is certainly valid.
        let may_open =
            !has_no_more_work(state, self.stopping) && !state.ownership.clock.may_be_taken(now);
        let context = state.context.clone();
        let route = &*context.route;
        let (Some(txn), Some(producer)) = (&mut state.txn, &context.producer) else {
            return;
        };
        let number = txn.number();
        match (txn.next_action(input, now), number) {
            (TxnAction::Open, _) if may_open => {
                let recovering = recoveries.entry(route.source_cluster.clone()).or_default();
                if !input.has_work && *recovering >= RECOVERY_PRODUCERS_MAX {
                    return txn.defer_recovery(now + RESEND_DELAY_MIN);
                }
                self.producers.opened += 1;
                // The lower bits tell the shard of an event.
                let number = self.producers.opened << 16 | u64::from(state.slot);
                txn.on_opening(number, now);
                if !input.has_work {
                    *recovering += 1;
                    txn.set_recovery_only();
                }
                self.producers.transactional(route).open(number, producer);
            }
            (TxnAction::Commit { batches, pair }, Some(number)) => {
                txn.on_committing(batches, pair, now);
                let offset = TxnOffset {
                    offset: pair.watermark.offset(),
                    metadata: state.marker(pair, batches).to_string(),
                };
                self.producers.transactional(route).commit(number, offset);
            }
            (TxnAction::Abort, Some(number)) => {
                self.producers.transactional(route).abort(number);
                txn.on_aborting(now);
            }
            (TxnAction::Close, Some(number)) => {
                self.producers.transactional(route).discard(number);
                txn.on_ended(now);
            }
            (TxnAction::Abandon, _) => self.on_producer_lost(state, "it does not answer"),
            (_, _) => {}
        }
    }

    fn on_event(&mut self, state: &mut ShardState, event: ProducerEvent) {
        let context = state.context.clone();
        let metric = &context.route.metric;
        match event {
            ProducerEvent::Opened(marker) => self.on_opened(state, marker.as_deref()),
            ProducerEvent::Reports(reports) => self.on_reports(state, &reports),
            ProducerEvent::Committed => self.on_committed(state),
            ProducerEvent::Aborted => {
                metric.transactions_aborted.increment(1);
                state.rewind_uncommitted();
                if let Some(txn) = &mut state.txn {
                    txn.on_aborted(Instant::now());
                }
            }
            ProducerEvent::Failed { is_fenced, reason } => {
                metric.producers_fenced.increment(u64::from(is_fenced));
                self.on_producer_lost(state, &reason);
            }
        }
    }

    /// The producer is open; `text` is the marker that was committed last.
    fn on_opened(&mut self, state: &mut ShardState, text: Option<&str>) {
        let now = Instant::now();
        let shard = &state.context.shard;
        let known = state.in_flight.delivered();
        let parsed = text.map(DeliveredMarker::parse);
        if let Some(None) = parsed {
            // Starting without the marker would deliver messages twice.
            state.context.route.alerts.on_newer_marker(shard);
            self.on_producer_lost(state, "its marker has an unknown format");
            if let Some(txn) = &mut state.txn {
                txn.abort_and_pause(now + RESEND_DELAY_MAX);
            }
            return;
        }
        state.context.route.alerts.on_marker_read(shard);
        let marker = parsed
            .flatten()
            .filter(|marker| marker.identity.is_same_source(&state.identity));
        let pair = marker
            .as_ref()
            .map_or(known, |marker| marker.delivered.greatest(known));
        tracing::debug!(%shard, ?pair, "transactional producer open");
        if fault!(ResendAfterUnknownCommit) && !state.in_flight.is_empty() {
            state.rewind_uncommitted();
        } else {
            state.restart_after(pair, now);
        }
        if let Some(marker) = marker.filter(|marker| marker.delivered == pair) {
            // The worker that committed it may not have reported these outcomes to the store.
            state.adopt_uncounted(&marker);
        }
        if let Some(txn) = &mut state.txn {
            txn.on_opened(pair, now);
        }
    }

    fn on_reports(&mut self, state: &mut ShardState, reports: &[DeliveryReport]) {
        let now = Instant::now();
        let Some(txn) = &mut state.txn else { return };
        for report in reports {
            let Ticket { batch, index, .. } = Ticket::unpack(report.ticket);
            txn.on_report(now);
            let Err(failure) = &report.outcome else {
                continue;
            };
            let batch = state.in_flight.get_mut(batch);
            let wait = match batch.filter(|_| is_about_the_record(failure)) {
                Some(batch) => (state.context).on_failed(batch, index.into(), failure, self.wall),
                None => RESEND_DELAY_MIN,
            };
            txn.abort_and_pause(now + wait);
        }
    }

    fn on_committed(&mut self, state: &mut ShardState) {
        let context = state.context.clone();
        let metric = &context.route.metric;
        let Some(txn) = &mut state.txn else { return };
        let Some((batches, took)) = txn.on_committed(Instant::now()) else {
            return;
        };
        let pair = txn.marker;
        metric.transactions_committed.increment(1);
        metric.commit_seconds.record(took.as_secs_f64());
        for batch in state.in_flight.iter().take(batches) {
            for index in batch.in_transaction() {
                if !batch.is_cancelled(batch.place(index)) {
                    context.on_delivered(batch, index, self.wall);
                }
            }
        }
        state.finish_committed(batches, pair, |batch, outcomes| {
            context.trace_delivery(batch, outcomes, self.wall);
        });
    }

    fn on_producer_lost(&mut self, state: &mut ShardState, reason: &str) {
        tracing::warn!(shard = %state.context.shard, reason,
            "transactional producer lost: opening another one, and sending uncommitted messages again");
        self.discard(state);
        if let Some(txn) = &mut state.txn {
            txn.on_lost(Instant::now());
        }
    }
}

/// True if a failure is caused by the record itself. Other failures are undone with the
/// transaction, and the record is sent again.
fn is_about_the_record(failure: &DeliveryFailure) -> bool {
    match failure.kind {
        FailureKind::Rejected => true,
        FailureKind::NotDelivered => failure.reason != DeadLetterReason::TimedOut,
        FailureKind::MaybeDelivered | FailureKind::ClientFailed => false,
    }
}

fn txn_input(state: &ShardState, wall: Timestamp, stopping: bool) -> TxnInput {
    // Only a fully reported transaction can be committed. Before that the pair is not needed.
    let txn = state.txn.as_ref().filter(|txn| txn.is_fully_reported());
    TxnInput {
        has_work: state.has_work_soon(wall),
        commit_now: stopping || !state.ownership.is_active(),
        is_reporting_delivered: state.claim.is_reporting_delivered(),
        commit: txn.and_then(|txn| commit_pair(&state.in_flight, txn.highest_place())),
    }
}

fn has_no_more_work(state: &ShardState, stopping: bool) -> bool {
    (stopping || !state.ownership.is_active()) && !state.has_claims()
}

/// When the producer of a shard has something to do that no event announces.
pub(super) fn next_wakeup(
    state: &ShardState,
    wall: Timestamp,
    now: Instant,
    stopping: bool,
) -> Option<Instant> {
    let txn = state.txn.as_ref()?;
    if state.ownership.is_lost() {
        return None;
    }
    if state.claim.is_reporting_delivered() {
        return txn.abort_at();
    }
    if has_no_more_work(state, stopping) {
        return None;
    }
    let is_closed = txn.number().is_none();
    if is_closed && state.ownership.clock.may_be_taken(now) {
        // The renewal of the session is not announced.
        return Some(now + RESEND_DELAY_MIN);
    }
    let has_work = state.has_work_soon(wall);
    let next_due = state.next_due().filter(|_| is_closed && !has_work);
    let open_at = next_due
        .map(|due| now + (due.since(wall)).saturating_sub(TRANSACTIONAL_PRODUCER_OPEN_AHEAD));
    let times = [txn.next_wakeup(has_work, now), open_at];
    times.into_iter().flatten().min()
}
