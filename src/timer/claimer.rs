//! The claimer: says that this worker lives, acquires, renews and gives back leases, and tells the dispatcher which shards are its own. It
//! does not touch messages.

use super::catalogs::{self, Claimable};
use super::term::Term;
use super::wanted::Wanted;
use crate::clock::Clock;
use crate::health::Part;
use crate::limit::{
    CATALOG_INTERVAL, DEPART_MAX, DEPART_SPARE, ENROL_PATIENCE, LAST_CALL_MAX, ROLL_INTERVAL,
};
use crate::metric;
use crate::model::{Claim, Lease, ShardId, Timestamp, Token, Worker};
use crate::store::{Acquired, Error, Peer, Renewed, State, Store};
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
pub(crate) enum Holding {
    /// So many shards each route has, whoever serves them.
    Counted(BTreeMap<Arc<str>, usize>),
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
    pub(crate) term: Term,
    pub(crate) state: State,
    /// The greatest pair known to be delivered.
    pub(crate) start: Claim,
}

/// What the dispatcher tells of a shard that it was to finish or to drop.
#[derive(Debug)]
pub(crate) enum GaveUp {
    /// Its work has ended, having delivered so far.
    Ended { shard: ShardId, finished: Claim },
    /// What is under way takes too long: its work goes on.
    PutOff(ShardId),
}

/// How a timer is told to end, and tells.
#[derive(Clone, Debug)]
pub(crate) struct Stops {
    stop: CancellationToken,
    pub(super) give_up: CancellationToken,
    /// For those who wait for the last that this timer delivers; cancelled sooner if other workers deliver on.
    timers_done: CancellationToken,
    /// For the dispatcher: all that could be handed over while it served was.
    pub(super) finish: CancellationToken,
}

impl Stops {
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
pub(crate) struct Claimer {
    pub(crate) routes: Vec<Claimable>,
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    /// Whether leases can be renewed, and whether this machine's clock agrees with the store's.
    pub(crate) leases: Part,
    pub(crate) clocks: Part,
    pub(crate) lease: Duration,
    pub(crate) skew_max: Duration,
    pub(crate) random: StdRng,
    pub(crate) metric: metric::Timer,
    pub(crate) holdings: mpsc::Sender<Holding>,
    pub(crate) gave_up: mpsc::Receiver<GaveUp>,
}

/// When what is to be done next that comes by the clock.
struct Dates {
    catalog: Instant,
    roll: Instant,
    renewal: Instant,
    /// Until then it waits for its sources before it enrols.
    patience: Option<Instant>,
    /// A worker that departs hands over no more then.
    end: Option<Instant>,
}

impl Dates {
    fn new(now: Instant) -> Self {
        Self {
            catalog: now,
            roll: now,
            renewal: now,
            patience: Some(now + ENROL_PATIENCE),
            end: None,
        }
    }

    fn next(&self) -> Instant {
        // Who departs neither looks for shards nor says that it lives.
        self.end
            .unwrap_or_else(|| self.catalog.min(self.roll))
            .min(self.renewal)
    }
}

impl Claimer {
    /// Serves until the dispatcher has gone, or it is told to give up; then gives all leases back. Told to stop, it first hands over what it
    /// holds, if there is another worker.
    pub(crate) async fn serve(mut self, stops: Stops) -> Result<(), Error> {
        // Without a claimer the dispatcher has nothing to live for.
        let _finish = stops.finish.clone().drop_guard();
        let mut dates = Dates::new(Instant::now());
        let mut wanted = Wanted::new(Worker(self.random.random()), Instant::now());
        tracing::info!(worker = %wanted.fleet.me, "timer begins");
        loop {
            self.leases.beat();
            let is_departing = dates.end.is_some();
            let too_late = async {
                stops.stop.cancelled().await;
                tokio::time::sleep(LAST_CALL_MAX).await;
            };
            // Dropped at any await: a lease that was acquired and is not noted yet runs out by itself.
            tokio::select! {
                biased;
                () = stops.give_up.cancelled() => break,
                () = too_late, if !is_departing => {}
                outcome = self.turn(&mut wanted, &mut dates, &stops) => outcome?,
            }
            let wake = wanted
                .next_at(Instant::now())
                .into_iter()
                .fold(dates.next(), Instant::min);
            // All arms are safe to drop; a message that was not received stays in the channel.
            tokio::select! {
                biased;
                () = stops.stop.cancelled(), if dates.end.is_none() => self.depart(&mut wanted, &mut dates, &stops).await,
                gave_up = self.gave_up.recv() => match gave_up {
                    Some(gave_up) => self.part(&mut wanted, gave_up).await?,
                    None => break,
                },
                () = tokio::time::sleep_until(wake) => {}
            }
        }
        self.release(wanted).await
    }

