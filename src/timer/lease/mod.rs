//! Acquires, renews and releases the leases of this worker's shards.
//!
//! The lease keeper also tells the dispatcher which shards it owns. It never touches messages.
//! `table` decides what to do next, from the view of the membership (which shards this worker gets)
//! and `acquire_schedule` (when to try). `committed` asks the brokers for committed pairs.

mod acquire_schedule;
mod clock_skew;
mod committed;
mod events;
mod table;

pub(crate) use committed::RouteCatalog;
pub(crate) use events::{Grant, LeaseClock, LeaseEvent, ReleaseResult, StoreTime};

use super::ShutdownSignals;
use crate::clock::Clock;
use crate::health::HealthPart;
use crate::limit::{FINAL_STORE_CALL_TIMEOUT, SHUTDOWN_ANNOUNCE_MARGIN, SHUTDOWN_HANDOVER_TIMEOUT};
use crate::membership::{Departure, WorkView, heartbeat_interval};
use crate::metric;
use crate::model::{Lease, LeaseToken, Progress, ShardId, Timestamp, other_installation};
use crate::store::{Acquire, Acquired, Error, Renewed, Store, StoredShard};
use futures_util::future::join_all;
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use table::LeaseTable;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

pub(crate) struct LeaseKeeper {
    pub(crate) routes: Vec<RouteCatalog>,
    pub(crate) view: watch::Receiver<Arc<WorkView>>,
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    /// Ready while the store answers the calls for leases, and no shard waits for a newer version or
    /// belongs to another installation.
    pub(crate) lease_health: HealthPart,
    /// Ready while this machine's clock agrees with the store's clock.
    pub(crate) clock_health: HealthPart,
    pub(crate) lease_length: Duration,
    pub(crate) skew_max: Duration,
    pub(crate) random: StdRng,
    pub(crate) metric: metric::TimerMetrics,
    pub(crate) events: mpsc::Sender<LeaseEvent>,
    pub(crate) release_results: mpsc::Receiver<ReleaseResult>,
}

impl LeaseKeeper {
    /// Serves until the dispatcher ends or `give_up` is cancelled, and then releases all leases.
    /// After `stop`, it first hands its shards over if other workers are alive.
    pub(super) async fn serve(self, signals: ShutdownSignals) -> Result<(), Error> {
        let now = Instant::now();
        let view = self.view.borrow().clone();
        let lease_loop = LeaseLoop {
            table: LeaseTable::new(view, now),
            ports: self,
            signals,
            renew_at: now,
            last_step: None,
            depart_until: None,
            incompatible: BTreeMap::new(),
        };
        lease_loop.serve().await
    }
}

/// The lease loop, with the times at which each duty is due next.
struct LeaseLoop {
    ports: LeaseKeeper,
    signals: ShutdownSignals,
    table: LeaseTable,
    renew_at: Instant,
    /// The last step of the machine's clock after which the leases are renewed.
    last_step: Option<Instant>,
    /// Set during a shutdown: when handovers end, and after that a wakeup in the future.
    depart_until: Option<Instant>,
    /// Shards that wait for a newer version or belong to another cluster, and why, as the last try
    /// found.
    incompatible: BTreeMap<ShardId, String>,
}

impl LeaseLoop {
    async fn serve(mut self) -> Result<(), Error> {
        let signals = self.signals.clone();
        // The dispatcher must not outlive this loop.
        let _finish = signals.finish.clone().drop_guard();
        tracing::info!("timer started");
        loop {
            self.ports.lease_health.heartbeat();
            let stopped_during_tick = async {
                signals.stop.cancelled().await;
                tokio::time::sleep(FINAL_STORE_CALL_TIMEOUT).await;
            };
            // Safe to drop: a lease that was acquired but not recorded expires by itself.
            tokio::select! {
                biased;
                () = signals.give_up.cancelled() => break,
                () = stopped_during_tick, if self.depart_until.is_none() => {}
                outcome = self.tick() => outcome?,
            }
            let wakeup = self.next_wakeup();
            // Safe to drop: a result that was not received stays in the channel.
            tokio::select! {
                biased;
                () = signals.stop.cancelled(), if self.depart_until.is_none() => {
                    self.start_departure();
                }
                result = self.ports.release_results.recv() => match result {
                    Some(result) => self.on_release_results(result).await?,
                    None => break,
                },
                Ok(()) = self.ports.view.changed() => self.on_view_changed().await,
                () = tokio::time::sleep_until(wakeup) => {}
            }
        }
        self.release_all().await
    }

