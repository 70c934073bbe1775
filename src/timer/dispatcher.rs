//! The dispatcher: owns the shards of a timer, and drives loading, claiming, delivery and
//! compaction in one loop.
//!
//! The loop waits for the store only to quarantine unreadable runs. Other calls run beside it.

use super::Options;
use super::claim_call::{self, ClaimCalls, ClaimReply, round_robin};
use super::compactor::{CompactionReply, CompactionTask};
use super::delivery::Delivery;
use super::delivery::outcome::ShardContext;
use super::delivery::producers::{DeliveryEvents, Producers};
use super::exactly_once::{self, TxnDriver};
use super::handover;
use super::lease::{Grant, LeaseEvent, ReleaseResult};
use super::load::{LoadReply, LoadRequest, MemoryBudget};
use super::recurring::{self, DefinitionBatch, ReadingsByRoute};
use super::run_replacement::{self, ReplacementCall, ReplacementReply};
use super::shard::{self, ShardState, ShardStates, WakeupInput};
use super::shard_slots::ShardSlots;
use crate::clock::Clock;
use crate::health::HealthPart;
use crate::limit::SEND_INTERVAL;
use crate::metric;
use crate::model::{Hint, ShardId, Timestamp};
use crate::store::{Error, Quarantine, Store};
use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) struct Ports {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    /// Ready while the store answers claims.
    pub(crate) claims_health: Rc<HealthPart>,
    pub(crate) metric: metric::TimerMetrics,
    pub(crate) lease_events: mpsc::Receiver<LeaseEvent>,
    pub(crate) release_results: mpsc::Sender<ReleaseResult>,
    pub(crate) requests: mpsc::Sender<Vec<LoadRequest>>,
    pub(crate) replies: mpsc::Receiver<LoadReply>,
    pub(crate) hints: mpsc::Receiver<Hint>,
    pub(crate) compaction_jobs: mpsc::Sender<CompactionTask>,
    pub(crate) compaction_results: mpsc::Receiver<CompactionReply>,
    /// The partitions of definitions that each recurring route reads.
    pub(crate) wanted_definitions: ReadingsByRoute,
    pub(crate) definitions: mpsc::Receiver<DefinitionBatch>,
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
    /// The number of the last reading of definitions.
    last_reading: u64,
    /// The times at which the last tick began.
    tick_wall: Timestamp,
    tick_at: Instant,
}

impl Dispatcher {
    pub(crate) fn new(options: Options, ports: Ports, producers: Producers) -> Self {
        let now = Instant::now();
        let (store, health) = (ports.store.clone(), ports.claims_health.clone());
        let sending = options.send_budgets.iter().map(|budget| budget.bytes_max());
        ports.metric.loaded_memory.budget.set(options.memory as f64);
        ports
            .metric
            .sending_memory
            .budget
            .set(sending.sum::<usize>() as f64);
        Self {
            memory: MemoryBudget::new(options.memory),
            shards: ShardStates::new(),
            slots: ShardSlots::default(),
            claims: ClaimCalls::new(store, health, &options, now),
            delivery: Delivery::new(producers),
            replacement: ReplacementCall::terminated(),
            last_reading: 0,
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
        let mut producers = self.delivery.producers;
        // The leases are released meanwhile.
        drop(self.ports);
        tokio::select! {
            () = producers.finish_outcome_records() => {}
            () = give_up.cancelled() => {}
        }
        producers.outcome_records.drop_unreported();
        producers.close().await;
        tracing::info!("timer drained");
        Ok(())
    }

    fn messages_in_flight(&self) -> usize {
        self.shards
            .values()
            .map(|state| state.in_flight.open_messages())
            .sum()
    }

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
            Some(batch) = self.ports.definitions.recv() => self.on_definitions(batch),
            Some(reply) = self.ports.compaction_results.recv(),
                if self.replacement.is_terminated() && !stopping =>
            {
                self.on_compaction_reply(reply);
            }
            replies = self.claims.next() => self.on_claim_replies(replies?),
            reply = &mut self.replacement => self.on_replacement_reply(reply)?,
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
        while let Some(replies) = self.claims.next().now_or_never() {
            self.on_claim_replies(replies?);
        }
        if let Some(reply) = (&mut self.replacement).now_or_never() {
            self.on_replacement_reply(reply)?;
        }
        Ok(())
    }