    async fn turn(
        &mut self,
        wanted: &mut Wanted,
        dates: &mut Dates,
        stops: &Stops,
    ) -> Result<(), Error> {
        if dates.catalog <= Instant::now() && dates.end.is_none() {
            self.look_up(wanted, dates).await;
        }
        let outcome = match self.say_and_renew(wanted, dates).await {
            Ok(has_asked) => self
                .acquire(wanted)
                .await
                .map(|has_tried| has_asked || has_tried),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(true) => self.leases.ready(),
            // Nothing was asked, so nothing is known.
            Ok(false) => {}
            Err(error) if error.is_transient() => {
                self.leases
                    .not_ready(format!("leases cannot be renewed: {error}"));
                let soon = Instant::now() + self.lease / 20;
                (dates.roll, dates.renewal) = (soon, soon);
                if dates.end.is_some() {
                    // Nothing can be handed over.
                    stops.finish.cancel();
                }
            }
            Err(error) => return Err(error),
        }
        self.begin_to_hand_over(wanted).await;
        if dates
            .end
            .is_some_and(|end| end <= Instant::now() || wanted.held.is_empty())
        {
            stops.finish.cancel();
            dates.end = dates.end.map(|_| Instant::now() + DEPART_MAX);
        }
        self.metric.leases_held.set(wanted.held.len() as f64);
        Ok(())
    }

    /// Learns which shards there are now; ones that are gone stay wanted, for messages of theirs may wait.
    async fn look_up(&mut self, wanted: &mut Wanted, dates: &mut Dates) {
        let (shards, is_all_known) = catalogs::shards(&mut self.routes, self.lease / 5).await;
        let now = Instant::now();
        if wanted.add(shards.into_iter(), now) {
            let _dispatcher_gone = self.holdings.send(Holding::Counted(wanted.count())).await;
        }
        if is_all_known || dates.patience.is_some_and(|until| until <= now) {
            dates.patience = None;
        }
        dates.catalog = now
            + if dates.patience.is_some() {
                ROLL_INTERVAL
            } else {
                CATALOG_INTERVAL
            };
    }

