//! The wiring: builds the adapters from the configuration and hands them to the roles, each loop on a thread of its own. The only file that
//! knows every concrete type.

use crate::admin;
use crate::broker::kafka::{Cluster, KafkaCatalog, KafkaSource, KafkaTarget};
use crate::broker::{Catalog, Target};
use crate::cli::Reset;
use crate::clock::WallClock;
use crate::config::{self, Config};
use crate::health::{Health, Part};
use crate::ingress::{self, Ingress, Writer};
use crate::limit::{
    DRAIN_MAX, HINTS_MAX, HOLDINGS_MAX, IN_FLIGHT_MAX, LOADER_QUEUE_MAX, REPLIES_MAX, RETRY_SLACK, STOP_MAX, STORE_RETRY_MAX,
};
use crate::metric;
use crate::model::{AllowList, Partition, Rules, ShardId, WithoutDelay};
use crate::store::embedded::{self, Embedded};
use crate::store::metered::Metered;
use crate::store::redis::{self, Redis};
use crate::store::{self, State, Store};
use crate::task::{self, TaskGroup, Token};
use crate::telemetry::Telemetry;
use crate::timer::{self, Claimable, Claimer, Dispatcher, GaveUp, Holding, Loader, Outcry, Outlets, Policy, RouteOptions};
use anyhow::{Context, Result};
use rand::rngs::{StdRng, SysRng};
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Serves the roles that `config` names until the process is told to stop, or one of its loops fails.
pub(crate) fn serve(config: &Config, telemetry: &Telemetry) -> Result<()> {
    let mut random = StdRng::try_from_rng(&mut SysRng).context("the system has no randomness to give")?;
    let listener = admin::bind(config.admin.listen)?;
    let (health, give_up) = (Health::new(), Token::new());
    let starting = health.part("process");
    let store = StoreAt::of(config)?;
    let plan = Arc::new(Plan { config: config.clone(), store, health: health.clone(), give_up: give_up.clone() });
    let mut group = TaskGroup::new();
    let (render, upkeep) = (telemetry.clone(), telemetry.clone());
    group.thread("admin", move |stop| async move {
        let served = admin::serve(listener, health, Arc::new(move || render.render()), stop.clone());
        tokio::join!(served, upkeep.upkeep(stop)).0
    })?;
    let (hint, hints) = mpsc::channel(HINTS_MAX);
    if config.roles.ingress {
        for route in config.routes.keys() {
            start_ingress(&mut group, &plan, route, (hint.clone(), random.random()))?;
        }
    }
    // A timer without an ingress beside it polls: a hint is all it lacks.
    if config.roles.timer {
        start_timer(&mut group, &plan, (hint, hints), random.random())?;
    }
    starting.retire();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(until_stopped(group, give_up))
}

/// Waits for a signal or a failure; then all drain, and who has not after [`DRAIN_MAX`] gives up what it has.
async fn until_stopped(group: TaskGroup, give_up: Token) -> Result<()> {
    let token = group.token();
    let signal = async {
        match task::signal().await {
            Ok(name) => tracing::info!(signal = name, "stopping"),
            Err(error) => tracing::error!(%error, "signals cannot be waited for: stopping"),
        }
    };
    let limit = async {
        token.cancelled().await;
        tokio::time::sleep(DRAIN_MAX).await;
        give_up.cancel();
        std::future::pending::<()>().await;
    };
    // The limit never ends by itself; dropping it when all has ended is the point.
    tokio::select! {
        biased;
        result = group.join(signal, STOP_MAX) => Ok(result?),
        () = limit => unreachable!("it waits for ever"),
    }
}

/// What every loop is built from.
struct Plan {
    config: Config,
    store: StoreAt,
    health: Health,
    /// Cancelled when a stopping process has drained for long enough.
    give_up: Token,
}

