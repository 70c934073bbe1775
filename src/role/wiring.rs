//! What every loop of a process is built from: the configuration, turned into the roles' options and into adapters.

use super::StoreFactory;
use crate::broker::kafka::{
    Cluster, KafkaCatalog, KafkaSource, KafkaTarget, KafkaTransactionalProducers,
};
use crate::broker::nats::{self, NatsCatalog, NatsSource, NatsTarget};
use crate::broker::{Catalog, Source, Target, TransactionalProducers};
use crate::clock::WallClock;
use crate::config::{self, BrokerKind, Config};
use crate::health::{Health, HealthPart};
use crate::ingress;
use crate::limit::{RETRY_CLOCK_SKEW_MAX, STORE_RETRY_DELAY_MAX, TIMER_IN_FLIGHT_MAX};
use crate::metric;
use crate::model::{AllowList, Dialect, Naming, RoutingRules, WithoutDelay};
use crate::run::ThinHours;
use crate::store::Store;
use crate::task::StopToken;
use crate::timer::{
    self, ClusterProducers, DeliveryAlerts, Lane, LeaseEvent, LeaseKeeper, Producers,
    ReleaseResult, RetryPolicy, RouteCatalog, RouteOptions,
};
use crate::trace::Tracer;
use anyhow::{Context, Result};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc;

/// See the module's page.
pub(super) struct Wiring {
    pub(super) config: Config,
    pub(super) store: StoreFactory,
    pub(super) health: Health,
    pub(super) tracer: Tracer,
    /// Cancelled when a stopping process has drained for long enough.
    pub(super) give_up: StopToken,
    /// Cancelled along with it, and when the timers have told the store all that they delivered.
    pub(super) timers_done: StopToken,
}

impl Wiring {
    /// Stands for a loop until it has parts of its own, and is registered before its thread runs: else the process would be ready for the
    /// moments in which some loops have begun and others have not said anything yet.
    pub(super) fn startup_part(&self, user: &str) -> HealthPart {
        self.health.register(format!("store of {user}"))
    }