    fn next_wakeup(&self) -> Instant {
        let duty = self
            .depart_until
            .unwrap_or(self.renew_at)
            .min(self.renew_at);
        let acquire_or_hand_over = self.table.next_wakeup(Instant::now());
        acquire_or_hand_over.map_or(duty, |at| at.min(duty))
    }

    async fn tick(&mut self) -> Result<(), Error> {
        let is_departing = self.depart_until.is_some();
        let step = self.ports.clock.last_step();
        if step > self.last_step {
            // The machine may have been paused: the leases count as ended until they are renewed.
            self.last_step = step;
            self.renew_at = Instant::now();
        }
        match self.call_store().await {
            Ok(true) => self.report_readiness(),
            // Without a call, the state of the store is unknown.
            Ok(false) => {}
            Err(error) if error.is_transient() => {
                self.ports.lease_health.set_not_ready(format!(
                    "cannot renew or acquire leases: {error}; the delivery of a shard stops \
                     when its lease expires"
                ));
                self.renew_at = Instant::now() + self.ports.lease_length / 20;
                if is_departing {
                    // Without the store, no shard can be handed over.
                    self.signals.finish.cancel();
                }
            }
            Err(error) => return Err(error),
        }
        for shard in self.table.next_handovers(Instant::now()) {
            tracing::info!(%shard, "handover started: finishing claimed messages first");
            self.send(LeaseEvent::HandOver(shard)).await;
        }
        if let Some(end) = self.depart_until
            && (end <= Instant::now() || self.table.held.is_empty())
        {
            self.signals.finish.cancel();
            self.depart_until = Some(Instant::now() + SHUTDOWN_HANDOVER_TIMEOUT);
        }
        let held = self.table.held.len();
        self.ports.metric.leases_held.set(held as f64);
        Ok(())
    }

    /// The store answers. The worker is ready unless a shard waits for an operator.
    fn report_readiness(&self) {
        let health = &self.ports.lease_health;
        match self.incompatible.first_key_value() {
            None => health.set_ready(),
            Some((shard, found)) => health.set_not_ready(format!("shard {shard} waits: {found}")),
        }
    }

    async fn call_store(&mut self) -> Result<bool, Error> {
        let has_renewed = self.renew().await?;
        let has_acquired = self.acquire().await?;
        Ok(has_renewed || has_acquired)
    }

    async fn on_view_changed(&mut self) {
        let view = self.ports.view.borrow_and_update().clone();
        let has_new_shards = view.shards != self.table.view.shards;
        let departure = view.departure;
        self.table.update_view(view, Instant::now());
        if has_new_shards {
            let counts = self.table.shard_counts();
            self.send(LeaseEvent::ShardsCounted(counts)).await;
        }
        match departure {
            Departure::NotAsked => {}
            Departure::Announced(at) => {
                let interval = heartbeat_interval(self.ports.lease_length);
                self.table.departs_at = Some(at + interval + SHUTDOWN_ANNOUNCE_MARGIN);
            }
            // No worker would acquire a shard that is handed over.
            Departure::Failed => self.signals.finish.cancel(),
        }
    }

    /// Renews the leases, if they are due. Returns whether the store was called.
    async fn renew(&mut self) -> Result<bool, Error> {
        let asked = Instant::now();
        let length = self.ports.lease_length;
        if self.renew_at > asked {
            return Ok(false);
        }
        let held = self.table.held.values();
        let leases: Vec<_> = held.map(|held| held.lease.clone()).collect();
        if !leases.is_empty() {
            let outcomes = self.ports.store.renew(&leases, length).await?;
            for (lease, outcome) in leases.iter().zip(outcomes) {
                self.on_renewed(lease.clone(), outcome, asked).await;
            }
        }
        self.renew_at = asked + length / 3;
        Ok(!leases.is_empty())
    }

