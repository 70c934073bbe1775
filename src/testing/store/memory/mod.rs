//! A store in memory for tests and the simulation, with the same outcomes as any other store and
//! faults on demand.
//!
//! Its rules are those of `store::rules`. A call yields before and after its effect, like a
//! request and its reply on a network. A caller that is dropped in between has written without an
//! answer, and so has a caller of a store that goes down in between.

mod admin;
mod copy;
mod power_loss;
mod shard;

use crate::clock::Clock;
use crate::encryption::{IdCounts, StoredId};
use crate::model::{Cursor, Lease, LeaseToken, ShardId, Timestamp, Watermark};
use crate::run::RunName;
use crate::store::QuarantineStore;
use crate::store::query::PlaceChange;
use crate::store::rules::Sessions;
use crate::store::{
    Acquire, Acquired, Advance, Advanced, Append, Appended, AuditPart, AuditPosition, AuditRow,
    Balance, CopyNumber, Error, Fetch, FinishedIds, Heartbeat, IdPosition, LeaseStore, List,
    Listed, Membership, NewShard, Opened, Quarantine, ReplaceRuns, Replaced, RequestName, Restore,
    Restored, Session, SessionEnd, SessionHeartbeat, ShardPosition, ShardStore, StoreAdmin,
    StorePart, StoreQuery, StoredShard, Tail, Tailed, begun_copy,
};
pub(crate) use admin::RequestFault;
use async_trait::async_trait;
use bytes::Bytes;
use power_loss::UnsyncedWrites;
use shard::MemoryShard;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A handle on the store; clones share it.
#[derive(Clone)]
pub(crate) struct MemoryStore {
    inner: Rc<StoreContents>,
}

struct StoreContents {
    clock: Rc<dyn Clock>,
    shards: RefCell<BTreeMap<ShardId, MemoryShard>>,
    /// Shards that are being copied from another store.
    copies: RefCell<BTreeMap<ShardId, (CopyNumber, MemoryShard)>>,
    sessions: RefCell<Sessions>,
    audit: RefCell<BTreeMap<AuditPosition, AuditRow>>,
    /// By name: end and state.
    requests: RefCell<BTreeMap<RequestName, (Timestamp, Bytes)>>,
    request_fault: Cell<RequestFault>,
    unsynced: RefCell<UnsyncedWrites>,
    is_full: Cell<bool>,
    is_down: Cell<bool>,
    /// The number of its parts. Partitions are in them in turn.
    parts: Cell<u16>,
    down_part: Cell<Option<StorePart>>,
}

/// The contents of the store at one moment.
#[derive(Clone, Debug)]
pub(crate) struct StoreSnapshot(BTreeMap<ShardId, MemoryShard>, Sessions);

impl MemoryStore {
    /// An empty store that uses this clock.
    pub(crate) fn new(clock: Rc<dyn Clock>) -> Self {
        let (is_full, is_down) = (Cell::new(false), Cell::new(false));
        Self {
            inner: Rc::new(StoreContents {
                clock,
                shards: RefCell::default(),
                copies: RefCell::default(),
                sessions: RefCell::default(),
                audit: RefCell::default(),
                requests: RefCell::default(),
                request_fault: Cell::default(),
                unsynced: RefCell::default(),
                is_full,
                is_down,
                parts: Cell::new(1),
                down_part: Cell::default(),
            }),
        }
    }

    pub(crate) fn snapshot(&self) -> StoreSnapshot {
        StoreSnapshot(
            self.inner.shards.borrow().clone(),
            self.inner.sessions.borrow().clone(),
        )
    }