    /// Says that this worker lives and renews its leases, when it is time for one or the other; both at once if it is for both. Answers
    /// whether the store was asked.
    async fn say_and_renew(
        &mut self,
        wanted: &mut Wanted,
        dates: &mut Dates,
    ) -> Result<bool, Error> {
        let asked = Instant::now();
        let is_to_say = dates.roll <= asked && dates.end.is_none() && dates.patience.is_none();
        let is_to_renew = dates.renewal <= asked;
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
                store.enrol(wanted.fleet.me, self.lease).await.map(Some)
            } else {
                Ok(None)
            }
        };
        let renew = async {
            if leases.is_empty() {
                Ok(Vec::new())
            } else {
                store.renew(&leases, self.lease).await
            }
        };
        let (peers, outcomes) = join(say, renew).await;
        for (lease, outcome) in leases.into_iter().zip(outcomes?) {
            self.renewed(wanted, lease, outcome, asked).await;
        }
        if is_to_renew {
            dates.renewal = asked + self.lease / 3;
        }
        if let Some(peers) = peers? {
            dates.roll = self.meet(wanted, &peers, asked);
        } else if dates.roll <= asked {
            dates.roll = asked + self.roll_interval();
        }
        Ok(has_asked)
    }

    fn roll_interval(&self) -> Duration {
        ROLL_INTERVAL.min(self.lease / 5)
    }

    /// Learns who lives; answers when to ask again: at the latest when one of the others would live no longer.
    fn meet(&mut self, wanted: &mut Wanted, peers: &[Peer], asked: Instant) -> Instant {
        let now = Instant::now();
        if wanted.learn(peers, now) {
            let (workers, shards) = (wanted.fleet.workers(), wanted.fleet.mine());
            tracing::info!(
                workers,
                shards,
                held = wanted.held.len(),
                "the fleet has changed: so many of the shards are to be here"
            );
            self.metric.workers.set(workers as f64);
        }
        let others = peers.iter().filter(|peer| peer.worker != wanted.fleet.me);
        let first_end = others
            .map(|peer| now + peer.left + Duration::from_millis(2))
            .min();
        first_end
            .into_iter()
            .fold(asked + self.roll_interval(), Instant::min)
    }

    async fn renewed(
        &mut self,
        wanted: &mut Wanted,
        lease: Lease,
        outcome: Renewed,
        asked: Instant,
    ) {
        match outcome {
            Renewed::Renewed { now } => {
                self.compare_clocks(now);
                if let Some(held) = wanted.held.get(&lease.shard) {
                    held.term.extend(asked, self.lease);
                }
            }
            Renewed::Fenced | Renewed::Unknown => {
                tracing::warn!(shard = %lease.shard, ?outcome, "lease lost");
                self.metric.leases_lost.increment(1);
                wanted.held.remove(&lease.shard);
                wanted.leaving.insert(lease.shard.clone());
                let _dispatcher_gone = self.holdings.send(Holding::Lost(lease.shard)).await;
            }
        }
    }

    /// Answers whether there was anything to try.
    async fn acquire(&mut self, wanted: &mut Wanted) -> Result<bool, Error> {
        let asked = Instant::now();
        let shards = wanted.next_to_take(asked, self.lease / 20);
        if shards.is_empty() {
            return Ok(false);
        }
        let leases: Vec<_> = shards
            .into_iter()
            .map(|shard| Lease {
                shard,
                token: Token(self.random.random()),
            })
            .collect();
        let outcomes = self.store.acquire(&leases, self.lease).await?;
        let (mut granted, mut contested) = (Vec::new(), Vec::new());
        for (lease, outcome) in leases.into_iter().zip(outcomes) {
            let is_newly_contested = wanted.tries.tried(&lease.shard, outcome == Acquired::Held);
            if let Acquired::Granted { state, now } = outcome {
                self.compare_clocks(now);
                granted.push((lease, state));
            } else if is_newly_contested && wanted.fleet.is_mine(&lease.shard) {
                contested.push(lease.shard);
            }
        }
        self.begin(wanted, granted, asked).await;
        if !contested.is_empty() {
            let _dispatcher_gone = self.holdings.send(Holding::Contested(contested)).await;
        }
        Ok(true)
    }

    /// What was granted becomes the dispatcher's.
    async fn begin(&mut self, wanted: &mut Wanted, granted: Vec<(Lease, State)>, asked: Instant) {
        let shards: Vec<_> = granted.iter().map(|(lease, _)| &lease.shard).collect();
        let committed = catalogs::committed(&mut self.routes, &shards, self.lease / 5).await;
        for (lease, state) in granted {
            let term = Term::new(asked, self.lease);
            let start = catalogs::start(
                &state,
                committed.get(&lease.shard),
                wanted.own.get(&lease.shard),
            );
            tracing::info!(shard = %lease.shard, watermark = %state.watermark, "lease acquired");
            self.metric.leases_taken.increment(1);
            wanted
                .own
                .insert(lease.shard.clone(), (state.identity.clone(), start));
            wanted.take(lease.clone(), term.clone());
            let _dispatcher_gone = self
                .holdings
                .send(Holding::Granted(Box::new(Grant {
                    lease,
                    term,
                    state,
                    start,
                })))
                .await;
        }
    }

    /// Lets go of shards that other workers are to have.
    async fn begin_to_hand_over(&mut self, wanted: &mut Wanted) {
        for shard in wanted.next_to_hand_over(Instant::now()) {
            tracing::info!(%shard, "shard is to be handed over: what is claimed of it is finished first");
            let _dispatcher_gone = self.holdings.send(Holding::HandOver(shard)).await;
        }
    }

    /// Parts with what the dispatcher gave up: what was to be handed over is another's to take from this moment.
    async fn part(&mut self, wanted: &mut Wanted, first: GaveUp) -> Result<(), Error> {
        let (mut next, mut leases, now) = (Some(first), Vec::new(), Instant::now());
        while let Some(gave_up) = next {
            match gave_up {
                GaveUp::Ended { shard, finished } => {
                    wanted.leaving.remove(&shard);
                    if let Some((_, own)) = wanted.own.get_mut(&shard) {
                        *own = finished;
                    }
                    if let Some(held) = wanted.held.remove(&shard)
                        && let Some(since) = held.handing
                    {
                        tracing::info!(%shard, took_ms = now.duration_since(since).as_millis() as u64, "shard handed over");
                        self.metric.leases_handed_over.increment(1);
                        leases.push(held.lease);
                    }
                }
                GaveUp::PutOff(shard) => {
                    tracing::info!(%shard, "shard not handed over: what is under way takes too long, so it is served on for now");
                    self.metric.hand_overs_put_off.increment(1);
                    wanted.put_off(&shard, now);
                }
            }
            next = self.gave_up.try_recv().ok();
        }
        if leases.is_empty() {
            return Ok(());
        }
        match self.store.release(&leases).await {
            Err(error) if error.is_transient() => {
                tracing::warn!(
                    leases = leases.len(),
                    "leases not released, others can take the shards {:?} from now: {error}",
                    self.lease
                );
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// This worker is to end. If there are others they are told, and are handed over to what it holds; else it is finished here.
    async fn depart(&mut self, wanted: &mut Wanted, dates: &mut Dates, stops: &Stops) {
        let now = Instant::now();
        dates.end = Some(now + DEPART_MAX);
        wanted.departs = Some(now + self.roll_interval() + DEPART_SPARE);
        let is_last = wanted.fleet.is_alone() || wanted.held.is_empty();
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
            timeout(LAST_CALL_MAX, self.store.resign(wanted.fleet.me)).await,
            Ok(Ok(()))
        ) {
            // The others learn of it when it is not heard of any more: nobody would take what was handed over before.
            stops.finish.cancel();
        }
    }

    /// A store that is away keeps nobody from ending: leases that are not given back run out.
    async fn release(mut self, wanted: Wanted) -> Result<(), Error> {
        let leases: Vec<_> = wanted.held.into_values().map(|held| held.lease).collect();
        let released = timeout(LAST_CALL_MAX, self.store.release(&leases)).await;
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
            self.lease
        );
        Ok(())
    }

    /// Clocks that differ too much make this worker not ready: claims of one that is ahead are refused by the store.
    fn compare_clocks(&self, store: Timestamp) {
        let here = self.clock.now();
        let skew = here.as_millis() - store.as_millis();
        self.metric.clock_skew.set(skew as f64 / 1_000.0);
        if skew.unsigned_abs() > u64::try_from(self.skew_max.as_millis()).unwrap_or(u64::MAX) {
            let direction = if skew > 0 { "ahead of" } else { "behind" };
            let reason = format!(
                "this machine's clock is {} ms {direction} the store's: mend the clock synchronisation",
                skew.unsigned_abs()
            );
            self.clocks.not_ready(reason);
        } else {
            self.clocks.ready();
        }
    }
}
