//! Sizes of store calls, and the waits between repeated calls.

use std::time::Duration;

/// Difference of two clocks that is tolerated; the default of `timer.max_clock_skew`.
pub(crate) const CLOCK_SKEW_MAX: Duration = Duration::from_secs(2);
/// A process follows a smaller step forward of its machine's clock at once.
pub(crate) const CLOCK_STEP_MIN: Duration = Duration::from_secs(1);
/// A process follows a larger step forward after it has lasted for this time. A wrong reading of a
/// hardware clock or a time server is corrected within seconds. A real correction is late by this
/// time.
pub(crate) const CLOCK_STEP_HOLD: Duration = Duration::from_secs(30);
/// Claims stay below the store's limit for the clock skew by this fraction of it: the estimate of
/// the store's time drifts between two renewals.
pub(crate) const CLOCK_SKEW_MARGIN_FRACTION: u32 = 20;
/// Runs that the tail of a shard holds. A timer further behind loads the shard again.
pub(crate) const TAIL_RUNS_MAX: usize = 2_000;
/// Runs that one request may ask for; larger limits are cut to this.
pub(crate) const REQUESTED_RUNS_MAX: usize = 1_000_000;
/// Keys in one `SCAN` step: some hundred microseconds of the Redis server.
pub(crate) const SCAN_KEYS_PER_STEP: usize = 1_000;
/// Ids in one step of a scan: about half a millisecond of the Redis server.
pub(crate) const IDS_PER_STEP: usize = 1_000;
/// Runs that one advance deletes, and message ids that it carries. A script blocks Redis.
pub(crate) const ADVANCE_DELETES_MAX: usize = 512;
/// Cancelled positions that one advance on Redis removes; the next advance removes the rest. A
/// script blocks Redis.
pub(crate) const CANCELLED_REMOVALS_MAX: usize = 4_096;
/// Names of runs in memory while a shard is copied to another store: about a megabyte.
pub(crate) const COPY_RUNS_PER_LIST: usize = 10_000;
/// Runs that a copy fetches together. Each has up to 4 MiB.
pub(crate) const COPY_RUNS_PER_FETCH: usize = 8;
/// A copy writes no further run in the same call from this size on. A script blocks Redis.
pub(crate) const COPY_BYTES_PER_CALL: usize = 1024 * 1024;
/// Appends in one call of the appender, and in one Redis pipeline.
pub(crate) const APPENDS_PER_PIPELINE_MAX: usize = 8;
/// Lists in one Redis pipeline. Each may read some 10,000 names.
pub(crate) const LISTS_PER_PIPELINE_MAX: usize = 8;
/// First wait before a call to an unreachable store is repeated. It doubles.
pub(crate) const STORE_RETRY_DELAY_MIN: Duration = Duration::from_millis(20);
/// Longest wait before a call to an unreachable store is repeated.
pub(crate) const STORE_RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
/// A subscription to hints is renewed after this time, in case that it broke silently.
pub(crate) const HINTS_RESUBSCRIBE_INTERVAL: Duration = Duration::from_secs(300);

/// For a reply of a store server, and for a new connection. The longest script takes milliseconds,
/// but a fork or a slow disk can delay a server longer.
pub(crate) const STORE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// For an answer of a sentinel, and for the first answer of the server that the sentinels name. A
/// frozen primary costs a look-up this time, and a failover takes longer.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a subscription to hints looks whether another node of the cluster serves its channel.
pub(crate) const CLUSTER_SWITCH_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Cancelled and rescheduled places of a shard that a search looks at, to find the first rescheduled one.
pub(crate) const CHANGED_PLACES_READ_MAX: usize = 1_000;
