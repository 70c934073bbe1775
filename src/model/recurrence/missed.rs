//! Which occurrences are delivered after an outage.

use super::occurrence::{Occurrence, Recurrence};
use crate::model::Timestamp;
use std::time::Duration;

/// The treatment of missed occurrences. They are later than a tolerance when they are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MissedPolicy {
    /// The latest one is delivered, unless a later occurrence is due as well.
    #[default]
    Latest,
    Skip,
    All,
}

impl MissedPolicy {
    const ALL: [Self; 3] = [Self::Latest, Self::Skip, Self::All];

    /// The value of `postdate-missed`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Latest => "latest",
            Self::Skip => "skip",
            Self::All => "all",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == text)
    }
}

/// How a schedule treats missed occurrences.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Missed {
    pub(crate) policy: MissedPolicy,
    /// Missed occurrences that are later than this are never delivered.
    pub(crate) within: Option<Duration>,
}

impl Missed {
    /// The first occurrence after `after` that is delivered if it is taken at `now`, or that is not
    /// due yet. `tolerance` is the lateness up to which an occurrence is not missed.
    ///
    /// The result depends on `now`. It is final when a later claim covers the occurrences that are
    /// left out. Until then a new owner decides again, at a later time.
    pub(crate) fn next_to_deliver(
        self,
        recurrence: &Recurrence,
        after: Timestamp,
        now: Timestamp,
        tolerance: Duration,
    ) -> Option<Occurrence> {
        let missed_through = now.minus(tolerance).minus(Duration::from_millis(1));
        let oldest = self.within.map_or(Timestamp::AT_ONCE, |within| {
            now.minus(within).minus(Duration::from_millis(1))
        });
        let after_missed = after.max(missed_through);
        let after_oldest = after.max(oldest.min(missed_through));
        match self.policy {
            MissedPolicy::Skip => recurrence.next_after(after_missed),
            MissedPolicy::All => recurrence.next_after(after_oldest),
            MissedPolicy::Latest => {
                let next = recurrence.next_after(after_missed);
                if next.is_some_and(|next| next.due <= now) {
                    return next;
                }
                recurrence
                    .last_between(after_oldest, missed_through)
                    .or(next)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::recurrence::occurrence::{Bounds, Timing};
    use proptest::prelude::*;

    const MINUTE: i64 = 60_000;
    const TOLERANCE: Duration = Duration::from_secs(60);

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_millis(minute * MINUTE)
    }

    fn every(minutes: u64) -> Recurrence {
        let timing = Timing::every(Duration::from_secs(60 * minutes), at(0)).expect("interval");
        let bounds = Bounds {
            defined: at(-1),
            from: None,
            until: None,
            times: None,
            fires: false,
        };
        Recurrence::new(b"id", timing, &bounds, Duration::ZERO).expect("recurrence")
    }

    /// The minutes of all occurrences that are delivered if each is taken at the minute `now`.
    fn delivered(missed: Missed, minutes: u64, after: i64, now: i64) -> Vec<i64> {
        let recurrence = every(minutes);
        let next = |after: &Timestamp| {
            let next = missed.next_to_deliver(&recurrence, *after, at(now), TOLERANCE);
            next.map(|next| next.due).filter(|due| *due <= at(now))
        };
        std::iter::successors(next(&at(after)), next)
            .map(|due| due.as_millis() / MINUTE)
            .collect()
    }

    fn missed(policy: MissedPolicy, within_minutes: Option<u64>) -> Missed {
        Missed {
            policy,
            within: within_minutes.map(|minutes| Duration::from_secs(60 * minutes)),
        }
    }

    #[test]
    fn latest_delivers_one_occurrence_after_an_outage() {
        let latest = missed(MissedPolicy::Latest, None);
        assert_eq!(delivered(latest, 10, 0, 57), [50]);
        // The one that is due now is on time, so the missed ones are left out.
        assert_eq!(delivered(latest, 10, 0, 60), [60]);
        assert_eq!(delivered(latest, 10, 0, 61), [60]);
        assert_eq!(delivered(latest, 10, 0, 62), [60]);
        // The cursor covers an occurrence that was delivered.
        assert!(delivered(latest, 10, 50, 57).is_empty());
        // Occurrences within the tolerance are all delivered.
        assert_eq!(delivered(latest, 1, 0, 57), [56, 57]);
    }

    #[test]
    fn skip_delivers_what_is_on_time_and_all_delivers_everything() {
        assert!(delivered(missed(MissedPolicy::Skip, None), 10, 0, 57).is_empty());
        assert_eq!(delivered(missed(MissedPolicy::Skip, None), 10, 0, 61), [60]);
        assert_eq!(
            delivered(missed(MissedPolicy::All, None), 10, 0, 57),
            [10, 20, 30, 40, 50]
        );
    }

    #[test]
    fn what_is_older_than_within_is_left_out() {
        assert_eq!(
            delivered(missed(MissedPolicy::All, Some(30)), 10, 0, 60),
            [30, 40, 50, 60]
        );
        assert_eq!(
            delivered(missed(MissedPolicy::Latest, Some(7)), 10, 0, 57),
            [50]
        );
        assert!(delivered(missed(MissedPolicy::Latest, Some(6)), 10, 0, 57).is_empty());
        // An occurrence within the tolerance is not missed.
        assert_eq!(
            delivered(missed(MissedPolicy::All, Some(0)), 10, 0, 61),
            [60]
        );
    }

    #[test]
    fn a_year_of_missed_seconds_takes_no_time() {
        let timing = Timing::every(Duration::from_secs(1), at(0)).expect("interval");
        let bounds = Bounds {
            defined: at(0),
            from: None,
            until: Some(at(500_000)),
            times: None,
            fires: false,
        };
        let recurrence =
            Recurrence::new(b"id", timing, &bounds, Duration::ZERO).expect("recurrence");
        let latest = missed(MissedPolicy::Latest, None);
        let next = latest.next_to_deliver(&recurrence, at(0), at(600_000), TOLERANCE);
        assert_eq!(next.map(|next| next.due), Some(at(500_000)));
    }

    proptest! {
        /// The rule for one occurrence, written without a search.
        #[test]
        fn each_policy_delivers_what_its_rule_says(
            minutes in 1u64..30, after in 0i64..400, outage in 0i64..400, within in proptest::option::of(0u64..100),
        ) {
            let now = after + outage;
            let all: Vec<i64> = (after + 1..=now).filter(|minute| minute.unsigned_abs() % minutes == 0).collect();
            let last = all.last().copied();
            for policy in MissedPolicy::ALL {
                let expected: Vec<i64> = all.iter().copied().filter(|minute| {
                    let is_recent = within.is_none_or(|within| (now - minute).unsigned_abs() <= within);
                    let is_kept = match policy {
                        MissedPolicy::Latest => Some(*minute) == last,
                        MissedPolicy::Skip => false,
                        MissedPolicy::All => true,
                    };
                    now - minute <= 1 || is_recent && is_kept
                }).collect();
                prop_assert_eq!(delivered(missed(policy, within), minutes, after, now), expected);
            }
        }
    }
}
