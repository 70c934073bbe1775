//! Acquires, renews and releases the leases of this worker's shards.
//!
//! `LeaseKeeper` also reports that this worker is alive, and tells the dispatcher which shards it
//! owns. It never touches messages. `table` decides what to do next, from `membership` (which
//! workers are alive), `assignment` (which worker gets which shard) and `acquire_schedule` (when to
//! try). `discovery` asks the brokers which shards exist.

mod acquire_schedule;
mod assignment;
mod deadline;
mod discovery;
mod events;
mod membership;
mod table;
mod timetable;

pub(crate) use deadline::LeaseDeadline;
pub(crate) use discovery::RouteCatalog;
pub(crate) use events::{Grant, LeaseEvent, ReleaseResult, ShutdownSignals};

use crate::clock::Clock;
use crate::health::HealthPart;
use crate::limit::{
    FINAL_STORE_CALL_TIMEOUT, MEMBERSHIP_INTERVAL, PARTITION_DISCOVERY_INTERVAL,
    SHUTDOWN_ANNOUNCE_MARGIN, SHUTDOWN_HANDOVER_TIMEOUT,
};
use crate::metric;
use crate::model::{Lease, LeaseToken, Progress, ShardId, Timestamp, WorkerId};
use crate::store::{Acquired, Error, LiveWorker, Renewed, Store, StoredShard};
use futures_util::future::{join, join_all};
use rand::RngExt;
use rand::rngs::StdRng;
use std::rc::Rc;
use std::time::Duration;
use table::LeaseTable;
use timetable::Timetable;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// The lease loop of one timer.
pub(crate) struct LeaseKeeper {
    pub(crate) routes: Vec<RouteCatalog>,
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    /// Ready while leases can be renewed.
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
    pub(crate) async fn serve(mut self, signals: ShutdownSignals) -> Result<(), Error> {
        // The dispatcher must not outlive this loop.
        let _finish = signals.finish.clone().drop_guard();
        let mut times = Timetable::new(Instant::now());
        let mut table = LeaseTable::new(WorkerId(self.random.random()), Instant::now());
        tracing::info!(worker = %table.membership.me, "timer started");
        loop {
            self.lease_health.heartbeat();
            let is_departing = times.is_departing();
            let stopped_during_tick = async {
                signals.stop.cancelled().await;
                tokio::time::sleep(FINAL_STORE_CALL_TIMEOUT).await;
            };
            // safe to drop because a lease that was acquired but not recorded expires by itself
            tokio::select! {
                biased;
                () = signals.give_up.cancelled() => break,
                () = stopped_during_tick, if !is_departing => {}
                outcome = self.tick(&mut table, &mut times, &signals) => outcome?,
            }
            let wakeup = table
                .next_wakeup(Instant::now())
                .into_iter()
                .fold(times.next(), Instant::min);
            // safe to drop because a message that was not received stays in the channel
            tokio::select! {
                biased;
                () = signals.stop.cancelled(), if !times.is_departing() => {
                    self.start_departure(&mut table, &mut times, &signals).await;
                }
                result = self.release_results.recv() => match result {
                    Some(result) => self.on_release_results(&mut table, result).await?,
                    None => break,
                },
                () = tokio::time::sleep_until(wakeup) => {}
            }
        }
        self.release_all(table).await
    }

    /// Performs the duties that are due.
    async fn tick(
        &mut self,
        table: &mut LeaseTable,
        times: &mut Timetable,
        signals: &ShutdownSignals,
    ) -> Result<(), Error> {
        if times.discover_at <= Instant::now() && !times.is_departing() {
            self.discover_shards(table, times).await;
        }
        match self.call_store(table, times).await {
            Ok(true) => self.lease_health.set_ready(),
            // Without a call, the state of the store is unknown.
            Ok(false) => {}
            Err(error) if error.is_transient() => {
                self.lease_health
                    .set_not_ready(format!("leases cannot be renewed: {error}"));
                let retry_at = Instant::now() + self.lease_length / 20;
                times.heartbeat_at = retry_at;
                times.renew_at = retry_at;
                if times.is_departing() {
                    // Without the store, no shard can be handed over.
                    signals.finish.cancel();
                }
            }
            Err(error) => return Err(error),
        }
        self.start_handovers(table).await;
        if let Some(end) = times.depart_until
            && (end <= Instant::now() || table.held.is_empty())
        {
            signals.finish.cancel();
            times.depart_until = Some(Instant::now() + SHUTDOWN_HANDOVER_TIMEOUT);
        }
        self.metric.leases_held.set(table.held.len() as f64);
        Ok(())
    }

