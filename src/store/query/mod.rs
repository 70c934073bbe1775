//! Questions and repairs of people: the commands that read the store, and the admin server. The ingress and the timer never make these calls, so they may be slow. The modules build
//! the reports.

mod audit;
mod change_outcome;
mod keys;
mod ledger;
mod message_copy;
mod message_filter;
mod messages;
mod pause;
mod pending;
mod search_position;
#[cfg(test)]
mod search_tests;
mod workers;

use super::{
    AuditPart, AuditPosition, AuditRow, Error, Fetch, List, Listed, Restore, Restored, Session,
    StoredShard,
};
use crate::encryption::{IdCounts, StoredId};
use crate::model::{Cursor, LeaseToken, ShardId, Timestamp};
use crate::run::RunName;
use async_trait::async_trait;
pub(crate) use audit::{AuditLine, AuditReport};
use bytes::Bytes;
pub(crate) use change_outcome::{AskedChange, ChangeOutcome, ChangeQuery};
pub(crate) use keys::{KeyAmount, KeysReport};
pub(crate) use ledger::{LedgerReport, ShardLedger};
pub(crate) use message_copy::{MessageCopy, bytes_of_copy, text as text_of_bytes};
pub(crate) use message_filter::{MessageFilter, joined as joined_conditions};
pub(crate) use messages::{MessageHeader, MessagePage, Search, WaitingMessage};
pub(crate) use pause::PauseReport;
pub(crate) use pending::{
    Amount, FoundMessage, IdSearch, PendingHour, PendingReport, PendingRoute, PendingShard,
    QueryContext,
};
pub(crate) use search_position::SearchPosition;
pub(crate) use workers::{ShardLoad, WorkerReport, WorkersReport};

/// A question that a command or the admin server answers. `route: None` means all routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    /// Counts of waiting messages: [`PendingReport`].
    Pending { route: Option<String> },
    /// The waiting message of an id: [`IdSearch`].
    Message { id: String, route: Option<String> },
    /// Counts of accepted and finished messages: [`LedgerReport`].
    Ledger { route: Option<String> },
    /// Counts of messages and ids that still use each key: [`KeysReport`].
    Keys,
    /// Waiting messages: [`MessagePage`].
    Messages(Box<Search>),
    /// The outcome of a change: [`ChangeOutcome`].
    Change(Box<ChangeQuery>),
    /// The pause of a route: [`PauseReport`].
    Pause { route: String },
    /// The workers of the deployment: [`WorkersReport`].
    Workers,
    /// The last audit lines, from the newest one or from `after` on: [`AuditReport`].
    Audit {
        /// Without the lines of frequent requests.
        changes_only: bool,
        after: Option<AuditPosition>,
        limit: usize,
    },
}

impl Query {
    /// Answers with the JSON document of the report.
    pub(crate) async fn answer(
        &self,
        store: &dyn StoreQuery,
        context: &QueryContext,
        now: Timestamp,
    ) -> Result<String, Error> {
        let document = match self {
            Self::Pending { route } => {
                let report = pending::pending_report(store, context, route.as_deref(), now);
                serde_json::to_string(&report.await?)
            }
            Self::Message { id, route } => {
                let wanted = (id.as_str(), route.as_deref());
                serde_json::to_string(&pending::find_id(store, context, wanted, now).await?)
            }
            Self::Ledger { route } => {
                let report = ledger::ledger_report(store, context, route.as_deref(), now);
                serde_json::to_string(&report.await?)
            }
            Self::Keys => serde_json::to_string(&keys::keys_report(store, context).await?),
            Self::Messages(search) => {
                let page = messages::search(store, context, search, now);
                serde_json::to_string(&page.await?)
            }
            Self::Change(change) => {
                serde_json::to_string(&change_outcome::change_outcome(store, change).await?)
            }
            Self::Pause { route } => {
                let report = pause::pause_report(store, context, route, now);
                serde_json::to_string(&report.await?)
            }
            Self::Workers => {
                serde_json::to_string(&workers::workers_report(store, context, now).await?)
            }
            Self::Audit {
                changes_only,
                after,
                limit,
            } => {
                let parts = if *changes_only {
                    &[AuditPart::Changes][..]
                } else {
                    &AuditPart::ALL
                };
                let after = after.as_ref();
                let report = audit::audit_report(store, context, parts, after, *limit, now);
                serde_json::to_string(&report.await?)
            }
        };
        Ok(document.expect("reports contain only numbers, texts and lists"))
    }
}

