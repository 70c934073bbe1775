//! The producers of a timer: two plain clients for each cluster, and one transactional producer for
//! each exactly-once shard.

use super::lanes::Lane;
use super::record::Destination;
use crate::broker::{
    DeliveryReport, OutgoingRecord, ProducerEvent, ProducerIdentity, SendResult, Target,
    TransactionalProducers, TxnOffset,
};
use crate::timer::RouteOptions;
use futures_util::future::{FutureExt, LocalBoxFuture, join, join_all, pending, select_all};
use std::collections::BTreeMap;

/// All producers, by the name of their cluster.
pub(crate) struct Producers {
    targets: BTreeMap<String, ClusterProducers>,
    transactors: BTreeMap<String, Box<dyn TransactionalProducers>>,
    /// Number of transactional producers opened so far.
    opened_count: u64,
    /// Producers that were opened only for recovery, and the cluster of each. Recovery ends the
    /// transaction that a previous owner may have left open.
    recovery_opens: BTreeMap<u64, String>,
}

/// The plain producers of one cluster (see `lanes`).
pub(crate) struct ClusterProducers {
    pub(crate) fast: Box<dyn Target>,
    pub(crate) bulk: Box<dyn Target>,
}

/// The producer that sends a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Lane(Lane),
    /// The transactional producer with this number.
    Transaction(u64),
}

/// News of producers.
#[derive(Debug, Default)]
pub(crate) struct DeliveryEvents {
    pub(crate) reports: Vec<DeliveryReport>,
    /// Events of transactional producers, each with the producer's number.
    pub(crate) transactions: Vec<(u64, ProducerEvent)>,
}

impl ClusterProducers {
    fn both(&mut self) -> [&mut Box<dyn Target>; 2] {
        [&mut self.fast, &mut self.bulk]
    }
}

impl Producers {
    /// `targets` must have all clusters that routes name, `transactors` those of all exactly-once
    /// routes.
    pub(crate) fn new(
        targets: BTreeMap<String, ClusterProducers>,
        transactors: BTreeMap<String, Box<dyn TransactionalProducers>>,
    ) -> Self {
        Self {
            targets,
            transactors,
            opened_count: 0,
            recovery_opens: BTreeMap::new(),
        }
    }

    pub(crate) fn send(
        &mut self,
        route: &RouteOptions,
        destination: Destination,
        via: Via,
        record: &OutgoingRecord<'_>,
        ticket: u64,
    ) -> SendResult {
        match via {
            Via::Lane(lane) => self
                .target_for(route, destination, lane)
                .send(record, ticket),
            Via::Transaction(number) => self.transactors_for(route).send(number, record, ticket),
        }
    }

    fn target_for(
        &mut self,
        route: &RouteOptions,
        destination: Destination,
        lane: Lane,
    ) -> &mut dyn Target {
        let cluster = match destination {
            Destination::Target => &route.target_cluster,
            Destination::RetryViaSource { .. } => &route.source_cluster,
            Destination::DeadLetter
            | Destination::DeadLetterByReference
            | Destination::DeadLetterWithoutKey => &route.dead_letter_cluster,
        };
        let producers = self
            .targets
            .get_mut(cluster)
            .expect("the wiring makes producers for each cluster of each route");
        match lane {
            Lane::Fast => producers.fast.as_mut(),
            Lane::Bulk => producers.bulk.as_mut(),
        }
    }

    /// An exactly-once route uses one cluster for everything.
    fn transactors_for(&mut self, route: &RouteOptions) -> &mut dyn TransactionalProducers {
        self.transactors
            .get_mut(&route.source_cluster)
            .expect("the wiring makes transactional producers for each exactly-once route")
            .as_mut()
    }

    /// Opens a transactional producer and returns its number. [`Producers::slot_of`] tells the shard
    /// of a number.
    pub(crate) fn open_transactor(
        &mut self,
        route: &RouteOptions,
        slot: u16,
        identity: &ProducerIdentity,
    ) -> u64 {
        self.opened_count += 1;
        let number = self.opened_count << 16 | u64::from(slot);
        self.transactors_for(route).open(number, identity);
        number
    }

