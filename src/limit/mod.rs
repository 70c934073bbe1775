//! Every hard bound, with its unit and the reason for its size (I6). What an operator can sensibly choose is an option in `config/`;
//! what nobody could choose well stands here.

mod compact;
mod demo;
mod embedded;
mod exactly_once;
mod membership;
mod nats;
mod record;

pub(crate) use compact::*;
pub(crate) use demo::*;
pub(crate) use embedded::*;
pub(crate) use exactly_once::*;
pub(crate) use membership::*;
pub(crate) use nats::*;
pub(crate) use record::*;
use std::time::Duration;

/// Headers on one record, and bytes of them, beyond which a record is refused to the dead letters: a client that needs more than this
/// has a fault, and every reader of the target would pay for it.
pub(crate) const RECORD_HEADERS_MAX: usize = 1_000;
pub(crate) const RECORD_HEADER_BYTES_MAX: usize = 256 * 1024;

/// Messages and bytes (before compression) of one batch of one shard; a batch becomes one run a slice.
pub(crate) const BATCH_MESSAGES_MAX: usize = 16_384;
pub(crate) const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// An hour has a run of its own if a batch has so many messages of it, or if it ends within so long: a run costs some 300 bytes of Redis and ten
/// microseconds, whatever it holds. What is thin beyond that lies together, until the rewriter has gathered enough of it.
pub(crate) const HOUR_RUN_MESSAGES_MIN: usize = 64;
pub(crate) const HOUR_RUN_HORIZON: Duration = Duration::from_secs(2 * 3600);

/// Raw bytes of a run beyond which a reader takes its header for corrupt instead of allocating for it: one batch and one record of the
/// greatest size that Kafka clients can be brought to send.
pub(crate) const RUN_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How far a claim may lie past the store's own time: the default of `timer.max_clock_skew`.
pub(crate) const CLOCK_SKEW_MAX: Duration = Duration::from_secs(2);

/// Batches of runs that the tail of a shard remembers; a timer further behind loads the shard again.
pub(crate) const TAIL_BATCHES_MAX: usize = 2_000;

/// Runs that one request can ask the store for, however many its limit names.
pub(crate) const REQUESTED_RUNS_MAX: usize = 1_000_000;

/// Slices that a list looks into with its first pipeline, and at most; it stops as soon as no later slice can matter.
pub(crate) const LIST_SLICES_PER_CALL: std::ops::RangeInclusive<usize> = 4..=32;

/// Keys that a server looks at in one step of a scan for shards: some hundred microseconds.
pub(crate) const SCAN_KEYS_PER_STEP: usize = 1_000;

/// Shards that a survey asks about with one call, and shards and hours that its report lists: what there is beyond is only in the sums.
pub(crate) const QUERY_SHARDS_PER_CALL_MAX: usize = 500;
pub(crate) const REPORT_SHARDS_MAX: usize = 10_000;
pub(crate) const REPORT_HOURS_MAX: usize = 10_000;

/// Questions to the admin endpoint about what waits that may be under way, and how long one may take.
pub(crate) const ADMIN_QUERIES_MAX: usize = 4;
pub(crate) const ADMIN_QUERY_TIMEOUT: Duration = Duration::from_secs(20);

/// TLS handshakes of the admin endpoint that may be under way, and how long one may take: less than a probe waits.
pub(crate) const ADMIN_HANDSHAKES_MAX: usize = 128;
pub(crate) const ADMIN_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(4);

/// Producers' spans that one span of a batch is linked to: what collectors keep of a span's links.
pub(crate) const SPAN_LINKS_MAX: usize = 128;
/// Spans that wait to be sent, of some 3 KiB each with all its links, and how many go in one request.
pub(crate) const SPANS_QUEUE_MAX: usize = 2_048;
pub(crate) const SPANS_PER_REQUEST_MAX: usize = 512;
/// How long spans wait for company, and a request that was not taken for another try; how often it is tried again, and how long one may take.
pub(crate) const SPANS_LINGER: Duration = Duration::from_secs(1);
pub(crate) const SPANS_RETRIES_MAX: u32 = 2;
pub(crate) const SPANS_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stopping process goes on sending spans; mostly all are sent sooner.
pub(crate) const SPANS_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of an answer of the admin endpoint that a command reads: more than a report of the greatest size.
pub(crate) const ADMIN_RESPONSE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// How long a check waits for each server, and for what waits in the store to be counted.
pub(crate) const CHECK_TIMEOUT: Duration = Duration::from_secs(8);

