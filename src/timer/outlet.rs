//! The targets of a timer, two clients a cluster (see `queue`), behind one face: which of them a record goes to, and what all of them report.

use super::RouteOptions;
use super::flying::Stage;
use super::queue::Queue;
use crate::broker::{Report, Target};
use futures_util::future::{FutureExt, join_all, select_all};
use std::collections::BTreeMap;

/// See the module's page.
pub(crate) struct Outlets(BTreeMap<String, Clients>);

/// The clients of one cluster.
pub(crate) struct Clients {
    pub(crate) short: Box<dyn Target>,
    pub(crate) long: Box<dyn Target>,
}

impl Outlets {
    /// `targets` by the name of their cluster; all clusters that the routes name must be there.
    pub(crate) fn new(targets: BTreeMap<String, Clients>) -> Self {
        Self(targets)
    }

    pub(crate) fn get(&mut self, route: &RouteOptions, stage: Stage, queue: Queue) -> &mut dyn Target {
        let cluster = match stage {
            Stage::Target => &route.target_cluster,
            Stage::Back { .. } => &route.source_cluster,
            Stage::DeadLetter | Stage::DeadLetterByReference | Stage::DeadLetterWithoutKey => &route.dead_letter_cluster,
        };
        let clients = self.0.get_mut(cluster).expect("the wiring made clients for each cluster of each route");
        match queue {
            Queue::Short => clients.short.as_mut(),
            Queue::Long => clients.long.as_mut(),
        }
    }

    /// What became of records: waits for the first target that reports, and takes what the others have too, or a busy one would keep
    /// them from being heard. Safe to drop: nothing is waited for once something was taken.
    pub(crate) async fn reports(&mut self) -> Vec<Report> {
        let (mut reports, _, others) = select_all(self.all().map(|target| target.reports())).await;
        reports.extend(others.into_iter().filter_map(FutureExt::now_or_never).flatten());
        reports
    }

    /// All at the same time: one whose broker is away takes longer.
    pub(crate) async fn close(&mut self) {
        join_all(self.all().map(|target| target.close())).await;
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Box<dyn Target>> {
        self.0.values_mut().flat_map(|clients| [&mut clients.short, &mut clients.long])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Outgoing, Sent};
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
            let Some(ticket) = self.0 else { return pending().await };
            vec![Report { ticket, place: None, outcome: Ok(()) }]
        }

        async fn close(&mut self) {}
    }

    #[tokio::test]
    async fn a_busy_target_keeps_no_other_from_being_heard() {
        let clients = |short, long| Clients { short: Box::new(Reporter(short)), long: Box::new(Reporter(long)) };
        let targets = [("busy".to_owned(), clients(Some(1), None)), ("other".to_owned(), clients(None, Some(2)))];
        let mut outlets = Outlets::new(BTreeMap::from(targets));
        let heard: Vec<_> = outlets.reports().await.iter().map(|report| report.ticket).collect();
        assert_eq!(heard, [1, 2]);
    }
}
