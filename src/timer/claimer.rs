//! The claimer: acquires, renews and gives back leases, and tells the dispatcher which shards are its own. It does not touch messages.

use crate::broker::{self, Catalog};
use crate::clock::Clock;
use crate::health::Part;
use crate::limit::{CATALOG_INTERVAL, LAST_CALL_MAX};
use crate::metric;
use crate::model::{Claim, Committed, Identity, Lease, Partition, ShardId, Timestamp, Token};
use crate::store::{Acquired, Error, Renewed, State, Store};
use futures_util::future::join_all;
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The shards of one route, as far as a claimer cares.
pub(crate) struct Claimable {
    pub(crate) route: Arc<str>,
    pub(crate) topics: Vec<String>,
    /// Where the ingress of the route commits.
    pub(crate) group: String,
    pub(crate) catalog: Box<dyn Catalog>,
    pub(crate) health: Part,
}

/// What the dispatcher is told.
#[derive(Debug)]
pub(crate) enum Holding {
    Granted(Grant),
    /// Somebody else holds it, or the store forgot it: its work is to be dropped.
    Lost(ShardId),
}

/// A lease, and where its work begins.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) lease: Lease,
    pub(crate) state: State,
    /// The greatest pair known to be delivered.
    pub(crate) start: Claim,
}

