//! The collector thread: frees the disk space of deleted runs. The database frees space only while
//! new data arrives. This thread also frees it later, and bounds the size of the folder.
//!
//! The database deletes a file of runs in three steps: the deletes are flushed to files, a
//! compaction finds that no run is left, and the next sealed memtable drops the file.

use super::data_dir::Tables;
use super::error::explain;
use super::key::Key;
use super::shared_tables::SharedTables;
use crate::limit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Runs until `stop` is closed.
pub(super) fn serve(stop: &Receiver<()>, shared: &Arc<SharedTables>) {
    let mut wait = limit::EMBEDDED_GC_INTERVAL_MIN;
    while matches!(stop.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
        let collected = shared.with(|tables| match tables {
            Some(tables) => collect_if_needed(tables, shared.stored_bytes()),
            None => Ok(None),
        });
        wait = next_wait(wait, collected);
    }
}

/// Doubles the wait after an error, or after a collection that freed nothing.
fn next_wait(wait: Duration, collected: fjall::Result<Option<u64>>) -> Duration {
    match collected {
        Ok(None) => return limit::EMBEDDED_GC_INTERVAL_MIN,
        Ok(Some(freed)) if freed > 0 => return limit::EMBEDDED_GC_INTERVAL_MIN,
        Ok(Some(_)) => {}
        Err(error) => tracing::warn!(
            error = explain(&error),
            "the embedded store could not free the disk space of deleted runs; it will try again"
        ),
    }
    (wait * 2).min(limit::EMBEDDED_GC_INTERVAL_MAX)
}

/// Returns the number of freed bytes. `None`: the folder is small enough.
fn collect_if_needed(tables: &Tables, stored_bytes: u64) -> fjall::Result<Option<u64>> {
    let used = tables.pool.disk_space();
    if used <= stored_bytes + stored_bytes / 2 + limit::EMBEDDED_SLACK_BYTES {
        return Ok(None);
    }
    collect(tables)?;
    Ok(Some(used.saturating_sub(tables.pool.disk_space())))
}

/// Frees the space of all deleted runs.
pub(super) fn collect(tables: &Tables) -> fjall::Result<()> {
    seal_memtable(tables)?;
    // The first compaction finds the files without runs, the second one releases them.
    tables.pool.major_compact()?;
    tables.pool.major_compact()?;
    seal_memtable(tables)
}

/// Writes a row without meaning, because an empty memtable cannot be sealed.
fn seal_memtable(tables: &Tables) -> fjall::Result<()> {
    tables.pool.insert(Key::GcMarker.to_bytes(), [])?;
    tables.flush_pool()
}
