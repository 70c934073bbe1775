//! Bounds of runs, and of what they are made of.

use std::time::Duration;

/// Messages and bytes (before compression) of one batch of one shard; a batch becomes one run a slice.
pub(crate) const BATCH_MESSAGES_MAX: usize = 16_384;
pub(crate) const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// An hour has a run of its own if a batch has so many messages of it, or if it ends within so long: a run costs some 300 bytes of Redis and ten
/// microseconds, whatever it holds. What is thin beyond that lies together, until the rewriter has gathered enough of it.
pub(crate) const FAR_THIN: usize = 64;
pub(crate) const FAR_AFTER: Duration = Duration::from_secs(2 * 3600);

/// Raw bytes of a run beyond which a reader takes its header for corrupt instead of allocating for it: one batch and one record of the
/// greatest size that Kafka clients can be brought to send.
pub(crate) const RUN_BYTES_MAX: usize = 256 * 1024 * 1024;
