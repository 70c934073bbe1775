//! A producer for the source of a route, as the commands and the HTTP API use it.

use super::send::Draft;
use crate::broker::cluster::{TargetOptions, TargetPurpose};
use crate::broker::send_budget::SendBudget;
use crate::broker::{DeliveryFailure, FailureKind, OutgoingRecord, SendResult, Target};
use crate::config::Config;
use crate::health::Health;
use crate::limit::{COMMAND_DELIVERY_TIMEOUT, COMMAND_IN_FLIGHT_MAX, COMMAND_REPORT_TIMEOUT};
use crate::model::header_name::SUBJECT;
use crate::model::{DeadLetterReason, Headers, Offset};
use anyhow::{Context, Result, bail};
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// The broker never takes this record.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct RejectedByBroker(String);

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
        let cluster = config.cluster(&config.routes[route].source.cluster);
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

    /// Sends a record without a key to each of these topics and partitions, and waits for all reports. Returns
    /// why a record is not known to be written, in their order. Close the producer then.
    pub(super) async fn send_all(
        &mut self,
        records: &[(Draft, String, Option<i32>)],
    ) -> Vec<Option<String>> {
        let end = Instant::now() + COMMAND_REPORT_TIMEOUT;
        let mut outcomes = vec![Some("no answer in time".to_owned()); records.len()];
        let (mut sent, mut reported) = (0, 0);
        while reported < records.len() {
            if let Some((draft, topic, partition)) = records.get(sent) {
                let record = outgoing(None, draft, topic, *partition);
                let result = self.target.send(&record, sent as u64);
                if !matches!(result, SendResult::QueueFull) {
                    if let SendResult::Failed(failure) = result {
                        outcomes[sent] = Some(failure.detail);
                        reported += 1;
                    }
                    sent += 1;
                    continue;
                }
            }
            let Ok(reports) = timeout_at(end, self.target.next_reports()).await else {
                break;
            };
            reported += reports.len();
            for report in reports {
                let failure = report.outcome.err().map(|failure| failure.detail);
                outcomes[report.ticket as usize] = failure;
            }
        }
        outcomes
    }

    /// Sends the record. Returns its partition and offset if the broker reports them.
    pub(super) async fn send(
        &mut self,
        key: Option<&[u8]>,
        draft: &Draft,
        topic: &str,
        partition: Option<i32>,
    ) -> Result<Option<(i32, Offset)>> {
        let record = outgoing(key, draft, topic, partition);
        let sent = match self.target.send(&record, 0) {
            SendResult::Accepted => reported(&mut *self.target, &self.health).await?,
            SendResult::QueueFull => bail!("not sent: the queue of the client is full"),
            SendResult::Failed(failure) => Err(failure),
        };
        let DeliveryFailure { kind, detail, .. } = match sent {
            Ok(position) => return Ok(position),
            Err(failure) => failure,
        };
        let name = &self.name;
        match kind {
            FailureKind::Rejected => {
                let text = format!("not sent: {name} refuses it for {topic}: {detail}");
                Err(RejectedByBroker(text).into())
            }
            FailureKind::NotDelivered => {
                bail!("not sent: {name} does not accept it for {topic} now: {detail}")
            }
            FailureKind::MaybeDelivered | FailureKind::ClientFailed => bail!(
                "{name} has not confirmed it within {} s: {detail}. It may have arrived: look before you send it again",
                COMMAND_DELIVERY_TIMEOUT.as_secs()
            ),
        }
    }
}

fn outgoing<'a>(
    key: Option<&'a [u8]>,
    draft: &'a Draft,
    topic: &'a str,
    partition: Option<i32>,
) -> OutgoingRecord<'a> {
    OutgoingRecord {
        topic,
        partition,
        key,
        payload: draft.payload.as_deref(),
        headers: Headers::from_block(&draft.headers),
        keep_header: |name| name != SUBJECT.as_bytes(),
        extra_headers: &[],
    }
}

pub(super) async fn close(producer: Option<SourceProducer>) {
    if let Some(mut producer) = producer {
        producer.target.close().await;
    }
}

/// Waits for the delivery report. A client without a connection may never report, so the wait has a
/// timeout.
async fn reported(
    target: &mut dyn Target,
    health: &Health,
) -> Result<Result<Option<(i32, Offset)>, DeliveryFailure>> {
    let reports = tokio::time::timeout(COMMAND_REPORT_TIMEOUT, target.next_reports()).await;
    if let Ok(mut reports) = reports {
        let report = reports
            .pop()
            .context("the client reports on every record")?;
        return Ok(report.outcome.map(|()| report.position));
    }
    let problem = health.not_ready().pop();
    Ok(Err(DeliveryFailure {
        kind: FailureKind::MaybeDelivered,
        reason: DeadLetterReason::TimedOut,
        detail: problem.map_or_else(|| "no answer".to_owned(), |problem| problem.reason),
    }))
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
            (draft, "in".to_owned(), Some(partition))
        };
        let records: Vec<_> = (0..4).map(record).collect();
        let outcomes = producer.send_all(&records).await;
        let is_written: Vec<_> = outcomes.iter().map(Option::is_none).collect();
        assert_eq!(is_written, [true, false, true, false], "{outcomes:?}");
        assert!(
            outcomes[3]
                .as_ref()
                .is_some_and(|why| !why.contains("in time"))
        );
    }
}
