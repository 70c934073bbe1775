//! Takes the changed options of the configuration at SIGHUP, without a restart. If another option
//! has changed too, or the file is wrong, the process keeps the configuration that it has.

use super::brokers::Cluster;
use super::wiring::Limits;
use crate::config::Config;
use crate::metric::{self, Gauge};
use crate::telemetry::Telemetry;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

pub(super) struct Reloader {
    file: PathBuf,
    /// The configuration that the process runs with.
    current: Config,
    limits: Arc<Limits>,
    telemetry: Telemetry,
    refused: Gauge,
}

impl Reloader {
    pub(super) fn new(
        file: PathBuf,
        current: Config,
        limits: Arc<Limits>,
        telemetry: Telemetry,
    ) -> Self {
        let refused = metric::reload_refused();
        refused.set(0.0);
        Self {
            file,
            current,
            limits,
            telemetry,
            refused,
        }
    }

    /// Reloads at each SIGHUP. Ends only if the signal cannot be received.
    pub(super) async fn serve(mut self) -> io::Error {
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => return error,
        };
        while hangup.recv().await.is_some() {
            self.reload();
        }
        std::future::pending().await
    }

    fn reload(&mut self) {
        let reloaded = self.changed().and_then(|new| {
            self.apply(&new)?;
            Ok(new)
        });
        match reloaded {
            Ok(new) => {
                self.current = new;
                self.refused.set(0.0);
                tracing::info!("configuration reloaded");
            }
            Err(reason) => {
                self.refused.set(1.0);
                tracing::error!(
                    "configuration not reloaded, the process keeps the one that it has: {reason}"
                );
            }
        }
    }

    fn changed(&self) -> Result<Config, String> {
        let new = Config::load(&self.file).map_err(|error| error.to_string())?;
        let names = self.current.changes_for_restart(&new);
        if names.is_empty() {
            return Ok(new);
        }
        let names = names.join(", ");
        Err(format!(
            "a change of these options needs a restart: {names}"
        ))
    }

    /// The secrets come first, because only they can fail. A repeat changes them again.
    fn apply(&self, new: &Config) -> Result<(), String> {
        for (name, kafka) in &new.kafka {
            if self.current.kafka.get(name) != Some(kafka) {
                let changed = Cluster::of(new, name).change_secrets();
                changed.map_err(|error| format!("the secrets of kafka.{name}: {error}"))?;
            }
        }
        if new.log.level != self.current.log.level {
            self.telemetry.set_log_level(&new.log.level);
        }
        for (name, limits) in &*self.limits {
            limits.set(&new.routes[name]);
        }
        Ok(())
    }
}
