//! Whether a cluster answers one adapter's clients: asked by readiness, told to the log once per change. It asks no broker itself.

use super::raw::{Level, Notice};
use rdkafka::types::RDKafkaErrorCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Whether the cluster answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Up,
    /// Why not, as far as librdkafka says.
    Down(String),
}

/// What the clients of one adapter know of their cluster. Clones share it.
#[derive(Clone)]
pub(super) struct Health(Arc<Shared>);

struct Shared {
    cluster: Arc<str>,
    /// Of the route or the role, for the log.
    user: String,
    up: AtomicBool,
    cause: Mutex<Cause>,
}

#[derive(Default)]
struct Cause {
    text: String,
    /// The latest failure of one broker: librdkafka says that all are down, and not why.
    broker: String,
    /// What the log was told last.
    logged: Option<(RDKafkaErrorCode, Instant)>,
    /// Whether the log is still to be told that the cluster answers.
    untold: bool,
}

/// A client that fails and succeeds in turns (one broker of three refuses its password) is logged once in so long.
const QUIET: Duration = Duration::from_secs(60);

/// How often, and how long, a client that hears nothing asks whether anybody is there. The asking thread does nothing else meanwhile.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(1);
pub(super) const PROBE_PATIENCE: Duration = Duration::from_millis(200);

impl Health {
    pub(super) fn new(cluster: &Arc<str>, user: impl Into<String>) -> Self {
        let cause = Cause { text: "no broker has answered yet".into(), untold: true, ..Cause::default() };
        Self(Arc::new(Shared { cluster: cluster.clone(), user: user.into(), up: AtomicBool::new(false), cause: Mutex::new(cause) }))
    }

    pub(super) fn state(&self) -> State {
        if self.is_up() {
            return State::Up;
        }
        let cause = self.cause();
        State::Down([cause.text.as_str(), cause.broker.as_str()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": "))
    }

    pub(super) fn is_up(&self) -> bool {
        self.0.up.load(Ordering::Relaxed)
    }

    /// A broker answered. Cheap: called for every batch.
    pub(super) fn answered(&self) {
        if !self.is_up() && !self.0.up.swap(true, Ordering::Relaxed) {
            let mut cause = self.cause();
            cause.broker.clear();
            if std::mem::take(&mut cause.untold) {
                tracing::info!(cluster = %self.0.cluster, user = self.0.user, "kafka answers");
            }
        }
    }

    pub(super) fn heard(&self, notice: Notice) {
        match notice {
            Notice::Log { level, text } => log(level, &text),
            Notice::Error { code, text } => self.failed(code, text),
        }
    }

    pub(super) fn failed(&self, code: RDKafkaErrorCode, text: String) {
        let mut cause = self.cause();
        if !is_outage(code) {
            tracing::debug!(target: "librdkafka", cluster = %self.0.cluster, user = self.0.user, "{text}");
            if is_of_one_broker(code) {
                cause.broker = text;
            }
            return;
        }
        cause.text = text;
        self.0.up.store(false, Ordering::Relaxed);
        let now = Instant::now();
        if cause.logged.is_none_or(|(logged, at)| logged != code || now.duration_since(at) > QUIET) {
            cause.logged = Some((code, now));
            cause.untold = true;
            tracing::error!(cluster = %self.0.cluster, user = self.0.user, cause = cause.text, "kafka does not answer");
        }
    }

    fn cause(&self) -> MutexGuard<'_, Cause> {
        self.0.cause.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_outage(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{AllBrokersDown, Authentication, SSL, SaslAuthenticationFailed};
    matches!(code, AllBrokersDown | Authentication | SSL | SaslAuthenticationFailed)
}

fn is_of_one_broker(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{BrokerTransportFailure, OperationTimedOut, Resolve};
    matches!(code, BrokerTransportFailure | Resolve | OperationTimedOut)
}

/// One level lower than librdkafka thinks: it repeats itself at every attempt to connect.
fn log(level: Level, text: &str) {
    match level {
        Level::Error | Level::Warning => tracing::debug!(target: "librdkafka", "{text}"),
        Level::Info | Level::Debug => tracing::trace!(target: "librdkafka", "{text}"),
    }
}

/// When to ask again whether anybody is there.
#[derive(Default)]
pub(super) struct Probe(Option<Instant>);

impl Probe {
    /// Whether it is time to ask; then the next time is one interval away.
    pub(super) fn is_due(&mut self, health: &Health) -> bool {
        if health.is_up() {
            return false;
        }
        let now = Instant::now();
        let due = self.0.is_none_or(|at| now >= at);
        if due {
            self.0 = Some(now + PROBE_INTERVAL);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_down_until_a_broker_answers_and_says_which_failure_came_first() {
        let health = Health::new(&"main".into(), "source of orders");
        assert!(matches!(health.state(), State::Down(_)));
        health.answered();
        assert_eq!(health.state(), State::Up);
        health.failed(RDKafkaErrorCode::BrokerTransportFailure, "a:1: connection refused".into());
        assert_eq!(health.state(), State::Up, "one broker is not the cluster");
        health.failed(RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down".into());
        assert_eq!(health.state(), State::Down("1/1 brokers are down: a:1: connection refused".into()));
        health.answered();
        assert_eq!(health.state(), State::Up);
    }

    #[test]
    fn nobody_is_asked_while_the_cluster_answers() {
        let (health, mut probe) = (Health::new(&"main".into(), "target"), Probe::default());
        assert!(probe.is_due(&health));
        assert!(!probe.is_due(&health), "once an interval");
        health.answered();
        assert!(!Probe::default().is_due(&health));
    }
}