/// How long a command lets a broker take to confirm its one record, how long it waits for a client to say so, and bytes of a payload that it
/// reads: more than any broker is set to take.
pub(crate) const COMMAND_DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const COMMAND_REPORT_TIMEOUT: Duration = Duration::from_secs(12);
pub(crate) const COMMAND_PAYLOAD_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Cancelled places behind delivered that one advance removes: what is left goes with the next one, and no script runs long for it.
pub(crate) const CANCELLED_REMOVALS_MAX: usize = 4_096;

/// Shards in one pipeline of scripts, and scripts of appends in one pipeline.
pub(crate) const APPENDS_PER_PIPELINE_MAX: usize = 8;

/// How long the first record of a batch waits for company: an eighth of the time that the most urgent of the batch has until it is due, within
/// these bounds. The least is far below what a user would call late; the greatest makes batches of hundreds at a thousand records a second, and a batch costs the store almost the same whatever it holds.
pub(crate) const APPEND_LINGER_MIN: Duration = Duration::from_millis(5);
pub(crate) const APPEND_LINGER_MAX: Duration = Duration::from_millis(500);
pub(crate) const APPEND_LINGER_DIVISOR: u32 = 8;

/// Appends of one shard on their way to the store; more than one only while batches are full.
pub(crate) const SHARD_APPENDS_IN_FLIGHT_MAX: usize = 4;

/// Appends between the ingress loop and its writer.
pub(crate) const APPEND_QUEUE_MAX: usize = 16;

/// Bytes of batches that are not sealed yet, over all shards of an ingress, beyond which it stops reading.
pub(crate) const INGRESS_BUFFER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Waits between repeated calls to a store that does not answer: doubled from the first to the last.
pub(crate) const STORE_RETRY_DELAY_MIN: Duration = Duration::from_millis(20);
pub(crate) const STORE_RETRY_DELAY_MAX: Duration = Duration::from_secs(1);

/// How often offsets are committed while something moves, and an idle ingress looks at its watermarks.
pub(crate) const OFFSET_COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// How far ahead a message may be due to count as due soon: longer than a process takes to start and to get its share of the shards.
pub(crate) const DUE_SOON_WITHIN: Duration = Duration::from_secs(300);

/// After how long all of the state of a shard is looked at though a glance shows it unmoved: runs leave later than `delivered` moves.
pub(crate) const FULL_STATE_INTERVAL: Duration = Duration::from_secs(10);

/// How often offsets are committed though nothing moved: brokers forget the offsets of idle groups after days.
pub(crate) const IDLE_OFFSET_COMMIT_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// How soon a shard that could not be opened, and one that waits for a person, is looked at again.
pub(crate) const SHARD_OPEN_RETRY_DELAY: Duration = Duration::from_millis(500);
pub(crate) const STOPPED_SHARD_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Requests that a loader takes at once, and ticks' requests that may wait for it.
pub(crate) const LOADER_BATCH_MAX: usize = 64;
pub(crate) const LOADER_QUEUE_MAX: usize = 1_024;

/// Replies of decoded runs between loader and dispatcher: each holds at most one fetch.
pub(crate) const LOADER_REPLIES_MAX: usize = 4;

/// Runs, and by their names messages, in one fetch.
pub(crate) const FETCH_RUNS_MAX: usize = 32;
pub(crate) const FETCH_MESSAGES_MAX: u64 = 50_000;

/// Bytes in memory of what one call of the store fetches, as far as they are known before; a run more may be in it.
pub(crate) const FETCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What a run takes in memory at most, unless its last record is larger than what is left of a batch: a batch, and its columns unpacked.
pub(crate) const USUAL_RUN_MEMORY_BYTES: usize = BATCH_BYTES_MAX + BATCH_BYTES_MAX / 4;

