//! Until when a lease surely holds, by this process' own monotonic clock. A process that was frozen, or cut off from the store, learns from
//! it that another may hold the shard by now, before it can ask.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// A handle: the claimer extends it, the dispatcher looks at it.
#[derive(Clone, Debug)]
pub(crate) struct LeaseDeadline(Rc<Cell<Instant>>);

impl LeaseDeadline {
    /// The store counts the length from the moment in which it does the call: that is not before the one in which it was `asked`.
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
