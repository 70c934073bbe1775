//! Everything that the threads of a process share, and how a thread gets a store connection.

use super::StoreFactory;
use super::worker_name::WorkerName;
use crate::clock::{Clock as _, SteadyClock, WallClock};
use crate::config::{self, Config};
use crate::encryption::KeyRing;
use crate::health::{Health, HealthPart};
use crate::ingress::Quota;
use crate::limit::{MemoryPlan, RETRY_CLOCK_SKEW_MAX, STORE_RETRY_DELAY_MAX};
use crate::model::{OnDuplicate, ReplyRules, RoutingRules, TargetRules, Timestamp, WithoutDelay};
use crate::store::Store;
use crate::task::{StopToken, TaskGroup};
use crate::trace::Tracer;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

pub(super) struct Wiring {
    pub(super) worker: WorkerName,
    pub(super) config: Config,
    pub(super) started: StartTimes,
    pub(super) limits: Arc<Limits>,
    pub(super) keys: KeyRing,
    pub(super) memory: MemoryPlan,
    pub(super) store: StoreFactory,
    /// The clock of the process, also of its embedded store.
    pub(super) clock: SteadyClock<WallClock>,
    pub(super) health: Health,
    pub(super) tracer: Tracer,
    /// Cancelled when a stopping process has drained for
    /// [`DRAIN_TIMEOUT`](crate::limit::DRAIN_TIMEOUT).
    pub(super) give_up: StopToken,
    /// Cancelled with `give_up`, and when the timer has stored its last delivered pairs.
    pub(super) timers_done: StopToken,
    /// Cancelled when the timer has released its leases, so that the session is not needed.
    pub(super) leases_released: StopToken,
}

/// When the process, and the service of each route in it, began. Roles that begin again change neither.
#[derive(Clone)]
pub(crate) struct StartTimes {
    pub(super) process: Timestamp,
    pub(super) routes: BTreeMap<String, Timestamp>,
}

impl StartTimes {
    pub(crate) fn new(config: &Config) -> Self {
        let mut started = Self {
            process: WallClock.now(),
            routes: BTreeMap::new(),
        };
        started.update(config);
        started
    }

    /// Takes the routes that are added or removed.
    pub(super) fn update(&mut self, config: &Config) {
        self.routes
            .retain(|name, _| config.routes.contains_key(name));
        for name in config.routes.keys() {
            self.routes
                .entry(name.clone())
                .or_insert_with(|| WallClock.now());
        }
    }
}

/// By route. A reload of the configuration changes them.
pub(super) type Limits = BTreeMap<String, RouteLimits>;

/// The limits of a route that may change while the process runs.
pub(super) struct RouteLimits {
    pub(super) quota: watch::Sender<Quota>,
    pub(super) rate: watch::Sender<Option<u32>>,
    pub(super) catch_up_rate: watch::Sender<Option<u32>>,
}

impl RouteLimits {
    pub(super) fn of(route: &config::Route) -> Self {
        Self {
            quota: watch::Sender::new(quota(route)),
            rate: watch::Sender::new(route.rate),
            catch_up_rate: watch::Sender::new(route.catch_up_rate),
        }
    }

    pub(super) fn set(&self, route: &config::Route) {
        self.quota.send_replace(quota(route));
        self.rate.send_replace(route.rate);
        self.catch_up_rate.send_replace(route.catch_up_rate);
    }
}

fn quota(route: &config::Route) -> Quota {
    let max = route.max_waiting.unwrap_or_default();
    Quota {
        messages: max.messages.map(u64::from),
        bytes: max.bytes,
        refuses: route.over_quota == config::OverQuota::DeadLetter,
    }
}

/// Everything that a thread with a store connection works with.
pub(super) struct StoreThread {
    pub(super) wiring: Arc<Wiring>,
    pub(super) store: Rc<dyn Store>,
    pub(super) stop: StopToken,
}

impl Wiring {
    /// Starts a thread that has a store connection of its own, with this timeout of calls. Once the store has answered, `build`
    /// registers the thread's health parts and returns its loop. Until then the process is not
    /// ready, because of a part that is registered before the thread starts.
    pub(super) fn spawn_with_store<B, F>(
        self: &Arc<Self>,
        group: &mut TaskGroup,
        name: &str,
        response_timeout: Duration,
        build: B,
    ) -> Result<()>
    where
        B: FnOnce(StoreThread) -> Result<F> + Send + 'static,
        F: Future<Output = Result<()>>,
    {
        let wiring = self.clone();
        let startup = self.health.register(format!("store of {name}"));
        group.spawn_thread(name, move |stop| async move {
            let connected = stop
                .run_until_cancelled(wiring.connect_store(response_timeout, &startup))
                .await;
            let Some(store) = connected.transpose()? else {
                return Ok(());
            };
            let serve = build(StoreThread {
                wiring,
                store,
                stop,
            })?;
            startup.set_ready();
            startup.unregister();
            serve.await
        })?;
        Ok(())
    }

