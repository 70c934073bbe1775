//! Batches of claimed messages in flight: how far each was sent, and which messages were rerouted.

use super::outcome::ShardContext;
use super::record::{Destination, Reroute, original_due};
use crate::encryption::StoredId;
use crate::model::{
    Cursor, Disposition, Effect, Level, Message, Offset, OutcomeCounts, Pause, Request, Timestamp,
};
use crate::run::LoadedRun;
use crate::store::{EffectKind, RequestEffect};
use crate::timer::load::ResidentRun;
use crate::timer::quota::rate_hold::HeldTime;
use crate::trace::{BatchLinks, Tracer};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// The messages of one claim, in delivery order. A message goes to its target unless it has a
/// reroute.
///
/// `0..committed` are delivered by committed transactions (exactly-once only),
/// `committed..next_unsent` were sent, and the rest is still to be sent.
pub(crate) struct ClaimedBatch {
    messages: Vec<(Rc<ResidentRun>, u32)>,
    /// A transaction with a part of it ends at this place or later: there the claim has passed
    /// definitions. `None`: the route is not recurring.
    start: Option<Cursor>,
    /// The last pause of the shard before the claim.
    pause: Option<Pause>,
    next_unsent: usize,
    committed: usize,
    /// Positions that were cancelled before the claim, sorted. They are never sent.
    cancelled: Vec<Cursor>,
    /// Messages that go back to their source, and the records that gave them their due times.
    moved: BTreeMap<Cursor, Offset>,
    /// The messages that requests name, and whether the store has changed them.
    named: BTreeMap<Offset, (Cursor, bool)>,
    /// The requests with answers that have changed messages.
    changers: BTreeMap<Cursor, Offset>,
    /// The effects that answers tell, by their index.
    effects: BTreeMap<usize, Effect>,
    /// At-least-once: whether each message is acknowledged, passed or dropped.
    acknowledged: Vec<bool>,
    /// At-least-once: messages that wait for other messages.
    waiting: usize,
    /// Rerouted messages by index. There are few.
    pub(super) reroutes: BTreeMap<usize, Reroute>,
    claimed_at: Instant,
    /// For how long only the rate of the route has kept messages of the shard waiting, before this claim.
    pub(crate) held_by_rate: HeldTime,
    /// Links to the producers' traces of the sent messages that no earlier span has reported.
    pub(super) trace_links: BatchLinks,
    /// One of these messages names its own target.
    pub(super) names_target: bool,
}

impl ClaimedBatch {
    /// Sorts the messages by place, late ones included, so that they go out in order (G4).
    pub(crate) fn new(
        mut messages: Vec<(Rc<ResidentRun>, u32)>,
        mut cancelled: Vec<Cursor>,
        effects: Vec<RequestEffect>,
        claimed_at: Instant,
    ) -> Self {
        let place = |(run, at): &(Rc<ResidentRun>, u32)| run.run.place(*at as usize);
        if !messages.is_sorted_by_key(place) {
            messages.sort_by_key(place);
        }
        cancelled.sort_unstable();
        let mut batch = Self {
            acknowledged: vec![false; messages.len()],
            pause: None,
            waiting: 0,
            messages,
            start: None,
            next_unsent: 0,
            committed: 0,
            cancelled,
            moved: BTreeMap::new(),
            changers: BTreeMap::new(),
            named: BTreeMap::new(),
            effects: BTreeMap::new(),
            claimed_at,
            held_by_rate: HeldTime::default(),
            reroutes: BTreeMap::new(),
            trace_links: BatchLinks::default(),
            names_target: false,
        };
        for effect in effects {
            batch.add_effect(effect);
        }
        batch
    }

    pub(super) fn add_effect(&mut self, effect: RequestEffect) {
        let RequestEffect {
            request,
            place,
            kind,
        } = effect;
        match kind {
            EffectKind::Moved(due) => self.reschedule(place, request, due),
            EffectKind::Unchanged => _ = self.named.insert(request, (place, false)),
            EffectKind::Changed => {
                self.named.insert(request, (place, true));
                self.changers.insert(place, request);
            }
        }
    }

