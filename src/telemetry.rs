//! Logs, metrics and panics: where they go. Installed once, at the process' start. What is logged and counted is said where it happens.

use crate::config::{Log, LogFormat};
use crate::metric;
use crate::task::Token;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::time::Duration;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// Samples of histograms lie in memory until they are put into their buckets; at a million a second this keeps them below 10 MB.
const UPKEEP: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("telemetry is installed already")]
    Installed,
}

/// What was installed; gives the metrics out.
#[derive(Clone)]
pub struct Telemetry {
    prometheus: PrometheusHandle,
}

impl Telemetry {
    /// Installs logs on stderr, the metrics' recorder, and a hook that logs panics.
    pub fn install(config: &crate::Config) -> anyhow::Result<Self> {
        logs(&config.log)?;
        let recorder = recorder();
        let prometheus = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|_| Error::Installed)?;
        metric::describe();
        std::panic::set_hook(Box::new(log_panic));
        Ok(Self { prometheus })
    }

    /// The metrics as Prometheus reads them.
    pub(crate) fn render(&self) -> String {
        self.prometheus.render()
    }

    /// Keeps the histograms' samples few, until the token is cancelled.
    pub(crate) async fn upkeep(&self, token: Token) {
        let mut tick = tokio::time::interval(UPKEEP);
        // A tick or a cancellation that is dropped comes again.
        while let Some(_) = token.run_until_cancelled(tick.tick()).await {
            self.prometheus.run_upkeep();
        }
    }
}

fn logs(log: &Log) -> Result<(), Error> {
    let filter: Targets = log.level.parse().expect("the configuration takes only well-formed filters");
    let stderr = fmt::layer().with_writer(std::io::stderr);
    let is_terminal = std::io::stderr().is_terminal();
    let is_text = match log.format {
        LogFormat::Auto => is_terminal,
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    let layer = if is_text { stderr.with_ansi(is_terminal).boxed() } else { stderr.json().flatten_event(true).boxed() };
    tracing_subscriber::registry().with(layer.with_filter(filter)).try_init().map_err(|_| Error::Installed)
}

/// The recorder, with the buckets that `metric` wants.
pub(crate) fn recorder() -> PrometheusRecorder {
    let buckets = metric::ALL.iter().filter_map(|instrument| match instrument.kind {
        metric::Kind::Histogram(bounds) => Some((instrument.name, bounds)),
        _ => None,
    });
    let with = |builder: PrometheusBuilder, (name, bounds): (&str, &[f64])| {
        builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds).expect("every histogram has buckets")
    };
    buckets.fold(PrometheusBuilder::new(), with).build_recorder()
}

/// Puts a panic into the logs with its place: what is written to stderr otherwise is not a log line, and is lost where lines are collected.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
    let text = panic.payload_as_str().unwrap_or("a value that is not text");
    tracing::error!(place, thread, panic = text, "a thread panicked: this is a fault in Postdate");
}
