//! Read-only questions of people: the commands `pending` and `ledger`, and the admin server. The
//! ingress and the timer never ask them, so they may be slow. The modules build the reports.

mod ledger;
mod pending;

use super::{Error, StoredShard};
use crate::model::{Cursor, ShardId};
use async_trait::async_trait;
pub(crate) use ledger::{LedgerReport, ShardLedger, ledger_report};
pub(crate) use pending::{
    Amount, IdSearch, PendingReport, PendingShard, QueryContext, find_id, pending_report,
};
#[cfg(test)]
pub(crate) use pending::{FoundMessage, PendingHour, PendingRoute};

/// Reads for people. Calls may be repeated. Two calls never see one consistent moment.
#[async_trait(?Send)]
pub(crate) trait StoreQuery {
    /// The shards of the deployment, ordered. A shard that is created or erased meanwhile may be
    /// missing or included.
    async fn shards(&self) -> Result<Vec<ShardId>, Error>;

    /// The state of each shard, read in one step per shard. `None`: unknown shard.
    async fn states(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error>;

    /// The place of the message that waits under each id. `None`: no message waits under it.
    async fn find_ids(&self, ids: &[(ShardId, Box<str>)]) -> Result<Vec<Option<Cursor>>, Error>;
}
