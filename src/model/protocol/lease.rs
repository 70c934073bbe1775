//! Leases, which give the right to deliver a shard.

use crate::model::shard::ShardId;
use std::fmt;

/// Proves a lease, and fences its earlier holders. It is random, because a counter would issue the
/// same number twice after the store lost writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseToken(pub(crate) u128);

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The right of one worker to deliver a shard, for a limited time. The token proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) shard: ShardId,
    pub(crate) token: LeaseToken,
}
