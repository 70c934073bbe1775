//! Builds the configured store.

use super::memory::memory_plan;
use crate::clock::Clock;
use crate::config::{self, Config, Secret};
use crate::limit::STORE_RESPONSE_TIMEOUT;
use crate::model::SessionId;
use crate::store::embedded::{self, Embedded};
use crate::store::query::{QuarantineStore, QueryContext};
use crate::store::redis::{self, Address, Certificates, Redis, RedisNotifier};
use crate::store::with_metrics::WithMetrics;
use crate::store::{self, AdminStore, CopyStore, Notifier, Store};
use anyhow::{Context, Result};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Makes store connections for the threads of this process.
pub(crate) enum StoreFactory {
    /// Each thread has a connection of its own.
    Redis(Box<redis::Options>),
    /// All threads share one open store.
    Embedded(Embedded),
}

impl StoreFactory {
    /// Opens an embedded store, which uses this clock, and locks it for this process. Makes no
    /// connection to Redis.
    pub(crate) fn open(config: &Config, clock: impl Clock + Send + Sync + 'static) -> Result<Self> {
        Ok(match &config.store.kind {
            config::Store::Redis(redis) => Self::Redis(Box::new(redis_options(config, redis))),
            config::Store::Embedded(embedded) => {
                let options = embedded::Options {
                    path: embedded.path.clone(),
                    deployment: config.deployment.clone(),
                    memory: memory_plan(config).embedded,
                };
                Self::Embedded(Embedded::open(&options, clock).context("store.embedded")?)
            }
        })
    }

    /// `response_timeout` is for calls of a server.
    pub(crate) async fn connect(
        &self,
        response_timeout: Duration,
    ) -> Result<Rc<dyn Store>, store::Error> {
        Ok(match self {
            Self::Redis(options) => {
                let options = redis::Options {
                    response_timeout,
                    ..(**options).clone()
                };
                Rc::new(WithMetrics::new(Redis::connect(&options).await?))
            }
            Self::Embedded(embedded) => Rc::new(WithMetrics::new(embedded.clone())),
        })
    }

    /// The notifier of a store that several processes can share. `session` is the first one of this
    /// process.
    pub(crate) fn notifier(&self, session: SessionId) -> Result<Option<Box<dyn Notifier + Send>>> {
        Ok(match self {
            Self::Redis(options) => {
                let notifier = RedisNotifier::new(options, session).context("store.redis")?;
                Some(Box::new(notifier))
            }
            Self::Embedded(_) => None,
        })
    }

    pub(crate) async fn connect_copy(&self) -> Result<Rc<dyn CopyStore>, store::Error> {
        Ok(match self {
            Self::Redis(options) => Rc::new(Redis::connect(options).await?),
            Self::Embedded(embedded) => Rc::new(embedded.clone()),
        })
    }

    pub(crate) async fn connect_admin(&self) -> Result<Rc<dyn AdminStore>, store::Error> {
        Ok(match self {
            Self::Redis(options) => Rc::new(Redis::connect(options).await?),
            Self::Embedded(embedded) => Rc::new(embedded.clone()),
        })
    }

    pub(crate) async fn connect_query(&self) -> Result<Rc<dyn QuarantineStore>, store::Error> {
        Ok(match self {
            Self::Redis(options) => Rc::new(Redis::connect(options).await?),
            Self::Embedded(embedded) => Rc::new(embedded.clone()),
        })
    }
}

/// Address, login and certificates of the configured Redis.
pub(crate) fn redis_options(config: &Config, redis: &config::Redis) -> redis::Options {
    let password = |secret: &Option<Secret>| Some(secret.as_ref()?.expose().to_owned());
    let servers = match (&redis.sentinel, &redis.cluster) {
        (Some(sentinel), _) => redis::Servers::Sentinel(redis::SentinelOptions {
            addresses: addresses(sentinel.host_ports()),
            master: sentinel.master.clone(),
            username: sentinel.username.clone(),
            password: password(&sentinel.password),
            tls: (sentinel.tls == Some(true)).then(|| Certificates {
                ca: sentinel.ca.clone(),
                certificate: sentinel.certificate.clone(),
                key: sentinel.certificate_key.clone(),
            }),
            primary_needs_tls: redis.tls == Some(true),
            database: redis.database.unwrap_or_default(),
        }),
        (None, Some(cluster)) => redis::Servers::Cluster(redis::ClusterOptions {
            addresses: addresses(cluster.host_ports()),
            needs_tls: redis.tls == Some(true),
        }),
        (None, None) => {
            let url = redis.url.as_ref().map_or("", Secret::expose);
            redis::Servers::Url(url.to_owned())
        }
    };
    redis::Options {
        servers,
        username: redis.username.clone(),
        password: password(&redis.password),
        certificates: Certificates {
            ca: redis.ca.clone(),
            certificate: redis.certificate.clone(),
            key: redis.certificate_key.clone(),
        },
        deployment: config.deployment.clone(),
        response_timeout: STORE_RESPONSE_TIMEOUT,
        server: Arc::default(),
        slots: Arc::default(),
    }
}

fn addresses<'a>(host_ports: impl Iterator<Item = (&'a str, u16)>) -> Vec<Address> {
    let addresses = host_ports.map(|(host, port)| Address {
        host: host.to_owned(),
        port,
    });
    addresses.collect()
}

/// The parts of the configuration that queries need.
pub(crate) fn query_context(config: &Config) -> QueryContext {
    let store = match &config.store.kind {
        config::Store::Redis(redis) => {
            let address = redis.url.as_ref().and_then(|url| address(url.expose()));
            match (&redis.sentinel, &redis.cluster) {
                (Some(sentinel), _) => format!("redis sentinel {}", sentinel.master),
                (None, Some(cluster)) => format!("redis cluster {}", cluster.servers.join(" ")),
                (None, None) => format!("redis {}", address.as_deref().unwrap_or("?")),
            }
        }
        config::Store::Embedded(config::Embedded { path }) => {
            let absolute = std::path::absolute(path);
            format!("folder {}", absolute.as_ref().unwrap_or(path).display())
        }
    };
    let routes = config
        .routes
        .iter()
        .map(|(name, route)| (name.clone(), route.source.topics.iter().cloned().collect()));
    QueryContext {
        deployment: config.deployment.clone(),
        store,
        routes: routes.collect(),
        shows_payloads: config.admin.payloads == config::Payloads::Shown,
        keys: config.keys(),
    }
}

fn address(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    Some(format!(
        "{}:{}",
        url.host_str()?,
        url.port().unwrap_or(6379)
    ))
}