    /// A second server with the same contents, as after a failover whose former primary runs on.
    pub(crate) fn fork(&self) -> Self {
        let other = Self::new(self.inner.clock.clone());
        other.roll_back_to(&self.snapshot());
        other
    }

    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }

    /// Forgets the writes after the snapshot, as a failover may.
    pub(crate) fn roll_back_to(&self, snapshot: &StoreSnapshot) {
        self.inner.shards.replace(snapshot.0.clone());
        self.inner.sessions.replace(snapshot.1.clone());
    }

    /// Forgets the writes of one shard after the snapshot, as the failover of a part of a store may.
    pub(crate) fn roll_back_shard(&self, shard: &ShardId, snapshot: &StoreSnapshot) {
        let mut shards = self.inner.shards.borrow_mut();
        match snapshot.0.get(shard) {
            Some(earlier) => drop(shards.insert(shard.clone(), earlier.clone())),
            None => drop(shards.remove(shard)),
        }
    }

    /// Forgets everything.
    pub(crate) fn wipe(&self) {
        self.inner.shards.take();
        self.inner.sessions.take();
        self.inner.audit.take();
        self.inner.requests.take();
    }

    /// While full, the store rejects new shards, appends and rewrites with [`Error::Full`].
    pub(crate) fn set_full(&self, full: bool) {
        self.inner.is_full.set(full);
    }

    /// While down, every call returns [`Error::Unavailable`], whether or not it had its effect.
    pub(crate) fn set_down(&self, down: bool) {
        self.inner.is_down.set(down);
    }

    pub(crate) fn set_parts(&self, parts: u16) {
        self.inner.parts.set(parts);
    }

    /// While a part is down, calls with its shards return [`Error::Unavailable`], whether or not they
    /// had their effect.
    pub(crate) fn set_down_part(&self, part: Option<StorePart>) {
        self.inner.down_part.set(part);
    }

    fn check_parts<'a>(&self, shards: impl Iterator<Item = &'a ShardId>) -> Result<(), Error> {
        let down = self.inner.down_part.get();
        let mut parts = shards.map(|shard| self.part_of(shard));
        if parts.any(|part| Some(part) == down) {
            return Err(Error::Unavailable(
                "a part of the memory store is down".to_owned(),
            ));
        }
        Ok(())
    }

    /// Makes the bytes of a shard's `nth` run, by least due time, unreadable. Returns whether the
    /// run exists.
    pub(crate) fn corrupt_run(&self, shard: &ShardId, nth: usize) -> bool {
        self.inner
            .shards
            .borrow_mut()
            .get_mut(shard)
            .is_some_and(|shard| shard.corrupt_run(nth))
    }

    /// Sets the format version in the bytes of all runs of a shard.
    pub(crate) fn set_run_version(&self, shard: &ShardId, version: u8) {
        let mut shards = self.inner.shards.borrow_mut();
        let shard = shards.get_mut(shard).expect("the shard exists");
        shard.set_run_version(version);
    }

    /// Adds a slice that only a newer version knows, or removes it.
    pub(crate) fn set_newer_slice(&self, shard: &ShardId, is_added: bool) {
        let mut shards = self.inner.shards.borrow_mut();
        let shard = shards.get_mut(shard).expect("the shard exists");
        shard.has_newer_slice = is_added;
    }

    /// The rows of messages and workers. When all are done, there are none: only quarantined runs are
    /// kept, and not listed here.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let shards = self.inner.shards.borrow();
        let rows = shards.iter().filter_map(|(id, shard)| {
            let left = shard.leftovers()?;
            Some(format!("{left} of shard {id}"))
        });
        let sessions = self.inner.sessions.borrow().list(self.inner.clock.now());
        let sessions = sessions.iter().map(|it| format!("the session {:?}", it.id));
        rows.chain(sessions).collect()
    }

    /// The token that holds the shard, unless its session has ended.
    pub(crate) fn lease_holder(&self, shard: &ShardId) -> Option<LeaseToken> {
        let shards = self.inner.shards.borrow();
        let holder = shards.get(shard)?.lease.holder();
        holder.filter(|token| self.inner.sessions.borrow().has(token.session))
    }

    /// The places that are cancelled and not delivered yet, each with the watermark of its shard.
    pub(crate) fn cancelled_places(&self) -> Vec<(ShardId, Watermark, Cursor)> {
        let shards = self.inner.shards.borrow();
        shards
            .iter()
            .flat_map(|(id, shard)| {
                let watermark = shard.position().watermark;
                let places = shard.cancelled();
                places.map(move |place| (id.clone(), watermark, place))
            })
            .collect()
    }

    /// The watermark of each shard.
    pub(crate) fn watermarks(&self) -> Vec<(ShardId, Watermark)> {
        let shards = self.inner.shards.borrow();
        let watermarks = shards
            .iter()
            .map(|(id, shard)| (id, shard.position().watermark));
        watermarks
            .map(|(id, watermark)| (id.clone(), watermark))
            .collect()
    }

    /// The ledger of every shard, without a call of the port.
    pub(crate) fn balances_at_once(&self) -> Vec<(ShardId, Balance)> {
        let shards = self.inner.shards.borrow();
        shards
            .iter()
            .map(|(id, shard)| (id.clone(), Balance::of(&shard.state())))
            .collect()
    }

    async fn yield_as_network(&self) -> Result<(), Error> {
        tokio::task::yield_now().await;
        if self.inner.is_down.get() {
            Err(Error::Unavailable("the memory store is down".to_owned()))
        } else {
            Ok(())
        }
    }

    fn check_space(&self) -> Result<(), Error> {
        if self.inner.is_full.get() {
            Err(Error::Full)
        } else {
            Ok(())
        }
    }

    /// Like [`MemoryStore::answer_each`], for calls that write.
    async fn change_each<Q, A>(
        &self,
        requests: &[Q],
        shard: impl Fn(&Q) -> &ShardId,
        change: impl Fn(&Q, Option<&mut MemoryShard>) -> A,
    ) -> Result<Vec<A>, Error> {
        let answer = |request: &Q, found: Option<&mut MemoryShard>| {
            self.note_write(shard(request), found.as_deref());
            change(request, found)
        };
        self.answer_each(requests, &shard, answer).await
    }

    fn part(&self, shard: &ShardId) -> StorePart {
        let parts = i32::from(self.inner.parts.get());
        StorePart(shard.partition.index.rem_euclid(parts) as u16)
    }

    /// Answers all requests in one step; `None` is a shard that does not exist.
    async fn answer_each<Q, A>(
        &self,
        requests: &[Q],
        shard: impl Fn(&Q) -> &ShardId,
        answer: impl Fn(&Q, Option<&mut MemoryShard>) -> A,
    ) -> Result<Vec<A>, Error> {
        self.yield_as_network().await?;
        self.check_parts(requests.iter().map(&shard))?;
        let answers = {
            let mut shards = self.inner.shards.borrow_mut();
            requests
                .iter()
                .map(|request| answer(request, shards.get_mut(shard(request))))
                .collect()
        };
        self.yield_as_network().await?;
        self.check_parts(requests.iter().map(shard))?;
        Ok(answers)
    }
}

