//! The embedded store: durable, in a folder of this process, without a server.
//!
//! | file | duty |
//! |---|---|
//! | `threads` | starts and joins the threads below |
//! | `writer`, `shards`, `shard`, `write_batch` | writer thread: calls, shards, rows, group commit |
//! | `reader` | reader thread: lists and fetches runs |
//! | `gc` | collector thread: frees the disk space of deleted runs |
//! | `shared_tables` | the open database, shared by the threads |
//! | `data_dir`, `journal_repair`, `disk_space` | folder: lock, format, database, free space |
//! | `key`, `codec` | rows: keys and values |
//! | `query`, `describe` | questions of people about the messages and about the folder |
//!
//! Every change is on disk before its caller gets the answer. If a caller drops its call, the call
//! takes effect completely or not at all. Leases, tails and live workers are not on disk, because
//! their users end with this process.

mod codec;
mod data_dir;
mod describe;
mod disk_space;
mod error;
mod gc;
mod journal_repair;
mod key;
mod query;
mod reader;
mod shard;
mod shards;
mod shared_tables;
#[cfg(test)]
mod tests;
mod threads;
mod write_batch;
mod writer;

use super::{
    Acquired, Advance, Advanced, Append, Appended, Error, Fetch, LeaseStore, Lineage, List, Listed,
    LiveWorker, Membership, NewShard, Opened, Quarantine, Renewed, ReplaceRuns, Replaced,
    ShardPosition, ShardStore, StoreAdmin, StoredShard, Tail, Tailed,
};
use crate::clock::Clock;
use crate::limit;
use crate::model::{Lease, ShardId, WorkerId};
use async_trait::async_trait;
use bytes::Bytes;
use data_dir::{DataDir, FileSizes, Tables};
pub(crate) use describe::{FolderDescription, FolderUse};
use disk_space::DiskSpace;
use error::CallError;
use reader::{ReadCall, ReadView};
use shards::{Context, Shards};
use shared_tables::SharedTables;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use threads::{Queues, Threads};
use tokio::sync::{mpsc, oneshot};
use writer::{Complete, WriteCall, Writer};

#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The folder. Created if it is absent.
    pub(crate) path: PathBuf,
    pub(crate) deployment: String,
}

/// A handle on the store. Clones share it. Dropping the last one ends the threads and waits for
/// them.
#[derive(Clone)]
pub(crate) struct Embedded {
    deployment: Arc<str>,
    threads: Arc<Threads>,
}

impl Embedded {
    /// Locks the folder, reads it, and starts the threads. Blocks meanwhile.
    pub(crate) fn open(
        options: &Options,
        clock: impl Clock + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let disk = DiskSpace::new(options.path.clone());
        Self::open_with(options, FileSizes::DEFAULT, disk, clock)
    }

    fn open_with(
        options: &Options,
        sizes: FileSizes,
        disk: DiskSpace,
        clock: impl Clock + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let folder =
            DataDir::lock(&options.path).map_err(|error| Error::Unusable(error.to_string()))?;
        let context = Context {
            deployment: options.deployment.as_str().into(),
            clock: Arc::new(clock),
            disk,
        };
        let damaged = |error| Error::Unusable(damaged_folder(options, &error));
        let tables = folder.open(&sizes).map_err(damaged)?;
        let leases = BTreeMap::new();
        let shards = Shards::load(tables.clone(), context.clone(), &leases).map_err(damaged)?;
        let shared = Arc::new(SharedTables::new(tables));
        shared.set_stored(shards.size());

        let (write, write_calls) = mpsc::channel(limit::EMBEDDED_QUEUED_CALLS_MAX);
        let (read, read_calls) = mpsc::channel(limit::EMBEDDED_QUEUED_CALLS_MAX);
        let (stop_gc, gc_stopped) = sync_channel(1);
        let mut threads = Threads::new(Queues {
            write,
            read,
            _stop_gc: stop_gc,
        });
        let deployment = context.deployment.clone();
        let writer = Writer {
            folder,
            sizes,
            context,
            calls: write_calls,
            shared: shared.clone(),
            shards: Some(shards),
            leases,
        };
        threads.start("store-writer", move || writer.serve())?;
        let for_reader = shared.clone();
        threads.start("store-reader", move || {
            reader::serve(read_calls, &for_reader);
        })?;
        threads.start("store-gc", move || gc::serve(&gc_stopped, &shared))?;
        Ok(Self {
            deployment,
            threads: Arc::new(threads),
        })
    }

