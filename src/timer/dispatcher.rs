//! The dispatcher: owns the shards of a timer, and drives loading, claiming, delivery and
//! compaction in one loop.
//!
//! Store calls run beside the loop. The loop waits for the store only to quarantine unreadable runs.

use super::Options;
use super::claim_call::{self, ClaimCalls, ClaimReply, round_robin};
use super::compactor::{CompactionReply, CompactionTask};
use super::delivery::Delivery;
use super::delivery::producers::{DeliveryEvents, Producers};
use super::exactly_once::{self, TxnDriver};
use super::handover;
use super::lease::{LeaseEvent, ReleaseResult};
use super::load::MemoryBudget;
use super::load::{LoadReply, LoadRequest};
use super::quarantine::quarantine_unreadable;
use super::run_replacement::{self, ReplacementCall, ReplacementReply};
use super::shard::{ShardState, ShardStates, WakeupInput};
use super::shard_slots::ShardSlots;
use crate::clock::Clock;
use crate::health::HealthPart;
use crate::limit::SEND_INTERVAL;
use crate::metric;
use crate::model::{Hint, OriginFormat, Timestamp};
use crate::store::{Error, Store};
use futures_util::FutureExt as _;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The connections of a dispatcher.
pub(crate) struct Ports {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    /// True if the store answers claims.
    pub(crate) claims_health: Rc<HealthPart>,
    /// True if the store rejects claims because this machine's clock is ahead.
    pub(crate) clock_health: HealthPart,
    pub(crate) metric: metric::TimerMetrics,
    pub(crate) lease_events: mpsc::Receiver<LeaseEvent>,
    pub(crate) release_results: mpsc::Sender<ReleaseResult>,
    pub(crate) requests: mpsc::Sender<Vec<LoadRequest>>,
    pub(crate) replies: mpsc::Receiver<LoadReply>,
    pub(crate) hints: mpsc::Receiver<Hint>,
    pub(crate) compaction_jobs: mpsc::Sender<CompactionTask>,
    pub(crate) compaction_results: mpsc::Receiver<CompactionReply>,
}

pub(crate) struct Dispatcher {
    options: Options,
    ports: Ports,
    memory: Rc<MemoryBudget>,
    shards: ShardStates,
    slots: ShardSlots,
    claims: ClaimCalls,
    delivery: Delivery,
    replacement: ReplacementCall,
    /// The times at which the last tick began.
    tick_wall: Timestamp,
    tick_at: Instant,
}

impl Dispatcher {
    pub(crate) fn new(options: Options, ports: Ports, producers: Producers) -> Self {
        let now = Instant::now();
        ports.metric.memory_budget.set(options.memory as f64);
        Self {
            memory: MemoryBudget::new(options.memory),
            shards: ShardStates::new(),
            slots: ShardSlots::default(),
            claims: ClaimCalls::new(&options, now),
            delivery: Delivery::new(producers),
            replacement: ReplacementCall::default(),
            tick_wall: ports.clock.now(),
            tick_at: now,
            options,
            ports,
        }
    }

    /// Serves until `stop` is cancelled. Then it stops claiming, delivers the claimed messages, and
    /// reports them to the store. Ends at once if `give_up` is cancelled.
    pub(crate) async fn serve(
        mut self,
        stop: CancellationToken,
        give_up: CancellationToken,
    ) -> Result<(), Error> {
        loop {
            let stopping = stop.is_cancelled();
            let is_drained = stopping && self.shards.values().all(ShardState::is_drained);
            if is_drained || give_up.is_cancelled() {
                break;
            }
            self.tick(stopping, &give_up).await?;
            self.wait(&stop, stopping, &give_up).await?;
        }
        let in_flight = self.messages_in_flight();
        if in_flight > 0 {
            tracing::warn!(
                in_flight,
                "stopped before all claimed messages were acknowledged: they may be delivered twice"
            );
        }
        self.delivery.producers.close().await;
        tracing::info!("timer drained");
        Ok(())
    }

    fn messages_in_flight(&self) -> usize {
        self.shards
            .values()
            .map(|state| state.in_flight.open_messages())
            .sum()
    }

