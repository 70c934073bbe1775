//! The registry of broker kinds: builds the clients of a configured cluster. A new kind of broker is
//! one more variant of [`Cluster`].

use crate::broker::inspection::Inspector;
use crate::broker::kafka::{
    self, KafkaCatalog, KafkaSource, KafkaStoredRecords, KafkaTarget, KafkaTransactionalProducers,
    RouteTopics,
};
use crate::broker::nats::{self, NatsCatalog, NatsSource, NatsStoredRecords, NatsTarget};
use crate::broker::send_budget::SendBudget;
use crate::broker::{
    self, Catalog, GroupAdmin, Source, StoredRecords, Target, TransactionalProducers,
};
use crate::config::{self, BrokerKind, Config};
use crate::health::HealthPart;
use crate::limit::{COMMAND_DELIVERY_TIMEOUT, SourceMemory};
use crate::membership::{ClusterCatalog, SourceTopics};
use crate::model::{Dialect, Dialects};
use anyhow::{Result, bail};
use std::sync::Arc;

/// Makes catalogs that share their clients.
pub(crate) type Catalogs = Box<dyn Fn() -> Box<dyn Catalog>>;

/// A configured cluster, as its adapter takes it. It holds secrets: never print it.
pub(crate) enum Cluster {
    Kafka(kafka::Cluster),
    Nats(nats::Cluster),
}

/// The source of a route: its topics, and the group that keeps its commits.
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

impl Cluster {
    /// The cluster that the configuration has under this name. No two clusters share a name.
    pub(crate) fn of(config: &Config, name: &str) -> Self {
        let found = config.clusters().find(|(_, other)| *other == name);
        match found.expect("loading has checked the names").0 {
            BrokerKind::Kafka => Self::Kafka(kafka_cluster(config, name)),
            BrokerKind::Nats => Self::Nats(nats_cluster(config, name)),
        }
    }

    /// The name of the cluster's table in the configuration, such as `kafka.main`.
    pub(crate) fn qualified_name(&self) -> String {
        match self {
            Self::Kafka(cluster) => format!("{}.{}", kafka::FACTS.key, cluster.name),
            Self::Nats(cluster) => format!("{}.{}", nats::FACTS.key, cluster.name),
        }
    }

    /// Gives changed secrets to the clients that run. The clients of NATS keep theirs.
    pub(crate) fn change_secrets(&self) -> Result<(), broker::Error> {
        match self {
            Self::Kafka(cluster) => cluster.change_secrets(),
            Self::Nats(_) => Ok(()),
        }
    }

    /// A source for each of these routes, in the same order. They share their clients. `health` makes a
    /// part of the readiness for this route or cluster.
    pub(crate) fn sources(
        &self,
        routes: Vec<SourceOptions>,
        memory: SourceMemory,
        mut health: impl FnMut(String) -> HealthPart,
    ) -> Result<Vec<Box<dyn Source>>> {
        match self {
            Self::Kafka(cluster) => {
                let topics = routes.into_iter().map(|route| RouteTopics {
                    group: route.group,
                    topics: route.topics,
                });
                let topics: Vec<_> = topics.collect();
                let part = health(format!("of {}", self.qualified_name()));
                let sources = KafkaSource::for_routes(cluster, &topics, memory, part)?;
                let boxed = sources
                    .into_iter()
                    .map(|source| Box::new(source) as Box<dyn Source>);
                Ok(boxed.collect())
            }
            Self::Nats(cluster) => {
                let part = health(format!("of {}", self.qualified_name()));
                let routes = routes.into_iter().map(|route| {
                    let options = nats::SourceOptions {
                        group: route.group,
                        reads_schedules: route.dialects.has(Dialect::Nats),
                        fetch_bytes_max: memory.total() / 3 * 2 / route.topics.len().max(1),
                    };
                    let part = health(format!("of route {}", route.route));
                    part.set_ready();
                    (options, part)
                });
                let sources = NatsSource::for_routes(cluster, routes.collect(), part)?;
                let boxed = sources
                    .into_iter()
                    .map(|source| Box::new(source) as Box<dyn Source>);
                Ok(boxed.collect())
            }
        }
    }

    /// `group` is the consumer group whose position may be moved.
    pub(crate) fn group_admin(
        &self,
        group: &str,
        health: HealthPart,
    ) -> Result<Box<dyn GroupAdmin>> {
        Ok(match self {
            Self::Kafka(cluster) => Box::new(KafkaCatalog::new(cluster, Some(group), health)?),
            Self::Nats(cluster) => Box::new(NatsCatalog::new(cluster, health)),
        })
    }

    /// A reader of dead letters. `group` is the one that holds the positions of redrives.
    pub(crate) fn stored_records(
        &self,
        group: &str,
        health: HealthPart,
    ) -> Result<Box<dyn StoredRecords>> {
        Ok(match self {
            Self::Kafka(cluster) => Box::new(KafkaStoredRecords::new(cluster, group, health)?),
            Self::Nats(cluster) => Box::new(NatsStoredRecords::new(cluster, health)),
        })
    }