    /// Runs a call on the writer thread. Returns when its changes are on disk.
    async fn write<A: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Shards) -> Result<A, CallError> + Send + 'static,
    ) -> Result<A, Error> {
        let (reply, answer) = oneshot::channel();
        let call: WriteCall = Box::new(move |shards| {
            let outcome = shards.and_then(|shards| shards.attempt(call));
            // The send fails if the caller was dropped. Its call takes effect nevertheless.
            let complete: Complete =
                Box::new(move |committed| _ = reply.send(committed.clone().and(outcome)));
            complete
        });
        let queue = &self.threads.queues().write;
        queue.send(call).await.map_err(|_| thread_ended())?;
        answer.await.map_err(|_| thread_ended())?
    }

    /// Like [`Embedded::write`], with a copy of the requests.
    async fn write_all<R: Clone + Send + 'static, A: Send + 'static>(
        &self,
        requests: &[R],
        call: impl FnOnce(&mut Shards, &[R]) -> Result<A, CallError> + Send + 'static,
    ) -> Result<A, Error> {
        let requests = requests.to_vec();
        self.write(move |shards| call(shards, &requests)).await
    }

    /// Reads on the reader thread.
    async fn read<A: Send + 'static>(
        &self,
        read: impl FnOnce(&ReadView<'_>) -> Result<A, Error> + Send + 'static,
    ) -> Result<A, Error> {
        let (reply, answer) = oneshot::channel();
        let deployment = self.deployment.clone();
        let call: ReadCall = Box::new(move |tables: Result<&Tables, Error>| {
            let outcome = tables.and_then(|tables| read(&ReadView::new(tables, &deployment)));
            // The send fails if the caller was dropped.
            _ = reply.send(outcome);
        });
        let queue = &self.threads.queues().read;
        queue.send(call).await.map_err(|_| thread_ended())?;
        answer.await.map_err(|_| thread_ended())?
    }
}

fn thread_ended() -> Error {
    Error::Unusable(
        "a thread of the embedded store has ended: see its last log messages, then restart"
            .to_owned(),
    )
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
        self.write_all(shards, Shards::open).await
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        self.write_all(appends, Shards::append).await
    }

    async fn state(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        self.write_all(shards, Shards::state).await
    }

    async fn positions(&self, shards: &[ShardId]) -> Result<Vec<Option<ShardPosition>>, Error> {
        self.write_all(shards, Shards::positions).await
    }

    async fn list(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        // The lineages may be read before the names: a folder cannot roll back in between.
        let shards: Vec<ShardId> = requests
            .iter()
            .map(|request| request.shard.clone())
            .collect();
        let positions = self.positions(&shards).await?.into_iter();
        let lineages: Vec<Lineage> = positions
            .map(|position| position.map_or_else(Lineage::default, |position| position.lineage))
            .collect();
        let requests = requests.to_vec();
        self.read(move |view| view.list(&requests, &lineages)).await
    }

    async fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        let requests = requests.to_vec();
        self.read(move |view| view.fetch(&requests)).await
    }

    async fn tail(&self, requests: &[Tail]) -> Result<Vec<Tailed>, Error> {
        let mut tails = self.write_all(requests, Shards::tail).await?;
        super::fetch_tail_bytes(self, requests, &mut tails).await?;
        Ok(tails)
    }

    async fn advance(&self, requests: &[Advance]) -> Result<Vec<Advanced>, Error> {
        self.write_all(requests, Shards::advance).await
    }

    async fn quarantine(&self, requests: &[Quarantine]) -> Result<Vec<usize>, Error> {
        self.write_all(requests, Shards::quarantine).await
    }

    async fn replace_runs(&self, requests: &[ReplaceRuns]) -> Result<Vec<Replaced>, Error> {
        self.write_all(requests, Shards::replace_runs).await
    }
}

#[async_trait(?Send)]
impl LeaseStore for Embedded {
    async fn acquire(&self, leases: &[Lease], length: Duration) -> Result<Vec<Acquired>, Error> {
        let call = move |shards: &mut Shards, leases: &[Lease]| shards.acquire(leases, length);
        self.write_all(leases, call).await
    }

    async fn renew(&self, leases: &[Lease], length: Duration) -> Result<Vec<Renewed>, Error> {
        let call = move |shards: &mut Shards, leases: &[Lease]| shards.renew(leases, length);
        self.write_all(leases, call).await
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), Error> {
        self.write_all(leases, Shards::release).await
    }
}

#[async_trait(?Send)]
impl Membership for Embedded {
    async fn heartbeat_worker(
        &self,
        worker: WorkerId,
        length: Duration,
    ) -> Result<Vec<LiveWorker>, Error> {
        self.write(move |shards| Ok(shards.heartbeat_worker(worker, length)))
            .await
    }

    async fn remove_worker(&self, worker: WorkerId) -> Result<(), Error> {
        self.write(move |shards| {
            shards.remove_worker(worker);
            Ok(())
        })
        .await
    }
}

#[async_trait(?Send)]
impl StoreAdmin for Embedded {
    async fn erase(&self, shards: &[ShardId]) -> Result<(), Error> {
        self.write_all(shards, Shards::erase).await
    }
}