    /// A store connection of the loop's own; waits for a store that does not answer yet. `None`: the process is to stop.
    pub(super) async fn connect_store(
        &self,
        starting: &HealthPart,
        stop: &StopToken,
    ) -> Result<Option<Rc<dyn Store>>> {
        loop {
            match self.store.connect().await {
                Ok(store) => return Ok(Some(store)),
                Err(error) if error.is_transient() => starting.set_not_ready(error.to_string()),
                Err(error) => return Err(error).context("store.redis"),
            }
            // Both arms are safe to drop.
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(STORE_RETRY_DELAY_MAX) => {}
            }
        }
    }

    /// A part that is in order until it says otherwise.
    pub(super) fn ready_part(&self, name: &str) -> HealthPart {
        let part = self.health.register(name);
        part.set_ready();
        part
    }

    fn route(&self, name: &str) -> &config::Route {
        &self.config.routes[name]
    }

    fn kafka_cluster(&self, name: &str) -> Cluster {
        cluster(&self.config, name)
    }

    /// `member` is a number that no other process has.
    pub(super) fn source(&self, name: &str, member: u64) -> Result<Box<dyn Source>> {
        let route = self.route(name);
        let (source, group) = (&route.source, consumer_group(&self.config, name));
        let part = self.health.register(format!("route {name} source client"));
        Ok(match source.kind {
            BrokerKind::Kafka => {
                let made = KafkaSource::new(
                    &self.kafka_cluster(&source.cluster),
                    group,
                    &source.topics,
                    part,
                );
                Box::new(made.with_context(|| format!("route.{name}.source"))?)
            }
            BrokerKind::Nats => {
                let reading = nats::SourceOptions {
                    group,
                    topics: source.topics.clone(),
                    member: format!("{member:016x}"),
                    reads_schedules: route.dialects.has(Dialect::Nats),
                };
                Box::new(NatsSource::new(
                    &nats_cluster(&self.config, &source.cluster),
                    reading,
                    part,
                )?)
            }
        })
    }

    pub(super) fn ingress_options(&self, name: &str) -> ingress::Options {
        ingress::Options {
            deployment: self.config.deployment.as_str().into(),
            route: name.into(),
            rules: routing_rules(&self.config, name),
            stops_at_gap: self.route(name).on_source_gap == config::OnSourceGap::Stop,
            thin: ThinHours::DEFAULT,
        }
    }

    pub(super) fn timer_options(&self) -> timer::Options {
        let routes = self.config.routes.iter().map(|(name, route)| {
            let options = RouteOptions {
                rules: routing_rules(&self.config, name),
                dead_letter: route.dead_letter.name.clone(),
                retry: RetryPolicy {
                    max_attempts: route.retry.max_attempts,
                    backoff: route.retry.backoff,
                    backoff_max: route.retry.backoff_max,
                },
                overdue_after: route
                    .overdue_after
                    .filter(|_| route.overdue == config::Overdue::DeadLetter),
                catch_up_rate: route.catch_up_rate,
                source_cluster: route.source.cluster.clone(),
                target_cluster: route.target_cluster().to_owned(),
                dead_letter_cluster: route.dead_letter.cluster.clone(),
                marker_group: (route.delivery == config::Delivery::ExactlyOnce)
                    .then(|| marker_group(&self.config, name)),
                known_topics: named_targets(route).into_iter().collect(),
                metric: metric::RouteMetrics::new(name),
                tracer: self.tracer.clone(),
                alerts: DeliveryAlerts::new(self.health.register(format!("route {name} outlets"))),
            };
            (Arc::from(name.as_str()), options)
        });
        timer::Options {
            deployment: self.config.deployment.clone(),
            routes: routes.collect(),
            memory: usize::try_from(self.config.timer.memory).unwrap_or(usize::MAX),
            skew_max: self.config.timer.max_clock_skew,
        }
    }

    pub(super) fn lease_keeper(
        &self,
        store: Rc<dyn Store>,
        seed: u64,
        (holdings, gave_up): (mpsc::Sender<LeaseEvent>, mpsc::Receiver<ReleaseResult>),
    ) -> Result<LeaseKeeper> {
        let claimable = |(name, route): (&String, &config::Route)| -> Result<RouteCatalog> {
            Ok(RouteCatalog {
                route: name.as_str().into(),
                topics: route.source.topics.clone(),
                group: consumer_group(&self.config, name),
                catalog: catalog(
                    &self.config,
                    name,
                    self.health.register(format!("route {name} catalog client")),
                )?,
                health: self.health.register(format!("route {name} catalog")),
            })
        };
        Ok(LeaseKeeper {
            routes: self
                .config
                .routes
                .iter()
                .map(claimable)
                .collect::<Result<_>>()?,
            store,
            clock: Rc::new(WallClock),
            lease_health: self.health.register("leases"),
            clock_health: self.ready_part("clock"),
            lease_length: self.config.timer.lease,
            skew_max: self.config.timer.max_clock_skew,
            random: StdRng::seed_from_u64(seed),
            metric: metric::TimerMetrics::new(),
            events: holdings,
            release_results: gave_up,
        })
    }

    fn target(&self, name: &str, queue: Lane, worker: u64) -> Result<Box<dyn Target>> {
        let what = match queue {
            Lane::Fast => "target client",
            Lane::Bulk => "target client for floods",
        };
        if self.config.nats.contains_key(name) {
            let part = self.health.register(format!("{what} of nats.{name}"));
            let cluster = nats_cluster(&self.config, name);
            let target = NatsTarget::new(
                &cluster,
                TIMER_IN_FLIGHT_MAX,
                format!("{worker:016x}/{what}"),
                part,
            );
            return Ok(Box::new(target.with_context(|| format!("nats.{name}"))?));
        }
        let (cluster, part) = (
            self.kafka_cluster(name),
            self.health.register(format!("{what} of kafka.{name}")),
        );
        let target = match queue {
            Lane::Fast => KafkaTarget::new(&cluster, TIMER_IN_FLIGHT_MAX, part),
            Lane::Bulk => KafkaTarget::for_bulk(&cluster, TIMER_IN_FLIGHT_MAX, part),
        };
        Ok(Box::new(target.with_context(|| format!("kafka.{name}"))?))
    }

    /// A target for each cluster that anything goes to: targets, dead letters and, for retries, sources. Transactors for those of exactly-once
    /// routes, of which all goes by them. `worker` is a number that no other process has.
    pub(super) fn producers(&self, worker: u64) -> Result<Producers> {
        let (mut names, mut exact) = (BTreeSet::new(), BTreeMap::new());
        for (route_name, route) in &self.config.routes {
            if route.delivery == config::Delivery::ExactlyOnce {
                exact
                    .entry(route.source.cluster.as_str())
                    .or_insert_with(|| marker_group(&self.config, route_name));
                continue;
            }
            names.extend([
                route.source.cluster.as_str(),
                route.target_cluster(),
                route.dead_letter.cluster.as_str(),
            ]);
        }
        let clients = |name: &str| -> Result<(String, ClusterProducers)> {
            Ok((
                name.to_owned(),
                ClusterProducers {
                    fast: self.target(name, Lane::Fast, worker)?,
                    bulk: self.target(name, Lane::Bulk, worker)?,
                },
            ))
        };
        let targets: Result<BTreeMap<_, _>> = names.into_iter().map(clients).collect();
        let transactors =
            |(name, markers): (&str, String)| -> Result<(String, Box<dyn TransactionalProducers>)> {
                let part = self
                    .health
                    .register(format!("transactions client of kafka.{name}"));
                let transactors = KafkaTransactionalProducers::new(
                    &self.kafka_cluster(name),
                    Some(&markers),
                    part,
                )
                .with_context(|| format!("kafka.{name}"))?;
                Ok((name.to_owned(), Box::new(transactors)))
            };
        let transactors: Result<BTreeMap<_, _>> = exact.into_iter().map(transactors).collect();
        Ok(Producers::new(targets?, transactors?))
    }
}

