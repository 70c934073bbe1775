//! Leases, which give the right to deliver a shard.

use super::worker::SessionId;
use crate::model::shard::ShardId;
use std::fmt;

/// Proves a lease, and fences its earlier holders. The session makes it unique: sessions have random
/// numbers, and a session counts its tenures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeaseToken {
    pub(crate) session: SessionId,
    /// Number of the attempt to acquire, never the same for two.
    pub(crate) tenure: u64,
}

impl LeaseToken {
    /// Parses the text that `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (session, tenure) = text.split_once('.')?;
        let token = Self {
            session: SessionId::parse(session)?,
            tenure: u64::from_str_radix(tenure, 16).ok()?,
        };
        (token.to_string() == text).then_some(token)
    }

    /// The only tenure of a session with this number.
    #[cfg(test)]
    pub(crate) fn for_test(number: u64) -> Self {
        let worker = crate::model::WorkerId(number.into());
        Self {
            session: SessionId { worker, number },
            tenure: 1,
        }
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.session, self.tenure)
    }
}

/// The right of one worker to deliver a shard, while its session lasts. The token proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) shard: ShardId,
    pub(crate) token: LeaseToken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_from_its_text_and_foreign_text_is_rejected() {
        let token = LeaseToken::for_test(7);
        assert_eq!(LeaseToken::parse(&token.to_string()), Some(token));
        for text in ["", "7", &format!("{token}0x"), &"0".repeat(32)] {
            assert_eq!(LeaseToken::parse(text), None);
        }
    }
}
