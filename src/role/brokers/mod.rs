//! The registry of broker kinds: how the clients of each kind are built from the configuration.
//! A new kind of broker is one more file here, and one more line in [`adapter`].

mod kafka;
mod nats;

pub(crate) use kafka::kafka_cluster;
pub(crate) use nats::nats_cluster;

use crate::broker::{Catalog, Source, Target, TransactionalProducers};
use crate::config::{BrokerKind, Config};
use crate::health::HealthPart;
use crate::model::{Dialects, Naming};
use anyhow::{Result, bail};

/// Builds the clients of one kind of broker. `cluster` is a name of the configuration.
pub(crate) trait BrokerAdapter {
    /// How targets are named.
    fn naming(&self) -> Naming;

    fn source(
        &self,
        config: &Config,
        cluster: &str,
        options: SourceOptions,
        health: HealthPart,
    ) -> Result<Box<dyn Source>>;

    /// `group` is the consumer group whose commits are read.
    fn catalog(
        &self,
        config: &Config,
        cluster: &str,
        group: &str,
        health: HealthPart,
    ) -> Result<Box<dyn Catalog>>;

    fn target(
        &self,
        config: &Config,
        cluster: &str,
        options: TargetOptions,
        health: HealthPart,
    ) -> Result<Box<dyn Target>>;

    /// Producers for exactly-once routes. `marker_group` is one of the groups that hold markers.
    /// The configuration rejects exactly-once routes of brokers that have no transactions.
    fn transactional_producers(
        &self,
        _config: &Config,
        cluster: &str,
        _marker_group: &str,
        _health: HealthPart,
    ) -> Result<Box<dyn TransactionalProducers>> {
        bail!("the broker of cluster {cluster} has no transactions")
    }
}

/// The topics of a source, and its member name in a consumer group.
pub(crate) struct SourceOptions {
    pub(crate) group: String,
    /// A name that no other process has.
    pub(crate) member: String,
    pub(crate) topics: Vec<String>,
    pub(crate) dialects: Dialects,
}

/// The purpose and bounds of a target.
pub(crate) struct TargetOptions {
    pub(crate) purpose: TargetPurpose,
    pub(crate) in_flight_max: usize,
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

pub(crate) fn adapter(kind: BrokerKind) -> &'static dyn BrokerAdapter {
    match kind {
        BrokerKind::Kafka => &kafka::Kafka,
        BrokerKind::Nats => &nats::Nats,
    }
}

/// The kind of a configured cluster. No two clusters have the same name.
pub(crate) fn kind_of_cluster(config: &Config, cluster: &str) -> BrokerKind {
    if config.nats.contains_key(cluster) {
        BrokerKind::Nats
    } else {
        BrokerKind::Kafka
    }
}
