//! Rules for merging and splitting runs, and the share of the processor that the compactor uses.

use std::time::Duration;

/// Runs of one size that compaction merges into one.
pub(crate) const COMPACT_FAN_IN: usize = 8;
/// Messages from which on a run is efficient and is not merged.
pub(crate) const COMPACT_FULL_RUN_MESSAGES: u64 = 512;
/// A run of several hours is split if it begins within this time.
pub(crate) const COMPACT_SPLIT_STARTS_WITHIN: Duration = Duration::from_secs(3600);
/// A split covers messages that are due within this time.
pub(crate) const COMPACT_SPLIT_DUE_WITHIN: Duration = Duration::from_secs(6 * 3600);
/// Runs due within this time are not compacted: even a late call must store the new runs in time.
pub(crate) const COMPACT_DUE_MARGIN: Duration = Duration::from_secs(120);
/// Runs that begin within this time are urgent: the compactor rests less.
pub(crate) const COMPACT_URGENT_WITHIN: Duration = Duration::from_secs(20 * 60);
/// Messages in one rewrite: some milliseconds of work for the store and the dispatcher.
pub(crate) const COMPACT_MESSAGES_MAX: u64 = 32_768;
/// Runs in one rewrite.
pub(crate) const COMPACT_RUNS_MAX: usize = 256;
/// Bytes of memory at which a rewrite fetches no more runs.
pub(crate) const COMPACT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Run names in one scan of a shard: many more than one rewrite takes.
pub(crate) const COMPACT_SCAN_RUNS_MAX: usize = 1_024;
/// Runs that the compactor fetches with one call.
pub(crate) const COMPACT_FETCH_RUNS_MAX: usize = 16;
/// Runs that the compactor remembers as not worth compacting.
pub(crate) const COMPACT_SKIPPED_RUNS_MAX: usize = 10_000;
/// When the first scan of a shard begins after its lease was acquired.
pub(crate) const COMPACT_FIRST_SCAN_DELAY: Duration = Duration::from_secs(1);
/// Interval of scans after an append, and after a rewrite that the store did not apply.
pub(crate) const COMPACT_SCAN_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of scans while nothing is appended.
pub(crate) const COMPACT_IDLE_SCAN_INTERVAL: Duration = Duration::from_secs(1800);
/// Pause between two steps of a scan while there is work.
pub(crate) const COMPACT_STEP_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which the earliest runs are scanned while there is work on later ones.
pub(crate) const COMPACT_FRONT_SCAN_INTERVAL: Duration = Duration::from_secs(60);
/// The compactor rests for this multiple of its last step: it uses a sixtieth of a core.
pub(crate) const COMPACT_REST_FACTOR: u32 = 60;
/// The same for urgent runs: a fourth of a core.
pub(crate) const COMPACT_URGENT_REST_FACTOR: u32 = 3;
/// Shards queued for the compactor.
pub(crate) const COMPACT_REQUEST_QUEUE_MAX: usize = 64;
/// Finished rewrites queued for the dispatcher.
pub(crate) const COMPACT_RESULT_QUEUE_MAX: usize = 1;
