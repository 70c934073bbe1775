//! The live workers of a deployment: those whose last heartbeat has not expired. Pure.

use crate::model::{Timestamp, WorkerId};
use crate::store::LiveWorker;
use std::collections::BTreeMap;
use std::time::Duration;

/// The time at which each worker expires.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveWorkers(BTreeMap<WorkerId, Timestamp>);

impl LiveWorkers {
    /// Records a heartbeat, removes expired workers, and answers the remaining ones.
    pub(crate) fn heartbeat(
        &mut self,
        worker: WorkerId,
        length: Duration,
        now: Timestamp,
    ) -> Vec<LiveWorker> {
        self.0.insert(worker, now.plus(length));
        self.0.retain(|_, end| *end > now);
        let live = self.0.iter().map(|(worker, end)| LiveWorker {
            worker: *worker,
            expires_in: end.since(now),
        });
        live.collect()
    }

    pub(crate) fn remove(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
    }
}
