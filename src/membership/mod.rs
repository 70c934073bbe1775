//! Membership: the session of this worker, the live workers, and which of them reads and delivers a
//! shard.
//!
//! One loop on a thread of its own keeps the session alive in the store, lists the shards that
//! exist, and assigns them. It publishes the result to the ingresses and the timer. All workers
//! compute the same assignment from the same sessions and shards.
//!
//! | file | duty |
//! |---|---|
//! | `worker_loop` | the loop: heartbeats, discovery, departure |
//! | `discovery` | asks the brokers which shards exist |
//! | `session_clock` | until when the session of this worker certainly lasts |
//! | `session_watch` | finds sessions of workers that are dead |
//! | `roster` | live workers and shards; the shards of this worker |
//! | `assignment` | which worker reads a shard, and which delivers it |

mod assignment;
mod discovery;
mod roster;
mod session_clock;
mod session_watch;
mod worker_loop;

pub(crate) use discovery::{ClusterCatalog, SourceTopics, with_timeout};
#[cfg(test)]
pub(crate) use roster::Roster;
pub(crate) use roster::{Departure, WorkView};
pub(crate) use session_clock::{SessionClock, StoreTime};
pub(crate) use worker_loop::{
    Ports, WorkerLoop, heartbeat_interval, heartbeat_timeout, silence_max,
};

use crate::model::Partition;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

/// The partitions of one route that the assignment gives to this worker.
///
/// Reading needs no lock: two workers may read a partition for a moment, because an append names
/// its first offset (I2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadAssignment {
    pub(crate) partitions: BTreeSet<Partition>,
    /// The number of partitions of the route, over all workers.
    pub(crate) of_route: usize,
    /// This worker is a member, and every source has answered. So a worker without a partition has
    /// nothing to wait for.
    pub(crate) is_complete: bool,
}

/// The sending side of the assignments, for the membership loop.
pub(crate) struct Publisher {
    view: watch::Sender<Arc<WorkView>>,
    reads: BTreeMap<Arc<str>, watch::Sender<ReadAssignment>>,
    session_clock: SessionClock,
}

/// The receiving side of the assignments.
#[derive(Clone)]
pub(crate) struct Assignments {
    /// For the leases of the timer.
    pub(crate) view: watch::Receiver<Arc<WorkView>>,
    pub(crate) session_clock: SessionClock,
    /// By route, for its ingress.
    pub(crate) reads: BTreeMap<Arc<str>, watch::Receiver<ReadAssignment>>,
}

/// Channels for the assignments of these routes. Nothing is assigned at first.
pub(crate) fn channels(routes: impl IntoIterator<Item = Arc<str>>) -> (Publisher, Assignments) {
    let (view_out, view) = watch::channel(Arc::new(WorkView::empty(Instant::now())));
    let routes = routes
        .into_iter()
        .map(|route| (route, watch::channel(ReadAssignment::default())));
    let (mut reads_out, mut reads) = (BTreeMap::new(), BTreeMap::new());
    for (route, (sender, receiver)) in routes {
        reads_out.insert(route.clone(), sender);
        reads.insert(route, receiver);
    }
    let session_clock = SessionClock::default();
    let publisher = Publisher {
        view: view_out,
        reads: reads_out,
        session_clock: session_clock.clone(),
    };
    let assignments = Assignments {
        view,
        session_clock,
        reads,
    };
    (publisher, assignments)
}
