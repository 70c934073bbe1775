//! The clock of simulated processes: paused time with an offset that faults change.

use crate::clock::Clock;
use crate::model::Timestamp;
use std::cell::Cell;
use std::rc::Rc;
use tokio::time::Instant;

/// 2026-11-20T00:59:50Z: a realistic time, ten seconds before an hour ends.
pub(crate) const EPOCH: i64 = 1_795_136_390_000;

/// The paused time of Tokio plus an offset.
#[derive(Debug)]
pub(crate) struct SimClock {
    start: Instant,
    offset_millis: Cell<i64>,
    /// The number of reads since the clock became jittery.
    reads: Cell<Option<u64>>,
}

impl SimClock {
    pub(crate) fn new(start: Instant) -> Rc<Self> {
        Rc::new(Self {
            start,
            offset_millis: Cell::new(0),
            reads: Cell::new(None),
        })
    }

    pub(crate) fn offset(&self) -> i64 {
        self.offset_millis.get()
    }

    /// Sets the offset in milliseconds.
    pub(crate) fn set_offset(&self, millis: i64) {
        self.offset_millis.set(millis);
    }

    /// From now on, about every other read returns the previous millisecond. A real clock moves
    /// between two reads, the paused one does not.
    pub(crate) fn set_jittery(&self) {
        self.reads.set(Some(0));
    }

    fn jitter(&self) -> i64 {
        let Some(reads) = self.reads.get() else {
            return 0;
        };
        self.reads.set(Some(reads + 1));
        // Multiples of the golden ratio give an irregular sequence.
        i64::from(reads.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1)
    }
}

impl Clock for Rc<SimClock> {
    fn now(&self) -> Timestamp {
        SimClock::now(self)
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let elapsed = i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(EPOCH + elapsed + self.offset_millis.get() - self.jitter())
    }
}
