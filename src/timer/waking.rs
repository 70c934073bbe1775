//! When a shard's work is to be looked at again, though nothing is heard of it.

use super::work::{ShardPhase, ShardState};
use crate::limit::{RESEND_DELAY_MIN, TAIL_POLL_INTERVAL_MAX};
use crate::model::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// What a timer knows of the moment for which it asks.
pub(super) struct WakeupInput {
    pub(super) wall: Timestamp,
    pub(super) now: Instant,
    /// How far ahead messages are claimed.
    pub(super) claim_ahead: Duration,
    pub(super) stopping: bool,
    /// The store has answered what it was asked last. If it has not, its answer wakes.
    pub(super) store_is_idle: bool,
}

impl ShardState {
    /// When there is something to do for it that no message will announce.
    pub(super) fn next_wakeup(&self, moment: &WakeupInput) -> Instant {
        let WakeupInput {
            wall,
            now,
            claim_ahead: ahead,
            stopping,
            store_is_idle: may_ask,
        } = *moment;
        // Of a shard that is being left, or by who is to stop, nothing is asked or taken any more: that wakes nobody up.
        let is_served = self.may_claim(now) && !stopping;
        let poll = self.tail_poll.next_at().filter(|_| is_served);
        let reach = wall.plus(ahead);
        let is_asking = is_served && may_ask;
        let due = self
            .schedule
            .next_due(reach)
            .filter(|_| is_asking)
            .map(|due| now + due.since(reach));
        // One that waits already was not taken in the tick before this: it waits for room, which a report announces.
        let late_at = |due: Timestamp| {
            if due > reach {
                now + due.since(reach)
            } else {
                self.no_claim_before
                    .filter(|at| *at > now)
                    .unwrap_or(now + RESEND_DELAY_MIN)
            }
        };
        let late = self
            .schedule
            .next_late_due()
            .filter(|_| is_asking)
            .map(late_at);
        let leaving = match self.phase {
            ShardPhase::Active => None,
            ShardPhase::HandingOver { .. } if self.in_flight.is_empty() && may_ask => Some(now),
            ShardPhase::HandingOver { until } | ShardPhase::LeaseLost { until } => Some(until),
        };
        // Nobody says when a lease that has run out is renewed.
        let renewal = (self.lease_deadline.has_passed(now) && self.phase == ShardPhase::Active)
            .then(|| now + RESEND_DELAY_MIN);
        let due = due.map(|due| {
            self.no_claim_before
                .max(self.no_early_claim_before)
                .map_or(due, |at| due.max(at))
        });
        // What was due before it is not told by the schedule again.
        let pace = self
            .no_claim_before
            .max(self.no_early_claim_before)
            .filter(|at| is_asking && *at > now);
        // A target that takes nothing for now need not say when it does.
        let unsent = self.next_unsent_place().filter(|_| self.may_deliver(now));
        let unsent = unsent.map(|place| match place.due {
            due if due > wall => now + due.since(wall),
            _ if self.lane.hit_tick_limit() => now,
            _ => now + RESEND_DELAY_MIN,
        });
        // The end of a doubt wakes by itself.
        let tell = self
            .report_at
            .filter(|_| self.may_report_delivered() && may_ask);
        [poll, due, late, pace, tell, leaving, renewal, unsent]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(now + TAIL_POLL_INTERVAL_MAX)
    }
}
