//! The dispatcher: owns the shards of a timer as values, takes what is due, claims it, hands it to the targets, and tells the store what was
//! delivered (I4). One loop, beside which one call of the store at a time, for all shards, goes on; it waits only for
//! unreadable runs to be set aside.

use super::Options;
use super::advancing::{ClaimCall, ClaimReply, PendingCall};
use super::compactor::{CompactionReply, CompactionTask};
use super::exactly_once::{self, TxnDriver};
use super::flying::{ClaimedBatch, RecordBuilder};
use super::handover;
use super::lease::{LeaseEvent, ReleaseResult};
use super::load::MemoryBudget;
use super::load::{LoadReply, LoadRequest};
use super::outlet::{ProducerEvents, Producers};
use super::pace::CatchUpRates;
use super::quarantine::quarantine_unreadable;
use super::rewriting::{self, ReplacementCall, ReplacementReply};
use super::shard_slots::ShardSlots;
use super::share::InFlightQuota;
use super::stall;
use super::waking::WakeupInput;
use super::work::ShardState;
use crate::clock::Clock;
use crate::health::HealthPart;
use crate::limit::{CLAIM_AHEAD, CLAIM_INTERVAL, CLAIM_MESSAGES_MAX, SEND_INTERVAL};
use crate::metric;
use crate::model::{Hint, OriginFormat, ShardId, Timestamp};
use crate::schedule::TakenBatch;
use crate::store::{Advance, Advanced, Error, Store};
use futures_util::FutureExt as _;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What a dispatcher works with.
pub(crate) struct Ports {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    /// Whether claims are answered, and whether they are refused because this machine's clock is ahead.
    pub(crate) claims_health: Rc<HealthPart>,
    pub(crate) clock_health: HealthPart,
    pub(crate) metric: metric::TimerMetrics,
    pub(crate) producers: Producers,
    pub(crate) lease_events: mpsc::Receiver<LeaseEvent>,
    pub(crate) release_results: mpsc::Sender<ReleaseResult>,
    pub(crate) requests: mpsc::Sender<Vec<LoadRequest>>,
    pub(crate) replies: mpsc::Receiver<LoadReply>,
    pub(crate) hints: mpsc::Receiver<Hint>,
    pub(crate) compaction_jobs: mpsc::Sender<CompactionTask>,
    pub(crate) compaction_results: mpsc::Receiver<CompactionReply>,
}

/// See the module's page.
pub(crate) struct Dispatcher {
    pub(super) options: Options,
    pub(super) ports: Ports,
    memory: Rc<MemoryBudget>,
    pub(super) shards: BTreeMap<ShardId, ShardState>,
    pub(super) slots: ShardSlots,
    /// Who takes first in the next tick, so that all get their turn.
    first_shard: usize,
    catch_up_rates: CatchUpRates,
    /// How far ahead of now messages are claimed: the store allows less if clocks are to agree more closely.
    claim_ahead: Duration,
    /// When the last tick began, by both clocks.
    last_tick: (Timestamp, Instant),
    /// Records to hand over again, by when.
    pub(super) resends: BinaryHeap<Reverse<(Instant, u64)>>,
    pub(super) record_builder: RecordBuilder,
    replacement_call: ReplacementCall,
    claim_call: ClaimCall,
}

impl Dispatcher {
    pub(crate) fn new(options: Options, ports: Ports) -> Self {
        let memory = MemoryBudget::new(options.memory);
        let paces = CatchUpRates::new(&options.routes, Instant::now());
        let (ahead, ticked) = (
            CLAIM_AHEAD.min(options.skew_max / 2),
            (ports.clock.now(), Instant::now()),
        );
        ports.metric.memory_budget.set(options.memory as f64);
        Self {
            options,
            ports,
            memory,
            shards: BTreeMap::new(),
            slots: ShardSlots::default(),
            first_shard: 0,
            catch_up_rates: paces,
            claim_ahead: ahead,
            last_tick: ticked,
            resends: BinaryHeap::new(),
            record_builder: RecordBuilder::default(),
            replacement_call: ReplacementCall::default(),
            claim_call: ClaimCall::default(),
        }
    }

    /// Serves until `stop` is cancelled; then takes nothing more, finishes what is claimed and tells the store. If `give_up` is cancelled
    /// before that, it ends with what it has.
    pub(crate) async fn serve(
        mut self,
        stop: CancellationToken,
        give_up: CancellationToken,
    ) -> Result<(), Error> {
        loop {
            let stopping = stop.is_cancelled();
            if stopping && self.shards.values().all(ShardState::is_drained)
                || give_up.is_cancelled()
            {
                break;
            }
            self.tick(stopping, &give_up).await?;
            self.wait(&stop, stopping, &give_up).await?;
        }
        let left: usize = self
            .shards
            .values()
            .map(|work| work.in_flight.open_messages())
            .sum();
        if left > 0 {
            tracing::warn!(
                left,
                "stopped before all that was claimed was finished: these may be delivered twice"
            );
        }
        self.ports.producers.close().await;
        tracing::info!("timer drained");
        Ok(())
    }

