//! Replaces a producer that failed fatally, and waits for the failed ones to close. Each has a
//! thread that serves its delivery reports.
//!
//! Replacements are rate-limited, because the cause of the failure may still be there.

use crate::broker::event_queue::DeliveryReports;
use crate::broker::kafka::error::{
    client_failed, delivery_failure, delivery_report, is_batch_rejection, or_client_failed,
};
use crate::broker::kafka::ffi::{ClientEvent, Delivery, NativeProducer, ProduceRequest};
use crate::broker::kafka::health::{ClusterHealth, ClusterProbe};
use crate::broker::kafka::limit::{
    KAFKA_CLIENT_WAKE_INTERVAL, KAFKA_CLOSING_PRODUCERS_MAX, PRODUCER_REPLACE_INTERVAL,
};
use crate::broker::kafka::options::set_single_record;
use crate::broker::kafka::producer_client::ProducerClient;
use crate::broker::send_budget::SendBudget;
use crate::broker::{DeliveryFailure, DeliveryReport, Error};
use crate::model::header::Header;
use futures_util::future::join_all;
use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::Instant;

pub(super) struct FailoverProducer {
    config: ClientConfig,
    /// Sends each record in a batch of its own. Such a producer takes the records of a rejected
    /// batch of the main producer. They fail only if they are rejected there as well.
    is_single_record: bool,
    /// All producers of this target share it.
    budget: Arc<SendBudget>,
    reports: Arc<DeliveryReports>,
    health: ClusterHealth,
    /// `None`: not needed yet, or closed.
    current: Option<ProducerClient>,
    is_closed: bool,
    /// Failed producers whose last reports have not arrived.
    retired: Vec<ProducerClient>,
    next_replacement_at: Instant,
}

impl FailoverProducer {
    pub(super) fn open(
        config: ClientConfig,
        budget: Arc<SendBudget>,
        reports: Arc<DeliveryReports>,
        health: ClusterHealth,
    ) -> Result<Self, Error> {
        let mut producer = Self::new(config, false, budget, reports, health);
        producer.current = Some(producer.open_client()?);
        Ok(producer)
    }

    /// Opens its first client with the first send.
    fn new(
        config: ClientConfig,
        is_single_record: bool,
        budget: Arc<SendBudget>,
        reports: Arc<DeliveryReports>,
        health: ClusterHealth,
    ) -> Self {
        Self {
            config,
            is_single_record,
            budget,
            reports,
            health,
            current: None,
            is_closed: false,
            retired: Vec::new(),
            next_replacement_at: Instant::now(),
        }
    }

    fn open_client(&self) -> Result<ProducerClient, Error> {
        let (reports, health) = (self.reports.clone(), self.health.clone());
        let resend = (!self.is_single_record).then(|| {
            let mut config = self.config.clone();
            set_single_record(&mut config);
            let (budget, reports) = (self.budget.clone(), reports.clone());
            Self::new(config, true, budget, reports, health.clone())
        });
        let name = match &resend {
            Some(_) => "kafka-target",
            None => "kafka-resend",
        };
        ProducerClient::start(
            &self.config,
            self.budget.clone(),
            name,
            move |native, stop| {
                let report_loop = ReportLoop {
                    native,
                    stop,
                    reports,
                    health,
                    batch: Vec::new(),
                    has_failed: false,
                    resend,
                };
                report_loop.serve();
            },
        )
    }

    /// `Fatal`: the producer is closed, or failed and must not be replaced yet.
    pub(super) fn send<'h, H: Iterator<Item = Header<'h>>>(
        &mut self,
        topic: &str,
        request: &ProduceRequest<'_>,
        headers: impl Fn() -> H,
    ) -> Result<(), Code> {
        if let Some(producer) = &mut self.current {
            let result = producer.send(topic, request, headers());
            if result != Err(Code::Fatal) {
                return result;
            }
        }
        let producer = self.replace().ok_or(Code::Fatal)?;
        producer.send(topic, request, headers())
    }

    fn resend(&mut self, delivery: &Delivery<'_>) -> Result<(), Code> {
        let message = &delivery.message;
        let request = ProduceRequest {
            partition: Some(message.partition()).filter(|partition| *partition >= 0),
            key: message.key(),
            payload: message.payload(),
            ticket: delivery.ticket,
        };
        self.send(message.topic(), &request, || message.headers())
    }

