//! Installs logs, metrics and the panic hook, once at the start of the process.
//!
//! | file | duty |
//! |---|---|
//! | `histogram_recorder` | records and renders all metrics |
//! | `span` | converts spans to OpenTelemetry's form |
//! | `exporter` | sends spans to a collector |
//! | `otlp_http` | the HTTP client of the exporter |

mod exporter;
mod histogram_recorder;
mod otlp_http;
mod span;

use crate::config::{BrokerKind, Log, LogFormat};
use crate::metric;
use anyhow::Context as _;
pub(crate) use exporter::Exporter;
pub(crate) use histogram_recorder::MetricsRecorder;
pub(crate) use span::{MessagingSystems, SpanConverter};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// The installed telemetry. Renders the metrics.
#[derive(Clone)]
pub struct Telemetry {
    metrics: MetricsRecorder,
    filter: FilterHandle,
}

/// Replaces the filter of the log.
type FilterHandle = reload::Handle<Targets, Registry>;

impl Telemetry {
    /// Installs logs on stderr, the metrics recorder, and a hook that logs panics.
    pub fn install(config: &crate::Config) -> anyhow::Result<Self> {
        let is_terminal = std::io::stderr().is_terminal();
        let (layer, filter) = layer(&config.log, is_terminal, std::io::stderr);
        tracing_subscriber::registry()
            .with(layer)
            .try_init()
            .context("logs are installed already")?;
        let metrics = MetricsRecorder::new();
        let recorder = metrics::set_global_recorder(metrics.clone());
        recorder.ok().context("metrics are installed already")?;
        metric::describe();
        std::panic::set_hook(Box::new(log_panic));
        Ok(Self { metrics, filter })
    }

    /// Replaces `log.level`. Debug lines of librdkafka's own need a restart.
    pub(crate) fn set_log_level(&self, level: &str) {
        if let Err(error) = self.filter.reload(targets(level)) {
            tracing::error!(%error, "log.level is not changed");
        }
    }

    /// All metrics in Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        self.metrics.render()
    }
}

fn layer<W>(log: &Log, is_terminal: bool, writer: W) -> (impl Layer<Registry>, FilterHandle)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(targets(&log.level));
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
    (lines.with_filter(filter), handle)
}

/// The directives of the brokers, which those of `log.level` override.
fn targets(level: &str) -> Targets {
    let of_brokers = BrokerKind::ALL.into_iter();
    let of_brokers = of_brokers.filter_map(|kind| kind.facts().log_directive);
    let directives: Vec<&str> = of_brokers.chain([level]).collect();
    let directives = directives.join(",");
    directives
        .parse()
        .expect("the configuration accepts only well-formed filters")
}

/// Logs a panic with its location. The default hook writes text that a log collector cannot parse.
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

    /// The text that two events write with these options.
    fn logged(format: LogFormat, level: &str, is_terminal: bool) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = Log {
            format,
            level: level.to_owned(),
        };
        let writer = Arc::new(File::create(file.path()).unwrap());
        let (layer, _) = layer(&log, is_terminal, writer);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!(shard = "orders/orders.delayed/3", "gained");
            tracing::info!(target: "rdkafka", "chatter");
        });
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn a_reload_changes_the_level() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = Log {
            format: LogFormat::Json,
            level: "info".to_owned(),
        };
        let writer = Arc::new(File::create(file.path()).unwrap());
        let (layer, filter) = layer(&log, false, writer);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for level in ["debug", "warn"] {
                filter.reload(targets(level)).unwrap();
                tracing::debug!("details at {level}");
                tracing::warn!("trouble at {level}");
            }
        });
        let text = std::fs::read_to_string(file.path()).unwrap();
        let has = |line: &str| text.contains(line);
        assert!(has("details at debug") && has("trouble at debug") && has("trouble at warn"));
        assert!(!has("details at warn"), "{text}");
    }

    #[test]
    fn lines_are_json_if_the_output_is_not_a_terminal() {
        for format in [LogFormat::Auto, LogFormat::Json] {
            let text = logged(format, "info,rdkafka=warn", false);
            let line: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(line["message"], "gained");
            assert_eq!(line["shard"], "orders/orders.delayed/3");
            assert_eq!(line["level"], "INFO");
            assert_eq!(line["target"], "postdate::telemetry::tests");
        }
    }

    #[test]
    fn lines_are_text_on_a_terminal_or_if_configured() {
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
                "only a terminal gets colours"
            );
        }
    }

    /// A configuration with a recognisable text in each key that has a secret.
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
    fn a_panic_that_prints_the_configuration_logs_no_secret() {
        let config = crate::Config::parse_builtin(PLANTED).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let writer = Arc::new(File::create(file.path()).unwrap());
        let (layer, _) = layer(&config.log, false, writer);
        let before = Arc::new(std::panic::take_hook());
        let own_thread = std::thread::current().id();
        let other_hook = before.clone();
        // Other tests may panic at the same time.
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().id() == own_thread {
                log_panic(panic);
            } else {
                other_hook(panic);
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
        for text in ["this is a fault in Postdate", "told", "127.0.0.1:1"] {
            assert!(logged.contains(text), "{text} is not in {logged}");
        }
        assert!(logged.matches("[secret]").count() > 12, "{logged}");
        assert!(!logged.contains("planted"), "{logged}");
    }

    #[test]
    fn the_level_applies_by_module() {
        assert_eq!(logged(LogFormat::Json, "info", false).lines().count(), 2);
        let filtered = logged(LogFormat::Json, "info,rdkafka=warn", false);
        assert_eq!(filtered.lines().count(), 1);
        assert_eq!(logged(LogFormat::Json, "off", false), "");
    }
}
