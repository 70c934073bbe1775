//! Measures how long a shard has made no progress although messages are due or in flight.
//!
//! The lateness metric cannot show this, because it covers delivered messages only.

use crate::model::Progress;
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct StallTimer {
    /// The time of the last progress.
    since: Instant,
    /// The delivered pair then, and the number of messages in flight after it.
    last_seen: (Progress, usize),
}

impl StallTimer {
    pub(super) fn new(now: Instant, delivered: Progress) -> Self {
        Self {
            since: now,
            last_seen: (delivered, 0),
        }
    }

    /// Returns how long the shard is stalled: zero if it made progress, or if it has no work.
    pub(super) fn observe(
        &mut self,
        delivered: Progress,
        open_messages: usize,
        has_work: bool,
        now: Instant,
    ) -> Duration {
        let seen = (delivered, open_messages);
        if seen != self.last_seen || !has_work {
            self.since = now;
            self.last_seen = seen;
        }
        now - self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Offset, Timestamp, Watermark};

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_shard_with_due_messages_and_no_progress_is_stalled() {
        let start = Instant::now();
        let mut stall = StallTimer::new(start, Progress::START);
        let mut observe = |delivered, open, is_due, minutes| {
            let stalled = stall.observe(
                delivered,
                open,
                open > 0 || is_due,
                start + minutes * MINUTE,
            );
            stalled.as_secs() / 60
        };
        let cursor = Cursor::new(Timestamp::from_millis(5), Offset(1));
        let later = Progress::new(cursor, Watermark(2));
        let before = Progress::START;
        assert_eq!(observe(before, 0, false, 10), 0, "nothing is due");
        assert_eq!(observe(before, 0, true, 13), 3, "no claim of due messages");
        assert_eq!(observe(before, 2, true, 14), 0, "a claim");
        assert_eq!(observe(before, 2, false, 16), 2, "no message is delivered");
        assert_eq!(observe(before, 1, false, 17), 0, "one is delivered");
        assert_eq!(observe(later, 0, true, 18), 0, "the other is delivered");
        assert_eq!(observe(later, 0, true, 20), 2, "more is due");
        assert_eq!(observe(later, 0, false, 21), 0);
        assert_eq!(observe(later, 0, true, 22), 1, "counted from the idle time");
    }
}