fn start_ingress(group: &mut TaskGroup, plan: &Arc<Plan>, route: &str, (hint, writer): (mpsc::Sender<ShardId>, u64)) -> Result<()> {
    let ((jobs, settled), (jobs_in, settled_out)) = ingress::channels();
    let (here, name, starting) = (plan.clone(), route.to_owned(), plan.starting(&format!("ingress of {route}")));
    group.thread(&format!("ingress-{route}"), move |stop| async move {
        let Some(store) = here.store(&starting, &stop).await? else { return anyhow::Ok(()) };
        let ports = ingress::Ports {
            source: Box::new(here.source(&name)?),
            store,
            clock: Rc::new(WallClock),
            health: ingress::Parts::new(&here.health, &name),
            metric: metric::Route::new(&name),
            jobs,
            settled,
        };
        begun(starting);
        Ok(Ingress::new(here.ingress_options(&name), ports, writer).serve(stop).await?)
    })?;
    let (here, name, starting) = (plan.clone(), route.to_owned(), plan.starting(&format!("writer of {route}")));
    group.thread(&format!("writer-{route}"), move |stop| async move {
        let Some(store) = here.store(&starting, &stop).await? else { return anyhow::Ok(()) };
        let health = here.ready_part(&format!("route {name} writer"));
        begun(starting);
        let writer = Writer { store, jobs: jobs_in, settled: settled_out, hint, health };
        Ok(writer.serve(here.give_up.clone()).await?)
    })?;
    Ok(())
}

fn start_timer(
    group: &mut TaskGroup,
    plan: &Arc<Plan>,
    (hint, hints): (mpsc::Sender<ShardId>, mpsc::Receiver<ShardId>),
    seed: u64,
) -> Result<()> {
    let (requests, requests_in) = mpsc::channel(LOADER_QUEUE_MAX);
    let (replies_out, replies) = mpsc::channel(REPLIES_MAX);
    let (here, starting) = (plan.clone(), plan.starting("timer"));
    group.thread("timer", move |stop| async move {
        // Held, so that the hints do not end with the last ingress.
        let _hint = hint;
        let Some(store) = here.store(&starting, &stop).await? else { return anyhow::Ok(()) };
        let (holdings_out, holdings) = mpsc::channel(HOLDINGS_MAX);
        let (gave_up, gave_up_in) = mpsc::channel(HOLDINGS_MAX);
        let claimer = here.claimer(store.clone(), seed, (holdings_out, gave_up_in))?;
        let ports = timer::Ports {
            store,
            clock: Rc::new(WallClock),
            claims: here.ready_part("claims"),
            clock_ahead: here.ready_part("clock ahead"),
            metric: metric::Timer::new(),
            outlets: here.outlets()?,
            holdings,
            gave_up,
            requests,
            replies,
            hints,
        };
        let dispatcher = Dispatcher::new(here.timer_options(), ports);
        begun(starting);
        Ok(timer::serve(claimer, dispatcher, stop, here.give_up.clone()).await?)
    })?;
    let (here, starting) = (plan.clone(), plan.starting("loader"));
    group.thread("loader", move |stop| async move {
        let Some(store) = here.store(&starting, &stop).await? else { return anyhow::Ok(()) };
        let loader = Loader { store, requests: requests_in, replies: replies_out, health: here.ready_part("loader") };
        begun(starting);
        Ok(loader.serve(stop).await?)
    })?;
    Ok(())
}

/// The loop has made its parts; see [`Plan::starting`].
fn begun(starting: Part) {
    starting.ready();
    starting.retire();
}

