//! Claims due messages of all shards and reports delivered ones. In each part of the store, one call
//! runs at a time. A part that does not answer delays no other part.

use super::Options;
use super::handover;
use super::load::ResidentRun;
use super::quota::InFlightQuota;
use super::quota::route_rates::{RouteRates, catch_up_before};
use super::shard::{PendingCall, ShardState, ShardStates};
use crate::health::HealthPart;
use crate::limit::{CLAIM_AHEAD, CLAIM_INTERVAL, CLAIM_MESSAGES_MAX};
use crate::limit::{CLOCK_SKEW_MARGIN_FRACTION, RATE_BURST_SPAN};
use crate::membership::StoreTime;
use crate::model::{Cursor, ShardId, Timestamp};
use crate::retry::{PartsReadiness, until_store_answers};
use crate::schedule::TakenBatch;
use crate::store::{Advance, Advanced, EffectKind, Error, Store, StorePart};
use futures_util::future::{FutureExt as _, LocalBoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(super) type ClaimReply = (Advance, Advanced);

/// A call and the part of the store to which it goes. Its result is `None` if the timer gives up.
type ClaimCall = LocalBoxFuture<'static, (StorePart, Result<Option<Vec<ClaimReply>>, Error>)>;

pub(super) struct ClaimCalls {
    store: Rc<dyn Store>,
    running: FuturesUnordered<ClaimCall>,
    /// The parts to which the running calls go.
    busy: BTreeSet<StorePart>,
    /// Ready while each part answers.
    readiness: PartsReadiness,
    pub(super) rates: RouteRates,
    /// Messages are claimed this long before they are due: at most half of the allowed clock skew.
    claim_ahead: Duration,
    /// The clock by which messages are claimed is at most this far ahead of the store's time.
    pub(super) store_lead: Duration,
    /// Index of the shard that comes first. It changes with each plan, so that every shard gets its
    /// turn.
    pub(super) first_shard: usize,
}

impl ClaimCalls {
    pub(super) fn new(
        store: Rc<dyn Store>,
        health: Rc<HealthPart>,
        options: &Options,
        now: Instant,
    ) -> Self {
        let skew_max = options.skew_max;
        let claim_ahead = CLAIM_AHEAD.min(skew_max / 2);
        Self {
            store,
            running: FuturesUnordered::new(),
            busy: BTreeSet::new(),
            readiness: PartsReadiness::new(health),
            rates: RouteRates::new(&options.routes, now),
            claim_ahead,
            store_lead: skew_max - skew_max / CLOCK_SKEW_MARGIN_FRACTION - claim_ahead,
            first_shard: 0,
        }
    }

    /// True if no call of the shard or of its part runs. The shard may have moved to another part
    /// since its call began.
    pub(super) fn may_call(&self, shard: &ShardId, state: &ShardState) -> bool {
        let is_other_part = || !self.busy.contains(&self.store.part_of(shard));
        state.claim.pending.is_none()
            && (self.busy.is_empty() || is_other_part() && !fault!(ClaimInOnePartAtATime))
    }

    /// Messages of the route are claimed this long before they are due. With a rate, the messages that were
    /// claimed ahead go out in addition to a burst, so there are only few of them.
    pub(super) fn claim_ahead_of(&self, route: &str) -> Duration {
        match self.rates.has_rate(route) {
            true => self.claim_ahead.min(RATE_BURST_SPAN),
            false => self.claim_ahead,
        }
    }

    /// The replies of the next call that ends. Waits for ever if none runs.
    ///
    /// Safe to drop: a reply that was not returned stays here.
    pub(super) async fn next(&mut self) -> Result<Vec<ClaimReply>, Error> {
        match self.running.next().await {
            None => std::future::pending().await,
            Some((part, replies)) => {
                self.busy.remove(&part);
                Ok(replies?.unwrap_or_default())
            }
        }
    }

    pub(super) fn plan(
        &mut self,
        shards: &mut ShardStates,
        options: &Options,
        wall: Timestamp,
        now: Instant,
        stopping: bool,
    ) -> Vec<Advance> {
        let served = |route: &str| {
            let is_served = |(shard, state): &(&ShardId, &ShardState)| {
                &*shard.route == route && state.ownership.may_deliver(now)
            };
            shards.iter().filter(is_served).count()
        };
        self.rates.set_served(served, now);
        let mut quota = InFlightQuota::new(options.routes.keys().cloned());
        for (shard, state) in &*shards {
            quota.add(&shard.route, state.claimed_messages());
            quota.add_waiting(&shard.route, state.waiting_messages());
        }
        // If one shard claims, others whose claim is nearly due join the same call.
        let is_any_due = shards.iter().any(|(shard, state)| {
            let wall = state.claim_time(wall, now, self.store_lead);
            state.is_claim_due(wall, now, self.claim_ahead_of(&shard.route))
                && self.may_call(shard, state)
        });
        let early_by = if is_any_due {
            CLAIM_INTERVAL / 2
        } else {
            Duration::ZERO
        };
        let mut advances = Vec::new();
        self.first_shard = self.first_shard.wrapping_add(1) % shards.len().max(1);
        // The shards of a route share its rate: the one that has waited longest for a claim comes first.
        let mut in_turn: Vec<_> = round_robin(shards, self.first_shard).collect();
        in_turn.sort_by_key(|(_, state)| state.claim.rated_at);
        for (shard, state) in in_turn {
            if !self.may_call(shard, state) {
                continue;
            }
            let wall = state.claim_time(wall, now, self.store_lead);
            let ahead = self.claim_ahead_of(&shard.route);
            let limit = CLAIM_MESSAGES_MAX.min(quota.room(&shard.route));
            let unacknowledged = quota.unacknowledged(&shard.route);
            let limit = self.limit_by_rate(state, limit, unacknowledged, wall, now);
            let limit = self.limit_catch_up(state, limit, wall, now);
            let taken = if stopping || limit == 0 {
                None
            } else {
                state.take_due(wall, now, limit, ahead, early_by)
            };
            if let Some(taken) = &taken {
                quota.add(&shard.route, taken.messages.len());
                self.count_taken(state, taken, wall, now);
            }
            let claim = taken.as_ref().map(|taken| taken.claim);
            let at_once = stopping || state.must_report_delivered();
            if let Some(mut advance) = state.next_advance(claim, options.skew_max, now, at_once) {
                let requests = taken.iter().flat_map(answers).map(|place| place.offset);
                advance.claimed_answers = requests.collect();
                state.start_call(&advance, taken);
                advances.push(advance);
            }
        }
        advances
    }

    /// Returns `room`, or less while the shard is behind and its route has a catch-up rate.
    fn limit_catch_up(
        &mut self,
        state: &mut ShardState,
        room: usize,
        wall: Timestamp,
        now: Instant,
    ) -> usize {
        let bucket = self.rates.catch_up_rate(&state.lease.shard.route);
        let earliest_due = state.load.schedule().earliest_due(wall);
        let is_behind = earliest_due.is_some_and(|due| due < catch_up_before(wall));
        match bucket.filter(|_| is_behind && room > 0) {
            None => room,
            Some(bucket) => match bucket.room(now) {
                Ok(most) => room.min(most),
                Err(at) => {
                    state.claim.delay_until(at);
                    state.rate_hold.end();
                    0
                }
            },
        }
    }

    /// Returns `limit`, or less because of the rate of the route. `unacknowledged`: messages of the route that
    /// are claimed here, and that wait for nothing but their target.
    fn limit_by_rate(
        &mut self,
        state: &mut ShardState,
        limit: usize,
        unacknowledged: usize,
        wall: Timestamp,
        now: Instant,
    ) -> usize {
        let route = state.lease.shard.route.clone();
        let until = wall.plus(self.claim_ahead_of(&route));
        let Some(bucket) = self.rates.rate(&route) else {
            state.rate_hold.end();
            return limit;
        };
        if limit == 0 || !state.may_claim(now) || state.load.is_paused() {
            state.rate_hold.end();
            return limit;
        }
        if !state.load.schedule().has_due(until) || fault!(ClaimBeyondRate) {
            // The next messages may only be missing for a moment. So this does not end the hold.
            return limit;
        }
        if bucket.is_backed_up(unacknowledged) && !fault!(ClaimDuringTargetOutage) {
            // The target is slow or away, so lateness is not by the rate. A report announces room.
            state.rate_hold.end();
            return 0;
        }
        match bucket.room(now) {
            Ok(room) => limit.min(room),
            Err(at) => {
                state.claim.delay_until(at);
                let schedule = state.load.schedule();
                if !bucket.has_share() {
                    state.rate_hold.end();
                } else if schedule.has_due(wall) {
                    let first_due = schedule.earliest_due(wall);
                    let full_time = bucket.full_time();
                    state.rate_hold.on_held(first_due, wall, now, full_time);
                }
                0
            }
        }
    }

    /// Counts messages that are about to be claimed for the rates of their route. Answers do not count for
    /// `rate`, because they do not go to the target.
    fn count_taken(
        &mut self,
        state: &mut ShardState,
        taken: &TakenBatch<ResidentRun>,
        wall: Timestamp,
        now: Instant,
    ) {
        let route = &state.lease.shard.route;
        if let Some(bucket) = self.rates.catch_up_rate(route) {
            let dues = places(taken).map(|place| place.due);
            let behind = dues.filter(|due| !due.is_at_once() && *due < catch_up_before(wall));
            bucket.spend(behind.count());
        }
        let mut full_time = Duration::ZERO;
        if let Some(bucket) = self.rates.rate(route) {
            bucket.spend(rated_messages(taken));
            full_time = bucket.full_time();
            state.claim.rated_at = Some(now);
        }
        // Also if the rate was just removed.
        state.held_before_claim = state.rate_hold.at_claim(wall, now, full_time);
    }

    /// Starts a call for each part. It is repeated until the part answers. A repeat changes nothing
    /// more.
    pub(super) fn start(&mut self, advances: Vec<Advance>, give_up: &CancellationToken) {
        let mut parts: BTreeMap<StorePart, Vec<Advance>> = BTreeMap::new();
        for advance in advances {
            let part = self.store.part_of(&advance.lease.shard);
            parts.entry(part).or_default().push(advance);
        }
        for (part, advances) in parts {
            self.start_one(part, advances, give_up);
        }
    }

    fn start_one(&mut self, part: StorePart, advances: Vec<Advance>, give_up: &CancellationToken) {
        let (store, give_up) = (self.store.clone(), give_up.clone());
        let readiness = self.readiness.of(part);
        let call = async move {
            // Safe to drop: messages that are claimed and not sent are delivered by the next owner.
            let outcomes = until_store_answers(
                &readiness,
                "cannot claim messages, so none are delivered",
                &give_up,
                async || store.advance(&advances).await,
            )
            .await?;
            Ok(outcomes.map(|outcomes| advances.into_iter().zip(outcomes).collect()))
        };
        self.busy.insert(part);
        self.running
            .push(call.map(move |replies| (part, replies)).boxed_local());
    }
}

/// Cancelled and moved messages do not go to the target, so they do not count for `rates`.
pub(super) fn apply_reply(
    (advance, outcome): ClaimReply,
    shards: &mut ShardStates,
    rates: &mut RouteRates,
) {
    let now = Instant::now();
    let shard = &advance.lease.shard;
    // A reply for an earlier period of ownership says nothing about this one.
    let state = shards
        .get_mut(shard)
        .filter(|state| state.lease == advance.lease);
    let Some(state) = state else { return };
    let Some(call) = state.claim.pending.take() else {
        return;
    };
    let PendingCall {
        taken,
        watermark_when_sent,
        ..
    } = call;
    let is_refused = matches!(
        outcome,
        Advanced::ClockAhead { .. } | Advanced::RolledBack { .. } | Advanced::Paused { .. }
    );
    if let Some(taken) = taken.as_ref().filter(|_| is_refused)
        && let Some(bucket) = rates.rate(&shard.route)
    {
        bucket.give_back(rated_messages(taken));
    }
    match outcome {
        Advanced::Done {
            watermark,
            cancelled,
            effects,
        } => {
            if let Some(taken) = taken {
                let context = state.context.clone();
                let metric = &context.route.metric;
                metric.late.increment(taken.late_count as u64);
                if let Some(bucket) = rates.rate(&shard.route) {
                    let moved = effects
                        .iter()
                        .filter(|effect| matches!(effect.kind, EffectKind::Moved(_)));
                    let moved = moved.map(|effect| effect.place);
                    let unsent: BTreeSet<_> = cancelled.iter().copied().chain(moved).collect();
                    let unsent = places(&taken).filter(|place| unsent.contains(place));
                    bucket.give_back(unsent.count());
                }
                let possible_duplicates = state.on_claimed(taken, cancelled, effects, now) as u64;
                metric.possible_duplicates.increment(possible_duplicates);
            }
            state.detect_rollback_by_reply(watermark_when_sent, watermark, now);
        }
        Advanced::ClockAhead {
            watermark,
            now: store_time,
        } => {
            tracing::warn!(%shard,
                "claim refused: the store's clock is behind this worker's estimate; claiming again by the store's clock");
            state.on_claim_rejected(watermark, StoreTime::just_answered(store_time));
        }
        Advanced::RolledBack { watermark } => {
            state.on_claim_rolled_back(watermark, now);
        }
        Advanced::Paused { watermark, pause } => state.on_claim_paused(watermark, pause, now),
        Advanced::Fenced | Advanced::Unknown => handover::mark_lost(shards, shard),
    }
}

fn places(taken: &TakenBatch<ResidentRun>) -> impl Iterator<Item = Cursor> {
    let messages = taken.messages.iter();
    messages.map(|(run, at)| run.run.place(*at as usize))
}

/// The number of these messages that count for `rate`.
fn rated_messages(taken: &TakenBatch<ResidentRun>) -> usize {
    taken.messages.len() - answers(taken).count()
}

/// The places of the answers among these messages.
fn answers(taken: &TakenBatch<ResidentRun>) -> impl Iterator<Item = Cursor> {
    let answers = (taken.messages.iter()).filter(|(run, at)| run.run.is_answer(*at as usize));
    answers.map(|(run, at)| run.run.place(*at as usize))
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
