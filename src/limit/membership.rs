//! Bounds of what the workers of a fleet do for each other.

use std::time::Duration;

/// How often a worker says that it lives and looks who else does; a fifth of the lease if that is less. A newcomer, or one that leaves as
/// planned, is known to all after so long.
pub(crate) const MEMBERSHIP_INTERVAL: Duration = Duration::from_secs(1);

/// How often a shard that another worker is about to hand over is tried, and for how long after the fleet has changed: part of what
/// messages wait for when their shard moves. A try is one short script.
pub(crate) const HANDOVER_ACQUIRE_INTERVAL: Duration = Duration::from_millis(15);
pub(crate) const HANDOVER_ACQUIRE_DURATION: Duration = Duration::from_secs(6);

/// Shards in one such turn: a thousand of them are no reason to keep the store busy.
pub(crate) const ACQUIRES_PER_TURN_MAX: usize = 64;

/// How often shards are tried that another worker is to have: it lives, or they would not be its own, so there is mostly nothing to find.
/// Longer than a broker takes to tell all workers of new partitions.
pub(crate) const UNASSIGNED_ACQUIRE_INTERVAL: Duration = Duration::from_secs(30);

/// Shards that a worker hands over at the same time, or a tenth of all that it has to: each is loaded by its next worker in a moment, many at
/// once take longer.
pub(crate) const HANDOVERS_MAX: usize = 4;
pub(crate) const HANDOVERS_DIVISOR: usize = 10;

/// How long a shard that is to be handed over may take to finish what is claimed of it; else it goes on, and is to be handed over again after
/// a while. Twice the time that messages are claimed ahead, and an answer of a broker.
pub(crate) const HANDOVER_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const HANDOVER_RETRY_DELAY: Duration = Duration::from_secs(3);

/// How long a worker that ends may take to hand its shards over while it still serves them; what is left is then finished and given back at
/// once.
pub(crate) const SHUTDOWN_HANDOVER_TIMEOUT: Duration = Duration::from_millis(3_500);

/// How much longer than [`MEMBERSHIP_INTERVAL`] it waits before it hands over the first: until all have seen that it leaves.
pub(crate) const SHUTDOWN_ANNOUNCE_MARGIN: Duration = Duration::from_millis(50);

/// How long a worker whose sources do not tell their partitions waits for them before it enrols without: others would hand over to it what
/// it does not know.
pub(crate) const FIRST_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a subscription to other processes' hints is kept before it is made anew, though nothing was wrong that shows; and how soon after
/// one that failed.
pub(crate) const HINTS_RESUBSCRIBE_INTERVAL: Duration = Duration::from_secs(300);
pub(crate) const HINTS_RETRY_DELAY: Duration = Duration::from_secs(1);
