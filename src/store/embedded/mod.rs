//! The embedded store: durable, in a folder of this process, without a server.
//!
//! | file | duty |
//! |---|---|
//! | `writer`, `shards`, `shard` | writer thread: calls, shards, group commit |
//! | `reader` | lists and fetches runs on the threads of the callers |
//! | `gc` | collector thread: frees the disk space of deleted runs |
//! | `tables` | the open database, shared by the threads, and batches of changed rows |
//! | `data_dir` | folder: lock, format, damaged journal, free space |
//! | `key`, `codec` | rows: keys and values |
//! | `copy` | moves shards to and from another store |
//! | `admin` | the audit list, and requests with an idempotency key |
//! | `quarantine` | reads and restores quarantined runs |
//! | `describe` | questions of people about the folder |
//!
//! Every change is on disk before its caller gets the answer. If a caller drops its call, the call
//! takes effect completely or not at all. Leases, lineages, tails and sessions are not on disk,
//! because their users end with this process.

mod admin;
mod codec;
mod copy;
mod data_dir;
mod describe;
mod error;
mod gc;
mod key;
mod position_rows;
mod quarantine;
mod reader;
mod shard;
mod shards;
mod tables;
#[cfg(test)]
mod tests;
mod writer;

use super::{
    Acquire, Acquired, Advance, Advanced, Append, Appended, AuditPart, AuditPosition, AuditRow,
    Error, Fetch, FinishedIds, Heartbeat, IdPosition, LeaseStore, List, Listed, Membership,
    NewShard, Opened, Quarantine, ReplaceRuns, Replaced, Session, SessionEnd, SessionHeartbeat,
    ShardPosition, ShardStore, StoreAdmin, StoreQuery, StoredShard, Tail, Tailed,
};
use crate::client_thread::ClientThread;
use crate::clock::Clock;
use crate::encryption::{IdCounts, StoredId};
use crate::limit::{self, EmbeddedMemory};
use crate::model::{Cursor, Lease, LeaseToken, ShardId, Timestamp};
use crate::run::RunName;
use crate::store::query::PlaceChange;
use async_trait::async_trait;
use bytes::Bytes;
use data_dir::{DataDir, DiskSpace};
pub(crate) use describe::{FolderDescription, FolderUse};
use reader::ReadView;
use shard::Shard;
use shards::Shards;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tables::{FileSizes, SharedTables, Tables, WriteBatch};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use writer::{Complete, WriteCall, Writer};

/// Time for the threads to end. The collector may be busy with files. All answered calls are
/// on disk, even if a thread is left behind.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The folder. Created if it is absent.
    pub(crate) path: PathBuf,
    pub(crate) deployment: String,
    pub(crate) memory: EmbeddedMemory,
}

/// A handle on the store. Clones share it. Dropping the last one ends the threads and waits for
/// them.
#[derive(Clone)]
pub(crate) struct Embedded {
    deployment: Arc<str>,
    disk: DiskSpace,
    shared: Arc<SharedTables>,
    threads: Arc<Threads>,
}

/// The threads of one open store. Each ends when its sender is dropped.
struct Threads {
    /// `None` only during the drop.
    senders: Option<(mpsc::Sender<WriteCall>, SyncSender<()>)>,
    /// In a mutex only so that handles of the store can be shared between threads.
    handles: Mutex<[ClientThread; 2]>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.senders = None;
        let deadline = Instant::now() + JOIN_TIMEOUT;
        let handles = self.handles.get_mut();
        for thread in handles.unwrap_or_else(PoisonError::into_inner) {
            thread.join_until(deadline);
        }
    }
}

impl Embedded {
    /// Locks the folder, reads it, and starts the threads. Blocks meanwhile.
    pub(crate) fn open(
        options: &Options,
        clock: impl Clock + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let disk = DiskSpace::new(options.path.clone());
        Self::open_with(options, FileSizes::within(options.memory), disk, clock)
    }