/// The consumer group of a route's ingress.
fn consumer_group(config: &Config, route: &str) -> String {
    format!("{}.{route}", config.deployment)
}

/// The topics that a route's records may go to, but for those that only a pattern allows, and for their own source.
fn named_targets(route: &config::Route) -> BTreeSet<String> {
    let allowed = route
        .allow
        .iter()
        .flatten()
        .filter(|entry| !entry.contains('*'));
    let named = route
        .target
        .iter()
        .map(|target| &target.name)
        .chain([&route.dead_letter.name]);
    named.chain(allowed).cloned().collect()
}

/// The group by which an exactly-once route's markers are committed.
fn marker_group(config: &Config, route: &str) -> String {
    format!("{}.delivered", consumer_group(config, route))
}

/// The rules of a route, for whoever reads its source.
pub(crate) fn routing_rules(config: &Config, name: &str) -> RoutingRules {
    let route = &config.routes[name];
    RoutingRules {
        target_naming: match route.target_kind() {
            BrokerKind::Kafka => Naming::Topic,
            BrokerKind::Nats => Naming::Subject,
        },
        default_target: route
            .target
            .as_ref()
            .map(|target| target.name.as_str().into()),
        allowed_targets: AllowList::new(route.allow.clone().unwrap_or_default()),
        sources: config.source_topics_of(route.target_cluster()),
        max_delay: route.max_delay,
        max_retry_wait: route.retry.backoff_max + RETRY_CLOCK_SKEW_MAX,
        without_delay: match route.without_delay {
            config::WithoutDelay::Relay => WithoutDelay::Relay,
            config::WithoutDelay::DeadLetter => WithoutDelay::DeadLetter,
        },
        dialects: route.dialects,
    }
}

/// A cluster that routes name.
pub(crate) fn cluster(config: &Config, name: &str) -> Cluster {
    let kafka = &config.kafka[name];
    let properties = kafka
        .properties
        .iter()
        .map(|(key, value)| (key.clone(), value.expose().to_owned()));
    Cluster {
        name: name.into(),
        brokers: kafka.brokers.clone(),
        properties: properties.collect(),
    }
}

/// A catalog of what a route reads, and of what its ingress committed.
pub(crate) fn catalog(config: &Config, route: &str, part: HealthPart) -> Result<Box<dyn Catalog>> {
    let source = &config.routes[route].source;
    Ok(match source.kind {
        BrokerKind::Kafka => Box::new(KafkaCatalog::new(
            &cluster(config, &source.cluster),
            Some(&consumer_group(config, route)),
            part,
        )?),
        BrokerKind::Nats => Box::new(NatsCatalog::new(
            &nats_cluster(config, &source.cluster),
            part,
        )),
    })
}

/// A NATS cluster that routes name.
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
