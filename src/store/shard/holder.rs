//! Who holds a shard's lease (I5). The caller's clock decides; nothing here asks for the time.

use crate::model::{LeaseToken, Timestamp};
use std::time::Duration;

/// The holder's token and the lease's end, if somebody holds it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseHolder(Option<(LeaseToken, Timestamp)>);

impl LeaseHolder {
    /// Takes a lease that is free, past its end, or held with this very token.
    pub(crate) fn acquire(&mut self, token: LeaseToken, length: Duration, now: Timestamp) -> bool {
        let is_free = self
            .0
            .is_none_or(|(holder, end)| holder == token || end <= now);
        if is_free {
            self.0 = Some((token, now.plus(length)));
        }
        is_free
    }

    /// Extends the token's own lease, even past its end, if nobody took it.
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

    /// Who holds the lease, unless it is past its end.
    #[cfg(test)]
    pub(crate) fn holder_at(&self, now: Timestamp) -> Option<LeaseToken> {
        self.0.filter(|(_, end)| *end > now).map(|(token, _)| token)
    }

    pub(crate) fn is_held(&self, token: LeaseToken) -> bool {
        self.0.is_some_and(|(holder, _)| holder == token)
    }
}
