//! The [`Target`] port on Kafka: an idempotent producer with a bounded number of records in flight.
//!
//! A fatally failed producer is replaced with the next send, at most once per
//! [`PRODUCER_REPLACE_INTERVAL`](crate::limit::PRODUCER_REPLACE_INTERVAL). A producer fails fatally
//! if a broker loses acknowledged data or forgets the producer. Its records in flight, and those
//! sent before the replacement, fail with
//! [`ClientFailed`](crate::broker::FailureKind::ClientFailed). That does not blame the record, so
//! the caller sends it again and no message becomes a dead letter. The same holds for records that
//! time out while the whole cluster is down.

mod failover;
mod report_loop;

use super::error::{client_failed, delivery_failure};
use super::ffi::{PersistStatus, ProduceRequest};
use super::health::ClusterHealth;
use super::options::{ClientOptions, Cluster, PRODUCER_ENFORCED, kbytes, millis};
use super::topic_name::invalid_topic_name;
use crate::broker::event_queue::DeliveryReports;
use crate::broker::{DeliveryReport, Error, OutgoingRecord, SendResult, Target};
use crate::health::HealthPart;
use crate::limit::{
    KAFKA_BULK_LINGER, KAFKA_DELIVERY_TIMEOUT, KAFKA_NEW_TOPIC_TIMEOUT,
    KAFKA_PRODUCER_QUEUE_BYTES_MAX, KAFKA_SEND_LINGER,
};
use async_trait::async_trait;
use failover::FailoverProducer;
use rdkafka::types::RDKafkaErrorCode as Code;
use report_loop::ProducerOptions;
use std::sync::Arc;
use std::time::Duration;

/// For messages that are due now.
const LOW_LATENCY: ClientOptions = options(&[
    linger(KAFKA_SEND_LINGER),
    DELIVERY_TIMEOUT,
    NEW_TOPIC_TIMEOUT,
]);

/// For backlogs: a longer linger fills requests better, and these messages are late anyway.
const BULK: ClientOptions = options(&[
    linger(KAFKA_BULK_LINGER),
    DELIVERY_TIMEOUT,
    NEW_TOPIC_TIMEOUT,
]);

const DELIVERY_TIMEOUT: (&str, u64) = ("message.timeout.ms", millis(KAFKA_DELIVERY_TIMEOUT));

/// The time in which a missing topic may still be created.
const NEW_TOPIC_TIMEOUT: (&str, u64) = (
    "topic.metadata.propagation.max.ms",
    millis(KAFKA_NEW_TOPIC_TIMEOUT),
);

const fn linger(length: Duration) -> (&'static str, u64) {
    ("queue.buffering.max.ms", millis(length))
}

const fn options(limits: &'static [(&'static str, u64)]) -> ClientOptions {
    ClientOptions {
        defaults: &[
            ("socket.nagle.disable", "true"),
            // A broker answers the requests of one connection one after the other. With more than
            // one in flight, librdkafka 2.12 busy-waits for the next answer.
            ("max.in.flight.requests.per.connection", "1"),
        ],
        limits,
        enforced: PRODUCER_ENFORCED,
    }
}

/// The target port on one cluster.
pub(crate) struct KafkaTarget {
    in_flight_max: usize,
    /// Records that were accepted and whose reports were not returned yet.
    in_flight: usize,
    /// `None` after `close`.
    producer: Option<FailoverProducer>,
    reports: Arc<DeliveryReports>,
}

impl KafkaTarget {
    /// Accepts at most `in_flight_max` records that have no report yet.
    pub(crate) fn new(
        cluster: &Cluster,
        in_flight_max: usize,
        part: HealthPart,
    ) -> Result<Self, Error> {
        Self::with_options(&LOW_LATENCY, cluster, in_flight_max, part)
    }

    /// Like `new`, for backlogs: a record waits longer and costs less.
    pub(crate) fn for_bulk(
        cluster: &Cluster,
        in_flight_max: usize,
        part: HealthPart,
    ) -> Result<Self, Error> {
        Self::with_options(&BULK, cluster, in_flight_max, part)
    }

    fn with_options(
        options: &ClientOptions,
        cluster: &Cluster,
        in_flight_max: usize,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let queue_limits = [
            ("queue.buffering.max.messages", in_flight_max.to_string()),
            (
                "queue.buffering.max.kbytes",
                kbytes(KAFKA_PRODUCER_QUEUE_BYTES_MAX).to_string(),
            ),
        ];
        let config = cluster.config(options, &queue_limits);
        let mut single_record_config = config.clone();
        single_record_config
            .set("batch.num.messages", "1")
            .set("queue.buffering.max.ms", "0");
        let reports: Arc<DeliveryReports> = Arc::default();
        let health = ClusterHealth::new(&cluster.name, part);
        let options = ProducerOptions {
            config,
            reports: reports.clone(),
            health,
        };
        let mut producer = FailoverProducer::new(options, Some(single_record_config));
        producer.open()?;
        Ok(Self {
            in_flight_max,
            in_flight: 0,
            producer: Some(producer),
            reports,
        })
    }

    fn send_error(&self, code: Code, topic: &str) -> SendResult {
        let failed = |code, text: String| {
            SendResult::Failed(delivery_failure(code, PersistStatus::NotPersisted, &text))
        };
        match code {
            Code::QueueFull if self.in_flight > 0 => SendResult::QueueFull,
            // The empty queue is too small for the record.
            Code::QueueFull => failed(Code::MessageSizeTooLarge, String::new()),
            Code::InvalidTopic => failed(code, invalid_topic_name(topic)),
            Code::Fatal => {
                let producer = self.producer.as_ref();
                let reason = producer
                    .and_then(FailoverProducer::fatal_error)
                    .unwrap_or_default();
                SendResult::Failed(client_failed(format!(
                    "the producer failed fatally and is not replaced yet: {reason}"
                )))
            }
            _ => failed(code, String::new()),
        }
    }

    /// Makes the producer fail fatally.
    #[cfg(feature = "test-support")]
    pub(crate) fn inject_fatal_error(&self) {
        if let Some(producer) = &self.producer {
            producer.inject_fatal_error();
        }
    }

    /// Number of failed producers that are not closed yet.
    #[cfg(feature = "test-support")]
    pub(crate) fn retired_producers(&self) -> usize {
        self.producer
            .as_ref()
            .map_or(0, FailoverProducer::retired_producers)
    }
}

#[async_trait(?Send)]
impl Target for KafkaTarget {
    fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        let Some(producer) = &mut self.producer else {
            return SendResult::Failed(client_failed("the producer is closed".to_owned()));
        };
        if self.in_flight >= self.in_flight_max {
            return SendResult::QueueFull;
        }
        let request = ProduceRequest {
            partition: record.partition,
            key: record.key,
            payload: record.payload,
            ticket,
        };
        match producer.send(record.topic, &request, || record.all_headers()) {
            Ok(()) => {
                self.in_flight += 1;
                SendResult::Accepted
            }
            Err(code) => self.send_error(code, record.topic),
        }
    }

    async fn next_reports(&mut self) -> Vec<DeliveryReport> {
        let reports = self.reports.take().await;
        self.in_flight -= reports.len();
        if let Some(producer) = &mut self.producer {
            producer.drop_closed();
        }
        reports
    }

    async fn close(&mut self) {
        if let Some(mut producer) = self.producer.take() {
            producer.close().await;
        }
    }
}
