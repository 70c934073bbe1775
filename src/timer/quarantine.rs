//! Moves unreadable runs into quarantine, so that the other runs of their shards can be delivered.

use super::RouteOptions;
use super::shard::ShardStates;
use crate::store::{Error, Quarantine, Store};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Moves the unreadable runs of all shards. If the store does not answer, the next call tries again.
pub(super) async fn quarantine_unreadable(
    store: &dyn Store,
    shards: &mut ShardStates,
    routes: &BTreeMap<Arc<str>, RouteOptions>,
) -> Result<(), Error> {
    let mut requests = Vec::new();
    for state in shards.values_mut() {
        let runs = state.load.take_unreadable();
        if !runs.is_empty() {
            let lease = state.lease.clone();
            requests.push(Quarantine { lease, runs });
        }
    }
    if requests.is_empty() {
        return Ok(());
    }
    match store.quarantine(&requests).await {
        Ok(moved) => {
            for (request, moved) in requests.iter().zip(moved) {
                let metric = &routes[&request.lease.shard.route].metric;
                metric.quarantined_runs.increment(moved as u64);
            }
        }
        Err(error) if error.is_transient() => {
            for request in requests {
                if let Some(state) = shards.get_mut(&request.lease.shard) {
                    state.load.restore_unreadable(request.runs);
                }
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
