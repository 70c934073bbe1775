//! When a shard may claim and how much, and the claim that the store has not answered yet.

use super::ShardState;
use crate::limit::{
    CLAIM_AHEAD, CLAIM_INTERVAL, CLAIM_MESSAGES_MAX, LATE_CLAIM_INTERVAL, RESEND_DELAY_MIN,
    SHARD_IN_FLIGHT_MAX, TAIL_POLL_INTERVAL,
};
use crate::membership::StoreTime;
use crate::model::{Cursor, Pause, Timestamp, Watermark};
use crate::schedule::{InFlightClaims, TakenBatch};
use crate::timer::delivery::in_flight::ClaimedBatch;
use crate::timer::load::ResidentRun;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Default)]
pub(crate) struct ClaimState {
    /// No claim before this time: the last one was just now or rejected, or the rate is used up.
    pub(super) not_before: Option<Instant>,
    /// Only late messages are claimed before this time: the others that are due soon already are.
    only_late_before: Option<Instant>,
    /// The last claim that counted for the rate of the route.
    pub(crate) rated_at: Option<Instant>,
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
        self.not_before.max(self.only_late_before)
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
        let is_small = taken < CLAIM_MESSAGES_MAX / 2;
        self.not_before = is_small.then_some(now + LATE_CLAIM_INTERVAL);
        // No pause if the limit has cut the claim, or if the shard is behind and loads more.
        let has_all = taken < limit && !is_behind;
        // The next claim is answered before the messages behind this one are due.
        let interval = CLAIM_INTERVAL.min(ahead - ahead / 6);
        self.only_late_before = (is_small && has_all).then_some(now + interval);
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

    /// The messages of the claim that the store has not answered.
    pub(super) fn pending_messages(&self) -> usize {
        self.taken().map_or(0, |taken| taken.messages.len())
    }

    /// True if claimed messages go out without a further load. A message that waits for another one
    /// does not count: that one may not be loaded yet. Nor does one that waits for its outcome records.
    pub(super) fn is_sending(&self, in_flight: &InFlightClaims<ClaimedBatch>) -> bool {
        let waiting = |batch: &ClaimedBatch| batch.waiting_messages() + batch.owing_messages();
        self.is_claiming() || in_flight.open_messages() > in_flight.iter().map(waiting).sum()
    }

    /// True if claimed messages should have been delivered by now.
    pub(super) fn is_slow(
        &self,
        in_flight: &InFlightClaims<ClaimedBatch>,
        wall: Timestamp,
        now: Instant,
    ) -> bool {
        let pending = self.pending_place().map(|place| place.due);
        let is_pending_overdue =
            pending.is_some_and(|due| !due.is_at_once() && due.plus(TAIL_POLL_INTERVAL) <= wall);
        // A batch with a message that waits for another one is not slow: that one may not be loaded yet. Nor is
        // one that waits for outcome records.
        let mut sending = in_flight
            .iter()
            .filter(|batch| batch.waiting_messages() + batch.owing_messages() == 0);
        let is_old =
            |batch: &ClaimedBatch| batch.claimed_at() + CLAIM_AHEAD + TAIL_POLL_INTERVAL <= now;
        is_pending_overdue || sending.next().is_some_and(is_old)
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
        let used = self.undelivered_messages() + self.delivered.unreported_ids();
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
        Some(taken)
    }

    /// The store has rejected a claim that was too far ahead of its time. The messages are taken
    /// again after `RESEND_DELAY_MIN`.
    pub(crate) fn on_claim_rejected(&mut self, watermark: Watermark, store: StoreTime) {
        let now = store.answered;
        self.ownership.clock.set_store_time(store);
        self.reload(self.in_flight.claimed(), watermark, now);
        self.claim.not_before = Some(now + RESEND_DELAY_MIN);
    }

    /// The store has refused a claim, because it is behind the watermark that this timer has seen. The
    /// messages are taken again when the source is read again.
    pub(crate) fn on_claim_rolled_back(&mut self, watermark: Watermark, now: Instant) {
        tracing::warn!(shard = %self.lease.shard, %watermark,
            "the store has lost messages: loading the shard again");
        self.reload(self.in_flight.claimed(), watermark, now);
    }

    /// The store has refused a claim, because the shard is paused. The messages are taken again after the
    /// pause.
    pub(crate) fn on_claim_paused(&mut self, watermark: Watermark, pause: Pause, now: Instant) {
        self.load.learn_pause(pause);
        self.reload(self.in_flight.claimed(), watermark, now);
        // The commit may already have the resume, and the store not yet: try again soon.
        self.claim.not_before = Some(now + RESEND_DELAY_MIN);
    }
}
