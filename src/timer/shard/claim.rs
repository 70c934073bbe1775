//! When a shard may claim and how much, and the claim that the store has not answered yet.

use super::ShardState;
use crate::limit::{
    CLAIM_INTERVAL, CLAIM_MESSAGES_MAX, LATE_CLAIM_INTERVAL, RATE_RESERVED_MAX, SHARD_IN_FLIGHT_MAX,
};
use crate::model::{Cursor, Timestamp, Watermark};
use crate::schedule::{InFlightClaims, TakenBatch};
use crate::timer::delivery::in_flight::ClaimedBatch;
use crate::timer::load::ResidentRun;
use crate::timer::quota::rate_wait::HeldBack;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Default)]
pub(crate) struct ClaimState {
    /// No claim before this time: the last one was just now or rejected, or the catch-up rate is used up.
    pub(super) not_before: Option<Instant>,
    /// Only late messages are claimed before this time: the others that are due soon already are.
    only_late_before: Option<Instant>,
    /// The rate of the route is used up until this time.
    pub(super) rate_until: Option<Instant>,
    /// The last claim that counted for the rate of the route. The shard that waits longest comes first.
    pub(crate) limited_at: Option<Instant>,
    /// The last claim.
    pub(super) taken_at: Option<Instant>,
    /// How long the rate had held the shard back then.
    pub(super) held_back: Option<HeldBack>,
    /// The call that the store has not answered.
    pub(crate) pending: Option<PendingCall>,
}

pub(crate) struct PendingCall {
    pub(super) reports_delivered: bool,
    pub(crate) taken: Option<TakenBatch<ResidentRun>>,
    pub(super) least_place: Option<Cursor>,
    /// The greatest watermark seen when the call was sent. An answer below the current one need not
    /// mean that the store was rolled back.
    pub(crate) watermark_when_sent: Watermark,
}

impl ClaimState {
    /// When every message may be claimed. Late messages may be claimed earlier.
    pub(super) fn earliest(&self) -> Option<Instant> {
        (self.not_before)
            .max(self.only_late_before)
            .max(self.rate_until)
    }

    /// True if a claim may be made now. A claim that is not for late messages may come `early_by`
    /// before its time, to share a store call with other shards.
    pub(super) fn allows(&self, is_late: bool, early_by: Duration, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
            && (is_late || self.only_late_before.is_none_or(|at| at <= now + early_by))
    }

    /// Sets the pause after `taken` messages were taken, of up to `limit`.
    pub(super) fn on_taken(
        &mut self,
        taken: usize,
        limit: usize,
        is_behind: bool,
        ahead: Duration,
        now: Instant,
    ) {
        self.taken_at = Some(now);
        let is_small = taken < CLAIM_MESSAGES_MAX / 2;
        self.not_before = is_small.then_some(now + LATE_CLAIM_INTERVAL);
        // No pause if the limit has cut the claim, or if the shard is behind and loads more.
        let has_all = taken < limit && !is_behind;
        self.only_late_before = (is_small && has_all).then_some(now + CLAIM_INTERVAL.min(ahead));
    }

    pub(crate) fn delay_until(&mut self, at: Instant) {
        self.not_before = self.not_before.max(Some(at));
    }

    pub(super) fn is_claiming(&self) -> bool {
        self.taken().is_some()
    }

    fn taken(&self) -> Option<&TakenBatch<ResidentRun>> {
        self.pending.as_ref()?.taken.as_ref()
    }

    /// Messages that are claimed or being claimed, without those that wait for another one: that one
    /// may not be loaded yet. They go out without a further load, and free their memory.
    pub(super) fn messages_to_send(&self, in_flight: &InFlightClaims<ClaimedBatch>) -> usize {
        let waiting: usize = in_flight.iter().map(ClaimedBatch::waiting_messages).sum();
        self.claiming_messages() + in_flight.open_messages().saturating_sub(waiting)
    }

    /// The messages of the pending claim.
    pub(super) fn claiming_messages(&self) -> usize {
        self.taken().map_or(0, |taken| taken.messages.len())
    }

