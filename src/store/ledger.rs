//! What became of a shard's messages, as numbers that must add up: what was accepted has been delivered, cancelled, dead-lettered,
//! sent back or set aside, or is pending. Pure.
//!
//! The two sides come from different places: what was accepted and what is pending from the runs that were stored and those that are there,
//! what was settled from the timers, which count each message by its own outcome. Of the runs that are there only those that are partly
//! settled are in both, and so `gone` says how many messages have left with their runs: *spent* messages are those that are settled, and
//! whose run is still there.
//!
//! | what happens | accepted | settled | gone | in runs |
//! |---|---|---|---|---|
//! | an append | + | | | + |
//! | delivered moves, with what was settled since | | + | | |
//! | a run is deleted, or rewritten without what is delivered | | | + | - |
//! | a run is set aside | | | | - (quarantine +) |
//!
//! All of it is in one place of the store, and changes in the same step as what it counts. So a store that goes back takes its ledger along.
//! What was settled before that by timers that live on is not counted again, as nobody tells it again: see [`Ledger::moved`] and [`Ledger::right`].

use super::StoredShard;
pub(crate) use crate::model::OutcomeCounts;

/// See the module's page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) accepted: u64,
    pub(crate) outcomes: OutcomeCounts,
    /// Messages of runs that are there no longer, but for those set aside.
    pub(crate) removed: u64,
    /// Something was settled that the store was not told, or has forgotten: nothing is claimed of the sum until the shard is empty once.
    pub(crate) is_uncertain: bool,
}

impl Ledger {
    /// Of a shard that was filled before there were ledgers: begins with what is there, of which some may be settled.
    pub(crate) fn starting_with(stored: u64) -> Self {
        Self {
            accepted: stored,
            is_uncertain: true,
            ..Self::default()
        }
    }

    /// Delivered moves on, and `tally` says what was settled since the pair up to which its timer has told before. `is_known`: the shard
    /// stands there. Else the store has lost something, or a timer its lease before it could tell: what lies in between leaves
    /// the ledger with its runs.
    pub(crate) fn add_outcomes(&mut self, tally: OutcomeCounts, is_known: bool) {
        self.is_uncertain |= !is_known;
        self.outcomes.add(tally);
    }

    /// Something was settled that nobody can place.
    pub(crate) fn mark_uncertain(&mut self) {
        self.is_uncertain = true;
    }

    /// Runs with so many messages have left, and others with so many have come in their place.
    pub(crate) fn runs_removed(&mut self, left: u64, come: u64) {
        self.removed = (self.removed + left).saturating_sub(come);
    }

    /// While it is unsure: what left without having been settled here was settled before; and in a shard without runs, which stands where it
    /// was delivered to, nothing can be spent but what was set aside. Then it is sure again.
    pub(crate) fn reconcile(&mut self, is_empty: bool, quarantined: u64) {
        if !self.is_uncertain {
            return;
        }
        let settled = self.outcomes.total();
        let most = if is_empty {
            self.removed + quarantined
        } else {
            u64::MAX
        };
        let gone = if settled < self.removed {
            settled
        } else {
            self.removed + settled.saturating_sub(most)
        };
        self.accepted = (self.accepted + gone).saturating_sub(self.removed);
        self.removed = gone;
        self.is_uncertain = !is_empty;
    }
}

/// A ledger as people see it: its parts add up to what was accepted, but for the difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) accepted: u64,
    pub(crate) outcomes: OutcomeCounts,
    /// Set aside, and not settled before that.
    pub(crate) quarantined: u64,
    pub(crate) pending: u64,
    /// Accepted less all others: above 0 messages are missing, below 0 more were settled than accepted.
    pub(crate) difference: i64,
    /// The difference says nothing yet.
    pub(crate) is_uncertain: bool,
}

impl Balance {
    pub(crate) fn of(state: &StoredShard) -> Self {
        let Ledger {
            accepted,
            outcomes: settled,
            removed: gone,
            is_uncertain: is_unsure,
        } = state.ledger;
        let spent = settled.total().saturating_sub(gone);
        let pending = state.pending.saturating_sub(spent);
        // A run may be partly settled when it becomes unreadable, and nobody can tell which of its messages are.
        let quarantined = state
            .quarantined
            .saturating_sub(spent.saturating_sub(state.pending));
        let all = settled
            .total()
            .saturating_add(quarantined)
            .saturating_add(pending);
        let difference = i64::try_from(i128::from(accepted) - i128::from(all)).unwrap_or(i64::MAX);
        Self {
            accepted,
            outcomes: settled,
            quarantined,
            pending,
            difference,
            is_uncertain: is_unsure,
        }
    }

    /// All but the difference: accepted, delivered, cancelled, dead-lettered, set aside, sent back, pending.
    pub(crate) fn counts(&self) -> [u64; 7] {
        let OutcomeCounts {
            delivered,
            cancelled,
            dead_lettered,
            retried: sent_back,
        } = self.outcomes;
        [
            self.accepted,
            delivered,
            cancelled,
            dead_lettered,
            self.quarantined,
            sent_back,
            self.pending,
        ]
    }

    /// Whether nothing is amiss, as far as can be known.
    pub(crate) fn is_balanced(&self) -> bool {
        self.difference == 0 || self.is_uncertain
    }
}
