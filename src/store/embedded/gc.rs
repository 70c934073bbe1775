//! The collector thread: frees the disk space of deleted runs. The database frees space only while
//! new data arrives. This thread also frees it later, and bounds the size of the folder.
//!
//! The database deletes a file of runs in three steps: the deletes are flushed to files, a
//! compaction finds that no run is left, and the next sealed memtable drops the file.

use super::key;
use super::tables::{SharedTables, Tables};
use crate::limit;
use crate::store::Error;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

/// Runs until `stop` is closed. Doubles the wait after an error, or after a collection that freed
/// nothing.
pub(super) fn serve(stop: &Receiver<()>, shared: &SharedTables) {
    let mut wait = limit::EMBEDDED_GC_INTERVAL_MIN;
    while matches!(stop.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
        let collect = |tables: &Tables| collect_if_needed(tables, shared.stored_bytes());
        let Some(is_useful) = shared.with_open(collect) else {
            continue;
        };
        if let Err(error) = &is_useful {
            tracing::warn!(
                %error,
                "the embedded store could not free the disk space of deleted runs; it will try again"
            );
        }
        wait = if is_useful.unwrap_or(false) {
            limit::EMBEDDED_GC_INTERVAL_MIN
        } else {
            (wait * 2).min(limit::EMBEDDED_GC_INTERVAL_MAX)
        };
    }
}

/// Returns false if a collection was needed and freed nothing.
fn collect_if_needed(tables: &Tables, stored_bytes: u64) -> Result<bool, Error> {
    let used = tables.pool.inner().disk_space();
    if used <= stored_bytes + stored_bytes / 2 + limit::EMBEDDED_SLACK_BYTES {
        return Ok(true);
    }
    collect(tables)?;
    Ok(tables.pool.inner().disk_space() < used)
}

/// Frees the space of all deleted runs.
pub(super) fn collect(tables: &Tables) -> fjall::Result<()> {
    let pool = tables.pool.inner();
    // An empty memtable cannot be sealed.
    pool.insert(key::GC_MARKER, [])?;
    tables.flush_pool()?;
    // The first compaction finds the files without runs, the second one releases them.
    pool.major_compact()?;
    pool.major_compact()?;
    pool.insert(key::GC_MARKER, [])?;
    tables.flush_pool()
}