    fn open_with(
        options: &Options,
        sizes: FileSizes,
        disk: DiskSpace,
        clock: impl Clock + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let folder = DataDir::lock(&options.path)?;
        let damaged = |error| Error::Unusable(damaged_folder(options, &error));
        let tables = folder.open(&sizes).map_err(damaged)?;
        let deployment: Arc<str> = options.deployment.as_str().into();
        let shards = Shards::new(deployment.clone());
        let shards = shards.reload(&tables).map_err(damaged)?;
        if let Err(error) = tables.delete_garbage() {
            tracing::warn!(
                %error,
                "the embedded store could not delete all data of erased shards: the next start tries again"
            );
        }
        let shared = Arc::new(SharedTables::new(tables.clone()));
        shared.set_stored(shards.size());

        let (write, calls) = mpsc::channel(limit::EMBEDDED_QUEUED_CALLS_MAX);
        let (stop_gc, gc_stopped) = sync_channel(1);
        let writer = Writer {
            folder,
            sizes,
            clock: Arc::new(clock),
            calls,
            shared: shared.clone(),
            tables: Some(tables),
            shards,
        };
        let for_gc = shared.clone();
        let handles = [
            start_thread("store-writer", move || writer.serve())?,
            start_thread("store-gc", move || gc::serve(&gc_stopped, &for_gc))?,
        ];
        Ok(Self {
            deployment,
            disk,
            shared,
            threads: Arc::new(Threads {
                senders: Some((write, stop_gc)),
                handles: Mutex::new(handles),
            }),
        })
    }

