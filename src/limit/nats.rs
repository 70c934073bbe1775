//! What a NATS cluster may take, of time and of memory.

use std::time::Duration;

/// How long a connection may take to be made, and a question to be answered.
pub(crate) const NATS_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const NATS_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection on which nothing answers two such pings is lost: `/readyz` is to tell within five seconds or so.
pub(crate) const NATS_PING_INTERVAL: Duration = Duration::from_secs(1);

/// The longest pause between two attempts to connect again, and the pause before anything else that failed is tried anew.
pub(crate) const NATS_RECONNECT_DELAY_MAX: Duration = Duration::from_secs(1);
pub(crate) const NATS_RETRY_DELAY: Duration = Duration::from_millis(200);

/// How often a member of a group says that it lives, and after how long a silence it is taken for dead.
pub(crate) const NATS_GROUP_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
pub(crate) const NATS_GROUP_MEMBER_TIMEOUT: Duration = Duration::from_secs(8);

/// How long the group may be silent, or a reader fail, before that is told: shorter than a restart of one server of three takes, it would tell of every one.
pub(crate) const NATS_SOURCE_FAILURE_GRACE: Duration = Duration::from_secs(4);

/// Attempts to write to a group that other members write to.
pub(crate) const NATS_GROUP_WRITE_ATTEMPTS_MAX: usize = 20;

/// Messages that a consumer has under way to a reader: what one partition may take of memory, beside one batch, of the largest messages.
pub(crate) const NATS_FETCH_MESSAGES_MAX: usize = 512;

/// Messages, and bytes, at which a batch that is read is closed.
pub(crate) const NATS_BATCH_MESSAGES_MAX: usize = 1_024;
pub(crate) const NATS_BATCH_BYTES_MAX: usize = 1024 * 1024;

/// How often a consumer that has nothing says so; silent for twice as long it is made anew.
pub(crate) const NATS_CONSUMER_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// How long the server keeps a consumer that nobody asks: those of processes that died go by themselves.
pub(crate) const NATS_CONSUMER_INACTIVE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a reader looks at its stream, and how soon when it has caught up.
pub(crate) const NATS_STREAM_CHECK_INTERVAL: Duration = Duration::from_secs(2);
pub(crate) const NATS_STREAM_RECHECK_DELAY: Duration = Duration::from_millis(500);

/// So many looks in a row at which the stream has what its consumer has not brought: it brings nothing any more.
pub(crate) const NATS_STALLED_CHECKS_MAX: u32 = 3;

/// Records that were published and not confirmed: below the ten thousand that a stream takes before it refuses.
pub(crate) const NATS_UNACKED_PUBLISHES_MAX: usize = 4_096;

/// Bytes that one target has taken over; one record more may be.
pub(crate) const NATS_TARGET_BYTES_MAX: usize = 256 * 1024 * 1024;

/// After so long without any answer all that is under way is sent again; and how long a record is tried.
pub(crate) const NATS_ACK_TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const NATS_DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Reports that are handed on at once, and records that are taken over at once.
pub(crate) const NATS_REPORTS_PER_TURN_MAX: usize = 1_024;

/// What the server says of a connection, beside answers, on its way to its user.
pub(crate) const NATS_CONNECTION_EVENTS_MAX: usize = 64;

/// How long messages stay in a stream that a demo made and could not take away: longer than a demo lasts.
pub(crate) const NATS_DEMO_STREAM_AGE_MAX: Duration = Duration::from_secs(2 * 3_600);

/// How long a source may take to leave its group.
pub(crate) const NATS_CLOSE_TIMEOUT: Duration = Duration::from_millis(1_500);
