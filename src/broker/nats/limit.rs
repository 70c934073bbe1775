//! Buffers and times of the NATS adapter.

use std::time::Duration;

/// Timeout of a connection attempt, of a request, and of an acknowledgement. After it, a publisher
/// publishes all records in flight again.
pub(crate) const NATS_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of pings, and of readiness reports of a source. Two pings without an answer end a
/// connection, so `/readyz` reports it within some five seconds.
pub(crate) const NATS_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait between two connection attempts.
pub(crate) const NATS_RECONNECT_DELAY_MAX: Duration = Duration::from_secs(1);
/// Wait before anything else that failed is tried again.
pub(crate) const NATS_RETRY_DELAY: Duration = Duration::from_millis(200);
/// A reader that fails for longer than the restart of a server is reported.
pub(crate) const NATS_SOURCE_FAILURE_GRACE: Duration = Duration::from_secs(4);
/// Messages of one fetch of a reader. The next fetch begins when half of them have arrived.
pub(crate) const NATS_FETCH_MESSAGES_MAX: usize = 512;
/// Messages of a batch that is read, and delivery reports or new records that a publisher handles in
/// one turn.
pub(crate) const NATS_MESSAGES_PER_TURN_MAX: usize = 1_024;
/// Interval at which a reader compares its position with the stream, and of heartbeats of its idle
/// consumer. A consumer that misses two is created again.
pub(crate) const NATS_STREAM_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Commits that are read from the bucket at the same time.
pub(crate) const NATS_COMMIT_READS_MAX: usize = 64;
/// Checks in a row that find undelivered messages before the consumer counts as stalled.
pub(crate) const NATS_STALLED_CHECKS_MAX: u32 = 3;
/// Published records without an acknowledgement. A stream refuses more than ten thousand.
pub(crate) const NATS_UNACKED_PUBLISHES_MAX: usize = 4_096;
/// A record without an acknowledgement fails after this time.
pub(crate) const NATS_DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Connection events queued for the user of a connection, and server errors that it remembers.
pub(crate) const NATS_CONNECTION_EVENTS_MAX: usize = 64;
/// Timeout for the last request of a client that is closed.
pub(crate) const NATS_CLOSE_TIMEOUT: Duration = Duration::from_millis(1_500);
