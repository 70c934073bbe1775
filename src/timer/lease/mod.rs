//! Acquires and releases the leases of this worker's shards. They last as long as its session.
//!
//! The lease keeper also tells the dispatcher which shards it owns. It never touches messages.
//! `table` decides what to do next, from the view of the membership (which shards this worker gets)
//! and `acquire_schedule` (when to try). `releases` has the leases to give back. `committed` asks the
//! brokers for committed pairs.

mod acquire_schedule;
mod committed;
mod events;
mod releases;
mod table;
#[cfg(test)]
mod tests;

use committed::LastKnown;
pub(crate) use committed::RouteCatalog;
pub(crate) use events::{Grant, LeaseClock, LeaseEvent, ReleaseResult};

use super::ShutdownSignals;
use crate::clock::Clock;
use crate::health::HealthPart;
use crate::limit::{FINAL_STORE_CALL_TIMEOUT, SHUTDOWN_ANNOUNCE_MARGIN, SHUTDOWN_HANDOVER_TIMEOUT};
use crate::membership::{Departure, SessionClock, WorkView, heartbeat_interval};
use crate::metric;
use crate::model::{Lease, LeaseToken, SessionId, ShardId, other_installation};
use crate::store::{Acquire, Acquired, Error, Store, StoredShard};
use futures_util::future::join_all;
use releases::Releases;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use table::LeaseTable;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

pub(crate) struct LeaseKeeper {
    pub(crate) routes: Vec<RouteCatalog>,
    pub(crate) view: watch::Receiver<Arc<WorkView>>,
    pub(crate) session_clock: SessionClock,
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    /// Ready while the store answers the calls for leases, and no shard waits for a newer version or
    /// belongs to another installation.
    pub(crate) lease_health: HealthPart,
    /// The length of a session.
    pub(crate) lease_length: Duration,
    pub(crate) metric: metric::TimerMetrics,
    pub(crate) events: mpsc::Sender<LeaseEvent>,
    pub(crate) release_results: mpsc::Receiver<ReleaseResult>,
}

impl LeaseKeeper {
    /// Serves until the dispatcher ends or `give_up` is cancelled, and then releases all leases.
    /// After `stop`, it first hands its shards over if other workers are alive.
    pub(super) async fn serve(self, signals: ShutdownSignals) -> Result<(), Error> {
        let lease_loop = LeaseLoop::new(self, signals);
        lease_loop.serve().await
    }
}

/// The lease loop, with the times at which each duty is due next.
struct LeaseLoop {
    ports: LeaseKeeper,
    signals: ShutdownSignals,
    table: LeaseTable,
    releases: Releases,
    /// Set during a shutdown: when handovers end, and after that a wakeup in the future.
    depart_until: Option<Instant>,
    /// Shards that wait for a newer version or belong to another cluster, and why, as the last try
    /// found.
    incompatible: BTreeMap<ShardId, String>,
}

impl LeaseLoop {
    fn new(ports: LeaseKeeper, signals: ShutdownSignals) -> Self {
        let now = Instant::now();
        let view = ports.view.borrow().clone();
        Self {
            table: LeaseTable::new(view, now),
            ports,
            signals,
            releases: Releases::new(now),
            depart_until: None,
            incompatible: BTreeMap::new(),
        }
    }

