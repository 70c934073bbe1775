//! The lease of a shard, and the live workers of a deployment. Pure: the caller passes the time.

use crate::model::{LeaseToken, Timestamp, WorkerId};
use crate::store::{LiveWorker, Renewed};
use std::collections::BTreeMap;
use std::time::Duration;

/// Which worker may deliver a shard (I5): the token of the holder and the end of its lease; `None`
/// if the lease is free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseHolder(Option<(LeaseToken, Timestamp)>);

impl LeaseHolder {
    /// Takes the lease if it is free, has expired, or is held with this token.
    pub(crate) fn acquire(&mut self, token: LeaseToken, length: Duration, now: Timestamp) -> bool {
        let is_available = self
            .0
            .is_none_or(|(holder, end)| holder == token || end <= now);
        if is_available {
            self.0 = Some((token, now.plus(length)));
        }
        is_available
    }

    /// Extends the lease of this token. An expired lease that no other worker took is extended too.
    pub(crate) fn renew(&mut self, token: LeaseToken, length: Duration, now: Timestamp) -> Renewed {
        if !self.is_held(token) {
            return Renewed::Fenced;
        }
        self.0 = Some((token, now.plus(length)));
        Renewed::Renewed { now }
    }

    pub(crate) fn release(&mut self, token: LeaseToken) {
        if self.is_held(token) {
            self.0 = None;
        }
    }

    /// The holder of the lease, unless it has expired.
    #[cfg(test)]
    pub(crate) fn holder_at(&self, now: Timestamp) -> Option<LeaseToken> {
        self.0.filter(|(_, end)| *end > now).map(|(token, _)| token)
    }

    pub(crate) fn is_held(&self, token: LeaseToken) -> bool {
        self.0.is_some_and(|(holder, _)| holder == token)
    }
}

/// The live workers, each with the time at which its last heartbeat expires.
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
