//! Bounds of what the workers of a fleet do for each other.

use std::time::Duration;

/// How often a worker says that it lives and looks who else does; a fifth of the lease if that is less. A newcomer, or one that leaves as
/// planned, is known to all after so long.
pub(crate) const ROLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often a shard that another worker is about to hand over is tried, and for how long after the fleet has changed: part of what
/// messages wait for when their shard moves. A try is one short script.
pub(crate) const QUICK_TRY: Duration = Duration::from_millis(15);
pub(crate) const QUICK_FOR: Duration = Duration::from_secs(6);

/// Shards in one such turn: a thousand of them are no reason to keep the store busy.
pub(crate) const TRIES_MAX: usize = 64;

/// How often shards are tried that another worker is to have: it lives, or they would not be its own, so there is mostly nothing to find.
/// Longer than a broker takes to tell all workers of new partitions.
pub(crate) const STRAY_TRY: Duration = Duration::from_secs(30);

/// Shards that a worker hands over at the same time, or a tenth of all that it has to: each is loaded by its next worker in a moment, many at
/// once take longer.
pub(crate) const HAND_OVERS_MAX: usize = 4;
pub(crate) const HAND_OVERS_PART: usize = 10;

/// How long a shard that is to be handed over may take to finish what is claimed of it; else it goes on, and is to be handed over again after
/// a while. Twice the time that messages are claimed ahead, and an answer of a broker.
pub(crate) const HAND_OVER_MAX: Duration = Duration::from_secs(1);
pub(crate) const HAND_OVER_RETRY: Duration = Duration::from_secs(3);

/// How long a worker that ends may take to hand its shards over while it still serves them; what is left is then finished and given back at
/// once.
pub(crate) const DEPART_MAX: Duration = Duration::from_millis(3_500);

/// How much longer than [`ROLL_INTERVAL`] it waits before it hands over the first: until all have seen that it leaves.
pub(crate) const DEPART_SPARE: Duration = Duration::from_millis(50);

/// How long a worker whose sources do not tell their partitions waits for them before it enrols without: others would hand over to it what
/// it does not know.
pub(crate) const ENROL_PATIENCE: Duration = Duration::from_secs(5);

/// How long a subscription to other processes' hints is kept before it is made anew, though nothing was wrong that shows; and how soon after
/// one that failed.
pub(crate) const HINTS_LISTEN_MAX: Duration = Duration::from_secs(300);
pub(crate) const HINTS_RETRY: Duration = Duration::from_secs(1);
