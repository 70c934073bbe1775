//! Leases, which give the right to deliver a shard, and the ids of workers.

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

/// The id of one worker in its deployment. Random, and new after each restart: a restarted process
/// does not own the leases of its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WorkerId(pub(crate) u128);

impl WorkerId {
    /// Parses the text that `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let id = Self(u128::from_str_radix(text, 16).ok()?);
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_worker_id_reads_back_from_its_text_and_foreign_text_is_rejected(id: u128, text: String) {
            prop_assert_eq!(WorkerId::parse(&WorkerId(id).to_string()), Some(WorkerId(id)));
            prop_assert!(WorkerId::parse(&text).is_none_or(|worker| worker.to_string().eq_ignore_ascii_case(&text)));
        }
    }
}
