//! What became of messages, as numbers.

/// What messages came to, as a timer counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutcomeCounts {
    /// Their target has acknowledged them.
    pub(crate) delivered: u64,
    /// Cancelled or replaced in time: passed over when they were due.
    pub(crate) cancelled: u64,
    pub(crate) dead_lettered: u64,
    /// Back on their source topic, to be tried again: there each of them is a message of its own.
    pub(crate) retried: u64,
}

impl OutcomeCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.cancelled += other.cancelled;
        self.dead_lettered += other.dead_lettered;
        self.retried += other.retried;
    }

    pub(crate) fn total(&self) -> u64 {
        self.delivered + self.cancelled + self.dead_lettered + self.retried
    }
}