    async fn on_renewed(&mut self, lease: Lease, outcome: Renewed, asked: Instant) {
        match outcome {
            Renewed::Renewed { now } => {
                self.check_clock_skew(now);
                if let Some(held) = self.table.held.get(&lease.shard) {
                    held.clock.renew(asked, StoreTime::just_answered(now));
                }
            }
            Renewed::Fenced | Renewed::Unknown => {
                // The dispatcher warns when it stops the shard.
                tracing::info!(shard = %lease.shard, ?outcome, "the store does not renew the lease");
                self.ports.metric.leases_lost.increment(1);
                self.table.held.remove(&lease.shard);
                self.table.stopping.insert(lease.shard.clone());
                self.send(LeaseEvent::Lost(lease.shard)).await;
            }
        }
    }

    async fn acquire(&mut self) -> Result<bool, Error> {
        let asked = Instant::now();
        let length = self.ports.lease_length;
        let shards = self.table.next_to_acquire(asked, length / 20);
        if shards.is_empty() {
            return Ok(false);
        }
        let random = &mut self.ports.random;
        let request = |shard| self.table.request(shard, LeaseToken(random.random()));
        let requests: Vec<_> = shards.into_iter().map(request).collect();
        let outcomes = self.ports.store.acquire(&requests, length).await?;
        let mut granted = Vec::new();
        let mut contested = Vec::new();
        for (Acquire { lease, identity }, outcome) in requests.into_iter().zip(outcomes) {
            let is_held = outcome == Acquired::HeldByOther;
            let is_newly_contested =
                (self.table.acquire_schedule).on_attempt(&lease.shard, is_held);
            self.incompatible.remove(&lease.shard);
            match outcome {
                Acquired::Granted { state, now } => {
                    self.check_clock_skew(now);
                    let store = StoreTime::just_answered(now);
                    let clock = LeaseClock::new(self.ports.clock.clone(), length, asked, store);
                    granted.push((lease, clock, state));
                }
                Acquired::Incompatible(found) => {
                    self.incompatible.insert(lease.shard, found);
                }
                Acquired::OtherCluster(stored) => {
                    let reason = other_installation(&lease.shard, &stored, &identity);
                    self.incompatible.insert(lease.shard, reason);
                }
                Acquired::HeldByOther | Acquired::Unknown => {
                    if is_newly_contested && self.table.is_mine(&lease.shard) {
                        contested.push(lease.shard);
                    }
                }
            }
        }
        self.start_shards(granted).await?;
        if !contested.is_empty() {
            self.send(LeaseEvent::Contested(contested)).await;
        }
        Ok(true)
    }

    /// Starts the shards, except those whose last commit this version cannot read.
    async fn start_shards(
        &mut self,
        granted: Vec<(Lease, LeaseClock, StoredShard)>,
    ) -> Result<(), Error> {
        let length = self.ports.lease_length;
        let shards: Vec<_> = granted.iter().map(|(lease, ..)| &lease.shard).collect();
        let routes = &mut self.ports.routes;
        let committed = committed::read_committed(routes, &shards, length / 5).await;
        let mut unreadable = Vec::new();
        for (lease, clock, mut state) in granted {
            let shard = &lease.shard;
            let committed = match committed.get(shard) {
                None => None,
                Some(Ok(committed)) => Some(committed),
                Some(Err(error)) => {
                    self.incompatible.insert(shard.clone(), error.to_string());
                    unreadable.push(lease);
                    continue;
                }
            };
            let last_delivered = &mut self.table.last_delivered;
            let start = committed::start_position(&state, committed, last_delivered.get(shard));
            state.hold = committed::hold(&state, committed);
            tracing::info!(%shard, watermark = %state.watermark, "lease acquired");
            self.ports.metric.leases_acquired.increment(1);
            last_delivered.insert(shard.clone(), (state.identity.clone(), start));
            self.table.insert_held(lease.clone(), clock.clone());
            let grant = Grant {
                lease,
                clock,
                state,
                start,
            };
            self.send(LeaseEvent::Granted(Box::new(grant))).await;
        }
        self.release(&unreadable).await
    }

