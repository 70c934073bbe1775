//! Batching, buffering and offset commits of an ingress.

use super::MEMBERSHIP_INTERVAL;
use std::time::Duration;

/// Shortest time that a batch waits for more records.
pub(crate) const APPEND_LINGER_MIN: Duration = Duration::from_millis(5);
/// Longest time that a batch waits for more records. A large append costs the store little more.
pub(crate) const APPEND_LINGER_MAX: Duration = Duration::from_millis(500);
/// Appends of one shard in flight. More than one only while batches are full.
pub(crate) const SHARD_APPENDS_IN_FLIGHT_MAX: usize = 4;
/// Appends queued between the ingress loop and its appender thread.
pub(crate) const APPEND_QUEUE_MAX: usize = 16;
/// Interval of offset commits while offsets move, and of watermark checks of idle shards.
pub(crate) const OFFSET_COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of offset commits while nothing moves. A commit that a frozen worker sent late is
/// replaced within this time.
pub(crate) const OFFSET_COMMIT_REPEAT_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of marker commits while nothing moves: brokers forget offsets after some days.
pub(crate) const IDLE_OFFSET_COMMIT_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// A worker that finds another reader leaves the partition to it for this time. By then it knows
/// the membership: two heartbeats have been sent.
pub(crate) const DISPLACED_READER_DELAY: Duration =
    Duration::from_millis(2 * MEMBERSHIP_INTERVAL.as_millis() as u64);
/// A message is due soon within this time, which exceeds the start of a process.
pub(crate) const DUE_SOON_WITHIN: Duration = Duration::from_secs(300);
/// Wait before a shard that could not be opened is opened again.
pub(crate) const SHARD_OPEN_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Wait before a stopped shard, which needs an operator, is checked again.
pub(crate) const STOPPED_SHARD_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Used part of a quota from which on a warning is logged.
pub(crate) const QUOTA_WARN_FROM: f64 = 0.8;
/// Used part of a quota below which the warning is over. Less than [`QUOTA_WARN_FROM`], so that a
/// route at its quota does not log at each check.
pub(crate) const QUOTA_CALM_BELOW: f64 = 0.75;
/// The readiness shows a used quota for this time after a check. The next check comes before.
pub(crate) const QUOTA_NOTE_TIME: Duration =
    Duration::from_millis(10 * OFFSET_COMMIT_INTERVAL.as_millis() as u64);
/// Hints about appended shards, queued for the timer of a process, or for other processes.
pub(crate) const HINT_QUEUE_MAX: usize = 1_024;
/// Text of the rules history of a partition. It is part of the commit metadata, of which Kafka
/// accepts 4,096 bytes by default; the other fields take some 150, and a pause at most 380.
pub(crate) const RULES_TEXT_BYTES_MAX: usize = 2_500;
/// Bytes of a rules history before compression.
pub(crate) const RULES_DECODED_BYTES_MAX: usize = 64 * 1024;
