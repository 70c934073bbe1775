//! The wiring: builds stores and broker clients from the configuration and starts the threads of each
//! role's loops. Lease and dispatcher share the thread `timer`. Besides the commands, only this folder
//! knows concrete stores and brokers.
//!
//! | file | threads that it starts |
//! |---|---|
//! | `admin_threads` | `admin`, `queries`, `changes`, `dead-letters` |
//! | `trace_thread` | `traces`, if traces are configured |
//! | `hints` | `hints`, if other processes can share the store |
//! | `membership_thread` | `membership` |
//! | `ingress_threads` | `ingress`, `appender` |
//! | `timer_threads` | `timer`, `loader`, `compactor`, and `definitions` for recurring routes |
//!
//! `brokers` and `store_factory` build the adapters, and `memory` divides the memory among them.
//! `wiring` holds what all threads share. `reload` takes changed options at SIGHUP.

mod admin_threads;
mod brokers;
mod hints;
mod ingress_threads;
mod membership_thread;
mod memory;
mod reload;
mod store_factory;
mod timer_threads;
mod trace_thread;
mod wiring;
mod worker_name;

pub(crate) use brokers::{Cluster, SourceOptions, TargetOptions, TargetPurpose, nats_cluster};
pub(crate) use memory::memory_plan;
pub(crate) use store_factory::{StoreFactory, query_context, redis_options};
pub(crate) use wiring::{group_admin, groups, redrive_group, routing_rules};

use crate::admin;
use crate::clock::{SteadyClock, WallClock};
use crate::config::{Config, Role};
use crate::health::Health;
use crate::limit::{DRAIN_TIMEOUT, HINT_QUEUE_MAX, SHUTDOWN_TIMEOUT};
use crate::model::{SessionId, WorkerId};
use crate::task::{self, StopToken, TaskGroup};
use crate::telemetry::Telemetry;
use anyhow::{Context, Result};
use rand::rngs::{StdRng, SysRng};
use rand::{RngExt, SeedableRng};
use reload::Reloader;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;
use wiring::{Limits, RouteLimits, Wiring};

/// Runs the configured roles until SIGTERM or SIGINT, or until one of the threads fails. `file` is
/// the configuration file, which is read again at SIGHUP.
pub fn serve(config: &Config, telemetry: &Telemetry, file: &Path) -> Result<()> {
    let service = Service::start(config, telemetry, None)?;
    let (current, limits) = (config.clone(), service.limits.clone());
    let reloader = Reloader::new(file.to_owned(), current, limits, telemetry.clone());
    service.run_until(async {
        let stopped = tokio::select! {
            stopped = task::stop_signal() => stopped,
            error = reloader.serve() => Err(error),
        };
        match stopped {
            Ok(name) => tracing::info!(signal = name, "stopping"),
            Err(error) => tracing::error!(%error, "stopping: cannot wait for signals"),
        }
    })
}

fn warn_of_former_memory(config: &Config) {
    if config.has_former_memory() {
        tracing::warn!(
            "timer.memory is deprecated: replace it by memory = \"{}MiB\", which means the same",
            config.memory_budget() >> 20
        );
    }
}

/// The running roles.
pub(crate) struct Service {
    group: TaskGroup,
    give_up: StopToken,
    /// Not the whole wiring: the threads end when they have dropped it.
    limits: Arc<Limits>,
    /// The address of the console.
    console: String,
}

impl Service {
    /// Starts the configured roles. `lock_folder` is for a process that leaves no files behind.
    pub(crate) fn start(
        config: &Config,
        telemetry: &Telemetry,
        lock_folder: Option<&Path>,
    ) -> Result<Self> {
        let lock_folder = lock_folder.map_or_else(worker_name::default_folder, Path::to_owned);
        let mut random = StdRng::try_from_rng(&mut SysRng)
            .context("cannot read random bytes from the operating system")?;
        warn_of_former_memory(config);
        let listener = admin::bind(config.admin.listen)?;
        let scheme = match config.admin.certificate {
            None => "http",
            Some(_) => "https",
        };
        let console = format!("{scheme}://{}/", listener.local_addr()?);
        let mut group = TaskGroup::new();
        let health = Health::new();
        let startup = health.register("process");
        let clock = SteadyClock::new(WallClock);
        let store = StoreFactory::open(config, clock.clone())?;
        let trace_random = StdRng::seed_from_u64(random.random());
        let tracer = trace_thread::start(&mut group, config, trace_random)?;
        let give_up = StopToken::new();
        let has_timer = config.roles.contains(&Role::Timer);
        let leases_released = match has_timer {
            true => StopToken::new(),
            false => group.token(),
        };
        let limits = config.routes.iter();
        let limits = limits.map(|(name, route)| (name.clone(), RouteLimits::of(route)));
        let limits = Arc::new(limits.collect::<Limits>());
        let wiring = Arc::new(Wiring {
            worker: worker_name::WorkerName::take(config, &lock_folder, random.random())?,
            config: config.clone(),
            limits: limits.clone(),
            keys: config.keys(),
            memory: memory_plan(config),
            store,
            clock,
            health,
            tracer,
            timers_done: give_up.child_token(),
            leases_released,
            give_up: give_up.clone(),
        });
        admin_threads::start(&mut group, &wiring, listener, telemetry, random.random())?;
        let worker = WorkerId::of_name(&wiring.worker.name);
        let session = SessionId::first(worker, random.random());
        let mut assignments = membership_thread::start(&mut group, &wiring, session)?;
        let (hints_out, hints_in) = mpsc::channel(HINT_QUEUE_MAX);
        let notifier = hints::start(&mut group, &wiring, &hints_out, session)?;
        if config.roles.contains(&Role::Ingress) {
            let timer = has_timer.then(|| hints_out.clone());
            let receivers = notifier.into_iter().chain(timer).collect();
            let (random, assignments) = (&mut random, &mut assignments);
            ingress_threads::start(&mut group, &wiring, receivers, assignments, random)?;
        }
        if has_timer {
            let hints = (hints_out, hints_in);
            timer_threads::start(&mut group, &wiring, hints, assignments, random.random())?;
        } else {
            wiring.timers_done.cancel();
        }
        startup.unregister();
        Ok(Self {
            group,
            give_up,
            limits,
            console,
        })
    }

    pub(crate) fn console(&self) -> &str {
        &self.console
    }

    /// Waits until `stop` is ready or a thread fails, then drains all roles. After
    /// [`DRAIN_TIMEOUT`] the roles give up their outstanding work.
    pub(crate) fn run_until(self, stop: impl Future<Output = ()>) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let stopping = self.group.token();
            let drain_timeout = async {
                stopping.cancelled().await;
                tokio::time::sleep(DRAIN_TIMEOUT).await;
                self.give_up.cancel();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                result = self.group.join(stop, SHUTDOWN_TIMEOUT) => Ok(result?),
                () = drain_timeout => unreachable!("it is pending forever"),
            }
        })
    }
}
