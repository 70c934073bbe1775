//! Replaces a producer that failed fatally, and waits for the failed ones to close.
//!
//! Replacements are rate-limited, because the cause of the failure may still be there.

use super::report_loop::{ProducerOptions, Resend, open_producer};
use crate::broker::Error;
use crate::broker::kafka::ffi::{Delivery, ProduceRequest};
use crate::broker::kafka::producer_client::ProducerClient;
use crate::limit::{KAFKA_CLOSING_PRODUCERS_MAX, PRODUCER_REPLACE_INTERVAL};
use crate::model::header::Header;
use futures_util::future::join_all;
use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::time::Instant;

pub(super) struct FailoverProducer {
    options: ProducerOptions,
    /// Configuration of a second producer, whose batches hold one record. Records of a rejected
    /// batch go there once more, and fail only if they are rejected there as well.
    single_record_config: Option<ClientConfig>,
    /// `None`: not needed yet, or closed.
    current: Option<ProducerClient>,
    /// Failed producers whose last reports have not arrived.
    retired: Vec<ProducerClient>,
    next_replacement_at: Instant,
}

impl FailoverProducer {
    /// Opens its first producer with [`FailoverProducer::open`] or with the first send.
    pub(super) fn new(
        options: ProducerOptions,
        single_record_config: Option<ClientConfig>,
    ) -> Self {
        Self {
            options,
            single_record_config,
            current: None,
            retired: Vec::new(),
            next_replacement_at: Instant::now(),
        }
    }

    pub(super) fn open(&mut self) -> Result<(), Error> {
        self.current = Some(self.open_producer()?);
        Ok(())
    }

    fn open_producer(&self) -> Result<ProducerClient, Error> {
        let resend = self.single_record_config.clone().map(|config| {
            let options = ProducerOptions {
                config,
                ..self.options.clone()
            };
            let mut producer = Self::new(options, None);
            Box::new(move |delivery: &Delivery<'_>| producer.resend(delivery)) as Resend
        });
        open_producer(&self.options, resend)
    }

    /// `Fatal`: the producer failed and must not be replaced yet.
    pub(super) fn send<'h, H: Iterator<Item = Header<'h>>>(
        &mut self,
        topic: &str,
        request: &ProduceRequest<'_>,
        headers: impl Fn() -> H,
    ) -> Result<(), Code> {
        if let Some(producer) = &mut self.current {
            match producer.send(topic, request, headers()) {
                Err(Code::Fatal) => {}
                result => return result,
            }
        }
        if !self.replace() {
            return Err(Code::Fatal);
        }
        self.current.as_mut().map_or(Err(Code::Fatal), |producer| {
            producer.send(topic, request, headers())
        })
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
        let (_, text) = self.current.as_ref()?.native()?.fatal_error()?;
        Some(text)
    }

    /// Drops failed producers that have closed.
    pub(super) fn drop_closed(&mut self) {
        self.retired.retain(|producer| !producer.is_closed());
    }

    /// Returns whether there is a new producer.
    fn replace(&mut self) -> bool {
        self.drop_closed();
        let now = Instant::now();
        if now < self.next_replacement_at {
            return false;
        }
        self.next_replacement_at = now + PRODUCER_REPLACE_INTERVAL;
        if self.retired.len() >= KAFKA_CLOSING_PRODUCERS_MAX {
            self.options.health.mark_broken(
                "too many failed Kafka producers do not close: restart the process".to_owned(),
            );
            return false;
        }
        let reason = self.fatal_error();
        match self.open_producer() {
            Ok(producer) => {
                if let Some(mut failed) = self.current.replace(producer) {
                    tracing::warn!(reason, "kafka producer failed fatally and was replaced");
                    failed.retire();
                    self.retired.push(failed);
                }
                true
            }
            Err(error) => {
                self.options.health.mark_broken(format!(
                    "cannot replace a Kafka producer that failed fatally: {error}"
                ));
                false
            }
        }
    }

    /// Closes all producers concurrently.
    pub(super) async fn close(&mut self) {
        let producers = self.current.iter_mut().chain(&mut self.retired);
        join_all(producers.map(ProducerClient::close)).await;
        self.current = None;
        self.retired.clear();
    }

    #[cfg(feature = "test-support")]
    pub(super) fn inject_fatal_error(&self) {
        if let Some(native) = self.current.as_ref().and_then(ProducerClient::native) {
            native.inject_fatal_error();
        }
    }

    #[cfg(feature = "test-support")]
    pub(super) fn retired_producers(&self) -> usize {
        self.retired.len()
    }
}
