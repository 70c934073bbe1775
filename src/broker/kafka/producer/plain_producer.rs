//! One librdkafka producer and the thread that serves its delivery reports.

use crate::broker::client_thread::ClientThread;
use crate::broker::event_queue::DeliveryReports;
use crate::broker::kafka::error::{
    client_creation_error, client_failed, delivery_failure, delivery_report, is_batch_rejection,
    or_client_failed,
};
use crate::broker::kafka::ffi::{ClientEvent, Delivery, NativeProducer, ProduceRequest};
use crate::broker::kafka::health::{ClusterHealth, ClusterProbe};
use crate::broker::kafka::topic_handles::TopicHandles;
use crate::broker::{DeliveryFailure, DeliveryReport, Error};
use crate::limit::KAFKA_CLIENT_WAKE_INTERVAL;
use crate::model::header::Header;
use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The options of a producer and of its replacements.
#[derive(Clone)]
pub(super) struct ProducerOptions {
    pub(super) config: ClientConfig,
    pub(super) reports: Arc<DeliveryReports>,
    pub(super) health: ClusterHealth,
}

/// Sends a record of a rejected batch again, in a batch of its own. If this is `Ok`, the other
/// producer reports on the record.
pub(super) type Resend = Box<dyn FnMut(&Delivery<'_>) -> Result<(), Code> + Send>;

/// Dropping it purges the records in flight and joins the thread.
pub(super) struct PlainProducer {
    topic_handles: TopicHandles,
    /// `None` once retired. The last owner closes the client, which blocks, so it must be the
    /// thread.
    native: Option<Arc<NativeProducer>>,
    stop: Arc<AtomicBool>,
    thread: ClientThread,
}

impl PlainProducer {
    /// Without `resend`, a batch rejection fails every record of the batch.
    pub(super) fn open(options: &ProducerOptions, resend: Option<Resend>) -> Result<Self, Error> {
        let native =
            NativeProducer::new(&options.config).map_err(|error| client_creation_error(&error))?;
        let native = Arc::new(native);
        let stop = Arc::new(AtomicBool::new(false));
        let name = if resend.is_some() {
            "kafka-target"
        } else {
            "kafka-resend"
        };
        let report_loop = ReportLoop {
            native: native.clone(),
            stop: stop.clone(),
            reports: options.reports.clone(),
            health: options.health.clone(),
            batch: Vec::new(),
            has_failed: false,
            resend,
        };
        let thread = ClientThread::start(name, move || report_loop.serve())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            topic_handles: TopicHandles::default(),
            native: Some(native),
            stop,
            thread,
        })
    }

    pub(super) fn send<'h>(
        &mut self,
        topic: &str,
        request: &ProduceRequest<'_>,
        headers: impl Iterator<Item = Header<'h>>,
    ) -> Result<(), Code> {
        let Some(native) = &self.native else {
            return Err(Code::DestroyBroker);
        };
        native.send(self.topic_handles.get(native, topic)?, request, headers)
    }

    pub(super) fn fatal_error(&self) -> Option<String> {
        self.native.as_ref()?.fatal_error().map(|(_, text)| text)
    }

    /// Purges the records in flight and accepts no more. Their reports still arrive.
    pub(super) fn retire(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.topic_handles.clear();
        if let Some(native) = self.native.take() {
            native.wake_poll();
        }
    }

    /// Returns whether a retired producer has reported on all records and closed its client.
    pub(super) fn is_closed(&self) -> bool {
        self.thread.is_finished()
    }

    pub(super) async fn close(&mut self) {
        self.retire();
        self.thread.join().await;
    }

    #[cfg(feature = "test-support")]
    pub(super) fn inject_fatal_error(&self) {
        if let Some(native) = &self.native {
            native.inject_fatal_error();
        }
    }
}

impl Drop for PlainProducer {
    fn drop(&mut self) {
        self.retire();
    }
}

/// The state of the producer's thread.
struct ReportLoop {
    native: Arc<NativeProducer>,
    stop: Arc<AtomicBool>,
    reports: Arc<DeliveryReports>,
    health: ClusterHealth,
    batch: Vec<DeliveryReport>,
    /// The producer failed fatally. librdkafka keeps its records until they time out, although it
    /// cannot send them any more.
    has_failed: bool,
    resend: Option<Resend>,
}

impl ReportLoop {
    fn serve(mut self) {
        // The resend producer shares the health, so only the main one probes.
        let mut probe = self.resend.is_some().then(ClusterProbe::new);
        while !self.stop.load(Ordering::Relaxed) {
            let was_usable = !self.has_failed;
            self.poll();
            if self.has_failed && was_usable {
                self.native.purge();
            }
            if let Some(probe) = probe.as_mut().filter(|_| was_usable) {
                probe.serve(&self.health, |target| self.native.client().probe(target));
            }
        }
        self.native.purge();
        while self.native.queued_events() > 0 && self.poll() > 0 {}
    }

    /// Serves one event of the client. Returns the number of served events.
    fn poll(&mut self) -> usize {
        let Self {
            native,
            reports,
            health,
            batch,
            has_failed,
            resend,
            ..
        } = self;
        let mut on_event = |event| {
            if let ClientEvent::Error { code, .. } = &event {
                *has_failed |= *code == Code::Fatal;
            }
            health.on_client_event(event);
        };
        let served = native.poll(KAFKA_CLIENT_WAKE_INTERVAL, &mut on_event, |delivery| {
            let Some(code) = delivery.error else {
                health.record_response();
                batch.push(delivery_report(delivery, Ok(())));
                return;
            };
            let failure = match resend.as_mut().filter(|_| is_batch_rejection(code)) {
                Some(resend) => match resend(delivery) {
                    // The other producer reports on it.
                    Ok(()) => return,
                    Err(code) => not_resent(code),
                },
                None => delivery_failure(code, delivery.status(), delivery.text()),
            };
            let fatal_error = native.fatal_error().map(|(_, text)| text);
            let trouble = fatal_error.or_else(|| health.recent_outage());
            let failure = or_client_failed(failure, trouble);
            batch.push(delivery_report(delivery, Err(failure)));
        });
        reports.push(batch);
        served
    }
}

/// Another record of the batch may be at fault, so this does not blame the record.
fn not_resent(code: Code) -> DeliveryFailure {
    client_failed(format!(
        "the broker rejected its batch, and it cannot be sent alone now: {code}"
    ))
}
