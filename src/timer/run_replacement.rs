//! Gives tasks to the compactor and makes the run replacements that it proposes.
//!
//! The result of a call that fails or is dropped is unknown, and that is safe: listing finds the
//! runs that exist, and a run that is missing makes the shard load again.

use super::StoreCall;
use super::compactor::{CompactionReply, CompactionResult, CompactionTask, Replacement};
use super::shard::{ShardState, ShardStates};
use crate::limit::COMPACT_STEP_PAUSE;
use crate::model::{ShardId, Slice, Timestamp};
use crate::run::RunName;
use crate::store::{Error, ReplaceRuns, Replaced, Store};
use futures_util::future::FutureExt as _;
use std::rc::Rc;
use tokio::time::Instant;

/// The store call that makes a replacement. While it runs, the dispatcher accepts no other result
/// of the compactor, to bound its memory.
pub(super) type ReplacementCall = StoreCall<ReplacementReply>;

/// A request, and the store's reply.
pub(super) type ReplacementReply = (ReplaceRuns, Result<Vec<Replaced>, Error>);

/// Handles a result of the compactor: starts the proposed replacement if it is still valid.
pub(super) fn on_compaction_reply(
    call: &mut ReplacementCall,
    store: &Rc<dyn Store>,
    shards: &mut ShardStates,
    reply: CompactionReply,
    wall: Timestamp,
) {
    if let Some(state) = shards.get_mut(&reply.shard)
        && state.load.generation == reply.tag
        && let Some(replacement) = valid_replacement(state, reply.result, wall, Instant::now())
        && let Some(known_replacements) = known_replacements(state)
    {
        state.compaction.replacing_until = Some(replacement.valid_until);
        let store = store.clone();
        let request = ReplaceRuns {
            lease: state.lease.clone(),
            known_replacements,
            inputs: replacement.inputs,
            outputs: replacement.outputs,
            renamed_ids: replacement.renamed_ids,
        };
        let replace_runs = async move {
            let outcome = store.replace_runs(std::slice::from_ref(&request)).await;
            (request, outcome)
        };
        *call = replace_runs.boxed_local().fuse();
    }
}

/// The next task of a shard for the compactor, if it is time for one.
pub(super) fn next_task(
    state: &mut ShardState,
    wall: Timestamp,
    now: Instant,
) -> Option<CompactionTask> {
    let horizon = state.load.prefetch.horizon;
    // A paused shard loads nothing, and its runs are merged nevertheless: it may wait for days.
    let is_unknown = horizon.is_at_once() && !state.load.is_paused();
    if !state.ownership.is_active() || is_unknown {
        return None;
    }
    let scan_from = state.compaction.start(state.load.schedule().seen(), now)?;
    let loaded_until = if fault!(CompactRunsBeingLoaded) {
        Timestamp::AT_ONCE
    } else {
        horizon.max(wall)
    };
    Some(CompactionTask {
        shard: state.lease.shard.clone(),
        tag: state.load.generation,
        loaded_until,
        scan_from,
        hour_messages_max: state.load.runs.memory.messages_per_part(4),
        id_scan: state.compaction.id_scan.clone(),
    })
}

/// Returns the proposed replacement, if none of its runs is loaded or about to be loaded.
pub(super) fn valid_replacement(
    state: &mut ShardState,
    result: CompactionResult,
    wall: Timestamp,
    now: Instant,
) -> Option<Replacement> {
    let replacement = state.compaction.on_result(result, now)?;
    let is_not_loaded = state.load.prefetch.horizon.max(wall) < replacement.valid_until;
    let may_replace =
        state.ownership.is_active() && (is_not_loaded || fault!(CompactRunsBeingLoaded));
    may_replace.then_some(replacement)
}

/// The number of run replacements that the store has made, as far as known.
pub(super) fn known_replacements(state: &ShardState) -> Option<u64> {
    let seen = state.load.lineage?.replacements;
    Some(seen.max(state.compaction.replacements.unwrap_or(0)))
}

/// The call has ended. `replaced` has the new replacement count and the replaced runs if it has
/// succeeded.
pub(super) fn finish_replacement(
    state: &mut ShardState,
    replaced: Option<(u64, &[(Slice, RunName)])>,
    now: Instant,
) {
    let compaction = &mut state.compaction;
    compaction.replacing_until = None;
    // If the result is unknown, the next reply to the loader has the count.
    compaction.replacements = replaced.map(|(count, _)| count);
    let Some((_, inputs)) = replaced else { return };
    compaction.next_at = now + COMPACT_STEP_PAUSE;
    for (_, name) in inputs {
        if !fault!(ForgetReplacedRun) {
            state.load.runs.index.mark_replaced(name);
        }
    }
}

/// Applies a reply. Returns the shard if its lease is lost.
pub(super) fn apply_replacement(
    shards: &mut ShardStates,
    (request, outcome): ReplacementReply,
) -> Result<Option<ShardId>, Error> {
    let shard = request.lease.shard.clone();
    // A reply for an ended lease says nothing about the current one.
    let state = shards
        .get_mut(&shard)
        .filter(|state| state.lease == request.lease);
    let Some(state) = state else { return Ok(None) };
    let outcome = outcome.map(|outcomes| outcomes.first().copied());
    let is_done = matches!(outcome, Ok(Some(Replaced::Done)));
    let count = request.known_replacements + 1;
    let replaced = is_done.then_some((count, &request.inputs[..]));
    finish_replacement(state, replaced, Instant::now());
    match outcome {
        Ok(Some(Replaced::Done)) => {
            let metric = &state.context.route.metric;
            metric.compacted_runs.increment(request.inputs.len() as u64);
        }
        Ok(Some(Replaced::Fenced | Replaced::Unknown)) => return Ok(Some(shard)),
        Ok(Some(Replaced::Conflict) | None) => {}
        Err(error) if error.is_transient() => {
            tracing::debug!(%shard, %error, "cannot replace runs: trying again later");
        }
        Err(error) => return Err(error),
    }
    Ok(None)
}
