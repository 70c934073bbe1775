//! The thread that frees the disk of what was delivered. The database frees it by itself while new data comes; this sees to it that it is
//! freed, too, when no more comes, and that the folder never takes much more than what waits.
//!
//! A file of runs is deleted when the deletes of its runs have met the runs themselves, in files, and when a memtable was sealed after that:
//! hence the steps of [`sweep`], and a row that is there only to be written.

use super::data_dir::Tables;
use super::error::explain;
use super::key::Key;
use super::shared_tables::SharedTables;
use crate::limit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

/// Serves until `stop` is closed.
pub(super) fn serve(stop: &Receiver<()>, shared: &Arc<SharedTables>) {
    let mut wait = limit::EMBEDDED_GC_INTERVAL_MIN;
    while matches!(stop.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
        wait = match shared
            .with_rows(|rows| rows.map_or(Ok(None), |rows| collect_if_needed(rows, shared.size())))
        {
            Ok(freed) if freed.is_none_or(|freed| freed > 0) => limit::EMBEDDED_GC_INTERVAL_MIN,
            Ok(_) => (wait * 2).min(limit::EMBEDDED_GC_INTERVAL_MAX),
            Err(error) => {
                tracing::warn!(
                    error = explain(&error),
                    "the embedded store could not free what was delivered"
                );
                (wait * 2).min(limit::EMBEDDED_GC_INTERVAL_MAX)
            }
        };
    }
}

/// Answers how many bytes were freed; `None`: the folder takes no more than it may.
fn collect_if_needed(rows: &Tables, size: u64) -> fjall::Result<Option<u64>> {
    let taken = rows.pool.disk_space();
    if taken <= size + size / 2 + limit::EMBEDDED_SLACK_BYTES {
        return Ok(None);
    }
    collect(rows)?;
    Ok(Some(taken.saturating_sub(rows.pool.disk_space())))
}

/// Frees all that is gone.
pub(super) fn collect(rows: &Tables) -> fjall::Result<()> {
    touch(rows)?;
    // The first finds out what is gone, the second lets go of it.
    rows.pool.major_compact()?;
    rows.pool.major_compact()?;
    touch(rows)
}

fn touch(rows: &Tables) -> fjall::Result<()> {
    rows.pool.insert(Key::GcMarker.to_bytes(), [])?;
    rows.flush_pool()
}
