//! Tracks whether a cluster responds to one adapter's clients, and reports it to readiness.
//!
//! librdkafka's "all brokers down" also counts connections that an idle broker closed, and
//! librdkafka needs a minute to notice a silent broker. So a cluster counts as down only if no
//! client got a response for [`KAFKA_SILENCE_TIMEOUT`] and a probe fails as well. [`ClusterProbe`]
//! says when the owner of a client must send the probe.

use super::ffi::{ClientEvent, ProbeTarget};
use super::limit::{KAFKA_DELIVERY_TIMEOUT, KAFKA_PROBE_INTERVAL, KAFKA_SILENCE_TIMEOUT};
use crate::health::HealthPart;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// The state of a cluster as the clients of one adapter see it. Clones share the state.
#[derive(Clone)]
pub(super) struct ClusterHealth(Arc<Shared>);

struct Shared {
    cluster: Arc<str>,
    part: HealthPart,
    is_up: AtomicBool,
    /// Counts the responses. Each probe knows how many it has seen.
    responses: AtomicU64,
    reasons: Mutex<Reasons>,
}

#[derive(Default)]
struct Reasons {
    /// The latest connection error of one broker: "all brokers down" comes without a reason.
    broker_error: Option<(Instant, String)>,
    /// Why the cluster counts as down. `None`: it is up, or not known yet.
    outage: Option<String>,
    /// The end and the reason of the last outage.
    last_outage: Option<(Instant, String)>,
}

impl ClusterHealth {
    pub(super) fn new(cluster: &Arc<str>, part: HealthPart) -> Self {
        Self(Arc::new(Shared {
            cluster: cluster.clone(),
            part,
            is_up: AtomicBool::new(false),
            responses: AtomicU64::new(0),
            reasons: Mutex::default(),
        }))
    }

    pub(super) fn cluster(&self) -> &str {
        &self.0.cluster
    }

    /// Why the cluster counts as down, if it does. Then a request is not worth sending.
    pub(super) fn outage_reason(&self) -> Option<String> {
        if self.0.is_up.load(Ordering::Relaxed) {
            None
        } else {
            self.reasons().outage.clone()
        }
    }

    /// The outage that a delivery timeout may come from: the current one, or one that ended within
    /// the delivery timeout.
    pub(super) fn recent_outage(&self) -> Option<String> {
        let is_recent = |end: Instant| end.elapsed() < KAFKA_DELIVERY_TIMEOUT;
        self.outage_reason().or_else(|| {
            let last = self.reasons().last_outage.clone();
            last.filter(|(end, _)| is_recent(*end))
                .map(|(_, reason)| reason)
        })
    }

    /// Records that a broker responded. Cheap: called for every batch.
    pub(super) fn record_response(&self) {
        self.0.responses.fetch_add(1, Ordering::Relaxed);
        if self.0.is_up.load(Ordering::Relaxed) || self.0.is_up.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut reasons = self.reasons();
        reasons.broker_error = None;
        if let Some(reason) = reasons.outage.take() {
            reasons.last_outage = Some((Instant::now(), reason));
        }
        drop(reasons);
        self.0.part.set_ready();
    }

    /// Logs at debug and trace only: librdkafka repeats a line at every connection attempt.
    pub(super) fn on_client_event(&self, event: ClientEvent) {
        const WARNING: i32 = 4;
        let cluster = &*self.0.cluster;
        match event {
            ClientEvent::Log { syslog_level, text } if syslog_level <= WARNING => {
                tracing::debug!(target: "librdkafka", cluster, "{text}");
            }
            ClientEvent::Log { text, .. } => {
                tracing::trace!(target: "librdkafka", cluster, "{text}");
            }
            ClientEvent::Error { code, text } => self.record_error(code, text),
        }
    }

    pub(super) fn record_error(&self, code: Code, text: String) {
        tracing::debug!(target: "librdkafka", cluster = %self.0.cluster, "{text}");
        if is_connection_error(code) {
            self.reasons().broker_error = Some((Instant::now(), text));
        }
    }

    /// Reports a failure of the adapter itself. The next response clears it.
    pub(super) fn mark_broken(&self, reason: String) {
        self.0.is_up.store(false, Ordering::Relaxed);
        self.0.part.set_not_ready(reason);
    }

    /// Reports an outage. `since`: the time of the last response.
    fn mark_down(&self, since: Instant) {
        let mut reasons = self.reasons();
        // An older error does not explain this outage: that broker has recovered, or was not
        // needed.
        let reason = match &reasons.broker_error {
            Some((at, text)) if *at + 2 * KAFKA_PROBE_INTERVAL >= since => text.clone(),
            _ => format!("no broker has answered for {} s", since.elapsed().as_secs()),
        };
        reasons.outage = Some(reason.clone());
        drop(reasons);
        let cluster = &self.0.cluster;
        self.mark_broken(format!("kafka.{cluster} does not answer: {reason}"));
    }

    fn reasons(&self) -> MutexGuard<'_, Reasons> {
        let reasons = self.0.reasons.lock();
        reasons.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The probe schedule of one of the clients that share a [`ClusterHealth`]. A response to any of them
/// counts.
pub(super) struct ClusterProbe {
    seen: u64,
    last_response: Instant,
    next_at: Instant,
}

impl ClusterProbe {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            seen: 0,
            last_response: now,
            next_at: now,
        }
    }

    /// Calls `probe` if no broker has responded for a while, and updates `health`. Must be called
    /// in every turn of the client's thread.
    pub(super) fn serve(
        &mut self,
        health: &ClusterHealth,
        mut probe: impl FnMut(ProbeTarget) -> bool,
    ) {
        let now = Instant::now();
        let responses = health.0.responses.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.seen, responses) != responses {
            self.last_response = now;
            self.next_at = now + KAFKA_PROBE_INTERVAL;
        }
        if now < self.next_at {
            return;
        }
        self.next_at = now + KAFKA_PROBE_INTERVAL;
        let is_silent = now - self.last_response >= KAFKA_SILENCE_TIMEOUT;
        // A silent controller alone is no outage.
        if probe(ProbeTarget::Controller) || is_silent && probe(ProbeTarget::AnyBroker) {
            health.record_response();
        } else if is_silent {
            health.mark_down(self.last_response);
        }
    }
}

