//! Claims due messages of all shards and reports delivered ones, in one store call at a time.

use super::Options;
use super::handover;
use super::quota::catch_up_rate::{CatchUpRates, catch_up_before};
use super::quota::in_flight::InFlightQuota;
use super::shard::{PendingCall, ShardState, ShardStates};
use super::store_call::StoreCall;
use crate::clock::Clock;
use crate::health::HealthPart;
use crate::limit::{CLAIM_AHEAD, CLAIM_INTERVAL, CLAIM_MESSAGES_MAX};
use crate::model::{ShardId, Timestamp};
use crate::retry::until_store_answers;
use crate::store::{Advance, Advanced, Error, Store};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Plans the calls and runs them.
pub(super) struct ClaimCalls {
    call: StoreCall<Result<Option<Vec<ClaimReply>>, Error>>,
    pub(super) catch_up_rates: CatchUpRates,
    /// Messages are claimed this long before they are due. Lower if the clocks must agree closely.
    claim_ahead: Duration,
    /// Index of the shard that comes first. It changes with each plan, so that every shard gets its
    /// turn.
    first_shard: usize,
}

/// The store's reply for one shard.
pub(super) struct ClaimReply {
    slot: u16,
    advance: Advance,
    outcome: Advanced,
}

impl ClaimCalls {
    pub(super) fn new(options: &Options, now: Instant) -> Self {
        Self {
            call: StoreCall::default(),
            catch_up_rates: CatchUpRates::new(&options.routes, now),
            claim_ahead: CLAIM_AHEAD.min(options.skew_max / 2),
            first_shard: 0,
        }
    }

    pub(super) fn claim_ahead(&self) -> Duration {
        self.claim_ahead
    }

    pub(super) fn first_shard(&self) -> usize {
        self.first_shard
    }

    pub(super) fn is_idle(&self) -> bool {
        self.call.is_idle()
    }

    /// Returns the calls to make now, at most one for each shard.
    pub(super) fn plan(
        &mut self,
        shards: &mut ShardStates,
        options: &Options,
        wall: Timestamp,
        now: Instant,
        stopping: bool,
    ) -> Vec<(u16, Advance)> {
        let served = |route: &str| {
            shards
                .iter()
                .filter(|(shard, state)| &*shard.route == route && state.ownership.may_deliver(now))
                .count()
        };
        self.catch_up_rates.set_served(served, now);
        let mut quota = InFlightQuota::new(options.routes.keys().cloned());
        for (shard, state) in &*shards {
            quota.add(&shard.route, state.in_flight.open_messages());
        }
        // If one shard claims, others whose claim is nearly due join the same call.
        let is_any_due = shards
            .values()
            .any(|state| state.is_claim_due(wall, now, self.claim_ahead));
        let early_by = if is_any_due {
            CLAIM_INTERVAL / 2
        } else {
            Duration::ZERO
        };
        let mut advances = Vec::new();
        self.first_shard = self.first_shard.wrapping_add(1) % shards.len().max(1);
        for (shard, state) in round_robin(shards, self.first_shard) {
            let room = quota.room(&shard.route);
            let room = self.limit_catch_up(state, room, wall, now);
            let limit = CLAIM_MESSAGES_MAX.min(room);
            let taken = if stopping || room == 0 {
                None
            } else {
                state.take_due(wall, now, limit, self.claim_ahead, early_by)
            };
            if let Some(taken) = &taken {
                quota.add(&shard.route, taken.messages.len());
                let limit_before = catch_up_before(wall);
                let behind = taken.messages.iter().filter(|(run, at)| {
                    let due = run.run.place(*at as usize).due;
                    !due.is_at_once() && due < limit_before
                });
                if self.catch_up_rates.has(&shard.route) {
                    self.catch_up_rates.spend(&shard.route, behind.count());
                }
            }
            let claim = taken.as_ref().map(|taken| taken.claim);
            let at_once = stopping || state.must_report_delivered();
            if let Some(advance) = state.next_advance(claim, options.skew_max, now, at_once) {
                state.start_call(&advance, taken);
                advances.push((state.slot, advance));
            }
        }
        advances
    }

