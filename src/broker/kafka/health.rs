//! Whether a cluster answers one adapter's clients, as a part of the process' readiness, which logs each change. It asks no broker itself:
//! whoever owns a client asks, when [`ClusterProbe`] says that it is time.
//!
//! That all brokers are down is for librdkafka a count of connections, and one that an idle broker closed is among them; of a broker that
//! fell silent it says nothing for a minute. So a cluster is away when nobody has answered for a while, and not when asked either.

use super::raw::{ClientEvent, LogLevel, ProbeTarget};
use crate::health::HealthPart;
use crate::limit::{KAFKA_DELIVERY_TIMEOUT, KAFKA_PROBE_INTERVAL, KAFKA_SILENCE_TIMEOUT};
use rdkafka::types::RDKafkaErrorCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// What the clients of one adapter know of their cluster. Clones share it.
#[derive(Clone)]
pub(super) struct ClusterHealth(Arc<Shared>);

struct Shared {
    cluster: Arc<str>,
    part: HealthPart,
    up: AtomicBool,
    /// Somebody answered since the probe looked last.
    heard: AtomicBool,
    words: Mutex<Words>,
}

/// In the brokers' own words, as far as there are any.
#[derive(Default)]
struct Words {
    /// The latest failure of one broker: librdkafka says that all are down, and not why.
    broker: Option<(Instant, String)>,
    /// Why the cluster counts as away. `None`: it answers, or nobody knows yet.
    outage: Option<String>,
    /// The last time that it did, and until when.
    past: Option<(Instant, String)>,
}

impl ClusterHealth {
    pub(super) fn new(cluster: &Arc<str>, part: HealthPart) -> Self {
        Self(Arc::new(Shared {
            cluster: cluster.clone(),
            part,
            up: AtomicBool::new(false),
            heard: AtomicBool::new(false),
            words: Mutex::default(),
        }))
    }

    /// Why the cluster counts as away, if it does: nobody need be asked then.
    pub(super) fn outage_reason(&self) -> Option<String> {
        if self.0.up.load(Ordering::Relaxed) {
            None
        } else {
            self.words().outage.clone()
        }
    }

    /// Why what is sent now may time out though its target is in order: the cluster is away, or was while that waited to be sent.
    pub(super) fn recent_outage(&self) -> Option<String> {
        let past = || {
            self.words()
                .past
                .as_ref()
                .filter(|(until, _)| until.elapsed() < KAFKA_DELIVERY_TIMEOUT)
                .map(|(_, outage)| outage.clone())
        };
        self.outage_reason().or_else(past)
    }

    /// A broker answered. Cheap: called for every batch.
    pub(super) fn record_response(&self) {
        self.0.heard.store(true, Ordering::Relaxed);
        if !self.0.up.load(Ordering::Relaxed) && !self.0.up.swap(true, Ordering::Relaxed) {
            let mut words = self.words();
            let past = words.outage.take().map(|outage| (Instant::now(), outage));
            *words = Words {
                past: past.or(words.past.take()),
                ..Words::default()
            };
            drop(words);
            self.0.part.set_ready();
        }
    }

    pub(super) fn on_client_event(&self, notice: ClientEvent) {
        match notice {
            ClientEvent::Log { level, text } => log(level, &text),
            ClientEvent::Error { code, text } => self.record_error(code, text),
        }
    }

    pub(super) fn record_error(&self, code: RDKafkaErrorCode, text: String) {
        use RDKafkaErrorCode::{
            Authentication, BrokerTransportFailure, OperationTimedOut, Resolve, SSL,
            SaslAuthenticationFailed,
        };
        tracing::debug!(target: "librdkafka", cluster = %self.0.cluster, "{text}");
        if matches!(
            code,
            BrokerTransportFailure
                | Resolve
                | OperationTimedOut
                | Authentication
                | SSL
                | SaslAuthenticationFailed
        ) {
            self.words().broker = Some((Instant::now(), text));
        }
    }

    /// Something of the adapter's own is broken; the next answer mends it.
    pub(super) fn mark_broken(&self, reason: String) {
        self.0.up.store(false, Ordering::Relaxed);
        self.0.part.set_not_ready(reason);
    }

    /// Nobody answers any more, and nobody answered when asked just now.
    fn is_away(&self, since: Instant) {
        let mut words = self.words();
        // One that failed long before has come back since, or was never needed.
        let latest = words
            .broker
            .as_ref()
            .filter(|(at, _)| *at + 2 * KAFKA_PROBE_INTERVAL >= since)
            .map(|(_, text)| text.clone());
        let words_now = latest.unwrap_or_else(|| {
            format!("no broker has answered for {} s", since.elapsed().as_secs())
        });
        words.outage = Some(words_now.clone());
        self.0.up.store(false, Ordering::Relaxed);
        drop(words);
        self.0.part.set_not_ready(format!(
            "kafka.{} does not answer: {words_now}",
            self.0.cluster
        ));
    }

