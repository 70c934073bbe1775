//! When a shard's work is to be looked at again, though nothing is heard of it.

use super::work::{Phase, Work};
use crate::limit::{POLL_MAX, RESEND_MIN};
use crate::model::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// What a timer knows of the moment for which it asks.
pub(super) struct Moment {
    pub(super) wall: Timestamp,
    pub(super) now: Instant,
    /// How far ahead messages are claimed.
    pub(super) ahead: Duration,
    pub(super) stopping: bool,
    /// The store has answered what it was asked last. If it has not, its answer wakes.
    pub(super) may_ask: bool,
}

impl Work {
    /// When there is something to do for it that no message will announce.
    pub(super) fn next_wake(&self, moment: &Moment) -> Instant {
        let Moment {
            wall,
            now,
            ahead,
            stopping,
            may_ask,
        } = *moment;
        // Of a shard that is being left, or by who is to stop, nothing is asked or taken any more: that wakes nobody up.
        let is_served = self.is_taking(now) && !stopping;
        let poll = self.poll.at().filter(|_| is_served);
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
                self.not_before
                    .filter(|at| *at > now)
                    .unwrap_or(now + RESEND_MIN)
            }
        };
        let late = self.schedule.late_due().filter(|_| is_asking).map(late_at);
        let leaving = match self.phase {
            Phase::Active => None,
            Phase::HandingOver { .. } if self.flights.is_empty() && may_ask => Some(now),
            Phase::HandingOver { until } | Phase::Leaving { until } => Some(until),
        };
        // Nobody says when a lease that has run out is renewed.
        let renewal =
            (self.term.has_run_out(now) && self.phase == Phase::Active).then(|| now + RESEND_MIN);
        let due = due.map(|due| {
            self.not_before
                .max(self.ahead_at)
                .map_or(due, |at| due.max(at))
        });
        // What was due before it is not told by the schedule again.
        let pace = self
            .not_before
            .max(self.ahead_at)
            .filter(|at| is_asking && *at > now);
        // A target that takes nothing for now need not say when it does.
        let unsent = self.next_place().filter(|_| self.is_ours(now));
        let unsent = unsent.map(|place| match place.due {
            due if due > wall => now + due.since(wall),
            _ if self.queued.is_cut() => now,
            _ => now + RESEND_MIN,
        });
        // The end of a doubt wakes by itself.
        let tell = self.tell_at.filter(|_| self.may_tell() && may_ask);
        [poll, due, late, pace, tell, leaving, renewal, unsent]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(now + POLL_MAX)
    }
}
