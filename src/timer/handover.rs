//! Ends the service of a shard: by a planned handover to another worker, or because its lease is
//! lost.

use super::lease::ReleaseResult;
use super::shard::{ShardPhase, ShardState, ShardStates};
use crate::limit::{HANDOVER_TIMEOUT, LOST_LEASE_REPORTS_TIMEOUT};
use crate::metric::TimerMetrics;
use crate::model::ShardId;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Begins the handover to another worker: claimed messages are delivered, nothing more is claimed.
pub(super) fn start_handover(shards: &mut ShardStates, shard: &ShardId, now: Instant) {
    if let Some(state) = shards.get_mut(shard)
        && state.ownership.is_active()
    {
        let until = now + HANDOVER_TIMEOUT;
        state.ownership.phase = ShardPhase::HandingOver { until };
    }
}

/// The lease is lost: nothing more is sent, and only delivery reports are awaited.
pub(super) fn mark_lost(shards: &mut ShardStates, shard: &ShardId) {
    if let Some(state) = shards.get_mut(shard)
        && !state.ownership.is_lost()
    {
        tracing::warn!(%shard, in_flight = state.in_flight.open_messages(),
            "lease lost: delivery of the shard stops until a worker acquires it");
        let until = Instant::now() + LOST_LEASE_REPORTS_TIMEOUT;
        state.ownership.phase = ShardPhase::LeaseLost { until };
    }
}

/// True if messages of the shard may be sent. Logs once when its lease may have ended.
pub(super) fn check_lease(state: &mut ShardState, metric: &TimerMetrics) -> bool {
    if state.ownership.note_expiry(Instant::now()) {
        metric.leases_expired.increment(1);
        tracing::warn!(shard = %state.lease.shard, unsent = state.unsent_messages(),
            "session not renewed in time: delivery of the shard is paused until a heartbeat is answered");
    }
    state.ownership.may_deliver(Instant::now())
}

/// Removes shards whose handover is complete, and lost shards whose reports have arrived or are
/// overdue. A handover that takes too long is postponed. Returns the removed shards.
pub(super) fn finish_shards(
    shards: &mut ShardStates,
    results: &mpsc::Sender<ReleaseResult>,
) -> Vec<ShardState> {
    let now = Instant::now();
    let mut removed = Vec::new();
    let decided: Vec<_> = shards
        .iter()
        .filter_map(|(shard, state)| Some((shard.clone(), release_step(state, now)?)))
        .collect();
    for (shard, step) in decided {
        let Ok(room) = results.try_reserve() else {
            break;
        };
        if step == ReleaseStep::Postpone {
            if let Some(state) = shards.get_mut(&shard) {
                state.ownership.phase = ShardPhase::Active;
            }
            room.send(ReleaseResult::Postponed(shard));
        } else if let Some(state) = shards.remove(&shard) {
            let route = &state.context.route;
            if state.txn.is_none() {
                let repeated = state.unacknowledged_messages() + state.owing_messages();
                route.metric.possible_duplicates.increment(repeated as u64);
            }
            route.alerts.forget_shard(&shard);
            let delivered = state.in_flight.delivered();
            let claimed = state.in_flight.claimed();
            let seen = state.load.greatest_seen();
            let is_lost = state.ownership.is_lost();
            room.send(ReleaseResult::Ended {
                shard,
                delivered,
                claimed,
                seen,
                is_lost,
            });
            removed.push(state);
        }
    }
    removed
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReleaseStep {
    Remove,
    /// Keep the shard, and hand it over later.
    Postpone,
}

/// The next step of a shard that is being released. `None` waits.
fn release_step(state: &ShardState, now: Instant) -> Option<ReleaseStep> {
    let (is_ready, until, late) = match state.ownership.phase {
        ShardPhase::Active => return None,
        ShardPhase::HandingOver { until } => {
            (is_ready_for_handover(state), until, ReleaseStep::Postpone)
        }
        ShardPhase::LeaseLost { until } => (awaits_no_report(state), until, ReleaseStep::Remove),
    };
    match is_ready {
        true => Some(ReleaseStep::Remove),
        false => (until <= now).then_some(late),
    }
}

/// True if the outcome of every sent message is known. Messages of an uncommitted transaction are
/// not delivered.
fn awaits_no_report(state: &ShardState) -> bool {
    match &state.txn {
        Some(txn) => !txn.is_committing(),
        None => state.unacknowledged_messages() == 0,
    }
}

fn is_ready_for_handover(state: &ShardState) -> bool {
    let is_early = fault!(ReleaseWithClaimInFlight);
    let is_finished = !state.has_claims() || is_early;
    let is_reported = state.is_delivered_reported() || fault!(ReleaseWithoutDelivered) || is_early;
    is_finished && is_reported
}
