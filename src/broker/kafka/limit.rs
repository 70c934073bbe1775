//! Buffers and times of the Kafka adapter. Where librdkafka has such an option, the value is
//! the default, and the `properties` of a cluster may change it.

use crate::limit::{RUN_BYTES_MAX, TRANSACTION_SILENCE_TIMEOUT, TRANSACTIONAL_PRODUCER_TIMEOUT};
use std::time::Duration;

/// Batches queued between a source's thread and its ingress.
pub(crate) const KAFKA_RECORD_QUEUE_BATCHES_MAX: usize = 64;
/// Messages in one read: a millisecond or two of work between two looks at commands.
pub(crate) const KAFKA_READ_MESSAGES_MAX: usize = 4_096;
/// Bytes of a consumed record beside its key, headers and payload. librdkafka requests no more while
/// it holds one record for each kibibyte of its prefetch.
pub(crate) const KAFKA_PREFETCHED_RECORD_BYTES: usize = 1024;
/// A source's thread sleeps at most this long, so it notices a silent broker this late.
pub(crate) const KAFKA_SOURCE_WAKE_INTERVAL: Duration = Duration::from_millis(100);
/// The same for the threads of admin clients and producers.
pub(crate) const KAFKA_CLIENT_WAKE_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of a request: a new controller needs some seconds.
pub(crate) const KAFKA_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a request of a source about its partitions. Short, because all partitions of the request wait
/// for the slowest broker. The route asks again.
pub(crate) const KAFKA_SOURCE_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of a request for a token.
pub(crate) const KAFKA_TOKEN_TIMEOUT: Duration = Duration::from_secs(5);
/// First wait before a failed request for a token is repeated. Also the shortest time between two tokens.
pub(crate) const KAFKA_TOKEN_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Longest wait, so that a wrong secret does not lock an account.
pub(crate) const KAFKA_TOKEN_RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
/// A token that lives longer is renewed as if it lived this long.
pub(crate) const KAFKA_TOKEN_LIFETIME_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Interval at which the clock of the machine is read during the wait for a renewal.
pub(crate) const KAFKA_TOKEN_CLOCK_INTERVAL: Duration = Duration::from_secs(60);
/// Bytes of the answer of an identity provider. Tokens have some kilobytes.
pub(crate) const KAFKA_TOKEN_ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Requests that wait for the admin client's thread; more are refused. Each route has two.
pub(crate) const KAFKA_ADMIN_REQUESTS_MAX: usize = 4_096;
/// Requests about the offsets of groups that are not answered; more are refused. Each route has two.
pub(crate) const KAFKA_GROUP_REQUESTS_MAX: usize = 4_096;
/// A broker that does not answer a question for committed offsets is left for another one after this
/// time.
pub(crate) const KAFKA_GROUP_CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of an offset commit. The broker may still apply it later; repeating it is safe.
pub(crate) const KAFKA_COMMIT_TIMEOUT: Duration = Duration::from_secs(20);
/// Wait before a coordinator that loads its groups, or all brokers, are asked again.
pub(crate) const KAFKA_COORDINATOR_RETRY_DELAY: Duration = Duration::from_millis(100);
/// A partition that could not be read is read again after this time.
pub(crate) const KAFKA_PARTITION_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Interval at which a client that receives nothing probes its brokers.
pub(crate) const KAFKA_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a probe.
pub(crate) const KAFKA_PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// A cluster is unreachable after this time without an answer. A garbage collection is shorter.
pub(crate) const KAFKA_SILENCE_TIMEOUT: Duration = Duration::from_secs(2);
/// `/readyz` reports a silent broker within five seconds: the turn in which it answers last, the
/// silence, a probe that began just before, the next probe, and two timeouts.
const _: () = assert!(
    2 * KAFKA_CLIENT_WAKE_INTERVAL.as_millis()
        + KAFKA_SILENCE_TIMEOUT.as_millis()
        + KAFKA_PROBE_INTERVAL.as_millis()
        + 2 * KAFKA_PROBE_TIMEOUT.as_millis()
        <= 5_000
);
/// Bytes in the queue of one producer: enough for one record of any size.
pub(crate) const KAFKA_PRODUCER_QUEUE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
const _: () = assert!(RUN_BYTES_MAX as u64 * 2 < KAFKA_PRODUCER_QUEUE_BYTES_MAX);
/// Memory that librdkafka takes for one record to send, and for each of its headers, beside the bytes.
pub(crate) const KAFKA_SENT_RECORD_BYTES: usize = 384;
pub(crate) const KAFKA_SENT_HEADER_BYTES: usize = 80;
/// A due record waits this long in a producer for others in its request.
pub(crate) const KAFKA_SEND_LINGER: Duration = Duration::from_millis(1);
/// A producer tries to send a record for this time.
pub(crate) const KAFKA_DELIVERY_TIMEOUT: Duration = Duration::from_secs(300);
/// Topic handles that a producer keeps. Messages may name any number of topics.
pub(crate) const KAFKA_TOPIC_HANDLES_MAX: usize = 1_024;
/// Shortest interval between replacements of a failed producer: each makes threads.
pub(crate) const PRODUCER_REPLACE_INTERVAL: Duration = Duration::from_secs(5);
/// Failed producers that are still closing. If librdkafka hangs, no more are made.
pub(crate) const KAFKA_CLOSING_PRODUCERS_MAX: usize = 4;
/// Timeout for a missing topic: the other messages of the transaction wait with it.
pub(crate) const KAFKA_TRANSACTION_NEW_TOPIC_TIMEOUT: Duration = Duration::from_secs(2);
/// `transaction.timeout.ms`: when the broker itself aborts the transaction of a dead process.
pub(crate) const KAFKA_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(60);
/// A call that begins or ends a transaction blocks for this time; then delivery reports are served.
pub(crate) const KAFKA_TRANSACTION_CALL_TIMEOUT: Duration = Duration::from_millis(100);
/// A producer sends every record alone for this time after a broker refused a batch.
pub(crate) const KAFKA_SINGLE_RECORD_BATCHES_DURATION: Duration = Duration::from_secs(30);
/// Timeout for adding the marker to the transaction; a restarted broker first loads its group
/// offsets. After the timeout the transaction can only be aborted.
pub(crate) const KAFKA_MARKER_TIMEOUT: Duration = Duration::from_secs(25);
/// Interval at which the answer to the marker is polled.
pub(crate) const KAFKA_MARKER_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// A marker without an answer for this time is reported; it hardly ever takes a second.
pub(crate) const KAFKA_MARKER_WARN_AFTER: Duration = Duration::from_secs(15);
/// Checked: a missing topic is reported before silence aborts its transaction.
const _: () =
    assert!(KAFKA_TRANSACTION_NEW_TOPIC_TIMEOUT.as_secs() < TRANSACTION_SILENCE_TIMEOUT.as_secs());
/// Checked: a transaction that waited for reports, and then for its marker, is still open at the
/// broker.
const _: () = assert!(
    TRANSACTION_SILENCE_TIMEOUT.as_secs() + KAFKA_MARKER_TIMEOUT.as_secs()
        < KAFKA_TRANSACTION_TIMEOUT.as_secs()
);
const _: () = assert!(KAFKA_MARKER_TIMEOUT.as_secs() < TRANSACTIONAL_PRODUCER_TIMEOUT.as_secs());
/// Interval at which target partitions are checked for transactions that stay open.
pub(crate) const KAFKA_OPEN_TXN_CHECK_INTERVAL: Duration = Duration::from_secs(30);
