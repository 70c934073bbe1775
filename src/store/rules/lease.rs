//! The lease of a shard: which worker may deliver it, and until when (I5). Pure: the caller passes
//! the time.

use crate::model::{LeaseToken, Timestamp};
use std::time::Duration;

/// The token of the holder and the end of its lease; `None` if the lease is free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseHolder(Option<(LeaseToken, Timestamp)>);

impl LeaseHolder {
    /// Takes the lease if it is free, has expired, or is held with this token.
    pub(crate) fn acquire(&mut self, token: LeaseToken, length: Duration, now: Timestamp) -> bool {
        let is_available = self
            .0
            .is_none_or(|(holder, end)| holder == token || end <= now);
        if is_available {
            self.0 = Some((token, now.plus(length)));
        }
        is_available
    }

    /// Extends the lease of this token. An expired lease that no other worker took is extended too.
    pub(crate) fn renew(&mut self, token: LeaseToken, length: Duration, now: Timestamp) -> bool {
        let is_held = self.is_held(token);
        if is_held {
            self.0 = Some((token, now.plus(length)));
        }
        is_held
    }

    pub(crate) fn release(&mut self, token: LeaseToken) {
        if self.is_held(token) {
            self.0 = None;
        }
    }

    /// The holder of the lease, unless it has expired.
    #[cfg(test)]
    pub(crate) fn holder_at(&self, now: Timestamp) -> Option<LeaseToken> {
        self.0.filter(|(_, end)| *end > now).map(|(token, _)| token)
    }

    pub(crate) fn is_held(&self, token: LeaseToken) -> bool {
        self.0.is_some_and(|(holder, _)| holder == token)
    }
}