    /// Sends the store calls that are due. Returns whether there was one.
    async fn call_store(
        &mut self,
        table: &mut LeaseTable,
        times: &mut Timetable,
    ) -> Result<bool, Error> {
        let has_renewed = self.heartbeat_and_renew(table, times).await?;
        let has_acquired = self.acquire(table).await?;
        Ok(has_renewed || has_acquired)
    }

    /// Asks the brokers which shards exist. A shard that no longer exists stays in the table,
    /// because it may still have stored messages.
    async fn discover_shards(&mut self, table: &mut LeaseTable, times: &mut Timetable) {
        let (shards, is_complete) =
            discovery::list_shards(&mut self.routes, self.lease_length / 5).await;
        let now = Instant::now();
        if table.add_shards(shards, now) {
            self.send(LeaseEvent::ShardsCounted(table.shard_counts()))
                .await;
        }
        if is_complete || times.await_sources_until.is_some_and(|until| until <= now) {
            times.await_sources_until = None;
        }
        let interval = if times.await_sources_until.is_some() {
            MEMBERSHIP_INTERVAL
        } else {
            PARTITION_DISCOVERY_INTERVAL
        };
        times.discover_at = now + interval;
    }

    /// Sends the heartbeat and renews the leases, each when it is due, at the same time if both
    /// are. Returns whether the store was called.
    async fn heartbeat_and_renew(
        &mut self,
        table: &mut LeaseTable,
        times: &mut Timetable,
    ) -> Result<bool, Error> {
        let asked = Instant::now();
        let sends_heartbeat = times.heartbeat_at <= asked
            && !times.is_departing()
            && times.await_sources_until.is_none();
        let renews = times.renew_at <= asked;
        let leases: Vec<_> = table
            .held
            .values()
            .filter(|_| renews)
            .map(|held| held.lease.clone())
            .collect();
        let has_called = sends_heartbeat || !leases.is_empty();
        let store = self.store.clone();
        let heartbeat = async {
            if !sends_heartbeat {
                return Ok(None);
            }
            store
                .heartbeat_worker(table.membership.me, self.lease_length)
                .await
                .map(Some)
        };
        let renew = async {
            if leases.is_empty() {
                return Ok(Vec::new());
            }
            store.renew(&leases, self.lease_length).await
        };
        let (workers, outcomes) = join(heartbeat, renew).await;
        for (lease, outcome) in leases.into_iter().zip(outcomes?) {
            self.on_renewed(table, lease, outcome, asked).await;
        }
        if renews {
            times.renew_at = asked + self.lease_length / 3;
        }
        if let Some(workers) = workers? {
            times.heartbeat_at = self.update_membership(table, &workers, asked);
        } else if times.heartbeat_at <= asked {
            times.heartbeat_at = asked + self.heartbeat_interval();
        }
        Ok(has_called)
    }

    fn heartbeat_interval(&self) -> Duration {
        MEMBERSHIP_INTERVAL.min(self.lease_length / 5)
    }

    /// Records which workers are alive. Returns the time of the next heartbeat: at the latest when
    /// the entry of another worker expires.
    fn update_membership(
        &mut self,
        table: &mut LeaseTable,
        workers: &[LiveWorker],
        asked: Instant,
    ) -> Instant {
        let now = Instant::now();
        if table.update_workers(workers, now) {
            let worker_count = table.membership.worker_count();
            tracing::info!(
                workers = worker_count,
                assigned_shards = table.membership.assigned_count(),
                held_shards = table.held.len(),
                "membership changed"
            );
            self.metric.workers.set(worker_count as f64);
        }
        let me = table.membership.me;
        workers
            .iter()
            .filter(|worker| worker.worker != me)
            .map(|worker| now + worker.expires_in + Duration::from_millis(2))
            .fold(asked + self.heartbeat_interval(), Instant::min)
    }