    /// The time of the next tick, computed from the beginning of the last one: messages that became
    /// due during that tick were not sent by it and must be sent at once.
    fn next_wakeup(&self, stopping: bool) -> Instant {
        let (wall, now) = (self.tick_wall, self.tick_at);
        let input = |id: &ShardId, state: &ShardState| WakeupInput {
            wall,
            now,
            claim_ahead: self.claims.claim_ahead_of(&id.route),
            store_lead: self.claims.store_lead,
            stopping,
            may_call_store: self.claims.may_call(id, state),
        };
        let shards =
            (self.shards.iter()).map(|(id, state)| shard::next_wakeup(state, &input(id, state)));
        let transactions = (self.shards.values())
            .filter_map(|state| exactly_once::next_wakeup(state, wall, now, stopping));
        let wakeup = shards
            .chain(transactions)
            .chain(self.delivery.next_resend())
            .min()
            .unwrap_or(now + Duration::from_secs(1));
        wakeup.max(now + SEND_INTERVAL)
    }

    fn on_lease_event(&mut self, event: LeaseEvent) {
        match event {
            LeaseEvent::ShardsCounted(shards) => {
                self.claims.rates.set_shard_counts(&shards);
            }
            LeaseEvent::Granted(grant) => self.add_shard(*grant),
            LeaseEvent::Contested(shards) => {
                for shard in shards {
                    let context = self.context_of(shard);
                    // Shortens the handover: see the exactly-once rows of the benchmark `fleet`.
                    if let Some(producer) = &context.producer {
                        let producers = self.delivery.producers.transactional(&context.route);
                        producers.preconnect(producer);
                    }
                }
            }
            LeaseEvent::HandOver(shard) => {
                handover::start_handover(&mut self.shards, &shard, Instant::now());
            }
            LeaseEvent::Lost(shard) => handover::mark_lost(&mut self.shards, &shard),
        }
    }

    fn add_shard(&mut self, grant: Grant) {
        let now = Instant::now();
        let shard = grant.lease.shard.clone();
        let slot = self.slots.assign(shard.clone());
        let context = self.context_of(shard.clone());
        let is_exactly_once = context.producer.is_some();
        let memory = self.memory.open_account();
        let mut state = ShardState::new(grant, slot, Rc::new(context), memory, now);
        if is_exactly_once {
            state = state.with_transactions(now);
        }
        self.shards.insert(shard, state);
    }

    fn context_of(&self, shard: ShardId) -> ShardContext {
        let route = self.options.routes[&shard.route].clone();
        let keys = self.options.keys.clone();
        ShardContext::new(&self.options.deployment, keys, shard, route)
    }

    fn on_delivery_events(&mut self, events: DeliveryEvents, stopping: bool) {
        let wall = self.ports.clock.now();
        self.delivery
            .on_reports(&mut self.shards, &self.slots, &events.reports, wall);
        let records = &mut self.delivery.producers.outcome_records;
        records.on_reports(&events.outcome_records);
        TxnDriver {
            producers: &mut self.delivery.producers,
            wall: self.ports.clock.now(),
            stopping,
        }
        .on_events(&self.slots, &mut self.shards, events.transactions);
    }

    fn on_hint(&mut self, hint: &Hint) {
        if let Some(state) = self.shards.get_mut(&hint.shard) {
            let wall = self.ports.clock.now();
            state
                .load
                .tail
                .on_hint(hint.least_due, wall, Instant::now());
        }
    }

    fn on_definitions(&mut self, batch: DefinitionBatch) {
        if let Some(state) = self.shards.get_mut(&batch.shard) {
            state.on_definitions(batch);
        }
    }

    fn on_load_reply(&mut self, reply: LoadReply) {
        if let Some(state) = self.shards.get_mut(&reply.shard)
            && state.load.generation == reply.tag
            && !state.on_load_reply(reply.result, Instant::now())
        {
            handover::mark_lost(&mut self.shards, &reply.shard);
        }
    }

    fn on_claim_replies(&mut self, replies: Vec<ClaimReply>) {
        for reply in replies {
            claim_call::apply_reply(reply, &mut self.shards, &mut self.claims.rates);
        }
    }

    fn on_compaction_reply(&mut self, reply: CompactionReply) {
        let wall = self.ports.clock.now();
        let (call, store) = (&mut self.replacement, &self.ports.store);
        run_replacement::on_compaction_reply(call, store, &mut self.shards, reply, wall);
    }

    fn on_replacement_reply(&mut self, reply: ReplacementReply) -> Result<(), Error> {
        if let Some(lost) = run_replacement::apply_replacement(&mut self.shards, reply)? {
            handover::mark_lost(&mut self.shards, &lost);
        }
        Ok(())
    }

    async fn tick(&mut self, stopping: bool, give_up: &CancellationToken) -> Result<(), Error> {
        self.ports.claims_health.heartbeat();
        self.tick_wall = self.ports.clock.now();
        self.tick_at = Instant::now();
        let clock = self.ports.clock.clone();
        self.delivery
            .resend_due(&mut self.shards, &self.slots, &*clock);
        let (wanted, readings) = (&self.ports.wanted_definitions, &mut self.last_reading);
        recurring::request(&mut self.shards, wanted, readings, self.tick_wall);
        if !stopping {
            self.request_loads();
            self.request_compaction();
        }
        self.quarantine_unreadable().await?;
        self.start_claims(stopping, give_up).await?;
        let wall = clock.now();
        // The clock may have stepped back.
        self.tick_wall = self.tick_wall.min(wall);
        self.delivery
            .deliver(&mut self.shards, &self.ports.metric, wall);
        self.drive_transactions(stopping);
        self.update_metrics(wall);
        Ok(())
    }

