//! The targets and the transactors of a timer behind one face: which of them a record goes to, and what all of them tell. Of a cluster there are
//! two targets (see `queue`).

use super::RouteOptions;
use super::flying::Destination;
use super::queue::Lane;
use crate::broker::{
    DeliveryReport, OutgoingRecord, ProducerEvent, ProducerIdentity, SendResult, Target,
    TransactionalProducers, TxnOffset,
};
use futures_util::future::{FutureExt, LocalBoxFuture, join, join_all, pending, select_all};
use std::collections::BTreeMap;

/// See the module's page.
pub(crate) struct Producers {
    targets: BTreeMap<String, ClusterProducers>,
    transactors: BTreeMap<String, Box<dyn TransactionalProducers>>,
    /// Transactors that were opened.
    opened_count: u64,
    /// Those of them that were opened only to end what was left open, and have not; with their cluster.
    recovery_opens: BTreeMap<u64, String>,
}

/// The targets of one cluster.
pub(crate) struct ClusterProducers {
    pub(crate) fast: Box<dyn Target>,
    pub(crate) bulk: Box<dyn Target>,
}

/// By whom a record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    Lane(Lane),
    /// In the transaction of that one.
    Transactor(u64),
}

/// What outlets tell.
#[derive(Debug, Default)]
pub(super) struct ProducerEvents {
    pub(super) reports: Vec<DeliveryReport>,
    /// By the number of a transactor.
    pub(super) transactions: Vec<(u64, ProducerEvent)>,
}

impl ClusterProducers {
    fn both(&mut self) -> [&mut Box<dyn Target>; 2] {
        [&mut self.fast, &mut self.bulk]
    }
}

impl Producers {
    /// By the name of their cluster: targets for all clusters that routes name, transactors for those of exactly-once routes.
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

    pub(super) fn send(
        &mut self,
        (route, stage): (&RouteOptions, Destination),
        by: Via,
        record: &OutgoingRecord<'_>,
        ticket: u64,
    ) -> SendResult {
        match by {
            Via::Lane(queue) => self.target_for(route, stage, queue).send(record, ticket),
            Via::Transactor(number) => self.transactors_for(route).send(number, record, ticket),
        }
    }

    fn target_for(
        &mut self,
        route: &RouteOptions,
        stage: Destination,
        queue: Lane,
    ) -> &mut dyn Target {
        let cluster = match stage {
            Destination::Target => &route.target_cluster,
            Destination::RetryViaSource { .. } => &route.source_cluster,
            Destination::DeadLetter
            | Destination::DeadLetterByReference
            | Destination::DeadLetterWithoutKey => &route.dead_letter_cluster,
        };
        let clients = self
            .targets
            .get_mut(cluster)
            .expect("the wiring made clients for each cluster of each route");
        match queue {
            Lane::Fast => clients.fast.as_mut(),
            Lane::Bulk => clients.bulk.as_mut(),
        }
    }

    /// All that an exactly-once route has to do with is on one cluster.
    fn transactors_for(&mut self, route: &RouteOptions) -> &mut dyn TransactionalProducers {
        self.transactors
            .get_mut(&route.source_cluster)
            .expect("the wiring made transactors for each exactly-once route")
            .as_mut()
    }

    /// Opens a transactor and answers its number, from which [`Outlets::slot`] tells whose it is.
    pub(super) fn open_transactor(
        &mut self,
        route: &RouteOptions,
        slot: u16,
        name: &ProducerIdentity,
    ) -> u64 {
        self.opened_count += 1;
        let number = self.opened_count << 16 | u64::from(slot);
        self.transactors_for(route).open(number, name);
        number
    }

    pub(super) fn preconnect(&mut self, route: &RouteOptions, name: &ProducerIdentity) {
        self.transactors_for(route).preconnect(name);
    }

    pub(super) fn slot_of(number: u64) -> u16 {
        number as u16
    }

    pub(super) fn commit(&mut self, route: &RouteOptions, number: u64, marker: TxnOffset) {
        self.transactors_for(route).commit(number, marker);
    }

    pub(super) fn abort(&mut self, route: &RouteOptions, number: u64) {
        self.transactors_for(route).abort(number);
    }

    /// That transactor was opened only to end what was left open.
    pub(super) fn add_recovery_open(&mut self, route: &RouteOptions, number: u64) {
        self.recovery_opens
            .insert(number, route.source_cluster.clone());
    }

    /// It has.
    pub(super) fn remove_recovery_open(&mut self, number: u64) {
        self.recovery_opens.remove(&number);
    }

    /// How many there are on a route's cluster. One that is away keeps its own waiting, and no other's.
    pub(super) fn recovery_opens(&self, route: &RouteOptions) -> usize {
        self.recovery_opens
            .values()
            .filter(|cluster| **cluster == route.source_cluster)
            .count()
    }

    pub(super) fn end_transactor(&mut self, route: &RouteOptions, number: u64) {
        self.remove_recovery_open(number);
        self.transactors_for(route).discard(number);
    }

    /// What became of records and transactors: waits for the first that tells, and takes what the others have too, or a busy one would keep
    /// them from being heard. Safe to drop: nothing is waited for once something was taken.
    pub(super) async fn next_events(&mut self) -> ProducerEvents {
        let targets = self
            .targets
            .values_mut()
            .flat_map(ClusterProducers::both)
            .map(|target| -> LocalBoxFuture<'_, ProducerEvents> {
                Box::pin(target.next_reports().map(|reports| ProducerEvents {
                    reports,
                    ..ProducerEvents::default()
                }))
            });
        let transactors = self.transactors.values_mut().map(
            |transactors| -> LocalBoxFuture<'_, ProducerEvents> {
                Box::pin(transactors.next_events().map(|happened| ProducerEvents {
                    transactions: happened,
                    ..ProducerEvents::default()
                }))
            },
        );
        let all: Vec<_> = targets.chain(transactors).collect();
        if all.is_empty() {
            return pending().await;
        }
        let (mut told, _, others) = select_all(all).await;
        for other in others.into_iter().filter_map(FutureExt::now_or_never) {
            told.reports.extend(other.reports);
            told.transactions.extend(other.transactions);
        }
        told
    }

    /// All at the same time: one whose broker is away takes longer.
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

    /// Has always something to report, or never.
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
    async fn a_busy_target_keeps_no_other_from_being_heard() {
        let clients = |short, long| ClusterProducers {
            fast: Box::new(Reporter(short)),
            bulk: Box::new(Reporter(long)),
        };
        let targets = [
            ("busy".to_owned(), clients(Some(1), None)),
            ("other".to_owned(), clients(None, Some(2))),
        ];
        let mut outlets = Producers::new(BTreeMap::from(targets), BTreeMap::new());
        let heard: Vec<_> = outlets
            .next_events()
            .await
            .reports
            .iter()
            .map(|report| report.ticket)
            .collect();
        assert_eq!(heard, [1, 2]);
    }
}