    async fn serve(mut self) -> Result<(), Error> {
        let signals = self.signals.clone();
        // The dispatcher must not outlive this loop.
        let _finish = signals.finish.clone().drop_guard();
        tracing::info!("timer started");
        self.send(self.table.count_shards()).await;
        loop {
            self.ports.lease_health.heartbeat();
            let stopped_during_tick = async {
                signals.stop.cancelled().await;
                tokio::time::sleep(FINAL_STORE_CALL_TIMEOUT).await;
            };
            // Safe to drop: a lease that was acquired but not recorded is in `releases`.
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
                    Some(result) => self.on_release_results(result),
                    None => break,
                },
                Ok(()) = self.ports.view.changed() => self.on_view_changed().await,
                () = tokio::time::sleep_until(wakeup) => {}
            }
        }
        self.release_all().await
    }

    fn next_wakeup(&self) -> Instant {
        let now = Instant::now();
        let duty = [self.depart_until, self.releases.next_wakeup()];
        let duty = duty.into_iter().flatten().min();
        let duty = duty.unwrap_or_else(|| now + Duration::from_secs(1));
        let table = self.table.next_wakeup(now, self.may_acquire());
        table.map_or(duty, |at| at.min(duty))
    }

    async fn tick(&mut self) -> Result<(), Error> {
        let is_departing = self.depart_until.is_some();
        match self.call_store().await {
            Ok(()) if self.table.view.session.is_some() => self.report_readiness(),
            // Without a session, the worker acquires nothing.
            Ok(()) => {}
            Err(error) if error.is_transient() => {
                self.ports.lease_health.set_not_ready(format!(
                    "cannot acquire or release leases: {error}; the delivery of a shard stops when \
                     the session of this worker expires"
                ));
                let retry_at = Instant::now() + self.ports.lease_length / 20;
                self.releases.set_not_before(retry_at);
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

    async fn call_store(&mut self) -> Result<(), Error> {
        self.keep_held();
        let asked = Instant::now();
        let due = self.releases.due(asked);
        if !due.is_empty() {
            self.ports.store.release(&due).await?;
            let interval = heartbeat_interval(self.ports.lease_length);
            let again_at = Instant::now() + 2 * interval;
            self.releases.on_released(asked, again_at);
        }
        if self.may_acquire() {
            self.acquire().await?;
        }
        Ok(())
    }

    /// A lease of which the store may know is released first. So an outage adds the leases of one
    /// attempt only (I6).
    fn may_acquire(&self) -> bool {
        !self.releases.are_waiting() || fault!(AcquireWithUnknownLeases)
    }

    async fn on_view_changed(&mut self) {
        let view = self.ports.view.borrow_and_update().clone();
        let has_new_shards = view.shards != self.table.view.shards;
        let (departure, session) = (view.departure, view.session);
        self.table.update_view(view, Instant::now());
        self.stop_shards_of_other_sessions(session).await;
        if has_new_shards {
            self.send(self.table.count_shards()).await;
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

    /// Stops the shards of an earlier session of this worker.
    async fn stop_shards_of_other_sessions(&mut self, session: Option<SessionId>) {
        let held = self.table.held.values().map(|held| &held.lease);
        let lost: Vec<_> = held
            .filter(|lease| Some(lease.token.session) != session)
            .map(|lease| lease.shard.clone())
            .collect();
        for shard in lost {
            self.ports.metric.leases_lost.increment(1);
            self.table.held.remove(&shard);
            self.table.stopping.insert(shard.clone());
            self.send(LeaseEvent::Lost(shard)).await;
        }
    }

    async fn acquire(&mut self) -> Result<(), Error> {
        let length = self.ports.lease_length;
        let Some(session) = self.table.view.session else {
            return Ok(());
        };
        let shards = self.table.next_to_acquire(Instant::now(), length / 20);
        if shards.is_empty() {
            return Ok(());
        }
        let requests = self.table.requests(session, shards);
        let outcomes = self.try_acquire(&requests).await?;
        let held = self.apply_outcomes(requests, outcomes).await;
        let takeovers = self.takeovers(session, held).await?;
        if !takeovers.is_empty() {
            let outcomes = self.try_acquire(&takeovers).await?;
            self.apply_outcomes(takeovers, outcomes).await;
        }
        Ok(())
    }

    /// Without an answer, the store may have granted the leases. It releases them, unless their
    /// shards have started.
    async fn try_acquire(&mut self, requests: &[Acquire]) -> Result<Vec<Acquired>, Error> {
        let leases = requests.iter().map(|request| request.lease.clone());
        self.releases.add(leases);
        let outcomes = self.ports.store.acquire(requests).await?;
        let refused = requests
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| !matches!(outcome, Acquired::Granted(_)));
        let refused: BTreeSet<_> = refused.map(|(request, _)| request.lease.token).collect();
        self.releases
            .retain(|lease| !refused.contains(&lease.token));
        Ok(outcomes)
    }

    /// Keeps the leases of shards that have started.
    fn keep_held(&mut self) {
        let held = &self.table.held;
        let is_held = |lease: &Lease| held.get(&lease.shard).is_some_and(|it| it.lease == *lease);
        self.releases.retain(|lease| !is_held(lease));
    }

    /// Starts the shards that were granted. Returns the requests for those that are held, each with
    /// the holder.
    async fn apply_outcomes(
        &mut self,
        requests: Vec<Acquire>,
        outcomes: Vec<Acquired>,
    ) -> Vec<(Acquire, LeaseToken)> {
        let (mut granted, mut contested, mut held) = (Vec::new(), Vec::new(), Vec::new());
        for (request, outcome) in requests.into_iter().zip(outcomes) {
            let shard = request.lease.shard.clone();
            let is_held = matches!(outcome, Acquired::HeldBy(_));
            let is_newly_contested = self.table.acquire_schedule.on_attempt(&shard, is_held);
            self.incompatible.remove(&shard);
            match outcome {
                Acquired::Granted(state) => {
                    let clock = LeaseClock::new(
                        self.ports.clock.clone(),
                        request.lease.token.session,
                        self.ports.session_clock.clone(),
                    );
                    granted.push((request.lease, clock, state));
                }
                Acquired::Incompatible(found) => {
                    self.incompatible.insert(shard, found);
                }
                Acquired::OtherCluster(stored) => {
                    let reason = other_installation(&shard, &stored, &request.identity);
                    self.incompatible.insert(shard, reason);
                }
                Acquired::HeldBy(token) => {
                    if is_newly_contested && self.table.is_mine(&shard) {
                        contested.push(shard);
                    }
                    held.push((request, token));
                }
                Acquired::Unknown => {}
            }
        }
        self.start_shards(granted).await;
        if !contested.is_empty() {
            self.send(LeaseEvent::Contested(contested)).await;
        }
        held
    }

    /// Requests for the held shards whose holder has ended: an earlier tenure of this session, or a
    /// session that is absent after the holder was read. A store that was rolled back may show an earlier
    /// tenure of a shard that was handed over: it is released again.
    async fn takeovers(
        &mut self,
        session: SessionId,
        held: Vec<(Acquire, LeaseToken)>,
    ) -> Result<Vec<Acquire>, Error> {
        let live = &self.table.view.live_sessions;
        let is_unsure =
            |token: &LeaseToken| token.session != session && !live.contains(&token.session);
        let mut live_now = live.clone();
        if held.iter().any(|(_, token)| is_unsure(token)) {
            let sessions = self.ports.store.sessions().await?;
            live_now = sessions.into_iter().map(|session| session.id).collect();
        }
        let has_ended =
            |token: LeaseToken| token.session == session || !live_now.contains(&token.session);
        let ended = held.into_iter().filter(|(_, token)| has_ended(*token));
        let (mut holders, mut shards) = (Vec::new(), Vec::new());
        for (request, token) in ended {
            let shard = request.lease.shard;
            if token.session == session && !self.table.is_mine(&shard) {
                self.releases.add([Lease { shard, token }]);
            } else {
                holders.push(token);
                shards.push(shard);
            }
        }
        let mut requests = self.table.requests(session, shards);
        for (request, holder) in requests.iter_mut().zip(holders) {
            request.ended_holder = Some(holder);
        }
        Ok(requests)
    }

    /// Starts the shards, except those whose last commit this version cannot read.
    async fn start_shards(&mut self, granted: Vec<(Lease, LeaseClock, StoredShard)>) {
        let length = self.ports.lease_length;
        let shards: Vec<_> = granted.iter().map(|(lease, ..)| &lease.shard).collect();
        let routes = &mut self.ports.routes;
        let limit = committed::wait_limit(&self.ports.session_clock, length);
        let committed = committed::read_committed(routes, &shards, limit).await;
        for (lease, clock, mut state) in granted {
            let shard = &lease.shard;
            let committed = match committed.get(shard) {
                None => None,
                Some(Ok(committed)) => Some(committed),
                Some(Err(error)) => {
                    self.incompatible.insert(shard.clone(), error.to_string());
                    continue;
                }
            };
            let own = self.table.last_known.get(shard);
            let start = committed::start_position(&state, committed, own);
            committed::restore_waits(&mut state, committed, own);
            let now = self.ports.clock.now().max(clock.store_time(Instant::now()));
            state.possibly_delivered = committed::possibly_delivered(&state, committed, own, now);
            state.claimed = committed::claimed(&state, own);
            tracing::info!(%shard, watermark = %state.watermark, "lease acquired");
            self.ports.metric.leases_acquired.increment(1);
            let known = LastKnown::at_start(&state, start);
            self.table.last_known.insert(shard.clone(), known);
            self.table.insert_held(lease.clone());
            let grant = Grant {
                lease,
                clock,
                state,
                start,
            };
            self.send(LeaseEvent::Granted(Box::new(grant))).await;
        }
        self.keep_held();
    }

    /// Handles all replies that have arrived, and releases the leases of the shards that were
    /// handed over. Other workers can acquire them from then on.
    fn on_release_results(&mut self, first: ReleaseResult) {
        let now = Instant::now();
        let mut next = Some(first);
        let mut leases = Vec::new();
        while let Some(result) = next {
            match result {
                ReleaseResult::Ended {
                    shard,
                    delivered,
                    claimed,
                    seen,
                    is_lost,
                } => {
                    if let Some(known) = self.table.last_known.get_mut(&shard) {
                        (known.delivered, known.claimed) = (delivered, claimed);
                        known.seen = seen;
                    }
                    leases.extend(self.on_shard_ended(&shard, is_lost, now));
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
        self.releases.add(leases);
        self.releases.set_not_before(now);
    }

    fn on_shard_ended(&mut self, shard: &ShardId, is_lost: bool, now: Instant) -> Option<Lease> {
        self.table.stopping.remove(shard);
        let held = self.table.held.remove(shard)?;
        if is_lost {
            self.ports.metric.leases_lost.increment(1);
        } else if let Some(since) = held.handover_since {
            let took_ms = now.duration_since(since).as_millis() as u64;
            tracing::info!(%shard, took_ms, "shard handed over");
            self.ports.metric.leases_handed_over.increment(1);
        }
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

    /// Releases all leases before the process ends. Leases that cannot be released end with the
    /// session.
    async fn release_all(mut self) -> Result<(), Error> {
        let held = std::mem::take(&mut self.table.held);
        let held = held.into_values().map(|held| held.lease);
        let leases: Vec<_> = self
            .releases
            .take_waiting()
            .into_iter()
            .chain(held)
            .collect();
        let release = self.ports.store.release(&leases);
        let released = timeout(FINAL_STORE_CALL_TIMEOUT, release).await;
        let routes = self.ports.routes.iter_mut();
        join_all(routes.map(|route| route.catalog.close())).await;
        let error = match released {
            Ok(Ok(())) => {
                tracing::info!(leases = leases.len(), "leases released");
                return Ok(());
            }
            Ok(Err(error)) if !error.is_transient() => return Err(error),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer from the store in time".to_owned(),
        };
        tracing::warn!(
            leases = leases.len(),
            error,
            lease_length = ?self.ports.lease_length,
            "leases not released: other workers can acquire the shards when the session is over"
        );
        Ok(())
    }

    async fn send(&self, event: LeaseEvent) {
        // An error means that the dispatcher has ended. The lease loop notices that by itself.
        let _ = self.ports.events.send(event).await;
    }
}