    /// Waits until something happens, and takes in all that has happened.
    async fn wait(
        &mut self,
        stop: &CancellationToken,
        stopping: bool,
        give_up: &CancellationToken,
    ) -> Result<(), Error> {
        let wake = self.next_wakeup(stopping);
        // Every arm is safe to drop: receiving, `Outlets::told`, `ReplacementCall::ended` and `ClaimCall::ended` keep what they did not hand out.
        tokio::select! {
            biased;
            () = give_up.cancelled() => {}
            () = stop.cancelled(), if !stopping => {}
            Some(holding) = self.ports.lease_events.recv() => self.on_lease_event(holding),
            ProducerEvents { reports, transactions } = self.ports.producers.next_events() => {
                self.on_delivery_reports(&reports);
                let mut desk = TxnDriver::new(&self.options, &mut self.ports.producers, self.ports.clock.now(), stopping);
                desk.on_events(&self.slots, &mut self.shards, transactions);
            }
            Some(reply) = self.ports.replies.recv() => self.on_load_reply(reply),
            Some(hint) = self.ports.hints.recv() => self.on_hint(&hint),
            Some(done) = self.ports.compaction_results.recv(), if self.replacement_call.is_idle() => self.replacement_call.add_result(done),
            answered = self.claim_call.reply() => self.on_claim_replies(answered?),
            swapped = self.replacement_call.reply() => self.on_runs_replaced(swapped)?,
            () = tokio::time::sleep_until(wake) => {}
        }
        while let Ok(reply) = self.ports.replies.try_recv() {
            self.on_load_reply(reply);
        }
        while let Ok(hint) = self.ports.hints.try_recv() {
            self.on_hint(&hint);
        }
        // A busy time keeps no call of the store from going on: nothing is claimed before the last is answered, and nothing is loaded into what
        // is being swapped.
        if let Some(answered) = self.claim_call.reply().now_or_never() {
            self.on_claim_replies(answered?);
        }
        if let Some(swapped) = self.replacement_call.reply().now_or_never() {
            self.on_runs_replaced(swapped)?;
        }
        Ok(())
    }

    fn on_runs_replaced(&mut self, swapped: ReplacementReply) -> Result<(), Error> {
        let lost = rewriting::apply_replacement(&mut self.shards, &self.options.routes, swapped)?;
        lost.iter()
            .for_each(|shard| handover::drop_shard(&mut self.shards, shard));
        Ok(())
    }

    /// As of when the last tick began: what became due while it lasted was not handed over for that, and is to be at once.
    fn next_wakeup(&self, stopping: bool) -> Instant {
        let (wall, now) = self.last_tick;
        let again = self.resends.peek().map(|Reverse((at, _))| *at);
        let moment = WakeupInput {
            wall,
            now,
            claim_ahead: self.claim_ahead,
            stopping,
            store_is_idle: self.claim_call.is_idle(),
        };
        let works = self.shards.values().map(|work| work.next_wakeup(&moment));
        let exact = self
            .shards
            .values()
            .filter_map(|work| exactly_once::next_wakeup(work, wall, now, stopping));
        let wake = works
            .chain(exact)
            .chain(again)
            .min()
            .unwrap_or(now + Duration::from_secs(1));
        wake.max(now + SEND_INTERVAL)
    }

    fn on_lease_event(&mut self, holding: LeaseEvent) {
        let now = Instant::now();
        match holding {
            LeaseEvent::ShardsCounted(shards) => self.catch_up_rates.set_shard_counts(&shards),
            LeaseEvent::Granted(grant) => {
                let shard = grant.lease.shard.clone();
                let slot = self.slots.assign(shard.clone());
                let origins = OriginFormat::new(&self.options.deployment, &shard);
                let work = ShardState::new(*grant, slot, origins, self.memory.open_account(), now);
                let is_exact = self.options.routes[&shard.route].marker_group.is_some();
                self.shards.insert(
                    shard,
                    if is_exact {
                        work.with_transactions(now)
                    } else {
                        work
                    },
                );
            }
            LeaseEvent::Contested(shards) => {
                let mut desk = TxnDriver::new(
                    &self.options,
                    &mut self.ports.producers,
                    self.ports.clock.now(),
                    false,
                );
                shards.iter().for_each(|shard| desk.preconnect(shard));
            }
            LeaseEvent::HandOver(shard) => handover::start_handover(&mut self.shards, &shard, now),
            LeaseEvent::Lost(shard) => handover::drop_shard(&mut self.shards, &shard),
        }
    }

