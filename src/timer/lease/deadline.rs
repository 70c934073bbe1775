//! The time until which a lease certainly holds, by this process's own monotonic clock.
//!
//! A process that was frozen or lost the store uses it to stop delivering. Another worker may hold
//! the shard by then.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// A shared handle: the lease keeper extends the deadline, the dispatcher reads it.
#[derive(Clone, Debug)]
pub(crate) struct LeaseDeadline(Rc<Cell<Instant>>);

impl LeaseDeadline {
    /// `asked` is the time at which the call was sent. The store starts the lease when it handles
    /// the call, which is never earlier.
    pub(crate) fn new(asked: Instant, length: Duration) -> Self {
        Self(Rc::new(Cell::new(asked + length)))
    }

    pub(crate) fn extend(&self, asked: Instant, length: Duration) {
        self.0.set(asked + length);
    }

    pub(crate) fn has_passed(&self, now: Instant) -> bool {
        self.0.get() <= now && !fault!(IgnoreLeaseExpiry)
    }
}
