//! The ledgers, put together for a person: the document of `postdate ledger --json` and of `GET /ledger`. A field of it is never renamed,
//! and none is taken away.

use super::report::{QueryContext, shards_of_route};
use super::{Balance, StoreQuery};
use crate::limit::QUERY_SHARDS_PER_CALL_MAX;
use crate::model::{ShardId, Timestamp};
use crate::store::Error;
use serde::{Deserialize, Serialize};

/// What became of the messages of each shard, and whether it adds up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LedgerReport {
    pub(crate) deployment: String,
    pub(crate) store: String,
    pub(crate) at_ms: i64,
    /// Whether each shard's ledger adds up, as far as can be known.
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

/// Messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LedgerTotals {
    pub(crate) accepted: u64,
    pub(crate) delivered: u64,
    pub(crate) cancelled: u64,
    pub(crate) dead_lettered: u64,
    pub(crate) quarantined: u64,
    pub(crate) sent_back: u64,
    pub(crate) pending: u64,
    /// Accepted less all others.
    pub(crate) difference: i64,
    /// A loss of the store, or of a lease, was not made up for yet: the difference says nothing.
    pub(crate) unsure: bool,
}

impl LedgerTotals {
    fn of(balance: &Balance) -> Self {
        let Balance {
            accepted,
            outcomes: settled,
            quarantined,
            pending,
            difference,
            is_uncertain: is_unsure,
        } = *balance;
        Self {
            accepted,
            delivered: settled.delivered,
            cancelled: settled.cancelled,
            dead_lettered: settled.dead_lettered,
            quarantined,
            sent_back: settled.retried,
            pending,
            difference,
            unsure: is_unsure,
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

/// Asks for the ledgers of one route or of all.
pub(crate) async fn ledger_report(
    survey: &dyn StoreQuery,
    known: &QueryContext,
    route: Option<&str>,
    now: Timestamp,
) -> Result<LedgerReport, Error> {
    let QueryContext {
        deployment, store, ..
    } = known.clone();
    let mut sheet = LedgerReport {
        deployment,
        store,
        at_ms: now.as_millis(),
        balances: true,
        ..LedgerReport::default()
    };
    for some in shards_of_route(survey, route)
        .await?
        .chunks(QUERY_SHARDS_PER_CALL_MAX)
    {
        let balances = some.iter().zip(survey.balances(some).await?);
        // A shard that was erased meanwhile has none.
        sheet
            .shards
            .extend(balances.filter_map(|(shard, balance)| Some(shard_ledger(shard, &balance?))));
    }
    sheet
        .shards
        .iter()
        .for_each(|line| sheet.total.add(line.sum));
    sheet.balances = sheet.shards.iter().all(|line| line.balances);
    Ok(sheet)
}

fn shard_ledger(shard: &ShardId, balance: &Balance) -> ShardLedger {
    let (route, topic, partition) = (
        shard.route.to_string(),
        shard.partition.topic.to_string(),
        shard.partition.index,
    );
    ShardLedger {
        route,
        topic,
        partition,
        balances: balance.is_balanced(),
        sum: LedgerTotals::of(balance),
    }
}
