//! The ledger of a shard: numbers of messages that must add up. Pure.
//!
//! ```text
//! accepted = delivered + cancelled + dead-lettered + retried + quarantined + pending
//! ```
//!
//! The two sides have different sources. The store counts accepted and pending messages by runs.
//! The timer counts every message by its own outcome. Only a run that is partly finished appears on
//! both sides. Therefore the ledger also counts `removed`: messages of deleted runs. Messages that
//! are finished while their run is still stored number `outcomes - removed`.
//!
//! | event | accepted | outcomes | removed | stored in runs |
//! |---|---|---|---|---|
//! | append | + | | | + |
//! | delivered moves | | + | | |
//! | delivered moves over occurrences | + | + | + | |
//! | run deleted, or replaced without its delivered messages | | | + | - |
//! | run quarantined | | | | - (quarantined +) |
//!
//! The ledger changes in the same step as the data that it counts, so a rollback of the store rolls
//! the ledger back as well. Outcomes of messages that the store has again after a rollback are not
//! reported again: see [`Ledger::add_outcomes`] and [`Ledger::reconcile`].

use crate::model::OutcomeCounts;
use crate::store::StoredShard;
use serde::{Deserialize, Serialize};

/// The ledger of one shard, as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) accepted: u64,
    pub(crate) outcomes: OutcomeCounts,
    /// Messages of runs that were deleted. Quarantined runs do not count.
    pub(crate) removed: u64,
    /// Outcomes are missing, because the store lost them or a timer could not report them. The
    /// difference means nothing until the shard has been empty once.
    pub(crate) is_uncertain: bool,
}

impl Ledger {
    /// The ledger of a shard that a version without ledgers filled. Some of the stored messages may
    /// be delivered already.
    pub(crate) fn starting_with(stored: u64) -> Self {
        Self {
            accepted: stored,
            is_uncertain: true,
            ..Self::default()
        }
    }

    pub(crate) fn from_numbers([accepted, outcomes @ .., removed, uncertain]: [u64; 7]) -> Self {
        Self {
            accepted,
            outcomes: OutcomeCounts::from_array(outcomes),
            removed,
            is_uncertain: uncertain > 0,
        }
    }

    /// Adds the outcomes of the messages that `delivered` moved over.
    ///
    /// `is_known`: the stored pair is the one that the timer reported last. If not, the store lost
    /// something, or an earlier timer lost its lease before it could report. The messages in
    /// between leave the ledger together with their runs.
    pub(crate) fn add_outcomes(&mut self, outcomes: OutcomeCounts, is_known: bool) {
        self.is_uncertain |= !is_known;
        self.outcomes.add(outcomes);
    }

    /// Counts occurrences of schedules that have an outcome, like messages that were appended and
    /// deleted again: they are never stored.
    pub(crate) fn add_occurrences(&mut self, count: u64) {
        self.accepted += count;
        self.removed += count;
    }

    /// Records that runs with `removed` messages were deleted, and runs with `added` messages took
    /// their place.
    pub(crate) fn runs_removed(&mut self, removed: u64, added: u64) {
        self.removed = (self.removed + removed).saturating_sub(added);
    }

    /// Makes an uncertain ledger certain again if possible.
    ///
    /// If more messages were removed than have an outcome, the other outcomes were lost: these
    /// messages no longer count. In an empty shard, at most the quarantined messages have an outcome
    /// and are still stored.
    pub(crate) fn reconcile(&mut self, is_empty: bool, quarantined: u64) {
        if !self.is_uncertain {
            return;
        }
        let finished = self.outcomes.total();
        let finished_max = if is_empty {
            self.removed + quarantined
        } else {
            u64::MAX
        };
        let removed = if finished < self.removed {
            finished
        } else {
            self.removed + finished.saturating_sub(finished_max)
        };
        self.accepted = (self.accepted + removed).saturating_sub(self.removed);
        self.removed = removed;
        self.is_uncertain = !is_empty;
    }
}

/// A ledger as people see it: the parts add up to `accepted`, except for `difference`. Part of the
/// JSON of `postdate ledger`: its fields are never renamed or removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct Balance {
    pub(crate) accepted: u64,
    #[serde(flatten)]
    pub(crate) outcomes: OutcomeCounts,
    /// Messages in quarantine that had no outcome before.
    pub(crate) quarantined: u64,
    pub(crate) pending: u64,
    /// Accepted minus all other counts. Positive: messages are missing. Negative: more messages
    /// were finished than accepted.
    pub(crate) difference: i64,
    /// The store or a timer lost outcomes. The difference means nothing until the shard is empty.
    #[serde(rename = "unsure")]
    pub(crate) is_uncertain: bool,
}

impl Balance {
    pub(crate) fn of(shard: &StoredShard) -> Self {
        let Ledger {
            accepted,
            outcomes,
            removed,
            is_uncertain,
        } = shard.ledger;
        let finished_in_runs = outcomes.total().saturating_sub(removed);
        let pending = shard.pending().saturating_sub(finished_in_runs);
        // A run may be partly finished when it becomes unreadable. Its finished messages count
        // once.
        let quarantined = shard
            .quarantined
            .saturating_sub(finished_in_runs.saturating_sub(shard.pending()));
        let sum = outcomes
            .total()
            .saturating_add(quarantined)
            .saturating_add(pending);
        let difference = i64::try_from(i128::from(accepted) - i128::from(sum)).unwrap_or(i64::MAX);
        Self {
            accepted,
            outcomes,
            quarantined,
            pending,
            difference,
            is_uncertain,
        }
    }

    /// Adds the numbers of another shard.
    pub(crate) fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.outcomes.add(other.outcomes);
        self.quarantined += other.quarantined;
        self.pending += other.pending;
        self.difference += other.difference;
        self.is_uncertain |= other.is_uncertain;
    }

    /// All numbers but the difference: accepted, delivered, cancelled, dead-lettered, quarantined,
    /// retried, pending.
    pub(crate) fn counts(&self) -> [u64; 7] {
        [
            self.accepted,
            self.outcomes.delivered,
            self.outcomes.cancelled,
            self.outcomes.dead_lettered,
            self.quarantined,
            self.outcomes.retried,
            self.pending,
        ]
    }

    /// True if the ledger adds up, as far as it is certain.
    pub(crate) fn is_balanced(&self) -> bool {
        self.difference == 0 || self.is_uncertain
    }
}
