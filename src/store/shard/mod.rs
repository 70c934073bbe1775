//! What decides over one shard, pure, for the stores that keep shards in this very process: its positions with the rules of append and
//! advance (I2, I4, I5) here, its counts, lease and tail in files of their own. Where runs, ids and cancelled places lie is the store's
//! affair. The scripts of `lua/` say the same for Redis.

mod count;
mod holder;
mod recent;

pub(crate) use count::{RunTotals, ShardCounts};
pub(crate) use holder::LeaseHolder;
pub(crate) use recent::ShardTail;

use super::{
    Advance, Advanced, Append, IdChange, IdChangeKind, Ledger, Lineage, NewShard, ReplaceRuns,
    ShardPosition,
};
use crate::model::{Cursor, Progress, SourceIdentity, Timestamp, Watermark};
use std::collections::BTreeMap;

/// Where a shard stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardMeta {
    pub(crate) identity: SourceIdentity,
    pub(crate) watermark: Watermark,
    pub(crate) claimed: Progress,
    pub(crate) delivered: Progress,
    pub(crate) ledger: Ledger,
    pub(crate) lineage: Lineage,
}

/// What the changes of one append came to, but for the ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeOutcome {
    /// Places that are not to be delivered any more.
    pub(crate) cancelled: Vec<Cursor>,
    /// Cancels that found nothing waiting, or came after the claim.
    pub(crate) missed: u32,
}

/// What a claim finds among the cancelled places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CancelledSplit {
    /// Delivered past: nobody will ask for them again.
    pub(crate) expired: Vec<Cursor>,
    /// Inside the claim: not to be handed over.
    pub(crate) in_claim: Vec<Cursor>,
}

impl ShardMeta {
    pub(crate) fn new(birth: &NewShard) -> Self {
        let (identity, ledger, history) = (
            birth.identity.clone(),
            Ledger::default(),
            Lineage::default(),
        );
        Self {
            identity,
            watermark: birth.watermark,
            claimed: birth.delivered,
            delivered: birth.delivered,
            ledger,
            lineage: history,
        }
    }

    pub(crate) fn position(&self) -> ShardPosition {
        ShardPosition {
            watermark: self.watermark,
            delivered: self.delivered,
            lineage: self.lineage,
        }
    }

    /// Whether the batch begins where the shard ends (I2).
    pub(crate) fn accepts(&self, append: &Append) -> bool {
        fault!(AppendWithoutCompare)
            || (fault!(AppendAcceptsGap) && append.from >= self.watermark)
            || append.from == self.watermark
    }

    /// The batch is stored.
    pub(crate) fn appended(&mut self, append: &Append) {
        // The greater of the two can only be another one with a mutant planted.
        self.watermark = self.watermark.max(append.to);
        self.lineage.appended(append.epoch, append.from);
        self.ledger.accepted += append
            .runs
            .iter()
            .map(|run| u64::from(run.name.count()))
            .sum::<u64>();
    }

    /// Whether a rewrite was planned by who knows of all that there were.
    pub(crate) fn knows_all_replacements(&self, rewrite: &ReplaceRuns) -> bool {
        rewrite.known_replacements == self.lineage.replacements
    }

    /// Runs were put in the place of others with so many messages.
    pub(crate) fn runs_replaced(&mut self, rewrite: &ReplaceRuns, left: u64) {
        self.ledger.runs_removed(
            left,
            rewrite
                .outputs
                .iter()
                .map(|run| u64::from(run.name.count()))
                .sum(),
        );
        self.lineage.replacements += 1;
    }

    /// Applies changes in their order to `ids`, which holds what waits under each id that they name.
    pub(crate) fn apply_changes(
        &self,
        changes: &[IdChange],
        ids: &mut BTreeMap<Box<str>, Cursor>,
    ) -> ChangeOutcome {
        let mut changed = ChangeOutcome::default();
        for change in changes {
            let place = match change.kind {
                IdChangeKind::Schedule(place) => Some(place),
                IdChangeKind::Cancel => None,
            };
            let waits = ids
                .get(&change.id)
                .copied()
                .filter(|&waits| Some(waits) != place && !self.is_claimed(waits));
            if let Some(waits) = waits {
                changed.cancelled.push(waits);
                ids.remove(&change.id);
            } else if place.is_none() {
                changed.missed += 1;
            }
            if let Some(place) = place {
                ids.insert(change.id.clone(), place);
            }
        }
        changed
    }

    /// Too late to cancel or replace.
    fn is_claimed(&self, place: Cursor) -> bool {
        self.claimed.covers(place) || self.delivered.covers(place)
    }

    /// Moves delivered to a pair that includes it, and to no other (I4). A repeat finds it there, and counts nothing.
    pub(crate) fn move_delivered(&mut self, request: &Advance) {
        let Some(delivered) = request
            .delivered
            .filter(|delivered| *delivered != self.delivered)
        else {
            return;
        };
        if delivered.includes(self.delivered) {
            let is_known =
                request.delivered_before == self.delivered && delivered.watermark <= self.watermark;
            self.ledger.add_outcomes(request.outcomes, is_known);
            self.delivered = delivered;
        } else {
            self.ledger.mark_uncertain();
        }
    }

    /// What an advance tells has been done, runs with so many messages deleted among it.
    pub(crate) fn runs_deleted(&mut self, request: &Advance, left: u64, counts: &ShardCounts) {
        if request.reports_delivery() {
            self.ledger.runs_removed(left, 0);
            let is_empty = counts.have_no_runs() && self.delivered.watermark <= self.watermark;
            self.ledger.reconcile(is_empty, counts.quarantined());
        }
    }

    /// The last cancelled place that an advance has to look at.
    pub(crate) fn last_to_check(&self, claim: Option<Progress>) -> Cursor {
        claim.unwrap_or(self.delivered).cursor
    }

    /// Sorts the cancelled places up to [`ShardMeta::last`], which come in their order.
    pub(crate) fn split_cancelled(
        &self,
        claim: Option<Progress>,
        places: impl IntoIterator<Item = Cursor>,
    ) -> CancelledSplit {
        let mut sifted = CancelledSplit::default();
        for place in places {
            if self.delivered.covers(place) {
                sifted.expired.push(place);
            } else if claim.is_some_and(|claim| claim.covers(place)) {
                sifted.in_claim.push(place);
            }
        }
        sifted
    }

    /// Moves claimed forward, per component and never back (I5), unless the claim lies too far past `now`. `told` goes along with the answer.
    pub(crate) fn move_claimed(
        &mut self,
        request: &Advance,
        now: Timestamp,
        told: Vec<Cursor>,
    ) -> Advanced {
        let watermark = self.watermark;
        let Some(claim) = request.claim else {
            return Advanced::Done {
                watermark,
                cancelled: Vec::new(),
            };
        };
        if claim.cursor.due > now.plus(request.clock_skew_max) {
            return Advanced::ClockAhead { watermark, now };
        }
        self.claimed = if fault!(ClaimMovesBack) {
            claim
        } else {
            Progress::new(
                self.claimed.cursor.max(claim.cursor),
                self.claimed.watermark.max(claim.watermark),
            )
        };
        Advanced::Done {
            watermark,
            cancelled: told,
        }
    }
}
