//! Unreadable runs, set aside so that the rest of their shards goes on.

use super::RouteOptions;
use super::work::ShardState;
use crate::model::ShardId;
use crate::store::{Error, Quarantine, Store};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Moves the unreadable runs of all shards into quarantine. A store that does not answer now is asked again with the next call.
pub(super) async fn quarantine_unreadable(
    store: &dyn Store,
    works: &mut BTreeMap<ShardId, ShardState>,
    routes: &BTreeMap<Arc<str>, RouteOptions>,
) -> Result<(), Error> {
    let mut requests = Vec::new();
    for work in works
        .values_mut()
        .filter(|work| !work.unreadable_runs.is_empty())
    {
        requests.push(Quarantine {
            lease: work.lease.clone(),
            runs: std::mem::take(&mut work.unreadable_runs),
        });
    }
    if requests.is_empty() {
        return Ok(());
    }
    match store.quarantine(&requests).await {
        Ok(moved) => {
            for (request, moved) in requests.iter().zip(moved) {
                routes[&request.lease.shard.route]
                    .metric
                    .quarantined_runs
                    .increment(moved as u64);
            }
        }
        Err(error) if error.is_transient() => {
            for request in requests {
                if let Some(work) = works.get_mut(&request.lease.shard) {
                    work.unreadable_runs.extend(request.runs);
                }
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
