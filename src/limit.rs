//! Every hard bound, with its unit and the reason for its size (I6). What an operator can sensibly choose is an option in `config/`;
//! what nobody could choose well stands here.

use std::time::Duration;

/// Headers on one record, and bytes of them, beyond which a record is refused to the dead letters: a client that needs more than this
/// has a fault, and every reader of the target would pay for it.
pub(crate) const HEADERS_MAX: usize = 1_000;
pub(crate) const HEADER_BYTES_MAX: usize = 256 * 1024;

/// Messages and bytes (before compression) of one batch of one shard; a batch becomes one run a slice.
pub(crate) const BATCH_MESSAGES_MAX: usize = 16_384;
pub(crate) const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Raw bytes of a run beyond which a reader takes its header for corrupt instead of allocating for it: one batch and one record of the
/// greatest size that Kafka clients can be brought to send.
pub(crate) const RUN_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How far a claim may lie past the store's own time: the default of `timer.max_clock_skew`.
pub(crate) const CLOCK_SKEW_MAX: Duration = Duration::from_secs(2);

/// Batches of runs that the tail of a shard remembers; a timer further behind loads the shard again.
pub(crate) const TAIL_RUNS_MAX: usize = 2_000;

/// Runs that one request can ask the store for, however many its limit names.
pub(crate) const ROWS_MAX: usize = 1_000_000;

/// Slices that a list looks into with one pipeline; it stops as soon as no later slice can matter.
pub(crate) const LIST_SLICES_MAX: usize = 32;

/// Cancelled places behind delivered that one advance removes: what is left goes with the next one, and no script runs long for it.
pub(crate) const CANCELLED_DROPS_MAX: usize = 4_096;

/// Shards in one pipeline of scripts, and scripts of appends in one pipeline.
pub(crate) const APPEND_PIPELINE_MAX: usize = 8;