    /// True if a call with a delivered pair is not answered yet.
    pub(crate) fn is_reporting_delivered(&self) -> bool {
        self.pending
            .as_ref()
            .is_some_and(|call| call.reports_delivered)
    }

    /// The least place of the pending claim. Later messages must not be sent before (G4).
    pub(crate) fn pending_place(&self) -> Option<Cursor> {
        self.pending.as_ref()?.least_place
    }

    /// Ignores the pending claim and its answer. Its messages are taken again.
    pub(super) fn cancel(&mut self) {
        if let Some(call) = &mut self.pending {
            call.taken = None;
            call.least_place = None;
        }
    }
}

impl ShardState {
    /// True if a message in memory, or an occurrence, is due at `until`.
    fn is_due(&self, until: Timestamp) -> bool {
        self.load.schedule().is_due(until)
            || self.next_occurrence_due().is_some_and(|due| due <= until)
    }

    /// Limits a claim of up to `limit` messages, which are due at `until`, to what the rate of the route
    /// allows. `room` returns the number that may be claimed, or the time to ask again. It is called
    /// only if there is such a message. Without room an answer may be claimed, because answers do not
    /// count.
    pub(crate) fn limit_by_rate(
        &mut self,
        limit: usize,
        until: Timestamp,
        wall: Timestamp,
        now: Instant,
        room: impl FnOnce() -> Result<usize, Instant>,
    ) -> usize {
        self.claim.rate_until = None;
        let is_loaded = self.load.schedule().loaded().due > wall;
        if is_loaded && !self.is_due(wall) {
            self.rate_wait.end();
        }
        if limit == 0 || !self.is_due(until) || !self.may_claim(now) || fault!(ClaimBeyondRate) {
            return limit;
        }
        let at = match room() {
            Ok(room) => return limit.min(room),
            Err(at) => at,
        };
        self.claim.rate_until = Some(at);
        let next = self.load.schedule().next_late();
        if next.is_some_and(|(run, index)| run.run.is_answer(index)) {
            return 1;
        }
        if self.is_due(wall) {
            self.rate_wait.hold(now, at);
        }
        0
    }

    /// Takes messages that are due within `ahead`, up to `limit`, as far as there is room in
    /// flight. May come `early_by` before its time.
    pub(crate) fn take_due(
        &mut self,
        wall: Timestamp,
        now: Instant,
        limit: usize,
        ahead: Duration,
        early_by: Duration,
    ) -> Option<TakenBatch<ResidentRun>> {
        let until = wall.plus(ahead);
        let late_due = self.load.schedule().next_late_due();
        let is_late = late_due.is_some_and(|due| due <= until);
        let used = self.in_flight.open_messages() + self.delivered.unreported_ids();
        let limit = limit.min(SHARD_IN_FLIGHT_MAX.saturating_sub(used));
        if limit == 0 || !self.claim.allows(is_late, early_by, now) || !self.may_claim(now) {
            return None;
        }
        let taken = self.take_messages(until, wall, limit)?;
        let first = taken.messages.first();
        let is_behind = first.is_some_and(|(run, at)| run.run.place(*at as usize).due < wall);
        let count = taken.messages.len();
        let has_more = self.next_occurrence_due().is_some_and(|due| due <= until);
        let limit = if has_more { count } else { limit };
        self.claim.on_taken(count, limit, is_behind, ahead, now);
        self.claim.held_back = Some(self.rate_wait.at_claim(wall));
        Some(taken)
    }

    /// The claimed messages that will be sent soon. Messages that cannot be sent must not hold other
    /// shards back.
    pub(crate) fn reserved_messages(&self, now: Instant) -> usize {
        let is_recent = |at: Instant| now < at + RATE_RESERVED_MAX;
        let batches = self.in_flight.iter();
        let batches = batches.filter(|batch| is_recent(batch.claimed_at()));
        let claimed: usize = batches.map(ClaimedBatch::unsent_messages).sum();
        let taken = self.claim.taken_at.filter(|at| is_recent(*at));
        claimed + taken.map_or(0, |_| self.claim.claiming_messages())
    }
}
