//! The open database as the writer shares it with the reader and the collector, and the size of the
//! waiting runs.

use super::data_dir::Tables;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// Size of the keys and small rows of one run.
const ROW_BYTES: u64 = 160;

pub(super) struct SharedTables {
    /// `None` while the writer opens the folder again.
    tables: RwLock<Option<Tables>>,
    stored_bytes: AtomicU64,
}

impl SharedTables {
    pub(super) fn new(tables: Tables) -> Self {
        Self {
            tables: RwLock::new(Some(tables)),
            stored_bytes: AtomicU64::new(0),
        }
    }

    /// Waits for other threads that use the old tables.
    pub(super) fn set(&self, tables: Option<Tables>) {
        *self.tables.write().unwrap_or_else(PoisonError::into_inner) = tables;
    }

    /// Runs `body` with the tables. They stay open until it returns.
    pub(super) fn with<T>(&self, body: impl FnOnce(Option<&Tables>) -> T) -> T {
        body(
            self.tables
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .as_ref(),
        )
    }

    pub(super) fn set_stored(&self, (runs, bytes): (u64, u64)) {
        self.stored_bytes
            .store(bytes + runs * ROW_BYTES, Ordering::Relaxed);
    }

    /// Approximate size of the waiting runs.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Ordering::Relaxed)
    }
}
