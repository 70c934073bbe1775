//! Drives the transactional producers of exactly-once shards.
//!
//! Claimed messages are sent in transactions. Each commit includes the marker, the pair that covers
//! all delivered messages. After an unknown result the shard restarts behind the last committed marker. A
//! message is delivered only when its transaction is committed (I4).

use super::Options;
use super::delivery::in_flight::Ticket;
use super::delivery::outcome::ShardContext;
use super::delivery::producers::Producers;
use super::shard::commit_point::commit_pair;
use super::shard::txn_state::{TxnAction, TxnInput, TxnState};
use super::shard::{ShardState, ShardStates};
use super::shard_slots::ShardSlots;
use crate::broker::{
    DeliveryFailure, DeliveryReport, FailureKind, ProducerEvent, ProducerIdentity, TxnOffset,
};
use crate::limit::{
    RECOVERY_PRODUCERS_MAX, RESEND_DELAY_MAX, RESEND_DELAY_MIN, TRANSACTIONAL_PRODUCER_OPEN_AHEAD,
};
use crate::model::{DeliveredMarker, Progress, Reason, ShardId, Timestamp};
use tokio::time::Instant;

/// Carries out the actions that the transaction states of shards decide on.
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
        producers: &'a mut Producers,
        wall: Timestamp,
        stopping: bool,
    ) -> Self {
        Self {
            options,
            producers,
            wall,
            now: Instant::now(),
            stopping,
        }
    }

    pub(super) fn on_events(
        &mut self,
        slots: &ShardSlots,
        shards: &mut ShardStates,
        events: Vec<(u64, ProducerEvent)>,
    ) {
        for (number, event) in events {
            let Some(shard) = slots.shard(Producers::slot_of(number)) else {
                continue;
            };
            let Some(state) = shards.get_mut(shard) else {
                continue;
            };
            if state.txn.as_ref().and_then(TxnState::number) == Some(number) {
                self.on_event(shard, state, number, event);
            }
        }
    }

    /// The shard is no longer served: gives its producer up.
    pub(super) fn on_shard_ended(&mut self, state: &ShardState) {
        let route = &self.options.routes[&state.lease.shard.route];
        if let Some(number) = state.txn.as_ref().and_then(TxnState::number) {
            self.producers.end_transactor(route, number);
        }
    }

    /// Connects in advance for a shard that this worker will probably get.
    pub(super) fn preconnect(&mut self, shard: &ShardId) {
        let route = &self.options.routes[&shard.route];
        if route.marker_group.is_some() {
            let identity = self.producer_identity(shard);
            self.producers.preconnect(route, &identity);
        }
    }

    /// Carries out the next action of a shard's transaction state.
    pub(super) fn drive(&mut self, shard: &ShardId, state: &mut ShardState) {
        if state.ownership.is_lost() {
            return;
        }
        let input = txn_input(state, self.wall, self.stopping);
        // Opening fences another owner, so it needs a lease that is certainly valid.
        let may_open =
            !has_no_more_work(state, self.stopping) && !state.ownership.is_expired(self.now);
        let Some(txn) = &mut state.txn else { return };
        let route = &self.options.routes[&shard.route];
        match txn.next_action(input, self.now) {
            TxnAction::None => {}
            TxnAction::Open if !may_open => {}
            TxnAction::Open
                if !input.has_work
                    && self.producers.recovery_opens(route) >= RECOVERY_PRODUCERS_MAX =>
            {
                txn.defer_recovery(self.now + RESEND_DELAY_MIN);
            }
            TxnAction::Open => {
                let identity = self.producer_identity(shard);
                let number = self.producers.open_transactor(route, state.slot, &identity);
                txn.on_opening(number, self.now);
                if !input.has_work {
                    self.producers.add_recovery_open(route, number);
                    txn.set_recovery_only();
                }
            }
            TxnAction::Commit { batches, pair } => {
                txn.on_committing(batches, pair, self.now);
                self.commit(shard, state, pair, batches);
            }
            TxnAction::Abort => {
                if let Some(number) = txn.number() {
                    self.producers.abort(route, number);
                }
                txn.on_aborting(self.now);
            }
            TxnAction::Close => {
                if let Some(number) = txn.number() {
                    self.producers.end_transactor(route, number);
                }
                txn.on_ended(self.now);
            }
            TxnAction::Abandon => self.on_producer_lost(shard, state, "it does not answer"),
        }
    }

    fn producer_identity(&self, shard: &ShardId) -> ProducerIdentity {
        let deployment = &self.options.deployment;
        let partition = &shard.partition;
        let route = &self.options.routes[&shard.route];
        ProducerIdentity {
            transactional_id: format!(
                "{deployment}.{}.{}.{}",
                shard.route, partition.topic, partition.index
            ),
            offset_group: route.marker_group.clone().unwrap_or_default(),
            partition: partition.clone(),
            target_topics: route.known_topics.clone(),
        }
    }

    /// Commits the current transaction with the marker `pair`.
    fn commit(&mut self, shard: &ShardId, state: &ShardState, pair: Progress, batches: usize) {
        let marker = DeliveredMarker {
            delivered: pair,
            identity: state.identity.clone(),
            ledger_pair: state.delivered.ledger_pair(),
            uncounted: state.outcomes_with_transaction(batches),
        };
        let offset = TxnOffset {
            offset: pair.watermark.offset(),
            metadata: marker.to_string(),
        };
        if let Some(number) = state.txn.as_ref().and_then(TxnState::number) {
            let route = &self.options.routes[&shard.route];
            self.producers.commit(route, number, offset);
        }
    }

    fn on_event(
        &mut self,
        shard: &ShardId,
        state: &mut ShardState,
        number: u64,
        event: ProducerEvent,
    ) {
        let metric = &self.options.routes[&shard.route].metric;
        match event {
            ProducerEvent::Opened(marker) => {
                self.producers.remove_recovery_open(number);
                self.on_opened(shard, state, marker.as_deref());
            }
            ProducerEvent::Reports(reports) => self.on_reports(shard, state, &reports),
            ProducerEvent::Committed => self.on_committed(shard, state),
            ProducerEvent::Aborted => {
                metric.transactions_aborted.increment(1);
                state.rewind_uncommitted();
                if let Some(txn) = &mut state.txn {
                    txn.on_aborted(self.now);
                }
            }
            ProducerEvent::Failed { is_fenced, reason } => {
                if is_fenced {
                    metric.producers_fenced.increment(1);
                }
                self.on_producer_lost(shard, state, &reason);
            }
        }
    }

    /// The producer is open; `text` is the marker that was committed last.
    fn on_opened(&mut self, shard: &ShardId, state: &mut ShardState, text: Option<&str>) {
        let known = state.in_flight.delivered();
        let parsed = text.map(DeliveredMarker::parse);
        if let Some(None) = parsed {
            // Starting without the marker would deliver messages twice.
            tracing::error!(%shard, marker = text,
                "the delivered marker has an unknown format: upgrade Postdate to deliver its shard");
            self.on_producer_lost(shard, state, "its marker has an unknown format");
            if let Some(txn) = &mut state.txn {
                txn.abort_and_pause(self.now + RESEND_DELAY_MAX);
            }
            return;
        }
        let marker = parsed
            .flatten()
            .filter(|marker| marker.identity == state.identity);
        let pair = marker
            .as_ref()
            .map_or(known, |marker| marker.delivered.greatest(known));
        tracing::debug!(%shard, ?pair, "transactional producer open");
        if fault!(ResendAfterUnknownCommit) && !state.in_flight.is_empty() {
            state.rewind_uncommitted();
        } else {
            state.restart_after(pair, self.now);
        }
        if let Some(marker) = marker.filter(|marker| marker.delivered == pair) {
            // The worker that committed it may not have reported these outcomes to the store.
            state.adopt_uncounted(marker.ledger_pair, marker.uncounted);
        }
        if let Some(txn) = &mut state.txn {
            txn.on_opened(pair, self.now);
        }
    }

    fn on_reports(&mut self, shard: &ShardId, state: &mut ShardState, reports: &[DeliveryReport]) {
        let context = ShardContext {
            shard,
            origins: &state.origins,
            route: &self.options.routes[&shard.route],
        };
        let Some(txn) = &mut state.txn else { return };
        for report in reports {
            let Ticket { batch, index, .. } = Ticket::unpack(report.ticket);
            txn.on_report(self.now);
            let Err(failure) = &report.outcome else {
                continue;
            };
            let claimed = state
                .in_flight
                .get_mut(batch)
                .filter(|_| is_about_the_record(failure));
            let wait = claimed.map_or(RESEND_DELAY_MIN, |batch| {
                context.on_failed(batch, index.into(), failure, self.wall)
            });
            txn.abort_and_pause(self.now + wait);
        }
    }

    fn on_committed(&mut self, shard: &ShardId, state: &mut ShardState) {
        let origins = state.origins.clone();
        let context = ShardContext {
            shard,
            origins: &origins,
            route: &self.options.routes[&shard.route],
        };
        let metric = &context.route.metric;
        let Some(txn) = &mut state.txn else { return };
        let Some((batches, took)) = txn.on_committed(self.now) else {
            return;
        };
        let pair = txn.marker();
        metric.transactions_committed.increment(1);
        metric.commit_seconds.record(took.as_secs_f64());
        for batch in state.in_flight.iter().take(batches) {
            for index in batch.uncommitted() {
                if !batch.is_cancelled(batch.position(index)) {
                    context.on_delivered(batch, index, self.wall);
                }
            }
        }
        let wall = self.wall;
        state.finish_committed(batches, pair, |batch, outcomes| {
            context.trace_delivery(batch, outcomes, wall);
        });
    }

    fn on_producer_lost(&mut self, shard: &ShardId, state: &mut ShardState, reason: &str) {
        let Some(txn) = &mut state.txn else { return };
        tracing::warn!(%shard, reason,
            "transactional producer lost: opening another one, which delivers uncommitted messages");
        if let Some(number) = txn.number() {
            let route = &self.options.routes[&shard.route];
            self.producers.end_transactor(route, number);
        }
        txn.on_lost(self.now);
    }
}

/// True if a failure is caused by the record itself. Other failures are undone with the
/// transaction, and the record is sent again.
fn is_about_the_record(failure: &DeliveryFailure) -> bool {
    match failure.kind {
        FailureKind::Rejected => true,
        FailureKind::NotDelivered => failure.reason != Reason::TimedOut,
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
        commit: txn.and_then(|txn| commit_pair(&state.in_flight, txn.highest_position())),
    }
}

/// True if nothing more will be delivered.
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
    if is_closed && state.ownership.is_expired(now) {
        // The renewal of the lease is not announced.
        return Some(now + RESEND_DELAY_MIN);
    }
    let has_work = state.has_work_soon(wall);
    let open_at = state
        .first_due()
        .filter(|_| is_closed && !has_work)
        .map(|due| {
            let until_due = due.since(wall);
            now + until_due.saturating_sub(TRANSACTIONAL_PRODUCER_OPEN_AHEAD)
        });
    [txn.next_wakeup(has_work, now), open_at]
        .into_iter()
        .flatten()
        .min()
}