/// Names in one list. At the usual size of a run this is millions of messages.
pub(crate) const LIST_RUNS_MAX: usize = 8_192;

/// Runs in one answer of the tail.
pub(crate) const TAIL_REPLY_RUNS_MAX: usize = 128;

/// How far ahead of now a timer loads, and how little may be left before it loads on.
pub(crate) const PREFETCH_AHEAD: Duration = Duration::from_secs(20);
pub(crate) const PREFETCH_AHEAD_MIN: Duration = Duration::from_secs(10);

/// The poll behind the hints: soon after news that nobody told, then slower and slower while nothing happens. What was told is looked for at
/// once only if it is due within so long.
pub(crate) const URGENT_HINT_WITHIN: Duration = Duration::from_secs(1);
pub(crate) const TAIL_POLL_INTERVAL_MIN: Duration = Duration::from_millis(5);
pub(crate) const TAIL_POLL_INTERVAL_MAX: Duration = Duration::from_millis(250);

/// How often a claimer asks which partitions there are.
pub(crate) const PARTITION_DISCOVERY_INTERVAL: Duration = Duration::from_secs(5);

/// Messages in one claim.
pub(crate) const CLAIM_MESSAGES_MAX: usize = 4_096;

/// Messages claimed and not settled, of one shard and over all shards of a timer: what may be delivered twice after a crash, and what one
/// shard's flood may put in front of the others in the client's queues.
pub(crate) const SHARD_IN_FLIGHT_MAX: usize = 16_384;
pub(crate) const TIMER_IN_FLIGHT_MAX: usize = 100_000;

/// Messages in a client's queue, shared by the shards that have any in flight, and what each may have at least: a client sends in order, so what
/// one shard has handed over is what the next message of another waits for. The short queue holds some 30 ms at the speed of two cores. With no
/// more than that a drain took a third longer, so those that have more to hand over have a queue of their own; with 32,768 what lies
/// in it falls out of the processors' caches, and a drain and a burst took a fifth longer.
pub(crate) const FAST_LANE_MESSAGES_MAX: usize = 8_192;
pub(crate) const BULK_LANE_MESSAGES_MAX: usize = 14_336;
pub(crate) const LANE_MESSAGES_PER_SHARD_MIN: usize = 256;

/// Messages of one shard that are handed over in one turn: some 1.5 ms.
pub(crate) const SHARD_SENDS_PER_TICK_MAX: usize = 1_024;

/// How far ahead of now messages are claimed, and how often a shard then claims, unless there is a backlog: a claim costs the store almost the same
/// whatever it holds, and nobody waits for its answer when the message is due. What is claimed can no longer be cancelled.
pub(crate) const CLAIM_AHEAD: Duration = Duration::from_millis(300);
pub(crate) const CLAIM_INTERVAL: Duration = Duration::from_millis(250);

/// Between a claim and the next one of messages that were stored when the cursor had passed them; and between two moments at which messages that
/// have become due are handed over. What comes meanwhile goes together.
pub(crate) const LATE_CLAIM_INTERVAL: Duration = Duration::from_millis(3);

/// A message that is so late is behind: a route's catch-up rate holds for it. More than any claim, load or hand-over takes.
pub(crate) const CATCH_UP_LATENESS_MIN: Duration = Duration::from_secs(1);

/// What is behind is claimed in portions of so long at the route's catch-up rate.
pub(crate) const CATCH_UP_CLAIM_SPAN: Duration = Duration::from_millis(50);
pub(crate) const SEND_INTERVAL: Duration = Duration::from_millis(2);

/// How long delivered messages wait for the next claim to tell the store along with it.
pub(crate) const DELIVERED_WRITE_DELAY: Duration = Duration::from_millis(300);

/// Deletes and ids in one call of advance for one shard: scripts block the server while they run.
pub(crate) const ADVANCE_DELETES_MAX: usize = 512;