    fn words(&self) -> MutexGuard<'_, Words> {
        self.0.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One level lower than librdkafka thinks: it repeats itself at every attempt to connect.
fn log(level: LogLevel, text: &str) {
    match level {
        LogLevel::Error | LogLevel::Warning => tracing::debug!(target: "librdkafka", "{text}"),
        LogLevel::Info | LogLevel::Debug => tracing::trace!(target: "librdkafka", "{text}"),
    }
}

/// When to ask whether anybody is there, and what follows. One for all clients that share a [`Health`].
pub(super) struct ClusterProbe {
    /// When somebody was heard last, as far as this has noticed.
    heard: Instant,
    next: Instant,
}

impl ClusterProbe {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            heard: now,
            next: now,
        }
    }

    /// To be called in every turn; calls `ping` if nobody was heard for a while.
    pub(super) fn serve(
        &mut self,
        health: &ClusterHealth,
        mut ping: impl FnMut(ProbeTarget) -> bool,
    ) {
        let now = Instant::now();
        if health.0.heard.swap(false, Ordering::Relaxed) {
            (self.heard, self.next) = (now, now + KAFKA_PROBE_INTERVAL);
        }
        if now < self.next {
            return;
        }
        self.next = now + KAFKA_PROBE_INTERVAL;
        let is_long = now - self.heard >= KAFKA_SILENCE_TIMEOUT;
        // One broker is not the cluster, whoever it is.
        if ping(ProbeTarget::Controller) || is_long && ping(ProbeTarget::AnyBroker) {
            health.record_response();
        } else if is_long {
            health.is_away(self.heard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RDKafkaErrorCode::{AllBrokersDown, BrokerTransportFailure, SaslAuthenticationFailed};
    use std::time::Duration;

    fn reasons(health: &crate::health::Health) -> Vec<String> {
        health
            .not_ready()
            .into_iter()
            .map(|complaint| complaint.reason)
            .collect()
    }

    fn new() -> (crate::health::Health, ClusterHealth, ClusterProbe) {
        let process = crate::health::Health::new();
        let health = ClusterHealth::new(&"main".into(), process.register("source of orders"));
        (process, health, ClusterProbe::new())
    }

    /// Turns in which nobody answers, for `time`; how often somebody was asked.
    async fn silence(health: &ClusterHealth, probe: &mut ClusterProbe, time: Duration) -> usize {
        let (mut asked, end) = (0, Instant::now() + time);
        while Instant::now() < end {
            probe.serve(health, |ping| {
                asked += usize::from(ping == ProbeTarget::Controller);
                false
            });
            tokio::time::advance(Duration::from_millis(50)).await;
        }
        asked
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_told_when_a_broker_was_asked_in_vain_and_in_its_own_words() {
        let (process, health, mut probe) = new();
        assert_eq!(reasons(&process), ["starting"]);
        probe.serve(&health, |_| true);
        assert_eq!(reasons(&process), [""; 0]);
        health.record_error(BrokerTransportFailure, "a:1: connection refused".into());
        health.record_error(AllBrokersDown, "1/1 brokers are down".into());
        assert_eq!(
            (reasons(&process), health.outage_reason()),
            (Vec::new(), None),
            "librdkafka may be wrong"
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
            "what was sent during the outage may still time out"
        );
        tokio::time::advance(KAFKA_DELIVERY_TIMEOUT).await;
        assert_eq!(health.recent_outage(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_falls_silent_is_noticed_though_nothing_fails() {
        let (process, health, mut probe) = new();
        health.record_response();
        assert_eq!(
            silence(&health, &mut probe, KAFKA_SILENCE_TIMEOUT).await,
            1,
            "once a second, and not at once"
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
            "the latest word"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_whose_controller_alone_is_gone_is_not_away() {
        let (process, health, mut probe) = new();
        health.record_response();
        for _ in 0..20 {
            probe.serve(&health, |ping| ping == ProbeTarget::AnyBroker);
            tokio::time::advance(KAFKA_PROBE_INTERVAL).await;
        }
        assert_eq!(reasons(&process), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_asked_who_is_heard() {
        let (_process, health, mut probe) = new();
        for _ in 0..100 {
            health.record_response();
            tokio::time::advance(KAFKA_PROBE_INTERVAL).await;
            probe.serve(&health, |_| panic!("it answers unasked"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_failure_does_not_explain_a_new_silence() {
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
