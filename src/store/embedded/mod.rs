//! The embedded store: durable, in a folder of this process' own, without a server. One thread writes, one reads, one frees the disk; the
//! handles that loops hold hand calls to them. Every change is on disk before it is answered, and a call that is dropped has its effect or
//! has none.
//!
//! | file | duty |
//! |---|---|
//! | `folder`, `journal` | lock, format version and database of the folder |
//! | `key`, `form` | rows: their keys, their values |
//! | `writer`, `registry`, `shard`, `draft` | the thread that writes: calls, shards, changes of rows |
//! | `reader` | the thread that reads runs |
//! | `survey`, `inspection` | what a person asks: of what waits, of the folder |
//! | `sweep`, `room` | disk that is freed, disk that is left |
//!
//! Leases, tails and the roll of workers are not kept on disk: who uses them ends with this process.

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
use data_dir::{DataDir, Sizes, Tables};
pub(crate) use describe::{FolderDescription, FolderUse};
use disk_space::DiskSpace;
use reader::{ReadCall, ReadView};
use shards::{Context, Shards};
use shared_tables::SharedTables;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use writer::{Complete, WriteCall, Writer};

/// Where the store lies, and whose.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Its folder; made if there is none.
    pub(crate) path: PathBuf,
    pub(crate) deployment: String,
}

/// How long the threads may take to end: one that frees the disk is in the midst of files. What was answered is on disk whether they end
/// or not.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A handle on the store; clones share it. The last one that is dropped ends the threads and waits for them.
#[derive(Clone)]
pub(crate) struct Embedded {
    deployment: Arc<str>,
    threads: Arc<Threads>,
}

struct Threads {
    /// `None` only while they are ended.
    calls: Option<Calls>,
    handles: Vec<JoinHandle<()>>,
    /// Disconnected when all have ended.
    ended: Mutex<Receiver<()>>,
}

struct Calls {
    write: mpsc::Sender<WriteCall>,
    read: mpsc::Sender<ReadCall>,
    /// Dropped, it ends the sweeper.
    _sweep: SyncSender<()>,
}

impl Embedded {
    /// Takes the folder and starts the threads. Blocks while the folder is read.
    pub(crate) fn open(
        options: &Options,
        clock: impl Clock + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::open_with(
            options,
            Sizes::DEFAULT,
            DiskSpace::new(options.path.clone()),
            clock,
        )
    }

    fn open_with(
        options: &Options,
        sizes: Sizes,
        room: DiskSpace,
        clock: impl Clock + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let folder =
            DataDir::lock(&options.path).map_err(|refused| Error::Unusable(refused.to_string()))?;
        let here = Context {
            deployment: options.deployment.as_str().into(),
            clock: Arc::new(clock),
            room,
        };
        let holders = BTreeMap::new();
        let opened = folder
            .open(&sizes)
            .and_then(|rows| Ok((rows.clone(), Shards::load(rows, here.clone(), &holders)?)));
        let (rows, registry) = opened.map_err(|error| Error::Unusable(damaged(options, &error)))?;
        let shared = Arc::new(SharedTables::new(rows));
        shared.set_stored(registry.size());
        let (write, calls) = mpsc::channel(limit::EMBEDDED_QUEUED_CALLS_MAX);
        let (read, readings) = mpsc::channel(limit::EMBEDDED_QUEUED_CALLS_MAX);
        let (sweep, stop) = sync_channel(1);
        let deployment = here.deployment.clone();
        let writer = Writer {
            folder,
            sizes,
            here,
            calls,
            shared: shared.clone(),
            registry: Some(registry),
            leases: holders,
        };
        let (reading, sweeping) = (shared.clone(), shared);
        let (ends, ended) = sync_channel(1);
        let ended = Mutex::new(ended);
        let calls = Some(Calls {
            write,
            read,
            _sweep: sweep,
        });
        let mut threads = Threads {
            calls,
            handles: Vec::new(),
            ended,
        };
        threads.start("store-writer", &ends, move || writer.serve())?;
        threads.start("store-reader", &ends, move || {
            reader::serve(readings, &reading)
        })?;
        threads.start("store-sweeper", &ends, move || gc::serve(&stop, &sweeping))?;
        Ok(Self {
            deployment,
            threads: Arc::new(threads),
        })
    }

    /// Does a call on the writer's thread; answers when its changes are on disk.
    async fn write<A: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Shards) -> Result<A, error::CallError> + Send + 'static,
    ) -> Result<A, Error> {
        let (reply, answer) = oneshot::channel();
        let call: WriteCall = Box::new(move |registry| {
            let outcome = registry.and_then(|registry| registry.attempt(call));
            // Nobody waits any more: the caller was dropped, and what is done is done.
            let settle: Complete =
                Box::new(move |written| _ = reply.send(written.clone().and(outcome)));
            settle
        });
        let calls = self.calls();
        calls.write.send(call).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }

    /// Reads on the reader's thread.
    async fn read<A: Send + 'static>(
        &self,
        read: impl FnOnce(&ReadView<'_>) -> Result<A, Error> + Send + 'static,
    ) -> Result<A, Error> {
        let (reply, answer) = oneshot::channel();
        let deployment = self.deployment.clone();
        let reading: ReadCall = Box::new(move |rows: Result<&Tables, Error>| {
            _ = reply.send(rows.and_then(|rows| read(&ReadView::new(rows, &deployment))))
        });
        self.calls().read.send(reading).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }

    fn calls(&self) -> &Calls {
        self.threads
            .calls
            .as_ref()
            .expect("it is taken only when no handle is left")
    }
}

