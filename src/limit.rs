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

/// Keys that a server looks at in one step of a scan for shards: some hundred microseconds.
pub(crate) const SCAN_ROWS: usize = 1_000;

/// Cancelled places behind delivered that one advance removes: what is left goes with the next one, and no script runs long for it.
pub(crate) const CANCELLED_DROPS_MAX: usize = 4_096;

/// Shards in one pipeline of scripts, and scripts of appends in one pipeline.
pub(crate) const APPEND_PIPELINE_MAX: usize = 8;

/// How long the first record of a batch waits for company. Far below what a user would call late, and enough to make batches at any rate
/// that costs anything.
pub(crate) const LINGER: Duration = Duration::from_millis(5);

/// Appends of one shard on their way to the store; more than one only while batches are full.
pub(crate) const APPENDS_IN_FLIGHT_MAX: usize = 4;

/// Appends between the ingress loop and its writer.
pub(crate) const WRITER_QUEUE_MAX: usize = 16;

/// Bytes of batches that are not sealed yet, over all shards of an ingress, beyond which it stops reading.
pub(crate) const INTAKE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Waits between repeated calls to a store that does not answer: doubled from the first to the last.
pub(crate) const STORE_RETRY_MIN: Duration = Duration::from_millis(20);
pub(crate) const STORE_RETRY_MAX: Duration = Duration::from_secs(1);

/// How often offsets are committed while something moves, and an idle ingress looks at its watermarks.
pub(crate) const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// How often offsets are committed though nothing moved: brokers forget the offsets of idle groups after days.
pub(crate) const COMMIT_REFRESH: Duration = Duration::from_secs(24 * 3600);

/// How soon a shard that could not be opened, and one that waits for a person, is looked at again.
pub(crate) const OPEN_RETRY: Duration = Duration::from_millis(500);
pub(crate) const STOPPED_RETRY: Duration = Duration::from_secs(10);

/// Requests that a loader takes at once, and that may wait for it.
pub(crate) const LOADER_REQUESTS_MAX: usize = 64;
pub(crate) const LOADER_QUEUE_MAX: usize = 1_024;

/// Replies of decoded runs between loader and dispatcher: each holds at most one fetch.
pub(crate) const REPLIES_MAX: usize = 4;

/// Runs, and by their names messages, in one fetch.
pub(crate) const FETCH_RUNS_MAX: usize = 32;
pub(crate) const FETCH_MESSAGES_MAX: u64 = 50_000;

/// Names in one list. At the usual size of a run this is millions of messages.
pub(crate) const LIST_MAX: usize = 8_192;

/// Runs in one answer of the tail.
pub(crate) const TAIL_LIMIT: usize = 128;

/// How far ahead of now a timer loads, and how little may be left before it loads on.
pub(crate) const LOOKAHEAD: Duration = Duration::from_secs(20);
pub(crate) const LOOKAHEAD_LEAST: Duration = Duration::from_secs(10);

/// The poll behind the hints: at once after news, then slower and slower while nothing happens.
pub(crate) const POLL_MIN: Duration = Duration::from_millis(5);
pub(crate) const POLL_MAX: Duration = Duration::from_millis(250);

/// How often a claimer asks which partitions there are.
pub(crate) const CATALOG_INTERVAL: Duration = Duration::from_secs(5);

/// Messages in one claim.
pub(crate) const CLAIM_MAX: usize = 4_096;

/// Messages claimed and not settled, of one shard and over all shards of a timer: what may be delivered twice after a crash, and what one
/// shard's flood may put in front of the others in the client's queues.
pub(crate) const IN_FLIGHT_SHARD_MAX: usize = 16_384;
pub(crate) const IN_FLIGHT_MAX: usize = 100_000;

/// How long delivered messages wait for the next claim to tell the store along with it.
pub(crate) const TELL_AFTER: Duration = Duration::from_millis(50);

/// Deletes and ids in one call of advance for one shard: scripts block the server while they run.
pub(crate) const DELETES_MAX: usize = 512;

/// Waits between repeated sends of a record whose dead-letter target or source does not take it.
pub(crate) const RESEND_MIN: Duration = Duration::from_millis(200);
pub(crate) const RESEND_MAX: Duration = Duration::from_secs(10);

/// How long a shard that was lost may take to learn what became of its messages in flight before it is taken up again.
pub(crate) const LEAVE_MAX: Duration = Duration::from_secs(5);

/// Appended-shard hints from the ingresses of this process to its timer.
pub(crate) const HINTS_MAX: usize = 1_024;

/// Lease news between claimer and dispatcher.
pub(crate) const HOLDINGS_MAX: usize = 64;

/// How long a stopping process may take to finish what is claimed and to store what was read.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(8);

/// How long the store may take over the last call of a process that stops: giving leases back, which run out by themselves, and reading
/// what to commit, which costs only reading more after a loss of the store.
pub(crate) const LAST_CALL_MAX: Duration = Duration::from_secs(1);

/// How often the same standing trouble is logged.
pub(crate) const OUTCRY_INTERVAL: Duration = Duration::from_secs(10);

/// When a process ends that has not drained by then, one loop or the other hangs.
pub(crate) const STOP_MAX: Duration = Duration::from_millis(9_500);

/// How long a shard whose claim was refused, for the worker's clock is ahead, waits before the next: the clock must be set, or time pass.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// How far apart the clocks of a timer and of the broker that stamps its retries may be before a retry looks forged.
pub(crate) const RETRY_SLACK: Duration = Duration::from_secs(60);

/// A ticket numbers the messages of one claim with 16 bits.
const _: () = assert!(CLAIM_MAX <= u16::MAX as usize);

/// A claim fits into what one shard may have in flight, and several shards into what all may.
const _: () = assert!(CLAIM_MAX <= IN_FLIGHT_SHARD_MAX && IN_FLIGHT_SHARD_MAX < IN_FLIGHT_MAX);

/// Draining ends before the process is given up, and that before the ten seconds that a stop is promised to take.
const _: () = assert!(DRAIN_MAX.as_millis() + LAST_CALL_MAX.as_millis() < STOP_MAX.as_millis() && STOP_MAX.as_millis() < 10_000);

/// A batch is far below what a reader takes for corrupt.
const _: () = assert!(2 * BATCH_BYTES_MAX < RUN_BYTES_MAX);
