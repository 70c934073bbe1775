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
//! `wiring` holds what all threads share. `process` starts the roles, and starts others when the
//! configuration has changed.

mod admin_threads;
mod hints;
mod ingress_threads;
mod membership_thread;
mod memory;
mod process;
mod store_factory;
mod timer_threads;
mod trace_thread;
mod wiring;
mod worker_name;

pub(crate) use memory::memory_plan;
pub use process::serve;
pub(crate) use store_factory::{StoreFactory, query_context, redis_options};
pub(crate) use wiring::{groups, redrive_group, routing_rules};

use crate::clock::{SteadyClock, WallClock};
use crate::config::{Config, Role};
use crate::health::Health;
use crate::limit::{DRAIN_TIMEOUT, HINT_QUEUE_MAX, SHUTDOWN_TIMEOUT};
use crate::model::{SessionId, WorkerId};
use crate::task::{StopToken, TaskGroup};
use crate::telemetry::Telemetry;
use anyhow::{Context, Result};
use rand::rngs::{StdRng, SysRng};
use rand::{RngExt, SeedableRng};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
pub(crate) use wiring::StartTimes;
use wiring::{Limits, RouteLimits, Wiring};

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
    health: Health,
    /// The address of the console.
    console: String,
}

/// The arguments of [`Service::start`].
pub(crate) struct ServiceStart<'a> {
    pub(crate) config: &'a Config,
    pub(crate) telemetry: &'a Telemetry,
    /// The one of the admin endpoint.
    pub(crate) listener: TcpListener,
    /// For a process that leaves no files behind.
    pub(crate) lock_folder: Option<&'a Path>,
    pub(crate) started: &'a StartTimes,
}

/// An error of a service some of whose threads still run.
#[derive(Debug, thiserror::Error)]
#[error("some threads did not stop")]
pub(crate) struct ThreadsRemain;

impl Service {
    /// Starts the configured roles. If one cannot start, all of them end.
    pub(crate) async fn start(start: ServiceStart<'_>) -> Result<Self> {
        let config = start.config;
        warn_of_former_memory(config);
        let scheme = match config.admin.certificate {
            None => "http",
            Some(_) => "https",
        };
        let limits = config.routes.iter();
        let limits = limits.map(|(name, route)| (name.clone(), RouteLimits::of(route)));
        let mut service = Self {
            console: format!("{scheme}://{}/", start.listener.local_addr()?),
            group: TaskGroup::new(),
            give_up: StopToken::new(),
            limits: Arc::new(limits.collect()),
            health: Health::new(),
        };
        if let Err(error) = service.start_threads(start) {
            return match service.run_until(std::future::ready(())).await {
                Err(left_over) if left_over.is::<ThreadsRemain>() => {
                    Err(error.context(ThreadsRemain))
                }
                _ => Err(error),
            };
        }
        Ok(service)
    }

    fn start_threads(&mut self, start: ServiceStart<'_>) -> Result<()> {
        let (config, group) = (start.config, &mut self.group);
        let default_folder = worker_name::default_folder();
        let lock_folder = start.lock_folder.unwrap_or(&default_folder);
        let mut random = StdRng::try_from_rng(&mut SysRng)
            .context("cannot read random bytes from the operating system")?;
        let startup = self.health.register("process");
        let clock = SteadyClock::new(WallClock);
        let store = StoreFactory::open(config, clock.clone())?;
        let trace_random = StdRng::seed_from_u64(random.random());
        let tracer = trace_thread::start(group, config, trace_random)?;
        let has_timer = config.roles.contains(&Role::Timer);
        let leases_released = match has_timer {
            true => StopToken::new(),
            false => group.token(),
        };
        let wiring = Arc::new(Wiring {
            worker: worker_name::WorkerName::take(config, lock_folder, random.random())?,
            config: config.clone(),
            started: start.started.clone(),
            limits: self.limits.clone(),
            keys: config.keys(),
            memory: memory_plan(config),
            store,
            clock,
            health: self.health.clone(),
            tracer,
            timers_done: self.give_up.child_token(),
            leases_released,
            give_up: self.give_up.clone(),
        });
        let (listener, telemetry) = (start.listener, start.telemetry);
        admin_threads::start(group, &wiring, listener, telemetry, random.random())?;
        let worker = WorkerId::of_name(&wiring.worker.name);
        let session = SessionId::first(worker, random.random());
        let mut assignments = membership_thread::start(group, &wiring, session)?;
        let (hints_out, hints_in) = mpsc::channel(HINT_QUEUE_MAX);
        let notifier = hints::start(group, &wiring, &hints_out, session)?;
        if config.roles.contains(&Role::Ingress) {
            let timer = has_timer.then(|| hints_out.clone());
            let receivers = notifier.into_iter().chain(timer).collect();
            let (random, assignments) = (&mut random, &mut assignments);
            ingress_threads::start(group, &wiring, receivers, assignments, random)?;
        }
        if has_timer {
            let hints = (hints_out, hints_in);
            timer_threads::start(group, &wiring, hints, assignments, random.random())?;
        } else {
            wiring.timers_done.cancel();
        }
        startup.unregister();
        Ok(())
    }

    pub(crate) fn console(&self) -> &str {
        &self.console
    }

    /// Waits until `stop` is ready or a thread fails, then drains all roles. After
    /// [`DRAIN_TIMEOUT`] the roles give up their outstanding work. The error is a [`ThreadsRemain`] if
    /// threads are left over.
    pub(crate) async fn run_until(&mut self, stop: impl Future<Output = ()>) -> Result<()> {
        let stopping = self.group.token();
        let drain_timeout = async {
            stopping.cancelled().await;
            tokio::time::sleep(DRAIN_TIMEOUT).await;
            self.give_up.cancel();
            std::future::pending::<()>().await;
        };
        let result = tokio::select! {
            biased;
            result = self.group.join(stop, SHUTDOWN_TIMEOUT) => result.map_err(anyhow::Error::from),
            () = drain_timeout => unreachable!("it is pending forever"),
        };
        match self.group.is_empty() {
            true => result,
            false => result.context(ThreadsRemain),
        }
    }
}

/// A runtime for the thread that starts and stops the others.
pub(crate) fn main_runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}
