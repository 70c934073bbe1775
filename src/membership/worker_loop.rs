//! The membership loop: keeps the session of this worker, finds shards and dead workers, and
//! publishes the assignments.

use super::discovery::{ClusterCatalog, Discovered, list_shards};
use super::roster::{Departure, Roster};
use super::session_watch::SessionWatch;
use super::{Publisher, StoreTime, WorkView};
use crate::clock::Clock;
use crate::health::{Health, HealthPart};
use crate::limit::{
    FINAL_STORE_CALL_TIMEOUT, LOOP_STALL_MAX, MEMBERSHIP_INTERVAL, PARTITION_DISCOVERY_INTERVAL,
    REPLACED_SESSIONS_MAX, STORE_RESPONSE_TIMEOUT,
};
use crate::metric;
use crate::model::{SessionId, Timestamp, WorkerEntry};
use crate::store::{Error, Heartbeat, Session, SessionEnd, SessionHeartbeat, Store};
use futures_util::FutureExt as _;
use futures_util::future::{Fuse, FusedFuture as _, LocalBoxFuture, join_all};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

pub(crate) struct Ports {
    pub(crate) clusters: Vec<ClusterCatalog>,
    pub(crate) store: Rc<dyn Store>,
    /// Ready while the store answers the heartbeats and accepts this worker.
    pub(crate) health: HealthPart,
    pub(crate) metric: metric::MembershipMetrics,
    pub(crate) publisher: Publisher,
    pub(crate) clock: Rc<dyn Clock>,
    /// Ready while this machine's clock agrees with the store's clock.
    pub(crate) clock_health: HealthPart,
    pub(crate) skew_max: Duration,
    /// All loops of the process.
    pub(crate) loops: Health,
    /// The length of a session.
    pub(crate) length: Duration,
}

/// Interval of heartbeats for a session of this length.
pub(crate) fn heartbeat_interval(length: Duration) -> Duration {
    MEMBERSHIP_INTERVAL.min(length / 5)
}

/// The longest time between two heartbeats of a process whose connections work: half an interval
/// more, for a slow answer.
pub(crate) fn silence_max(length: Duration) -> Duration {
    heartbeat_interval(length) * 3 / 2
}

/// The response timeout of the store for heartbeats. If one gets no answer, its repeat on a new
/// connection still comes in time.
pub(crate) fn heartbeat_timeout(length: Duration) -> Duration {
    if fault!(RenewalOutlastsLease) {
        return STORE_RESPONSE_TIMEOUT;
    }
    STORE_RESPONSE_TIMEOUT.min(length / 3)
}

pub(crate) struct WorkerLoop {
    ports: Ports,
    entry: WorkerEntry,
    session: SessionId,
    /// Heartbeats of the session that were sent.
    heartbeats: u64,
    /// Number of the last one that was answered.
    answered: u64,
    /// Sessions of this process, one after the other, that another process of the same name has
    /// replaced.
    replaced: u32,
    /// Since then, the store refuses this worker because of another installation.
    refused_since: Option<Instant>,
    watch: SessionWatch,
    roster: Roster,
    /// The request for shards that runs. It holds the clusters meanwhile.
    discovery: Fuse<LocalBoxFuture<'static, (Vec<ClusterCatalog>, Discovered)>>,
    discover_at: Instant,
    heartbeat_at: Instant,
    /// Until then, this worker waits for its sources before it begins its session.
    await_sources_until: Option<Instant>,
}

impl WorkerLoop {
    /// `session` is the first one of this process.
    pub(crate) fn new(ports: Ports, entry: WorkerEntry, session: SessionId) -> Self {
        let now = Instant::now();
        Self {
            watch: SessionWatch::new(session, ports.length),
            roster: Roster::new(session.worker, now),
            session,
            heartbeats: 0,
            answered: 0,
            replaced: 0,
            refused_since: None,
            discovery: Fuse::terminated(),
            discover_at: now,
            heartbeat_at: now,
            await_sources_until: Some(now + PARTITION_DISCOVERY_INTERVAL),
            ports,
            entry,
        }
    }

