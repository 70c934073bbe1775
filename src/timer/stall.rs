//! How long a shard has stood still: something of it is due or under way, and nothing was claimed or finished. Lateness tells only of what was
//! delivered, and says nothing of that.

use super::RouteOptions;
use super::work::ShardState;
use crate::model::{Progress, ShardId, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// When a shard moved last, as far as is seen.
pub(super) struct StallTimer {
    since: Instant,
    /// What was finished then, and how many messages were under way behind it.
    last_seen: (Progress, usize),
}

impl StallTimer {
    pub(super) fn new(now: Instant, finished: Progress) -> Self {
        Self {
            since: now,
            last_seen: (finished, 0),
        }
    }

    /// How long it has stood still. One that has nothing to do does not.
    fn observe(
        &mut self,
        seen: (Progress, usize),
        is_due: impl FnOnce() -> bool,
        now: Instant,
    ) -> Duration {
        if seen != self.last_seen || seen.1 == 0 && !is_due() {
            *self = Self {
                since: now,
                last_seen: seen,
            };
        }
        now - self.since
    }
}

impl ShardState {
    fn stalled_for(&mut self, wall: Timestamp, now: Instant) -> Duration {
        let (has_claims, schedule) = (self.has_claims(), &self.schedule);
        let is_due = || {
            has_claims
                || schedule.late_count() > 0
                || schedule
                    .next_due(Timestamp::AT_ONCE)
                    .is_some_and(|due| due <= wall)
        };
        self.stall.observe(
            (self.in_flight.delivered(), self.in_flight.open_messages()),
            is_due,
            now,
        )
    }
}

/// Tells of each route how long the one of its shards has stood still that has done so longest. Both maps are in the order of the routes.
pub(super) fn update_metric(
    works: &mut BTreeMap<ShardId, ShardState>,
    routes: &BTreeMap<Arc<str>, RouteOptions>,
    wall: Timestamp,
) {
    let (mut works, now) = (works.iter_mut().peekable(), Instant::now());
    for (route, options) in routes {
        let mut longest = Duration::ZERO;
        while let Some((_, work)) = works.next_if(|(shard, _)| shard.route == *route) {
            longest = longest.max(work.stalled_for(wall, now));
        }
        options.metric.stalled_seconds.set(longest.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Offset, Watermark};

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn what_neither_claims_nor_finishes_though_something_is_due_stands_still() {
        let start = Instant::now();
        let mut stall = StallTimer::new(start, Progress::START);
        let mut look = |finished, left, is_due, minutes| {
            stall
                .observe((finished, left), || is_due, start + minutes * MINUTE)
                .as_secs()
                / 60
        };
        let later = Progress::new(
            Cursor::new(Timestamp::from_millis(5), Offset(1)),
            Watermark(2),
        );
        assert_eq!(look(Progress::START, 0, false, 10), 0, "nothing is due");
        assert_eq!(
            look(Progress::START, 0, true, 13),
            3,
            "nothing is claimed of what is"
        );
        assert_eq!(look(Progress::START, 2, true, 14), 0, "a claim");
        assert_eq!(
            look(Progress::START, 2, false, 16),
            2,
            "nothing of it is finished"
        );
        assert_eq!(look(Progress::START, 1, false, 17), 0, "one message is");
        assert_eq!(look(later, 0, true, 18), 0, "the other is");
        assert_eq!(look(later, 0, true, 20), 2, "more is due");
        assert_eq!(look(later, 0, false, 21), 0);
        assert_eq!(look(later, 0, true, 22), 1, "counted from when nothing was");
    }
}