    /// Sends the message back to its source with this due time, unless a later record has given it
    /// another one.
    fn reschedule(&mut self, place: Cursor, by: Offset, due: Timestamp) {
        let is_later = self.moved.get(&place).is_none_or(|last| *last < by);
        if let Some(index) = self.index_of(place).filter(|_| is_later) {
            self.moved.insert(place, by);
            self.reroutes.insert(index, Reroute::reschedule(due));
        }
    }

    pub(crate) fn set_start(&mut self, start: Cursor) {
        self.start = Some(start);
    }

    pub(crate) fn set_pause(&mut self, pause: Option<&Pause>) {
        self.pause = pause.cloned();
    }

    /// How late it is now for a message that was due then. The wait for the end of a pause is no lateness.
    pub(super) fn lateness(&self, due: Timestamp, now: Timestamp) -> Duration {
        let paused = (self.pause.as_ref()).map_or(Duration::ZERO, |it| it.within(due, now));
        now.since(due).saturating_sub(paused)
    }

    /// The least place at which a transaction may end that has the message at `place`.
    pub(super) fn end_with(&self, place: Cursor) -> Cursor {
        match self.start {
            Some(start) if !fault!(CommitBeforeStartOfClaim) => place.max(start),
            _ => place,
        }
    }

    pub(crate) fn claimed_at(&self) -> Instant {
        self.claimed_at
    }

    pub(crate) fn next_unsent(&self) -> usize {
        self.next_unsent
    }

    pub(crate) fn next_place(&self) -> Option<Cursor> {
        (self.next_unsent < self.messages.len()).then(|| self.place(self.next_unsent))
    }

    /// Moves past the next message: it was sent, is cancelled, or is resent separately.
    pub(crate) fn advance(&mut self) {
        self.next_unsent += 1;
    }

    /// Leaves out the next message, which waits for another one.
    pub(super) fn leave_out(&mut self) {
        self.waiting += 1;
        self.advance();
    }

    /// A message that was left out waits no longer.
    pub(super) fn end_wait(&mut self) {
        self.waiting -= 1;
    }

    pub(crate) fn waiting_messages(&self) -> usize {
        self.waiting
    }

    pub(crate) fn unsent_messages(&self) -> usize {
        self.messages.len() - self.next_unsent
    }

    fn stored(&self, index: usize) -> (&LoadedRun, usize) {
        let (run, at) = &self.messages[index];
        (&run.run, *at as usize)
    }

    pub(crate) fn place(&self, index: usize) -> Cursor {
        let (run, at) = self.stored(index);
        run.place(at)
    }

