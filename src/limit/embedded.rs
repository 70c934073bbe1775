//! Sizes of the embedded store: memory, files, and work for one commit.

use std::time::Duration;

/// Calls that wait for the store's thread, and calls in one commit: each loop of the process makes
/// one or two.
pub(crate) const EMBEDDED_QUEUED_CALLS_MAX: usize = 64;
/// A commit takes no further call from this size on, so that its callers and the memory do not wait
/// for a huge one. One call may be larger.
pub(crate) const EMBEDDED_COMMIT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of small rows in memory before they are written; three times as much during the write. A
/// small memory budget lowers this and the next two sizes.
pub(crate) const EMBEDDED_INDEX_MEMTABLE_BYTES: u64 = 8 * 1024 * 1024;
/// Bytes of runs in memory before they are written to a file. Larger files are freed later after
/// delivery, and make a restart read more of the journal.
pub(crate) const EMBEDDED_RUNS_MEMTABLE_BYTES: u64 = 32 * 1024 * 1024;
/// Bytes of file blocks that stay in memory after a read.
pub(crate) const EMBEDDED_CACHE_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes of journals at which the oldest is written to files; the least that fjall accepts.
pub(crate) const EMBEDDED_JOURNAL_BYTES: u64 = 64 * 1024 * 1024;
/// A run of this many bytes is stored apart from its key. Below, the indirection costs more.
pub(crate) const EMBEDDED_SEPARATE_BLOB_BYTES_MIN: u32 = 1024;
/// Bytes of one file of runs. Small files free space sooner: with their last run.
pub(crate) const EMBEDDED_BLOB_FILE_BYTES: u64 = 4 * 1024 * 1024;
/// Fraction of a file's runs that must be deleted before the rest is written again. A higher
/// fraction could exceed [`EMBEDDED_SLACK_BYTES`] without any file reaching it.
pub(crate) const EMBEDDED_STALE_FRACTION_MAX: f32 = 0.33;
/// Bytes beyond 1.5 times the waiting messages at which the store frees deleted data.
pub(crate) const EMBEDDED_SLACK_BYTES: u64 = 64 * 1024 * 1024;
/// Interval between two checks of the store's size.
pub(crate) const EMBEDDED_GC_INTERVAL_MIN: Duration = Duration::from_secs(5);
/// Longest interval between two checks of the store's size: it doubles while a check frees nothing.
pub(crate) const EMBEDDED_GC_INTERVAL_MAX: Duration = Duration::from_secs(600);
/// Bytes of the disk that stay free, so that delivery continues when appends stop.
pub(crate) const EMBEDDED_DISK_RESERVE_BYTES: u64 = 256 * 1024 * 1024;
/// Rows of an erased shard that one commit deletes; other calls run between two of them.
pub(crate) const EMBEDDED_ERASED_ROWS_PER_COMMIT_MAX: usize = 10_000;