    /// Waits for the next event and handles all events that are ready.
    async fn wait(
        &mut self,
        stop: &CancellationToken,
        stopping: bool,
        give_up: &CancellationToken,
    ) -> Result<(), Error> {
        let wakeup = self.next_wakeup(stopping);
        // Every arm is safe to drop: receivers, producers and store calls keep unreturned items.
        tokio::select! {
            biased;
            () = give_up.cancelled() => {}
            () = stop.cancelled(), if !stopping => {}
            Some(event) = self.ports.lease_events.recv() => self.on_lease_event(event),
            events = self.delivery.producers.next_events() => {
                self.on_delivery_events(events, stopping);
            }
            Some(reply) = self.ports.replies.recv() => self.on_load_reply(reply),
            Some(hint) = self.ports.hints.recv() => self.on_hint(&hint),
            Some(result) = self.ports.compaction_results.recv(), if self.replacement.is_idle() => {
                self.replacement.add_result(result);
            }
            replies = self.claims.replies() => self.on_claim_replies(replies?),
            reply = self.replacement.reply() => self.on_replacement_reply(reply)?,
            () = tokio::time::sleep_until(wakeup) => {}
        }
        while let Ok(reply) = self.ports.replies.try_recv() {
            self.on_load_reply(reply);
        }
        while let Ok(hint) = self.ports.hints.try_recv() {
            self.on_hint(&hint);
        }
        // Other events must not delay store calls: the next claim waits for the last one, and
        // loading waits for a replacement.
        if let Some(replies) = self.claims.replies().now_or_never() {
            self.on_claim_replies(replies?);
        }
        if let Some(reply) = self.replacement.reply().now_or_never() {
            self.on_replacement_reply(reply)?;
        }
        Ok(())
    }

    /// Computed for the beginning of the last tick: messages that became due during the tick were
    /// not sent by it and must be sent at once.
    fn next_wakeup(&self, stopping: bool) -> Instant {
        let now = self.tick_at;
        let input = WakeupInput {
            wall: self.tick_wall,
            now,
            claim_ahead: self.claims.claim_ahead(),
            stopping,
            store_is_idle: self.claims.is_idle(),
        };
        let shards = self.shards.values().map(|state| state.next_wakeup(&input));
        let transactions = self.shards.values().filter_map(|state| {
            exactly_once::next_wakeup(state, self.tick_wall, self.tick_at, stopping)
        });
        let wakeup = shards
            .chain(transactions)
            .chain(self.delivery.next_resend())
            .min()
            .unwrap_or(now + Duration::from_secs(1));
        wakeup.max(now + SEND_INTERVAL)
    }

    fn on_lease_event(&mut self, event: LeaseEvent) {
        let now = Instant::now();
        match event {
            LeaseEvent::ShardsCounted(shards) => {
                self.claims.catch_up_rates.set_shard_counts(&shards);
            }
            LeaseEvent::Granted(grant) => {
                let shard = grant.lease.shard.clone();
                let slot = self.slots.assign(shard.clone());
                let origins = OriginFormat::new(&self.options.deployment, &shard);
                let memory = self.memory.open_account();
                let mut state = ShardState::new(*grant, slot, origins, memory, now);
                if self.options.routes[&shard.route].marker_group.is_some() {
                    state = state.with_transactions(now);
                }
                self.shards.insert(shard, state);
            }
            LeaseEvent::Contested(shards) => {
                let mut driver = self.txn_driver(false);
                for shard in &shards {
                    driver.preconnect(shard);
                }
            }
            LeaseEvent::HandOver(shard) => {
                handover::start_handover(&mut self.shards, &shard, now);
            }
            LeaseEvent::Lost(shard) => handover::drop_shard(&mut self.shards, &shard),
        }
    }