    /// Serves until `released` is cancelled: no work of this process needs the session any more.
    /// After `stop` the worker gets no new work.
    pub(crate) async fn serve(
        mut self,
        stop: CancellationToken,
        released: CancellationToken,
    ) -> Result<(), Error> {
        tracing::info!(worker = self.entry.name, session = %self.session, "worker started");
        loop {
            self.ports.health.heartbeat();
            let is_departing = self.is_departing();
            if self.heartbeat_at <= Instant::now() && self.await_sources_until.is_none() {
                // Safe to drop: the number of each heartbeat is used once.
                tokio::select! {
                    biased;
                    () = released.cancelled() => break,
                    () = stop.cancelled(), if !is_departing => {}
                    outcome = self.heartbeat() => drop(outcome?),
                }
            }
            if self.discover_at <= Instant::now() && self.discovery.is_terminated() {
                self.start_discovery();
            }
            self.publish();
            let wakeup = self.next_wakeup();
            // Safe to drop: the discovery is kept until it has answered.
            tokio::select! {
                biased;
                () = released.cancelled() => break,
                () = stop.cancelled(), if !is_departing => self.depart().await,
                (clusters, found) = &mut self.discovery => self.on_discovered(clusters, found),
                () = tokio::time::sleep_until(wakeup) => {}
            }
        }
        self.end().await;
        Ok(())
    }

    fn is_departing(&self) -> bool {
        self.roster.view().departure != Departure::NotAsked
    }

    fn next_wakeup(&self) -> Instant {
        let discover_at = self.discover_at.max(Instant::now());
        let discovery = self.discovery.is_terminated().then_some(discover_at);
        let heartbeat = self.await_sources_until.unwrap_or(self.heartbeat_at);
        discovery.map_or(heartbeat, |at| at.min(heartbeat))
    }

    fn start_discovery(&mut self) {
        let mut clusters = std::mem::take(&mut self.ports.clusters);
        let limit = self.ports.length / 5;
        let list = async move {
            let found = list_shards(&mut clusters, limit).await;
            (clusters, found)
        };
        self.discovery = list.boxed_local().fuse();
    }

    fn on_discovered(&mut self, clusters: Vec<ClusterCatalog>, found: Discovered) {
        let now = Instant::now();
        self.ports.clusters = clusters;
        if found.is_complete {
            // Only some of the clusters would look like another installation to a worker that has
            // seen only others. Ids that a cluster has lost stay, for workers that know the old id.
            let ids = found.shards.iter().filter_map(|(_, id)| id.cluster());
            self.entry.clusters.extend(ids.map(Box::from));
        }
        self.roster.add_shards(found.shards, found.is_complete, now);
        if found.is_complete || self.await_sources_until.is_some_and(|until| until <= now) {
            self.await_sources_until = None;
        }
        self.discover_at = match self.await_sources_until {
            Some(until) => until.min(now + MEMBERSHIP_INTERVAL),
            None => now + PARTITION_DISCOVERY_INTERVAL,
        };
    }

    /// Sends the heartbeat. Returns whether the store has recorded it.
    async fn heartbeat(&mut self) -> Result<bool, Error> {
        let asked = Instant::now();
        let is_recorded = self.send_heartbeat(asked).await?;
        if !is_recorded {
            self.ports.publisher.session_clock.on_failed_heartbeat();
        }
        Ok(is_recorded)
    }

