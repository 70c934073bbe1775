//! Kafka as a target: an idempotent producer, its bound, and what becomes of it when it fails for good.
//!
//! A producer that librdkafka declares fatally failed (a broker lost data that it had acknowledged, or forgot the producer) is replaced by
//! a new one at the next send. What was under way is reported as not taken where it never left the client, and as unknown where it may
//! have arrived; so the service recovers without a restart, and nothing is reported `Closed` but what is sent after [`Target::close`].

use super::health::Health;
use super::lane::{Lane, Reports};
use super::raw::{Outbound, Status};
use super::{Cluster, Side, failure, kbytes, millis, no_topic_name};
use crate::broker::{Error, Failure, FailureKind, Outgoing, Report, Sent, Target};
use crate::health::Part;
use crate::limit::{KAFKA_NEW_TOPIC_MAX, KAFKA_SEND_BYTES_MAX, KAFKA_SEND_LINGER, KAFKA_SEND_MAX};
use crate::model::Reason;
use async_trait::async_trait;
use futures_util::future::join_all;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;

const SIDE: Side = Side {
    defaults: &[("socket.nagle.disable", "true")],
    bounds: &[
        ("queue.buffering.max.ms", millis(KAFKA_SEND_LINGER)),
        ("message.timeout.ms", millis(KAFKA_SEND_MAX)),
        // A topic that does not exist is told after so long; the next seconds of a new one are covered.
        ("topic.metadata.propagation.max.ms", millis(KAFKA_NEW_TOPIC_MAX)),
    ],
    owned: &[
        ("enable.idempotence", "true"),
        ("request.required.acks", "all"),
        ("partitioner", "murmur2_random"),
        // The most that librdkafka takes: the broker is to judge.
        ("message.max.bytes", "1000000000"),
        ("delivery.report.only.error", "false"),
    ],
};

/// The target port on one cluster.
pub(crate) struct KafkaTarget {
    cluster: Cluster,
    in_flight_max: usize,
    /// Taken over, and not handed out as reports yet.
    in_flight: usize,
    /// `None`: closed.
    lane: Option<Lane>,
    /// Failed ones, whose last reports are on their way.
    retired: Vec<Lane>,
    reports: Arc<Reports>,
    health: Health,
}

impl KafkaTarget {
    /// Takes over at most `in_flight_max` records that were not reported on yet. `user` names it in the log.
    pub(crate) fn new(cluster: Cluster, in_flight_max: usize, part: Part) -> Result<Self, Error> {
        let health = Health::new(&cluster.name, part);
        let reports = Arc::default();
        let lane = Some(open(&cluster, in_flight_max, &reports, &health)?);
        Ok(Self { cluster, in_flight_max, in_flight: 0, lane, retired: Vec::new(), reports, health })
    }

    /// Where a lane cannot be opened any more, the failed one stays, and every send says so.
    fn replace(&mut self, reason: &str) -> Result<(), Error> {
        tracing::error!(cluster = %self.cluster.name, reason, "a kafka producer failed for good and is replaced");
        let lane = open(&self.cluster, self.in_flight_max, &self.reports, &self.health)?;
        if let Some(mut failed) = self.lane.replace(lane) {
            failed.retire();
            self.retired.push(failed);
        }
        Ok(())
    }

    fn refused(&self, code: Code, topic: &str) -> Sent {
        match code {
            Code::QueueFull if self.in_flight > 0 => Sent::Full,
            Code::QueueFull => Sent::Failed(failure::of_record(Code::MessageSizeTooLarge, Status::NotPersisted, String::new())),
            Code::InvalidTopic => Sent::Failed(failure::of_record(code, Status::NotPersisted, no_topic_name(topic))),
            Code::Fatal => closed("the producer has failed and cannot be replaced"),
            _ => Sent::Failed(failure::of_record(code, Status::NotPersisted, String::new())),
        }
    }

    /// Has the producer fail for good.
    #[cfg(any(test, feature = "test-support"))]
    pub(crate) fn fail_for_good(&self) {
        if let Some(lane) = &self.lane {
            lane.fail_for_good();
        }
    }
}

fn open(cluster: &Cluster, in_flight_max: usize, reports: &Arc<Reports>, health: &Health) -> Result<Lane, Error> {
    let bounds = [
        ("queue.buffering.max.messages", in_flight_max.to_string()),
        ("queue.buffering.max.kbytes", kbytes(KAFKA_SEND_BYTES_MAX).to_string()),
    ];
    let mut alone = cluster.config(&SIDE, &bounds);
    alone.set("batch.num.messages", "1").set("queue.buffering.max.ms", "0");
    Lane::open(&cluster.config(&SIDE, &bounds), Some(alone), reports.clone(), health.clone())
}

fn closed(detail: &str) -> Sent {
    Sent::Failed(Failure { kind: FailureKind::Closed, reason: Reason::TimedOut, detail: detail.to_owned() })
}

#[async_trait(?Send)]
impl Target for KafkaTarget {
    fn send(&mut self, record: &Outgoing<'_>, ticket: u64) -> Sent {
        if self.in_flight >= self.in_flight_max {
            return Sent::Full;
        }
        let outbound = Outbound { partition: record.partition, key: record.key, payload: record.payload, ticket };
        for fresh in [false, true] {
            let Some(lane) = &mut self.lane else { return closed("the producer is closed") };
            match lane.send(record.topic, &outbound, record.out_headers()) {
                Ok(()) => {
                    self.in_flight += 1;
                    return Sent::Taken;
                }
                Err(Code::Fatal) if !fresh => {
                    let reason = lane.fatal().unwrap_or_default();
                    if let Err(error) = self.replace(&reason) {
                        return closed(&error.to_string());
                    }
                }
                Err(code) => return self.refused(code, record.topic),
            }
        }
        unreachable!("a fresh lane's answer is final")
    }

    async fn reports(&mut self) -> Vec<Report> {
        let reports = self.reports.take().await;
        self.in_flight -= reports.len();
        reports
    }

    async fn close(&mut self) {
        let mut lanes: Vec<Lane> = self.lane.take().into_iter().chain(self.retired.drain(..)).collect();
        join_all(lanes.iter_mut().map(Lane::end)).await;
    }
}