    /// Connects in advance, without fencing the current owner.
    pub(crate) fn preconnect(&mut self, route: &RouteOptions, identity: &ProducerIdentity) {
        self.transactors_for(route).preconnect(identity);
    }

    /// The slot of the shard that a transactional producer belongs to.
    pub(crate) fn slot_of(number: u64) -> u16 {
        number as u16
    }

    pub(crate) fn commit(&mut self, route: &RouteOptions, number: u64, marker: TxnOffset) {
        self.transactors_for(route).commit(number, marker);
    }

    pub(crate) fn abort(&mut self, route: &RouteOptions, number: u64) {
        self.transactors_for(route).abort(number);
    }

    /// Notes that a producer was opened only for recovery.
    pub(crate) fn add_recovery_open(&mut self, route: &RouteOptions, number: u64) {
        self.recovery_opens
            .insert(number, route.source_cluster.clone());
    }

    /// The producer is open, so its recovery is done.
    pub(crate) fn remove_recovery_open(&mut self, number: u64) {
        self.recovery_opens.remove(&number);
    }

    /// Recoveries in progress on the route's cluster. They are limited per cluster, so that an
    /// unreachable cluster delays only its own.
    pub(crate) fn recovery_opens(&self, route: &RouteOptions) -> usize {
        self.recovery_opens
            .values()
            .filter(|cluster| **cluster == route.source_cluster)
            .count()
    }

    pub(crate) fn end_transactor(&mut self, route: &RouteOptions, number: u64) {
        self.remove_recovery_open(number);
        self.transactors_for(route).discard(number);
    }

    /// Waits for news of any producer, and also takes what the others have ready. Without that a
    /// busy producer could keep the others from being served.
    ///
    /// Safe to drop: nothing is awaited after news was taken.
    pub(crate) async fn next_events(&mut self) -> DeliveryEvents {
        let reports = |target| -> LocalBoxFuture<'_, DeliveryEvents> {
            let target: &mut Box<dyn Target> = target;
            Box::pin(target.next_reports().map(|reports| DeliveryEvents {
                reports,
                ..DeliveryEvents::default()
            }))
        };
        let targets = self
            .targets
            .values_mut()
            .flat_map(ClusterProducers::both)
            .map(reports);
        let transactors = self.transactors.values_mut().map(
            |transactors| -> LocalBoxFuture<'_, DeliveryEvents> {
                Box::pin(
                    transactors
                        .next_events()
                        .map(|transactions| DeliveryEvents {
                            transactions,
                            ..DeliveryEvents::default()
                        }),
                )
            },
        );
        let all: Vec<_> = targets.chain(transactors).collect();
        if all.is_empty() {
            return pending().await;
        }
        let (mut events, _, others) = select_all(all).await;
        for other in others.into_iter().filter_map(FutureExt::now_or_never) {
            events.reports.extend(other.reports);
            events.transactions.extend(other.transactions);
        }
        events
    }

    /// Closes all producers concurrently, because one whose broker is down takes longer.
    pub(crate) async fn close(&mut self) {
        let targets = join_all(
            self.targets
                .values_mut()
                .flat_map(ClusterProducers::both)
                .map(|target| target.close()),
        );
        let transactors = join_all(
            self.transactors
                .values_mut()
                .map(|transactors| transactors.close()),
        );
        join(targets, transactors).await;
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
        let producers = |fast, bulk| ClusterProducers {
            fast: Box::new(Reporter(fast)),
            bulk: Box::new(Reporter(bulk)),
        };
        let targets = [
            ("busy".to_owned(), producers(Some(1), None)),
            ("other".to_owned(), producers(None, Some(2))),
        ];
        let mut producers = Producers::new(BTreeMap::from(targets), BTreeMap::new());
        let events = producers.next_events().await;
        let tickets: Vec<_> = events.reports.iter().map(|report| report.ticket).collect();
        assert_eq!(tickets, [1, 2]);
    }
}