    fn on_hint(&mut self, hint: &Hint) {
        if let Some(work) = self.shards.get_mut(&hint.shard) {
            work.on_hint(hint.least_due, self.ports.clock.now(), Instant::now());
        }
    }

    fn on_load_reply(&mut self, reply: LoadReply) {
        let Some(work) = self
            .shards
            .get_mut(&reply.shard)
            .filter(|work| work.load_generation() == reply.tag)
        else {
            return;
        };
        if !work.on_load_reply(reply.result, Instant::now()) {
            handover::drop_shard(&mut self.shards, &reply.shard);
        }
    }

    async fn tick(&mut self, stopping: bool, give_up: &CancellationToken) -> Result<(), Error> {
        self.ports.claims_health.heartbeat();
        self.last_tick = (self.ports.clock.now(), Instant::now());
        self.resend_due();
        if !stopping {
            self.replacement_call.start(
                &self.ports.store,
                &mut self.shards,
                self.ports.clock.now(),
            );
            self.request_loads();
            self.request_compaction();
        }
        quarantine_unreadable(&*self.ports.store, &mut self.shards, &self.options.routes).await?;
        self.start_claim_call(stopping, give_up).await?;
        let wall = self.ports.clock.now();
        // The clock may have stepped back.
        self.last_tick.0 = self.last_tick.0.min(wall);
        self.deliver(wall);
        let mut desk = TxnDriver::new(
            &self.options,
            &mut self.ports.producers,
            self.ports.clock.now(),
            stopping,
        );
        self.shards
            .iter_mut()
            .for_each(|(shard, work)| desk.drive(shard, work));
        for ended in handover::finish_shards(
            &mut self.shards,
            &self.options.routes,
            &self.ports.release_results,
        ) {
            self.slots.release(ended.slot);
            desk.on_shard_ended(&ended);
        }
        stall::update_metric(&mut self.shards, &self.options.routes, wall);
        self.ports
            .metric
            .memory_used
            .set(self.memory.used_bytes() as f64);
        self.ports
            .metric
            .loaded_messages
            .set(self.memory.loaded_messages() as f64);
        self.ports.metric.in_flight_messages.set(
            self.shards
                .values()
                .map(|work| work.in_flight.open_messages())
                .sum::<usize>() as f64,
        );
        Ok(())
    }

    /// Asks the loader for what is needed, as far as it has room, each shard in its turn the first: where memory is short, who asks first has it.
    fn request_loads(&mut self) {
        let (wall, now) = (self.ports.clock.now(), Instant::now());
        let Ok(room) = self.ports.requests.try_reserve() else {
            return;
        };
        // When one looks for what was appended, those look along that soon would: the store is called once for all of them.
        let others_poll = self.shards.values().any(|work| work.is_tail_poll_due(now));
        let next = |work: &mut ShardState| {
            let what = work.next_request(wall, now, others_poll)?;
            Some(LoadRequest {
                shard: work.lease.shard.clone(),
                tag: work.load_generation(),
                load: what,
            })
        };
        let requests: Vec<_> = round_robin(&mut self.shards, self.first_shard)
            .filter_map(|(_, work)| next(work))
            .collect();
        if !requests.is_empty() {
            room.send(requests);
        }
    }

    /// Lets the rewriter look at shards, as far as it has room, each shard in its turn the first.
    fn request_compaction(&mut self) {
        let (wall, now) = (self.ports.clock.now(), Instant::now());
        for (_, work) in round_robin(&mut self.shards, self.first_shard) {
            let Ok(room) = self.ports.compaction_jobs.try_reserve() else {
                return;
            };
            if let Some(chore) = work.next_compaction_job(wall, now) {
                room.send(chore);
            }
        }
    }

