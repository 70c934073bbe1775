//! Counts of finished messages by outcome.

/// Counts of finished messages, as a timer counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutcomeCounts {
    /// The target acknowledged them.
    pub(crate) delivered: u64,
    /// Cancelled or replaced in time, and skipped at their due time.
    pub(crate) cancelled: u64,
    pub(crate) dead_lettered: u64,
    /// Sent back through the source for another attempt. There each of them is a new message.
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
