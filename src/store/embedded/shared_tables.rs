//! What the writer's thread lends to the others: the open database, and how much waits in it.

use super::data_dir::Tables;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// What a run takes beside its bytes, in keys and small rows.
const ROW_BYTES: u64 = 160;

/// See the module's page.
pub(super) struct SharedTables {
    /// `None`: it is being opened anew.
    rows: RwLock<Option<Tables>>,
    size: AtomicU64,
}

impl SharedTables {
    pub(super) fn new(rows: Tables) -> Self {
        Self {
            rows: RwLock::new(Some(rows)),
            size: AtomicU64::new(0),
        }
    }

    /// Waits for those who use the rows.
    pub(super) fn set_rows(&self, rows: Option<Tables>) {
        *self.rows.write().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    /// Lets `body` use the rows, if they are open. They stay open as long.
    pub(super) fn with_rows<T>(&self, body: impl FnOnce(Option<&Tables>) -> T) -> T {
        body(
            self.rows
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .as_ref(),
        )
    }

    pub(super) fn set_stored(&self, (runs, bytes): (u64, u64)) {
        self.size.store(bytes + runs * ROW_BYTES, Ordering::Relaxed);
    }

    /// Bytes of what waits, by and large.
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }
}
