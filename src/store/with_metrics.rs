//! A store that measures the latency and the errors of every call.

use super::{
    Acquire, Acquired, Advance, Advanced, Append, Appended, Error, Fetch, FinishedIds, Heartbeat,
    IdPosition, LeaseStore, List, Listed, Membership, NewShard, Opened, Quarantine, ReplaceRuns,
    Replaced, Session, SessionEnd, SessionHeartbeat, ShardPosition, ShardStore, StoreAdmin,
    StorePart, StoredShard, Tail, Tailed,
};
use crate::metric::{self, Operation};
use crate::model::{Lease, ShardId};
use async_trait::async_trait;
use bytes::Bytes;
use std::future::Future;
use tokio::time::Instant;

/// Passes every call to `store` unchanged.
pub(crate) struct WithMetrics<S> {
    store: S,
    metric: metric::StoreMetrics,
}

impl<S> WithMetrics<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            metric: metric::StoreMetrics::new(),
        }
    }

    async fn timed<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        let outcome = call.await;
        self.metric
            .record_call(operation, start.elapsed(), &outcome);
        outcome
    }
}

#[async_trait(?Send)]
impl<S: ShardStore> ShardStore for WithMetrics<S> {
    fn part_of(&self, shard: &ShardId) -> StorePart {
        self.store.part_of(shard)
    }

    async fn open(&self, shards: &[NewShard]) -> Result<Vec<Opened>, Error> {
        self.timed(Operation::Open, self.store.open(shards)).await
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        self.timed(Operation::Append, self.store.append(appends))
            .await
    }

    async fn state(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        self.timed(Operation::State, self.store.state(shards)).await
    }

    async fn end_holds(&self, shards: &[ShardId]) -> Result<(), Error> {
        self.timed(Operation::EndHolds, self.store.end_holds(shards))
            .await
    }

    async fn positions(&self, shards: &[ShardId]) -> Result<Vec<Option<ShardPosition>>, Error> {
        self.timed(Operation::Positions, self.store.positions(shards))
            .await
    }

    async fn list(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        self.timed(Operation::List, self.store.list(requests)).await
    }

    async fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        self.timed(Operation::Fetch, self.store.fetch(requests))
            .await
    }

    async fn tail(&self, requests: &[Tail]) -> Result<Vec<Tailed>, Error> {
        self.timed(Operation::Tail, self.store.tail(requests)).await
    }

    async fn advance(&self, requests: &[Advance]) -> Result<Vec<Advanced>, Error> {
        self.timed(Operation::Advance, self.store.advance(requests))
            .await
    }

    async fn quarantine(&self, requests: &[Quarantine]) -> Result<Vec<usize>, Error> {
        self.timed(Operation::Quarantine, self.store.quarantine(requests))
            .await
    }

    async fn replace_runs(&self, requests: &[ReplaceRuns]) -> Result<Vec<Replaced>, Error> {
        self.timed(Operation::ReplaceRuns, self.store.replace_runs(requests))
            .await
    }

    async fn remove_finished_ids(
        &self,
        requests: &[FinishedIds],
    ) -> Result<Vec<Option<IdPosition>>, Error> {
        let call = self.store.remove_finished_ids(requests);
        self.timed(Operation::RemoveFinishedIds, call).await
    }
}

#[async_trait(?Send)]
impl<S: LeaseStore> LeaseStore for WithMetrics<S> {
    async fn acquire(&self, requests: &[Acquire]) -> Result<Vec<Acquired>, Error> {
        self.timed(Operation::Acquire, self.store.acquire(requests))
            .await
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), Error> {
        self.timed(Operation::Release, self.store.release(leases))
            .await
    }
}

#[async_trait(?Send)]
impl<S: Membership> Membership for WithMetrics<S> {
    async fn heartbeat(&self, request: &SessionHeartbeat) -> Result<Heartbeat, Error> {
        self.timed(Operation::Heartbeat, self.store.heartbeat(request))
            .await
    }

    async fn end_sessions(&self, ends: &[SessionEnd]) -> Result<(), Error> {
        self.timed(Operation::EndSessions, self.store.end_sessions(ends))
            .await
    }

    async fn sessions(&self) -> Result<Vec<Session>, Error> {
        self.timed(Operation::Sessions, self.store.sessions()).await
    }
}

#[async_trait(?Send)]
impl<S: StoreAdmin> StoreAdmin for WithMetrics<S> {
    async fn erase(&self, shards: &[ShardId]) -> Result<(), Error> {
        self.timed(Operation::Erase, self.store.erase(shards)).await
    }
}
