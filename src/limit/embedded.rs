//! Limits of the embedded store.

use std::time::Duration;

/// Calls that wait for a thread of the embedded store: each loop of a process has at most one or two under way.
pub(crate) const EMBEDDED_QUEUED_CALLS_MAX: usize = 64;

/// Bytes of calls that are written with one commit: what came first waits for the rest of it.
pub(crate) const EMBEDDED_COMMIT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes that the embedded store holds in memory before it writes them to files, of small rows and of runs; while they are written, up to
/// three times as much. Files of more runs would be freed more nearly as they are delivered, and a restart would read more of the journal.
pub(crate) const EMBEDDED_INDEX_MEMTABLE_BYTES: u64 = 8 * 1024 * 1024;
pub(crate) const EMBEDDED_RUNS_MEMTABLE_BYTES: u64 = 32 * 1024 * 1024;

/// Bytes of the embedded store's files that are kept in memory once read.
pub(crate) const EMBEDDED_CACHE_BYTES: u64 = 16 * 1024 * 1024;

/// Bytes of journals from which on the embedded store writes to files what keeps the oldest; the least that it can be told.
pub(crate) const EMBEDDED_JOURNAL_BYTES: u64 = 64 * 1024 * 1024;

/// Runs of fewer bytes stay with their keys: apart they would cost more than they save.
pub(crate) const EMBEDDED_SEPARATE_BLOB_BYTES_MIN: u32 = 1024;

/// Bytes of a file of runs. It is deleted with its last run, and holds runs of about the same due: the smaller, the sooner.
pub(crate) const EMBEDDED_BLOB_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// The part of a file's runs that is gone when the rest of it is written anew. Were it more than a third, files that each are just below it
/// could together take more than `EMBEDDED_SLACK` allows.
pub(crate) const EMBEDDED_STALE_FRACTION_MAX: f32 = 0.33;

/// What the embedded store may take beside what waits before it frees what is gone: half as much again, and so many bytes.
pub(crate) const EMBEDDED_SLACK_BYTES: u64 = 64 * 1024 * 1024;

/// How often the embedded store looks whether it takes more than it may; after a look that freed nothing twice as long, up to this.
pub(crate) const EMBEDDED_GC_INTERVAL_MIN: Duration = Duration::from_secs(5);
pub(crate) const EMBEDDED_GC_INTERVAL_MAX: Duration = Duration::from_secs(600);

/// Bytes of a disk that the embedded store leaves free: journals, what is in memory, and files that are written anew before the old ones
/// are deleted, so that what waits is still delivered.
pub(crate) const EMBEDDED_DISK_RESERVE_BYTES: u64 = 256 * 1024 * 1024;

/// Rows of an erased shard that are deleted with one commit, between other calls.
pub(crate) const EMBEDDED_ERASED_ROWS_PER_COMMIT_MAX: usize = 10_000;

/// Cancelled places behind delivered that one advance of the embedded store removes. No script runs there, but a look at all of them.
pub(crate) const EMBEDDED_CANCELLED_REMOVALS_MAX: usize = 65_536;
