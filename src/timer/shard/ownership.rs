//! The lease of a shard as its owner sees it: may the worker claim and deliver?

use crate::timer::lease::LeaseClock;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardPhase {
    Active,
    /// Another worker gets the shard. The worker claims no more, and delivers the claimed
    /// messages until `until` at most.
    HandingOver {
        until: Instant,
    },
    /// The lease is gone. The worker neither claims nor sends, and awaits delivery reports until
    /// `until` at most.
    LeaseLost {
        until: Instant,
    },
}

pub(crate) struct Ownership {
    pub(crate) phase: ShardPhase,
    pub(crate) clock: LeaseClock,
    /// The lease has expired, and this was logged.
    expiry_reported: bool,
}

impl Ownership {
    pub(super) fn new(clock: LeaseClock) -> Self {
        Self {
            phase: ShardPhase::Active,
            clock,
            expiry_reported: false,
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.phase == ShardPhase::Active
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.phase, ShardPhase::LeaseLost { .. })
    }

    /// True if the lease is certainly valid, so that claimed messages may be sent.
    pub(crate) fn may_deliver(&self, now: Instant) -> bool {
        !self.is_lost() && !self.clock.may_be_taken(now)
    }

    pub(crate) fn may_claim(&self, now: Instant) -> bool {
        self.is_active() && !self.clock.may_be_taken(now)
    }

    /// Returns true once when the lease has expired.
    pub(crate) fn note_expiry(&mut self, now: Instant) -> bool {
        let is_expired = self.clock.has_expired(now);
        let was_reported = std::mem::replace(&mut self.expiry_reported, is_expired);
        is_expired && !was_reported
    }
}
