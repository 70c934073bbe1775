//! Transactions for exactly-once delivery.

use std::time::Duration;

/// A busy shard commits again after this multiple of the duration of its last commit.
pub(crate) const TRANSACTION_INTERVAL_FACTOR: u32 = 3;
/// Shortest interval between two commits of a busy shard.
pub(crate) const TRANSACTION_INTERVAL_MIN: Duration = Duration::from_millis(5);
/// Longest interval between two commits of a busy shard.
pub(crate) const TRANSACTION_INTERVAL_MAX: Duration = Duration::from_millis(20);
/// Pause after a commit. A broker confirms a commit before its partitions know it, and refuses the
/// next transaction until then; librdkafka would wait 20 ms.
pub(crate) const TRANSACTION_PAUSE_AFTER_COMMIT: Duration = Duration::from_millis(3);
/// Messages in one transaction.
pub(crate) const TRANSACTION_MESSAGES_MAX: usize = 16_384;
/// A transaction without any delivery report for this time is aborted. Consumers of committed
/// messages wait behind it. It exceeds the restart of a broker.
pub(crate) const TRANSACTION_SILENCE_TIMEOUT: Duration = Duration::from_secs(20);
/// A transactional producer that does not answer for this time is replaced.
pub(crate) const TRANSACTIONAL_PRODUCER_TIMEOUT: Duration = Duration::from_secs(45);
/// A transactional producer is opened this long before its shard's next due time.
pub(crate) const TRANSACTIONAL_PRODUCER_OPEN_AHEAD: Duration = Duration::from_secs(2);
/// A transactional producer is closed after this time without messages.
pub(crate) const TRANSACTIONAL_PRODUCER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Pre-connected producers of shards that other workers are about to hand over.
pub(crate) const PRECONNECTIONS_MAX: usize = 8;
/// Producers of one cluster that are open only to abort transactions of their predecessors.
pub(crate) const RECOVERY_PRODUCERS_MAX: usize = 8;
/// First commit of the marker after an acquisition: the age of the last commit is unknown.
pub(crate) const MARKER_FIRST_COMMIT_DELAY: Duration = Duration::from_secs(3600);
