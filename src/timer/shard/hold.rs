//! The hold of a shard: nothing is loaded or claimed before the source log is read again.
//!
//! After a store loss, a message may be due whose cancel is further on in the log. The hold ends
//! when the watermark is where the log ended, or where the store was before it lost writes.

use crate::model::Watermark;
use crate::store::Hold;

pub(crate) struct LoadHold {
    until: Watermark,
    /// No stored message has an id, so none can be cancelled. Valid until the next reply about the
    /// tail.
    has_no_ids: bool,
    /// The hold has ended because the store or the quota is full, and this was not reported yet.
    pub(super) is_cut_short: bool,
}

impl LoadHold {
    /// `until` is the greater of the hold in the store and the watermark in the commit.
    pub(super) fn new(until: Watermark) -> Self {
        Self {
            until,
            has_no_ids: false,
            is_cut_short: false,
        }
    }

    pub(super) fn until(&self) -> Watermark {
        self.until
    }

    pub(super) fn is_active(&self, seen: Watermark) -> bool {
        seen < self.until && !self.has_no_ids
    }

    /// The store lost writes. The log must be read up to `until` again.
    pub(super) fn raise(&mut self, until: Watermark) {
        self.until = self.until.max(until);
    }

    /// Everything in memory was dropped, and other messages may be seen next.
    pub(super) fn restart(&mut self) {
        self.has_no_ids = false;
    }

    /// Handles the hold in a reply of the store. `seen` is the watermark before the reply.
    pub(super) fn update(&mut self, hold: Hold, seen: Watermark) {
        self.is_cut_short |= hold == Hold::Ended && self.is_active(seen);
        self.has_no_ids = hold == Hold::NoIds;
        match hold {
            Hold::Until(until) => self.raise(until),
            Hold::Ended => self.until = seen,
            Hold::NoIds => {}
        }
    }
}
