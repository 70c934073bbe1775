//! The forecast of a shard: the number of messages that become due in a time. Uses only the counts
//! of slices, so no run is read.

use crate::model::{Level, Slice, Timestamp};
use crate::store::SliceCount;

/// Estimated number of messages in these slices that are due by `until`, including overdue ones.
/// Assumes that due times are spread evenly over the rest of a slice. A far slice counts as 0,
/// because its messages move to other slices before they are due.
pub(crate) fn due_by(slices: &[SliceCount], until: Timestamp, now: Timestamp) -> u64 {
    let due = slices
        .iter()
        .map(|count| due_share(count.slice, count.messages, until, now));
    due.fold(0, u64::saturating_add)
}

fn due_share(slice: Slice, messages: u64, until: Timestamp, now: Timestamp) -> u64 {
    let Some(end) = slice.end() else {
        return if slice.level == Level::Now {
            messages
        } else {
            0
        };
    };
    let begin = slice.least_due().max(now);
    if until >= end {
        return messages;
    }
    // `until` is before `end`, so the rest of the slice is longer than zero.
    let elapsed = until.since(begin).as_secs_f64();
    let rest = end.since(begin).as_secs_f64();
    (messages as f64 * elapsed / rest) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: i64 = 60_000;
    /// Ten minutes after midnight.
    const NOW: i64 = 86_400_000 + 10 * MINUTE;

    fn count(level: Level, start: i64, messages: u64) -> SliceCount {
        SliceCount {
            slice: Slice { level, start },
            messages,
            bytes: 0,
        }
    }

    fn due_in(level: Level, start: i64, minutes: i64) -> u64 {
        let until = Timestamp::from_millis(NOW + minutes * MINUTE);
        due_by(
            &[count(level, start, 600)],
            until,
            Timestamp::from_millis(NOW),
        )
    }

    #[test]
    fn a_slice_counts_by_the_elapsed_part_of_its_rest() {
        let (hour, minute) = (24, 24 * 60 + 10);
        for (what, level, start, minutes, wanted) in [
            (
                "five of the remaining fifty minutes",
                Level::Hour,
                hour,
                5,
                60,
            ),
            ("all remaining minutes", Level::Hour, hour, 50, 600),
            ("the next hour has not started", Level::Hour, hour + 1, 5, 0),
            ("half of the next hour", Level::Hour, hour + 1, 80, 300),
            ("this minute", Level::Minute, minute, 5, 600),
            (
                "a minute that starts at `until`",
                Level::Minute,
                minute + 5,
                5,
                0,
            ),
            (
                "an hour in the past is overdue",
                Level::Hour,
                hour - 1,
                5,
                600,
            ),
            ("due when it was stored", Level::Now, 0, 5, 600),
            ("a far slice", Level::Far, 1, 5, 0),
        ] {
            assert_eq!(due_in(level, start, minutes), wanted, "{what}");
        }
    }

    proptest! {
        #[test]
        fn a_later_time_never_gives_fewer_messages_and_never_more_than_stored(
            slices in prop::collection::vec((0usize..5, any::<i64>(), 0u64..1 << 40), 0..8), now: i64, first in 0i64..1 << 40, second in 0i64..1 << 40,
        ) {
            let levels = [Level::Now, Level::Far, Level::Day, Level::Hour, Level::Minute];
            let counts: Vec<_> = slices.iter().map(|(level, start, messages)| count(levels[*level], *start, *messages)).collect();
            let due = |after: i64| due_by(&counts, Timestamp::from_millis(now.saturating_add(after)), Timestamp::from_millis(now));
            let all: u64 = slices.iter().map(|(.., messages)| messages).sum();
            prop_assert!(due(first.min(second)) <= due(first.max(second)) && due(first.max(second)) <= all);
        }
    }
}
