//! Rules for merging and splitting runs, and the share of the processor that the compactor uses.

use std::time::Duration;

/// Runs in one rewrite.
pub(crate) const COMPACT_RUNS_MAX: usize = 256;
/// Bytes of memory at which a rewrite fetches no more runs.
pub(crate) const COMPACT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Ids that one rewrite renames, unless its first run has more: 2,000 are some milliseconds of the Redis server,
/// which a script blocks.
pub(crate) const COMPACT_IDS_MAX: usize = 2_000;
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
/// Replies of the compactor queued for the dispatcher.
pub(crate) const COMPACT_RESULT_QUEUE_MAX: usize = 1;
