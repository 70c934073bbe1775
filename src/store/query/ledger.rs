//! The ledger report: the JSON of `postdate ledger --json` and `GET /ledger`. Fields are never
//! renamed or removed.

use super::StoreQuery;
use super::pending::{QueryContext, shards_of_route};
use crate::limit::QUERY_SHARDS_PER_CALL_MAX;
use crate::model::Timestamp;
use crate::store::{Balance, Error};
use serde::{Deserialize, Serialize};

/// The ledgers of all shards, and whether they add up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LedgerReport {
    pub(crate) deployment: String,
    pub(crate) store: String,
    pub(crate) at_ms: i64,
    /// True if every ledger adds up, as far as it is certain.
    pub(crate) balances: bool,
    pub(crate) total: LedgerTotals,
    pub(crate) shards: Vec<ShardLedger>,
}

/// The ledger of one shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardLedger {
    pub(crate) route: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) balances: bool,
    pub(crate) sum: LedgerTotals,
}

/// Numbers of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LedgerTotals {
    pub(crate) accepted: u64,
    pub(crate) delivered: u64,
    pub(crate) cancelled: u64,
    pub(crate) dead_lettered: u64,
    pub(crate) quarantined: u64,
    /// Retried: sent back to the source.
    pub(crate) sent_back: u64,
    pub(crate) pending: u64,
    /// Accepted minus all other counts.
    pub(crate) difference: i64,
    /// The store or a timer lost outcomes. The difference means nothing until the shard is empty.
    pub(crate) unsure: bool,
}

impl LedgerTotals {
    fn of(balance: &Balance) -> Self {
        Self {
            accepted: balance.accepted,
            delivered: balance.outcomes.delivered,
            cancelled: balance.outcomes.cancelled,
            dead_lettered: balance.outcomes.dead_lettered,
            quarantined: balance.quarantined,
            sent_back: balance.outcomes.retried,
            pending: balance.pending,
            difference: balance.difference,
            unsure: balance.is_uncertain,
        }
    }

    fn add(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.delivered += other.delivered;
        self.cancelled += other.cancelled;
        self.dead_lettered += other.dead_lettered;
        self.quarantined += other.quarantined;
        self.sent_back += other.sent_back;
        self.pending += other.pending;
        self.difference += other.difference;
        self.unsure |= other.unsure;
    }
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
            let balance = Balance::of(&state);
            let sum = LedgerTotals::of(&balance);
            report.total.add(sum);
            report.balances &= balance.is_balanced();
            report.shards.push(ShardLedger {
                route: shard.route.to_string(),
                topic: shard.partition.topic.to_string(),
                partition: shard.partition.index,
                balances: balance.is_balanced(),
                sum,
            });
        }
    }
    Ok(report)
}