    /// Handles all replies that have arrived, and releases the leases of the shards that were
    /// handed over. Other workers can acquire them from then on.
    async fn on_release_results(&mut self, first: ReleaseResult) -> Result<(), Error> {
        let now = Instant::now();
        let mut next = Some(first);
        let mut leases = Vec::new();
        while let Some(result) = next {
            match result {
                ReleaseResult::Ended { shard, delivered } => {
                    leases.extend(self.on_shard_ended(&shard, delivered, now));
                }
                ReleaseResult::Postponed(shard) => {
                    tracing::info!(
                        %shard,
                        "handover postponed: in-flight messages were not acknowledged in time"
                    );
                    self.ports.metric.handovers_postponed.increment(1);
                    self.table.postpone_handover(&shard, now);
                }
            }
            next = self.ports.release_results.try_recv().ok();
        }
        self.release(&leases).await
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), Error> {
        if leases.is_empty() {
            return Ok(());
        }
        match self.ports.store.release(leases).await {
            Err(error) if error.is_transient() => {
                self.warn_not_released(leases.len(), &error.to_string());
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn on_shard_ended(
        &mut self,
        shard: &ShardId,
        delivered: Progress,
        now: Instant,
    ) -> Option<Lease> {
        self.table.stopping.remove(shard);
        if let Some((_, last)) = self.table.last_delivered.get_mut(shard) {
            *last = delivered;
        }
        let held = self.table.held.remove(shard)?;
        let since = held.handover_since?;
        let took_ms = now.duration_since(since).as_millis() as u64;
        tracing::info!(%shard, took_ms, "shard handed over");
        self.ports.metric.leases_handed_over.increment(1);
        Some(held.lease)
    }

    /// Starts the shutdown. The other workers learn of it, and take the shards over. Without other
    /// workers, this worker finishes its shards itself.
    fn start_departure(&mut self) {
        let now = Instant::now();
        self.depart_until = Some(now + SHUTDOWN_HANDOVER_TIMEOUT);
        // Nothing is handed over before the other workers know.
        self.table.departs_at = Some(now + SHUTDOWN_HANDOVER_TIMEOUT);
        let shards = self.table.held.len();
        if self.table.view.other_timers == 0 || shards == 0 {
            self.signals.finish.cancel();
        } else {
            tracing::info!(shards, "shutting down: handing shards over");
            self.signals.timers_done.cancel();
        }
    }

    /// Releases all leases before the process ends. Leases that cannot be released expire.
    async fn release_all(mut self) -> Result<(), Error> {
        let held = std::mem::take(&mut self.table.held);
        let leases: Vec<_> = held.into_values().map(|held| held.lease).collect();
        let release = self.ports.store.release(&leases);
        let released = timeout(FINAL_STORE_CALL_TIMEOUT, release).await;
        let routes = self.ports.routes.iter_mut();
        join_all(routes.map(|route| route.catalog.close())).await;
        match released {
            Ok(Ok(())) => tracing::info!(leases = leases.len(), "leases released"),
            Ok(Err(error)) if error.is_transient() => {
                self.warn_not_released(leases.len(), &error.to_string());
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => self.warn_not_released(leases.len(), "no answer from the store in time"),
        }
        Ok(())
    }

    fn warn_not_released(&self, leases: usize, error: &str) {
        tracing::warn!(
            leases,
            error,
            lease_length = ?self.ports.lease_length,
            "leases not released: other workers can acquire the shards when the leases expire"
        );
    }

    fn check_clock_skew(&self, store: Timestamp) {
        clock_skew::report(&self.ports, store);
    }

    async fn send(&self, event: LeaseEvent) {
        // An error means that the dispatcher has ended. The lease loop notices that by itself.
        let _ = self.ports.events.send(event).await;
    }
}