/// Waits between repeated sends of a record whose dead-letter target or source does not take it.
pub(crate) const RESEND_DELAY_MIN: Duration = Duration::from_millis(200);
pub(crate) const RESEND_DELAY_MAX: Duration = Duration::from_secs(10);

/// How long a shard that was lost may take to learn what became of its messages in flight before it is taken up again.
pub(crate) const LOST_LEASE_REPORTS_TIMEOUT: Duration = Duration::from_secs(5);

/// Appended-shard hints from the ingresses of this process to its timer.
pub(crate) const HINT_QUEUE_MAX: usize = 1_024;

/// Lease news between claimer and dispatcher.
pub(crate) const LEASE_EVENT_QUEUE_MAX: usize = 64;

/// How long a stopping process may take to finish what is claimed and to store what was read.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(6);

/// How long a stopping ingress waits for an answer of its broker: for its last commit, mostly.
pub(crate) const FINAL_COMMIT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the store may take over the last call of a process that stops: giving leases back, which run out by themselves, and reading
/// what to commit, which costs only reading more after a loss of the store.
pub(crate) const FINAL_STORE_CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the same standing trouble is logged.
pub(crate) const DELIVERY_ALERT_INTERVAL: Duration = Duration::from_secs(10);

/// Targets of one route that do not take their messages and are named in `/readyz`; and how long one stays named past the next attempt that
/// was announced, for that takes a while to come through the source.
pub(crate) const FAILING_TARGETS_SHOWN_MAX: usize = 8;
pub(crate) const FAILING_TARGET_SHOWN_MARGIN: Duration = Duration::from_secs(30);

/// When a process ends that has not drained by then, one loop or the other hangs.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(9_500);

/// How long a shard whose claim was refused, for the worker's clock is ahead, waits before the next: the clock must be set, or time pass.
pub(crate) const CLOCK_AHEAD_PAUSE: Duration = Duration::from_millis(200);

/// How far apart the clocks of a timer and of the broker that stamps its retries may be before a retry looks forged.
pub(crate) const RETRY_CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);

// Kafka: what its adapter holds and waits for. Where librdkafka has an option of that kind it is only the default, which the properties of
// the cluster may change.

/// Batches, and bytes of them, on their way from a source's thread to its caller; what one read brings may be added. Enough that neither
/// waits for the other's turn, and no more of the memory than one shard's batches take.
pub(crate) const KAFKA_RECORD_QUEUE_BATCHES_MAX: usize = 64;
pub(crate) const KAFKA_RECORD_QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What the group did, on its way to a source's caller: a few at most, for a loss takes back a gain that was not told.
pub(crate) const KAFKA_GROUP_EVENT_QUEUE_MAX: usize = 64;

/// Messages of one read: enough that a read costs little beside them, and no more than a millisecond or two of work between two looks at
/// the group and at commands.
pub(crate) const KAFKA_READ_MESSAGES_MAX: usize = 4_096;

/// Bytes at which a batch that is read is closed: a few of them fill a batch of a shard. A record more may be in it.
pub(crate) const KAFKA_BATCH_BYTES_MAX: usize = 1024 * 1024;

/// What librdkafka holds fetched for one source, beside what one answer of a broker, of at most as much, adds to it.
pub(crate) const KAFKA_PREFETCH_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// How long librdkafka ceases to fetch when that is full (its own default, a second, makes a copy five times slower), and how long a broker
/// may hold an answer back for want of records: a partition that is started anew waits for the one that is under way.
pub(crate) const KAFKA_FETCH_BACKOFF: Duration = Duration::from_millis(10);
pub(crate) const KAFKA_FETCH_WAIT_MAX: Duration = Duration::from_millis(100);

/// The largest answer of a broker that is taken: any record that a broker was configured to take can be read.
pub(crate) const KAFKA_RESPONSE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// A member of the group that died is replaced after so long, and says so often that it lives.
pub(crate) const KAFKA_SESSION_TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const KAFKA_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// What the group's member may fetch: nothing is read by it, and this is librdkafka's least.
pub(crate) const KAFKA_GROUP_CONSUMER_QUEUE_BYTES_MAX: u64 = 1024 * 1024;

