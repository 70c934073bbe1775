//! The port of a configured cluster: opens its clients, and knows the rights that they need.

use super::inspection::Inspector;
use super::send_budget::SendBudget;
use super::{Catalog, Error, GroupAdmin, Source, StoredRecords, Target, TransactionalProducers};
use crate::health::HealthPart;
use crate::limit::SourceMemory;
use crate::model::Dialects;
use async_trait::async_trait;
use std::sync::Arc;
use tokio::time::Instant;

pub(crate) type Opened<T> = Result<Box<T>, Error>;

/// A configured cluster. It holds secrets: never print it.
#[async_trait(?Send)]
pub(crate) trait Cluster {
    /// The name of the cluster's table in the configuration, such as `kafka.main`.
    fn qualified_name(&self) -> String;

    /// A source for each of these routes, in the same order. They share their clients. `health` makes a
    /// part of the readiness for this route or cluster.
    fn sources(
        &self,
        routes: Vec<SourceOptions>,
        memory: SourceMemory,
        health: &mut dyn FnMut(String) -> HealthPart,
    ) -> Result<Vec<Box<dyn Source>>, Error>;

    /// With a `group`, its commits are read without waiting for a connection. The position of this group
    /// may be moved.
    fn admin(&self, group: Option<&str>, health: HealthPart) -> Opened<dyn ClusterAdmin>;

    /// A reader of stored records. `group` is the one that holds the positions of redrives.
    fn stored_records(&self, group: &str, health: HealthPart) -> Opened<dyn StoredRecords>;

    fn target(&self, options: TargetOptions, health: HealthPart) -> Opened<dyn Target>;

    /// Producers for exactly-once routes. `marker_group` is one of the groups that hold markers.
    fn transactional_producers(
        &self,
        _budget: Arc<SendBudget>,
        _marker_group: &str,
        _health: HealthPart,
    ) -> Opened<dyn TransactionalProducers> {
        let reason = "the broker has no transactions";
        Err(Error::Rejected(reason.to_owned()))
    }

    /// Reads a topic or subject from now on, and returns its name. Without a name, the broker makes a
    /// temporary one. `None`: it makes none, so a name is needed.
    async fn new_records(&self, name: Option<String>) -> Result<Option<NamedRecords>, Error>;

    /// The rights that the service needs for these routes, as lines for an administrator.
    fn rights(&self, routes: &[RouteUse<'_>]) -> Vec<String>;
}

/// All requests about one cluster that read or send no records.
pub(crate) trait ClusterAdmin: GroupAdmin + Inspector {
    /// A catalog that shares the clients.
    fn share(&self) -> Box<dyn Catalog>;
}

impl<T: GroupAdmin + Inspector + Clone + 'static> ClusterAdmin for T {
    fn share(&self) -> Box<dyn Catalog> {
        Box::new(self.clone())
    }
}

/// A topic or subject, and its new records.
pub(crate) type NamedRecords = (String, Box<dyn NewRecords>);

/// The new records of one topic or subject.
#[async_trait(?Send)]
pub(crate) trait NewRecords {
    /// The payload of the next record. `None`: no record has arrived until `end`.
    async fn next(&mut self, end: Instant) -> Result<Option<Vec<u8>>, Error>;
}

/// The source of a route: its topics, and the group that keeps its commits.
#[derive(Default)]
pub(crate) struct SourceOptions {
    pub(crate) route: String,
    pub(crate) group: String,
    pub(crate) topics: Vec<String>,
    pub(crate) dialects: Dialects,
}

/// The purpose and bounds of a target.
pub(crate) struct TargetOptions {
    pub(crate) purpose: TargetPurpose,
    pub(crate) budget: Arc<SendBudget>,
    /// A name that no other target has.
    pub(crate) sender: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetPurpose {
    /// The producer of the fast lane.
    Fast,
    /// The producer of the bulk lane, which favours throughput over latency.
    Bulk,
    /// A single record of a command: it fails soon, because a person waits.
    Command,
}

/// The topics and groups that a route uses on one cluster.
pub(crate) struct RouteUse<'a> {
    /// The group of its commits. The names of its other groups and transactions begin with it.
    pub(crate) group: String,
    /// The topics that it reads. Empty: its source is on another cluster.
    pub(crate) sources: &'a [String],
    /// Its targets, patterns of targets, and dead letters.
    pub(crate) targets: Vec<&'a str>,
    pub(crate) dead_letter: Option<&'a str>,
    pub(crate) is_exactly_once: bool,
}