#[async_trait(?Send)]
impl ShardStore for MemoryStore {
    fn part_of(&self, shard: &ShardId) -> StorePart {
        self.part(shard)
    }

    async fn open(&self, births: &[NewShard]) -> Result<Vec<Opened>, Error> {
        self.yield_as_network().await?;
        if !births.is_empty() {
            self.check_space()?;
        }
        self.check_parts(births.iter().map(|birth| &birth.shard))?;
        let opened = births.iter().map(|birth| {
            let mut shards = self.inner.shards.borrow_mut();
            if self.inner.copies.borrow().contains_key(&birth.shard) {
                return Opened::Incompatible(begun_copy(&birth.shard.to_string()));
            }
            self.note_write(&birth.shard, shards.get(&birth.shard));
            match shards.get_mut(&birth.shard) {
                Some(shard) if shard.has_newer_slice => {
                    Opened::Incompatible(shard::NEWER_SLICE.to_owned())
                }
                Some(shard) => {
                    shard.extend_possibly_delivered(birth.possibly_delivered);
                    shard.positions.learn_pause(birth.pause.as_ref());
                    Opened::Existing(shard.state())
                }
                None if !birth.creates => Opened::Absent,
                None => Opened::Created(
                    shards
                        .entry(birth.shard.clone())
                        .or_insert(MemoryShard::new(birth))
                        .state(),
                ),
            }
        });
        let opened = opened.collect();
        self.yield_as_network().await?;
        Ok(opened)
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        self.check_space()?;
        let append = |append: &Append, shard: Option<&mut MemoryShard>| {
            let shard = shard?;
            if fault!(AppendInTwoSteps) {
                let mut torn = shard.clone();
                torn.append_runs_only(append);
                self.note_write(&append.shard, Some(&torn));
            }
            Some(shard.append(append))
        };
        let appended = self.change_each(appends, |append| &append.shard, append);
        let appended = appended.await?.into_iter();
        Ok(appended.map(|it| it.unwrap_or(Appended::Unknown)).collect())
    }

