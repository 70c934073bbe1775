//! Kafka as a target: an idempotent producer, its bound, and what becomes of it when it fails for good.
//!
//! A producer that librdkafka declares fatally failed (a broker lost data that it had acknowledged, or forgot the producer) is replaced by
//! a new one at the next send, at most every [`PRODUCER_REPLACE_INTERVAL`](crate::limit::REPLACE_INTERVAL). What was under way, and what is sent
//! while none may be made yet, is answered [`FailureKind::Closed`](crate::broker::FailureKind::Closed): it says nothing about the record,
//! which is to be sent again. So the service recovers without a restart, and no message is diverted for it. The same holds for what is not
//! delivered in time while the whole cluster is away.

use super::health::ClusterHealth;
use super::lane::{DeliveryReports, ProducerOptions};
use super::raw::{PersistStatus, ProduceRequest};
use super::succession::FailoverProducer;
use super::{
    ClientOptions, Cluster, PRODUCER_ENFORCED, failure, invalid_topic_name, kbytes, millis,
};
use crate::broker::{DeliveryReport, Error, OutgoingRecord, SendResult, Target};
use crate::health::HealthPart;
use crate::limit::{
    KAFKA_BULK_LINGER, KAFKA_DELIVERY_TIMEOUT, KAFKA_NEW_TOPIC_TIMEOUT,
    KAFKA_PRODUCER_QUEUE_BYTES_MAX, KAFKA_SEND_LINGER,
};
use async_trait::async_trait;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;
use std::time::Duration;

/// For what is due now.
const LOW_LATENCY: ClientOptions = side(&[linger(KAFKA_SEND_LINGER), SEND_MAX, NEW_TOPIC_MAX]);

/// For floods, which are late as it is: fuller requests.
const BULK: ClientOptions = side(&[linger(KAFKA_BULK_LINGER), SEND_MAX, NEW_TOPIC_MAX]);

const SEND_MAX: (&str, u64) = ("message.timeout.ms", millis(KAFKA_DELIVERY_TIMEOUT));

/// A topic that does not exist is told after so long; the next seconds of a new one are covered.
const NEW_TOPIC_MAX: (&str, u64) = (
    "topic.metadata.propagation.max.ms",
    millis(KAFKA_NEW_TOPIC_TIMEOUT),
);

const fn linger(length: Duration) -> (&'static str, u64) {
    ("queue.buffering.max.ms", millis(length))
}

const fn side(bounds: &'static [(&'static str, u64)]) -> ClientOptions {
    ClientOptions {
        defaults: &[
            ("socket.nagle.disable", "true"),
            // A broker answers the requests of one connection one after the other. With more of them under way, and what waits for its
            // partition's turn, librdkafka (2.12) spins until an answer comes.
            ("max.in.flight.requests.per.connection", "1"),
        ],
        limits: bounds,
        enforced: PRODUCER_ENFORCED,
    }
}

/// The target port on one cluster.
pub(crate) struct KafkaTarget {
    in_flight_max: usize,
    /// Taken over, and not handed out as reports yet.
    in_flight: usize,
    /// `None`: closed.
    lanes: Option<FailoverProducer>,
    reports: Arc<DeliveryReports>,
}

impl KafkaTarget {
    /// Takes over at most `in_flight_max` records that were not reported on yet. `part` tells of the cluster.
    pub(crate) fn new(
        cluster: &Cluster,
        in_flight_max: usize,
        part: HealthPart,
    ) -> Result<Self, Error> {
        Self::of(&LOW_LATENCY, cluster, in_flight_max, part)
    }

    /// As `new`, for more than can be sent at once: each record waits a little longer, and costs less.
    pub(crate) fn for_bulk(
        cluster: &Cluster,
        in_flight_max: usize,
        part: HealthPart,
    ) -> Result<Self, Error> {
        Self::of(&BULK, cluster, in_flight_max, part)
    }

    fn of(
        side: &ClientOptions,
        cluster: &Cluster,
        in_flight_max: usize,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let bounds = [
            ("queue.buffering.max.messages", in_flight_max.to_string()),
            (
                "queue.buffering.max.kbytes",
                kbytes(KAFKA_PRODUCER_QUEUE_BYTES_MAX).to_string(),
            ),
        ];
        let config = cluster.config(side, &bounds);
        let mut alone = config.clone();
        alone
            .set("batch.num.messages", "1")
            .set("queue.buffering.max.ms", "0");
        let reports: Arc<DeliveryReports> = Arc::default();
        let health = ClusterHealth::new(&cluster.name, part);
        let mut lanes = FailoverProducer::new(ProducerOptions {
            config,
            alone: Some(alone),
            reports: reports.clone(),
            health,
        });
        lanes.open()?;
        Ok(Self {
            in_flight_max,
            in_flight: 0,
            lanes: Some(lanes),
            reports,
        })
    }

    fn refused(&self, code: Code, topic: &str) -> SendResult {
        let failed = |code, words| {
            SendResult::Failed(failure::delivery_failure(
                code,
                PersistStatus::NotPersisted,
                words,
            ))
        };
        match code {
            Code::QueueFull if self.in_flight > 0 => SendResult::QueueFull,
            Code::QueueFull => failed(Code::MessageSizeTooLarge, String::new()),
            Code::InvalidTopic => failed(code, invalid_topic_name(topic)),
            Code::Fatal => {
                let reason = self
                    .lanes
                    .as_ref()
                    .and_then(FailoverProducer::fatal)
                    .unwrap_or_default();
                SendResult::Failed(failure::client_failed(format!(
                    "the producer failed for good and is not replaced yet: {reason}"
                )))
            }
            _ => failed(code, String::new()),
        }
    }

    /// Has the producer fail for good.
    #[cfg(feature = "test-support")]
    pub(crate) fn fail_for_good(&self) {
        if let Some(lanes) = &self.lanes {
            lanes.fail_for_good();
        }
    }

    /// Producers that failed and have not been let go of.
    #[cfg(feature = "test-support")]
    pub(crate) fn retired(&self) -> usize {
        self.lanes.as_ref().map_or(0, FailoverProducer::retired)
    }
}

#[async_trait(?Send)]
impl Target for KafkaTarget {
    fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        let Some(lanes) = &mut self.lanes else {
            return SendResult::Failed(failure::client_failed("the producer is closed".to_owned()));
        };
        if self.in_flight >= self.in_flight_max {
            return SendResult::QueueFull;
        }
        let outbound = ProduceRequest {
            partition: record.partition,
            key: record.key,
            payload: record.payload,
            ticket,
        };
        match lanes.send(record.topic, &outbound, || record.all_headers()) {
            Ok(()) => {
                self.in_flight += 1;
                SendResult::Accepted
            }
            Err(code) => self.refused(code, record.topic),
        }
    }

    async fn next_reports(&mut self) -> Vec<DeliveryReport> {
        let reports = self.reports.take().await;
        self.in_flight -= reports.len();
        self.lanes.iter_mut().for_each(FailoverProducer::prune);
        reports
    }

    async fn close(&mut self) {
        if let Some(mut lanes) = self.lanes.take() {
            lanes.end().await;
        }
    }
}
