//! The thread that owns all writes: it takes what calls are waiting, does them one after the other, writes their changes with one commit, and
//! answers them all when that is on disk. So the more calls come, the fewer waits for the disk each of them costs.
//!
//! After an error it begins anew with the next call: opens the folder, and reads what is on disk.

use super::fault::{describe, unavailable};
use super::folder::{Folder, Sizes};
use super::registry::{Registry, Surroundings};
use super::shared::Shared;
use crate::model::ShardId;
use crate::store::Error;
use crate::store::shard::Holder;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc::Receiver;
use tokio::sync::mpsc::error::TryRecvError;

/// Does a call, and says what to tell the caller once it is known whether the changes are on disk.
pub(super) type Call = Box<dyn FnOnce(Result<&mut Registry, Error>) -> Settle + Send>;
pub(super) type Settle = Box<dyn FnOnce(&Result<(), Error>)>;

/// See the module's page.
pub(super) struct Writer {
    pub(super) folder: Folder,
    pub(super) sizes: Sizes,
    pub(super) here: Surroundings,
    pub(super) calls: Receiver<Call>,
    pub(super) shared: Arc<Shared>,
    /// `None`: the folder is to be opened.
    pub(super) registry: Option<Registry>,
    pub(super) holders: BTreeMap<ShardId, Holder>,
}

impl Writer {
    /// Serves until nobody can call any more.
    pub(super) fn serve(mut self) {
        while let Some(first) = self.next() {
            self.turn(first);
        }
    }

    /// The next call. While there is none, what erased shards have left is deleted.
    fn next(&mut self) -> Option<Call> {
        while self.registry.as_ref().is_some_and(Registry::has_garbage) {
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
            .attempt(Registry::clean)
            .and_then(|()| registry.commit());
        if cleaned.is_err() {
            self.close();
        }
    }

    fn turn(&mut self, first: Call) {
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
        self.shared.set_size(registry.size());
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
                    error = describe(&error),
                    "the embedded store's folder cannot be opened"
                );
                unavailable(&error)
            };
            let rows = self.folder.open(&self.sizes).map_err(failed)?;
            self.registry = Some(
                Registry::load(rows.clone(), self.here.clone(), &self.holders).map_err(failed)?,
            );
            self.shared.set_rows(Some(rows));
        }
        Ok(())
    }

    /// Lets go of the database, so that it can be opened again. Who reads from it is waited for.
    fn close(&mut self) {
        if let Some(registry) = self.registry.take() {
            self.holders = registry.holders();
        }
        self.shared.set_rows(None);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}