/// Events of the group's member that are served in one turn, so that a flood of log lines does not keep the thread from its other work.
pub(crate) const KAFKA_GROUP_EVENTS_PER_TURN_MAX: usize = 1_000;

/// How long a source's thread sleeps when nothing wakes it (messages, the group, commands and a caller that took something do), and so how
/// late it may notice that a broker is silent.
pub(crate) const KAFKA_SOURCE_WAKE_INTERVAL: Duration = Duration::from_millis(100);

/// The same of the threads that ask, and of those that serve a producer's reports; questions, reports and the end wake them.
pub(crate) const KAFKA_CLIENT_WAKE_INTERVAL: Duration = Duration::from_millis(500);

/// How often a source tells one refusal: librdkafka says it at every attempt.
pub(crate) const KAFKA_REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(30);

/// How long a commit may take. The broker may still do it later: repeating it is safe.
pub(crate) const KAFKA_COMMIT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long brokers may take to answer one question: a controller that has just changed needs some seconds.
pub(crate) const KAFKA_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Questions that wait for the thread that asks. A caller that was dropped leaves its own behind; more than these are refused.
pub(crate) const KAFKA_ADMIN_REQUESTS_MAX: usize = 16;

/// How soon a question that nobody wants answered any more is given up; one for a group's commits is asked anew after so long, and no
/// sooner looked after.
pub(crate) const KAFKA_ABANDON_CHECK_INTERVAL: Duration = Duration::from_millis(100);
pub(crate) const KAFKA_COMMITTED_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The same of a question for the brokers of a cluster: its answer may be as long as the list of all topics.
pub(crate) const KAFKA_METADATA_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a source looks whether its topics are still the same ones.
pub(crate) const KAFKA_TOPIC_ID_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How often a client that hears nothing asks whether anybody is there, how long it waits for that, and after how long a silence a cluster
/// counts as away: `/readyz` is to tell within five seconds, and a broker that collects garbage is not to be called dead.
pub(crate) const KAFKA_PROBE_INTERVAL: Duration = Duration::from_secs(1);
pub(crate) const KAFKA_PROBE_TIMEOUT: Duration = Duration::from_millis(500);
pub(crate) const KAFKA_SILENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often metadata is asked for, and how old it may be: it is how new partitions, new topics and deleted ones are noticed.
pub(crate) const KAFKA_METADATA_INTERVAL: Duration = Duration::from_secs(5);
pub(crate) const KAFKA_METADATA_AGE_MAX: Duration = Duration::from_secs(15);

/// The longest pause between two attempts to connect: a broker that is back is to be noticed soon.
pub(crate) const KAFKA_RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);

/// Bytes that one producer holds. Far above what a caller's own bound lets through; it must hold one record of any size, or that record
/// could never be sent.
pub(crate) const KAFKA_PRODUCER_QUEUE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// How long a record waits in a producer for others to share its request: of what is due now, and of a flood; and how long it is tried.
pub(crate) const KAFKA_SEND_LINGER: Duration = Duration::from_millis(1);
pub(crate) const KAFKA_BULK_LINGER: Duration = Duration::from_millis(5);
pub(crate) const KAFKA_DELIVERY_TIMEOUT: Duration = Duration::from_secs(300);

/// How long a producer takes a topic that it does not find for one that is just being made.
pub(crate) const KAFKA_NEW_TOPIC_TIMEOUT: Duration = Duration::from_secs(5);
const _: () =
    assert!(KAFKA_TRANSACTION_NEW_TOPIC_TIMEOUT.as_secs() < TRANSACTION_SILENCE_TIMEOUT.as_secs());
const _: () = assert!(TRANSACTION_SILENCE_TIMEOUT.as_secs() < KAFKA_TRANSACTION_TIMEOUT.as_secs());

/// Topics whose handles a producer keeps. Messages may name any number of topics; a handle that is gone is made again.
pub(crate) const KAFKA_TOPIC_HANDLES_MAX: usize = 1_024;

/// How soon after its predecessor a producer that failed for good is replaced: what made it fail may still be there, and each makes threads
/// and connections anew.
pub(crate) const PRODUCER_REPLACE_INTERVAL: Duration = Duration::from_secs(5);

