//! What a person asks of a store, by commands beside the service. Reads only; the roles never ask it, so it may be slow. What is asked
//! most is put together in `report` and `sheet`.

mod report;
mod sheet;

use super::{Balance, Error};
use crate::model::{Cursor, ShardId, Slice};
use async_trait::async_trait;
#[cfg(test)]
pub(crate) use report::{Amount, FoundMessage, PendingHour, PendingRoute};
pub(crate) use report::{
    IdSearch, PendingReport, PendingShard, QueryContext, find_id, pending_report,
};
pub(crate) use sheet::{LedgerReport, LedgerTotals, ShardLedger, ledger_report};

/// See the module's page. Every call may be repeated; none is one step with anything else.
#[async_trait(?Send)]
pub(crate) trait StoreQuery {
    /// The deployment's shards, in order. One that is born or erased meanwhile may be among them or not.
    async fn shards(&self) -> Result<Vec<ShardId>, Error>;

    /// What each shard holds. An unborn shard holds nothing.
    async fn contents(&self, shards: &[ShardId]) -> Result<Vec<ShardContents>, Error>;

    /// Each shard's ledger, taken in one step with what waits. `None`: unborn.
    async fn balances(&self, shards: &[ShardId]) -> Result<Vec<Option<Balance>>, Error>;

    /// The place of the message that waits under each id; `None`: none does, or it was delivered.
    async fn find_ids(&self, ids: &[(ShardId, Box<str>)]) -> Result<Vec<Option<Cursor>>, Error>;
}

/// What one shard holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShardContents {
    /// In the order of slices.
    pub(crate) slices: Vec<SliceCount>,
    /// Messages in quarantine, which are in no slice.
    pub(crate) quarantined: u64,
}

/// What one slice holds, in runs that are not deleted yet: a run leaves when the last of its messages is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceCount {
    pub(crate) slice: Slice,
    pub(crate) messages: u64,
    /// As stored: compressed.
    pub(crate) bytes: u64,
}