    async fn on_renewed(
        &mut self,
        table: &mut LeaseTable,
        lease: Lease,
        outcome: Renewed,
        asked: Instant,
    ) {
        match outcome {
            Renewed::Renewed { now } => {
                self.check_clock_skew(now);
                if let Some(held) = table.held.get(&lease.shard) {
                    held.deadline.extend(asked, self.lease_length);
                }
            }
            Renewed::Fenced | Renewed::Unknown => {
                tracing::warn!(shard = %lease.shard, ?outcome, "lease lost");
                self.metric.leases_lost.increment(1);
                table.held.remove(&lease.shard);
                table.stopping.insert(lease.shard.clone());
                self.send(LeaseEvent::Lost(lease.shard)).await;
            }
        }
    }

    /// Tries to acquire the shards that are due for a try. Returns whether there were any.
    async fn acquire(&mut self, table: &mut LeaseTable) -> Result<bool, Error> {
        let asked = Instant::now();
        let shards = table.next_to_acquire(asked, self.lease_length / 20);
        if shards.is_empty() {
            return Ok(false);
        }
        let leases: Vec<_> = shards
            .into_iter()
            .map(|shard| Lease {
                shard,
                token: LeaseToken(self.random.random()),
            })
            .collect();
        let outcomes = self.store.acquire(&leases, self.lease_length).await?;
        let mut granted = Vec::new();
        let mut contested = Vec::new();
        for (lease, outcome) in leases.into_iter().zip(outcomes) {
            let is_newly_contested = table
                .acquire_schedule
                .on_attempt(&lease.shard, outcome == Acquired::HeldByOther);
            if let Acquired::Granted { state, now } = outcome {
                self.check_clock_skew(now);
                granted.push((lease, state));
            } else if is_newly_contested && table.membership.is_mine(&lease.shard) {
                contested.push(lease.shard);
            }
        }
        self.start_shards(table, granted, asked).await;
        if !contested.is_empty() {
            self.send(LeaseEvent::Contested(contested)).await;
        }
        Ok(true)
    }

    /// Passes newly leased shards to the dispatcher.
    async fn start_shards(
        &mut self,
        table: &mut LeaseTable,
        granted: Vec<(Lease, StoredShard)>,
        asked: Instant,
    ) {
        let shards: Vec<_> = granted.iter().map(|(lease, _)| &lease.shard).collect();
        let committed =
            discovery::read_committed(&mut self.routes, &shards, self.lease_length / 5).await;
        for (lease, state) in granted {
            let deadline = LeaseDeadline::new(asked, self.lease_length);
            let start = discovery::start_position(
                &state,
                committed.get(&lease.shard),
                table.last_delivered.get(&lease.shard),
            );
            tracing::info!(shard = %lease.shard, watermark = %state.watermark, "lease acquired");
            self.metric.leases_acquired.increment(1);
            table
                .last_delivered
                .insert(lease.shard.clone(), (state.identity.clone(), start));
            table.insert_held(lease.clone(), deadline.clone());
            self.send(LeaseEvent::Granted(Box::new(Grant {
                lease,
                deadline,
                state,
                start,
            })))
            .await;
        }
    }

    /// Starts the handover of shards that are assigned to other workers.
    async fn start_handovers(&mut self, table: &mut LeaseTable) {
        for shard in table.next_handovers(Instant::now()) {
            tracing::info!(%shard, "handover started: finishing claimed messages first");
            self.send(LeaseEvent::HandOver(shard)).await;
        }
    }