    /// The fatal error of the current producer.
    pub(super) fn fatal_error(&self) -> Option<String> {
        let native = self.current.as_ref()?.native.as_ref()?;
        let (_, text) = native.client().fatal_error()?;
        Some(text)
    }

    /// Drops failed producers that have closed.
    pub(super) fn drop_closed(&mut self) {
        self.retired.retain(|producer| !producer.is_closed());
    }

    /// The new producer, if one may and can be opened now.
    fn replace(&mut self) -> Option<&mut ProducerClient> {
        self.drop_closed();
        let now = Instant::now();
        if self.is_closed || now < self.next_replacement_at {
            return None;
        }
        self.next_replacement_at = now + PRODUCER_REPLACE_INTERVAL;
        if self.retired.len() >= KAFKA_CLOSING_PRODUCERS_MAX {
            self.health.mark_broken(
                "too many failed Kafka producers do not close: restart the process".to_owned(),
            );
            return None;
        }
        let reason = self.fatal_error();
        let producer = self.open_client().map_err(|error| {
            self.health.mark_broken(format!(
                "cannot replace a Kafka producer that failed fatally: {error}"
            ));
        });
        if let Some(mut failed) = self.current.replace(producer.ok()?) {
            tracing::warn!(
                cluster = self.health.cluster(),
                reason,
                "the Kafka producer failed fatally and was replaced"
            );
            failed.retire();
            self.retired.push(failed);
        }
        self.current.as_mut()
    }

    /// Closes all producers concurrently.
    pub(super) async fn close(&mut self) {
        let producers = self.current.iter_mut().chain(&mut self.retired);
        join_all(producers.map(ProducerClient::close)).await;
        self.is_closed = true;
        self.current = None;
        self.retired.clear();
    }

    #[cfg(feature = "test-support")]
    pub(super) fn inject_fatal_error(&self) {
        if let Some(native) = self
            .current
            .as_ref()
            .and_then(|current| current.native.as_ref())
        {
            native.inject_fatal_error();
        }
    }

    #[cfg(feature = "test-support")]
    pub(super) fn retired_producers(&self) -> usize {
        self.retired.len()
    }
}

/// The state of a producer's thread.
struct ReportLoop {
    native: Arc<NativeProducer>,
    stop: Arc<AtomicBool>,
    reports: Arc<DeliveryReports>,
    health: ClusterHealth,
    batch: Vec<DeliveryReport>,
    /// The producer failed fatally. librdkafka keeps its records until they time out, although it
    /// cannot send them any more.
    has_failed: bool,
    /// `None`: this is the resend producer.
    resend: Option<FailoverProducer>,
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
                probe.serve(&self.health, |target| self.native.probe(target));
            }
        }
        self.native.purge();
        while self.native.queued_events() > 0 && self.poll() {}
    }

    /// Serves one event of the client. Returns whether there was one.
    fn poll(&mut self) -> bool {
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
        let was_served = native.poll(KAFKA_CLIENT_WAKE_INTERVAL, &mut on_event, |delivery| {
            let Some(code) = delivery.error else {
                health.record_response();
                batch.push(delivery_report(delivery, Ok(())));
                return;
            };
            let failure = match resend.as_mut().filter(|_| is_batch_rejection(code)) {
                Some(resend) => match resend.resend(delivery) {
                    // The other producer reports on it.
                    Ok(()) => return,
                    Err(code) => not_resent(code),
                },
                None => delivery_failure(code, delivery.may_be_stored(), &delivery.text()),
            };
            let fatal_error = native.client().fatal_error().map(|(_, text)| text);
            let trouble = fatal_error.or_else(|| health.recent_outage());
            let failure = or_client_failed(failure, trouble);
            batch.push(delivery_report(delivery, Err(failure)));
        });
        reports.push(batch);
        was_served
    }
}

/// Another record of the batch may be at fault, so this does not blame the record.
fn not_resent(code: Code) -> DeliveryFailure {
    client_failed(format!(
        "the broker rejected its batch, and it cannot be sent alone now: {code}"
    ))
}
