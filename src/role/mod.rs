//! The wiring: builds the adapters from the configuration and hands them to the roles, each loop on a thread of its own. With the commands,
//! the only place that knows every concrete type.

mod hints;
mod store_factory;
mod wiring;

use crate::admin::{self, Auth, Endpoint, Tls};
use crate::clock::{Clock, WallClock};
use crate::config::{self, Config, Secret};
use crate::health::{Health, HealthPart};
use crate::ingress::{self, Appender, Ingress};
use crate::limit::{
    COMPACT_REQUEST_QUEUE_MAX, COMPACT_RESULT_QUEUE_MAX, DRAIN_TIMEOUT, HINT_QUEUE_MAX,
    LEASE_EVENT_QUEUE_MAX, LOADER_QUEUE_MAX, LOADER_REPLIES_MAX, SHUTDOWN_TIMEOUT,
    SPANS_FLUSH_TIMEOUT,
};
use crate::metric;
use crate::model::Hint;
use crate::task::{self, StopToken, TaskGroup};
use crate::telemetry::{Exporter, MessagingSystems, SpanConverter, Telemetry};
use crate::timer::{self, CompactionPolicy, Compactor, Dispatcher, Loader};
use crate::trace::Tracer;
use anyhow::{Context, Result};
use rand::rngs::{StdRng, SysRng};
use rand::{RngExt, SeedableRng};
use std::rc::Rc;
use std::sync::Arc;
pub(crate) use store_factory::{StoreFactory, redis_options, survey_scope};
use tokio::sync::mpsc;
use wiring::Wiring;
pub(crate) use wiring::{catalog, cluster, nats_cluster, routing_rules};

/// Serves the roles that `config` names until the process is told to stop, or one of its loops fails.
pub(crate) fn serve(config: &Config, telemetry: &Telemetry) -> Result<()> {
    Service::start(config, telemetry)?.run_until(async {
        match task::stop_signal().await {
            Ok(name) => tracing::info!(signal = name, "stopping"),
            Err(error) => tracing::error!(%error, "signals cannot be waited for: stopping"),
        }
    })
}

/// The roles at work, each loop on its thread.
pub(crate) struct Service {
    group: TaskGroup,
    health: Health,
    give_up: StopToken,
}

impl Service {
    /// Starts the roles that `config` names.
    pub(crate) fn start(config: &Config, telemetry: &Telemetry) -> Result<Self> {
        let mut random =
            StdRng::try_from_rng(&mut SysRng).context("the system has no randomness to give")?;
        let listener = admin::bind(config.admin.listen)?;
        let (health, give_up) = (Health::new(), StopToken::new());
        let starting = health.register("process");
        let store = StoreFactory::open(config)?;
        let timers_done = give_up.child_token();
        let mut group = TaskGroup::new();
        let tracer = start_traces(&mut group, config, StdRng::seed_from_u64(random.random()))?;
        let plan = Wiring {
            config: config.clone(),
            store,
            health: health.clone(),
            tracer,
            give_up: give_up.clone(),
            timers_done,
        };
        let plan = Arc::new(plan);
        let (render, served) = (telemetry.clone(), health.clone());
        let (guard, tls) = admin_auth(&config.admin)?;
        let (questions, asked) = admin::queries::channel();
        let (process, judged) = (metric::ProcessMetrics::new(WallClock.now()), health.clone());
        let render = move || {
            process.set(judged.not_ready().is_empty(), !judged.degraded().is_empty());
            render.render()
        };
        group.spawn_thread("admin", move |stop| async move {
            let desk = Endpoint {
                auth: guard,
                tls,
                health: served,
                render_metrics: Arc::new(render),
                queries: questions,
            };
            admin::serve(listener, desk, stop).await
        })?;
        let here = plan.clone();
        group.spawn_thread("survey", move |stop| async move {
            admin::queries::serve(
                asked,
                survey_scope(&here.config),
                WallClock,
                async || here.store.survey().await,
                stop.clone(),
            )
            .await;
            // The questions may end first: all others are told to end along with this one.
            stop.cancelled().await;
            anyhow::Ok(())
        })?;
        let (hint, hints) = mpsc::channel(HINT_QUEUE_MAX);
        let mut to_tell = start_hints(&mut group, &plan, &hint, random.random())?;
        if config.roles.ingress {
            to_tell.extend(config.roles.timer.then(|| hint.clone()));
            for route in config.routes.keys() {
                start_ingress(&mut group, &plan, route, (to_tell.clone(), random.random()))?;
            }
        }
        if config.roles.timer {
            start_timer(&mut group, &plan, (hint, hints), random.random())?;
        } else {
            plan.timers_done.cancel();
        }
        starting.unregister();
        Ok(Self {
            group,
            health,
            give_up,
        })
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// For loops that are to live and end with the service.
    pub(crate) fn group(&mut self) -> &mut TaskGroup {
        &mut self.group
    }

    /// Waits until `stop` is ready or a loop fails; then all drain, and who has not after [`DRAIN_MAX`] gives up what it has.
    pub(crate) fn run_until(self, stop: impl Future<Output = ()>) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let (token, give_up) = (self.group.token(), self.give_up);
            let limit = async {
                token.cancelled().await;
                tokio::time::sleep(DRAIN_TIMEOUT).await;
                give_up.cancel();
                std::future::pending::<()>().await;
            };
            // The limit never ends by itself; dropping it when all has ended is the point.
            tokio::select! {
                biased;
                result = self.group.join(stop, SHUTDOWN_TIMEOUT) => Ok(result?),
                () = limit => unreachable!("it waits for ever"),
            }
        })
    }
}

