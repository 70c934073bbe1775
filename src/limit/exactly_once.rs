//! Bounds of transactions, in which messages are delivered exactly once.

use super::{CLIENT_CLOSE_TIMEOUT, HANDOVER_ACQUIRE_DURATION};
use std::time::Duration;

/// The time between two commits of a shard that has not stood idle, so that messages go together: so many times what the last one took, within
/// these bounds. Where brokers have time a message waits less; where they have none they commit less often.
pub(crate) const TRANSACTION_INTERVAL_FACTOR: u32 = 3;
pub(crate) const TRANSACTION_INTERVAL_MIN: Duration = Duration::from_millis(5);
pub(crate) const TRANSACTION_INTERVAL_MAX: Duration = Duration::from_millis(20);

/// After a commit nothing is handed over for so long. A broker answers before it has told the partitions, and refuses the next transaction
/// meanwhile; librdkafka then waits 20 ms. Handed over at once, one transaction in ten was refused; after 3 ms none of 9,253.
pub(crate) const TRANSACTION_PAUSE_AFTER_COMMIT: Duration = Duration::from_millis(3);

/// The messages from which on a transaction takes no more of them.
pub(crate) const TRANSACTION_MESSAGES_MAX: usize = 16_384;

/// How long nothing may be reported of a transaction under way before it is undone. Readers of what is committed wait behind it in every
/// partition that it wrote to. Longer than a missing topic takes to be told ([`KAFKA_TRANSACTION_NEW_TOPIC_TIMEOUT`]), and than a broker takes to be
/// started again: then nothing has to be undone.
pub(crate) const TRANSACTION_SILENCE_TIMEOUT: Duration = Duration::from_secs(20);

/// A transactor of which nothing is heard for so long is given up, and another opened.
pub(crate) const TRANSACTIONAL_PRODUCER_TIMEOUT: Duration = Duration::from_secs(45);

/// So long before a message is due its shard's transactor is opened, and so long after the last one it is ended.
pub(crate) const TRANSACTIONAL_PRODUCER_OPEN_AHEAD: Duration = Duration::from_secs(2);
pub(crate) const TRANSACTIONAL_PRODUCER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection for a shard's transactor is kept ready that another worker is about to hand over: as long as that is looked for often.
/// And how many at a time: one costs the timer's thread a millisecond to make.
pub(crate) const PRECONNECTION_TIMEOUT: Duration = HANDOVER_ACQUIRE_DURATION;
pub(crate) const PRECONNECTIONS_MAX: usize = 8;

/// How many transactors at a time are opened on a cluster only to end what was left open under their names, by a worker that has nothing to deliver
/// by them.
pub(crate) const RECOVERY_PRODUCERS_MAX: usize = 8;

/// Brokers forget what a group without members committed, by default after seven days. So it is committed again daily, and the
/// first time soon after the shard was taken, for who took it does not know how old it is.
pub(crate) const MARKER_COMMIT_INTERVAL: Duration = Duration::from_secs(24 * 3600);
pub(crate) const MARKER_FIRST_COMMIT_DELAY: Duration = Duration::from_secs(3600);

/// A topic that does not exist is told after so long where others wait with it; and after how long the broker itself ends a transaction of a
/// process that died, if nobody takes its shard: longer than [`TRANSACTION_SILENCE_TIMEOUT`], with some time for the end of it.
pub(crate) const KAFKA_TRANSACTION_NEW_TOPIC_TIMEOUT: Duration = Duration::from_secs(2);
pub(crate) const KAFKA_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a call that begins or ends a transaction blocks before reports are served and it is called again; and how long a producer sends
/// each record in a batch of its own after a batch was refused for one of its records.
pub(crate) const KAFKA_TRANSACTION_CALL_TIMEOUT: Duration = Duration::from_millis(100);
pub(crate) const KAFKA_SINGLE_RECORD_BATCHES_DURATION: Duration = Duration::from_secs(30);

/// How long the client tries, every 500 ms, to make the marker a part of the transaction, while a broker that was just started loads what its
/// groups committed. Given up, the transaction can only be aborted, and with it whatever a transaction before it, of which the broker noted the
/// end and did not tell the partitions, left hanging there: committed, and then never seen.
pub(crate) const KAFKA_MARKER_TIMEOUT: Duration = Duration::from_secs(25);

/// A transaction that waited as long as it may, and then as long for its marker, is still open at the broker and not given up here.
const _: () = assert!(
    TRANSACTION_SILENCE_TIMEOUT.as_secs() + KAFKA_MARKER_TIMEOUT.as_secs()
        < KAFKA_TRANSACTION_TIMEOUT.as_secs()
);
const _: () = assert!(KAFKA_MARKER_TIMEOUT.as_secs() < TRANSACTIONAL_PRODUCER_TIMEOUT.as_secs());

/// How often it is looked whether the marker's answer has come; and after how long without one, of a broker that answers, that is told: a
/// transaction has [`TRANSACTIONAL_PRODUCER_TIMEOUT`] for its end, and hardly ever takes a second.
pub(crate) const KAFKA_MARKER_POLL_INTERVAL: Duration = Duration::from_millis(5);
pub(crate) const KAFKA_MARKER_WARN_AFTER: Duration = Duration::from_secs(15);

/// How long it is tried to learn how the last transaction of a name was to end, before its next producer fences it; and then, how long to end
/// what hangs of it. Partitions of which nobody could tell by then are not waited for again for a while.
pub(crate) const KAFKA_TXN_REPAIR_TIMEOUT: Duration = Duration::from_secs(8);
pub(crate) const KAFKA_TXN_REPAIR_PAUSE: Duration = Duration::from_secs(60);

/// All of it is within the time that an opening has, and the marker's with it.
const _: () = assert!(
    2 * KAFKA_TXN_REPAIR_TIMEOUT.as_secs() + KAFKA_MARKER_TIMEOUT.as_secs()
        < TRANSACTIONAL_PRODUCER_TIMEOUT.as_secs()
);

/// How long a connection that Kafka's protocol is spoken on may say nothing, and how large an answer may be. An answer tells of all that have
/// written to some partitions in the last day, some 40 bytes for each; so it is asked of so many partitions at a time.
pub(crate) const KAFKA_WIRE_ANSWER_MAX: Duration = Duration::from_secs(1);
pub(crate) const KAFKA_WIRE_ANSWER_BYTES_MAX: usize = 16 << 20;
pub(crate) const KAFKA_DESCRIBED_MAX: usize = 16;

/// Whoever waits for such an answer is joined in time.
const _: () = assert!(KAFKA_WIRE_ANSWER_MAX.as_millis() < CLIENT_CLOSE_TIMEOUT.as_millis());