    async fn state(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        self.answer_each(
            shards,
            |shard| shard,
            |_, shard| Some(shard?.readable()?.state()),
        )
        .await
    }

    async fn end_holds(&self, shards: &[ShardId]) -> Result<(), Error> {
        let end = |_: &ShardId, shard: Option<&mut MemoryShard>| {
            shard.map(MemoryShard::end_hold);
        };
        self.change_each(shards, |shard| shard, end).await.map(drop)
    }

    async fn positions(&self, shards: &[ShardId]) -> Result<Vec<Option<ShardPosition>>, Error> {
        self.answer_each(
            shards,
            |shard| shard,
            |_, shard| shard.map(|shard| shard.position()),
        )
        .await
    }

    async fn list(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        self.answer_each(
            requests,
            |list| &list.shard,
            |list, shard| {
                let shard = shard.and_then(MemoryShard::readable);
                shard.map_or(Listed::Unknown, |shard| shard.list(list))
            },
        )
        .await
    }

    async fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        let answer = |fetch: &Fetch, shard: Option<&mut MemoryShard>| {
            let shard = shard.as_deref();
            fetch
                .runs
                .iter()
                .map(|(slice, name)| shard?.run_bytes(*slice, name))
                .collect()
        };
        self.answer_each(requests, |fetch| &fetch.shard, answer)
            .await
    }

    async fn tail(&self, requests: &[Tail]) -> Result<Vec<Tailed>, Error> {
        self.answer_each(
            requests,
            |tail| &tail.shard,
            |tail, shard| {
                let shard = shard.and_then(MemoryShard::readable);
                shard.map_or(Tailed::Unknown, |shard| shard.tail(tail))
            },
        )
        .await
    }

    async fn advance(&self, requests: &[Advance]) -> Result<Vec<Advanced>, Error> {
        let answer = |advance: &Advance, shard: Option<&mut MemoryShard>| {
            shard.map_or(Advanced::Unknown, |shard| {
                shard.advance(advance, self.inner.clock.now())
            })
        };
        self.change_each(requests, |advance| &advance.lease.shard, answer)
            .await
    }

    async fn quarantine(&self, requests: &[Quarantine]) -> Result<Vec<usize>, Error> {
        let answer = |request: &Quarantine, shard: Option<&mut MemoryShard>| {
            shard
                .filter(|shard| shard.is_held(request.lease.token))
                .map_or(0, |shard| shard.quarantine(&request.runs))
        };
        self.change_each(requests, |request| &request.lease.shard, answer)
            .await
    }

    async fn remove_finished_ids(
        &self,
        requests: &[FinishedIds],
    ) -> Result<Vec<Option<IdPosition>>, Error> {
        let remove = |_: &FinishedIds, shard: Option<&mut MemoryShard>| {
            shard.map(MemoryShard::remove_finished_ids);
            None
        };
        self.change_each(requests, |request| &request.shard, remove)
            .await
    }

    async fn replace_runs(&self, requests: &[ReplaceRuns]) -> Result<Vec<Replaced>, Error> {
        self.check_space()?;
        let answer = |request: &ReplaceRuns, shard: Option<&mut MemoryShard>| {
            shard.map_or(Replaced::Unknown, |shard| shard.rewrite(request))
        };
        self.change_each(requests, |request| &request.lease.shard, answer)
            .await
    }
}

