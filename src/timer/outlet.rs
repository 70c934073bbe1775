//! The targets and the transactors of a timer behind one face: which of them a record goes to, and what all of them tell. Of a cluster there are
//! two targets (see `queue`).

use super::RouteOptions;
use super::flying::Stage;
use super::queue::Queue;
use crate::broker::{Happened, Marker, Outgoing, Report, Sent, Target, Transactional, Transactors};
use futures_util::future::{FutureExt, LocalBoxFuture, join, join_all, pending, select_all};
use std::collections::BTreeMap;

/// See the module's page.
pub(crate) struct Outlets {
    targets: BTreeMap<String, Clients>,
    transactors: BTreeMap<String, Box<dyn Transactors>>,
    /// Transactors that were opened.
    opened: u64,
    /// Those of them that were opened only to end what was left open, and have not; with their cluster.
    looks: BTreeMap<u64, String>,
}

/// The targets of one cluster.
pub(crate) struct Clients {
    pub(crate) short: Box<dyn Target>,
    pub(crate) long: Box<dyn Target>,
}

/// By whom a record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Queue(Queue),
    /// In the transaction of that one.
    Transactor(u64),
}

/// What outlets tell.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) reports: Vec<Report>,
    /// By the number of a transactor.
    pub(super) happened: Vec<(u64, Happened)>,
}

impl Clients {
    fn all(&mut self) -> [&mut Box<dyn Target>; 2] {
        [&mut self.short, &mut self.long]
    }
}

impl Outlets {
    /// By the name of their cluster: targets for all clusters that routes name, transactors for those of exactly-once routes.
    pub(crate) fn new(
        targets: BTreeMap<String, Clients>,
        transactors: BTreeMap<String, Box<dyn Transactors>>,
    ) -> Self {
        Self {
            targets,
            transactors,
            opened: 0,
            looks: BTreeMap::new(),
        }
    }

    pub(super) fn send(
        &mut self,
        (route, stage): (&RouteOptions, Stage),
        by: By,
        record: &Outgoing<'_>,
        ticket: u64,
    ) -> Sent {
        match by {
            By::Queue(queue) => self.target(route, stage, queue).send(record, ticket),
            By::Transactor(number) => self.of(route).send(number, record, ticket),
        }
    }

    fn target(&mut self, route: &RouteOptions, stage: Stage, queue: Queue) -> &mut dyn Target {
        let cluster = match stage {
            Stage::Target => &route.target_cluster,
            Stage::Back { .. } => &route.source_cluster,
            Stage::DeadLetter | Stage::DeadLetterByReference | Stage::DeadLetterWithoutKey => {
                &route.dead_letter_cluster
            }
        };
        let clients = self
            .targets
            .get_mut(cluster)
            .expect("the wiring made clients for each cluster of each route");
        match queue {
            Queue::Short => clients.short.as_mut(),
            Queue::Long => clients.long.as_mut(),
        }
    }

    /// All that an exactly-once route has to do with is on one cluster.
    fn of(&mut self, route: &RouteOptions) -> &mut dyn Transactors {
        self.transactors
            .get_mut(&route.source_cluster)
            .expect("the wiring made transactors for each exactly-once route")
            .as_mut()
    }

    /// Opens a transactor and answers its number, from which [`Outlets::slot`] tells whose it is.
    pub(super) fn open(&mut self, route: &RouteOptions, slot: u16, name: &Transactional) -> u64 {
        self.opened += 1;
        let number = self.opened << 16 | u64::from(slot);
        self.of(route).open(number, name);
        number
    }

    pub(super) fn expect(&mut self, route: &RouteOptions, name: &Transactional) {
        self.of(route).expect(name);
    }

    pub(super) fn slot(number: u64) -> u16 {
        number as u16
    }

    pub(super) fn commit(&mut self, route: &RouteOptions, number: u64, marker: Marker) {
        self.of(route).commit(number, marker);
    }

    pub(super) fn abort(&mut self, route: &RouteOptions, number: u64) {
        self.of(route).abort(number);
    }

    /// That transactor was opened only to end what was left open.
    pub(super) fn looking(&mut self, route: &RouteOptions, number: u64) {
        self.looks.insert(number, route.source_cluster.clone());
    }

    /// It has.
    pub(super) fn looked(&mut self, number: u64) {
        self.looks.remove(&number);
    }

    /// How many there are on a route's cluster. One that is away keeps its own waiting, and no other's.
    pub(super) fn looks(&self, route: &RouteOptions) -> usize {
        self.looks
            .values()
            .filter(|cluster| **cluster == route.source_cluster)
            .count()
    }

    pub(super) fn end(&mut self, route: &RouteOptions, number: u64) {
        self.looked(number);
        self.of(route).end(number);
    }

    /// What became of records and transactors: waits for the first that tells, and takes what the others have too, or a busy one would keep
    /// them from being heard. Safe to drop: nothing is waited for once something was taken.
    pub(super) async fn told(&mut self) -> Told {
        let targets = self.targets.values_mut().flat_map(Clients::all).map(
            |target| -> LocalBoxFuture<'_, Told> {
                Box::pin(target.reports().map(|reports| Told {
                    reports,
                    ..Told::default()
                }))
            },
        );
        let transactors =
            self.transactors
                .values_mut()
                .map(|transactors| -> LocalBoxFuture<'_, Told> {
                    Box::pin(transactors.happened().map(|happened| Told {
                        happened,
                        ..Told::default()
                    }))
                });
        let all: Vec<_> = targets.chain(transactors).collect();
        if all.is_empty() {
            return pending().await;
        }
        let (mut told, _, others) = select_all(all).await;
        for other in others.into_iter().filter_map(FutureExt::now_or_never) {
            told.reports.extend(other.reports);
            told.happened.extend(other.happened);
        }
        told
    }

    /// All at the same time: one whose broker is away takes longer.
    pub(crate) async fn close(&mut self) {
        let targets = join_all(
            self.targets
                .values_mut()
                .flat_map(Clients::all)
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
        fn send(&mut self, _: &Outgoing<'_>, _: u64) -> Sent {
            Sent::Full
        }

        async fn reports(&mut self) -> Vec<Report> {
            let Some(ticket) = self.0 else {
                return pending().await;
            };
            vec![Report {
                ticket,
                place: None,
                outcome: Ok(()),
            }]
        }

        async fn close(&mut self) {}
    }

    #[tokio::test]
    async fn a_busy_target_keeps_no_other_from_being_heard() {
        let clients = |short, long| Clients {
            short: Box::new(Reporter(short)),
            long: Box::new(Reporter(long)),
        };
        let targets = [
            ("busy".to_owned(), clients(Some(1), None)),
            ("other".to_owned(), clients(None, Some(2))),
        ];
        let mut outlets = Outlets::new(BTreeMap::from(targets), BTreeMap::new());
        let heard: Vec<_> = outlets
            .told()
            .await
            .reports
            .iter()
            .map(|report| report.ticket)
            .collect();
        assert_eq!(heard, [1, 2]);
    }
}
