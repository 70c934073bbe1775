//! The part of the port that moves shards to another store, while no worker uses them.
//!
//! A copy begins with a mark under the name of the shard. Until the copy ends, the shard is unknown to
//! all other calls, and `open` answers `Incompatible`. So no worker fills or delivers a part of a shard.
//! The end of the copy writes identity, positions and ledger, and the shard is there.
//!
//! Tails, lineages and leases are not copied. They concern only processes that have used the shard.

use super::rules::{Change, ShardMeta};
use super::{
    Error, IdPosition, Membership, QuarantineStore, RequestEffect, StoreAdmin, StoredShard,
};
use crate::model::{Cursor, ShardId, Slice, Timestamp};
use crate::run::RunName;
use async_trait::async_trait;
use bytes::Bytes;

/// The data that a store has under the name of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CopyState {
    Absent,
    /// A copy started and did not end.
    Begun,
    Stored(Box<StoredShard>),
    /// Data that this version cannot read. The text describes it.
    Unreadable(String),
}

/// A run, as it is stored: the name and the place of an encrypted run cannot change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredRun {
    /// `None`: the run is in quarantine.
    pub(crate) slice: Option<Slice>,
    pub(crate) name: RunName,
    /// Not used in quarantine.
    pub(crate) least_due: Timestamp,
    pub(crate) bytes: Bytes,
}

/// A small part of a shard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ShardEntry {
    /// One of the names of an id, and the place of the message that waits under it.
    Id(Box<[u8]>, Cursor),
    /// The place of a cancelled or rescheduled message.
    Changed(Cursor, Change),
    Effect(RequestEffect),
}

/// A part of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShardPart {
    pub(crate) runs: Vec<StoredRun>,
    pub(crate) entries: Vec<ShardEntry>,
}

/// The number of a copy, written with its mark. So two commands that run at once do not write one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyNumber(pub(crate) u64);

/// The number of parts of a shard, counted one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartCounts {
    pub(crate) runs: u64,
    pub(crate) quarantined_runs: u64,
    pub(crate) ids: u64,
    pub(crate) changed: u64,
    pub(crate) effects: u64,
    /// The messages that the store counts, quarantine included.
    pub(crate) messages: u64,
}

/// A store from which shards are copied, or to which they are. Runs are listed and fetched by
/// [`StoreQuery`](super::StoreQuery).
#[async_trait(?Send)]
pub(crate) trait CopyStore: QuarantineStore + StoreAdmin + Membership {
    async fn copy_state(&self, shard: &ShardId) -> Result<CopyState, Error>;

    /// Identity, positions, ledger and lineage. `None`: unknown shard.
    async fn shard_meta(&self, shard: &ShardId) -> Result<Option<ShardMeta>, Error>;

    /// The entries of a shard, one part in each call, and where the next part begins: `None` after the
    /// last one. An entry may come twice.
    async fn entries(
        &self,
        shard: &ShardId,
        from: Option<&IdPosition>,
    ) -> Result<(Vec<ShardEntry>, Option<IdPosition>), Error>;

    /// Counts a shard, or the part of it that was copied.
    async fn count_parts(&self, shard: &ShardId) -> Result<PartCounts, Error>;

    /// Begins a copy of the shard. Returns false if anything is stored under its name. On a full store:
    /// [`Error::Full`].
    async fn begin_copy(&self, shard: &ShardId, copy: CopyNumber) -> Result<bool, Error>;

    /// Adds a part to this copy. Returns false if there is none that did not end.
    ///
    /// Safe to repeat. On a full store: [`Error::Full`].
    async fn add_to_copy(
        &self,
        shard: &ShardId,
        copy: CopyNumber,
        part: ShardPart,
    ) -> Result<bool, Error>;

    /// Ends this copy, in one step: the shard has these positions, and the lineage of a new shard. Returns
    /// false if there is no copy.
    async fn end_copy(
        &self,
        shard: &ShardId,
        copy: CopyNumber,
        meta: &ShardMeta,
    ) -> Result<bool, Error>;

    /// The number of live workers of version 0.1.0, which have no sessions. Only Redis can have some.
    async fn older_workers(&self) -> Result<usize, Error> {
        Ok(0)
    }
}

/// Describes a shard whose copy did not end. `name` is the shard, or its key.
pub(crate) fn begun_copy(name: &str) -> String {
    format!(
        "`{name}` holds a part of a shard, because `postdate store copy` was interrupted: stop the service and repeat \
         the command. If the old store is gone, erase only this shard (`postdate reset`): its messages are then read again \
         from the source, as far as the source retains them"
    )
}