#[async_trait(?Send)]
impl LeaseStore for MemoryStore {
    async fn acquire(&self, requests: &[Acquire]) -> Result<Vec<Acquired>, Error> {
        let answer = |request: &Acquire, shard: Option<&mut MemoryShard>| {
            shard.map_or(Acquired::Unknown, |shard| shard.acquire(request))
        };
        self.change_each(requests, |request| &request.lease.shard, answer)
            .await
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), Error> {
        let answer = |lease: &Lease, shard: Option<&mut MemoryShard>| {
            shard
                .into_iter()
                .for_each(|shard| shard.lease.release(lease.token));
        };
        self.change_each(leases, |lease| &lease.shard, answer)
            .await
            .map(drop)
    }
}

#[async_trait(?Send)]
impl Membership for MemoryStore {
    async fn heartbeat(&self, request: &SessionHeartbeat) -> Result<Heartbeat, Error> {
        self.yield_as_network().await?;
        let now = self.inner.clock.now();
        self.note_session_write();
        let heartbeat = self.inner.sessions.borrow_mut().heartbeat(request, now);
        self.yield_as_network().await?;
        Ok(heartbeat)
    }

    async fn end_sessions(&self, ends: &[SessionEnd]) -> Result<(), Error> {
        self.yield_as_network().await?;
        self.note_session_write();
        self.inner.sessions.borrow_mut().end(ends);
        self.yield_as_network().await
    }

    async fn sessions(&self) -> Result<Vec<Session>, Error> {
        self.yield_as_network().await?;
        let now = self.inner.clock.now();
        let sessions = self.inner.sessions.borrow().list(now);
        self.yield_as_network().await?;
        Ok(sessions)
    }
}

#[async_trait(?Send)]
impl StoreAdmin for MemoryStore {
    async fn erase(&self, shards: &[ShardId]) -> Result<(), Error> {
        self.yield_as_network().await?;
        for shard in shards {
            self.note_write(shard, self.inner.shards.borrow().get(shard));
            self.inner.shards.borrow_mut().remove(shard);
            self.inner.copies.borrow_mut().remove(shard);
        }
        self.yield_as_network().await
    }
}

#[async_trait(?Send)]
impl StoreQuery for MemoryStore {
    async fn shards(&self) -> Result<Vec<ShardId>, Error> {
        self.yield_as_network().await?;
        Ok(self.inner.shards.borrow().keys().cloned().collect())
    }

    async fn states(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        self.state(shards).await
    }

    async fn holders(&self, shards: &[ShardId]) -> Result<Vec<Option<LeaseToken>>, Error> {
        self.answer_each(
            shards,
            |shard| shard,
            |_, shard| shard.and_then(|shard| shard.lease.holder()),
        )
        .await
    }

    async fn find_ids(&self, ids: &[(ShardId, StoredId)]) -> Result<Vec<Option<Cursor>>, Error> {
        self.answer_each(
            ids,
            |(shard, _)| shard,
            |(_, id), shard| shard.and_then(|shard| shard.waiting_place(id)),
        )
        .await
    }

    async fn changes(
        &self,
        places: &[(ShardId, Cursor)],
    ) -> Result<Vec<Option<PlaceChange>>, Error> {
        self.answer_each(
            places,
            |(shard, _)| shard,
            |(_, place), shard| shard.and_then(|shard| shard.change(*place)),
        )
        .await
    }

    async fn moved_from(
        &self,
        shards: &[ShardId],
        before: Timestamp,
    ) -> Result<Vec<Option<Timestamp>>, Error> {
        self.answer_each(
            shards,
            |shard| shard,
            |_, shard| shard.and_then(|shard| shard.moved_from(before)),
        )
        .await
    }

