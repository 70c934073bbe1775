//! The claimer: says that this worker lives, acquires, renews and gives back leases, and tells the dispatcher which shards are its own. It
//! does not touch messages.

use super::catalogs::{self, RouteCatalog};
use super::term::LeaseDeadline;
use super::wanted::LeaseTable;
use crate::clock::Clock;
use crate::health::HealthPart;
use crate::limit::{
    FINAL_STORE_CALL_TIMEOUT, FIRST_DISCOVERY_TIMEOUT, MEMBERSHIP_INTERVAL,
    PARTITION_DISCOVERY_INTERVAL, SHUTDOWN_ANNOUNCE_MARGIN, SHUTDOWN_HANDOVER_TIMEOUT,
};
use crate::metric;
use crate::model::{Lease, LeaseToken, Progress, ShardId, Timestamp, WorkerId};
use crate::store::{Acquired, Error, LiveWorker, Renewed, Store, StoredShard};
use futures_util::future::{join, join_all};
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// What the dispatcher is told.
#[derive(Debug)]
pub(crate) enum LeaseEvent {
    /// So many shards each route has, whoever serves them.
    ShardsCounted(BTreeMap<Arc<str>, usize>),
    Granted(Box<Grant>),
    /// They are to be this worker's, and another still holds them.
    Contested(Vec<ShardId>),
    /// Another worker is to have it: its work is to be finished.
    HandOver(ShardId),
    /// Somebody else holds it, or the store forgot it: its work is to be dropped.
    Lost(ShardId),
}

/// A lease, and where its work begins.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) lease: Lease,
    pub(crate) deadline: LeaseDeadline,
    pub(crate) state: StoredShard,
    /// The greatest pair known to be delivered.
    pub(crate) start: Progress,
}

/// What the dispatcher tells of a shard that it was to finish or to drop.
#[derive(Debug)]
pub(crate) enum ReleaseResult {
    /// Its work has ended, having delivered so far.
    Ended { shard: ShardId, delivered: Progress },
    /// What is under way takes too long: its work goes on.
    Postponed(ShardId),
}

/// How a timer is told to end, and tells.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownSignals {
    stop: CancellationToken,
    pub(super) give_up: CancellationToken,
    /// For those who wait for the last that this timer delivers; cancelled sooner if other workers deliver on.
    timers_done: CancellationToken,
    /// For the dispatcher: all that could be handed over while it served was.
    pub(super) finish: CancellationToken,
}

impl ShutdownSignals {
    pub(crate) fn new(
        stop: CancellationToken,
        give_up: CancellationToken,
        timers_done: CancellationToken,
    ) -> Self {
        Self {
            stop,
            give_up,
            timers_done,
            finish: CancellationToken::new(),
        }
    }
}

/// See the module's page.
pub(crate) struct LeaseKeeper {
    pub(crate) routes: Vec<RouteCatalog>,
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    /// Whether leases can be renewed, and whether this machine's clock agrees with the store's.
    pub(crate) lease_health: HealthPart,
    pub(crate) clock_health: HealthPart,
    pub(crate) lease_length: Duration,
    pub(crate) skew_max: Duration,
    pub(crate) random: StdRng,
    pub(crate) metric: metric::TimerMetrics,
    pub(crate) events: mpsc::Sender<LeaseEvent>,
    pub(crate) release_results: mpsc::Receiver<ReleaseResult>,
}

/// When what is to be done next that comes by the clock.
struct Timetable {
    discover_at: Instant,
    heartbeat_at: Instant,
    renew_at: Instant,
    /// Until then it waits for its sources before it enrols.
    await_sources_until: Option<Instant>,
    /// A worker that departs hands over no more then.
    depart_until: Option<Instant>,
}

impl Timetable {
    fn new(now: Instant) -> Self {
        Self {
            discover_at: now,
            heartbeat_at: now,
            renew_at: now,
            await_sources_until: Some(now + FIRST_DISCOVERY_TIMEOUT),
            depart_until: None,
        }
    }

    fn next(&self) -> Instant {
        // Who departs neither looks for shards nor says that it lives.
        self.depart_until
            .unwrap_or_else(|| self.discover_at.min(self.heartbeat_at))
            .min(self.renew_at)
    }
}