/// Returns whether an error is about the connection to a broker.
pub(super) fn is_connection_error(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::Resolve
            | Code::OperationTimedOut
            | Code::Authentication
            | Code::SSL
            | Code::SaslAuthenticationFailed
            | Code::RequestTimedOut
            | Code::NetworkException
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use Code::{AllBrokersDown, BrokerTransportFailure, SaslAuthenticationFailed};
    use std::time::Duration;

    fn reasons(health: &crate::health::Health) -> Vec<String> {
        health
            .not_ready()
            .into_iter()
            .map(|problem| problem.reason)
            .collect()
    }

    fn new() -> (crate::health::Health, ClusterHealth, ClusterProbe) {
        let process = crate::health::Health::new();
        let health = ClusterHealth::new(&"main".into(), process.register("source of orders"));
        (process, health, ClusterProbe::new())
    }

    /// Serves the probe for `time` while no broker answers. Returns the number of probes.
    async fn silence(health: &ClusterHealth, probe: &mut ClusterProbe, time: Duration) -> usize {
        let mut probes = 0;
        let end = Instant::now() + time;
        while Instant::now() < end {
            probe.serve(health, |target| {
                probes += usize::from(target == ProbeTarget::Controller);
                false
            });
            tokio::time::advance(Duration::from_millis(50)).await;
        }
        probes
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_reported_with_the_brokers_error_after_a_failed_probe() {
        let (process, health, mut probe) = new();
        assert_eq!(reasons(&process), ["starting"]);
        probe.serve(&health, |_| true);
        assert_eq!(reasons(&process), [""; 0]);
        health.record_error(BrokerTransportFailure, "a:1: connection refused".into());
        health.record_error(AllBrokersDown, "1/1 brokers are down".into());
        assert_eq!(
            (reasons(&process), health.outage_reason()),
            (Vec::new(), None),
            "librdkafka's count of connections is not enough"
        );
        silence(
            &health,
            &mut probe,
            KAFKA_SILENCE_TIMEOUT + KAFKA_PROBE_INTERVAL,
        )
        .await;
        assert_eq!(
            reasons(&process),
            ["kafka.main does not answer: a:1: connection refused"]
        );
        assert_eq!(
            health.outage_reason(),
            Some("a:1: connection refused".to_owned())
        );
        health.record_response();
        assert_eq!(
            (reasons(&process), health.outage_reason()),
            (Vec::new(), None)
        );
        assert!(
            health.recent_outage().is_some(),
            "records sent during the outage may still time out"
        );
        tokio::time::advance(KAFKA_DELIVERY_TIMEOUT).await;
        assert_eq!(health.recent_outage(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_cluster_is_reported_without_any_error() {
        let (process, health, mut probe) = new();
        health.record_response();
        assert_eq!(
            silence(&health, &mut probe, KAFKA_SILENCE_TIMEOUT).await,
            1,
            "one probe a second, and none at once"
        );
        assert_eq!(reasons(&process), [""; 0]);
        assert_eq!(silence(&health, &mut probe, KAFKA_PROBE_INTERVAL).await, 1);
        assert_eq!(
            reasons(&process),
            ["kafka.main does not answer: no broker has answered for 2 s"]
        );
        health.record_error(SaslAuthenticationFailed, "a:1: wrong password".into());
        silence(&health, &mut probe, KAFKA_PROBE_INTERVAL).await;
        assert_eq!(
            reasons(&process),
            ["kafka.main does not answer: a:1: wrong password"],
            "the latest error"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_controller_alone_is_no_outage() {
        let (process, health, mut probe) = new();
        health.record_response();
        for _ in 0..20 {
            probe.serve(&health, |target| target == ProbeTarget::AnyBroker);
            tokio::time::advance(KAFKA_PROBE_INTERVAL).await;
        }
        assert_eq!(reasons(&process), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_responds_is_not_probed() {
        let (_process, health, mut probe) = new();
        for _ in 0..100 {
            health.record_response();
            tokio::time::advance(KAFKA_PROBE_INTERVAL).await;
            probe.serve(&health, |_| panic!("a broker responded by itself"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_counts_for_the_probes_of_all_clients() {
        let (_process, health, mut first) = new();
        let mut second = ClusterProbe::new();
        for _ in 0..100 {
            health.record_response();
            tokio::time::advance(KAFKA_PROBE_INTERVAL).await;
            for probe in [&mut first, &mut second] {
                probe.serve(&health, |_| panic!("a broker responded by itself"));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_error_does_not_explain_a_new_outage() {
        let (process, health, mut probe) = new();
        health.record_response();
        health.record_error(
            BrokerTransportFailure,
            "b:1: closed an idle connection".into(),
        );
        for _ in 0..10 {
            health.record_response();
            probe.serve(&health, |_| true);
            tokio::time::advance(KAFKA_PROBE_INTERVAL).await;
        }
        silence(&health, &mut probe, KAFKA_SILENCE_TIMEOUT).await;
        assert_eq!(
            reasons(&process),
            ["kafka.main does not answer: no broker has answered for 2 s"]
        );
    }
}
