//! Runs the configured roles for the life of the process, and applies changes of the configuration.
//!
//! The configuration is read again at SIGHUP, and at an interval with `worker.watch_config`. The
//! running roles take new limits of routes, secrets of Kafka logins and the log level. For any other
//! change they end as at a planned stop, and begin again in the same process. If they fail before
//! they are ready, they begin with the last configuration that was ready.

use super::wiring::{Limits, StartTimes};
use super::{Service, ServiceStart, ThreadsRemain, main_runtime};
use crate::admin;
use crate::config::{Change, Config};
use crate::health::Health;
use crate::limit::{CONFIG_WATCH_INTERVAL, READY_CHECK_INTERVAL};
use crate::metric::{self, Gauge};
use crate::task;
use crate::telemetry::Telemetry;
use anyhow::Result;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

/// Runs the configured roles until SIGTERM or SIGINT, or until one of the threads fails. `file` is
/// the configuration file.
pub fn serve(config: &Config, telemetry: &Telemetry, file: &Path) -> Result<()> {
    let listener = admin::bind(config.admin.listen)?;
    main_runtime()?.block_on(async {
        let process = Process {
            file: file.to_owned(),
            config: config.clone(),
            started: StartTimes::new(config),
            last_ready: None,
            failed: None,
            watched: None,
            telemetry: telemetry.clone(),
            listener: Some(listener),
            signals: Signals::new()?,
            refusal: Refusal::new(),
        };
        process.run().await
    })
}

struct Process {
    file: PathBuf,
    /// The configuration of the running roles.
    config: Config,
    started: StartTimes,
    /// The last configuration whose roles were ready, until those of the current one are.
    last_ready: Option<Config>,
    /// The configuration whose roles have failed. Only an operator can ask for it again.
    failed: Option<Config>,
    /// The last configuration that the watcher has read. It applies one that it has read twice: a file
    /// may be half written.
    watched: Option<Config>,
    telemetry: Telemetry,
    /// The listener of the admin endpoint. `None`: the process stops, so there are no further roles.
    listener: Option<TcpListener>,
    signals: Signals,
    refusal: Refusal,
}

/// Why the roles are asked to end.
enum End {
    /// The process stops.
    Stop,
    /// They begin again with this configuration.
    Restart(Box<Config>),
}

/// The one that asks for a reload.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asker {
    Operator,
    Watcher,
}

impl Process {
    async fn run(mut self) -> Result<()> {
        while !self.stops().await {
            let mut end = None;
            let result = self.run_roles(&mut end).await;
            match (end, result) {
                (Some(End::Restart(new)), Ok(())) => self.replace(*new),
                (None, Err(error)) if !error.is::<ThreadsRemain>() => {
                    match self.last_ready.take() {
                        Some(last_ready) => self.go_back_to(last_ready, &error),
                        None => return Err(error),
                    }
                }
                (_, result) => return result,
            }
        }
        Ok(())
    }

    /// True if a signal has asked the process to stop.
    async fn stops(&mut self) -> bool {
        tokio::select! {
            biased;
            name = &mut self.signals.stop => {
                tracing::info!(signal = name, "stopping");
                true
            }
            () = std::future::ready(()) => false,
        }
    }

