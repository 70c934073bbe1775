//! Whether a cluster answers one adapter's clients, as a part of the process' readiness, which logs each change. It asks no broker itself.

use super::raw::{Level, Notice};
use crate::health::Part;
use rdkafka::types::RDKafkaErrorCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What the clients of one adapter know of their cluster. Clones share it.
#[derive(Clone)]
pub(super) struct Health(Arc<Shared>);

struct Shared {
    cluster: Arc<str>,
    part: Part,
    up: AtomicBool,
    /// The latest failure of one broker: librdkafka says that all are down, and not why.
    broker: Mutex<String>,
}

/// How often, and how long, a client that hears nothing asks whether anybody is there. The asking thread does nothing else meanwhile.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(1);
pub(super) const PROBE_PATIENCE: Duration = Duration::from_millis(200);

impl Health {
    pub(super) fn new(cluster: &Arc<str>, part: Part) -> Self {
        Self(Arc::new(Shared { cluster: cluster.clone(), part, up: AtomicBool::new(false), broker: Mutex::default() }))
    }

    pub(super) fn is_up(&self) -> bool {
        self.0.up.load(Ordering::Relaxed)
    }

    /// A broker answered. Cheap: called for every batch.
    pub(super) fn answered(&self) {
        if !self.is_up() && !self.0.up.swap(true, Ordering::Relaxed) {
            self.broker().clear();
            self.0.part.ready();
        }
    }

    pub(super) fn heard(&self, notice: Notice) {
        match notice {
            Notice::Log { level, text } => log(level, &text),
            Notice::Error { code, text } => self.failed(code, text),
        }
    }

    pub(super) fn failed(&self, code: RDKafkaErrorCode, text: String) {
        let mut broker = self.broker();
        if is_outage(code) {
            self.0.up.store(false, Ordering::Relaxed);
            let cause = [text.as_str(), broker.as_str()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ");
            self.0.part.not_ready(format!("kafka.{} does not answer: {cause}", self.0.cluster));
        } else {
            tracing::debug!(target: "librdkafka", cluster = %self.0.cluster, "{text}");
            if is_of_one_broker(code) {
                *broker = text;
            }
        }
    }

    fn broker(&self) -> MutexGuard<'_, String> {
        self.0.broker.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn reasons(health: &crate::health::Health) -> Vec<String> {
        health.not_ready().into_iter().map(|complaint| complaint.reason).collect()
    }

    #[test]
    fn it_is_down_until_a_broker_answers_and_says_which_failure_came_first() {
        let process = crate::health::Health::new();
        let health = Health::new(&"main".into(), process.part("source of orders"));
        assert_eq!(reasons(&process), ["starting"]);
        health.answered();
        assert_eq!(reasons(&process), [""; 0]);
        health.failed(RDKafkaErrorCode::BrokerTransportFailure, "a:1: connection refused".into());
        assert_eq!(reasons(&process), [""; 0], "one broker is not the cluster");
        health.failed(RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down".into());
        assert_eq!(reasons(&process), ["kafka.main does not answer: 1/1 brokers are down: a:1: connection refused"]);
        health.answered();
        assert_eq!(reasons(&process), [""; 0]);
    }

    #[test]
    fn nobody_is_asked_while_the_cluster_answers() {
        let part = crate::health::Health::new().part("target");
        let (health, mut probe) = (Health::new(&"main".into(), part), Probe::default());
        assert!(probe.is_due(&health));
        assert!(!probe.is_due(&health), "once an interval");
        health.answered();
        assert!(!Probe::default().is_due(&health));
    }
}