    /// Catalogs that list the partitions of these routes. They share their clients. Kafka answers one
    /// request for all topics. NATS needs a request for each stream, so each route has a catalog: a stream
    /// that does not answer hides no other one.
    pub(crate) fn catalogs(
        &self,
        routes: Vec<SourceTopics>,
        health: HealthPart,
    ) -> Result<Vec<ClusterCatalog>> {
        Ok(match self {
            Self::Kafka(cluster) => vec![ClusterCatalog {
                catalog: Box::new(KafkaCatalog::new(cluster, None, health)?),
                routes,
            }],
            Self::Nats(cluster) => {
                let catalog = NatsCatalog::new(cluster, health);
                let of_route = |route| ClusterCatalog {
                    catalog: Box::new(catalog.clone()),
                    routes: vec![route],
                };
                routes.into_iter().map(of_route).collect()
            }
        })
    }

    pub(crate) fn catalog(&self, health: HealthPart) -> Result<Box<dyn Catalog>> {
        Ok(match self {
            Self::Kafka(cluster) => Box::new(KafkaCatalog::new(cluster, None, health)?),
            Self::Nats(cluster) => Box::new(NatsCatalog::new(cluster, health)),
        })
    }

    /// Catalogs for the commits of any group, which share their clients. `group` is one of the groups.
    pub(crate) fn commits(&self, group: &str, health: HealthPart) -> Result<Catalogs> {
        Ok(match self {
            Self::Kafka(cluster) => {
                let catalog = KafkaCatalog::new(cluster, Some(group), health)?;
                Box::new(move || Box::new(catalog.clone()) as Box<dyn Catalog>)
            }
            Self::Nats(cluster) => {
                let catalog = NatsCatalog::new(cluster, health);
                Box::new(move || Box::new(catalog.clone()) as Box<dyn Catalog>)
            }
        })
    }

    pub(crate) fn inspector(
        &self,
        health: HealthPart,
    ) -> Result<Box<dyn Inspector>, broker::Error> {
        Ok(match self {
            Self::Kafka(cluster) => Box::new(KafkaCatalog::new(cluster, None, health)?),
            Self::Nats(cluster) => Box::new(NatsCatalog::new(cluster, health)),
        })
    }

    pub(crate) fn target(
        &self,
        options: TargetOptions,
        health: HealthPart,
    ) -> Result<Box<dyn Target>> {
        let budget = options.budget;
        Ok(match self {
            Self::Kafka(cluster) => Box::new(match options.purpose {
                TargetPurpose::Fast => KafkaTarget::new(cluster, budget, health)?,
                TargetPurpose::Bulk => KafkaTarget::for_bulk(cluster, budget, health)?,
                TargetPurpose::Command => {
                    let cluster = with_command_timeout(cluster);
                    KafkaTarget::new(&cluster, budget, health)?
                }
            }),
            Self::Nats(cluster) => {
                let sender = options.sender;
                Box::new(NatsTarget::new(cluster, budget, sender, health)?)
            }
        })
    }

    /// Producers for exactly-once routes. `marker_group` is one of the groups that hold markers.
    pub(crate) fn transactional_producers(
        &self,
        budget: Arc<SendBudget>,
        marker_group: &str,
        health: HealthPart,
    ) -> Result<Box<dyn TransactionalProducers>> {
        let Self::Kafka(cluster) = self else {
            bail!("the broker has no transactions");
        };
        let producers =
            KafkaTransactionalProducers::new(cluster, budget, Some(marker_group), health)?;
        Ok(Box::new(producers))
    }
}

/// Replaces the configured delivery timeout, which is for the service: it retries for minutes.
fn with_command_timeout(cluster: &kafka::Cluster) -> kafka::Cluster {
    let mut cluster = cluster.clone();
    cluster.properties.remove("delivery.timeout.ms");
    let timeout = COMMAND_DELIVERY_TIMEOUT.as_millis().to_string();
    let name = "message.timeout.ms".to_owned();
    cluster.properties.insert(name, timeout);
    cluster
}

fn kafka_cluster(config: &Config, name: &str) -> kafka::Cluster {
    let kafka = &config.kafka[name];
    let properties = kafka
        .properties
        .iter()
        .map(|(key, value)| (key.clone(), value.expose().to_owned()));
    kafka::Cluster {
        name: name.into(),
        brokers: kafka.brokers.clone(),
        properties: properties.collect(),
    }
}

pub(crate) fn nats_cluster(config: &Config, name: &str) -> nats::Cluster {
    let nats = &config.nats[name];
    nats::Cluster {
        name: name.into(),
        deployment: config.deployment.as_str().into(),
        urls: nats.urls().collect(),
        domain: nats.domain.clone(),
        login: nats_login(nats),
        ca: nats.ca.clone(),
        client_certificate: nats.certificate.clone().zip(nats.certificate_key.clone()),
    }
}

/// The configuration has at most one login.
fn nats_login(nats: &config::Nats) -> nats::Login {
    let trimmed = |secret: &config::Secret| secret.expose().trim().to_owned();
    let in_url = nats.url_login().map(|(name, password)| match password {
        Some(password) => nats::Login::User { name, password },
        None => nats::Login::Token(name),
    });
    let user = nats.username.clone().zip(nats.password.as_ref());
    let user = user.map(|(name, password)| nats::Login::User {
        name,
        password: password.expose().to_owned(),
    });
    let credentials = nats.credentials.as_ref();
    in_url
        .or(user)
        .or(nats.token.as_ref().map(trimmed).map(nats::Login::Token))
        .or(nats.nkey.as_ref().map(trimmed).map(nats::Login::Nkey))
        .or(credentials.map(|text| nats::Login::Credentials(text.expose().to_owned())))
        .unwrap_or(nats::Login::Anonymous)
}
