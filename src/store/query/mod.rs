//! Read-only questions of people: the commands `pending` and `ledger`, and the admin server. The
//! roles never ask them, so they may be slow. `pending` and `ledger` combine the answers.

mod ledger;
mod pending;

use super::{Balance, Error};
use crate::model::{Cursor, ShardId, Slice};
use async_trait::async_trait;
pub(crate) use ledger::{LedgerReport, LedgerTotals, ShardLedger, ledger_report};
#[cfg(test)]
pub(crate) use pending::{Amount, FoundMessage, PendingHour, PendingRoute};
pub(crate) use pending::{
    IdSearch, PendingReport, PendingShard, QueryContext, find_id, pending_report,
};

/// Reads for people. Calls may be repeated. Two calls never see one consistent moment.
#[async_trait(?Send)]
pub(crate) trait StoreQuery {
    /// The shards of the deployment, ordered. A shard that is created or erased meanwhile may be
    /// missing or included.
    async fn shards(&self) -> Result<Vec<ShardId>, Error>;

    /// The contents of each shard. An unknown shard is empty.
    async fn contents(&self, shards: &[ShardId]) -> Result<Vec<ShardContents>, Error>;

    /// The ledger of each shard, read in one step with its pending messages. `None`: unknown shard.
    async fn balances(&self, shards: &[ShardId]) -> Result<Vec<Option<Balance>>, Error>;

    /// The place of the message that waits under each id. `None`: no message waits under it.
    async fn find_ids(&self, ids: &[(ShardId, Box<str>)]) -> Result<Vec<Option<Cursor>>, Error>;
}

/// The contents of one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShardContents {
    /// Ordered by slice.
    pub(crate) slices: Vec<SliceCount>,
    /// Messages in quarantine, which belong to no slice.
    pub(crate) quarantined: u64,
}

/// The stored runs of one slice. A run is deleted when its last message has been delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceCount {
    pub(crate) slice: Slice,
    pub(crate) messages: u64,
    /// Compressed size.
    pub(crate) bytes: u64,
}
