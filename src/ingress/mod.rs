//! The ingress role: reads the source of one route, parses every record into a message of its
//! shard, stores batches by compare-and-append (I2), and commits offsets only after they are stored
//! (I1). It never sends to a broker: a rejected record is stored as a message too, and the timer
//! dead-letters it.
//!
//! An ingress has two loops. [`Ingress`] owns the source, the batches and the run encoder;
//! [`Appender`] owns a store connection. The channels between them are bounded, so a slow store
//! slows the reading.
//!
//! | file | duty |
//! |---|---|
//! | `read_loop` | [`Ingress`]: source events, appends, commits, shutdown |
//! | `partition` | the state of one assigned partition |
//! | `partitions` | all assigned partitions, by the time of their next action |
//! | `admit_record` | one record becomes a message, a cancel of a message id, or nothing |
//! | `batch` | messages that are not in a run yet |
//! | `appender` | the loop that calls the store |
//! | `open_shards` | opening the shards of assigned partitions |
//! | `assumed_rules` | reading while the group coordinator does not answer |
//! | `shard_init` | where the reading of a partition starts and by which rules, or why it must not |
//! | `read_rules` | the rules by which each record of a partition is parsed |
//! | `store_check` | the comparison with the store before each commit |
//! | `quota` | how much may wait before the route stops reading or refuses messages |

mod admit_record;
mod appender;
mod assumed_rules;
mod batch;
mod open_shards;
mod partition;
mod partitions;
mod pause;
mod quota;
mod read_loop;
mod read_rules;
mod shard_init;
mod store_check;

pub(crate) use appender::{Appender, AppenderHandle, appender_channels};
pub(crate) use quota::Quota;
pub(crate) use read_loop::Ingress;

use crate::broker::{self, Source};
use crate::clock::Clock;
use crate::encryption::KeyRing;
use crate::health::{Health, HealthPart};
use crate::limit::{FINAL_COMMIT_TIMEOUT, IngressMemory};
use crate::membership::{ReadAssignment, SessionClock};
use crate::metric;
use crate::model::{RoutingRules, StartPoint};
use crate::run::ThinHours;
use crate::store::{self, Store};
use crate::trace::Tracer;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) deployment: Arc<str>,
    pub(crate) route: Arc<str>,
    pub(crate) rules: RoutingRules,
    /// The route has an outcome topic.
    pub(crate) tells_outcomes: bool,
    /// Stop a partition when the source dropped records that were never stored. Otherwise skip the
    /// gap.
    pub(crate) stops_at_gap: bool,
    /// Where the reading of a partition without a usable commit starts.
    pub(crate) start: StartPoint,
    /// A reload of the configuration changes it.
    pub(crate) quota: watch::Receiver<Quota>,
    pub(crate) thin: ThinHours,
    pub(crate) keys: KeyRing,
    pub(crate) memory: IngressMemory,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("ingress of route {route}")]
    Call { route: Arc<str>, source: CallError },
    #[error("ingress of route {0}: its appender ended")]
    AppenderEnded(Arc<str>),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Broker(#[from] broker::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl CallError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Broker(error) => error.is_transient(),
            Self::Store(error) => error.is_transient(),
        }
    }
}

pub(crate) struct HealthParts {
    source: HealthPart,
    shards: HealthPart,
    watermarks: HealthPart,
    commits: HealthPart,
}

impl HealthParts {
    pub(crate) fn new(health: &Health, route: &str) -> Self {
        let part = |name| health.register(format!("route {route} {name}"));
        let parts = Self {
            source: part("source"),
            shards: part("shards"),
            watermarks: part("watermarks"),
            commits: part("commits"),
        };
        // A process without partitions is ready. Only `source` waits for the membership.
        for part in [&parts.shards, &parts.watermarks, &parts.commits] {
            part.set_ready();
        }
        parts
    }
}

pub(crate) struct Ports {
    pub(crate) source: Box<dyn Source>,
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    pub(crate) health: HealthParts,
    pub(crate) metric: metric::RouteMetrics,
    pub(crate) memory_metric: metric::MemoryGauges,
    pub(crate) tracer: Tracer,
    pub(crate) appender: AppenderHandle,
    /// The partitions to read.
    pub(crate) assignment: watch::Receiver<ReadAssignment>,
    pub(crate) session_clock: SessionClock,
    /// Cancelled when the timer of this process has stored its last delivered pairs, or has run out
    /// of time. The final commit waits for it, so that a rebuild from that commit repeats nothing.
    pub(crate) timers_done: CancellationToken,
}

fn stopping() -> broker::Error {
    broker::Error::Unavailable("the process is stopping".to_owned())
}

/// Waits until a process that stops does not wait for a broker any more.
async fn stopped_for_long(stop: CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(FINAL_COMMIT_TIMEOUT).await;
}

#[cfg(test)]
mod tests;
