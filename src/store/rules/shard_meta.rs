//! The positions of a shard, and the rules of append and advance that move them (I2, I4, I5).

use super::{Ledger, Lineage, ShardCounts};
use crate::limit::{CLAIM_AHEAD, OFFSET_COMMIT_INTERVAL};
use crate::model::{Cursor, Offset, Pause, Progress, SourceIdentity, Timestamp, Watermark};
use crate::run::Run;
use crate::store::query::PlaceChange;
use crate::store::{
    Advance, Advanced, Append, EffectKind, Hold, IdChange, IdChangeKind, NewShard, ReplaceRuns,
    RequestEffect, Restore, ShardPosition, ToldEffect,
};
use std::collections::BTreeMap;

/// The hold of a shard whose claims do not wait.
pub(crate) const NO_HOLD: Watermark = Watermark(0);

/// Identity, positions, ledger and lineage of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardMeta {
    pub(crate) identity: SourceIdentity,
    pub(crate) watermark: Watermark,
    pub(crate) claimed: Progress,
    pub(crate) delivered: Progress,
    /// Claims wait until the watermark is here. `None`: it was ended early, and no append has
    /// succeeded since.
    pub(crate) hold: Option<Watermark>,
    /// Covers messages that may have been delivered before the store lost writes.
    pub(crate) possibly_delivered: Progress,
    pub(crate) pause: Option<Pause>,
    pub(crate) ledger: Ledger,
    pub(crate) lineage: Lineage,
}

/// A message goes back to its source with a due time, which the record at offset `by` gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moved {
    pub(crate) by: Offset,
    pub(crate) due: Timestamp,
}

/// The last change of a message that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Change {
    /// `None`: it is cancelled.
    pub(crate) moved: Option<Moved>,
    /// The request that has made it, if it asks for an answer.
    pub(crate) request: Option<Offset>,
}

impl From<Change> for PlaceChange {
    fn from(change: Change) -> Self {
        match change.moved {
            Some(moved) => Self::Moved(moved.due),
            None => Self::Cancelled,
        }
    }
}

impl Moved {
    /// The effect that the claim of the message at this place returns.
    pub(crate) fn effect(self, place: Cursor) -> RequestEffect {
        RequestEffect {
            request: self.by,
            place,
            kind: EffectKind::Moved(self.due),
        }
    }
}

/// Effects of the id changes of one append on the waiting messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AppliedChanges {
    /// Messages that must not be delivered to their targets, in the order of their changes. The last
    /// change of a place counts.
    pub(crate) changed: Vec<(Cursor, Change)>,
    /// The number of cancelled places that were not claimed.
    pub(crate) in_time: u32,
    /// Cancels and reschedules without effect, see [`Appended`](crate::store::Appended).
    pub(crate) missed: u32,
    /// The effects of the requests with answers.
    pub(crate) effects: Vec<RequestEffect>,
    /// The effects that the outcome of the append tells.
    pub(crate) told: Vec<ToldEffect>,
    /// The number of the change that is applied.
    number: usize,
}

impl AppliedChanges {
    /// Cancels the message at this place, because an earlier one keeps its id.
    fn drop_duplicate(&mut self, change: &IdChange, place: Cursor, first: Option<Cursor>) {
        let Some(first) = first else { return };
        self.drop_message(place);
        self.add_effect(change, first, EffectKind::Unchanged, true);
    }

    /// The change has this effect on the message that it names. `is_certain`: that message was not delivered
    /// before the store lost writes.
    fn add_effect(&mut self, change: &IdChange, place: Cursor, kind: EffectKind, is_certain: bool) {
        let effect = change.request.map(|request| RequestEffect {
            request,
            place,
            kind,
        });
        self.effects.extend(effect);
        if change.tells_effect && !change.changes_claimed {
            self.told.push(ToldEffect {
                change: self.number,
                named: place,
                is_changed: kind == EffectKind::Changed && is_certain,
            });
        }
    }

    /// Cancels the new message at this place.
    fn drop_message(&mut self, place: Cursor) {
        let dropped = Change {
            moved: None,
            request: None,
        };
        self.changed.push((place, dropped));
        self.in_time += 1;
    }
}