    /// Starts the roles of the configuration, and waits for their end. `end` stays `None` if they
    /// fail.
    async fn run_roles(&mut self, end: &mut Option<End>) -> Result<()> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        let start = ServiceStart {
            config: &self.config,
            telemetry: &self.telemetry,
            listener: listener.try_clone()?,
            lock_folder: None,
            started: &self.started,
        };
        let mut service = Service::start(start).await?;
        let (limits, health) = (service.limits.clone(), service.health.clone());
        let asked = async { *end = Some(self.wait_for_end(&limits, &health).await) };
        service.run_until(asked).await
    }

    async fn wait_for_end(&mut self, limits: &Limits, health: &Health) -> End {
        loop {
            // Every arm is safe to drop.
            let asker = tokio::select! {
                biased;
                name = &mut self.signals.stop => {
                    tracing::info!(signal = name, "stopping");
                    // Probes are refused from now on, as those of a process that has ended.
                    self.listener = None;
                    return End::Stop;
                }
                _ = self.signals.hangup.recv() => Asker::Operator,
                _ = self.signals.watch.tick(), if self.config.worker.watch_config => Asker::Watcher,
                () = ready(health), if self.last_ready.is_some() => {
                    self.last_ready = None;
                    tracing::info!("configuration reloaded: the roles are ready with it");
                    continue;
                }
            };
            match self.reload(limits, asker) {
                Ok(None) => {}
                Ok(Some(new)) => return End::Restart(Box::new(new)),
                Err(reason) => self.refusal.begin(reason, asker),
            }
        }
    }

    /// Reads the configuration again, and applies what the running roles can take. Returns it if they
    /// must begin again, or why it is refused.
    fn reload(&mut self, limits: &Limits, asker: Asker) -> Result<Option<Config>, String> {
        let new = Config::load(&self.file).map_err(|error| error.to_string())?;
        if asker == Asker::Watcher && self.watched.as_ref() != Some(&new) {
            self.watched = Some(new);
            return Ok(None);
        }
        if self.failed.as_ref() == Some(&new) && asker == Asker::Watcher {
            return Ok(None);
        }
        self.failed = None;
        match self.config.change_to(&new) {
            Change::None => {
                self.refusal.end();
                if asker == Asker::Operator {
                    tracing::info!("configuration reloaded: nothing has changed");
                }
            }
            Change::Live => {
                self.apply_to_process(&new)?;
                for (name, limits) in limits {
                    limits.set(&new.routes[name]);
                }
                self.config = new;
                self.refusal.end();
                tracing::info!("configuration reloaded");
            }
            Change::Restart => {
                self.apply_to_process(&new)?;
                tracing::info!("configuration changed: the roles end, and begin again with it");
                return Ok(Some(new));
            }
            Change::Refused(options) => {
                let options = options.join(", ");
                return Err(format!(
                    "a change of these options needs a restart: {options}"
                ));
            }
        }
        Ok(None)
    }

    /// Applies what all roles of the process share: the secrets of Kafka logins, and the log level.
    /// The secrets come first, because only they can fail. A repeat changes them again.
    fn apply_to_process(&self, new: &Config) -> Result<(), String> {
        for (name, kafka) in &new.kafka {
            if self.config.kafka.get(name) != Some(kafka) {
                let changed = kafka.kafka_cluster(name).change_secrets();
                changed.map_err(|error| format!("the secrets of kafka.{name}: {error}"))?;
            }
        }
        self.telemetry.set_log_level(&new.log.level);
        Ok(())
    }

    /// The roles have ended, and begin again with this configuration.
    fn replace(&mut self, new: Config) {
        self.refusal.end();
        let old = self.switch_to(new);
        self.last_ready.get_or_insert(old);
    }

    /// The roles have failed before they were ready, and begin again with this configuration.
    fn go_back_to(&mut self, last_ready: Config, failure: &anyhow::Error) {
        let reason = format!("the roles have failed with it: {failure:#}");
        self.refusal.begin(reason, Asker::Operator);
        if let Err(error) = self.apply_to_process(&last_ready) {
            tracing::error!("some secrets are those of the refused configuration: {error}");
        }
        self.failed = Some(self.switch_to(last_ready));
    }

    /// Returns the configuration until now.
    fn switch_to(&mut self, next: Config) -> Config {
        self.started.update(&next);
        for route in self.config.routes.keys() {
            metric::end_route(route);
        }
        std::mem::replace(&mut self.config, next)
    }
}

struct Signals {
    /// Ready once, at SIGTERM or SIGINT.
    stop: Pin<Box<dyn Future<Output = &'static str>>>,
    hangup: Signal,
    watch: Interval,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let mut watch = interval(CONFIG_WATCH_INTERVAL);
        watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            stop: Box::pin(task::stop_signal()?),
            hangup: signal(SignalKind::hangup())?,
            watch,
        })
    }
}

/// The metric and the log of a refused reload.
struct Refusal {
    gauge: Gauge,
    /// Empty: the last reload was not refused.
    reason: String,
}

impl Refusal {
    fn new() -> Self {
        let gauge = metric::reload_refused();
        gauge.set(0.0);
        Self {
            gauge,
            reason: String::new(),
        }
    }

    /// Logs the reason for an operator, who waits for an answer. The watcher logs a reason once.
    fn begin(&mut self, reason: String, asker: Asker) {
        self.gauge.set(1.0);
        if asker == Asker::Operator || self.reason != reason {
            tracing::error!(
                "configuration not reloaded, the process keeps the one that it has: {reason}"
            );
        }
        self.reason = reason;
    }

    fn end(&mut self) {
        self.gauge.set(0.0);
        self.reason.clear();
    }
}

/// Waits until all parts are ready.
async fn ready(health: &Health) {
    while !health.not_ready().is_empty() {
        sleep(READY_CHECK_INTERVAL).await;
    }
}