    /// `None` if a newer version of Postdate wrote the record.
    pub(crate) fn message(&self, index: usize) -> Option<Message<'_>> {
        let (run, at) = self.stored(index);
        run.message(at)
    }

    pub(crate) fn is_cancelled(&self, place: Cursor) -> bool {
        !self.cancelled.is_empty() && self.cancelled.binary_search(&place).is_ok()
    }

    pub(super) fn is_answer(&self, index: usize) -> bool {
        let (run, at) = self.stored(index);
        run.is_answer(at)
    }

    /// True if the message is an answer whose outcome is not decided.
    pub(super) fn needs_effect(&self, index: usize) -> bool {
        self.is_answer(index) && !self.effects.contains_key(&index)
    }

    /// True if another message may have to be sent before this one.
    pub(super) fn depends_on_other(&self, index: usize) -> bool {
        let is_changed = |place| self.changer(place).is_some();
        index < self.messages.len() && (self.needs_effect(index) || is_changed(self.place(index)))
    }

    /// The request of the answer at this index.
    pub(super) fn request(&self, index: usize) -> Option<Request> {
        match self.message(index)?.body.disposition {
            Disposition::Answer(answer) => Some(answer.request),
            _ => None,
        }
    }

    pub(super) fn set_effect(&mut self, index: usize, effect: Effect) {
        self.effects.insert(index, effect);
    }

    /// The effect that the answer at this index tells. `None`: it is not decided, or no answer.
    pub(super) fn effect(&self, index: usize) -> Option<Effect> {
        self.effects.get(&index).copied()
    }

    /// The message that the request names, and whether the store has changed it.
    pub(super) fn named_by(&self, request: Offset) -> Option<(Cursor, bool)> {
        self.named.get(&request).copied()
    }

    /// The request with an answer that has changed the message.
    pub(super) fn changer(&self, place: Cursor) -> Option<Offset> {
        let request = self.changers.get(&place).copied();
        request.filter(|_| self.is_cancelled(place) || self.moved.contains_key(&place))
    }

    /// The message at this index need not wait for an answer any more.
    pub(super) fn forget_changer(&mut self, index: usize) {
        let place = self.place(index);
        self.changers.remove(&place);
    }

    fn index_of(&self, place: Cursor) -> Option<usize> {
        let place_of = |(run, at): &(Rc<ResidentRun>, u32)| run.run.place(*at as usize);
        let found = self.messages.binary_search_by_key(&place, place_of);
        found.ok()
    }

    /// True if the message is in this batch, and neither sent nor passed.
    pub(super) fn is_unsent(&self, place: Cursor) -> bool {
        self.index_of(place)
            .is_some_and(|index| index >= self.next_unsent)
    }

    /// True if the message is in this batch, and not acknowledged.
    pub(super) fn is_unacknowledged(&self, place: Cursor) -> bool {
        self.index_of(place)
            .is_some_and(|index| !self.acknowledged[index])
    }

    pub(super) fn acknowledge(&mut self, index: usize) {
        self.acknowledged[index] = true;
    }

    /// Applies the request at this offset to the message, if it is in this batch. False if it was sent.
    pub(super) fn change(&mut self, place: Cursor, by: Offset, request: Option<Request>) -> bool {
        let is_changed = self.is_cancelled(place) || self.moved.get(&place) >= Some(&by);
        if self.index_of(place).is_none() || is_changed {
            return true;
        }
        if !self.is_unsent(place) {
            return false;
        }
        match request {
            Some(Request::Reschedule { due }) => self.reschedule(place, by, due),
            _ => {
                let at = self.cancelled.partition_point(|other| *other < place);
                self.cancelled.insert(at, place);
            }
        }
        true
    }

    /// Takes a cancel or a reschedule back: the message is sent.
    pub(super) fn send_although_changed(&mut self, place: Cursor) {
        self.cancelled.retain(|cancelled| *cancelled != place);
        if self.moved.remove(&place).is_some()
            && let Some(index) = self.index_of(place)
        {
            self.reroutes.remove(&index);
        }
    }

    /// The due time from which lateness is measured. `None` if the message was stored after it:
    /// such lateness is not caused by Postdate.
    pub(crate) fn due_for_lateness(&self, index: usize) -> Option<Timestamp> {
        let (run, _) = self.stored(index);
        if run.slice.level == Level::Now {
            return None;
        }
        if run.is_computed || self.is_first_delivery(index) {
            Some(self.place(index).due)
        } else {
            original_due(&self.message(index)?)
        }
    }

    /// The part of the lateness of a message with this due time that the rate of its route has caused.
    pub(super) fn lateness_by_rate(&self, due: Timestamp) -> Duration {
        self.held_by_rate.lateness(due)
    }

    /// True if the message has its own due time and is delivered for the first time.
    pub(crate) fn is_first_delivery(&self, index: usize) -> bool {
        let (run, at) = self.stored(index);
        run.is_plain_delivery(at)
    }

    /// Like [`ClaimedBatch::is_first_delivery`], also for a message that was rescheduled.
    pub(super) fn has_not_failed(&self, index: usize) -> bool {
        let disposition = || Some(self.message(index)?.body.disposition);
        self.is_first_delivery(index)
            || matches!(disposition(), Some(Disposition::Retry(retry)) if retry.attempt == 0)
    }

    /// Links the trace of the next message, which a client has just accepted.
    pub(crate) fn link_trace(&mut self, tracer: &Tracer, now: Timestamp) {
        if tracer.is_enabled()
            && let (run, at) = &self.messages[self.next_unsent]
            && let Some(message) = run.run.message(*at as usize)
        {
            self.names_target |= message.body.target.is_some();
            tracer.link_message(&mut self.trace_links, message.body.headers, now);
        }
    }

    /// The messages that were sent in the current transaction.
    pub(crate) fn in_transaction(&self) -> Range<usize> {
        self.committed..self.next_unsent
    }

    /// The messages that no committed transaction has delivered.
    pub(crate) fn not_committed(&self) -> Range<usize> {
        self.committed..self.messages.len()
    }

    /// The current transaction was committed.
    pub(crate) fn mark_committed(&mut self) {
        self.committed = self.next_unsent;
    }

    /// The current transaction was aborted: its messages are sent again.
    pub(crate) fn rewind_uncommitted(&mut self) {
        self.next_unsent = self.committed;
        self.effects.split_off(&self.committed);
        self.trace_links = BatchLinks::default();
    }

    pub(crate) fn outcomes(&self, indexes: Range<usize>) -> OutcomeCounts {
        let mut outcomes = OutcomeCounts::default();
        for index in indexes {
            let destination = self.reroutes.get(&index).map(|reroute| reroute.destination);
            let count = match destination {
                _ if self.is_cancelled(self.place(index)) => &mut outcomes.cancelled,
                None | Some(Destination::Target) => &mut outcomes.delivered,
                Some(Destination::RetryViaSource { .. } | Destination::Reschedule { .. }) => {
                    &mut outcomes.retried
                }
                Some(Destination::Dropped) => &mut outcomes.cancelled,
                Some(_) => &mut outcomes.dead_lettered,
            };
            *count += 1;
        }
        outcomes
    }

    /// The number of occurrences of schedules among these messages.
    pub(crate) fn occurrences(&self, indexes: Range<usize>) -> u64 {
        let messages = self.messages[indexes].iter();
        messages.filter(|(run, _)| run.run.is_computed).count() as u64
    }

    /// The requests of the answers among these messages, if the store has their effects.
    pub(crate) fn delivered_answers(&self, indexes: Range<usize>) -> impl Iterator<Item = Offset> {
        let answers = indexes.filter(|index| self.is_answer(*index));
        let requests = answers.map(|index| self.place(index).offset);
        requests.filter(|request| self.named.contains_key(request))
    }

    /// The message ids that become free once these messages are delivered. Most messages have no id
    /// and are not decoded again.
    pub(crate) fn delivered_ids<'a>(
        &'a self,
        context: &'a ShardContext,
        indexes: Range<usize>,
    ) -> impl Iterator<Item = (StoredId, Cursor)> + 'a {
        let with_id = self.messages[indexes]
            .iter()
            .filter(|(run, at)| run.run.has_id(*at as usize));
        let read = with_id.filter_map(|(run, at)| run.run.message(*at as usize));
        read.filter_map(|message| {
            let id = context.keys.stored_id(&context.shard, message.body.id?);
            Some((id, message.place))
        })
    }
}

