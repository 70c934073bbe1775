//! Membership, lease acquisition and handover between the workers of a deployment.

use super::CLAIM_AHEAD;
use std::time::Duration;

/// Interval of a worker's heartbeats, each of which reads the live workers; a fifth of the session
/// if that is shorter. A worker that joins or leaves is known to all after this time.
pub(crate) const MEMBERSHIP_INTERVAL: Duration = Duration::from_millis(500);
/// A takeover waits this long for the last commits: the broker that coordinates the group may have
/// died together with the previous worker.
pub(crate) const COORDINATOR_WAIT_MAX: Duration = Duration::from_millis(50);
/// The same for a partition with a control record that must be committed. Its reading waits meanwhile.
pub(crate) const CONTROL_COORDINATOR_WAIT_MAX: Duration = Duration::from_secs(3);
/// Processes of one deployment on one host that have a locked name.
pub(crate) const WORKER_NAMES_MAX: u32 = 256;
/// A worker whose sessions another process of its name replaces ends at this number. A store that
/// went back causes one.
pub(crate) const REPLACED_SESSIONS_MAX: u32 = 3;
/// A worker sends no heartbeats while one of its loops has not run for this time. It is longer than
/// the calls of brokers and stores that a loop waits for.
pub(crate) const LOOP_STALL_MAX: Duration = Duration::from_secs(30);
/// Interval at which a worker lists the partitions of its sources. A new worker waits this long for
/// them before it joins without: others would hand over shards that it does not know.
pub(crate) const PARTITION_DISCOVERY_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of attempts to acquire a shard that another worker is about to hand over.
pub(crate) const HANDOVER_ACQUIRE_INTERVAL: Duration = Duration::from_millis(15);
/// The frequent attempts end this long after a membership change.
pub(crate) const HANDOVER_ACQUIRE_DURATION: Duration = Duration::from_secs(6);
/// Shards that one round of attempts tries to acquire: a short script for each.
pub(crate) const ACQUIRES_PER_TURN_MAX: usize = 64;
/// Interval of attempts for unassigned shards: all workers learn of new partitions before.
pub(crate) const UNASSIGNED_ACQUIRE_INTERVAL: Duration = Duration::from_secs(30);
/// Shards that a worker hands over at the same time, or a tenth of all handovers if it is more.
pub(crate) const HANDOVERS_MAX: usize = 4;
/// A handover waits this long for in-flight messages before it is postponed.
pub(crate) const HANDOVER_TIMEOUT: Duration = Duration::from_secs(1);
/// Wait before a postponed handover is tried again.
pub(crate) const HANDOVER_RETRY_DELAY: Duration = Duration::from_secs(3);
/// Claimed messages become due, and are sent, well before a handover is postponed.
const _: () = assert!(2 * CLAIM_AHEAD.as_millis() < HANDOVER_TIMEOUT.as_millis());
/// Lease events queued between the lease loop and the dispatcher.
pub(crate) const LEASE_EVENT_QUEUE_MAX: usize = 64;
/// A shard can be acquired again this long after a lost lease, without all delivery reports.
pub(crate) const LOST_LEASE_REPORTS_TIMEOUT: Duration = Duration::from_secs(5);
