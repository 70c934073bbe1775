//! Kafka as a target: an idempotent producer, its bound, and what becomes of it when it fails for good.
//!
//! A producer that librdkafka declares fatally failed (a broker lost data that it had acknowledged, or forgot the producer) is replaced by
//! a new one at the next send, at most every [`REPLACE_INTERVAL`](crate::limit::REPLACE_INTERVAL). What was under way, and what is sent
//! while none may be made yet, is answered [`FailureKind::Closed`](crate::broker::FailureKind::Closed): it says nothing about the record,
//! which is to be sent again. So the service recovers without a restart, and no message is diverted for it. The same holds for what is not
//! delivered in time while the whole cluster is away.

use super::health::Health;
use super::lane::{Options, Reports};
use super::raw::{Outbound, Status};
use super::succession::Succession;
use super::{Cluster, SENDING, Side, failure, kbytes, millis, no_topic_name};
use crate::broker::{Error, Outgoing, Report, Sent, Target};
use crate::health::Part;
use crate::limit::{
    KAFKA_FLOOD_LINGER, KAFKA_NEW_TOPIC_MAX, KAFKA_SEND_BYTES_MAX, KAFKA_SEND_LINGER,
    KAFKA_SEND_MAX,
};
use async_trait::async_trait;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;
use std::time::Duration;

/// For what is due now.
const PROMPT: Side = side(&[linger(KAFKA_SEND_LINGER), SEND_MAX, NEW_TOPIC_MAX]);

/// For floods, which are late as it is: fuller requests.
const FLOODS: Side = side(&[linger(KAFKA_FLOOD_LINGER), SEND_MAX, NEW_TOPIC_MAX]);

const SEND_MAX: (&str, u64) = ("message.timeout.ms", millis(KAFKA_SEND_MAX));

/// A topic that does not exist is told after so long; the next seconds of a new one are covered.
const NEW_TOPIC_MAX: (&str, u64) = (
    "topic.metadata.propagation.max.ms",
    millis(KAFKA_NEW_TOPIC_MAX),
);

const fn linger(length: Duration) -> (&'static str, u64) {
    ("queue.buffering.max.ms", millis(length))
}

const fn side(bounds: &'static [(&'static str, u64)]) -> Side {
    Side {
        defaults: &[
            ("socket.nagle.disable", "true"),
            // A broker answers the requests of one connection one after the other. With more of them under way, and what waits for its
            // partition's turn, librdkafka (2.12) spins until an answer comes.
            ("max.in.flight.requests.per.connection", "1"),
        ],
        bounds,
        owned: SENDING,
    }
}

/// The target port on one cluster.
pub(crate) struct KafkaTarget {
    in_flight_max: usize,
    /// Taken over, and not handed out as reports yet.
    in_flight: usize,
    /// `None`: closed.
    lanes: Option<Succession>,
    reports: Arc<Reports>,
}

impl KafkaTarget {
    /// Takes over at most `in_flight_max` records that were not reported on yet. `part` tells of the cluster.
    pub(crate) fn new(cluster: &Cluster, in_flight_max: usize, part: Part) -> Result<Self, Error> {
        Self::of(&PROMPT, cluster, in_flight_max, part)
    }

    /// As `new`, for more than can be sent at once: each record waits a little longer, and costs less.
    pub(crate) fn for_floods(
        cluster: &Cluster,
        in_flight_max: usize,
        part: Part,
    ) -> Result<Self, Error> {
        Self::of(&FLOODS, cluster, in_flight_max, part)
    }

    fn of(side: &Side, cluster: &Cluster, in_flight_max: usize, part: Part) -> Result<Self, Error> {
        let bounds = [
            ("queue.buffering.max.messages", in_flight_max.to_string()),
            (
                "queue.buffering.max.kbytes",
                kbytes(KAFKA_SEND_BYTES_MAX).to_string(),
            ),
        ];
        let config = cluster.config(side, &bounds);
        let mut alone = config.clone();
        alone
            .set("batch.num.messages", "1")
            .set("queue.buffering.max.ms", "0");
        let reports: Arc<Reports> = Arc::default();
        let health = Health::new(&cluster.name, part);
        let mut lanes = Succession::new(Options {
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

    fn refused(&self, code: Code, topic: &str) -> Sent {
        let failed =
            |code, words| Sent::Failed(failure::of_record(code, Status::NotPersisted, words));
        match code {
            Code::QueueFull if self.in_flight > 0 => Sent::Full,
            Code::QueueFull => failed(Code::MessageSizeTooLarge, String::new()),
            Code::InvalidTopic => failed(code, no_topic_name(topic)),
            Code::Fatal => {
                let reason = self
                    .lanes
                    .as_ref()
                    .and_then(Succession::fatal)
                    .unwrap_or_default();
                Sent::Failed(failure::closed(format!(
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
        self.lanes.as_ref().map_or(0, Succession::retired)
    }
}

#[async_trait(?Send)]
impl Target for KafkaTarget {
    fn send(&mut self, record: &Outgoing<'_>, ticket: u64) -> Sent {
        let Some(lanes) = &mut self.lanes else {
            return Sent::Failed(failure::closed("the producer is closed".to_owned()));
        };
        if self.in_flight >= self.in_flight_max {
            return Sent::Full;
        }
        let outbound = Outbound {
            partition: record.partition,
            key: record.key,
            payload: record.payload,
            ticket,
        };
        match lanes.send(record.topic, &outbound, || record.out_headers()) {
            Ok(()) => {
                self.in_flight += 1;
                Sent::Taken
            }
            Err(code) => self.refused(code, record.topic),
        }
    }

    async fn reports(&mut self) -> Vec<Report> {
        let reports = self.reports.take().await;
        self.in_flight -= reports.len();
        self.lanes.iter_mut().for_each(Succession::prune);
        reports
    }

    async fn close(&mut self) {
        if let Some(mut lanes) = self.lanes.take() {
            lanes.end().await;
        }
    }
}
