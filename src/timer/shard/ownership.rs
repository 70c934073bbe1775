//! The lease of a shard as its owner sees it: may the worker claim and deliver?

use crate::timer::lease::LeaseDeadline;
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

/// The lease of one shard as its owner sees it.
pub(crate) struct Ownership {
    phase: ShardPhase,
    deadline: LeaseDeadline,
    /// The deadline has passed and was logged.
    expiry_reported: bool,
}

impl Ownership {
    pub(super) fn new(deadline: LeaseDeadline) -> Self {
        Self {
            phase: ShardPhase::Active,
            deadline,
            expiry_reported: false,
        }
    }

    pub(crate) fn phase(&self) -> ShardPhase {
        self.phase
    }

    pub(crate) fn set_phase(&mut self, phase: ShardPhase) {
        self.phase = phase;
    }

    pub(crate) fn is_active(&self) -> bool {
        self.phase == ShardPhase::Active
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.phase, ShardPhase::LeaseLost { .. })
    }

    pub(crate) fn deadline(&self) -> &LeaseDeadline {
        &self.deadline
    }

    /// True if the lease was not renewed in time.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.deadline.has_passed(now)
    }

    /// True if the lease is certainly valid, so that claimed messages may be sent.
    pub(crate) fn may_deliver(&self, now: Instant) -> bool {
        !self.is_lost() && !self.is_expired(now)
    }

    pub(crate) fn may_claim(&self, now: Instant) -> bool {
        self.is_active() && !self.is_expired(now)
    }

    /// Returns true once when the lease has expired.
    pub(crate) fn note_expiry(&mut self, now: Instant) -> bool {
        let is_expired = self.is_expired(now);
        let is_new = is_expired && !self.expiry_reported;
        self.expiry_reported = is_expired;
        is_new
    }
}
