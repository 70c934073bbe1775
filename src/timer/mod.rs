//! The timer role: leases shards, loads what is due soon, and delivers each message at its due time - to its target, back through the source,
//! or to the dead letters. It alone delivers.
//!
//! Workers share the shards: `placement` says which are whose, `wanted` what follows from that for one worker, `term` until when a lease surely
//! holds, and `parting` how a shard's work ends.
//!
//! Four loops over ports: `claimer` holds leases, `dispatcher` owns the shards (both on one thread); `loader` reads runs that are soon due, and
//! `rewriter` prepares those that are not, each on a thread of its own. Bounded channels between them.

mod advancing;
mod compactor;
mod dispatcher;
mod exactly_once;
mod filling;
mod flying;
mod following;
mod hand;
mod handing;
mod handover;
mod lease;
mod load;
mod outcry;
mod outlet;
mod pace;
mod poll;
mod quarantine;
mod queue;
mod retrier;
mod rewriting;
mod sealing;
mod shard_slots;
mod share;
mod stall;
mod transacting;
mod waking;
mod work;

use crate::metric;
use crate::model::RoutingRules;
use crate::trace::Tracer;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use compactor::{CompactionPolicy, CompactionReply, CompactionTask, Compactor};
pub(crate) use dispatcher::{Dispatcher, Ports};
pub(crate) use lease::{LeaseEvent, LeaseKeeper, ReleaseResult, RouteCatalog, ShutdownSignals};
pub(crate) use load::{LoadReply, LoadRequest, Loader};
pub(crate) use outcry::DeliveryAlerts;
pub(crate) use outlet::{ClusterProducers, Producers};
pub(crate) use retrier::RetryPolicy;

/// What a timer is told.
pub(crate) struct Options {
    pub(crate) deployment: String,
    pub(crate) routes: BTreeMap<Arc<str>, RouteOptions>,
    /// Bytes of loaded messages, over all shards.
    pub(crate) memory: usize,
    /// How far a claim may lie past the store's time.
    pub(crate) skew_max: Duration,
}

/// What a timer is told of one route.
pub(crate) struct RouteOptions {
    pub(crate) rules: RoutingRules,
    pub(crate) dead_letter: String,
    pub(crate) retry: RetryPolicy,
    /// A message that is handed over for the first time so long after its due, or longer, goes to the dead letters.
    pub(crate) overdue_after: Option<Duration>,
    /// How many messages a second are taken of those that are behind.
    pub(crate) catch_up_rate: Option<u32>,
    pub(crate) source_cluster: String,
    pub(crate) target_cluster: String,
    pub(crate) dead_letter_cluster: String,
    /// Exactly-once: the group in which its shards' markers are committed.
    pub(crate) marker_group: Option<String>,
    /// The topics that it names to deliver to: its target, its dead letters, and what it allows by its full name.
    pub(crate) known_topics: Arc<[String]>,
    pub(crate) metric: metric::RouteMetrics,
    pub(crate) tracer: Tracer,
    pub(crate) alerts: DeliveryAlerts,
}

/// Serves claimer and dispatcher together. Leases are given back after the last claim is finished.
pub(crate) async fn serve(
    claimer: LeaseKeeper,
    dispatcher: Dispatcher,
    stops: ShutdownSignals,
) -> Result<(), crate::store::Error> {
    let (finish, give_up) = (stops.finish.clone(), stops.give_up.clone());
    let (claimed, dispatched) =
        tokio::join!(claimer.serve(stops), dispatcher.serve(finish, give_up));
    dispatched.and(claimed)
}
