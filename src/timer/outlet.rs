//! The targets of a timer, one a cluster, behind one face: which of them a record goes to, and what all of them report.

use super::RouteOptions;
use super::flying::Stage;
use crate::broker::{Report, Target};
use futures_util::future::{join_all, select_all};
use std::collections::BTreeMap;

/// See the module's page.
pub(crate) struct Outlets(BTreeMap<String, Box<dyn Target>>);

impl Outlets {
    /// `targets` by the name of their cluster; all clusters that the routes name must be there.
    pub(crate) fn new(targets: BTreeMap<String, Box<dyn Target>>) -> Self {
        Self(targets)
    }

    pub(crate) fn get(&mut self, route: &RouteOptions, stage: Stage) -> &mut dyn Target {
        let cluster = match stage {
            Stage::Target => &route.target_cluster,
            Stage::Back { .. } => &route.source_cluster,
            Stage::DeadLetter | Stage::DeadLetterByReference => &route.dead_letter_cluster,
        };
        self.0.get_mut(cluster).expect("the wiring made a target for each cluster of each route").as_mut()
    }

    /// What became of records, of whichever target reports first. Safe to drop.
    pub(crate) async fn reports(&mut self) -> Vec<Report> {
        let reports = self.0.values_mut().map(|target| target.reports());
        let (reports, ..) = select_all(reports).await;
        reports
    }

    /// All at the same time: one whose broker is away takes longer.
    pub(crate) async fn close(&mut self) {
        join_all(self.0.values_mut().map(|target| target.close())).await;
    }
}
