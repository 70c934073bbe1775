//! Computes when a shard has something to do that no event announces.

use super::{ShardPhase, ShardState};
use crate::limit::{RESEND_DELAY_MIN, TAIL_POLL_INTERVAL};
use crate::model::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// The state of the timer for which a wakeup is computed.
pub(crate) struct WakeupInput {
    pub(crate) wall: Timestamp,
    pub(crate) now: Instant,
    /// Messages are claimed this long before they are due.
    pub(crate) claim_ahead: Duration,
    /// They are claimed by a time that is at most this far ahead of the store's.
    pub(crate) store_lead: Duration,
    pub(crate) stopping: bool,
    /// No call of the shard, or of its part of the store, runs. The answer of one wakes the dispatcher.
    pub(crate) may_call_store: bool,
}

/// When to look at the shard again if no event comes before.
pub(crate) fn next_wakeup(state: &ShardState, input: &WakeupInput) -> Instant {
    let now = input.now;
    // A shard that is released, and a timer that is stopping, neither polls nor claims.
    let is_served = state.ownership.may_claim(now) && !input.stopping;
    [
        state.load.tail.next_at().filter(|_| is_served),
        next_claim(state, input).filter(|_| is_served && input.may_call_store),
        next_phase_change(state, input),
        next_send(state, input),
        // While a commit is in doubt nothing is reported. Its result wakes the dispatcher.
        state
            .delivered
            .report_at
            .filter(|_| state.may_report_delivered() && input.may_call_store),
    ]
    .into_iter()
    .flatten()
    .min()
    .unwrap_or(now + TAIL_POLL_INTERVAL)
}

fn next_claim(state: &ShardState, input: &WakeupInput) -> Option<Instant> {
    let now = input.now;
    let wall = state.claim_time(input.wall, now, input.store_lead);
    let until = wall.plus(input.claim_ahead);
    let schedule = state.load.schedule();
    let earliest = state.claim.earliest();
    let due = schedule
        .next_due(until)
        .map(|due| earliest.unwrap_or(now).max(now + due.since(until)));
    let late = schedule.next_late_due().map(|due| {
        if due > until {
            now + due.since(until)
        } else {
            // This tick could not take it for lack of room. A report announces room.
            let pause_end = state.claim.not_before.filter(|at| *at > now);
            pause_end.unwrap_or(now + RESEND_DELAY_MIN)
        }
    });
    let occurrence = state.next_occurrence_due().map(|due| {
        let wait = if due > until {
            due.since(until)
        } else {
            // This tick could not take it for lack of room. A report announces room.
            RESEND_DELAY_MIN
        };
        earliest.unwrap_or(now).max(now + wait)
    });
    // Messages that were already due are not in `next_due`.
    let pause_end = earliest.filter(|at| *at > now);
    [due, late, occurrence, pause_end]
        .into_iter()
        .flatten()
        .min()
}

fn next_phase_change(state: &ShardState, input: &WakeupInput) -> Option<Instant> {
    let now = input.now;
    match state.ownership.phase {
        // The renewal of the session is not announced.
        ShardPhase::Active => {
            let may_be_taken = state.ownership.clock.may_be_taken(now);
            may_be_taken.then(|| now + RESEND_DELAY_MIN)
        }
        ShardPhase::HandingOver { .. } if state.in_flight.is_empty() && input.may_call_store => {
            Some(now)
        }
        ShardPhase::HandingOver { until } | ShardPhase::LeaseLost { until } => Some(until),
    }
}

/// A client with a full queue need not announce that it accepts messages again.
fn next_send(state: &ShardState, input: &WakeupInput) -> Option<Instant> {
    let now = input.now;
    if !state.ownership.may_deliver(now) {
        return None;
    }
    // Outcome records may have to be sent again, or their messages stop waiting for them.
    let owes_records =
        state.context.has_outcomes() && state.in_flight.iter().any(|batch| batch.records.len() > 0);
    let next_record = owes_records.then(|| now + RESEND_DELAY_MIN);
    let Some(place) = state.next_unsent_place() else {
        return next_record;
    };
    let next_message = if place.due > input.wall {
        now + place.due.since(input.wall)
    } else if state.lane.hit_tick_limit() {
        now
    } else {
        now + RESEND_DELAY_MIN
    };
    Some(next_record.map_or(next_message, |at| at.min(next_message)))
}
