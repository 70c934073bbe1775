//! The memory store with a delay before and after each call, so that kills and faults fall in
//! between.

use crate::model::{Lease, ShardId};
use crate::store::{
    Acquire, Acquired, Advance, Advanced, Append, Appended, Error, Fetch, FinishedIds, Heartbeat,
    IdPosition, LeaseStore, List, Listed, Membership, NewShard, Opened, OutcomeCounts, Quarantine,
    ReplaceRuns, Replaced, Session, SessionEnd, SessionHeartbeat, ShardPosition, ShardStore,
    StoreAdmin, StorePart, StoredShard, Tail, Tailed,
};
use crate::testing::sim::mutants::tail_by_run_count::TailByRunCount;
use crate::testing::sim::process_control::ProcessControl;
use crate::testing::sim::world::World;
use crate::testing::store::memory::MemoryStore;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::try_join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;

/// The event of a claim that was too far ahead of the store's time.
pub(crate) const CLAIM_REFUSED: &str = "is refused a claim";

/// The store as one process sees it.
pub(crate) struct SlowStore {
    world: World,
    control: ProcessControl,
    random: RefCell<StdRng>,
    tail_by_run_count: TailByRunCount,
    /// The outcomes that each shard has reported so far.
    outcomes: RefCell<BTreeMap<ShardId, OutcomeCounts>>,
}

impl SlowStore {
    pub(crate) fn new(world: &World, control: &ProcessControl, seed: u64) -> Self {
        Self {
            world: world.clone(),
            control: control.clone(),
            random: RefCell::new(StdRng::seed_from_u64(seed)),
            tail_by_run_count: TailByRunCount::default(),
            outcomes: RefCell::default(),
        }
    }

    /// The server that this process reaches.
    fn store(&self) -> MemoryStore {
        let former_server = self.control.former_server.borrow().clone();
        former_server.unwrap_or_else(|| self.world.store().clone())
    }

    /// Adds all earlier outcomes to each request that moves the delivered pair.
    fn count_again(&self, requests: &[Advance]) -> Vec<Advance> {
        let mut requests = requests.to_vec();
        let mut outcomes = self.outcomes.borrow_mut();
        for request in requests
            .iter_mut()
            .filter(|request| request.delivered.is_some())
        {
            let total = outcomes.entry(request.lease.shard.clone()).or_default();
            total.add(request.outcomes);
            request.outcomes = *total;
        }
        requests
    }

    fn note(&self, what: &str) {
        self.world
            .note(format!("process {} {what}", self.control.number));
    }

    async fn delay(&self) -> Result<(), Error> {
        let wait = {
            let mut random = self.random.borrow_mut();
            let wait = if random.random_bool(0.05) {
                random.random_range(5..120)
            } else {
                random.random_range(0..3)
            };
            self.world
                .store_delay()
                .unwrap_or(Duration::from_millis(wait))
        };
        tokio::time::sleep(wait).await;
        if self.control.is_cut_from_store.get() {
            Err(Error::Unavailable("the process is cut off".to_owned()))
        } else {
            Ok(())
        }
    }

    async fn slowly<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.delay().await?;
        let answer = call.await?;
        self.delay().await?;
        Ok(answer)
    }
}

#[async_trait(?Send)]
impl ShardStore for SlowStore {
    fn part_of(&self, shard: &ShardId) -> StorePart {
        self.store().part_of(shard)
    }

    async fn open(&self, births: &[NewShard]) -> Result<Vec<Opened>, Error> {
        let opened = self.slowly(self.store().open(births)).await?;
        for (birth, _) in births
            .iter()
            .zip(&opened)
            .filter(|(_, opened)| matches!(opened, Opened::Created(_)))
        {
            self.note(&format!("creates {} at {}", birth.shard, birth.watermark));
        }
        Ok(opened)
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        self.delay().await?;
        let store = self.store();
        let answer = store.append(appends).await;
        let appended = appends.iter().zip(answer.iter().flatten());
        let done = appended.filter(|(_, appended)| matches!(appended, Appended::Done { .. }));
        let done = done.map(|(append, _)| append);
        self.world.note_cancelled(&store, done.clone());
        done.for_each(|append| {
            self.world
                .compaction_trace()
                .record(&append.shard, &append.runs);
        });
        self.delay().await?;
        answer
    }

    async fn state(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        self.slowly(self.store().state(shards)).await
    }

    async fn end_holds(&self, shards: &[ShardId]) -> Result<(), Error> {
        self.slowly(self.store().end_holds(shards)).await
    }

    async fn positions(&self, shards: &[ShardId]) -> Result<Vec<Option<ShardPosition>>, Error> {
        self.slowly(self.store().positions(shards)).await
    }

    async fn list(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        self.slowly(self.store().list(requests)).await
    }