/// The changed places that an advance looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CancelledSplit {
    /// Inside the delivered pair: no longer needed.
    pub(crate) expired: Vec<Cursor>,
    /// Inside the claim: must not be delivered.
    pub(crate) in_claim: Vec<Cursor>,
}

/// Covers messages that may have been delivered before the store lost writes: all below `stored` that
/// are due by now. `known` was delivered, and shows how far the clock of a worker was ahead. An earlier
/// owner may still send its claimed messages.
pub(crate) fn possibly_delivered(known: Progress, stored: Watermark, now: Timestamp) -> Progress {
    // A commit is at most two intervals old while the store and the broker answer.
    let committed = known.cursor.due.plus(2 * OFFSET_COMMIT_INTERVAL);
    let latest = committed.max(now.plus(CLAIM_AHEAD));
    Progress::new(Cursor::new(latest, Offset::MAX), stored)
}

impl ShardMeta {
    pub(crate) fn new(new: &NewShard) -> Self {
        Self {
            identity: new.identity.clone(),
            watermark: new.watermark,
            claimed: new.delivered,
            delivered: new.delivered,
            hold: Some(new.hold),
            possibly_delivered: new.possibly_delivered,
            pause: new.pause.clone(),
            ledger: Ledger::default(),
            lineage: Lineage::default(),
        }
    }

    pub(crate) fn position(&self) -> ShardPosition {
        ShardPosition {
            watermark: self.watermark,
            delivered: self.delivered,
            lineage: self.lineage,
        }
    }

    /// True if the batch starts at the watermark (I2), and no other epoch has followed its epoch.
    pub(crate) fn accepts(&self, append: &Append) -> bool {
        append.from == self.watermark && !self.lineage.has_followed(append.epoch)
    }

    /// True if the batch was read from the source of the shard.
    pub(crate) fn is_of_source(&self, append: &Append) -> bool {
        append.identity == self.identity || fault!(AppendToOtherIdentity)
    }

    /// The wait of claims. `has_ids`: messages wait under ids.
    pub(crate) fn hold(&self, has_ids: bool) -> Hold {
        match self.hold {
            None => Hold::Ended,
            Some(until) if until > self.watermark && !has_ids => Hold::NoIds,
            Some(until) => Hold::Until(until),
        }
    }

    /// True if claims wait, unless no message waits under an id.
    pub(crate) fn is_held(&self) -> bool {
        self.hold > Some(self.watermark)
    }

    pub(crate) fn extend_possibly_delivered(&mut self, pair: Progress) {
        self.possibly_delivered = self.possibly_delivered.union(pair);
    }

    /// Keeps the newer of the two pauses.
    pub(crate) fn learn_pause(&mut self, pause: Option<&Pause>) {
        if pause.is_some() {
            self.pause = Pause::newest(self.pause.take(), pause.cloned());
        }
    }

    /// Records that the batch was stored.
    pub(crate) fn appended(&mut self, append: &Append) {
        self.watermark = append.to;
        self.hold.get_or_insert(NO_HOLD);
        self.learn_pause(append.pause.as_ref());
        self.lineage.appended(append.epoch, append.from);
        self.ledger.accepted += messages(&append.runs);
    }

    /// Applies id changes in their order. `ids` holds the waiting places of the names of their ids.
    pub(crate) fn apply_changes(
        &self,
        changes: &[IdChange],
        ids: &mut BTreeMap<Box<[u8]>, Cursor>,
    ) -> AppliedChanges {
        let mut outcome = AppliedChanges::default();
        for (number, change) in changes.iter().enumerate() {
            outcome.number = number;
            let (new_place, moved) = match change.kind {
                IdChangeKind::Retry(place) => {
                    self.take_id(change, place, ids, |it| !self.is_free(Some(it)));
                    continue;
                }
                IdChangeKind::KeepFirst { place, timestamp } => {
                    let waits = |it: Cursor| it.due > timestamp && !self.delivered.covers(it);
                    let first = self.take_id(change, place, ids, waits);
                    outcome.drop_duplicate(change, place, first);
                    continue;
                }
                IdChangeKind::Schedule(place) | IdChangeKind::TakePlace { place, .. } => {
                    (Some(place), None)
                }
                IdChangeKind::Reschedule { by, due } => (None, Some(Moved { by, due })),
                IdChangeKind::Cancel
                | IdChangeKind::Delivered
                | IdChangeKind::PlaceTaken { .. } => (None, None),
            };
            self.apply_to_named(change, (new_place, moved), ids, &mut outcome);
        }
        outcome
    }