/// Identifies one message in flight. Clients return it, packed into a number, in their reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Slot of the shard (see `shard_slots`).
    pub(crate) slot: u16,
    pub(crate) batch: u32,
    pub(crate) index: u16,
}

impl Ticket {
    pub(crate) fn new(slot: u16, batch: u32, index: usize) -> Self {
        let index = u16::try_from(index).expect("a claim holds fewer than 65,536 messages");
        Self { slot, batch, index }
    }

    pub(crate) fn pack(self) -> u64 {
        u64::from(self.slot) << 48 | u64::from(self.batch) << 16 | u64::from(self.index)
    }

    pub(crate) fn unpack(packed: u64) -> Self {
        Self {
            slot: (packed >> 48) as u16,
            batch: (packed >> 16) as u32,
            index: packed as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fault_injection::{self, InjectedFault};

    #[test]
    fn a_transaction_with_a_late_message_ends_at_the_start_of_its_claim_or_later() {
        let place = |due, offset| Cursor::new(Timestamp::from_millis(due), Offset(offset));
        let mut batch = ClaimedBatch::new(Vec::new(), Vec::new(), Vec::new(), Instant::now());
        let (late, later) = (Cursor::new(Timestamp::AT_ONCE, Offset(7)), place(20, 1));
        assert_eq!(batch.end_with(late), late, "an ordinary route");
        batch.set_start(place(10, 5));
        assert_eq!(batch.end_with(late), place(10, 5));
        assert_eq!(batch.end_with(later), later);
        let faults = [InjectedFault::CommitBeforeStartOfClaim];
        let end = fault_injection::with(faults, || batch.end_with(late));
        assert_eq!(end, late, "the fault is caught");
    }
}
