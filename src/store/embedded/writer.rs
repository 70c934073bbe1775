//! The thread that owns all writes: it takes what calls are waiting, does them one after the other, writes their changes with one commit, and
//! answers them all when that is on disk. So the more calls come, the fewer waits for the disk each of them costs.
//!
//! After an error it begins anew with the next call: opens the folder, and reads what is on disk.

use super::data_dir::{DataDir, Sizes};
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

/// Does a call, and says what to tell the caller once it is known whether the changes are on disk.
pub(super) type WriteCall = Box<dyn FnOnce(Result<&mut Shards, Error>) -> Complete + Send>;
pub(super) type Complete = Box<dyn FnOnce(&Result<(), Error>)>;

/// See the module's page.
pub(super) struct Writer {
    pub(super) folder: DataDir,
    pub(super) sizes: Sizes,
    pub(super) here: Context,
    pub(super) calls: Receiver<WriteCall>,
    pub(super) shared: Arc<SharedTables>,
    /// `None`: the folder is to be opened.
    pub(super) registry: Option<Shards>,
    pub(super) leases: BTreeMap<ShardId, LeaseHolder>,
}

impl Writer {
    /// Serves until nobody can call any more.
    pub(super) fn serve(mut self) {
        while let Some(first) = self.next() {
            self.turn(first);
        }
    }

    /// The next call. While there is none, what erased shards have left is deleted.
    fn next(&mut self) -> Option<WriteCall> {
        while self.registry.as_ref().is_some_and(Shards::has_garbage) {
            match self.calls.try_recv() {
                Ok(call) => return Some(call),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => self.clean(),
            }
        }
        self.calls.blocking_recv()
    }

    fn clean(&mut self) {
        let Some(registry) = &mut self.registry else {
            return;
        };
        let cleaned = registry
            .attempt(Shards::delete_garbage)
            .and_then(|()| registry.commit());
        if cleaned.is_err() {
            self.close();
        }
    }

    fn turn(&mut self, first: WriteCall) {
        if let Err(error) = self.reopen() {
            first(Err(error))(&Ok(()));
            return;
        }
        let registry = self.registry.as_mut().expect("it is open");
        let mut settles = vec![first(Ok(registry))];
        while registry.has_room()
            && let Ok(call) = self.calls.try_recv()
        {
            settles.push(call(Ok(registry)));
        }
        let written = registry.commit();
        self.shared.set_stored(registry.size());
        settles.into_iter().for_each(|settle| settle(&written));
        if written.is_err() {
            self.close();
        }
    }

    /// Opens the folder, unless it is open.
    fn reopen(&mut self) -> Result<(), Error> {
        if self.registry.is_none() {
            let failed = |error: fjall::Error| {
                tracing::warn!(
                    error = explain(&error),
                    "the embedded store's folder cannot be opened"
                );
                unavailable(&error)
            };
            let rows = self.folder.open(&self.sizes).map_err(failed)?;
            self.registry =
                Some(Shards::load(rows.clone(), self.here.clone(), &self.leases).map_err(failed)?);
            self.shared.set_rows(Some(rows));
        }
        Ok(())
    }

    /// Lets go of the database, so that it can be opened again. Who reads from it is waited for.
    fn close(&mut self) {
        if let Some(registry) = self.registry.take() {
            self.leases = registry.holders();
        }
        self.shared.set_rows(None);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}