/// Erases what the store keeps of a topic's shards, so that the topic as it is now is read from its start.
pub(crate) fn reset(config: &Config, reset: &Reset) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = StoreAt::of(config)?.connect().await.context("store.redis")?;
        let source = &config.routes[&reset.route].source;
        let partitions = match reset.partition {
            // Whether or not the topic has it now: it may have been created again with fewer.
            Some(index) => vec![Partition::new(reset.topic.as_str(), index)],
            None => {
                let mut catalog = KafkaCatalog::new(&cluster(config, &source.cluster), Health::new().part("reset"))?;
                catalog.partitions(std::slice::from_ref(&reset.topic)).await?
            }
        };
        anyhow::ensure!(!partitions.is_empty(), "the topic {} does not exist: create it first", reset.topic);
        let shards: Vec<_> = partitions.into_iter().map(|partition| ShardId::new(reset.route.as_str(), partition)).collect();
        let waiting = still_waiting(&shards, store.state(&shards).await?);
        anyhow::ensure!(
            waiting.is_empty() || reset.discard,
            "messages still wait, so nothing was erased ({}): let a running service deliver them first, or give --discard to lose them",
            waiting.join(", ")
        );
        store.erase(&shards).await?;
        tracing::info!(shards = shards.len(), "reset: the service, started again, reads the topic from its first retained record");
        Ok(())
    })
}

/// The shards of which an erasure would lose messages, with their number.
fn still_waiting(shards: &[ShardId], states: Vec<Option<State>>) -> Vec<String> {
    let pending = states.into_iter().map(|state| state.map_or(0, |state| state.pending + state.quarantined));
    shards.iter().zip(pending).filter(|(_, pending)| *pending > 0).map(|(shard, pending)| format!("{shard}: {pending}")).collect()
}

impl Plan {
    /// Stands for a loop until it has parts of its own, and is registered before its thread runs: else the process would be ready for the
    /// moments in which some loops have begun and others have not said anything yet.
    fn starting(&self, user: &str) -> Part {
        self.health.part(format!("store of {user}"))
    }