/// What the dispatcher tells: a shard's work has ended, having delivered so far.
#[derive(Debug)]
pub(crate) struct GaveUp {
    pub(crate) shard: ShardId,
    pub(crate) finished: Claim,
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

/// A lease, and its metric, which is 0 again when this is dropped.
struct Held {
    lease: Lease,
    _metric: metric::LeaseHeld,
}

/// What a claimer knows of the shards it wants.
#[derive(Default)]
struct Wanted {
    shards: Vec<ShardId>,
    held: BTreeMap<ShardId, Held>,
    /// The last pair that this process itself finished: it may be ahead of what a store that went back remembers. It speaks of one
    /// incarnation of the source; the offsets of the next one mean other messages.
    own: BTreeMap<ShardId, (Identity, Claim)>,
    /// Told to be dropped, and not yet.
    leaving: BTreeMap<ShardId, Lease>,
}

impl Claimer {
    /// Serves until the dispatcher has gone, or `give_up` is cancelled; then gives all leases back.
    pub(crate) async fn serve(mut self, give_up: CancellationToken) -> Result<(), Error> {
        let mut wanted = Wanted::default();
        let mut next_catalog = Instant::now();
        loop {
            self.leases.beat();
            // Dropped at any await: a lease that was acquired and is not noted yet runs out by itself.
            tokio::select! {
                biased;
                () = give_up.cancelled() => break,
                outcome = self.turn(&mut wanted, &mut next_catalog) => outcome?,
            }
            let all_held = wanted.held.len() == wanted.shards.len();
            let wait = if all_held { self.lease / 5 } else { self.lease / 20 };
            // Both arms are safe to drop; a message that was not received stays in the channel.
            tokio::select! {
                biased;
                gave_up = self.gave_up.recv() => match gave_up {
                    Some(GaveUp { shard, finished }) => {
                        wanted.held.remove(&shard);
                        wanted.leaving.remove(&shard);
                        if let Some((_, own)) = wanted.own.get_mut(&shard) {
                            *own = finished;
                        }
                    }
                    None => break,
                },
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.release(wanted).await
    }

    /// A store that is away keeps nobody from ending: leases that are not given back run out.
    async fn release(mut self, wanted: Wanted) -> Result<(), Error> {
        let leases: Vec<_> = wanted.held.into_values().map(|held| held.lease).collect();
        let released = tokio::time::timeout(LAST_CALL_MAX, self.store.release(&leases)).await;
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
        tracing::warn!(leases = leases.len(), "leases not released, others can take the shards {:?} from now: {kept}", self.lease);
        Ok(())
    }

    async fn turn(&mut self, wanted: &mut Wanted, next_catalog: &mut Instant) -> Result<(), Error> {
        if Instant::now() >= *next_catalog {
            *next_catalog = Instant::now() + CATALOG_INTERVAL;
            self.look_up(wanted).await;
        }
        self.round(wanted).await
    }

    /// Learns which partitions there are now; ones that are gone stay wanted, for messages of theirs may wait.
    async fn look_up(&mut self, wanted: &mut Wanted) {
        for route in &mut self.routes {
            match route.catalog.partitions(&route.topics).await {
                Ok(partitions) => {
                    route.health.ready();
                    for partition in partitions {
                        let shard = ShardId::new(route.route.clone(), partition);
                        if let Err(at) = wanted.shards.binary_search(&shard) {
                            wanted.shards.insert(at, shard);
                        }
                    }
                }
                Err(error) => route.health.not_ready(format!("the source's partitions are not known: {error}")),
            }
        }
    }

    async fn round(&mut self, wanted: &mut Wanted) -> Result<(), Error> {
        let outcome = match self.renew(wanted).await {
            Ok(()) => self.acquire(wanted).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => self.leases.ready(),
            Err(error) if error.is_transient() => self.leases.not_ready(format!("leases cannot be renewed: {error}")),
            Err(error) => return Err(error),
        }
        self.metric.leases_held.set(wanted.held.len() as f64);
        Ok(())
    }

    async fn renew(&mut self, wanted: &mut Wanted) -> Result<(), Error> {
        let leases: Vec<_> = wanted.held.values().map(|held| held.lease.clone()).collect();
        if leases.is_empty() {
            return Ok(());
        }
        let outcomes = self.store.renew(&leases, self.lease).await?;
        for (lease, outcome) in leases.into_iter().zip(outcomes) {
            match outcome {
                Renewed::Renewed { now } => self.compare_clocks(now),
                Renewed::Fenced | Renewed::Unknown => {
                    tracing::warn!(shard = %lease.shard, ?outcome, "lease lost");
                    wanted.held.remove(&lease.shard);
                    wanted.leaving.insert(lease.shard.clone(), lease.clone());
                    let _dispatcher_gone = self.holdings.send(Holding::Lost(lease.shard)).await;
                }
            }
        }
        Ok(())
    }

    async fn acquire(&mut self, wanted: &mut Wanted) -> Result<(), Error> {
        let free = wanted.shards.iter().filter(|shard| !wanted.held.contains_key(*shard) && !wanted.leaving.contains_key(*shard));
        let leases: Vec<_> = free.map(|shard| Lease { shard: shard.clone(), token: Token(self.random.random()) }).collect();
        if leases.is_empty() {
            return Ok(());
        }
        let outcomes = self.store.acquire(&leases, self.lease).await?;
        for (lease, outcome) in leases.into_iter().zip(outcomes) {
            if let Acquired::Granted { state, now } = outcome {
                self.compare_clocks(now);
                let start = self.start(&lease.shard, &state, wanted).await;
                tracing::info!(shard = %lease.shard, watermark = %state.watermark, "lease acquired");
                let held = Held { lease: lease.clone(), _metric: metric::LeaseHeld::new(&lease.shard) };
                wanted.held.insert(lease.shard.clone(), held);
                wanted.own.insert(lease.shard.clone(), (state.identity.clone(), start));
                let _dispatcher_gone = self.holdings.send(Holding::Granted(Grant { lease, state, start })).await;
            }
        }
        Ok(())
    }

    /// The greatest of the pairs that the store, the last commit and this process itself know to be delivered.
    async fn start(&mut self, shard: &ShardId, state: &State, wanted: &Wanted) -> Claim {
        let own = wanted.own.get(shard).filter(|(identity, _)| *identity == state.identity).map_or(Claim::START, |(_, own)| *own);
        let committed = match self.committed(shard).await {
            Ok(Some(committed)) if committed.identity.as_ref().is_none_or(|identity| *identity == state.identity) => committed.delivered,
            Ok(_) => Claim::START,
            Err(error) => {
                // It could only have saved duplicates after a rollback; the store's own pair is true as well.
                tracing::warn!(%shard, "what was committed is not known, the store's pair is used: {error}");
                Claim::START
            }
        };
        state.delivered.greatest(committed).greatest(own)
    }

    async fn committed(&mut self, shard: &ShardId) -> Result<Option<Committed>, broker::Error> {
        let Some(route) = self.routes.iter_mut().find(|route| route.route == shard.route) else { return Ok(None) };
        let partition: [Partition; 1] = [shard.partition.clone()];
        let metadata = route.catalog.committed(&route.group, &partition).await?;
        Ok(metadata.into_iter().next().flatten().as_deref().and_then(Committed::parse))
    }

    /// Clocks that differ too much make this worker not ready: claims of one that is ahead are refused by the store.
    fn compare_clocks(&self, store: Timestamp) {
        let here = self.clock.now();
        let skew = here.as_millis() - store.as_millis();
        self.metric.clock_skew.set(skew as f64 / 1_000.0);
        if skew.unsigned_abs() > u64::try_from(self.skew_max.as_millis()).unwrap_or(u64::MAX) {
            let direction = if skew > 0 { "ahead of" } else { "behind" };
            let reason =
                format!("this machine's clock is {} ms {direction} the store's: mend the clock synchronisation", skew.unsigned_abs());
            self.clocks.not_ready(reason);
        } else {
            self.clocks.ready();
        }
    }
}
