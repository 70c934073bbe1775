//! Which workers of a deployment live: whoever has said so lately. The caller's clock decides; nothing here asks for the time.

use super::Peer;
use crate::model::{Timestamp, Worker};
use std::collections::BTreeMap;
use std::time::Duration;

/// Until when each of them counts as alive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roll(BTreeMap<Worker, Timestamp>);

impl Roll {
    /// Notes that a worker lives, forgets those whose time has passed, and answers who is left.
    pub(crate) fn enrol(&mut self, worker: Worker, length: Duration, now: Timestamp) -> Vec<Peer> {
        self.0.insert(worker, now.plus(length));
        self.0.retain(|_, end| *end > now);
        self.0
            .iter()
            .map(|(worker, end)| Peer {
                worker: *worker,
                left: end.since(now),
            })
            .collect()
    }

    pub(crate) fn resign(&mut self, worker: Worker) {
        self.0.remove(&worker);
    }
}