impl LeaseKeeper {
    /// Serves until the dispatcher has gone, or it is told to give up; then gives all leases back. Told to stop, it first hands over what it
    /// holds, if there is another worker.
    pub(crate) async fn serve(mut self, stops: ShutdownSignals) -> Result<(), Error> {
        // Without a claimer the dispatcher has nothing to live for.
        let _finish = stops.finish.clone().drop_guard();
        let mut dates = Timetable::new(Instant::now());
        let mut wanted = LeaseTable::new(WorkerId(self.random.random()), Instant::now());
        tracing::info!(worker = %wanted.membership.me, "timer begins");
        loop {
            self.lease_health.heartbeat();
            let is_departing = dates.depart_until.is_some();
            let too_late = async {
                stops.stop.cancelled().await;
                tokio::time::sleep(FINAL_STORE_CALL_TIMEOUT).await;
            };
            // Dropped at any await: a lease that was acquired and is not noted yet runs out by itself.
            tokio::select! {
                biased;
                () = stops.give_up.cancelled() => break,
                () = too_late, if !is_departing => {}
                outcome = self.tick(&mut wanted, &mut dates, &stops) => outcome?,
            }
            let wake = wanted
                .next_wakeup(Instant::now())
                .into_iter()
                .fold(dates.next(), Instant::min);
            // All arms are safe to drop; a message that was not received stays in the channel.
            tokio::select! {
                biased;
                () = stops.stop.cancelled(), if dates.depart_until.is_none() => self.start_departure(&mut wanted, &mut dates, &stops).await,
                gave_up = self.release_results.recv() => match gave_up {
                    Some(gave_up) => self.on_release_results(&mut wanted, gave_up).await?,
                    None => break,
                },
                () = tokio::time::sleep_until(wake) => {}
            }
        }
        self.release_all(wanted).await
    }

    async fn tick(
        &mut self,
        wanted: &mut LeaseTable,
        dates: &mut Timetable,
        stops: &ShutdownSignals,
    ) -> Result<(), Error> {
        if dates.discover_at <= Instant::now() && dates.depart_until.is_none() {
            self.discover_shards(wanted, dates).await;
        }
        let outcome = match self.heartbeat_and_renew(wanted, dates).await {
            Ok(has_asked) => self
                .acquire(wanted)
                .await
                .map(|has_tried| has_asked || has_tried),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(true) => self.lease_health.set_ready(),
            // Nothing was asked, so nothing is known.
            Ok(false) => {}
            Err(error) if error.is_transient() => {
                self.lease_health
                    .set_not_ready(format!("leases cannot be renewed: {error}"));
                let soon = Instant::now() + self.lease_length / 20;
                (dates.heartbeat_at, dates.renew_at) = (soon, soon);
                if dates.depart_until.is_some() {
                    // Nothing can be handed over.
                    stops.finish.cancel();
                }
            }
            Err(error) => return Err(error),
        }
        self.start_handovers(wanted).await;
        if dates
            .depart_until
            .is_some_and(|end| end <= Instant::now() || wanted.held.is_empty())
        {
            stops.finish.cancel();
            dates.depart_until = dates
                .depart_until
                .map(|_| Instant::now() + SHUTDOWN_HANDOVER_TIMEOUT);
        }
        self.metric.leases_held.set(wanted.held.len() as f64);
        Ok(())
    }

    /// Learns which shards there are now; ones that are gone stay wanted, for messages of theirs may wait.
    async fn discover_shards(&mut self, wanted: &mut LeaseTable, dates: &mut Timetable) {
        let (shards, is_all_known) =
            catalogs::list_shards(&mut self.routes, self.lease_length / 5).await;
        let now = Instant::now();
        if wanted.add_shards(shards.into_iter(), now) {
            let _dispatcher_gone = self
                .events
                .send(LeaseEvent::ShardsCounted(wanted.shard_counts()))
                .await;
        }
        if is_all_known || dates.await_sources_until.is_some_and(|until| until <= now) {
            dates.await_sources_until = None;
        }
        dates.discover_at = now
            + if dates.await_sources_until.is_some() {
                MEMBERSHIP_INTERVAL
            } else {
                PARTITION_DISCOVERY_INTERVAL
            };
    }

    /// Says that this worker lives and renews its leases, when it is time for one or the other; both at once if it is for both. Answers
    /// whether the store was asked.
    async fn heartbeat_and_renew(
        &mut self,
        wanted: &mut LeaseTable,
        dates: &mut Timetable,
    ) -> Result<bool, Error> {
        let asked = Instant::now();
        let is_to_say = dates.heartbeat_at <= asked
            && dates.depart_until.is_none()
            && dates.await_sources_until.is_none();
        let is_to_renew = dates.renew_at <= asked;
        let leases: Vec<_> = wanted
            .held
            .values()
            .filter(|_| is_to_renew)
            .map(|held| held.lease.clone())
            .collect();
        let has_asked = is_to_say || !leases.is_empty();
        let store = self.store.clone();
        let say = async {
            if is_to_say {
                store
                    .heartbeat_worker(wanted.membership.me, self.lease_length)
                    .await
                    .map(Some)
            } else {
                Ok(None)
            }
        };
        let renew = async {
            if leases.is_empty() {
                Ok(Vec::new())
            } else {
                store.renew(&leases, self.lease_length).await
            }
        };
        let (peers, outcomes) = join(say, renew).await;
        for (lease, outcome) in leases.into_iter().zip(outcomes?) {
            self.on_renewed(wanted, lease, outcome, asked).await;
        }
        if is_to_renew {
            dates.renew_at = asked + self.lease_length / 3;
        }
        if let Some(peers) = peers? {
            dates.heartbeat_at = self.update_membership(wanted, &peers, asked);
        } else if dates.heartbeat_at <= asked {
            dates.heartbeat_at = asked + self.heartbeat_interval();
        }
        Ok(has_asked)
    }

