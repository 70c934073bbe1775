//! Timeouts of the steps of a shutdown, which ends within ten seconds, and intervals of a changed
//! configuration.

use super::{HANDOVER_TIMEOUT, MEMBERSHIP_INTERVAL};
use std::time::Duration;

/// A stopping worker hands over served shards for this time. It then releases the rest.
pub(crate) const SHUTDOWN_HANDOVER_TIMEOUT: Duration = Duration::from_millis(3_500);
/// Wait after [`MEMBERSHIP_INTERVAL`] until all workers know that a worker leaves.
pub(crate) const SHUTDOWN_ANNOUNCE_MARGIN: Duration = Duration::from_millis(50);
/// A stopping process delivers claimed messages and stores received records for this time.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(6);
/// Timeout of a stopping ingress for its broker: mostly for the last offset commit.
pub(crate) const FINAL_COMMIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the last store call of a stopping process. Without it, others wait until the session is over.
pub(crate) const FINAL_STORE_CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for closing a client. Then the thread of the client is abandoned.
pub(crate) const CLIENT_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// After this time a process that has not stopped exits with an error: one of its loops hangs.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(9_500);
/// Interval of reading the configuration with `worker.watch_config`.
pub(crate) const CONFIG_WATCH_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of looking whether the roles that began with a changed configuration are ready.
pub(crate) const READY_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Draining, the last store call and the end of the broker clients fit into the shutdown, and that
/// into the promised ten seconds.
const _: () = assert!(
    DRAIN_TIMEOUT.as_millis()
        + FINAL_STORE_CALL_TIMEOUT.as_millis()
        + CLIENT_CLOSE_TIMEOUT.as_millis()
        < SHUTDOWN_TIMEOUT.as_millis()
        && SHUTDOWN_TIMEOUT.as_millis() < 10_000
);
/// So do two answers of an unreachable broker and the end of its client.
const _: () = assert!(
    2 * FINAL_COMMIT_TIMEOUT.as_millis() + CLIENT_CLOSE_TIMEOUT.as_millis()
        < SHUTDOWN_TIMEOUT.as_millis()
);
/// A first handover fits into the time for handovers, and two more into the drain after it.
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
