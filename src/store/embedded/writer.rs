//! The writer thread: owns all writes. It runs the waiting calls one after the other, writes their
//! changes with one commit, and answers all of them when the commit is on disk. More calls
//! therefore share one wait for the disk.
//!
//! After an error the next call opens the folder again and loads the shards from disk.

use super::data_dir::{DataDir, FileSizes};
use super::error::{explain, unavailable};
use super::shards::{Context, Shards};
use super::shared_tables::SharedTables;
use crate::model::ShardId;
use crate::store::Error;
use crate::store::rules::LeaseHolder;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc::Receiver;
use tokio::sync::mpsc::error::TryRecvError;

/// Runs a call on the shards. The returned function answers the caller after the commit.
pub(super) type WriteCall = Box<dyn FnOnce(Result<&mut Shards, Error>) -> Complete + Send>;
pub(super) type Complete = Box<dyn FnOnce(&Result<(), Error>)>;

pub(super) struct Writer {
    pub(super) folder: DataDir,
    pub(super) sizes: FileSizes,
    pub(super) context: Context,
    pub(super) calls: Receiver<WriteCall>,
    pub(super) shared: Arc<SharedTables>,
    /// `None`: the folder must be opened again.
    pub(super) shards: Option<Shards>,
    /// Leases of the shards that were closed. They survive because their holders are in this
    /// process.
    pub(super) leases: BTreeMap<ShardId, LeaseHolder>,
}

impl Writer {
    /// Runs until all handles on the store are gone.
    pub(super) fn serve(mut self) {
        while let Some(first) = self.next_call() {
            self.run_batch(first);
        }
    }

    /// The next call. Deletes rows of erased shards while no call waits.
    fn next_call(&mut self) -> Option<WriteCall> {
        while self.shards.as_ref().is_some_and(Shards::has_garbage) {
            match self.calls.try_recv() {
                Ok(call) => return Some(call),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => self.delete_garbage(),
            }
        }
        self.calls.blocking_recv()
    }

    fn delete_garbage(&mut self) {
        let Some(shards) = &mut self.shards else {
            return;
        };
        let deleted = shards
            .attempt(Shards::delete_garbage)
            .and_then(|()| shards.commit());
        if deleted.is_err() {
            self.close();
        }
    }

    /// Runs the call and those behind it with one commit.
    fn run_batch(&mut self, first: WriteCall) {
        if let Err(error) = self.reopen() {
            first(Err(error))(&Ok(()));
            return;
        }
        let shards = self.shards.as_mut().expect("reopen succeeded");
        let mut answers = vec![first(Ok(shards))];
        while shards.has_room()
            && let Ok(call) = self.calls.try_recv()
        {
            answers.push(call(Ok(shards)));
        }
        let committed = shards.commit();
        self.shared.set_stored(shards.size());
        for answer in answers {
            answer(&committed);
        }
        if committed.is_err() {
            self.close();
        }
    }

    /// Opens the folder, unless it is open.
    fn reopen(&mut self) -> Result<(), Error> {
        if self.shards.is_some() {
            return Ok(());
        }
        let failed = |error: fjall::Error| {
            tracing::warn!(
                error = explain(&error),
                "the embedded store's folder cannot be opened; the next call tries again"
            );
            unavailable(&error)
        };
        let tables = self.folder.open(&self.sizes).map_err(failed)?;
        let shards = Shards::load(tables.clone(), self.context.clone(), &self.leases);
        self.shards = Some(shards.map_err(failed)?);
        self.shared.set(Some(tables));
        Ok(())
    }

    /// Closes the database, so that it can be opened again. Waits for the other threads.
    fn close(&mut self) {
        if let Some(shards) = self.shards.take() {
            self.leases = shards.leases();
        }
        self.shared.set(None);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}
