//! Everything that the threads of a process share, and how a thread gets a store connection.

use super::StoreFactory;
use super::brokers::{Cluster, naming};
use crate::broker::Catalog;
use crate::config::{self, Config};
use crate::health::{Health, HealthPart};
use crate::limit::{RETRY_CLOCK_SKEW_MAX, STORE_RETRY_DELAY_MAX};
use crate::model::{RoutingRules, TargetRules, WithoutDelay};
use crate::store::Store;
use crate::task::{StopToken, TaskGroup};
use crate::trace::Tracer;
use anyhow::{Context, Result};
use std::rc::Rc;
use std::sync::Arc;

pub(super) struct Wiring {
    pub(super) config: Config,
    pub(super) store: StoreFactory,
    pub(super) health: Health,
    pub(super) tracer: Tracer,
    /// Cancelled when a stopping process has drained for
    /// [`DRAIN_TIMEOUT`](crate::limit::DRAIN_TIMEOUT).
    pub(super) give_up: StopToken,
    /// Cancelled with `give_up`, and when the timer has stored its last delivered pairs.
    pub(super) timers_done: StopToken,
}

/// Everything that the body of a thread with a store connection works with.
pub(super) struct StoreThread {
    pub(super) wiring: Arc<Wiring>,
    pub(super) store: Rc<dyn Store>,
    pub(super) stop: StopToken,
    pub(super) startup: Startup,
}

/// Keeps the process unready until the thread has registered its own health parts. It is registered
/// before the thread starts, so the process is never ready while some threads have not started.
pub(super) struct Startup(HealthPart);

impl Startup {
    pub(super) fn finish(self) {
        self.0.set_ready();
        self.0.unregister();
    }
}

impl Wiring {
    /// Starts a thread that has a store connection of its own. Runs `body` once the store has
    /// answered.
    pub(super) fn spawn_with_store<B>(
        self: &Arc<Self>,
        group: &mut TaskGroup,
        name: &str,
        body: B,
    ) -> Result<()>
    where
        B: AsyncFnOnce(StoreThread) -> Result<()> + Send + 'static,
    {
        let wiring = self.clone();
        let startup = Startup(self.health.register(format!("store of {name}")));
        group.spawn_thread(name, move |stop| async move {
            let Some(store) = wiring.connect_store(&startup, &stop).await? else {
                return Ok(());
            };
            let thread = StoreThread {
                wiring,
                store,
                stop,
                startup,
            };
            body(thread).await
        })?;
        Ok(())
    }

    /// Connects to the store, and retries while it does not answer. `None` if the process stops
    /// first.
    async fn connect_store(
        &self,
        startup: &Startup,
        stop: &StopToken,
    ) -> Result<Option<Rc<dyn Store>>> {
        loop {
            match self.store.connect().await {
                Ok(store) => return Ok(Some(store)),
                Err(error) if error.is_transient() => startup.0.set_not_ready(error.to_string()),
                Err(error) => return Err(error).context("store.redis"),
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(STORE_RETRY_DELAY_MAX) => {}
            }
        }
    }

    /// A health part that is ready until it reports a problem.
    pub(super) fn ready_part(&self, name: &str) -> HealthPart {
        let part = self.health.register(name);
        part.set_ready();
        part
    }

    pub(super) fn route(&self, name: &str) -> &config::Route {
        &self.config.routes[name]
    }
}

/// The consumer group of a route's ingress.
pub(super) fn consumer_group(config: &Config, route: &str) -> String {
    format!("{}.{route}", config.deployment)
}

/// The group in which the markers of an exactly-once route are committed.
pub(super) fn marker_group(config: &Config, route: &str) -> String {
    format!("{}.delivered", consumer_group(config, route))
}

/// A catalog of the route's source, and of the commits of its ingress.
pub(crate) fn catalog(
    config: &Config,
    route: &str,
    health: HealthPart,
) -> Result<Box<dyn Catalog>> {
    let source = &config.routes[route].source;
    let group = consumer_group(config, route);
    Cluster::of(config, &source.cluster).catalog(&group, health)
}

/// The rules by which records of the route are parsed and delivered.
pub(crate) fn routing_rules(config: &Config, name: &str) -> RoutingRules {
    let route = &config.routes[name];
    RoutingRules {
        targets: TargetRules::new(
            naming(route.target_kind()),
            route.target.as_ref().map(|target| target.name.as_str()),
            route.allow.clone().unwrap_or_default(),
            config.source_topics_of(route.target_cluster()),
        ),
        max_delay: route.max_delay,
        max_retry_wait: route.retry.backoff_max + RETRY_CLOCK_SKEW_MAX,
        without_delay: match route.without_delay {
            config::WithoutDelay::Relay => WithoutDelay::Relay,
            config::WithoutDelay::DeadLetter => WithoutDelay::DeadLetter,
        },
        dialects: route.dialects,
    }
}
