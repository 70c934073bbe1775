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

use super::State;
pub(crate) use crate::model::Tally;

/// See the module's page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) accepted: u64,
    pub(crate) settled: Tally,
    /// Messages of runs that are there no longer, but for those set aside.
    pub(crate) gone: u64,
    /// Something was settled that the store was not told, or has forgotten: nothing is claimed of the sum until the shard is empty once.
    pub(crate) is_unsure: bool,
}

impl Ledger {
    /// Of a shard that was filled before there were ledgers: begins with what is there, of which some may be settled.
    pub(crate) fn of_unknown(stored: u64) -> Self {
        Self {
            accepted: stored,
            is_unsure: true,
            ..Self::default()
        }
    }

    /// Delivered moves on, and `tally` says what was settled since the pair up to which its timer has told before. `is_known`: the shard
    /// stands there. Else the store has lost something, or a timer its lease before it could tell: what lies in between leaves
    /// the ledger with its runs.
    pub(crate) fn moved(&mut self, tally: Tally, is_known: bool) {
        self.is_unsure |= !is_known;
        self.settled.add(tally);
    }

    /// Something was settled that nobody can place.
    pub(crate) fn doubt(&mut self) {
        self.is_unsure = true;
    }

    /// Runs with so many messages have left, and others with so many have come in their place.
    pub(crate) fn replace(&mut self, left: u64, come: u64) {
        self.gone = (self.gone + left).saturating_sub(come);
    }

    /// While it is unsure: what left without having been settled here was settled before; and in a shard without runs, which stands where it
    /// was delivered to, nothing can be spent but what was set aside. Then it is sure again.
    pub(crate) fn right(&mut self, is_empty: bool, quarantined: u64) {
        if !self.is_unsure {
            return;
        }
        let settled = self.settled.total();
        let most = if is_empty {
            self.gone + quarantined
        } else {
            u64::MAX
        };
        let gone = if settled < self.gone {
            settled
        } else {
            self.gone + settled.saturating_sub(most)
        };
        self.accepted = (self.accepted + gone).saturating_sub(self.gone);
        self.gone = gone;
        self.is_unsure = !is_empty;
    }
}

/// A ledger as people see it: its parts add up to what was accepted, but for the difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) accepted: u64,
    pub(crate) settled: Tally,
    /// Set aside, and not settled before that.
    pub(crate) quarantined: u64,
    pub(crate) pending: u64,
    /// Accepted less all others: above 0 messages are missing, below 0 more were settled than accepted.
    pub(crate) difference: i64,
    /// The difference says nothing yet.
    pub(crate) is_unsure: bool,
}

impl Balance {
    pub(crate) fn of(state: &State) -> Self {
        let Ledger {
            accepted,
            settled,
            gone,
            is_unsure,
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
            settled,
            quarantined,
            pending,
            difference,
            is_unsure,
        }
    }

    /// All but the difference: accepted, delivered, cancelled, dead-lettered, set aside, sent back, pending.
    pub(crate) fn counts(&self) -> [u64; 7] {
        let Tally {
            delivered,
            cancelled,
            dead_lettered,
            sent_back,
        } = self.settled;
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
    pub(crate) fn holds(&self) -> bool {
        self.difference == 0 || self.is_unsure
    }
}
