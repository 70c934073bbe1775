//! Buffers and times of the Kafka adapter. Where librdkafka has such an option, the value is
//! the default, and the `properties` of a cluster may change it.

use super::{PARTITION_DISCOVERY_INTERVAL, RUN_BYTES_MAX};
use std::time::Duration;

/// Batches queued between a source's thread and its ingress.
pub(crate) const KAFKA_RECORD_QUEUE_BATCHES_MAX: usize = 64;

/// Bytes queued between a source's thread and its ingress; one read may exceed it.
pub(crate) const KAFKA_RECORD_QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Group events queued for a source's ingress. A lost partition cancels its queued assignment, so
/// there are few.
pub(crate) const KAFKA_GROUP_EVENT_QUEUE_MAX: usize = 64;

/// Messages in one read: a millisecond or two of work between two looks at group and commands.
pub(crate) const KAFKA_READ_MESSAGES_MAX: usize = 4_096;

/// Bytes that librdkafka prefetches for one source, beside one response of at most as much.
pub(crate) const KAFKA_PREFETCH_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Librdkafka stops fetching for this time when its queue is full. Its own default, a second, makes
/// reading a backlog five times slower.
pub(crate) const KAFKA_FETCH_BACKOFF: Duration = Duration::from_millis(10);

/// Longest time that a broker waits for records before it answers a fetch. A newly assigned
/// partition waits for the current fetch.
pub(crate) const KAFKA_FETCH_WAIT_MAX: Duration = Duration::from_millis(100);

/// Bytes of one response of a broker: any record that the broker accepts can be read.
pub(crate) const KAFKA_RESPONSE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// After this time without a heartbeat a member of the consumer group counts as dead.
pub(crate) const KAFKA_SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of heartbeats to the consumer group.
pub(crate) const KAFKA_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Bytes that the group consumer may prefetch. It reads nothing; this is librdkafka's minimum.
pub(crate) const KAFKA_GROUP_CONSUMER_QUEUE_BYTES_MAX: u64 = 1024 * 1024;

/// Events of the group consumer that are served in one turn, so that a flood of log lines does not
/// block the thread.
pub(crate) const KAFKA_GROUP_EVENTS_PER_TURN_MAX: usize = 1_000;

/// A source's thread sleeps at most this long, so it notices a silent broker this late.
pub(crate) const KAFKA_SOURCE_WAKE_INTERVAL: Duration = Duration::from_millis(100);

/// The same for the threads of admin clients and producers.
pub(crate) const KAFKA_CLIENT_WAKE_INTERVAL: Duration = Duration::from_millis(500);

/// Interval at which a source logs the same refusal; librdkafka reports it at every attempt.
pub(crate) const KAFKA_REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Timeout of an offset commit. The broker may still apply it later; repeating it is safe.
pub(crate) const KAFKA_COMMIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout of a request: a new controller needs some seconds.
pub(crate) const KAFKA_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests that wait for the admin client's thread; more are refused.
pub(crate) const KAFKA_ADMIN_REQUESTS_MAX: usize = 16;

/// Interval at which a request checks whether its caller has gone.
pub(crate) const KAFKA_ABANDON_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A request for committed offsets is sent again after this time.
pub(crate) const KAFKA_COMMITTED_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// A metadata request is sent again after this time.
pub(crate) const KAFKA_METADATA_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval at which a source checks that its topics were not deleted and created again.
pub(crate) const KAFKA_TOPIC_ID_CHECK_INTERVAL: Duration = PARTITION_DISCOVERY_INTERVAL;

/// Interval at which a client that receives nothing probes its brokers.
pub(crate) const KAFKA_PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Timeout of a probe.
pub(crate) const KAFKA_PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// A cluster is unreachable after this time without an answer. A pause for garbage collection is
/// shorter.
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

/// Interval of metadata requests, which show new and deleted topics and partitions.
pub(crate) const KAFKA_METADATA_INTERVAL: Duration = PARTITION_DISCOVERY_INTERVAL;

/// Age at which librdkafka drops metadata.
pub(crate) const KAFKA_METADATA_AGE_MAX: Duration = KAFKA_METADATA_INTERVAL.saturating_mul(3);

/// Longest wait between two connection attempts, so that a broker that is back is used soon.
pub(crate) const KAFKA_RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);

/// Bytes in the queue of one producer: far above the limits of its caller, and enough for one
/// record of any size.
pub(crate) const KAFKA_PRODUCER_QUEUE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
const _: () = assert!(RUN_BYTES_MAX as u64 * 2 < KAFKA_PRODUCER_QUEUE_BYTES_MAX);

/// A due record waits this long in a producer for others in its request.
pub(crate) const KAFKA_SEND_LINGER: Duration = Duration::from_millis(1);

/// The same for the producer of shards with many messages.
pub(crate) const KAFKA_BULK_LINGER: Duration = Duration::from_millis(5);

/// A producer tries to send a record for this time.
pub(crate) const KAFKA_DELIVERY_TIMEOUT: Duration = Duration::from_secs(300);

/// A producer treats a missing topic as one that is being created for this time.
pub(crate) const KAFKA_NEW_TOPIC_TIMEOUT: Duration = Duration::from_secs(5);

/// Topic handles that a producer keeps. Messages may name any number of topics.
pub(crate) const KAFKA_TOPIC_HANDLES_MAX: usize = 1_024;

/// Shortest interval between two replacements of a failed producer: each makes threads and
/// connections.
pub(crate) const PRODUCER_REPLACE_INTERVAL: Duration = Duration::from_secs(5);

/// Failed producers that are still closing. If librdkafka hangs, no more are made.
pub(crate) const KAFKA_CLOSING_PRODUCERS_MAX: usize = 4;

/// Timeout for closing a client, leaving its group included. After it the client's thread is
/// abandoned.
pub(crate) const CLIENT_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The demo's in-process broker waits this long for more group members: there is only one.
pub(crate) const KAFKA_MOCK_REBALANCE_DELAY: Duration = Duration::from_millis(50);