    fn heartbeat_interval(&self) -> Duration {
        MEMBERSHIP_INTERVAL.min(self.lease_length / 5)
    }

    /// Learns who lives; answers when to ask again: at the latest when one of the others would live no longer.
    fn update_membership(
        &mut self,
        wanted: &mut LeaseTable,
        peers: &[LiveWorker],
        asked: Instant,
    ) -> Instant {
        let now = Instant::now();
        if wanted.update_workers(peers, now) {
            let (workers, shards) = (
                wanted.membership.worker_count(),
                wanted.membership.assigned_count(),
            );
            tracing::info!(
                workers,
                shards,
                held = wanted.held.len(),
                "the fleet has changed: so many of the shards are to be here"
            );
            self.metric.workers.set(workers as f64);
        }
        let others = peers
            .iter()
            .filter(|peer| peer.worker != wanted.membership.me);
        let first_end = others
            .map(|peer| now + peer.expires_in + Duration::from_millis(2))
            .min();
        first_end
            .into_iter()
            .fold(asked + self.heartbeat_interval(), Instant::min)
    }

    async fn on_renewed(
        &mut self,
        wanted: &mut LeaseTable,
        lease: Lease,
        outcome: Renewed,
        asked: Instant,
    ) {
        match outcome {
            Renewed::Renewed { now } => {
                self.check_clock_skew(now);
                if let Some(held) = wanted.held.get(&lease.shard) {
                    held.deadline.extend(asked, self.lease_length);
                }
            }
            Renewed::Fenced | Renewed::Unknown => {
                tracing::warn!(shard = %lease.shard, ?outcome, "lease lost");
                self.metric.leases_lost.increment(1);
                wanted.held.remove(&lease.shard);
                wanted.stopping.insert(lease.shard.clone());
                let _dispatcher_gone = self.events.send(LeaseEvent::Lost(lease.shard)).await;
            }
        }
    }

    /// Answers whether there was anything to try.
    async fn acquire(&mut self, wanted: &mut LeaseTable) -> Result<bool, Error> {
        let asked = Instant::now();
        let shards = wanted.next_to_acquire(asked, self.lease_length / 20);
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
        let (mut granted, mut contested) = (Vec::new(), Vec::new());
        for (lease, outcome) in leases.into_iter().zip(outcomes) {
            let is_newly_contested = wanted
                .acquire_schedule
                .on_attempt(&lease.shard, outcome == Acquired::HeldByOther);
            if let Acquired::Granted { state, now } = outcome {
                self.check_clock_skew(now);
                granted.push((lease, state));
            } else if is_newly_contested && wanted.membership.is_mine(&lease.shard) {
                contested.push(lease.shard);
            }
        }
        self.start_shards(wanted, granted, asked).await;
        if !contested.is_empty() {
            let _dispatcher_gone = self.events.send(LeaseEvent::Contested(contested)).await;
        }
        Ok(true)
    }

    /// What was granted becomes the dispatcher's.
    async fn start_shards(
        &mut self,
        wanted: &mut LeaseTable,
        granted: Vec<(Lease, StoredShard)>,
        asked: Instant,
    ) {
        let shards: Vec<_> = granted.iter().map(|(lease, _)| &lease.shard).collect();
        let committed =
            catalogs::read_committed(&mut self.routes, &shards, self.lease_length / 5).await;
        for (lease, state) in granted {
            let term = LeaseDeadline::new(asked, self.lease_length);
            let start = catalogs::start_position(
                &state,
                committed.get(&lease.shard),
                wanted.last_delivered.get(&lease.shard),
            );
            tracing::info!(shard = %lease.shard, watermark = %state.watermark, "lease acquired");
            self.metric.leases_acquired.increment(1);
            wanted
                .last_delivered
                .insert(lease.shard.clone(), (state.identity.clone(), start));
            wanted.insert_held(lease.clone(), term.clone());
            let _dispatcher_gone = self
                .events
                .send(LeaseEvent::Granted(Box::new(Grant {
                    lease,
                    deadline: term,
                    state,
                    start,
                })))
                .await;
        }
    }