fn ended() -> Error {
    Error::Unusable("a thread of the embedded store has ended: see what it said last".to_owned())
}

fn damaged(options: &Options, error: &fjall::Error) -> String {
    let (path, error) = (options.path.display(), error::explain(error));
    format!(
        "{path} cannot be opened: {error}. If the disk is in order, the store in it is damaged: move the folder away and start again, and \
         what waited is read again from the sources as far as they retain it"
    )
}

impl Threads {
    #[expect(
        clippy::disallowed_methods,
        reason = "the adapter starts and joins the threads that make blocking calls"
    )]
    fn start(
        &mut self,
        name: &str,
        ends: &SyncSender<()>,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let ends = ends.clone();
        let handle = Builder::new().name(name.to_owned()).spawn(move || {
            body();
            drop(ends);
        });
        self.handles.push(
            handle.map_err(|error| Error::Unusable(format!("cannot start {name}: {error}")))?,
        );
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.calls = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if matches!(
            ended.recv_timeout(JOIN_TIMEOUT),
            Err(RecvTimeoutError::Timeout)
        ) {
            tracing::warn!("the embedded store does not end in time: its threads are left behind");
            return;
        }
        for handle in self.handles.drain(..) {
            let name = handle.thread().name().unwrap_or_default().to_owned();
            if handle.join().is_err() {
                tracing::error!(thread = name, "a thread of the embedded store panicked");
            }
        }
    }
}

#[async_trait(?Send)]
impl ShardStore for Embedded {
    async fn open(&self, births: &[NewShard]) -> Result<Vec<Opened>, Error> {
        let births = births.to_vec();
        self.write(move |registry| registry.open(&births)).await
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        let appends = appends.to_vec();
        self.write(move |registry| registry.append(&appends)).await
    }

    async fn state(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, Error> {
        let shards = shards.to_vec();
        self.write(move |registry| Ok(registry.state(&shards)))
            .await
    }

    async fn positions(&self, shards: &[ShardId]) -> Result<Vec<Option<ShardPosition>>, Error> {
        let shards = shards.to_vec();
        self.write(move |registry| Ok(registry.positions(&shards)))
            .await
    }

    async fn list(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        // Before the names are read, as nobody who is there sees a folder go back.
        let glances = self
            .positions(
                &requests
                    .iter()
                    .map(|request| request.shard.clone())
                    .collect::<Vec<_>>(),
            )
            .await?;
        let histories: Vec<_> = glances
            .iter()
            .map(|glance| glance.map_or_else(Lineage::default, |glance| glance.lineage))
            .collect();
        let requests = requests.to_vec();
        self.read(move |view| view.list(&requests, &histories))
            .await
    }

    async fn fetch(&self, requests: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        let requests = requests.to_vec();
        self.read(move |view| view.fetch(&requests)).await
    }

    async fn tail(&self, requests: &[Tail]) -> Result<Vec<Tailed>, Error> {
        let asked = requests.to_vec();
        let mut tails = self
            .write(move |registry| Ok(registry.tail(&asked)))
            .await?;
        super::fetch_tail_bytes(self, requests, &mut tails).await?;
        Ok(tails)
    }

    async fn advance(&self, requests: &[Advance]) -> Result<Vec<Advanced>, Error> {
        let requests = requests.to_vec();
        self.write(move |registry| registry.advance(&requests))
            .await
    }

    async fn quarantine(&self, requests: &[Quarantine]) -> Result<Vec<usize>, Error> {
        let requests = requests.to_vec();
        self.write(move |registry| registry.quarantine(&requests))
            .await
    }

    async fn replace_runs(&self, requests: &[ReplaceRuns]) -> Result<Vec<Replaced>, Error> {
        let requests = requests.to_vec();
        self.write(move |registry| registry.replace_runs(&requests))
            .await
    }
}

#[async_trait(?Send)]
impl LeaseStore for Embedded {
    async fn acquire(&self, leases: &[Lease], length: Duration) -> Result<Vec<Acquired>, Error> {
        let leases = leases.to_vec();
        self.write(move |registry| Ok(registry.acquire(&leases, length)))
            .await
    }

    async fn renew(&self, leases: &[Lease], length: Duration) -> Result<Vec<Renewed>, Error> {
        let leases = leases.to_vec();
        self.write(move |registry| Ok(registry.renew(&leases, length)))
            .await
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), Error> {
        let leases = leases.to_vec();
        self.write(move |registry| {
            registry.release(&leases);
            Ok(())
        })
        .await
    }
}

#[async_trait(?Send)]
impl Membership for Embedded {
    async fn heartbeat_worker(
        &self,
        worker: WorkerId,
        length: Duration,
    ) -> Result<Vec<LiveWorker>, Error> {
        self.write(move |registry| Ok(registry.heartbeat_worker(worker, length)))
            .await
    }

    async fn remove_worker(&self, worker: WorkerId) -> Result<(), Error> {
        self.write(move |registry| {
            registry.remove_worker(worker);
            Ok(())
        })
        .await
    }
}

#[async_trait(?Send)]
impl StoreAdmin for Embedded {
    async fn erase(&self, shards: &[ShardId]) -> Result<(), Error> {
        let shards = shards.to_vec();
        self.write(move |registry| {
            registry.erase(&shards);
            Ok(())
        })
        .await
    }
}
