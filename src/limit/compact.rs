//! Limits of the rewriter, which works on the outer levels.

use std::time::Duration;

/// How the rewriter makes runs: so many of one size become one; one of so many messages costs no more than what is in it; far runs that begin
/// within an hour are taken apart, up to what is due in six.
pub(crate) const COMPACT_FAN_IN: usize = 8;
pub(crate) const COMPACT_FULL_RUN_MESSAGES: u64 = 512;
pub(crate) const COMPACT_SPLIT_STARTS_WITHIN: Duration = Duration::from_secs(3600);
pub(crate) const COMPACT_SPLIT_DUE_WITHIN: Duration = Duration::from_secs(6 * 3600);

/// What is due within so long is left alone: the runs that are written must be in their place before any of them is loaded, also where the
/// store's answer is lost and it does the work some seconds later.
pub(crate) const COMPACT_DUE_MARGIN: Duration = Duration::from_secs(120);

/// What begins within so long is urgent: the rewriter rests less over it.
pub(crate) const COMPACT_URGENT_WITHIN: Duration = Duration::from_secs(20 * 60);

/// Messages, runs, and bytes in memory (at which no more runs are fetched) of one rewrite: store and dispatcher are busy with it for some
/// milliseconds. Two full batches of messages of 256 B fit: days made of one are thinner than [`COMPACT_FULL_RUN_MESSAGES`], and made anew.
pub(crate) const COMPACT_MESSAGES_MAX: u64 = 32_768;
pub(crate) const COMPACT_RUNS_MAX: usize = 256;
pub(crate) const COMPACT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Names of runs in one look at a shard, which costs as much as it reads: many more than one rewrite can have.
pub(crate) const COMPACT_SCAN_RUNS_MAX: usize = 1_024;

/// Runs that the rewriter fetches with one call, and runs that it remembers to leave alone.
pub(crate) const COMPACT_FETCH_RUNS_MAX: usize = 16;
pub(crate) const COMPACT_SKIPPED_RUNS_MAX: usize = 10_000;

/// When a shard's runs are looked at first after its lease was taken; how often then if something was appended, or the store did not do what
/// it was told, and if nothing was appended; and between two looks while there is work.
pub(crate) const COMPACT_FIRST_SCAN_DELAY: Duration = Duration::from_secs(1);
pub(crate) const COMPACT_SCAN_INTERVAL: Duration = Duration::from_secs(10);
pub(crate) const COMPACT_IDLE_SCAN_INTERVAL: Duration = Duration::from_secs(1800);
pub(crate) const COMPACT_STEP_PAUSE: Duration = Duration::from_millis(100);

/// How often the beginning of the list of a shard's runs, where what comes soon is, is looked at while there is work further on.
pub(crate) const COMPACT_FRONT_SCAN_INTERVAL: Duration = Duration::from_secs(60);

/// How many times as long as it took to look at a shard the rewriter rests then: it takes a sixtieth of a core, of the service and its store
/// together, however much there is to do; of what is urgent a fourth.
pub(crate) const COMPACT_REST_FACTOR: u32 = 60;
pub(crate) const COMPACT_URGENT_REST_FACTOR: u32 = 3;

/// Shards that wait for the rewriter, and rewrites that wait for the dispatcher.
pub(crate) const COMPACT_REQUEST_QUEUE_MAX: usize = 64;
pub(crate) const COMPACT_RESULT_QUEUE_MAX: usize = 1;
