//! The thread of a producer, which serves its delivery reports.

use crate::broker::event_queue::DeliveryReports;
use crate::broker::kafka::error::{
    client_creation_error, client_failed, delivery_failure, delivery_report, is_batch_rejection,
    or_client_failed,
};
use crate::broker::kafka::ffi::{ClientEvent, Delivery, NativeProducer};
use crate::broker::kafka::health::{ClusterHealth, ClusterProbe};
use crate::broker::kafka::producer_client::ProducerClient;
use crate::broker::{DeliveryFailure, DeliveryReport, Error};
use crate::client_thread::ClientThread;
use crate::limit::KAFKA_CLIENT_WAKE_INTERVAL;
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

/// Opens a producer. Without `resend`, a batch rejection fails every record of the batch.
pub(super) fn open_producer(
    options: &ProducerOptions,
    resend: Option<Resend>,
) -> Result<ProducerClient, Error> {
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
    Ok(ProducerClient::new(native, stop, thread))
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
                None => delivery_failure(code, delivery.status(), &delivery.text()),
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