    /// Returns `room`, or less while a shard is late and its route has a catch-up rate.
    fn limit_catch_up(
        &mut self,
        state: &mut ShardState,
        room: usize,
        wall: Timestamp,
        now: Instant,
    ) -> usize {
        let route = state.lease.shard.route.clone();
        if room == 0 || !self.catch_up_rates.has(&route) {
            return room;
        }
        let is_late = state
            .load
            .runs_mut()
            .earliest_due(wall)
            .is_some_and(|due| due < catch_up_before(wall));
        if !is_late {
            return room;
        }
        match self.catch_up_rates.room(&route, now) {
            Ok(most) => room.min(most),
            Err(at) => {
                state.claim.delay_until(at);
                0
            }
        }
    }

    /// Starts the call. It is repeated until the store answers, which changes nothing more.
    pub(super) fn start(
        &mut self,
        store: &Rc<dyn Store>,
        health: &Rc<HealthPart>,
        advances: Vec<(u16, Advance)>,
        give_up: &CancellationToken,
    ) {
        let store = store.clone();
        let health = health.clone();
        let give_up = give_up.clone();
        self.call.start(async move {
            let (slots, advances): (Vec<_>, Vec<_>) = advances.into_iter().unzip();
            // Safe to drop: messages that are claimed and not sent are delivered by the next owner.
            let outcomes = until_store_answers(
                &health,
                "cannot claim messages, so none are delivered",
                &give_up,
                async || store.advance(&advances).await,
            )
            .await?;
            Ok(outcomes.map(|outcomes| {
                debug_assert!(outcomes.len() == advances.len(), "one for each");
                let all = slots.into_iter().zip(advances).zip(outcomes);
                let reply = |((slot, advance), outcome)| ClaimReply {
                    slot,
                    advance,
                    outcome,
                };
                all.map(reply).collect()
            }))
        });
    }

    /// Waits for the replies. `None` if the timer gives up. Safe to drop.
    pub(super) async fn replies(&mut self) -> Result<Option<Vec<ClaimReply>>, Error> {
        self.call.reply().await
    }
}

/// Applies the store's reply to its shard.
pub(super) fn apply_reply(
    reply: ClaimReply,
    shards: &mut ShardStates,
    options: &Options,
    clock: &dyn Clock,
    clock_health: &HealthPart,
) {
    let now = Instant::now();
    let shard = &reply.advance.lease.shard;
    // A reply for an earlier period of ownership says nothing about this one.
    let state = shards
        .get_mut(shard)
        .filter(|state| state.slot == reply.slot);
    let Some(state) = state else { return };
    let Some(call) = state.claim.finish() else {
        return;
    };
    let PendingCall {
        taken,
        watermark_when_sent,
        ..
    } = call;
    match reply.outcome {
        Advanced::Done {
            watermark,
            cancelled,
        } => {
            if let Some(taken) = taken {
                let metric = &options.routes[&shard.route].metric;
                metric.late.increment(taken.late_count as u64);
                let possible_duplicates = state.on_claimed(taken, cancelled);
                metric
                    .possible_duplicates
                    .increment(possible_duplicates as u64);
                clock_health.set_ready();
            }
            state.detect_rollback_by_reply(watermark_when_sent, watermark, now);
        }
        Advanced::ClockAhead {
            watermark,
            now: store_time,
        } => {
            let ahead = clock.now().since(store_time).as_millis();
            clock_health.set_not_ready(format!(
                "the store rejects claims: this machine's clock is {ahead} ms ahead of the store's clock; fix the clock synchronization"
            ));
            state.on_claim_rejected(watermark, now);
        }
        Advanced::Fenced | Advanced::Unknown => handover::drop_shard(shards, shard),
    }
}

/// All shards, beginning with the one at index `first`.
pub(super) fn round_robin(
    shards: &mut ShardStates,
    first: usize,
) -> impl Iterator<Item = (&ShardId, &mut ShardState)> {
    let (after, before): (Vec<_>, Vec<_>) = shards
        .iter_mut()
        .enumerate()
        .partition(|(index, _)| *index >= first);
    after.into_iter().chain(before).map(|(_, entry)| entry)
}