    async fn send_heartbeat(&mut self, asked: Instant) -> Result<bool, Error> {
        self.heartbeat_at = asked + heartbeat_interval(self.ports.length);
        if let Some(stuck) = self.ports.loops.not_moving(LOOP_STALL_MAX).first() {
            let reason = format!("sends no heartbeats: {}: {}", stuck.part, stuck.reason);
            self.ports.health.set_not_ready(reason);
            return Ok(false);
        }
        self.heartbeats += 1;
        let request = SessionHeartbeat {
            session: self.session,
            heartbeats: self.heartbeats,
            answered: self.answered,
            length: self.ports.length,
            entry: self.entry.clone(),
        };
        let reason = match self.ports.store.heartbeat(&request).await {
            Ok(Heartbeat::Renewed { now, sessions }) => {
                self.answered = request.heartbeats;
                self.on_renewed(&sessions, asked, now).await?;
                return Ok(true);
            }
            Ok(Heartbeat::Ended(sessions)) => {
                self.check_not_replaced(&sessions)?;
                self.heartbeat_at = asked;
                "the store has lost the session of this worker, or another worker has ended it: starting another session"
                    .to_owned()
            }
            Ok(Heartbeat::NameTaken(sessions)) => {
                self.end_dead_sessions(&sessions).await?;
                format!(
                    "another process has the worker name {}: waiting until its session ends. Give each \
                     process its own worker.name",
                    self.entry.name
                )
            }
            Ok(Heartbeat::OlderWorkers(count)) => format!(
                "{count} workers of version 0.1.0 are alive: waiting until they have stopped"
            ),
            Ok(Heartbeat::OtherClusters(sessions)) => {
                self.end_dead_sessions(&sessions).await?;
                let reason = self.other_installation(&sessions);
                // Sessions of workers that were killed are over by then.
                if self.refused_since.get_or_insert(asked).elapsed() > 2 * self.ports.length {
                    return Err(Error::Unusable(reason));
                }
                reason
            }
            Err(error) if error.is_transient() => {
                self.heartbeat_at = asked.max(Instant::now()) + self.ports.length / 20;
                self.ports.health.set_not_ready(format!(
                    "cannot report this worker as alive: {error}; it delivers nothing until the store answers"
                ));
                if self.heartbeats == 1 {
                    self.begin_another_session();
                }
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        self.ports.health.set_not_ready(reason);
        self.begin_another_session();
        Ok(false)
    }

    /// An ended session never comes back, and a first heartbeat without an answer is not repeated.
    fn begin_another_session(&mut self) {
        self.session.number += 1;
        (self.heartbeats, self.answered) = (0, 0);
        self.roster.set_sessions(None, []);
    }

    async fn end_dead_sessions(&mut self, sessions: &[Session]) -> Result<(), Error> {
        let now = Instant::now();
        let ends = self.watch.observe(sessions, now);
        if ends.is_empty() {
            return Ok(());
        }
        for end in &ends {
            let ended = sessions.iter().find(|it| it.id == end.session);
            let worker = ended.map_or("", |it| &it.entry.name);
            let connected = ended.is_some_and(|it| it.is_connected);
            tracing::warn!(
                worker,
                session = %end.session,
                connected,
                "a worker sends no heartbeats: ending its session, so that others take its shards"
            );
        }
        match self.ports.store.end_sessions(&ends).await {
            // The next answer shows which of them have ended.
            Ok(()) => self.heartbeat_at = now,
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The store has recorded the heartbeat that was sent at `asked`.
    async fn on_renewed(
        &mut self,
        sessions: &[Session],
        asked: Instant,
        store_time: Timestamp,
    ) -> Result<(), Error> {
        let now = Instant::now();
        self.refused_since = None;
        if self.answered > 1 {
            self.replaced = 0;
        }
        let (session, length) = (self.session, self.ports.length);
        let store = StoreTime::just_answered(store_time);
        let session_clock = &self.ports.publisher.session_clock;
        session_clock.renew(session, asked, length, store);
        self.check_clock_skew(store_time);
        self.end_dead_sessions(sessions).await?;
        self.ports.health.set_ready();
        let live = sessions.iter().map(|session| session.id);
        self.roster.set_sessions(Some(self.session), live);
        let workers = sessions.iter().map(|session| session.entry.clone());
        if self.roster.update_workers(workers, now) {
            let WorkView { mine, .. } = self.roster.view();
            let (workers, assigned_shards) = (self.roster.workers(), mine.len());
            tracing::info!(workers, assigned_shards, "membership changed");
            self.ports.metric.timers.set(self.roster.timers() as f64);
        }
        Ok(())
    }

    /// Another process may have replaced the session: it has the same name and the same lock. A
    /// store that was rolled back shows a session of a dead predecessor, which does not replace another
    /// session.
    fn check_not_replaced(&mut self, sessions: &[Session]) -> Result<(), Error> {
        let mine = self.session;
        let other = sessions
            .iter()
            .find(|it| it.id.worker == mine.worker && !it.id.is_of_process_of(mine));
        let Some(other) = other else { return Ok(()) };
        self.replaced += 1;
        if self.replaced < REPLACED_SESSIONS_MAX {
            return Ok(());
        }
        Err(Error::Unusable(format!(
            "another process uses the worker name {} (session {}): give each process its own worker.name",
            self.entry.name, other.id
        )))
    }

    fn other_installation(&self, sessions: &[Session]) -> String {
        let list = |clusters: BTreeSet<&Box<str>>| {
            let texts = clusters.into_iter().map(|cluster| &**cluster);
            texts.collect::<Vec<_>>().join(", ")
        };
        let others = sessions
            .iter()
            .filter(|it| it.id.worker != self.session.worker);
        format!(
            "another installation with the same `deployment` uses it: its workers read from cluster {}, and this one \
             reads from cluster {}. Give each installation its own `deployment` or its own store. To move to another \
             cluster, stop all workers of the old one first",
            list(others.flat_map(|it| &it.entry.clusters).collect()),
            list(self.entry.clusters.iter().collect())
        )
    }

    /// Tells the other workers that this one gets no work any more. Its session stays alive, because
    /// it proves the leases that this worker still has to hand over.
    async fn depart(&mut self) {
        self.entry.roles.clear();
        self.await_sources_until = None;
        let announced = match self.heartbeats {
            0 => None,
            _ => timeout(FINAL_STORE_CALL_TIMEOUT, self.heartbeat())
                .await
                .ok(),
        };
        self.roster.set_departure(match announced {
            Some(Ok(true)) => Departure::Announced(Instant::now()),
            _ => Departure::Failed,
        });
    }

    /// Sets this worker not ready if its clock differs too much from the store's clock: it delivers
    /// late.
    fn check_clock_skew(&self, store: Timestamp) {
        let Ports {
            clock,
            clock_health,
            metric,
            skew_max,
            ..
        } = &self.ports;
        let skew_ms = clock.now().as_millis() - store.as_millis();
        metric.clock_skew_seconds.set(skew_ms as f64 / 1_000.0);
        if u128::from(skew_ms.unsigned_abs()) <= skew_max.as_millis() {
            return clock_health.set_ready();
        }
        let direction = if skew_ms > 0 { "ahead of" } else { "behind" };
        clock_health.set_not_ready(format!(
            "this machine's clock is {} ms {direction} the store's: fix the clock synchronisation",
            skew_ms.unsigned_abs()
        ));
    }

    fn publish(&self) {
        let Publisher { view, reads, .. } = &self.ports.publisher;
        view.send_if_modified(|published| {
            let is_changed = **published != *self.roster.view();
            if is_changed {
                *published = Arc::new(self.roster.view().clone());
            }
            is_changed
        });
        // The ingress of a departing worker stops by itself.
        if self.is_departing() {
            return;
        }
        for (route, assignment) in reads {
            assignment.send_if_modified(|published| {
                let current = self.roster.read_assignment(route);
                let is_changed = *published != current;
                *published = current;
                is_changed
            });
        }
    }

    /// Ends the session, so that no other worker has to wait for it.
    async fn end(mut self) {
        let end = SessionEnd {
            session: self.session,
            heartbeats: None,
        };
        let ends = [end];
        let ended = self.ports.store.end_sessions(&ends);
        if !matches!(timeout(FINAL_STORE_CALL_TIMEOUT, ended).await, Ok(Ok(()))) {
            tracing::warn!(
                session_length = ?self.ports.length,
                "session not ended: the store does not answer; other workers wait for its length"
            );
        }
        let clusters = self.ports.clusters.iter_mut();
        join_all(clusters.map(|cluster| cluster.catalog.close())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fault_injection::{self, InjectedFault};

    /// Without an answer to one heartbeat, the next one is answered before the session is over.
    fn survives_a_lost_answer(length: Duration) -> bool {
        let retry = heartbeat_timeout(length) + length / 20;
        heartbeat_interval(length) + retry + length / 3 < length
    }

    #[test]
    fn a_heartbeat_without_an_answer_is_repeated_before_the_session_is_over() {
        let lengths = [1, 5, 15, 300].map(Duration::from_secs);
        assert!(lengths.into_iter().all(survives_a_lost_answer));
        fault_injection::with([InjectedFault::RenewalOutlastsLease], || {
            assert!(!survives_a_lost_answer(lengths[1]));
        });
    }
}