    /// Applies a change to the message that waits under its id, and names the new place by it.
    fn apply_to_named(
        &self,
        change: &IdChange,
        (new_place, moved): (Option<Cursor>, Option<Moved>),
        ids: &mut BTreeMap<Box<[u8]>, Cursor>,
        outcome: &mut AppliedChanges,
    ) {
        let replaces = change.kind.replaces();
        let mut named: Option<(Cursor, EffectKind)> = None;
        let takes_any = replaces.is_none() || fault!(CopyTakesAnyPlace);
        let (mut is_in_time, mut is_taken) = (false, takes_any);
        // Processes with other keys may have left several names, for different messages.
        for name in change.id.names() {
            let waiting = ids.get(name).copied();
            let is_named = |place: Cursor| replaces.is_none_or(|of| place.offset == of);
            let other = waiting.filter(|it| Some(*it) != new_place && is_named(*it));
            let changed = other.filter(|waiting| self.may_change(*waiting, change));
            let has_named = matches!(named, Some((_, EffectKind::Changed)));
            let request = change.request.filter(|_| !has_named);
            let applied = Change { moved, request };
            outcome
                .changed
                .extend(changed.map(|place| (place, applied)));
            let was_unclaimed = changed.is_some_and(|place| !self.claimed.covers(place));
            outcome.in_time += u32::from(was_unclaimed && moved.is_none());
            is_in_time |= was_unclaimed;
            // The effect names a changed message rather than one that was too late.
            let kind = match changed {
                Some(_) => EffectKind::Changed,
                None => EffectKind::Unchanged,
            };
            if !has_named {
                named = other.map(|other| (other, kind)).or(named);
            }
            is_taken |= changed.is_some() || new_place.is_some() && waiting == new_place;
            let taken = new_place.filter(|_| replaces.is_none());
            if changed.filter(|_| moved.is_none()).or(taken).is_some() {
                ids.remove(name);
            }
        }
        let is_confirmed = change.kind == IdChangeKind::Cancel || moved.is_some();
        outcome.missed += u32::from(is_confirmed && !is_in_time);
        if let Some((place, kind)) = named {
            let is_certain = !self.possibly_delivered.covers(place) || fault!(TellUncertainChanges);
            outcome.add_effect(change, place, kind, is_certain);
        }
        match new_place {
            Some(place) if is_taken => drop(ids.insert(change.id.name().into(), place)),
            Some(place) => outcome.drop_message(place),
            None => {}
        }
    }

    /// Names the message at this place by the id, unless it names a message that keeps it. Returns
    /// that message.
    fn take_id(
        &self,
        change: &IdChange,
        place: Cursor,
        ids: &mut BTreeMap<Box<[u8]>, Cursor>,
        keeps: impl Fn(Cursor) -> bool,
    ) -> Option<Cursor> {
        let mut first = None;
        for name in change.id.names() {
            let waiting = ids.get(name).copied().filter(|waiting| *waiting != place);
            let kept = waiting.filter(|waiting| keeps(*waiting) && !fault!(AlwaysTakeId));
            first = first.or(kept);
            if kept.is_none() {
                ids.remove(name);
            }
        }
        if first.is_none() {
            ids.insert(change.id.name().into(), place);
        }
        first
    }

    /// False if it is too late to change the message at this place, or if it keeps its due time.
    fn may_change(&self, place: Cursor, change: &IdChange) -> bool {
        let is_kept =
            matches!(change.kind, IdChangeKind::Reschedule { due, .. } if due <= place.due);
        let ignores_claim = change.changes_claimed
            || fault!(RescheduleClaimed) && matches!(change.kind, IdChangeKind::Reschedule { .. });
        let is_claimed = self.claimed.covers(place) && !ignores_claim;
        !is_claimed && !is_kept && !self.delivered.covers(place)
    }