/// The last change of a message that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceChange {
    /// A record has cancelled or replaced the message.
    Cancelled,
    /// A record has rescheduled the message, which goes back to its source with this due time.
    Moved(Timestamp),
}

/// Reads for people. Calls may be repeated. Two calls never see one consistent moment.
#[async_trait(?Send)]
pub(crate) trait StoreQuery {
    /// The shards of the deployment, ordered. A shard that is created or erased meanwhile may be
    /// missing or included.
    async fn shards(&self) -> Result<Vec<ShardId>, Error>;

    /// The state of each shard, read in one step per shard. `None`: unknown shard.
    async fn states(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error>;

    /// The token that holds each shard. `None`: unknown shard, or free lease.
    async fn holders(&self, shards: &[ShardId]) -> Result<Vec<Option<LeaseToken>>, Error>;

    /// The place of the message that waits under each id. `None`: no message waits under it.
    async fn find_ids(&self, ids: &[(ShardId, StoredId)]) -> Result<Vec<Option<Cursor>>, Error>;

    /// The last change of the message at each place. Only right for the place of a stored message
    /// outside of the delivered pair.
    async fn changes(
        &self,
        places: &[(ShardId, Cursor)],
    ) -> Result<Vec<Option<PlaceChange>>, Error>;

    /// A bound for each shard: no message that waits at a place with an earlier due time has been
    /// rescheduled. `None`: none that is due before `before`.
    async fn moved_from(
        &self,
        shards: &[ShardId],
        before: Timestamp,
    ) -> Result<Vec<Option<Timestamp>>, Error>;

    /// The stored ids of a shard by their keys. May take seconds for a million ids. None for an unknown
    /// shard.
    async fn count_ids(&self, shard: &ShardId) -> Result<IdCounts, Error>;

    /// The names of the quarantined runs of a shard. None for an unknown shard.
    async fn quarantined_runs(&self, shard: &ShardId) -> Result<Vec<RunName>, Error>;

    /// The same as [`ShardStore::list`](super::ShardStore::list).
    async fn list_runs(&self, requests: &[List]) -> Result<Vec<Listed>, Error>;

    /// The same as [`ShardStore::fetch`](super::ShardStore::fetch).
    async fn fetch_runs(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error>;

    /// The same as [`Membership::sessions`](super::Membership::sessions).
    async fn worker_sessions(&self) -> Result<Vec<Session>, Error>;

    /// The lines in this part of the audit list, the newest first: those before `before`, at most `limit`.
    async fn audit_rows(
        &self,
        part: AuditPart,
        before: Option<&AuditPosition>,
        limit: usize,
    ) -> Result<Vec<AuditRow>, Error>;
}

/// The repair of a quarantine by a person.
#[async_trait(?Send)]
pub(crate) trait QuarantineStore: StoreQuery {
    /// The bytes of a quarantined run. `None`: the quarantine does not have it.
    async fn quarantined_bytes(
        &self,
        shard: &ShardId,
        name: &RunName,
    ) -> Result<Option<Bytes>, Error>;

    /// Puts the messages of a quarantined run back into slices and counts, as other runs: all or
    /// nothing. Ends the lease of the shard, so that its next owner loads them.
    ///
    /// Safe to repeat: the repeat answers `Gone`. On a full store: [`Error::Full`].
    async fn restore(&self, request: &Restore) -> Result<Restored, Error>;
}