    /// Runs a call on the writer thread. Returns when its changes are on disk.
    async fn write<A: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Shards, &mut WriteBatch<'_>) -> Result<A, Error> + Send + 'static,
    ) -> Result<A, Error> {
        let (reply, answer) = oneshot::channel();
        let call: WriteCall = Box::new(move |open| {
            let outcome = open.and_then(|(shards, batch)| {
                call(shards, batch).inspect_err(|error| batch.fail(error))
            });
            // The send fails if the caller was dropped. Its call takes effect nevertheless.
            let complete: Complete = Box::new(|committed| _ = reply.send(committed.and(outcome)));
            complete
        });
        let thread_ended = || {
            let why =
                "a thread of the embedded store has ended: see its last log messages, then restart";
            Error::Unusable(why.to_owned())
        };
        let senders = self.threads.senders.as_ref();
        let (queue, _) = senders.expect("dropped only with the store");
        queue.send(call).await.map_err(|_| thread_ended())?;
        answer.await.map_err(|_| thread_ended())?
    }

    /// Changes the shard of each request on the writer thread.
    async fn change<R: Clone + Send + 'static, A: Clone + Send + 'static>(
        &self,
        requests: &[R],
        shard: fn(&R) -> &ShardId,
        unknown: A,
        change: impl Fn(&mut Shard, &R, &mut WriteBatch<'_>) -> fjall::Result<A> + Send + 'static,
    ) -> Result<Vec<A>, Error> {
        let requests = requests.to_vec();
        self.write(move |shards, batch| {
            let mut outcomes = Vec::with_capacity(requests.len());
            for request in &requests {
                let id = shard(request);
                let outcome =
                    shards.change(id, batch, |shard, batch| change(shard, request, batch))?;
                outcomes.push(outcome.unwrap_or_else(|| unknown.clone()));
            }
            Ok(outcomes)
        })
        .await
    }

    /// Reads from the shard of each request on the writer thread. `None`: unknown shard.
    async fn ask<R: Clone + Send + 'static, A: Send + 'static>(
        &self,
        requests: &[R],
        shard: fn(&R) -> &ShardId,
        read: impl Fn(&Shard, &R) -> A + Send + 'static,
    ) -> Result<Vec<Option<A>>, Error> {
        let requests = requests.to_vec();
        self.write(move |shards, _| {
            let answer = |request| shards.get(shard(request)).map(|shard| read(shard, request));
            Ok(requests.iter().map(answer).collect())
        })
        .await
    }

    /// Reads the database on this thread, at one moment for all requests.
    fn read_each<R, A>(
        &self,
        requests: &[R],
        read: impl Fn(&ReadView<'_>, &R) -> fjall::Result<A>,
    ) -> Result<Vec<A>, Error> {
        self.shared.with(|tables| {
            let view = ReadView::new(tables, &self.deployment);
            let answers = requests.iter().map(|request| Ok(read(&view, request)?));
            answers.collect()
        })
    }

    /// Fails if there are requests to add data and the disk is full.
    fn check_space<R>(&self, requests: &[R]) -> Result<(), Error> {
        match requests.is_empty() || !self.disk.is_full() {
            true => Ok(()),
            false => Err(Error::Full),
        }
    }
}

fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<ClientThread, Error> {
    ClientThread::start(name, body)
        .map_err(|error| Error::Unusable(format!("cannot start {name}: {error}")))
}

fn damaged_folder(options: &Options, error: &fjall::Error) -> String {
    format!(
        "{} cannot be opened: {}. If the disk is in order, the store in it is damaged: move the \
         folder away and start again; the messages are then read again from the sources, as far \
         as they retain them",
        options.path.display(),
        error::explain(error)
    )
}

#[async_trait(?Send)]
impl ShardStore for Embedded {
    async fn open(&self, shards: &[NewShard]) -> Result<Vec<Opened>, Error> {
        let (new, is_full) = (shards.to_vec(), self.disk.is_full());
        self.write(move |shards, batch| shards.open(&new, batch, is_full))
            .await
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        self.check_space(appends)?;
        self.change(
            appends,
            |append| &append.shard,
            Appended::Unknown,
            Shard::append,
        )
        .await
    }

    async fn state(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        self.ask(shards, |id| id, |shard, _| shard.state()).await
    }

    async fn end_holds(&self, shards: &[ShardId]) -> Result<(), Error> {
        let end = |shard: &mut Shard, _: &ShardId, _: &mut WriteBatch<'_>| {
            shard.end_hold();
            Ok(())
        };
        self.change(shards, |id| id, (), end).await.map(drop)
    }

    async fn positions(&self, shards: &[ShardId]) -> Result<Vec<Option<ShardPosition>>, Error> {
        self.ask(shards, |id| id, |shard, _| shard.meta.position())
            .await
    }

    async fn list(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        // The lineages may be older than the names: a folder cannot roll back in between.
        let shards: Vec<ShardId> = requests.iter().map(|list| list.shard.clone()).collect();
        let positions = self.positions(&shards).await?;
        let requests: Vec<_> = requests.iter().zip(positions).collect();
        self.read_each(&requests, |view, (request, position)| match position {
            Some(position) => view.list(request, position.lineage),
            None => Ok(Listed::Unknown),
        })
    }

    async fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        self.read_each(requests, |view, fetch| view.fetch(fetch))
    }

    async fn tail(&self, requests: &[Tail]) -> Result<Vec<Tailed>, Error> {
        let read = async |requests: &[Tail]| {
            let read = |shard: &mut Shard, tail: &Tail, batch: &mut WriteBatch<'_>| {
                shard.read_tail(tail, batch)
            };
            self.change(requests, |tail| &tail.shard, Tailed::Unknown, read)
                .await
        };
        let tails = read(requests).await?;
        super::tail_bytes::fill_tails(self, requests, tails, async |request| {
            Ok(read(&[request]).await?.pop().unwrap_or(Tailed::Unknown))
        })
        .await
    }

    async fn advance(&self, requests: &[Advance]) -> Result<Vec<Advanced>, Error> {
        let unknown = Advanced::Unknown;
        self.change(
            requests,
            |advance| &advance.lease.shard,
            unknown,
            Shard::advance,
        )
        .await
    }

    async fn quarantine(&self, requests: &[Quarantine]) -> Result<Vec<usize>, Error> {
        self.change(
            requests,
            |request| &request.lease.shard,
            0,
            Shard::quarantine,
        )
        .await
    }

    async fn replace_runs(&self, requests: &[ReplaceRuns]) -> Result<Vec<Replaced>, Error> {
        self.check_space(requests)?;
        let unknown = Replaced::Unknown;
        self.change(
            requests,
            |request| &request.lease.shard,
            unknown,
            Shard::replace_runs,
        )
        .await
    }

    async fn remove_finished_ids(
        &self,
        requests: &[FinishedIds],
    ) -> Result<Vec<Option<IdPosition>>, Error> {
        self.change(
            requests,
            |request| &request.shard,
            None,
            Shard::remove_finished_ids,
        )
        .await
    }
}

