//! Gives tasks to the compactor and makes the run replacements that it proposes.
//!
//! The result of a call that fails or is dropped is unknown, and that is safe: listing finds the
//! runs that exist, and a run that is missing makes the shard load again.

use super::StoreCall;
use super::compactor::{CompactionReply, CompactionResult, CompactionTask, Replacement};
use super::shard::{ShardState, ShardStates};
use crate::model::{Lease, ShardId, Slice, Timestamp};
use crate::run::RunName;
use crate::store::{Error, ReplaceRuns, Replaced, Store};
use futures_util::future::{FusedFuture, FutureExt};
use std::rc::Rc;
use tokio::time::Instant;

/// The replacement in progress, and the compactor's result that comes next.
pub(super) struct ReplacementCall {
    next: Option<CompactionReply>,
    call: StoreCall<ReplacementReply>,
}

/// The store's reply.
pub(super) struct ReplacementReply {
    lease: Lease,
    /// The number of replacements that this process knew of when it called.
    known_replacements: u64,
    inputs: Vec<(Slice, RunName)>,
    outcome: Result<Vec<Replaced>, Error>,
}

impl ReplacementCall {
    pub(super) fn new() -> Self {
        Self {
            next: None,
            call: StoreCall::terminated(),
        }
    }

    /// True if it accepts a result of the compactor. It holds one at a time, to bound its memory.
    pub(super) fn is_idle(&self) -> bool {
        self.next.is_none() && self.call.is_terminated()
    }

    pub(super) fn add_result(&mut self, result: CompactionReply) {
        self.next = Some(result);
    }

    /// Starts the proposed replacement if it is still valid.
    pub(super) fn start(
        &mut self,
        store: &Rc<dyn Store>,
        shards: &mut ShardStates,
        wall: Timestamp,
    ) {
        let Some(CompactionReply { shard, tag, result }) = self.next.take() else {
            return;
        };
        let state = shards
            .get_mut(&shard)
            .filter(|state| state.load.generation() == tag);
        let Some(state) = state else { return };
        let Some(replacement) = valid_replacement(state, result, wall, Instant::now()) else {
            return;
        };
        let Some(known_replacements) = known_replacements(state) else {
            return;
        };
        let Replacement {
            inputs,
            outputs,
            valid_until,
        } = replacement;
        state.compaction.start_replacement(valid_until);
        let store = store.clone();
        let request = ReplaceRuns {
            lease: state.lease.clone(),
            known_replacements,
            inputs,
            outputs,
        };
        let call = async move {
            let outcome = store.replace_runs(std::slice::from_ref(&request)).await;
            ReplacementReply {
                lease: request.lease,
                known_replacements,
                inputs: request.inputs,
                outcome,
            }
        };
        self.call = call.boxed_local().fuse();
    }

    /// Waits for the reply; forever if there is no call. Safe to drop.
    pub(super) async fn reply(&mut self) -> ReplacementReply {
        (&mut self.call).await
    }
}

/// The next task of a shard for the compactor, if it is time for one.
pub(super) fn next_task(
    state: &mut ShardState,
    wall: Timestamp,
    now: Instant,
) -> Option<CompactionTask> {
    let horizon = state.load.horizon();
    if !state.ownership.is_active() || horizon.is_at_once() {
        return None;
    }
    let seen = state.load.schedule().seen();
    let scan_from = state.compaction.start(seen, now)?;
    let loaded_until = if fault!(CompactRunsBeingLoaded) {
        Timestamp::AT_ONCE
    } else {
        horizon.max(wall)
    };
    Some(CompactionTask {
        shard: state.lease.shard.clone(),
        tag: state.load.generation(),
        loaded_until,
        scan_from,
        hour_messages_max: state.load.memory().messages_per_part(4),
    })
}

/// Handles a result of the compactor. Returns the replacement to make, if none of its runs is loaded
/// or about to be.
pub(super) fn valid_replacement(
    state: &mut ShardState,
    result: CompactionResult,
    wall: Timestamp,
    now: Instant,
) -> Option<Replacement> {
    let replacement = state.compaction.on_result(result, now)?;
    let is_not_loaded = state.load.horizon().max(wall) < replacement.valid_until;
    let may_replace =
        state.ownership.is_active() && (is_not_loaded || fault!(CompactRunsBeingLoaded));
    may_replace.then_some(replacement)
}

/// The number of run replacements that the store has made, as far as known.
pub(super) fn known_replacements(state: &ShardState) -> Option<u64> {
    let seen = state.load.known_replacements()?;
    let own = state.compaction.replacements();
    Some(own.map_or(seen, |own| own.max(seen)))
}

/// The call has ended. `replaced` has the new replacement count and the replaced runs if it has
/// succeeded.
pub(super) fn finish_replacement(
    state: &mut ShardState,
    replaced: Option<(u64, &[(Slice, RunName)])>,
    now: Instant,
) {
    let count = replaced.map(|(count, _)| count);
    state.compaction.finish_replacement(count, now);
    let Some((_, inputs)) = replaced else { return };
    if !fault!(ForgetReplacedRun) {
        for (_, name) in inputs {
            state.load.runs_mut().mark_replaced(name);
        }
    }
}

/// Applies a reply. Returns the shard if its lease is lost.
pub(super) fn apply_replacement(
    shards: &mut ShardStates,
    reply: ReplacementReply,
) -> Result<Option<ShardId>, Error> {
    let ReplacementReply {
        lease,
        known_replacements,
        inputs,
        outcome,
    } = reply;
    // A reply for an ended lease says nothing about the current one.
    let state = shards
        .get_mut(&lease.shard)
        .filter(|state| state.lease == lease);
    let Some(state) = state else { return Ok(None) };
    let now = Instant::now();
    let shard = lease.shard;
    let outcome = outcome.map(|outcomes| outcomes.first().copied());
    if let Ok(Some(Replaced::Done)) = outcome {
        finish_replacement(state, Some((known_replacements + 1, &inputs)), now);
        let metric = &state.context.route.metric;
        metric.compacted_runs.increment(inputs.len() as u64);
        return Ok(None);
    }
    finish_replacement(state, None, now);
    match outcome {
        Ok(Some(Replaced::Fenced | Replaced::Unknown)) => Ok(Some(shard)),
        Ok(_) => Ok(None),
        Err(error) if error.is_transient() => {
            tracing::debug!(%shard, %error, "cannot replace runs");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
