//! A producer for the source of a route, as the commands and the HTTP API use it.

use super::send::Draft;
use crate::broker::send_budget::SendBudget;
use crate::broker::{DeliveryFailure, FailureKind, OutgoingRecord, SendResult, Target};
use crate::config::Config;
use crate::health::Health;
use crate::limit::{COMMAND_DELIVERY_TIMEOUT, COMMAND_IN_FLIGHT_MAX, COMMAND_REPORT_TIMEOUT};
use crate::model::header_name::SUBJECT;
use crate::model::{DeadLetterReason, Headers, Offset};
use crate::role::{Cluster, TargetOptions, TargetPurpose};
use anyhow::{Context, Error, Result, anyhow};
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// The broker never takes this record.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct RejectedByBroker(String);

/// A record for the source of a route, which the service will accept.
pub(super) struct SourceRecord {
    pub(super) key: Option<Vec<u8>>,
    pub(super) draft: Draft,
    /// The topic, or the subject.
    pub(super) topic: String,
    /// `None`: the key chooses it.
    pub(super) partition: Option<i32>,
}

/// Partition and offset, if the broker reports them.
pub(super) type Position = Option<(i32, Offset)>;

/// A producer for the source of a route.
pub(super) struct SourceProducer {
    target: Box<dyn Target>,
    /// The name of the cluster.
    name: String,
    health: Health,
}

impl SourceProducer {
    /// The route must exist.
    pub(super) fn open(config: &Config, route: &str) -> Result<Self> {
        let cluster = Cluster::of(config, &config.routes[route].source.cluster);
        let (name, health) = (cluster.qualified_name(), Health::new());
        let options = TargetOptions {
            purpose: TargetPurpose::Command,
            budget: Arc::new(SendBudget::new(COMMAND_IN_FLIGHT_MAX, usize::MAX)),
            // Unique among all processes: JetStream drops a record with a repeated message id.
            sender: format!("send/{:016x}", rand::random::<u64>()),
        };
        let target = cluster.target(options, health.register("send"));
        let target = target.with_context(|| name.clone())?;
        Ok(Self {
            target,
            name,
            health,
        })
    }

    /// Sends the records and waits for all reports. Returns the outcomes in their order. If one of them is
    /// `MaybeDelivered`, close the producer: its late report would count for another record.
    pub(super) async fn send_all(
        &mut self,
        records: &[SourceRecord],
    ) -> Vec<Result<Position, DeliveryFailure>> {
        let end = Instant::now() + COMMAND_REPORT_TIMEOUT;
        let mut outcomes: Vec<_> = records.iter().map(|_| None).collect();
        let (mut sent, mut reported) = (0, 0);
        while reported < records.len() {
            if let Some(record) = records.get(sent) {
                let result = self.target.send(&record.outgoing(), sent as u64);
                if !matches!(result, SendResult::QueueFull) {
                    if let SendResult::Failed(failure) = result {
                        outcomes[sent] = Some(Err(failure));
                        reported += 1;
                    }
                    sent += 1;
                    continue;
                }
            }
            // A client without a connection may never report, so the wait has a timeout.
            let Ok(reports) = timeout_at(end, self.target.next_reports()).await else {
                break;
            };
            reported += reports.len();
            for report in reports {
                let position = report.position;
                outcomes[report.ticket as usize] = Some(report.outcome.map(|()| position));
            }
        }
        let outcomes = outcomes.into_iter().enumerate();
        let outcome = |(number, outcome): (usize, Option<_>)| {
            outcome.unwrap_or_else(|| Err(self.unreported(number < sent)))
        };
        outcomes.map(outcome).collect()
    }

    fn unreported(&self, is_sent: bool) -> DeliveryFailure {
        let problem = self.health.not_ready().pop();
        let detail = problem.map_or_else(|| "no answer in time".to_owned(), |it| it.reason);
        let kind = match is_sent {
            true => FailureKind::MaybeDelivered,
            false => FailureKind::NotDelivered,
        };
        DeliveryFailure::new(kind, DeadLetterReason::TimedOut, detail)
    }

    /// Sends the record. Returns its partition and offset if the broker reports them.
    pub(super) async fn send(&mut self, record: &SourceRecord) -> Result<Position> {
        let outcomes = self.send_all(std::slice::from_ref(record)).await;
        let outcome = outcomes.into_iter().next();
        let outcome = outcome.context("each record has an outcome")?;
        outcome.map_err(|failure| self.error(failure, record))
    }

    /// Why the record was not sent, for people.
    pub(super) fn error(&self, failure: DeliveryFailure, record: &SourceRecord) -> Error {
        let DeliveryFailure { kind, detail, .. } = failure;
        let (name, topic) = (&self.name, &record.topic);
        match kind {
            FailureKind::Rejected => {
                RejectedByBroker(format!("not sent: {name} refuses it for {topic}: {detail}"))
                    .into()
            }
            FailureKind::NotDelivered => {
                anyhow!("not sent: {name} does not accept it for {topic} now: {detail}")
            }
            FailureKind::MaybeDelivered | FailureKind::ClientFailed => anyhow!(
                "{name} has not confirmed it within {} s: {detail}. It may have arrived: look before you send it again",
                COMMAND_DELIVERY_TIMEOUT.as_secs()
            ),
        }
    }
}

impl SourceRecord {
    fn outgoing(&self) -> OutgoingRecord<'_> {
        OutgoingRecord {
            topic: &self.topic,
            partition: self.partition,
            key: self.key.as_deref(),
            payload: self.draft.payload.as_deref(),
            headers: Headers::from_block(&self.draft.headers),
            keep_header: |name| name != SUBJECT.as_bytes(),
            extra_headers: &[],
        }
    }
}

pub(super) async fn close(producer: Option<SourceProducer>) {
    if let Some(mut producer) = producer {
        producer.target.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallClock;
    use crate::model::Partition;
    use crate::testing::broker::memory::MemoryCluster;
    use std::rc::Rc;

    #[tokio::test(start_paused = true)]
    async fn a_partition_without_a_leader_does_not_stop_the_others() {
        let cluster = MemoryCluster::new(Rc::new(WallClock));
        cluster.create_topic("in", 3);
        cluster.set_leaderless(&[Partition::new("in", 1)]);
        let mut producer = SourceProducer {
            target: Box::new(cluster.target(2)),
            name: "kafka.main".to_owned(),
            health: Health::new(),
        };
        let record = |partition| {
            let draft = Draft {
                headers: Vec::new(),
                payload: None,
                due: None,
            };
            SourceRecord {
                key: None,
                draft,
                topic: "in".to_owned(),
                partition: Some(partition),
            }
        };
        let records: Vec<_> = (0..4).map(record).collect();
        let outcomes = producer.send_all(&records).await;
        let is_written: Vec<_> = outcomes.iter().map(Result::is_ok).collect();
        assert_eq!(is_written, [true, false, true, false], "{outcomes:?}");
        let failure = outcomes[3].as_ref().unwrap_err();
        assert!(!failure.detail.contains("in time"), "{failure:?}");
    }
}
