//! A lease: the right of one worker to deliver a shard, for a limited time.

use crate::model::shard::ShardId;
use std::fmt;

/// Fences earlier holders of the lease. It is random, because a store that lost writes would issue
/// the same number of a counter twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LeaseToken(pub(crate) u128);

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A shard, and the token that proves the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) shard: ShardId,
    pub(crate) token: LeaseToken,
}