    /// True if an id may be renamed to a name that has this place now.
    pub(crate) fn is_free(&self, place: Option<Cursor>) -> bool {
        place.is_none_or(|place| self.claimed.covers(place) || self.delivered.covers(place))
    }

    /// Moves `delivered` to a pair that includes it, and to no other (I4). A repeat finds the pair
    /// unchanged and counts nothing.
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
            self.ledger.add_occurrences(request.occurrences);
            self.delivered = delivered;
        } else {
            self.ledger.is_uncertain = true;
        }
    }

    /// Updates the ledger after an advance deleted runs with `removed` messages.
    pub(crate) fn runs_deleted(&mut self, request: &Advance, removed: u64, counts: &ShardCounts) {
        if request.reports_delivery() {
            self.ledger.runs_removed(removed, 0);
            let is_empty = counts.have_no_runs() && self.delivered.watermark <= self.watermark;
            self.ledger.reconcile(is_empty, counts.quarantined());
        }
    }

    /// The last cancelled place that an advance with this claim has to look at.
    pub(crate) fn last_to_check(&self, claim: Option<Progress>) -> Cursor {
        claim.unwrap_or(self.delivered).cursor
    }

    /// Splits the cancelled places up to [`ShardMeta::last_to_check`], keeping their order.
    pub(crate) fn split_cancelled(
        &self,
        claim: Option<Progress>,
        places: impl IntoIterator<Item = Cursor>,
    ) -> CancelledSplit {
        let mut split = CancelledSplit::default();
        for place in places {
            if self.delivered.covers(place) {
                split.expired.push(place);
            } else if claim.is_some_and(|claim| claim.covers(place)) {
                split.in_claim.push(place);
            }
        }
        split
    }

    /// Moves `claimed` forward, each component on its own and never back (I5). Refuses a claim whose
    /// timer has seen a greater watermark, of a paused shard, or that is too far ahead of `now`. `cancelled` and
    /// `effects` are passed on in the outcome.
    pub(crate) fn move_claimed(
        &mut self,
        request: &Advance,
        now: Timestamp,
        cancelled: Vec<Cursor>,
        effects: Vec<RequestEffect>,
    ) -> Advanced {
        let watermark = self.watermark;
        let Some(claim) = request.claim else {
            return Advanced::Done {
                watermark,
                cancelled: Vec::new(),
                effects: Vec::new(),
            };
        };
        if watermark < request.seen && !fault!(ClaimFromRolledBackStore) {
            return Advanced::RolledBack { watermark };
        }
        if let Some(pause) = (self.pause.as_ref()).filter(|it| it.is_paused)
            && !fault!(ClaimWhilePaused)
        {
            let pause = pause.clone();
            return Advanced::Paused { watermark, pause };
        }
        if claim.cursor.due > now.plus(request.clock_skew_max) {
            return Advanced::ClockAhead { watermark, now };
        }
        self.claimed = self.claimed.union(claim);
        Advanced::Done {
            watermark,
            cancelled,
            effects,
        }
    }

    /// True if no claim has passed the messages to restore.
    pub(crate) fn may_restore(&self, request: &Restore) -> bool {
        request.first_place() > self.claimed.cursor.max(self.delivered.cursor)
    }

    /// Records that a quarantined run was restored. A finished message of it will be finished
    /// twice, and the ledger cannot tell which run such a message is in.
    pub(crate) fn run_restored(&mut self) {
        self.ledger.is_uncertain |= self.ledger.outcomes.total() > self.ledger.removed;
    }

    /// True if the author of the request knows every earlier replacement of runs.
    pub(crate) fn knows_all_replacements(&self, request: &ReplaceRuns) -> bool {
        request.known_replacements == self.lineage.replacements
    }

    /// Records that the outputs took the place of runs with `removed` messages.
    pub(crate) fn runs_replaced(&mut self, request: &ReplaceRuns, removed: u64) {
        self.ledger
            .runs_removed(removed, messages(&request.outputs));
        self.lineage.replacements += 1;
    }
}

fn messages(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.name.count())).sum()
}
