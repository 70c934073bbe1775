//! The right of one timer worker to a shard, for a while.

use crate::model::shard::ShardId;
use std::fmt;

/// What shuts out an old holder. Random, never a counter: a store that went back would hand the same number out again.
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

/// A shard, and the token that its holder proves itself with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) shard: ShardId,
    pub(crate) token: LeaseToken,
}
