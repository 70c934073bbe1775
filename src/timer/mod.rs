//! The timer: leases shards, loads messages that are due soon, and delivers each at its due time.
//!
//! | module | duty | thread |
//! |---|---|---|
//! | `lease` | acquires and releases leases | timer |
//! | `dispatcher`, `claim_call` | owns the shards, claims, and drives the modules below | timer |
//! | `shard` | state and decisions of one shard, without I/O | timer |
//! | `delivery`, `exactly_once` | sends messages and handles reports | timer |
//! | `recurring` | reads the definitions of recurring routes | definitions |
//! | `load` | reads runs that are due soon; the dispatcher keeps its memory budget | loader |
//! | `compactor` | merges and splits runs that are not due soon | compactor |
//!
//! Bounded channels connect the threads.

mod claim_call;
mod compactor;
mod delivery;
mod dispatcher;
mod exactly_once;
mod handover;
mod lease;
mod load;
mod quota;
mod recurring;
mod run_replacement;
mod shard;
mod shard_slots;

use crate::broker::send_budget::SendBudget;
use crate::encryption::KeyRing;
use crate::metric;
use crate::model::RoutingRules;
use crate::outcomes::OutcomeTopic;
use crate::trace::Tracer;
use futures_util::future::{Fuse, LocalBoxFuture};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use compactor::{CompactionPolicy, CompactionReply, CompactionTask, Compactor};
pub(crate) use delivery::alerts::DeliveryAlerts;
pub(crate) use delivery::producers::Producers;
pub(crate) use delivery::retry::RetryPolicy;
pub(crate) use dispatcher::{Dispatcher, Ports};
pub(crate) use lease::{LeaseEvent, LeaseKeeper, ReleaseResult, RouteCatalog};
pub(crate) use load::{Loader, MemoryBudget};
pub(crate) use recurring::{
    DefinitionBatch, DefinitionReader, DefinitionReadings, ReadingsByRoute,
};

/// A store call that runs beside the dispatcher's loop, so that due messages do not wait for it.
/// There is at most one of each kind. A call that has ended stays pending for ever.
type StoreCall<T> = Fuse<LocalBoxFuture<'static, T>>;

pub(crate) struct Options {
    pub(crate) deployment: String,
    pub(crate) keys: KeyRing,
    pub(crate) routes: BTreeMap<Arc<str>, Rc<RouteOptions>>,
    /// Bytes of loaded messages over all shards.
    pub(crate) memory: usize,
    /// The budgets of all producers, for the metrics.
    pub(crate) send_budgets: Vec<Arc<SendBudget>>,
    /// The store accepts claims up to this far ahead of its time.
    pub(crate) skew_max: Duration,
}

pub(crate) struct RouteOptions {
    pub(crate) rules: RoutingRules,
    pub(crate) dead_letter: String,
    pub(crate) retry: RetryPolicy,
    /// A message whose first delivery would be this late is dead-lettered.
    pub(crate) overdue_after: Option<Duration>,
    /// A message whose `postdate-until` has passed is dropped instead of dead-lettered.
    pub(crate) drops_expired: bool,
    /// Messages per second that all workers together claim. A reload of the configuration changes it.
    pub(crate) rate: watch::Receiver<Option<u32>>,
    /// Messages per second that all workers together claim while they catch up after an outage. A
    /// reload of the configuration changes it.
    pub(crate) catch_up_rate: watch::Receiver<Option<u32>>,
    pub(crate) source_cluster: String,
    pub(crate) target_cluster: String,
    pub(crate) dead_letter_cluster: String,
    /// Exactly-once: the consumer group in which the markers of the shards are committed.
    pub(crate) marker_group: Option<String>,
    /// The topics that the route names: target, dead letters, and full names on the allow-list.
    pub(crate) known_topics: Arc<[String]>,
    pub(crate) metric: metric::RouteMetrics,
    pub(crate) tracer: Tracer,
    /// Gets the records of the ends of messages.
    pub(crate) outcomes: Option<OutcomeTopic>,
    pub(crate) alerts: DeliveryAlerts,
}

/// The tokens that stop a timer, and the tokens with which it reports its shutdown.
#[derive(Clone)]
struct ShutdownSignals {
    stop: CancellationToken,
    give_up: CancellationToken,
    /// Reports that this timer has delivered its last message. Cancelled early if other workers
    /// continue the delivery.
    timers_done: CancellationToken,
    /// Tells the dispatcher to finish: every shard that could be handed over was handed over.
    finish: CancellationToken,
}

/// Runs lease keeper and dispatcher together. Leases are released after the last claim is finished.
pub(crate) async fn serve(
    lease_keeper: LeaseKeeper,
    dispatcher: Dispatcher,
    stop: CancellationToken,
    give_up: CancellationToken,
    timers_done: CancellationToken,
) -> Result<(), crate::store::Error> {
    let finish = CancellationToken::new();
    let signals = ShutdownSignals {
        stop,
        give_up: give_up.clone(),
        timers_done,
        finish: finish.clone(),
    };
    let (kept, dispatched) = tokio::join!(
        lease_keeper.serve(signals),
        dispatcher.serve(finish, give_up)
    );
    dispatched.and(kept)
}