    async fn count_ids(&self, shard: &ShardId) -> Result<IdCounts, Error> {
        let count =
            |_: &ShardId, shard: Option<&mut MemoryShard>| shard.map(|shard| shard.count_ids());
        let shards = std::slice::from_ref(shard);
        let counts = self.answer_each(shards, |shard| shard, count).await?;
        Ok(counts.into_iter().flatten().next().unwrap_or_default())
    }

    async fn quarantined_runs(&self, shard: &ShardId) -> Result<Vec<RunName>, Error> {
        let shards = self.inner.shards.borrow();
        Ok(shards
            .get(shard)
            .map_or_else(Vec::new, MemoryShard::quarantined_runs))
    }

    async fn list_runs(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        self.list(requests).await
    }

    async fn fetch_runs(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        self.fetch(requests).await
    }

    async fn worker_sessions(&self) -> Result<Vec<Session>, Error> {
        self.sessions().await
    }

    async fn audit_rows(
        &self,
        part: AuditPart,
        before: Option<&AuditPosition>,
        limit: usize,
    ) -> Result<Vec<AuditRow>, Error> {
        self.read_audit_rows(part, before, limit).await
    }
}

#[async_trait(?Send)]
impl QuarantineStore for MemoryStore {
    async fn quarantined_bytes(
        &self,
        shard: &ShardId,
        name: &RunName,
    ) -> Result<Option<Bytes>, Error> {
        let shards = self.inner.shards.borrow();
        let shard = shards.get(shard);
        Ok(shard.and_then(|shard| shard.quarantined_bytes(name)))
    }