    /// Asks the store for claims, and tells it what was delivered, unless it has not answered the last time yet.
    async fn start_claim_call(
        &mut self,
        stopping: bool,
        give_up: &CancellationToken,
    ) -> Result<(), Error> {
        let asked = if self.claim_call.is_idle() {
            self.plan_claims(stopping)
        } else {
            Vec::new()
        };
        if asked.is_empty() {
            return Ok(());
        }
        self.claim_call
            .start(&self.ports.store, &self.ports.claims_health, asked, give_up);
        if let Some(answered) = self.claim_call.reply().now_or_never() {
            self.on_claim_replies(answered?);
        } else {
            // The request goes out before anything is handed over, which may take a while.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// What to claim and to tell, a shard at most once, each shard in its turn the first.
    fn plan_claims(&mut self, stopping: bool) -> Vec<(u16, Advance)> {
        let (wall, now) = self.last_tick;
        let served = |route: &str| {
            self.shards
                .iter()
                .filter(|(shard, work)| &*shard.route == route && work.may_deliver(now))
                .count()
        };
        self.catch_up_rates.set_served(served, now);
        let mut shares = InFlightQuota::new(self.options.routes.keys().cloned());
        self.shards
            .iter()
            .for_each(|(shard, work)| shares.add(&shard.route, work.in_flight.open_messages()));
        // When one shard claims, those claim along that soon would: the store is called once for all of them.
        let is_claiming = self
            .shards
            .values()
            .any(|work| work.is_claim_due(wall, now, self.claim_ahead));
        let ahead = (
            self.claim_ahead,
            if is_claiming {
                CLAIM_INTERVAL / 2
            } else {
                Duration::ZERO
            },
        );
        let mut asked = Vec::new();
        self.first_shard = self.first_shard.wrapping_add(1) % self.shards.len().max(1);
        for (shard, work) in round_robin(&mut self.shards, self.first_shard) {
            let room = work.limit_catch_up(
                &mut self.catch_up_rates,
                shares.room(&shard.route),
                wall,
                now,
            );
            let take = if stopping || room == 0 {
                None
            } else {
                work.take_due(wall, now, CLAIM_MESSAGES_MAX.min(room), ahead)
            };
            shares.add(
                &shard.route,
                take.as_ref().map_or(0, |take| take.messages.len()),
            );
            take.iter()
                .for_each(|take| work.spend_catch_up(&mut self.catch_up_rates, take, wall));
            if let Some(advance) = work.next_advance(
                take.as_ref().map(|take| take.claim),
                self.options.skew_max,
                now,
                stopping || work.must_report_delivered(),
            ) {
                work.start_call(&advance, take);
                asked.push((work.slot, advance));
            }
        }
        asked
    }

    /// `None`: it is to give up.
    fn on_claim_replies(&mut self, answered: Option<Vec<ClaimReply>>) {
        answered
            .into_iter()
            .flatten()
            .for_each(|answered| self.on_claim_reply(answered));
    }

    fn on_claim_reply(
        &mut self,
        ClaimReply {
            slot,
            advance,
            outcome,
        }: ClaimReply,
    ) {
        let now = Instant::now();
        let shard = &advance.lease.shard;
        // Of an earlier work of the shard it says nothing about this one.
        let Some(work) = self.shards.get_mut(shard).filter(|work| work.slot == slot) else {
            return;
        };
        let Some(PendingCall {
            take,
            watermark_when_sent: seen,
            ..
        }) = work.take_call()
        else {
            return;
        };
        match outcome {
            Advanced::Done {
                watermark,
                cancelled,
            } => {
                if let Some(TakenBatch {
                    claim,
                    messages,
                    late_count: late,
                }) = take
                {
                    let route = &self.options.routes[&shard.route];
                    route.metric.late.increment(late as u64);
                    let suspect = messages
                        .iter()
                        .filter(|(run, at)| {
                            work.previous_owner_claim
                                .covers(run.run.place(*at as usize))
                        })
                        .count();
                    route.metric.possible_duplicates.increment(suspect as u64);
                    self.ports.clock_health.set_ready();
                    work.in_flight.push(
                        claim,
                        messages.len(),
                        ClaimedBatch::new(messages, cancelled),
                    );
                }
                work.detect_rollback_by_reply(seen, watermark, now);
            }
            Advanced::ClockAhead {
                watermark,
                now: store,
            } => {
                let ahead = self.ports.clock.now().since(store).as_millis();
                let reason = format!(
                    "claims are refused: this machine's clock is {ahead} ms ahead of the store's; mend the clock synchronisation"
                );
                self.ports.clock_health.set_not_ready(reason);
                work.on_claim_refused(watermark, now);
            }
            Advanced::Fenced | Advanced::Unknown => handover::drop_shard(&mut self.shards, shard),
        }
    }
}

/// All shards, each in its turn the first.
fn round_robin(
    works: &mut BTreeMap<ShardId, ShardState>,
    turn: usize,
) -> impl Iterator<Item = (&ShardId, &mut ShardState)> {
    let (after, before): (Vec<_>, Vec<_>) = works
        .iter_mut()
        .enumerate()
        .partition(|(at, _)| *at >= turn);
    after.into_iter().chain(before).map(|(_, work)| work)
}