    /// Lets go of shards that other workers are to have.
    async fn start_handovers(&mut self, wanted: &mut LeaseTable) {
        for shard in wanted.next_handovers(Instant::now()) {
            tracing::info!(%shard, "shard is to be handed over: what is claimed of it is finished first");
            let _dispatcher_gone = self.events.send(LeaseEvent::HandOver(shard)).await;
        }
    }

    /// Parts with what the dispatcher gave up: what was to be handed over is another's to take from this moment.
    async fn on_release_results(
        &mut self,
        wanted: &mut LeaseTable,
        first: ReleaseResult,
    ) -> Result<(), Error> {
        let (mut next, mut leases, now) = (Some(first), Vec::new(), Instant::now());
        while let Some(gave_up) = next {
            match gave_up {
                ReleaseResult::Ended {
                    shard,
                    delivered: finished,
                } => {
                    wanted.stopping.remove(&shard);
                    if let Some((_, own)) = wanted.last_delivered.get_mut(&shard) {
                        *own = finished;
                    }
                    if let Some(held) = wanted.held.remove(&shard)
                        && let Some(since) = held.handover_since
                    {
                        tracing::info!(%shard, took_ms = now.duration_since(since).as_millis() as u64, "shard handed over");
                        self.metric.leases_handed_over.increment(1);
                        leases.push(held.lease);
                    }
                }
                ReleaseResult::Postponed(shard) => {
                    tracing::info!(%shard, "shard not handed over: what is under way takes too long, so it is served on for now");
                    self.metric.handovers_postponed.increment(1);
                    wanted.postpone_handover(&shard, now);
                }
            }
            next = self.release_results.try_recv().ok();
        }
        if leases.is_empty() {
            return Ok(());
        }
        match self.store.release(&leases).await {
            Err(error) if error.is_transient() => {
                tracing::warn!(
                    leases = leases.len(),
                    "leases not released, others can take the shards {:?} from now: {error}",
                    self.lease_length
                );
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// This worker is to end. If there are others they are told, and are handed over to what it holds; else it is finished here.
    async fn start_departure(
        &mut self,
        wanted: &mut LeaseTable,
        dates: &mut Timetable,
        stops: &ShutdownSignals,
    ) {
        let now = Instant::now();
        dates.depart_until = Some(now + SHUTDOWN_HANDOVER_TIMEOUT);
        wanted.departs_at = Some(now + self.heartbeat_interval() + SHUTDOWN_ANNOUNCE_MARGIN);
        let is_last = wanted.membership.is_alone() || wanted.held.is_empty();
        if is_last {
            stops.finish.cancel();
        } else {
            tracing::info!(
                shards = wanted.held.len(),
                "timer is to end: handing its shards over"
            );
            stops.timers_done.cancel();
        }
        if !matches!(
            timeout(
                FINAL_STORE_CALL_TIMEOUT,
                self.store.remove_worker(wanted.membership.me)
            )
            .await,
            Ok(Ok(()))
        ) {
            // The others learn of it when it is not heard of any more: nobody would take what was handed over before.
            stops.finish.cancel();
        }
    }

    /// A store that is away keeps nobody from ending: leases that are not given back run out.
    async fn release_all(mut self, wanted: LeaseTable) -> Result<(), Error> {
        let leases: Vec<_> = wanted.held.into_values().map(|held| held.lease).collect();
        let released = timeout(FINAL_STORE_CALL_TIMEOUT, self.store.release(&leases)).await;
        join_all(self.routes.iter_mut().map(|route| route.catalog.close())).await;
        let kept = match released {
            Ok(Ok(())) => {
                tracing::info!(leases = leases.len(), "leases released");
                return Ok(());
            }
            Ok(Err(error)) if error.is_transient() => error.to_string(),
            Ok(Err(error)) => return Err(error),
            Err(_) => "the store does not answer in time".to_owned(),
        };
        tracing::warn!(
            leases = leases.len(),
            "leases not released, others can take the shards {:?} from now: {kept}",
            self.lease_length
        );
        Ok(())
    }

    /// Clocks that differ too much make this worker not ready: claims of one that is ahead are refused by the store.
    fn check_clock_skew(&self, store: Timestamp) {
        let here = self.clock.now();
        let skew = here.as_millis() - store.as_millis();
        self.metric.clock_skew_seconds.set(skew as f64 / 1_000.0);
        if skew.unsigned_abs() > u64::try_from(self.skew_max.as_millis()).unwrap_or(u64::MAX) {
            let direction = if skew > 0 { "ahead of" } else { "behind" };
            let reason = format!(
                "this machine's clock is {} ms {direction} the store's: mend the clock synchronisation",
                skew.unsigned_abs()
            );
            self.clock_health.set_not_ready(reason);
        } else {
            self.clock_health.set_ready();
        }
    }
}
