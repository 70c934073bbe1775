//! Logs, metrics, traces and panics: where they go. Installed once, at the process' start. What is logged and counted is said where it happens.

mod exporter;
mod histogram_recorder;
mod otlp_http;
mod span;

use crate::config::{Log, LogFormat};
use crate::metric;
pub(crate) use exporter::Exporter;
use histogram_recorder::MetricsHandle;
pub(crate) use histogram_recorder::MetricsRecorder;
pub(crate) use span::{MessagingSystems, SpanConverter};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("telemetry is installed already")]
    Installed,
}

/// What was installed; gives the metrics out.
#[derive(Clone)]
pub struct Telemetry {
    metrics: MetricsHandle,
}

impl Telemetry {
    /// Installs logs on stderr, the metrics' recorder, and a hook that logs panics.
    pub fn install(config: &crate::Config) -> anyhow::Result<Self> {
        Self::install_on(
            &config.log,
            std::io::stderr().is_terminal(),
            std::io::stderr,
        )
    }

    /// The same with logs elsewhere; `is_terminal`: coloured.
    pub(crate) fn install_on<W>(log: &Log, is_terminal: bool, writer: W) -> anyhow::Result<Self>
    where
        W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
    {
        let layer = layer(log, is_terminal, writer);
        tracing_subscriber::registry()
            .with(layer)
            .try_init()
            .map_err(|_| Error::Installed)?;
        let recorder = MetricsRecorder::new();
        let metrics = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|_| Error::Installed)?;
        metric::describe();
        std::panic::set_hook(Box::new(log_panic));
        Ok(Self { metrics })
    }

    /// The metrics as Prometheus reads them.
    pub(crate) fn render(&self) -> String {
        self.metrics.render()
    }
}

fn layer<W>(log: &Log, is_terminal: bool, writer: W) -> impl Layer<Registry>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // That library tells of each connection and of each attempt, which `health` does once; who wants to hear it says so.
    let filter = format!("async_nats=off,{}", log.level);
    let filter: Targets = filter
        .parse()
        .expect("the configuration takes only well-formed filters");
    let lines = fmt::layer().with_writer(writer);
    let is_text = match log.format {
        LogFormat::Auto => is_terminal,
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    let lines = if is_text {
        lines.with_ansi(is_terminal).boxed()
    } else {
        lines.json().flatten_event(true).boxed()
    };
    lines.with_filter(filter)
}

/// Puts a panic into the logs with its place: what is written to stderr otherwise is not a log line, and is lost where lines are collected.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic
        .location()
        .map(ToString::to_string)
        .unwrap_or_default();
    let thread = std::thread::current()
        .name()
        .unwrap_or("unnamed")
        .to_owned();
    let text = panic.payload_as_str().unwrap_or("a value that is not text");
    tracing::error!(
        place,
        thread,
        panic = text,
        "a thread panicked: this is a fault in Postdate"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::sync::Arc;

    /// What is written when a few things are logged under the given options.
    fn logged(format: LogFormat, level: &str, is_terminal: bool) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = Log {
            format,
            level: level.to_owned(),
        };
        let layer = layer(
            &log,
            is_terminal,
            Arc::new(File::create(file.path()).unwrap()),
        );
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!(shard = "orders/orders.delayed/3", "gained");
            tracing::info!(target: "rdkafka", "chatter");
        });
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn a_line_is_an_object_where_no_terminal_reads_it() {
        for format in [LogFormat::Auto, LogFormat::Json] {
            let line: serde_json::Value =
                serde_json::from_str(&logged(format, "info,rdkafka=warn", false)).unwrap();
            assert_eq!(line["message"], "gained");
            assert_eq!(line["shard"], "orders/orders.delayed/3");
            assert_eq!(
                (&line["level"], &line["target"]),
                (&"INFO".into(), &"postdate::telemetry::tests".into())
            );
        }
    }

    #[test]
    fn a_line_is_text_on_a_terminal_or_when_asked_for() {
        for (format, is_terminal) in [
            (LogFormat::Auto, true),
            (LogFormat::Text, true),
            (LogFormat::Text, false),
        ] {
            let text = logged(format, "info,rdkafka=warn", is_terminal);
            assert!(text.contains("gained") && !text.contains('{'), "{text}");
            assert_eq!(
                text.contains('\u{1b}'),
                is_terminal,
                "colours are for terminals"
            );
        }
    }

    /// A word that begins so in every key that holds a secret.
    const PLANTED: &str = r#"
deployment = "told"
[store.redis]
url = "redis://user:planted-in-url@127.0.0.1:1"
[kafka.main]
brokers = ["127.0.0.1:1"]
properties = { "sasl.password" = "planted-property", "ssl.key.pem" = "planted-key" }
[nats]
a = { url = "nats://user:planted-in-url@h" }
b = { url = "nats://h", username = "u", password = "planted-password" }
c = { url = "nats://h", token = "planted-token" }
d = { url = "nats://h", nkey = "planted-nkey" }
e = { url = "nats://h", credentials = "planted-credentials" }
[route.r]
source = { kafka = "main", topics = ["a"] }
target = { kafka = "main", topic = "b" }
dead_letter = { kafka = "main", topic = "c" }
[admin]
token = "planted-admin-token"
[traces]
endpoint = "http://127.0.0.1:1"
authorization = "Bearer planted-authorization"
"#;

    #[test]
    fn a_panic_that_prints_the_whole_configuration_is_logged_and_tells_no_secret() {
        let config = crate::Config::parse_builtin(PLANTED).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let layer = layer(
            &config.log,
            false,
            Arc::new(File::create(file.path()).unwrap()),
        );
        let before = Arc::new(std::panic::take_hook());
        let (own, others) = (std::thread::current().id(), before.clone());
        // Other tests may panic meanwhile.
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().id() == own {
                log_panic(panic)
            } else {
                others(panic)
            }
        }));
        let panicked =
            tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
                std::panic::catch_unwind(|| {
                    panic!(
                        "as planned: {config:#?} {config:?} {}",
                        config.kafka["main"].brokers[0]
                    )
                })
            });
        std::panic::set_hook(Box::new(move |panic| before(panic)));
        assert!(panicked.is_err());
        let logged = std::fs::read_to_string(file.path()).unwrap();
        assert!(
            logged.contains("this is a fault in Postdate")
                && logged.contains("told")
                && logged.contains("127.0.0.1:1"),
            "{logged}"
        );
        assert!(
            logged.matches("[secret]").count() > 12 && !logged.contains("planted"),
            "{logged}"
        );
    }

    #[test]
    fn the_filter_is_obeyed_by_module() {
        assert_eq!(logged(LogFormat::Json, "info", false).lines().count(), 2);
        assert_eq!(
            logged(LogFormat::Json, "info,rdkafka=warn", false)
                .lines()
                .count(),
            1
        );
        assert_eq!(logged(LogFormat::Json, "off", false), "");
    }
}
