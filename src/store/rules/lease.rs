//! The lease of a shard. Pure.

use crate::model::LeaseToken;

/// Which token may deliver a shard (I5); `None` if the lease is free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseHolder(Option<LeaseToken>);

impl LeaseHolder {
    /// Takes the lease if it is free, or if its holder is this token or has `ended`. Fails with the
    /// holder.
    pub(crate) fn acquire(
        &mut self,
        token: LeaseToken,
        ended: Option<LeaseToken>,
    ) -> Result<(), LeaseToken> {
        match self.0 {
            Some(held) if held != token && Some(held) != ended => Err(held),
            _ => {
                self.0 = Some(token);
                Ok(())
            }
        }
    }

    pub(crate) fn release(&mut self, token: LeaseToken) {
        if self.is_held(token) {
            self.0 = None;
        }
    }

    pub(crate) fn holder(&self) -> Option<LeaseToken> {
        self.0
    }

    pub(crate) fn is_held(&self, token: LeaseToken) -> bool {
        self.0 == Some(token)
    }
}
