//! Which workers of a deployment live: whoever has said so lately. The caller's clock decides; nothing here asks for the time.

use super::LiveWorker;
use crate::model::{Timestamp, WorkerId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Until when each of them counts as alive.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveWorkers(BTreeMap<WorkerId, Timestamp>);

impl LiveWorkers {
    /// Notes that a worker lives, forgets those whose time has passed, and answers who is left.
    pub(crate) fn heartbeat(
        &mut self,
        worker: WorkerId,
        length: Duration,
        now: Timestamp,
    ) -> Vec<LiveWorker> {
        self.0.insert(worker, now.plus(length));
        self.0.retain(|_, end| *end > now);
        self.0
            .iter()
            .map(|(worker, end)| LiveWorker {
                worker: *worker,
                expires_in: end.since(now),
            })
            .collect()
    }

    pub(crate) fn remove(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
    }
}
