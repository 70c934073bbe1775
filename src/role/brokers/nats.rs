//! Builds the NATS clients from the configuration.

use super::{BrokerAdapter, SourceOptions, TargetOptions};
use crate::broker::nats::{self, NatsCatalog, NatsSource, NatsTarget};
use crate::broker::{Catalog, Source, Target};
use crate::config::{self, Config};
use crate::health::HealthPart;
use crate::model::{Dialect, Naming};
use anyhow::Result;

pub(super) struct Nats;

impl BrokerAdapter for Nats {
    fn naming(&self) -> Naming {
        Naming::Subject
    }

    fn source(
        &self,
        config: &Config,
        cluster: &str,
        options: SourceOptions,
        health: HealthPart,
    ) -> Result<Box<dyn Source>> {
        let cluster = nats_cluster(config, cluster);
        let options = nats::SourceOptions {
            group: options.group,
            topics: options.topics,
            member: options.member,
            reads_schedules: options.dialects.has(Dialect::Nats),
        };
        Ok(Box::new(NatsSource::new(&cluster, options, health)?))
    }

    fn catalog(
        &self,
        config: &Config,
        cluster: &str,
        _group: &str,
        health: HealthPart,
    ) -> Result<Box<dyn Catalog>> {
        let cluster = nats_cluster(config, cluster);
        Ok(Box::new(NatsCatalog::new(&cluster, health)))
    }

    fn target(
        &self,
        config: &Config,
        cluster: &str,
        options: TargetOptions,
        health: HealthPart,
    ) -> Result<Box<dyn Target>> {
        let cluster = nats_cluster(config, cluster);
        let target = NatsTarget::new(&cluster, options.in_flight_max, options.sender, health)?;
        Ok(Box::new(target))
    }
}

/// A configured NATS cluster, as the adapter takes it.
pub(crate) fn nats_cluster(config: &Config, name: &str) -> nats::Cluster {
    let nats = &config.nats[name];
    let secret = |secret: &config::Secret| secret.expose().to_owned();
    nats::Cluster {
        name: name.into(),
        deployment: config.deployment.as_str().into(),
        urls: nats.urls().collect(),
        domain: nats.domain.clone(),
        login: match &nats.login {
            config::Login::Anonymous => nats::Login::Anonymous,
            config::Login::User { name, password } => nats::Login::User {
                name: name.clone(),
                password: secret(password),
            },
            config::Login::Token(token) => nats::Login::Token(secret(token)),
            config::Login::Nkey(seed) => nats::Login::Nkey(secret(seed)),
            config::Login::Credentials(text) => nats::Login::Credentials(secret(text)),
        },
        tls: nats::Tls {
            ca: nats.ca.clone(),
            client_certificate: nats.certificate.clone(),
        },
    }
}