#[async_trait(?Send)]
impl LeaseStore for Embedded {
    async fn acquire(&self, requests: &[Acquire]) -> Result<Vec<Acquired>, Error> {
        let acquire = |shard: &mut Shard, request: &Acquire, _: &mut WriteBatch<'_>| {
            Ok(shard.acquire(request))
        };
        let unknown = Acquired::Unknown;
        self.change(requests, |request| &request.lease.shard, unknown, acquire)
            .await
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), Error> {
        let release = |shard: &mut Shard, lease: &Lease, _: &mut WriteBatch<'_>| {
            shard.lease.release(lease.token);
            Ok(())
        };
        self.change(leases, |lease| &lease.shard, (), release)
            .await
            .map(drop)
    }
}

#[async_trait(?Send)]
impl Membership for Embedded {
    async fn heartbeat(&self, request: &SessionHeartbeat) -> Result<Heartbeat, Error> {
        let request = request.clone();
        self.write(move |shards, batch| Ok(shards.sessions.heartbeat(&request, batch.now)))
            .await
    }

    async fn end_sessions(&self, ends: &[SessionEnd]) -> Result<(), Error> {
        let ends = ends.to_vec();
        self.write(move |shards, _| {
            shards.sessions.end(&ends);
            Ok(())
        })
        .await
    }

    async fn sessions(&self) -> Result<Vec<Session>, Error> {
        self.write(|shards, batch| Ok(shards.sessions.list(batch.now)))
            .await
    }
}

#[async_trait(?Send)]
impl StoreAdmin for Embedded {
    async fn erase(&self, shards: &[ShardId]) -> Result<(), Error> {
        let erased = shards.to_vec();
        self.write(move |shards, batch| {
            shards.erase(&erased, batch);
            Ok(())
        })
        .await?;
        self.shared.with(Tables::delete_garbage)
    }
}

#[async_trait(?Send)]
impl StoreQuery for Embedded {
    async fn shards(&self) -> Result<Vec<ShardId>, Error> {
        self.write(|shards, _| Ok(shards.names())).await
    }

    async fn states(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        self.state(shards).await
    }

    async fn holders(&self, shards: &[ShardId]) -> Result<Vec<Option<LeaseToken>>, Error> {
        let holders = self.ask(shards, |shard| shard, |shard, _| shard.lease.holder());
        Ok(holders.await?.into_iter().map(Option::flatten).collect())
    }

    async fn find_ids(&self, ids: &[(ShardId, StoredId)]) -> Result<Vec<Option<Cursor>>, Error> {
        self.read_each(ids, |view, (shard, id)| view.find_id(shard, id))
    }

    async fn changes(
        &self,
        places: &[(ShardId, Cursor)],
    ) -> Result<Vec<Option<PlaceChange>>, Error> {
        self.read_each(places, |view, (shard, place)| view.change(shard, *place))
    }

    async fn moved_from(
        &self,
        shards: &[ShardId],
        before: Timestamp,
    ) -> Result<Vec<Option<Timestamp>>, Error> {
        self.read_each(shards, |view, shard| view.moved_from(shard, before))
    }

    async fn count_ids(&self, shard: &ShardId) -> Result<IdCounts, Error> {
        let counts = self.read_each(&[shard], |view, shard| view.count_ids(shard))?;
        Ok(counts.into_iter().next().unwrap_or_default())
    }

    async fn list_runs(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        self.list(requests).await
    }

    async fn fetch_runs(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        self.fetch(requests).await
    }

    async fn quarantined_runs(&self, shard: &ShardId) -> Result<Vec<RunName>, Error> {
        let read = |view: &ReadView<'_>, shard: &&ShardId| view.quarantined_runs(shard);
        let names = self.read_each(&[shard], read)?;
        Ok(names.into_iter().flatten().collect())
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
        self.read_audit_rows(part, before, limit)
    }
}