/// Producers that failed and have not ended yet. They end within moments; where librdkafka hangs, no more are made.
pub(crate) const KAFKA_CLOSING_PRODUCERS_MAX: usize = 4;

/// How long a client may take to end before its thread is left behind: enough to leave a group, and to end within a process' last moments.
pub(crate) const CLIENT_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the in-process broker of the demo waits for more members of a new group: there is only one, and somebody waits for the picture.
pub(crate) const KAFKA_MOCK_REBALANCE_DELAY: Duration = Duration::from_millis(50);

/// A ticket numbers the messages of one claim with 16 bits.
const _: () = assert!(CLAIM_MESSAGES_MAX <= u16::MAX as usize);

/// A claim fits into what one shard may have in flight, and several shards into what all may.
const _: () =
    assert!(CLAIM_MESSAGES_MAX <= SHARD_IN_FLIGHT_MAX && SHARD_IN_FLIGHT_MAX < TIMER_IN_FLIGHT_MAX);

/// What is not looked for at once is there well before it is to be claimed.
const _: () = assert!(
    2 * TAIL_POLL_INTERVAL_MAX.as_millis() + CLAIM_AHEAD.as_millis()
        < URGENT_HINT_WITHIN.as_millis()
);

/// A claim is answered well before the first message that the one before it did not hold is due.
const _: () =
    assert!(CLAIM_INTERVAL.as_millis() + LATE_CLAIM_INTERVAL.as_millis() < CLAIM_AHEAD.as_millis());
const _: () = assert!(CLAIM_INTERVAL.as_millis() < DELIVERED_WRITE_DELAY.as_millis());

/// Draining, the store's last call and the end of the brokers' clients come before the process is given up, and that before the ten seconds
/// that a stop is promised to take.
const _: () = assert!(
    DRAIN_TIMEOUT.as_millis()
        + FINAL_STORE_CALL_TIMEOUT.as_millis()
        + CLIENT_CLOSE_TIMEOUT.as_millis()
        < SHUTDOWN_TIMEOUT.as_millis()
        && SHUTDOWN_TIMEOUT.as_millis() < 10_000
);

/// A worker that hands over what it has is done with it well before it would have to give up.
const _: () = assert!(
    MEMBERSHIP_INTERVAL.as_millis()
        + SHUTDOWN_ANNOUNCE_MARGIN.as_millis()
        + HANDOVER_TIMEOUT.as_millis()
        < SHUTDOWN_HANDOVER_TIMEOUT.as_millis()
);
const _: () = assert!(
    SHUTDOWN_HANDOVER_TIMEOUT.as_millis() + 2 * HANDOVER_TIMEOUT.as_millis()
        < DRAIN_TIMEOUT.as_millis()
);

/// What is claimed of a shard is due, and handed over, well before a shard that is to be handed over would go on.
const _: () = assert!(2 * CLAIM_AHEAD.as_millis() < HANDOVER_TIMEOUT.as_millis());

/// The same where a broker is away: an answer that was under way, the last commit, and the end of the client.
const _: () = assert!(
    2 * FINAL_COMMIT_TIMEOUT.as_millis() + CLIENT_CLOSE_TIMEOUT.as_millis()
        < SHUTDOWN_TIMEOUT.as_millis()
);

/// A broker that falls silent is noticed within five seconds: the turn in which it is heard last; the silence; a probe that began just before
/// its end, so that the next begins an interval and a turn later; and two questions.
const _: () = assert!(
    2 * KAFKA_CLIENT_WAKE_INTERVAL.as_millis()
        + KAFKA_SILENCE_TIMEOUT.as_millis()
        + KAFKA_PROBE_INTERVAL.as_millis()
        + 2 * KAFKA_PROBE_TIMEOUT.as_millis()
        <= 5_000
);

/// A record that is taken over fits into what a producer holds.
const _: () = assert!(RUN_BYTES_MAX as u64 * 2 < KAFKA_PRODUCER_QUEUE_BYTES_MAX);
