//! The ledgers, put together for a person: the document of `postdate ledger --json` and of `GET /ledger`. A field of it is never renamed,
//! and none is taken away.

use super::report::{Known, shards};
use super::{Balance, Survey};
use crate::limit::SURVEY_SHARDS_MAX;
use crate::model::{ShardId, Timestamp};
use crate::store::Error;
use serde::{Deserialize, Serialize};

/// What became of the messages of each shard, and whether it adds up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sheet {
    pub(crate) deployment: String,
    pub(crate) store: String,
    pub(crate) at_ms: i64,
    /// Whether each shard's ledger adds up, as far as can be known.
    pub(crate) balances: bool,
    pub(crate) total: Sum,
    pub(crate) shards: Vec<Line>,
}

/// The ledger of one shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) route: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) balances: bool,
    pub(crate) sum: Sum,
}

/// Messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sum {
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

impl Sum {
    fn of(balance: &Balance) -> Self {
        let Balance {
            accepted,
            settled,
            quarantined,
            pending,
            difference,
            is_unsure,
        } = *balance;
        Self {
            accepted,
            delivered: settled.delivered,
            cancelled: settled.cancelled,
            dead_lettered: settled.dead_lettered,
            quarantined,
            sent_back: settled.sent_back,
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
pub(crate) async fn sheet(
    survey: &dyn Survey,
    known: &Known,
    route: Option<&str>,
    now: Timestamp,
) -> Result<Sheet, Error> {
    let Known {
        deployment, store, ..
    } = known.clone();
    let mut sheet = Sheet {
        deployment,
        store,
        at_ms: now.as_millis(),
        balances: true,
        ..Sheet::default()
    };
    for some in shards(survey, route).await?.chunks(SURVEY_SHARDS_MAX) {
        let balances = some.iter().zip(survey.balances(some).await?);
        // A shard that was erased meanwhile has none.
        sheet
            .shards
            .extend(balances.filter_map(|(shard, balance)| Some(line(shard, &balance?))));
    }
    sheet
        .shards
        .iter()
        .for_each(|line| sheet.total.add(line.sum));
    sheet.balances = sheet.shards.iter().all(|line| line.balances);
    Ok(sheet)
}

fn line(shard: &ShardId, balance: &Balance) -> Line {
    let (route, topic, partition) = (
        shard.route.to_string(),
        shard.partition.topic.to_string(),
        shard.partition.index,
    );
    Line {
        route,
        topic,
        partition,
        balances: balance.holds(),
        sum: Sum::of(balance),
    }
}
