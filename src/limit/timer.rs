//! Loading, claiming, sending and retrying in a timer.

use super::BATCH_BYTES_MAX;
use std::time::Duration;

/// Requests that the loader handles in one batch.
pub(crate) const LOADER_BATCH_MAX: usize = 64;
/// Requests queued for the loader.
pub(crate) const LOADER_QUEUE_MAX: usize = 1_024;
/// Replies queued between loader and dispatcher; each holds at most one fetch.
pub(crate) const LOADER_REPLIES_MAX: usize = 4;
/// Runs in one fetch.
pub(crate) const FETCH_RUNS_MAX: usize = 32;
/// Bytes of memory for the runs of one fetch, as far as known in advance; one run may exceed it. Also
/// at most a sixteenth of the memory for loaded messages.
pub(crate) const FETCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of memory of a decoded run, unless its last record is very large.
pub(crate) const USUAL_RUN_MEMORY_BYTES: usize = BATCH_BYTES_MAX + BATCH_BYTES_MAX / 4;
/// Run names in one list: millions of messages at the usual size of a run.
pub(crate) const LIST_RUNS_MAX: usize = 8_192;
/// Runs in one reply of a tail poll.
pub(crate) const TAIL_REPLY_RUNS_MAX: usize = 128;
/// Runs of a tail that are fetched first: their sizes are not known.
pub(crate) const TAIL_FIRST_FETCH_RUNS_MAX: usize = 8;
/// A timer prefetches messages that are due within this time.
pub(crate) const PREFETCH_AHEAD: Duration = Duration::from_secs(20);
/// A timer prefetches again when less than this is loaded ahead of now.
pub(crate) const PREFETCH_AHEAD_MIN: Duration = Duration::from_secs(10);
/// A hint triggers a poll at once only if one of its messages is due within this time.
pub(crate) const URGENT_HINT_WITHIN: Duration = Duration::from_secs(1);
/// Interval of tail polls without a hint.
pub(crate) const TAIL_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Messages in one claim. A delivery ticket numbers them with 16 bits.
pub(crate) const CLAIM_MESSAGES_MAX: usize = 4_096;
const _: () = assert!(CLAIM_MESSAGES_MAX <= u16::MAX as usize);
/// Unacknowledged claimed messages of one shard: the duplicates that a crash may cause.
pub(crate) const SHARD_IN_FLIGHT_MAX: usize = 16_384;
/// Claimed messages of all shards of a timer that are not acknowledged.
pub(crate) const TIMER_IN_FLIGHT_MAX: usize = 100_000;
/// A claim fits into the limit of one shard, and several shards fit into the limit of all.
const _: () =
    assert!(CLAIM_MESSAGES_MAX <= SHARD_IN_FLIGHT_MAX && SHARD_IN_FLIGHT_MAX < TIMER_IN_FLIGHT_MAX);
/// Messages in the producer queue of shards with few messages: some 30 ms of sending.
pub(crate) const FAST_LANE_MESSAGES_MAX: usize = 8_192;
/// Messages in the producer queue of shards with many messages. With fewer a drain is slower; with
/// many more the queue no longer fits into the processor's caches (benchmarks `drain` and `burst`).
pub(crate) const BULK_LANE_MESSAGES_MAX: usize = 14_336;
/// Messages that each shard may have in a producer queue, however many shards share it.
pub(crate) const LANE_MESSAGES_PER_SHARD_MIN: usize = 256;
/// Messages of one shard that are sent in one tick: some 1.5 ms.
pub(crate) const SHARD_SENDS_PER_TICK_MAX: usize = 1_024;
/// A message is claimed this long before its due time, and can then no longer be cancelled.
pub(crate) const CLAIM_AHEAD: Duration = Duration::from_millis(300);
/// Interval of claims of a shard without a backlog: a claim of many messages costs little more.
pub(crate) const CLAIM_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of claims for messages that were stored after the cursor had passed their due time.
pub(crate) const LATE_CLAIM_INTERVAL: Duration = Duration::from_millis(3);
/// Interval at which due messages are sent; messages that become due in between are sent together.
pub(crate) const SEND_INTERVAL: Duration = Duration::from_millis(2);
/// Longest wait of acknowledged messages for the next claim, which records them.
pub(crate) const DELIVERED_WRITE_DELAY: Duration = Duration::from_millis(300);
/// The tail poll finds a message without an urgent hint well before its claim.
const _: () = assert!(
    2 * TAIL_POLL_INTERVAL.as_millis() + CLAIM_AHEAD.as_millis() < URGENT_HINT_WITHIN.as_millis()
);
/// The next claim is answered before the first message after the last claim is due.
const _: () =
    assert!(CLAIM_INTERVAL.as_millis() + LATE_CLAIM_INTERVAL.as_millis() < CLAIM_AHEAD.as_millis());
