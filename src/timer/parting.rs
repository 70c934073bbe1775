//! How a shard's work ends: as planned, for another worker is to have the shard; or because its lease is gone.

use super::RouteOptions;
use super::claimer::GaveUp;
use super::work::{Phase, Work};
use crate::limit::{HAND_OVER_MAX, LEAVE_MAX};
use crate::metric;
use crate::model::ShardId;
use crate::mutant::{self, Mutant};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;

type Works = BTreeMap<ShardId, Work>;

/// Another worker is to have the shard: what is claimed is finished, and nothing more is taken.
pub(super) fn hand_over(works: &mut Works, shard: &ShardId, now: Instant) {
    if let Some(work) = works.get_mut(shard)
        && work.phase == Phase::Active
    {
        work.phase = Phase::HandingOver {
            until: now + HAND_OVER_MAX,
        };
    }
}

/// The shard is not ours any more; what is in flight is waited for.
pub(super) fn leave(works: &mut Works, shard: &ShardId) {
    if let Some(work) = works.get_mut(shard)
        && !matches!(work.phase, Phase::Leaving { .. })
    {
        tracing::warn!(%shard, in_flight = work.flights.left(), "shard dropped: its lease is gone");
        work.phase = Phase::Leaving {
            until: Instant::now() + LEAVE_MAX,
        };
    }
}

/// Whether the shard is this worker's beyond doubt; says so once if it is not because the lease was not renewed in time.
pub(super) fn is_ours(work: &mut Work, shard: &ShardId, metric: &metric::Timer) -> bool {
    let is_out = work.term.has_run_out(Instant::now());
    if is_out && !work.is_out {
        metric.leases_run_out.increment(1);
        tracing::warn!(%shard, unsent = work.unsent(), "lease not renewed in time: nothing of the shard is handed over until it is");
    }
    work.is_out = is_out;
    work.is_ours(Instant::now())
}

/// Ends works that are to be handed over and are finished, and those of shards that were lost, once nothing of them is in flight, or too
/// long; and lets those go on whose end takes too long. Answers those that have ended.
pub(super) fn part(
    works: &mut Works,
    routes: &BTreeMap<Arc<str>, RouteOptions>,
    gave_up: &mpsc::Sender<GaveUp>,
) -> Vec<Work> {
    let (now, mut ended) = (Instant::now(), Vec::new());
    let due: Vec<_> = works
        .iter()
        .filter_map(|(shard, work)| Some((shard.clone(), is_over(work, now)?)))
        .collect();
    for (shard, is_over) in due {
        let Ok(room) = gave_up.try_reserve() else {
            break;
        };
        if !is_over {
            works
                .get_mut(&shard)
                .expect("it was just found there")
                .phase = Phase::Active;
            room.send(GaveUp::PutOff(shard));
        } else if let Some(work) = works.remove(&shard) {
            let route = &routes[&shard.route];
            if work.exact.is_none() {
                route
                    .metric
                    .possible_duplicates
                    .increment(work.handed() as u64);
            }
            route.outcry.leave(&shard);
            room.send(GaveUp::Ended {
                shard,
                finished: work.flights.finished(),
            });
            ended.push(work);
        }
    }
    ended
}

/// Whether a work ends, or goes on; `None`: that is not known yet.
fn is_over(work: &Work, now: Instant) -> Option<bool> {
    match work.phase {
        Phase::Active => None,
        Phase::HandingOver { .. } if is_handed_over(work) => Some(true),
        Phase::HandingOver { until } => (until <= now).then_some(false),
        Phase::Leaving { until } => (has_landed(work) || until <= now).then_some(true),
    }
}

/// Whether nothing of it is under way. What is in a transaction that is not committed is undone.
fn has_landed(work: &Work) -> bool {
    work.exact
        .as_ref()
        .map_or_else(|| work.handed() == 0, |exact| !exact.is_committing())
}

fn is_handed_over(work: &Work) -> bool {
    let is_finished = !work.has_claims() || mutant::active(Mutant::HandsOverEarly);
    is_finished
        && (work.is_told()
            || mutant::active(Mutant::HandsOverUntold)
            || mutant::active(Mutant::HandsOverEarly))
}
