//! A configured NATS cluster, and the [`Cluster`](crate::broker::Cluster) port on it.

use super::source::SourceOptions;
use super::{FACTS, Inbox, NatsCatalog, NatsSource, NatsStoredRecords, NatsTarget, rights};
use crate::broker::cluster::{self, ClusterAdmin, NamedRecords, Opened, RouteUse, TargetOptions};
use crate::broker::{self, Error, Source, StoredRecords, Target};
use crate::health::HealthPart;
use crate::limit::SourceMemory;
use crate::model::Dialect;
use async_trait::async_trait;
use std::path::PathBuf;
use std::sync::Arc;

/// A NATS cluster of the configuration. It contains secrets: never print it.
#[derive(Clone)]
pub(crate) struct Cluster {
    /// The name in the configuration, for logs.
    pub(crate) name: Arc<str>,
    /// Part of the KV bucket's name.
    pub(crate) deployment: Arc<str>,
    /// Without logins.
    pub(crate) urls: Vec<String>,
    /// The JetStream domain. `None`: the domain of the server that the client connects to.
    pub(crate) domain: Option<String>,
    pub(crate) login: Login,
    /// A file of certificate authorities to trust besides those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// The files of the client's certificate and key.
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
}

/// How a client authenticates.
#[derive(Clone)]
pub(crate) enum Login {
    Anonymous,
    User {
        name: String,
        password: String,
    },
    Token(String),
    /// The seed of a key pair.
    Nkey(String),
    /// The content of a credentials file.
    Credentials(String),
}

#[async_trait(?Send)]
impl broker::Cluster for Cluster {
    fn qualified_name(&self) -> String {
        format!("{}.{}", FACTS.key, self.name)
    }

    fn sources(
        &self,
        routes: Vec<cluster::SourceOptions>,
        memory: SourceMemory,
        health: &mut dyn FnMut(String) -> HealthPart,
    ) -> Result<Vec<Box<dyn Source>>, Error> {
        let part = health(format!("of {}", self.qualified_name()));
        let routes = routes.into_iter().map(|route| {
            let options = SourceOptions {
                group: route.group,
                reads_schedules: route.dialects.has(Dialect::Nats),
                fetch_bytes_max: memory.total() / 3 * 2 / route.topics.len().max(1),
            };
            let part = health(format!("of route {}", route.route));
            part.set_ready();
            (options, part)
        });
        let sources = NatsSource::for_routes(self, routes.collect(), part)?.into_iter();
        Ok(sources.map(|source| Box::new(source) as _).collect())
    }

    fn admin(&self, _group: Option<&str>, health: HealthPart) -> Opened<dyn ClusterAdmin> {
        Ok(Box::new(NatsCatalog::new(self, health)))
    }

    fn stored_records(&self, _group: &str, health: HealthPart) -> Opened<dyn StoredRecords> {
        Ok(Box::new(NatsStoredRecords::new(self, health)))
    }

    fn target(&self, options: TargetOptions, health: HealthPart) -> Opened<dyn Target> {
        let target = NatsTarget::new(self, options.budget, options.sender, health)?;
        Ok(Box::new(target))
    }

    async fn new_records(&self, name: Option<String>) -> Result<Option<NamedRecords>, Error> {
        let inbox = Inbox::open(self, name).await?;
        Ok(Some((inbox.subject().to_owned(), Box::new(inbox))))
    }

    fn rights(&self, routes: &[RouteUse<'_>]) -> Vec<String> {
        rights::lines(self, routes)
    }
}
