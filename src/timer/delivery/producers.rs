//! The producers of a timer: two plain clients for each cluster, a third one for its outcome records, and one
//! transactional producer for each exactly-once shard.

use super::lanes::Lane;
use super::outcome_records::OutcomeRecords;
use super::record::Destination;
use crate::broker::{
    DeliveryReport, OutgoingRecord, ProducerEvent, SendResult, Target, TransactionalProducers,
};
use crate::limit::OUTCOME_RECORDS_FINISH_TIMEOUT;
use crate::timer::RouteOptions;
use futures_util::future::{FutureExt, join, join_all, pending, select_all};
use std::collections::BTreeMap;
use tokio::time::{Instant, timeout_at};

pub(crate) struct Producers {
    targets: BTreeMap<String, ClusterProducers>,
    transactional: BTreeMap<String, Box<dyn TransactionalProducers>>,
    pub(crate) outcome_records: OutcomeRecords,
    /// Number of transactional producers opened so far.
    pub(crate) opened: u64,
}

/// The plain producers of one cluster, in the order of [`Lane`].
pub(crate) type ClusterProducers = [Box<dyn Target>; 2];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    Lane(Lane),
    Transaction(u64),
}

#[derive(Debug, Default)]
pub(crate) struct DeliveryEvents {
    pub(crate) reports: Vec<DeliveryReport>,
    pub(crate) outcome_records: Vec<DeliveryReport>,
    /// Events of transactional producers, each with the producer's number.
    pub(crate) transactions: Vec<(u64, ProducerEvent)>,
}

impl Producers {
    /// `targets` must have all clusters that routes name, `transactional` those of all exactly-once
    /// routes.
    pub(crate) fn new(
        targets: BTreeMap<String, ClusterProducers>,
        transactional: BTreeMap<String, Box<dyn TransactionalProducers>>,
        outcome_records: OutcomeRecords,
    ) -> Self {
        Self {
            targets,
            transactional,
            outcome_records,
            opened: 0,
        }
    }

    pub(super) fn send(
        &mut self,
        route: &RouteOptions,
        destination: Destination,
        via: Via,
        record: &OutgoingRecord<'_>,
        ticket: u64,
    ) -> SendResult {
        let lane = match via {
            Via::Lane(lane) => lane,
            Via::Transaction(number) => {
                return self.transactional(route).send(number, record, ticket);
            }
        };
        let cluster = match destination {
            Destination::Target | Destination::Dropped => &route.target_cluster,
            Destination::RetryViaSource { .. } | Destination::Reschedule { .. } => {
                &route.source_cluster
            }
            Destination::DeadLetter
            | Destination::DeadLetterByReference
            | Destination::DeadLetterWithoutKey => &route.dead_letter_cluster,
        };
        let producers = (self.targets.get_mut(cluster))
            .expect("the wiring makes producers for each cluster of each route");
        producers[lane as usize].send(record, ticket)
    }

    /// The transactional producers of the route's cluster. An exactly-once route has only one
    /// cluster.
    pub(crate) fn transactional(
        &mut self,
        route: &RouteOptions,
    ) -> &mut dyn TransactionalProducers {
        self.transactional
            .get_mut(&route.source_cluster)
            .expect("the wiring makes transactional producers for each exactly-once route")
            .as_mut()
    }

    /// Waits for events of any producer, and also takes the ready events of the others. Without
    /// that, a busy producer could keep the others from being served.
    ///
    /// Safe to drop: it awaits nothing after it has taken events.
    pub(crate) async fn next_events(&mut self) -> DeliveryEvents {
        let targets = self.targets.values_mut().flatten();
        let targets = targets.map(|target| {
            let events = target.next_reports().map(|reports| DeliveryEvents {
                reports,
                ..DeliveryEvents::default()
            });
            events.boxed_local()
        });
        let outcome_targets = self.outcome_records.targets.values_mut();
        let outcome_records = outcome_targets.map(|target| {
            let events = target.next_reports().map(|reports| DeliveryEvents {
                outcome_records: reports,
                ..DeliveryEvents::default()
            });
            events.boxed_local()
        });
        let transactional = self.transactional.values_mut().map(|producers| {
            let events = producers.next_events().map(|transactions| DeliveryEvents {
                transactions,
                ..DeliveryEvents::default()
            });
            events.boxed_local()
        });
        let all = targets.chain(outcome_records).chain(transactional);
        let all: Vec<_> = all.collect();
        if all.is_empty() {
            return pending().await;
        }
        let (mut events, _, others) = select_all(all).await;
        for other in others.into_iter().filter_map(FutureExt::now_or_never) {
            events.reports.extend(other.reports);
            events.outcome_records.extend(other.outcome_records);
            events.transactions.extend(other.transactions);
        }
        events
    }

    /// Waits for the reports on outcome records, but not for a topic that does not answer.
    pub(crate) async fn finish_outcome_records(&mut self) {
        let end = Instant::now() + OUTCOME_RECORDS_FINISH_TIMEOUT;
        while self.outcome_records.are_unreported() {
            let Ok(events) = timeout_at(end, self.next_events()).await else {
                break;
            };
            self.outcome_records.on_reports(&events.outcome_records);
        }
    }

    /// Closes all producers concurrently, because one whose broker is down takes longer.
    pub(crate) async fn close(&mut self) {
        let targets = self.targets.values_mut().flatten();
        let targets = targets.chain(self.outcome_records.targets.values_mut());
        let transactional = self.transactional.values_mut();
        join(
            join_all(targets.map(|target| target.close())),
            join_all(transactional.map(|producers| producers.close())),
        )
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use std::future::pending;

    /// Always has a report for the ticket, or never has one.
    struct Reporter(Option<u64>);

    #[async_trait(?Send)]
    impl Target for Reporter {
        fn send(&mut self, _: &OutgoingRecord<'_>, _: u64) -> SendResult {
            SendResult::QueueFull
        }

        async fn next_reports(&mut self) -> Vec<DeliveryReport> {
            let Some(ticket) = self.0 else {
                return pending().await;
            };
            vec![DeliveryReport {
                ticket,
                position: None,
                outcome: Ok(()),
            }]
        }

        async fn close(&mut self) {}
    }

    #[tokio::test]
    async fn a_busy_producer_does_not_delay_the_reports_of_others() {
        let producers = |fast, bulk| -> ClusterProducers {
            [Box::new(Reporter(fast)), Box::new(Reporter(bulk))]
        };
        let targets = [
            ("busy".to_owned(), producers(Some(1), None)),
            ("other".to_owned(), producers(None, Some(2))),
        ];
        let mut producers = Producers::new(
            BTreeMap::from(targets),
            BTreeMap::new(),
            OutcomeRecords::default(),
        );
        let events = producers.next_events().await;
        let tickets: Vec<_> = events.reports.iter().map(|report| report.ticket).collect();
        assert_eq!(tickets, [1, 2]);
    }
}