    async fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        self.slowly(self.store().fetch(requests)).await
    }

    async fn tail(&self, requests: &[Tail]) -> Result<Vec<Tailed>, Error> {
        let store = self.store();
        if fault!(TailByRunCount) {
            let tails = requests
                .iter()
                .map(|request| self.tail_by_run_count.tail(&store, request));
            return self.slowly(try_join_all(tails)).await;
        }
        self.slowly(store.tail(requests)).await
    }

    async fn advance(&self, requests: &[Advance]) -> Result<Vec<Advanced>, Error> {
        let counted_twice = fault!(CountOutcomesTwice).then(|| self.count_again(requests));
        let requests = counted_twice.as_deref().unwrap_or(requests);
        let advanced = self.slowly(self.store().advance(requests)).await?;
        for advanced in &advanced {
            if matches!(advanced, Advanced::ClockAhead { .. }) {
                self.note(CLAIM_REFUSED);
            }
        }
        for (request, _) in requests
            .iter()
            .zip(&advanced)
            .filter(|(_, advanced)| matches!(advanced, Advanced::Fenced | Advanced::Unknown))
        {
            self.control.leases.lost(&request.lease);
        }
        Ok(advanced)
    }

    async fn quarantine(&self, requests: &[Quarantine]) -> Result<Vec<usize>, Error> {
        self.slowly(self.store().quarantine(requests)).await
    }

    async fn remove_finished_ids(
        &self,
        requests: &[FinishedIds],
    ) -> Result<Vec<Option<IdPosition>>, Error> {
        self.slowly(self.store().remove_finished_ids(requests))
            .await
    }

    async fn replace_runs(&self, requests: &[ReplaceRuns]) -> Result<Vec<Replaced>, Error> {
        let long = {
            // Some rewrites take long, so the shard is loaded in the meantime.
            let mut random = self.random.borrow_mut();
            random
                .random_bool(0.2)
                .then(|| Duration::from_millis(random.random_range(200..3_000)))
        };
        tokio::time::sleep(long.unwrap_or_default()).await;
        let outcomes = self.slowly(self.store().replace_runs(requests)).await?;
        for (request, _) in requests
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| **outcome == Replaced::Done)
        {
            self.note(&format!(
                "rewrites {} runs as {}",
                request.inputs.len(),
                request.outputs.len()
            ));
            self.world
                .compaction_trace()
                .record(&request.lease.shard, &request.outputs);
        }
        Ok(outcomes)
    }
}

#[async_trait(?Send)]
impl LeaseStore for SlowStore {
    async fn acquire(&self, requests: &[Acquire]) -> Result<Vec<Acquired>, Error> {
        let leases = || requests.iter().map(|request| &request.lease);
        leases().for_each(|lease| self.world.record_token(lease.token, self.control.number));
        if fault!(TailByRunCount) {
            for lease in leases() {
                self.tail_by_run_count
                    .begin(&self.store(), &lease.shard)
                    .await?;
            }
        }
        let acquired = self.slowly(self.store().acquire(requests)).await?;
        for (lease, _) in leases()
            .zip(&acquired)
            .filter(|(_, acquired)| matches!(acquired, Acquired::Granted(_)))
        {
            self.note(&format!("acquires {}", lease.shard));
            self.world.record_tenure(lease);
            self.control.leases.granted(lease);
        }
        Ok(acquired)
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), Error> {
        for lease in leases {
            self.note(&format!("releases {}", lease.shard));
            self.control.leases.released(lease);
        }
        self.slowly(self.store().release(leases)).await
    }
}

#[async_trait(?Send)]
impl Membership for SlowStore {
    async fn heartbeat(&self, request: &SessionHeartbeat) -> Result<Heartbeat, Error> {
        let asked = Instant::now();
        let leases = &self.control.leases;
        let answer = self.slowly(self.store().heartbeat(request)).await;
        let mut heartbeat = answer.inspect_err(|_| leases.heartbeat_failed(request.length))?;
        match &heartbeat {
            Heartbeat::Renewed { .. } => leases.renewed(asked, request.length),
            Heartbeat::Ended(_) => {
                self.note("learns that its session has ended");
                leases.session_ended();
            }
            _ => {}
        }
        if let Heartbeat::Renewed { sessions, .. } = &mut heartbeat {
            sessions.retain(|other| other.id == request.session || !fault!(AssignByOwnList));
        }
        Ok(heartbeat)
    }

    async fn end_sessions(&self, ends: &[SessionEnd]) -> Result<(), Error> {
        for end in ends {
            self.note(&format!("ends session {}", end.session));
            if end.heartbeats.is_some() {
                self.world.check_end_of_session(self.control.number);
            }
        }
        self.slowly(self.store().end_sessions(ends)).await
    }

    async fn sessions(&self) -> Result<Vec<Session>, Error> {
        self.slowly(self.store().sessions()).await
    }
}

#[async_trait(?Send)]
impl StoreAdmin for SlowStore {
    async fn erase(&self, shards: &[ShardId]) -> Result<(), Error> {
        self.slowly(self.store().erase(shards)).await
    }
}