    /// Connects to the store, and retries while it does not answer.
    async fn connect_store(
        &self,
        response_timeout: Duration,
        startup: &HealthPart,
    ) -> Result<Rc<dyn Store>> {
        loop {
            match self.store.connect(response_timeout).await {
                Ok(store) => return Ok(store),
                Err(error) if error.is_transient() => startup.set_not_ready(error.to_string()),
                Err(error) => return Err(error).context("store.redis"),
            }
            tokio::time::sleep(STORE_RETRY_DELAY_MAX).await;
        }
    }

    /// A health part that is ready until it reports a problem.
    pub(super) fn ready_part(&self, name: &str) -> HealthPart {
        let part = self.health.register(name);
        part.set_ready();
        part
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

/// The group in which redrives of a route commit their positions in the dead-letter topic.
pub(crate) fn redrive_group(config: &Config, route: &str) -> String {
    format!("{}.redrive", consumer_group(config, route))
}

/// The groups in which the route commits.
pub(crate) fn groups(config: &Config, route: &str) -> (String, Option<String>) {
    let is_exactly_once = config.routes[route].delivery == config::Delivery::ExactlyOnce;
    let markers = is_exactly_once.then(|| marker_group(config, route));
    (consumer_group(config, route), markers)
}

/// The rules by which records of the route are parsed and delivered.
pub(crate) fn routing_rules(config: &Config, name: &str) -> RoutingRules {
    let route = &config.routes[name];
    RoutingRules {
        targets: TargetRules::new(
            route.target_kind().facts().naming,
            route.target.as_ref().map(|target| target.name.as_str()),
            route.allow.clone().unwrap_or_default(),
            config.source_topics_of(route.target_cluster()),
        ),
        replies: route.allow_replies.as_ref().map(|allowed| {
            let sources = config.source_topics_of(route.target_cluster());
            ReplyRules {
                targets: TargetRules::replies(route.target_kind().facts().naming, allowed, sources),
                is_exactly_once: route.delivery == config::Delivery::ExactlyOnce,
            }
        }),
        max_delay: route.max_delay,
        max_retry_wait: route.max_delay.max(route.retry.backoff_max) + RETRY_CLOCK_SKEW_MAX,
        without_delay: match route.without_delay {
            config::WithoutDelay::Relay => WithoutDelay::Relay,
            config::WithoutDelay::DeadLetter => WithoutDelay::DeadLetter,
        },
        is_recurring: route.recurring,
        on_duplicate: match route.on_duplicate {
            config::OnDuplicate::Replace => OnDuplicate::Replace,
            config::OnDuplicate::KeepFirst => OnDuplicate::KeepFirst,
        },
        change_by_origin: route.change_by_origin,
        dialects: route.dialects,
        retry_keys: config.retry_keys(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::header::push_header;
    use crate::model::{
        Headers, Offset, OriginFormat, ParsedRecord, Partition, Record, ShardId, Timestamp,
        parse_record,
    };

    const CONFIG: &str = r#"deployment = "test"

[store.redis]
url = "redis://127.0.0.1:6379"

[kafka.main]
brokers = ["127.0.0.1:9092"]

[route.orders]
source = { kafka = "main", topics = ["orders.delayed"] }
target = { kafka = "main", topic = "orders" }
dead_letter = { kafka = "main", topic = "orders.dead" }
"#;

    #[test]
    fn a_reschedule_by_the_longest_delay_is_accepted_if_clocks_differ_by_a_minute_at_most() {
        let config = Config::parse_builtin(CONFIG).unwrap();
        let rules = routing_rules(&config, "orders");
        let shard = ShardId::new("orders", Partition::new("orders.delayed", 0));
        let sent_back = Timestamp::from_millis(1_700_000_000_000);
        for (ahead, is_accepted) in [(0, true), (60, true), (61, false)] {
            let due = sent_back.plus(rules.max_delay + Duration::from_secs(ahead));
            let line = format!(
                "v2 mac=- attempt=0 origin=test/orders/orders.delayed/0/5 due={due} target= error= at={due}",
                due = due.as_millis()
            );
            let mut block = Vec::new();
            push_header(&mut block, b"postdate-retry", Some(line.as_bytes()));
            let record = Record {
                offset: Offset(12),
                timestamp: Some(sent_back),
                key: None,
                payload: None,
                headers: Headers::from_block(&block),
            };
            let parsed = parse_record(&record, &OriginFormat::new("test", &shard), &rules);
            let is_message = matches!(parsed, ParsedRecord::Message { .. });
            assert_eq!(is_message, is_accepted, "{ahead} s: {parsed:?}");
        }
    }
}
