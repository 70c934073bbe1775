//! The ledger report: the JSON of `postdate ledger --json` and `GET /ledger`. Fields are never
//! renamed or removed.

use super::StoreQuery;
use super::pending::{QueryContext, shards_of_route};
use crate::limit::QUERY_SHARDS_PER_CALL_MAX;
use crate::model::Timestamp;
use crate::store::{Balance, Error};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The ledgers of all shards, and whether they add up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct LedgerReport {
    pub(crate) deployment: String,
    pub(crate) store: String,
    pub(crate) at_ms: i64,
    /// True if every ledger adds up, as far as it is certain.
    pub(crate) balances: bool,
    pub(crate) total: Balance,
    pub(crate) shards: Vec<ShardLedger>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ShardLedger {
    pub(crate) route: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) balances: bool,
    pub(crate) sum: Balance,
}

/// Reads the ledgers of one route, or of all routes.
pub(crate) async fn ledger_report(
    query: &dyn StoreQuery,
    context: &QueryContext,
    route: Option<&str>,
    now: Timestamp,
) -> Result<LedgerReport, Error> {
    let mut report = LedgerReport {
        deployment: context.deployment.clone(),
        store: context.store.clone(),
        at_ms: now.as_millis(),
        balances: true,
        ..LedgerReport::default()
    };
    let shards = shards_of_route(query, route).await?;
    for shards in shards.chunks(QUERY_SHARDS_PER_CALL_MAX) {
        for (shard, state) in shards.iter().zip(query.states(shards).await?) {
            // A shard that was erased meanwhile has no state.
            let Some(state) = state else { continue };
            let sum = Balance::of(&state);
            report.total.add(&sum);
            report.balances &= sum.is_balanced();
            report.shards.push(ShardLedger {
                route: shard.route.to_string(),
                topic: shard.partition.topic.to_string(),
                partition: shard.partition.index,
                balances: sum.is_balanced(),
                sum,
            });
        }
    }
    Ok(report)
}