const _: () = assert!(CLAIM_INTERVAL.as_millis() < DELIVERED_WRITE_DELAY.as_millis());
/// Lateness from which on the catch-up rate applies. No claim, load or send takes so long.
pub(crate) const CATCH_UP_LATENESS_MIN: Duration = Duration::from_secs(1);
/// A worker may send at once what a rate allows it in this time. With `rate`, messages are claimed no
/// longer before their due times.
pub(crate) const RATE_BURST_SPAN: Duration = Duration::from_millis(100);
/// The least burst of a worker, in messages: one late message, and one that is due now.
pub(crate) const RATE_BURST_MIN: f64 = 2.0;
/// Shortest wait of a shard before it asks again for its part of a rate. It covers rounding.
pub(crate) const RATE_ASK_INTERVAL_MIN: Duration = Duration::from_millis(1);
/// Longest wait of a shard before it asks again for its part of a rate. The rate may have changed.
pub(crate) const RATE_ASK_INTERVAL_MAX: Duration = Duration::from_millis(250);
/// If a rate is not seen to hold a shard back for this time, something else did. It is longer than the
/// interval of asking, and than a claim.
pub(crate) const RATE_HOLD_GAP_MAX: Duration = Duration::from_millis(500);
const _: () = assert!(RATE_ASK_INTERVAL_MAX.as_millis() < RATE_HOLD_GAP_MAX.as_millis());
/// A shard of a route with a rate loads no more than the route may send in this time, unless it has memory
/// of its own. A load takes much less.
pub(crate) const RATE_LOADED_AHEAD: Duration = Duration::from_secs(5);
/// First wait before a record is sent again to a dead-letter target or source that failed. Also the
/// wait before a condition is checked again whose change sends no event.
pub(crate) const RESEND_DELAY_MIN: Duration = Duration::from_millis(200);
/// Longest wait before a record is sent again to a dead-letter target or source that failed.
pub(crate) const RESEND_DELAY_MAX: Duration = Duration::from_secs(10);
/// Longest time from the claim of a cancelled message until it is passed without the answer of its
/// cancel. The answer is in the store already, so it is usually claimed at the same moment. A stop waits
/// this long, too.
pub(crate) const ANSWER_WAIT_MAX: Duration = Duration::from_secs(3);
/// Outcome records that wait in the queue of a process. Its clients hold as many that are not acknowledged.
pub(crate) const OUTCOME_RECORDS_MAX: usize = 65_536;
/// Memory of one of them, if topics and ids have usual lengths. A process with less memory keeps fewer records, so that
/// their bytes are not what stops the records of other routes.
pub(crate) const OUTCOME_RECORD_BYTES: usize = 1_024;
/// Outcome records that are sent before the next look at reports.
pub(crate) const OUTCOME_RECORDS_PER_TURN: usize = 1_024;
/// A process that stops waits this long for the acknowledgements of its last outcome records.
pub(crate) const OUTCOME_RECORDS_FINISH_TIMEOUT: Duration = Duration::from_millis(500);
/// A retry or a reschedule looks forged if the clocks of timer, broker and producer differ by more
/// than this.
pub(crate) const RETRY_CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);
/// Interval at which the same delivery problem is logged again.
pub(crate) const DELIVERY_ALERT_INTERVAL: Duration = Duration::from_secs(10);
/// Failing targets of one route that `/readyz` names.
pub(crate) const FAILING_TARGETS_SHOWN_MAX: usize = 8;
/// `/readyz` names a failing target for this time after its next announced attempt.
pub(crate) const FAILING_TARGET_SHOWN_MARGIN: Duration = Duration::from_secs(30);
/// An occurrence that is later than this when it is taken counts as missed. A restart or a takeover
/// takes less.
pub(crate) const MISSED_AFTER: Duration = Duration::from_secs(60);
/// Occurrences that are computed in one step. They take about 10 ms.
pub(crate) const OCCURRENCES_EXPANDED_MAX: usize = 10_000;
/// Interval at which partitions of definitions that could not be described are tried again.
pub(crate) const DEFINITION_READ_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Batches of definitions that wait for the dispatcher. The reader holds one more.
pub(crate) const DEFINITION_QUEUE_MAX: usize = 1;
/// Memory of a definition beside its template.
pub(crate) const DEFINITION_OVERHEAD_BYTES: usize = 640;