/// Who is let in by the admin endpoint, and how.
fn admin_auth(admin: &config::Admin) -> Result<(Auth, Option<Tls>)> {
    let tls = admin
        .tls
        .as_ref()
        .map(|tls| Tls::new(&tls.certificate, &tls.key, tls.client_ca.as_deref()))
        .transpose()?;
    let by_certificate = admin
        .tls
        .as_ref()
        .is_some_and(|tls| tls.client_ca.is_some());
    Ok((
        Auth::new(admin.token.as_ref().map(Secret::expose), by_certificate),
        tls,
    ))
}

/// The tracer of all roles; the thread that sends what it takes ends after them, unless the collector keeps it waiting.
fn start_traces(group: &mut TaskGroup, config: &Config, random: StdRng) -> Result<Tracer> {
    let (traces, metric) = (&config.traces, metric::TraceMetrics::new());
    let Some(endpoint) = &traces.endpoint else {
        return Ok(Tracer::default());
    };
    let authorization = traces.authorization.as_ref().map(Secret::expose);
    let systems = |route: &config::Route| MessagingSystems {
        source: route.source.kind.key(),
        target: route.target_kind().key(),
    };
    let systems = config
        .routes
        .iter()
        .map(|(name, route)| (name.clone(), systems(route)))
        .collect();
    let scribe = SpanConverter {
        deployment: config.deployment.clone(),
        systems,
        random,
    };
    let exporter = Exporter::new(endpoint, authorization, scribe).context("traces.endpoint")?;
    let (tracer, spans) = Tracer::new(traces.one_in, metric.dropped);
    group.spawn_thread("traces", move |stop| async move {
        let farewell = async {
            stop.cancelled().await;
            tokio::time::sleep(SPANS_FLUSH_TIMEOUT).await;
        };
        // What is not sent by then is lost, and no harm.
        tokio::select! {
            biased;
            () = exporter.serve(spans) => {}
            () = farewell => {}
        }
        anyhow::Ok(())
    })?;
    Ok(tracer)
}

/// The loop that carries hints from and to other processes, if there can be any. Answers where an ingress tells it.
fn start_hints(
    group: &mut TaskGroup,
    plan: &Arc<Wiring>,
    heard: &mpsc::Sender<Hint>,
    me: u64,
) -> Result<Vec<mpsc::Sender<Hint>>> {
    let Some(notifier) = plan.store.notifier(me)? else {
        return Ok(Vec::new());
    };
    let (tell, told) = mpsc::channel(HINT_QUEUE_MAX);
    let heard = plan.config.roles.timer.then(|| heard.clone());
    group.spawn_thread("hints", move |stop| async move {
        hints::serve(notifier, told, heard, stop).await;
        anyhow::Ok(())
    })?;
    Ok(vec![tell])
}

