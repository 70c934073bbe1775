//! What decides over one shard, pure, for the stores that keep shards in this very process: its positions with the rules of append and
//! advance (I2, I4, I5) here, its counts, lease and tail in files of their own. Where runs, ids and cancelled places lie is the store's
//! affair. The scripts of `lua/` say the same for Redis.

mod count;
mod holder;
mod recent;

pub(crate) use count::{Count, Counts};
pub(crate) use holder::Holder;
pub(crate) use recent::Recent;

use super::{
    Advance, Advanced, Append, Birth, Change, ChangeKind, Glance, History, Ledger, Rewrite,
};
use crate::model::{Claim, Cursor, Identity, Timestamp, Watermark};
use crate::mutant::{self, Mutant};
use std::collections::BTreeMap;

/// Where a shard stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Positions {
    pub(crate) identity: Identity,
    pub(crate) watermark: Watermark,
    pub(crate) claimed: Claim,
    pub(crate) delivered: Claim,
    pub(crate) ledger: Ledger,
    pub(crate) history: History,
}

/// What the changes of one append came to, but for the ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Places that are not to be delivered any more.
    pub(crate) cancelled: Vec<Cursor>,
    /// Cancels that found nothing waiting, or came after the claim.
    pub(crate) missed: u32,
}

/// What a claim finds among the cancelled places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sifted {
    /// Delivered past: nobody will ask for them again.
    pub(crate) done: Vec<Cursor>,
    /// Inside the claim: not to be handed over.
    pub(crate) told: Vec<Cursor>,
}

impl Positions {
    pub(crate) fn new(birth: &Birth) -> Self {
        let (identity, ledger, history) = (
            birth.identity.clone(),
            Ledger::default(),
            History::default(),
        );
        Self {
            identity,
            watermark: birth.watermark,
            claimed: birth.delivered,
            delivered: birth.delivered,
            ledger,
            history,
        }
    }

    pub(crate) fn glance(&self) -> Glance {
        Glance {
            watermark: self.watermark,
            delivered: self.delivered,
            history: self.history,
        }
    }

    /// Whether the batch begins where the shard ends (I2).
    pub(crate) fn accepts(&self, append: &Append) -> bool {
        mutant::active(Mutant::NoCompare)
            || (mutant::active(Mutant::BlindWatermark) && append.from >= self.watermark)
            || append.from == self.watermark
    }

    /// The batch is stored.
    pub(crate) fn appended(&mut self, append: &Append) {
        // The greater of the two can only be another one with a mutant planted.
        self.watermark = self.watermark.max(append.to);
        self.history.appended(append.reading, append.from);
        self.ledger.accepted += append
            .runs
            .iter()
            .map(|run| u64::from(run.name.count()))
            .sum::<u64>();
    }

    /// Whether a rewrite was planned by who knows of all that there were.
    pub(crate) fn is_known(&self, rewrite: &Rewrite) -> bool {
        rewrite.after == self.history.rewrites
    }

    /// Runs were put in the place of others with so many messages.
    pub(crate) fn rewritten(&mut self, rewrite: &Rewrite, left: u64) {
        self.ledger.replace(
            left,
            rewrite
                .outputs
                .iter()
                .map(|run| u64::from(run.name.count()))
                .sum(),
        );
        self.history.rewrites += 1;
    }

    /// Applies changes in their order to `ids`, which holds what waits under each id that they name.
    pub(crate) fn apply(
        &self,
        changes: &[Change],
        ids: &mut BTreeMap<Box<str>, Cursor>,
    ) -> Changed {
        let mut changed = Changed::default();
        for change in changes {
            let place = match change.kind {
                ChangeKind::Schedule(place) => Some(place),
                ChangeKind::Cancel => None,
            };
            let waits = ids
                .get(&change.id)
                .copied()
                .filter(|&waits| Some(waits) != place && !self.is_taken(waits));
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
    fn is_taken(&self, place: Cursor) -> bool {
        self.claimed.covers(place) || self.delivered.covers(place)
    }

    /// Moves delivered to a pair that includes it, and to no other (I4). A repeat finds it there, and counts nothing.
    pub(crate) fn deliver(&mut self, request: &Advance) {
        let Some(delivered) = request
            .delivered
            .filter(|delivered| *delivered != self.delivered)
        else {
            return;
        };
        if delivered.includes(self.delivered) {
            let is_known = request.since == self.delivered && delivered.watermark <= self.watermark;
            self.ledger.moved(request.tally, is_known);
            self.delivered = delivered;
        } else {
            self.ledger.doubt();
        }
    }

    /// What an advance tells has been done, runs with so many messages deleted among it.
    pub(crate) fn done(&mut self, request: &Advance, left: u64, counts: &Counts) {
        if request.tells() {
            self.ledger.replace(left, 0);
            let is_empty = counts.are_empty() && self.delivered.watermark <= self.watermark;
            self.ledger.right(is_empty, counts.quarantined());
        }
    }

    /// The last cancelled place that an advance has to look at.
    pub(crate) fn last(&self, claim: Option<Claim>) -> Cursor {
        claim.unwrap_or(self.delivered).cursor
    }

    /// Sorts the cancelled places up to [`Positions::last`], which come in their order.
    pub(crate) fn sift(
        &self,
        claim: Option<Claim>,
        places: impl IntoIterator<Item = Cursor>,
    ) -> Sifted {
        let mut sifted = Sifted::default();
        for place in places {
            if self.delivered.covers(place) {
                sifted.done.push(place);
            } else if claim.is_some_and(|claim| claim.covers(place)) {
                sifted.told.push(place);
            }
        }
        sifted
    }

    /// Moves claimed forward, per component and never back (I5), unless the claim lies too far past `now`. `told` goes along with the answer.
    pub(crate) fn claim(
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
        if claim.cursor.due > now.plus(request.skew_max) {
            return Advanced::Ahead { watermark, now };
        }
        self.claimed = if mutant::active(Mutant::ClaimsBack) {
            claim
        } else {
            Claim::new(
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
