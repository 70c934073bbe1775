//! What a person asks of a store, by commands beside the service. Reads only; the roles never ask it, so it may be slow.

use super::Error;
use crate::model::{Cursor, ShardId, Slice};
use async_trait::async_trait;

/// See the module's page. Every call may be repeated; none is one step with anything else.
#[async_trait(?Send)]
pub(crate) trait Survey {
    /// The deployment's shards, in order. One that is born or erased meanwhile may be among them or not.
    async fn shards(&self) -> Result<Vec<ShardId>, Error>;

    /// What each shard holds, by slice, in the order of slices; quarantine is not among it. An unborn shard holds nothing.
    async fn slices(&self, shards: &[ShardId]) -> Result<Vec<Vec<SliceCount>>, Error>;

    /// The place of the message that waits under each id; `None`: none does, or it was delivered.
    async fn places(&self, ids: &[(ShardId, Box<str>)]) -> Result<Vec<Option<Cursor>>, Error>;
}

/// What one slice holds, in runs that are not deleted yet: a run leaves when the last of its messages is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceCount {
    pub(crate) slice: Slice,
    pub(crate) messages: u64,
    /// As stored: compressed.
    pub(crate) bytes: u64,
}
