//! How a shard's work ends: as planned, for another worker is to have the shard; or because its lease is gone.

use super::RouteOptions;
use super::lease::ReleaseResult;
use super::work::{ShardPhase, ShardState};
use crate::limit::{HANDOVER_TIMEOUT, LOST_LEASE_REPORTS_TIMEOUT};
use crate::metric;
use crate::model::ShardId;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;

type ShardStates = BTreeMap<ShardId, ShardState>;

/// Another worker is to have the shard: what is claimed is finished, and nothing more is taken.
pub(super) fn start_handover(works: &mut ShardStates, shard: &ShardId, now: Instant) {
    if let Some(work) = works.get_mut(shard)
        && work.phase == ShardPhase::Active
    {
        work.phase = ShardPhase::HandingOver {
            until: now + HANDOVER_TIMEOUT,
        };
    }
}

/// The shard is not ours any more; what is in flight is waited for.
pub(super) fn drop_shard(works: &mut ShardStates, shard: &ShardId) {
    if let Some(work) = works.get_mut(shard)
        && !matches!(work.phase, ShardPhase::LeaseLost { .. })
    {
        tracing::warn!(%shard, in_flight = work.in_flight.open_messages(), "shard dropped: its lease is gone");
        work.phase = ShardPhase::LeaseLost {
            until: Instant::now() + LOST_LEASE_REPORTS_TIMEOUT,
        };
    }
}

/// Whether the shard is this worker's beyond doubt; says so once if it is not because the lease was not renewed in time.
pub(super) fn check_lease(
    work: &mut ShardState,
    shard: &ShardId,
    metric: &metric::TimerMetrics,
) -> bool {
    let is_out = work.lease_deadline.has_passed(Instant::now());
    if is_out && !work.expiry_reported {
        metric.leases_expired.increment(1);
        tracing::warn!(%shard, unsent = work.unsent_messages(), "lease not renewed in time: nothing of the shard is handed over until it is");
    }
    work.expiry_reported = is_out;
    work.may_deliver(Instant::now())
}

/// Ends works that are to be handed over and are finished, and those of shards that were lost, once nothing of them is in flight, or too
/// long; and lets those go on whose end takes too long. Answers those that have ended.
pub(super) fn finish_shards(
    works: &mut ShardStates,
    routes: &BTreeMap<Arc<str>, RouteOptions>,
    gave_up: &mpsc::Sender<ReleaseResult>,
) -> Vec<ShardState> {
    let (now, mut ended) = (Instant::now(), Vec::new());
    let due: Vec<_> = works
        .iter()
        .filter_map(|(shard, work)| Some((shard.clone(), handover_result(work, now)?)))
        .collect();
    for (shard, is_over) in due {
        let Ok(room) = gave_up.try_reserve() else {
            break;
        };
        if !is_over {
            works
                .get_mut(&shard)
                .expect("it was just found there")
                .phase = ShardPhase::Active;
            room.send(ReleaseResult::Postponed(shard));
        } else if let Some(work) = works.remove(&shard) {
            let route = &routes[&shard.route];
            if work.txn.is_none() {
                route
                    .metric
                    .possible_duplicates
                    .increment(work.unacknowledged_messages() as u64);
            }
            route.alerts.forget_shard(&shard);
            room.send(ReleaseResult::Ended {
                shard,
                delivered: work.in_flight.delivered(),
            });
            ended.push(work);
        }
    }
    ended
}

/// Whether a work ends, or goes on; `None`: that is not known yet.
fn handover_result(work: &ShardState, now: Instant) -> Option<bool> {
    match work.phase {
        ShardPhase::Active => None,
        ShardPhase::HandingOver { .. } if is_ready_for_handover(work) => Some(true),
        ShardPhase::HandingOver { until } => (until <= now).then_some(false),
        ShardPhase::LeaseLost { until } => {
            (has_nothing_in_flight(work) || until <= now).then_some(true)
        }
    }
}

/// Whether nothing of it is under way. What is in a transaction that is not committed is undone.
fn has_nothing_in_flight(work: &ShardState) -> bool {
    work.txn.as_ref().map_or_else(
        || work.unacknowledged_messages() == 0,
        |exact| !exact.is_committing(),
    )
}

fn is_ready_for_handover(work: &ShardState) -> bool {
    let is_finished = !work.has_claims() || fault!(ReleaseWithClaimInFlight);
    is_finished
        && (work.is_delivered_reported()
            || fault!(ReleaseWithoutDelivered)
            || fault!(ReleaseWithClaimInFlight))
}