    /// Handles all replies that have arrived, and releases the leases of the shards that were
    /// handed over. Other workers can acquire them from then on.
    async fn on_release_results(
        &mut self,
        table: &mut LeaseTable,
        first: ReleaseResult,
    ) -> Result<(), Error> {
        let now = Instant::now();
        let mut next = Some(first);
        let mut leases = Vec::new();
        while let Some(result) = next {
            match result {
                ReleaseResult::Ended { shard, delivered } => {
                    leases.extend(self.on_shard_ended(table, &shard, delivered, now));
                }
                ReleaseResult::Postponed(shard) => {
                    tracing::info!(
                        %shard,
                        "handover postponed: in-flight messages were not acknowledged in time"
                    );
                    self.metric.handovers_postponed.increment(1);
                    table.postpone_handover(&shard, now);
                }
            }
            next = self.release_results.try_recv().ok();
        }
        if leases.is_empty() {
            return Ok(());
        }
        match self.store.release(&leases).await {
            Err(error) if error.is_transient() => {
                self.warn_not_released(leases.len(), &error.to_string());
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Returns the lease to release, if the shard was handed over.
    fn on_shard_ended(
        &self,
        table: &mut LeaseTable,
        shard: &ShardId,
        delivered: Progress,
        now: Instant,
    ) -> Option<Lease> {
        table.stopping.remove(shard);
        if let Some((_, last)) = table.last_delivered.get_mut(shard) {
            *last = delivered;
        }
        let held = table.held.remove(shard)?;
        let since = held.handover_since?;
        let took_ms = now.duration_since(since).as_millis() as u64;
        tracing::info!(%shard, took_ms, "shard handed over");
        self.metric.leases_handed_over.increment(1);
        Some(held.lease)
    }

    /// Starts the shutdown. The other workers learn of it, and take the shards over. Without other
    /// workers, this worker finishes its shards itself.
    async fn start_departure(
        &mut self,
        table: &mut LeaseTable,
        times: &mut Timetable,
        signals: &ShutdownSignals,
    ) {
        let now = Instant::now();
        times.depart_until = Some(now + SHUTDOWN_HANDOVER_TIMEOUT);
        table.departs_at = Some(now + self.heartbeat_interval() + SHUTDOWN_ANNOUNCE_MARGIN);
        if table.membership.is_alone() || table.held.is_empty() {
            signals.finish.cancel();
        } else {
            tracing::info!(
                shards = table.held.len(),
                "shutting down: handing shards over"
            );
            signals.timers_done.cancel();
        }
        let removed = timeout(
            FINAL_STORE_CALL_TIMEOUT,
            self.store.remove_worker(table.membership.me),
        );
        if !matches!(removed.await, Ok(Ok(()))) {
            // The other workers notice only when this worker's entry expires. Until then, no worker
            // would acquire a shard that is handed over.
            signals.finish.cancel();
        }
    }

    /// Releases all leases before the process ends. Leases that cannot be released expire.
    async fn release_all(mut self, table: LeaseTable) -> Result<(), Error> {
        let leases: Vec<_> = table.held.into_values().map(|held| held.lease).collect();
        let released = timeout(FINAL_STORE_CALL_TIMEOUT, self.store.release(&leases)).await;
        join_all(self.routes.iter_mut().map(|route| route.catalog.close())).await;
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
            lease_length = ?self.lease_length,
            "leases not released: other workers can acquire the shards when the leases expire"
        );
    }

    /// Sets this worker not ready if its clock differs too much from the store's clock. The store
    /// refuses the claims of a worker whose clock is ahead.
    fn check_clock_skew(&self, store: Timestamp) {
        let skew_ms = self.clock.now().as_millis() - store.as_millis();
        self.metric.clock_skew_seconds.set(skew_ms as f64 / 1_000.0);
        let skew_max_ms = u64::try_from(self.skew_max.as_millis()).unwrap_or(u64::MAX);
        if skew_ms.unsigned_abs() <= skew_max_ms {
            self.clock_health.set_ready();
            return;
        }
        let direction = if skew_ms > 0 { "ahead of" } else { "behind" };
        let skew_ms = skew_ms.unsigned_abs();
        let reason = format!("this machine's clock is {skew_ms} ms {direction} the store's");
        self.clock_health
            .set_not_ready(format!("{reason}: check the clock synchronisation"));
    }

    async fn send(&self, event: LeaseEvent) {
        // An error means that the dispatcher has ended. The main loop notices that by itself.
        let _ = self.events.send(event).await;
    }
}
