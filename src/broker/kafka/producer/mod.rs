//! The [`Target`] port on Kafka: an idempotent producer with a bounded number of records in flight.
//!
//! A fatally failed producer is replaced with the next send, at most once per
//! [`PRODUCER_REPLACE_INTERVAL`](super::limit::PRODUCER_REPLACE_INTERVAL). A producer fails fatally
//! if a broker loses acknowledged data or forgets the producer. Its records in flight, and those
//! sent before the replacement, fail with
//! [`ClientFailed`](crate::broker::FailureKind::ClientFailed). That does not blame the record, so
//! the caller sends it again and no message becomes a dead letter. The same holds for records that
//! time out while the whole cluster is down.

mod failover;

use super::error::refused_send;
use super::ffi::ProduceRequest;
use super::health::ClusterHealth;
use super::options::{
    ClientOptions, Cluster, PRODUCER_DEFAULTS, PRODUCER_ENFORCED, millis, queue_limits,
};
use crate::broker::event_queue::DeliveryReports;
use crate::broker::kafka::limit::{KAFKA_DELIVERY_TIMEOUT, KAFKA_SEND_LINGER};
use crate::broker::send_budget::SendBudget;
use crate::broker::{DeliveryReport, Error, OutgoingRecord, SendResult, Target};
use crate::health::HealthPart;
use async_trait::async_trait;
use failover::FailoverProducer;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;

/// For messages that are due now.
const LOW_LATENCY: ClientOptions = options(&[
    ("queue.buffering.max.ms", millis(KAFKA_SEND_LINGER)),
    DELIVERY_TIMEOUT,
    NEW_TOPIC_TIMEOUT,
]);

/// For backlogs: a longer linger fills requests better, and these messages are late anyway.
const BULK: ClientOptions = options(&[
    ("queue.buffering.max.ms", 5),
    DELIVERY_TIMEOUT,
    NEW_TOPIC_TIMEOUT,
]);

const DELIVERY_TIMEOUT: (&str, u64) = ("message.timeout.ms", millis(KAFKA_DELIVERY_TIMEOUT));

/// The time in which a missing topic may still be created.
const NEW_TOPIC_TIMEOUT: (&str, u64) = ("topic.metadata.propagation.max.ms", 5_000);

const fn options(limits: &'static [(&'static str, u64)]) -> ClientOptions {
    ClientOptions {
        defaults: PRODUCER_DEFAULTS,
        limits,
        enforced: PRODUCER_ENFORCED,
    }
}

/// The target port on one cluster.
pub(crate) struct KafkaTarget {
    budget: Arc<SendBudget>,
    /// Records that were accepted and whose reports were not returned yet.
    in_flight: usize,
    producer: FailoverProducer,
    reports: Arc<DeliveryReports>,
}

impl KafkaTarget {
    /// Accepts as many records that have no report yet as fit into the budget.
    pub(crate) fn new(
        cluster: &Cluster,
        budget: Arc<SendBudget>,
        part: HealthPart,
    ) -> Result<Self, Error> {
        Self::with_options(&LOW_LATENCY, cluster, budget, part)
    }

    /// Like `new`, for backlogs: a record waits longer and costs less.
    pub(crate) fn for_bulk(
        cluster: &Cluster,
        budget: Arc<SendBudget>,
        part: HealthPart,
    ) -> Result<Self, Error> {
        Self::with_options(&BULK, cluster, budget, part)
    }

    fn with_options(
        options: &ClientOptions,
        cluster: &Cluster,
        budget: Arc<SendBudget>,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let config = cluster.config(options, &queue_limits(budget.records_max));
        let reports: Arc<DeliveryReports> = Arc::default();
        let health = ClusterHealth::new(&cluster.name, part);
        Ok(Self {
            in_flight: 0,
            producer: FailoverProducer::open(config, budget.clone(), reports.clone(), health)?,
            budget,
            reports,
        })
    }

    /// Makes the producer fail fatally.
    #[cfg(feature = "test-support")]
    pub(crate) fn inject_fatal_error(&self) {
        self.producer.inject_fatal_error();
    }

    /// Number of failed producers that are not closed yet.
    #[cfg(feature = "test-support")]
    pub(crate) fn retired_producers(&self) -> usize {
        self.producer.retired_producers()
    }
}

#[async_trait(?Send)]
impl Target for KafkaTarget {
    fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        if self.in_flight >= self.budget.records_max || !self.budget.has_room() {
            return SendResult::QueueFull;
        }
        let request = ProduceRequest::new(record, ticket);
        let headers = || record.all_headers();
        let Err(code) = self.producer.send(record.topic, &request, headers) else {
            self.in_flight += 1;
            return SendResult::Accepted;
        };
        refused_send(code, record.topic, self.in_flight, || {
            let reason = self.producer.fatal_error().unwrap_or_default();
            let text = format!("the producer failed fatally and is not replaced yet: {reason}");
            (code == Code::Fatal).then_some(text)
        })
    }

    async fn next_reports(&mut self) -> Vec<DeliveryReport> {
        let reports = self.reports.take().await;
        self.in_flight -= reports.len();
        self.producer.drop_closed();
        reports
    }

    async fn close(&mut self) {
        self.producer.close().await;
    }
}