fn start_ingress(
    group: &mut TaskGroup,
    plan: &Arc<Wiring>,
    route: &str,
    (hints, writer): (Vec<mpsc::Sender<Hint>>, u64),
) -> Result<()> {
    let (appender, inbox) = ingress::appender_channels();
    let (here, name, starting) = (
        plan.clone(),
        route.to_owned(),
        plan.startup_part(&format!("ingress of {route}")),
    );
    group.spawn_thread(&format!("ingress-{route}"), move |stop| async move {
        let Some(store) = here.connect_store(&starting, &stop).await? else {
            return anyhow::Ok(());
        };
        let ports = ingress::Ports {
            source: here.source(&name, writer)?,
            store,
            clock: Rc::new(WallClock),
            health: ingress::HealthParts::new(&here.health, &name),
            metric: metric::RouteMetrics::new(&name),
            tracer: here.tracer.clone(),
            appender,
            timers_done: here.timers_done.clone(),
        };
        mark_started(starting);
        Ok(Ingress::new(here.ingress_options(&name), ports, writer)
            .serve(stop)
            .await?)
    })?;
    let (here, name, starting) = (
        plan.clone(),
        route.to_owned(),
        plan.startup_part(&format!("writer of {route}")),
    );
    group.spawn_thread(&format!("writer-{route}"), move |stop| async move {
        let Some(store) = here.connect_store(&starting, &stop).await? else {
            return anyhow::Ok(());
        };
        let health = here.ready_part(&format!("route {name} writer"));
        mark_started(starting);
        let writer = Appender {
            store,
            inbox,
            hints,
            health,
        };
        Ok(writer.serve(here.give_up.clone()).await?)
    })?;
    Ok(())
}

fn start_timer(
    group: &mut TaskGroup,
    plan: &Arc<Wiring>,
    (hint, hints): (mpsc::Sender<Hint>, mpsc::Receiver<Hint>),
    seed: u64,
) -> Result<()> {
    let (requests, requests_in) = mpsc::channel(LOADER_QUEUE_MAX);
    let (replies_out, replies) = mpsc::channel(LOADER_REPLIES_MAX);
    let (chores, chores_in) = mpsc::channel(COMPACT_REQUEST_QUEUE_MAX);
    let (looked_out, looked) = mpsc::channel(COMPACT_RESULT_QUEUE_MAX);
    let mut random = StdRng::seed_from_u64(seed);
    let (writer, worker) = (random.random(), random.random());
    let (here, starting) = (plan.clone(), plan.startup_part("timer"));
    group.spawn_thread("timer", move |stop| async move {
        let _done = here.timers_done.clone().drop_guard();
        // Held, so that the hints do not end with the last ingress.
        let _hint = hint;
        let Some(store) = here.connect_store(&starting, &stop).await? else {
            return anyhow::Ok(());
        };
        let (holdings_out, holdings) = mpsc::channel(LEASE_EVENT_QUEUE_MAX);
        let (gave_up, gave_up_in) = mpsc::channel(LEASE_EVENT_QUEUE_MAX);
        let claimer = here.lease_keeper(store.clone(), seed, (holdings_out, gave_up_in))?;
        let ports = timer::Ports {
            store,
            clock: Rc::new(WallClock),
            claims_health: Rc::new(here.ready_part("claims")),
            clock_health: here.ready_part("clock ahead"),
            metric: metric::TimerMetrics::new(),
            producers: here.producers(worker)?,
            lease_events: holdings,
            release_results: gave_up,
            requests,
            replies,
            hints,
            compaction_jobs: chores,
            compaction_results: looked,
        };
        let dispatcher = Dispatcher::new(here.timer_options(), ports);
        mark_started(starting);
        let stops =
            timer::ShutdownSignals::new(stop, here.give_up.clone(), here.timers_done.clone());
        Ok(timer::serve(claimer, dispatcher, stops).await?)
    })?;
    let (here, starting) = (plan.clone(), plan.startup_part("loader"));
    group.spawn_thread("loader", move |stop| async move {
        let Some(store) = here.connect_store(&starting, &stop).await? else {
            return anyhow::Ok(());
        };
        let loader = Loader {
            store,
            requests: requests_in,
            replies: replies_out,
            health: here.ready_part("loader"),
        };
        mark_started(starting);
        // A timer that ends serves on while it hands its shards over, and ends the requests when it has.
        Ok(loader.serve(here.give_up.clone()).await?)
    })?;
    let (here, starting) = (plan.clone(), plan.startup_part("rewriter"));
    group.spawn_thread("rewriter", move |stop| async move {
        task::lower_thread_priority();
        let Some(store) = here.connect_store(&starting, &stop).await? else {
            return anyhow::Ok(());
        };
        let rewriter = Compactor {
            store,
            tasks: chores_in,
            replies: looked_out,
            policy: CompactionPolicy::DEFAULT,
            writer,
        };
        mark_started(starting);
        Ok(rewriter.serve(stop).await?)
    })?;
    Ok(())
}

/// The loop has made its parts; see [`Plan::starting`].
fn mark_started(starting: HealthPart) {
    starting.set_ready();
    starting.unregister();
}