    /// A store connection of the loop's own; waits for a store that does not answer yet. `None`: the process is to stop.
    async fn store(&self, starting: &Part, stop: &Token) -> Result<Option<Rc<dyn Store>>> {
        loop {
            match self.store.connect().await {
                Ok(store) => return Ok(Some(store)),
                Err(error) if error.is_transient() => starting.not_ready(error.to_string()),
                Err(error) => return Err(error).context("store.redis"),
            }
            // Both arms are safe to drop.
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(STORE_RETRY_MAX) => {}
            }
        }
    }

    /// A part that is in order until it says otherwise.
    fn ready_part(&self, name: &str) -> Part {
        let part = self.health.part(name);
        part.ready();
        part
    }

    fn route(&self, name: &str) -> &config::Route {
        &self.config.routes[name]
    }

    fn cluster(&self, name: &str) -> Cluster {
        cluster(&self.config, name)
    }

    fn source(&self, name: &str) -> Result<KafkaSource> {
        let source = &self.route(name).source;
        let cluster = self.cluster(&source.cluster);
        KafkaSource::new(&cluster, group(&self.config, name), &source.topics, self.health.part(format!("route {name} source client")))
            .with_context(|| format!("route.{name}.source"))
    }

    fn rules(&self, name: &str) -> Rules {
        let route = self.route(name);
        Rules {
            default_target: route.target.as_ref().map(|target| target.topic.as_str().into()),
            allow: AllowList::new(route.allow.clone().unwrap_or_default()),
            sources: self.config.source_topics(route.target_cluster()),
            max_delay: route.max_delay,
            retry_max: route.retry.backoff_max + RETRY_SLACK,
            without_delay: match route.without_delay {
                config::WithoutDelay::Relay => WithoutDelay::Relay,
                config::WithoutDelay::DeadLetter => WithoutDelay::DeadLetter,
            },
            dialects: route.dialects,
        }
    }

    fn ingress_options(&self, name: &str) -> ingress::Options {
        ingress::Options {
            deployment: self.config.deployment.as_str().into(),
            route: name.into(),
            rules: self.rules(name),
            stops_at_gap: self.route(name).on_source_gap == config::OnSourceGap::Stop,
        }
    }

    fn timer_options(&self) -> timer::Options {
        let routes = self.config.routes.iter().map(|(name, route)| {
            let options = RouteOptions {
                rules: self.rules(name),
                dead_letter: route.dead_letter.topic.clone(),
                retry: Policy {
                    max_attempts: route.retry.max_attempts,
                    backoff: route.retry.backoff,
                    backoff_max: route.retry.backoff_max,
                },
                source_cluster: route.source.cluster.clone(),
                target_cluster: route.target_cluster().to_owned(),
                dead_letter_cluster: route.dead_letter.cluster.clone(),
                metric: metric::Route::new(name),
                outcry: Outcry::new(self.health.part(format!("route {name} outlets"))),
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

    fn claimer(
        &self,
        store: Rc<dyn Store>,
        seed: u64,
        (holdings, gave_up): (mpsc::Sender<Holding>, mpsc::Receiver<GaveUp>),
    ) -> Result<Claimer> {
        let claimable = |(name, route): (&String, &config::Route)| -> Result<Claimable> {
            Ok(Claimable {
                route: name.as_str().into(),
                topics: route.source.topics.clone(),
                group: group(&self.config, name),
                catalog: Box::new(KafkaCatalog::new(
                    &self.cluster(&route.source.cluster),
                    self.health.part(format!("route {name} catalog client")),
                )?),
                health: self.health.part(format!("route {name} catalog")),
            })
        };
        Ok(Claimer {
            routes: self.config.routes.iter().map(claimable).collect::<Result<_>>()?,
            store,
            clock: Rc::new(WallClock),
            leases: self.health.part("leases"),
            clocks: self.ready_part("clock"),
            lease: self.config.timer.lease,
            skew_max: self.config.timer.max_clock_skew,
            random: StdRng::seed_from_u64(seed),
            metric: metric::Timer::new(),
            holdings,
            gave_up,
        })
    }

    /// A target for each cluster that anything goes to: targets, dead letters and, for retries, sources.
    fn outlets(&self) -> Result<Outlets> {
        let mut names = BTreeSet::new();
        for route in self.config.routes.values() {
            names.extend([route.source.cluster.as_str(), route.target_cluster(), route.dead_letter.cluster.as_str()]);
        }
        let target = |name: &str| -> Result<(String, Box<dyn Target>)> {
            let target = KafkaTarget::new(&self.cluster(name), IN_FLIGHT_MAX, self.health.part(format!("target client of kafka.{name}")))
                .with_context(|| format!("kafka.{name}"))?;
            Ok((name.to_owned(), Box::new(target)))
        };
        let targets: Result<BTreeMap<_, _>> = names.into_iter().map(target).collect();
        Ok(Outlets::new(targets?))
    }
}

/// The consumer group of a route's ingress.
fn group(config: &Config, route: &str) -> String {
    format!("{}.{route}", config.deployment)
}

fn cluster(config: &Config, name: &str) -> Cluster {
    let kafka = &config.kafka[name];
    let properties = kafka.properties.iter().map(|(key, value)| (key.clone(), value.expose().to_owned()));
    Cluster { name: name.into(), brokers: kafka.brokers.clone(), properties: properties.collect() }
}

/// Where the loops of this process get their stores from.
enum StoreAt {
    /// A connection each.
    Redis(redis::Options),
    /// One for all.
    Embedded(Embedded),
}

impl StoreAt {
    /// Opens an embedded store, which is this process' alone from then on.
    fn of(config: &Config) -> Result<Self> {
        let deployment = config.deployment.clone();
        Ok(match &config.store {
            config::Store::Redis(redis) => Self::Redis(redis::Options {
                url: redis.url.expose().to_owned(),
                username: redis.username.clone(),
                password: redis.password.as_ref().map(|password| password.expose().to_owned()),
                deployment,
            }),
            config::Store::Embedded(embedded) => {
                let options = embedded::Options { path: embedded.path.clone(), deployment };
                Self::Embedded(Embedded::open(&options, WallClock).context("store.embedded")?)
            }
        })
    }

    async fn connect(&self) -> Result<Rc<dyn Store>, store::Error> {
        Ok(match self {
            Self::Redis(options) => Rc::new(Metered::new(Redis::connect(options).await?)),
            Self::Embedded(embedded) => Rc::new(Metered::new(embedded.clone())),
        })
    }
}