    fn txn_driver(&mut self, stopping: bool) -> TxnDriver<'_> {
        let wall = self.ports.clock.now();
        TxnDriver::new(&self.options, &mut self.delivery.producers, wall, stopping)
    }

    fn on_delivery_events(&mut self, events: DeliveryEvents, stopping: bool) {
        let DeliveryEvents {
            reports,
            transactions,
        } = events;
        let wall = self.ports.clock.now();
        self.delivery
            .on_reports(&mut self.shards, &self.slots, &self.options, &reports, wall);
        let wall = self.ports.clock.now();
        let producers = &mut self.delivery.producers;
        TxnDriver::new(&self.options, producers, wall, stopping).on_events(
            &self.slots,
            &mut self.shards,
            transactions,
        );
    }

    fn on_hint(&mut self, hint: &Hint) {
        if let Some(state) = self.shards.get_mut(&hint.shard) {
            state
                .load
                .on_hint(hint.least_due, self.ports.clock.now(), Instant::now());
        }
    }

    fn on_load_reply(&mut self, reply: LoadReply) {
        let state = self
            .shards
            .get_mut(&reply.shard)
            .filter(|state| state.load.generation() == reply.tag);
        let Some(state) = state else { return };
        if !state.on_load_reply(reply.result, Instant::now()) {
            handover::drop_shard(&mut self.shards, &reply.shard);
        }
    }

    /// `None` if the timer gives up.
    fn on_claim_replies(&mut self, replies: Option<Vec<ClaimReply>>) {
        for reply in replies.into_iter().flatten() {
            claim_call::apply_reply(
                reply,
                &mut self.shards,
                &self.options,
                &*self.ports.clock,
                &self.ports.clock_health,
            );
        }
    }

    fn on_replacement_reply(&mut self, reply: ReplacementReply) -> Result<(), Error> {
        let routes = &self.options.routes;
        let lost = run_replacement::apply_replacement(&mut self.shards, routes, reply)?;
        if let Some(shard) = lost {
            handover::drop_shard(&mut self.shards, &shard);
        }
        Ok(())
    }

    /// One round of work for all shards.
    async fn tick(&mut self, stopping: bool, give_up: &CancellationToken) -> Result<(), Error> {
        self.ports.claims_health.heartbeat();
        self.tick_wall = self.ports.clock.now();
        self.tick_at = Instant::now();
        let clock = self.ports.clock.clone();
        self.delivery
            .resend_due(&mut self.shards, &self.slots, &self.options, &*clock);
        if !stopping {
            self.replacement
                .start(&self.ports.store, &mut self.shards, clock.now());
            self.request_loads();
            self.request_compaction();
        }
        quarantine_unreadable(&*self.ports.store, &mut self.shards, &self.options.routes).await?;
        self.start_claims(stopping, give_up).await?;
        let wall = clock.now();
        // The clock may have stepped back.
        self.tick_wall = self.tick_wall.min(wall);
        self.delivery
            .deliver(&mut self.shards, &self.options, &self.ports.metric, wall);
        self.drive_transactions(stopping);
        self.update_metrics(wall);
        Ok(())
    }

    /// Drives the transactions, and ends the service of released shards.
    fn drive_transactions(&mut self, stopping: bool) {
        let wall = self.ports.clock.now();
        let producers = &mut self.delivery.producers;
        let mut driver = TxnDriver::new(&self.options, producers, wall, stopping);
        for (shard, state) in &mut self.shards {
            driver.drive(shard, state);
        }
        let results = &self.ports.release_results;
        for ended in handover::finish_shards(&mut self.shards, &self.options.routes, results) {
            self.slots.release(ended.slot);
            driver.on_shard_ended(&ended);
        }
    }

    /// Requests loads for all shards, if the loader has room. The shard that comes first changes,
    /// because it gets memory first.
    fn request_loads(&mut self) {
        let wall = self.ports.clock.now();
        let now = Instant::now();
        let Ok(room) = self.ports.requests.try_reserve() else {
            return;
        };
        // If one shard polls its tail, others that would poll soon join the same store call.
        let joins_batch = self
            .shards
            .values()
            .any(|state| state.is_tail_poll_due(now));
        let mut requests = Vec::new();
        for (shard, state) in round_robin(&mut self.shards, self.claims.first_shard()) {
            if let Some(load) = state.next_request(wall, now, joins_batch) {
                requests.push(LoadRequest {
                    shard: shard.clone(),
                    tag: state.load.generation(),
                    load,
                });
            }
        }
        if !requests.is_empty() {
            room.send(requests);
        }
    }

    /// Gives tasks to the compactor as far as it has room.
    fn request_compaction(&mut self) {
        let wall = self.ports.clock.now();
        let now = Instant::now();
        for (_, state) in round_robin(&mut self.shards, self.claims.first_shard()) {
            let Ok(room) = self.ports.compaction_jobs.try_reserve() else {
                return;
            };
            if let Some(task) = run_replacement::next_task(state, wall, now) {
                room.send(task);
            }
        }
    }

    /// Claims messages and reports deliveries, unless the last call is not answered yet.
    async fn start_claims(
        &mut self,
        stopping: bool,
        give_up: &CancellationToken,
    ) -> Result<(), Error> {
        if !self.claims.is_idle() {
            return Ok(());
        }
        let (wall, now) = (self.tick_wall, self.tick_at);
        let advances = self
            .claims
            .plan(&mut self.shards, &self.options, wall, now, stopping);
        if advances.is_empty() {
            return Ok(());
        }
        let health = &self.ports.claims_health;
        self.claims
            .start(&self.ports.store, health, advances, give_up);
        if let Some(replies) = self.claims.replies().now_or_never() {
            self.on_claim_replies(replies?);
        } else {
            // Sends the request before the delivery, which may take a while.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn update_metrics(&mut self, wall: Timestamp) {
        let now = Instant::now();
        // Both maps are in the order of the routes.
        let mut shards = self.shards.iter_mut().peekable();
        for (route, options) in &self.options.routes {
            let mut longest = Duration::ZERO;
            while let Some((_, state)) = shards.next_if(|(shard, _)| shard.route == *route) {
                longest = longest.max(state.stalled_for(wall, now));
            }
            options.metric.stalled_seconds.set(longest.as_secs_f64());
        }
        let in_flight = self.messages_in_flight() as f64;
        let metric = &self.ports.metric;
        metric.memory_used.set(self.memory.used_bytes() as f64);
        metric
            .loaded_messages
            .set(self.memory.loaded_messages() as f64);
        metric.in_flight_messages.set(in_flight);
    }
}