    async fn restore(&self, request: &Restore) -> Result<Restored, Error> {
        self.check_space()?;
        let mut shards = self.inner.shards.borrow_mut();
        let shard = shards.get_mut(&request.shard);
        Ok(shard.map_or(Restored::Gone, |shard| shard.restore(request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallClock;
    use crate::model::{Offset, Partition, Progress, Slice, SourceIdentity};
    use crate::store::{AppendEpoch, OutcomeCounts, Store};
    use crate::testing::fault_injection::{self, InjectedFault};
    use crate::testing::store::contract::{self, StoreUnderTest, run_of};
    use std::time::Duration;

    #[async_trait(?Send)]
    impl StoreUnderTest for MemoryStore {
        fn store(&self) -> &dyn Store {
            self
        }

        fn survey(&self) -> &dyn crate::store::CopyStore {
            self
        }

        fn admin(&self) -> &dyn crate::store::AdminStore {
            self
        }

        async fn set_full(&self, full: bool) {
            MemoryStore::set_full(self, full);
        }
    }

    fn memory() -> MemoryStore {
        MemoryStore::new(Rc::new(WallClock))
    }

    fn shard() -> ShardId {
        ShardId::new("route", Partition::new("topic", 0))
    }

    fn birth() -> NewShard {
        NewShard {
            shard: shard(),
            creates: true,
            identity: SourceIdentity("one".into()),
            watermark: Watermark(0),
            delivered: Progress::START,
            hold: Watermark(0),
            possibly_delivered: Progress::START,
            pause: None,
        }
    }

    fn place(offset: u64) -> Cursor {
        Cursor::new(Timestamp::from_millis(1_000), Offset(offset))
    }

    fn append(from: u64, to: u64) -> Append {
        Append {
            shard: shard(),
            epoch: AppendEpoch::default(),
            identity: birth().identity,
            from: Watermark(from),
            to: Watermark(to),
            runs: vec![run_of(&format!("w{from}"), &[place(from)])],
            changes: vec![],
            pause: None,
        }
    }

    async fn watermark(store: &MemoryStore) -> Option<Watermark> {
        store.state(&[shard()]).await.unwrap()[0]
            .as_ref()
            .map(|state| state.watermark)
    }

    #[tokio::test]
    async fn the_memory_store_keeps_the_contract() {
        contract::run(&memory()).await;
    }

    #[tokio::test]
    async fn a_rollback_forgets_the_writes_after_the_snapshot() {
        let store = memory();
        store.open(&[birth()]).await.unwrap();
        store.append(&[append(0, 1)]).await.unwrap();
        let snapshot = store.snapshot();
        store.append(&[append(1, 2)]).await.unwrap();
        store.clone().roll_back_to(&snapshot);
        assert_eq!(watermark(&store).await, Some(Watermark(1)));
        assert_eq!(
            store.append(&[append(1, 3)]).await.unwrap(),
            [Appended::Done {
                cancelled: 0,
                missed: 0,
                told: Vec::new(),
            }]
        );
        store.roll_back_to(&snapshot);
        assert_eq!(
            watermark(&store).await,
            Some(Watermark(1)),
            "a snapshot can be gone back to more than once"
        );
        store.wipe();
        assert_eq!(watermark(&store).await, None);
    }

    #[tokio::test]
    async fn a_store_that_is_down_answers_no_call_but_may_have_executed_it() {
        let store = memory();
        store.open(&[birth()]).await.unwrap();
        store.set_down(true);
        assert!(matches!(
            store.append(&[append(0, 1)]).await,
            Err(Error::Unavailable(_))
        ));
        store.set_down(false);
        assert_eq!(watermark(&store).await, Some(Watermark(0)));

        let batch = [append(0, 1)];
        let mut lost = store.append(&batch);
        // The request has arrived and the reply has not: the call has yielded twice.
        for _ in 0..2 {
            assert!(futures_are_pending(&mut lost));
        }
        store.set_down(true);
        assert!(matches!(lost.await, Err(Error::Unavailable(_))));
        store.set_down(false);
        assert_eq!(watermark(&store).await, Some(Watermark(1)));
    }

    fn futures_are_pending<F: Future + Unpin>(future: &mut F) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::Pin::new(future).poll(&mut context).is_pending()
    }

    #[tokio::test]
    async fn a_corrupted_run_keeps_its_name_and_loses_its_bytes() {
        let store = memory();
        store.open(&[birth()]).await.unwrap();
        let batch = append(0, 1);
        store.append(std::slice::from_ref(&batch)).await.unwrap();
        assert!(store.corrupt_run(&shard(), 0));
        assert!(!store.corrupt_run(&shard(), 1));
        let run = &batch.runs[0];
        let slice = Slice::of(place(0).due, Timestamp::AT_ONCE);
        let fetched = store
            .fetch(&[Fetch {
                shard: shard(),
                runs: vec![(slice, run.name.clone())],
            }])
            .await
            .unwrap();
        assert!(
            fetched[0][0]
                .as_ref()
                .is_some_and(|bytes| *bytes != run.bytes)
        );
    }

    fn with_fault(fault: Option<InjectedFault>, body: impl AsyncFnOnce(MemoryStore)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        fault_injection::with(fault, || runtime.block_on(body(memory())));
    }

    #[test]
    fn only_an_injected_fault_appends_to_a_shard_of_another_identity() {
        for (fault, is_stored) in [
            (None, false),
            (Some(InjectedFault::AppendToOtherIdentity), true),
        ] {
            with_fault(fault, async |store| {
                store.open(&[birth()]).await.unwrap();
                let other = Append {
                    identity: SourceIdentity("two".into()),
                    ..append(0, 1)
                };
                let outcome = store.append(&[other]).await.unwrap().remove(0);
                assert_eq!(outcome != Appended::Unknown, is_stored, "{fault:?}");
            });
        }
    }

    #[test]
    #[should_panic(expected = "RolledBack")]
    fn the_contract_catches_a_claim_from_a_store_that_lost_writes() {
        let fault = InjectedFault::ClaimFromRolledBackStore;
        with_fault(Some(fault), async |store| contract::run(&store).await);
    }

    #[test]
    #[should_panic(expected = "the claimed pair moves only forward")]
    fn the_contract_catches_a_claim_that_moves_back() {
        let fault = InjectedFault::ClaimMovesBack;
        with_fault(Some(fault), async |store| contract::run(&store).await);
    }

    #[test]
    #[should_panic(expected = "overtaken")]
    fn the_contract_catches_a_heartbeat_that_a_later_one_has_overtaken() {
        let fault = InjectedFault::RecordOvertakenHeartbeat;
        with_fault(Some(fault), async |store| contract::run(&store).await);
    }

    #[test]
    #[should_panic(expected = "no id changes without the key")]
    fn the_contract_catches_a_change_of_ids_without_their_key() {
        let fault = InjectedFault::ChangeIdsWithoutKey;
        with_fault(Some(fault), async |store| contract::run(&store).await);
    }

    #[test]
    #[should_panic(expected = "a retry leaves the id to a later message")]
    fn the_contract_catches_a_retry_that_takes_an_id() {
        let fault = InjectedFault::AlwaysTakeId;
        with_fault(Some(fault), async |store| contract::run(&store).await);
    }

    #[test]
    #[should_panic(expected = "a claimed message keeps its due time")]
    fn the_contract_catches_a_reschedule_of_a_claimed_message() {
        let fault = InjectedFault::RescheduleClaimed;
        with_fault(Some(fault), async |store| contract::run(&store).await);
    }

    #[test]
    fn each_injected_fault_of_the_store_breaks_the_rule_that_it_names() {
        let outcomes = async |store: MemoryStore, from: u64| {
            store.open(&[birth()]).await.unwrap();
            store.append(&[append(0, 2)]).await.unwrap();
            store
                .append(&[append(from, from + 1)])
                .await
                .unwrap()
                .remove(0)
        };
        let done = Appended::Done {
            cancelled: 0,
            missed: 0,
            told: Vec::new(),
        };
        for (fault, behind, ahead) in [
            (None, false, false),
            (Some(InjectedFault::AppendWithoutCompare), true, true),
            (Some(InjectedFault::AppendAcceptsGap), false, true),
        ] {
            with_fault(fault, async |store| {
                assert_eq!(outcomes(store, 1).await == done, behind, "{fault:?}");
            });
            with_fault(fault, async |store| {
                assert_eq!(outcomes(store, 5).await == done, ahead, "{fault:?}");
            });
        }
        for (fault, wanted) in [(None, 5), (Some(InjectedFault::ClaimMovesBack), 3)] {
            with_fault(fault, async |store| {
                store.open(&[birth()]).await.unwrap();
                let lease = crate::store::lease(&shard(), LeaseToken::for_test(1));
                let (lease, identity) = (lease.clone(), birth().identity);
                let request = Acquire {
                    lease: lease.clone(),
                    identity,
                    ended_holder: None,
                };
                store.acquire(&[request]).await.unwrap();
                for watermark in [5, 3] {
                    let claim = Some(Progress::new(place(watermark), Watermark(watermark)));
                    let skew_max = Duration::ZERO;
                    let (lease, since, tally) =
                        (lease.clone(), Progress::START, OutcomeCounts::default());
                    let advance = Advance {
                        lease,
                        delivered: None,
                        delivered_before: since,
                        outcomes: tally,
                        occurrences: 0,
                        deletes: vec![],
                        delivered_ids: vec![],
                        claimed_answers: vec![],
                        delivered_answers: vec![],
                        claim,
                        seen: Watermark(0),
                        clock_skew_max: skew_max,
                    };
                    store.advance(&[advance]).await.unwrap();
                }
                let claimed = store.state(&[shard()]).await.unwrap()[0]
                    .as_ref()
                    .map(|state| state.claimed);
                assert_eq!(
                    claimed,
                    Some(Progress::new(place(wanted), Watermark(wanted))),
                    "{fault:?}"
                );
            });
        }
    }
}