    /// Drives the transactions, and ends the service of released shards.
    fn drive_transactions(&mut self, stopping: bool) {
        let mut driver = TxnDriver {
            producers: &mut self.delivery.producers,
            wall: self.ports.clock.now(),
            stopping,
        };
        driver.drive_all(&mut self.shards);
        for ended in handover::finish_shards(&mut self.shards, &self.ports.release_results) {
            self.slots.release(ended.slot);
            driver.discard(&ended);
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
        for (_, state) in round_robin(&mut self.shards, self.claims.first_shard) {
            if let Some(load) = state.next_request(wall, now, joins_batch) {
                requests.push(LoadRequest {
                    tag: state.load.generation,
                    load,
                });
            }
        }
        if !requests.is_empty() {
            room.send(requests);
        }
    }

    fn request_compaction(&mut self) {
        let wall = self.ports.clock.now();
        let now = Instant::now();
        for (_, state) in round_robin(&mut self.shards, self.claims.first_shard) {
            let Ok(room) = self.ports.compaction_jobs.try_reserve() else {
                return;
            };
            if let Some(task) = run_replacement::next_task(state, wall, now) {
                room.send(task);
            }
        }
    }

    /// Moves unreadable runs into quarantine, so that the other runs of their shards can be
    /// delivered. If the store does not answer, the next tick tries again.
    async fn quarantine_unreadable(&mut self) -> Result<(), Error> {
        let mut requests = Vec::new();
        for state in self.shards.values_mut() {
            let runs = std::mem::take(&mut state.load.unreadable);
            if !runs.is_empty() {
                let lease = state.lease.clone();
                requests.push(Quarantine { lease, runs });
            }
        }
        if requests.is_empty() {
            return Ok(());
        }
        let outcome = self.ports.store.quarantine(&requests).await;
        let is_unavailable = matches!(&outcome, Err(error) if error.is_transient());
        if is_unavailable {
            for request in requests {
                if let Some(state) = self.shards.get_mut(&request.lease.shard) {
                    state.load.unreadable.extend(request.runs);
                }
            }
            return Ok(());
        }
        for (request, moved) in requests.iter().zip(outcome?) {
            let route = &self.options.routes[&request.lease.shard.route];
            route.metric.quarantined_runs.increment(moved as u64);
        }
        Ok(())
    }

    /// Claims messages and reports deliveries, except in parts of the store whose last call is not
    /// answered yet.
    async fn start_claims(
        &mut self,
        stopping: bool,
        give_up: &CancellationToken,
    ) -> Result<(), Error> {
        if !(self.shards.iter()).any(|(id, state)| self.claims.may_call(id, state)) {
            return Ok(());
        }
        let (wall, now) = (self.tick_wall, self.tick_at);
        let shards = &mut self.shards;
        let advances = (self.claims).plan(shards, &self.options, wall, now, stopping);
        if advances.is_empty() {
            return Ok(());
        }
        self.claims.start(advances, give_up);
        if let Some(replies) = self.claims.next().now_or_never() {
            self.on_claim_replies(replies?);
        } else {
            // Lets the request go out before the delivery, which may take a while.
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
            let (mut schedules, mut unread, mut paused) = (0, 0, 0);
            while let Some((_, state)) = shards.next_if(|(shard, _)| shard.route == *route) {
                longest = longest.max(state.stalled_for(wall, now));
                paused += usize::from(state.load.is_paused());
                if let Some((definitions, are_all_read)) = state.definitions() {
                    schedules += definitions;
                    unread += usize::from(!are_all_read);
                }
            }
            options.metric.stalled_seconds.set(longest.as_secs_f64());
            options.metric.paused_shards.set(paused as f64);
            options.metric.schedules.set(schedules as f64);
            options.metric.unread_definitions.set(unread as f64);
        }
        let in_flight = self.messages_in_flight() as f64;
        let loaded = self.memory.loaded_messages() as f64;
        let metric = &self.ports.metric;
        metric
            .loaded_memory
            .used
            .set(self.memory.used_bytes() as f64);
        let sending = self
            .options
            .send_budgets
            .iter()
            .map(|budget| budget.used_bytes());
        metric
            .sending_memory
            .used
            .set(sending.sum::<usize>() as f64);
        metric.loaded_messages.set(loaded);
        metric.in_flight_messages.set(in_flight);
    }
}
