//! When a schedule is due, with its bounds and its spread.

use super::cron_expression::CronExpression;
use super::cron_in_zone::CronInZone;
use super::cron_text::CronTextError;
use super::zones::zone;
use crate::model::Timestamp;
use crate::model::parsing::time_grammar::format_units;
use std::fmt;
use std::time::Duration;

const MILLISECOND: Duration = Duration::from_millis(1);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// `times` needs as many searches when a definition is read.
pub(crate) const TIMES_MAX: u32 = 10_000;

/// Why a definition has no occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecurrenceError {
    #[error(transparent)]
    Cron(#[from] CronTextError),
    #[error("the name of a time zone, such as Europe/Berlin")]
    UnknownZone,
    #[error("at least 1s")]
    IntervalTooShort,
    #[error("a number from 1 to {TIMES_MAX}")]
    TimesOutOfRange,
    #[error("at most {} ms, the shortest interval of the schedule", .longest.as_millis())]
    SpreadTooLong { longest: Duration },
    #[error("a time after its own timestamp and within its bounds")]
    NeverDue,
}

/// The planned times of a schedule, before its `Bounds` apply.
#[derive(Clone, Debug)]
pub(crate) enum Timing {
    Cron(Box<Cron>),
    /// Each `interval` before and after `anchor`.
    Every {
        interval: Duration,
        anchor: Timestamp,
    },
}

/// A cron expression in a zone.
#[derive(Clone, Debug)]
pub(crate) struct Cron(CronInZone);

impl Timing {
    /// `zone_name` is an IANA name.
    pub(crate) fn cron(expression: &str, zone_name: &str) -> Result<Self, RecurrenceError> {
        let expression = CronExpression::parse(expression)?;
        let zone = zone(zone_name).ok_or(RecurrenceError::UnknownZone)?;
        Ok(Self::Cron(Box::new(Cron(CronInZone { expression, zone }))))
    }

    pub(crate) fn every(interval: Duration, anchor: Timestamp) -> Result<Self, RecurrenceError> {
        if interval < SHORTEST_INTERVAL {
            return Err(RecurrenceError::IntervalTooShort);
        }
        Ok(Self::Every { interval, anchor })
    }

    fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron(cron) => {
                let second = jiff::Timestamp::from_second(after.as_millis().div_euclid(1_000));
                let next = cron.0.next_after(second.ok()?)?;
                Some(Timestamp::from_millis(next.as_millisecond()))
            }
            Self::Every { interval, anchor } => {
                let (interval, anchor) = (
                    interval.as_millis().cast_signed(),
                    i128::from(anchor.as_millis()),
                );
                let passed = (i128::from(after.as_millis()) - anchor).div_euclid(interval);
                let next = anchor + (passed + 1) * interval;
                i64::try_from(next).ok().map(Timestamp::from_millis)
            }
        }
    }

    fn shortest_interval(&self) -> Duration {
        match self {
            Self::Cron(cron) => {
                Duration::from_secs(cron.0.expression.shortest_interval_seconds().into())
            }
            Self::Every { interval, .. } => *interval,
        }
    }
}

/// In words: `at 09:00 on Monday to Friday, Europe/Berlin`, or `every 15m`.
impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cron(cron) => {
                let CronInZone { expression, zone } = &cron.0;
                write!(f, "{expression}, {}", zone.iana_name().unwrap_or("UTC"))
            }
            Self::Every { interval, .. } => write!(f, "every {}", format_units(*interval)),
        }
    }
}

/// The bounds of a schedule. Both times belong to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The timestamp of the record that defines the schedule. An occurrence is later.
    pub(crate) defined: Timestamp,
    pub(crate) from: Option<Timestamp>,
    pub(crate) until: Option<Timestamp>,
    /// The number of occurrences after `from`, or after `defined` without it.
    pub(crate) times: Option<u32>,
    /// One more occurrence is due at `defined`. No bound and no number of times applies to it.
    pub(crate) fires: bool,
}

/// One occurrence of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occurrence {
    pub(crate) planned: Timestamp,
    /// The planned time and the schedule's part of the spread.
    pub(crate) due: Timestamp,
}

/// A planned time in the zone of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalTime {
    /// `2027-03-14T03:00:00-04:00[America/New_York]`
    pub(crate) text: String,
    /// The clock skips the time of the expression, so the occurrence is at the end of the gap.
    pub(crate) is_moved: bool,
}

/// When a schedule is due. A function of the definition and of the time-zone data.
#[derive(Clone, Debug)]
pub(crate) struct Recurrence {
    timing: Timing,
    /// The planned times are after `after` and at most `last`.
    after: Timestamp,
    last: Timestamp,
    /// From a planned time to its due time; shorter than the shortest interval.
    offset: Duration,
    /// One more occurrence. It is due before all others.
    fire: Option<Timestamp>,
}

impl Recurrence {
    /// `schedule` is the id of the schedule, which decides its place in the spread.
    pub(crate) fn new(
        schedule: &[u8],
        timing: Timing,
        bounds: &Bounds,
        spread: Duration,
    ) -> Result<Self, RecurrenceError> {
        let longest = timing.shortest_interval();
        if spread > longest {
            return Err(RecurrenceError::SpreadTooLong { longest });
        }
        let offset = place_in_spread(schedule, spread);
        // An occurrence belongs to the definition if it is due after the record. So an update in the time of a
        // spread leaves no planned time out.
        let defined = bounds.defined.minus(offset);
        let before_from = bounds.from.map(|from| from.minus(MILLISECOND));
        let mut last = bounds.until.unwrap_or(Timestamp::MAX);
        if let Some(times) = bounds.times {
            let start = before_from.unwrap_or(defined);
            last = last.min(nth_after(&timing, start, times)?);
        }
        let recurrence = Self {
            timing,
            after: before_from.map_or(defined, |before_from| defined.max(before_from)),
            last,
            offset,
            fire: bounds.fires.then_some(bounds.defined),
        };
        match recurrence.next_after(Timestamp::AT_ONCE) {
            Some(_) => Ok(recurrence),
            None => Err(RecurrenceError::NeverDue),
        }
    }

    /// The first occurrence that is due after an instant.
    pub(crate) fn next_after(&self, after: Timestamp) -> Option<Occurrence> {
        if let Some(fire) = self.fire.filter(|fire| *fire > after) {
            return Some(Occurrence {
                planned: fire,
                due: fire,
            });
        }
        let after = after.minus(self.offset).max(self.after);
        let planned = self
            .timing
            .next_after(after)
            .filter(|planned| *planned <= self.last)?;
        let due = planned.plus(self.offset);
        Some(Occurrence { planned, due })
    }

    /// The first planned time, without the fire.
    pub(crate) fn first_planned(&self) -> Option<Timestamp> {
        let first = self.timing.next_after(self.after);
        first.filter(|planned| *planned <= self.last)
    }

    /// Leaves out all occurrences up to `through`, except for the fire.
    pub(crate) fn begin_after(&mut self, through: Timestamp) {
        self.after = self.after.max(through.minus(self.offset));
    }

    /// Leaves out everything except for the fire.
    pub(crate) fn keep_fire_only(&mut self) {
        self.last = Timestamp::AT_ONCE;
    }

    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// A planned time as the clock of the schedule's zone shows it. `None` for an interval, which has
    /// no zone.
    pub(crate) fn local_time(&self, planned: Timestamp) -> Option<LocalTime> {
        let Timing::Cron(cron) = &self.timing else {
            return None;
        };
        let CronInZone { expression, zone } = &cron.0;
        let instant = jiff::Timestamp::from_millisecond(planned.as_millis()).ok()?;
        let shown = zone.to_datetime(instant);
        Some(LocalTime {
            text: instant.to_zoned_datetime(zone.clone()).to_string(),
            is_moved: self.fire != Some(planned) && expression.at_or_after(shown) != Some(shown),
        })
    }

    /// The last occurrence that is due after `after`, and at `through` or before.
    ///
    /// Takes at most 64 searches, because each one halves the time that is left.
    pub(super) fn last_between(&self, after: Timestamp, through: Timestamp) -> Option<Occurrence> {
        let next = |after| self.next_after(after).filter(|next| next.due <= through);
        let mut last = next(after)?;
        let mut end = through;
        while last.due < end {
            let middle = last.due.plus(end.since(last.due) / 2);
            match next(middle) {
                Some(later) => last = later,
                None => end = middle,
            }
        }
        Some(last)
    }
}

/// The time of the nth occurrence, or the end of time if there are fewer.
fn nth_after(timing: &Timing, start: Timestamp, times: u32) -> Result<Timestamp, RecurrenceError> {
    if !(1..=TIMES_MAX).contains(&times) {
        return Err(RecurrenceError::TimesOutOfRange);
    }
    let nth = (0..times).try_fold(start, |last, _| timing.next_after(last));
    Ok(nth.unwrap_or(Timestamp::MAX))
}

/// The same place for each occurrence, so that the intervals stay as they are. Whole milliseconds.
fn place_in_spread(schedule: &[u8], spread: Duration) -> Duration {
    let millis = u64::try_from(spread.as_millis()).unwrap_or(u64::MAX).max(1);
    Duration::from_millis(hash(schedule) % millis)
}

/// FNV-1a. Written here because the place of a schedule must never change.
fn hash(bytes: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: i64 = 3_600_000;
    const YEAR_2010: i64 = 1_262_304_000_000;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn bounds(defined: i64) -> Bounds {
        Bounds {
            defined: at(defined),
            from: None,
            until: None,
            times: None,
            fires: false,
        }
    }

    fn every(millis: u64, anchor: i64) -> Timing {
        Timing::every(Duration::from_millis(millis), at(anchor)).expect("interval")
    }

    fn recurrence(timing: Timing, bounds: &Bounds) -> Recurrence {
        Recurrence::new(b"id", timing, bounds, Duration::ZERO).expect("recurrence")
    }

    fn planned(recurrence: &Recurrence) -> Vec<i64> {
        let next = |after: &Timestamp| recurrence.next_after(*after).map(|next| next.due);
        std::iter::successors(next(&Timestamp::AT_ONCE), next)
            .map(Timestamp::as_millis)
            .take(4)
            .collect()
    }

    #[test]
    fn an_interval_counts_from_its_anchor_and_never_drifts() {
        assert_eq!(
            planned(&recurrence(every(7_000, 0), &bounds(15_000))),
            [21_000, 28_000, 35_000, 42_000]
        );
        assert_eq!(
            planned(&recurrence(every(7_000, 2_000), &bounds(15_000)))[..2],
            [16_000, 23_000]
        );
        // An anchor in the future counts backwards as well.
        assert_eq!(
            planned(&recurrence(every(7_000, 100_000), &bounds(15_000)))[..2],
            [16_000, 23_000]
        );
        // An occurrence at its own timestamp is over.
        assert_eq!(
            planned(&recurrence(every(7_000, 0), &bounds(14_000)))[0],
            21_000
        );
        assert_eq!(
            planned(&recurrence(every(7_000, 0), &bounds(13_999)))[0],
            14_000
        );
    }

    #[test]
    fn both_bounds_belong_to_the_schedule() {
        let bounds = Bounds {
            from: Some(at(21_000)),
            until: Some(at(35_000)),
            ..bounds(0)
        };
        assert_eq!(
            planned(&recurrence(every(7_000, 0), &bounds)),
            [21_000, 28_000, 35_000]
        );
    }

    #[test]
    fn times_count_from_the_first_bound() {
        let mut limits = Bounds {
            times: Some(3),
            ..bounds(15_000)
        };
        assert_eq!(
            planned(&recurrence(every(7_000, 0), &limits)),
            [21_000, 28_000, 35_000]
        );
        limits.from = Some(at(28_000));
        assert_eq!(
            planned(&recurrence(every(7_000, 0), &limits)),
            [28_000, 35_000, 42_000]
        );
        // Occurrences before the definition count, and are over.
        limits.from = Some(at(7_000));
        assert_eq!(planned(&recurrence(every(7_000, 0), &limits)), [21_000]);
        limits.until = Some(at(20_000));
        let ended = Recurrence::new(b"id", every(7_000, 0), &limits, Duration::ZERO);
        assert_eq!(ended.map(|_| ()), Err(RecurrenceError::NeverDue));
    }

    #[test]
    fn a_definition_without_occurrences_is_refused() {
        let cron = |text: &str, zone: &str| {
            let timing = Timing::cron(text, zone)?;
            Recurrence::new(b"id", timing, &bounds(YEAR_2010), Duration::ZERO).map(|_| ())
        };
        assert_eq!(cron("0 9 * * *", "Europe/Berlin"), Ok(()));
        assert_eq!(
            cron("0 9 * * *", "Europe/Bern"),
            Err(RecurrenceError::UnknownZone)
        );
        for never in ["0 0 30 2 *", "0 0 0 1 1 ? 1970", "*/5 2 ? 3 SUN#2"] {
            assert_eq!(
                cron(never, "America/New_York"),
                Err(RecurrenceError::NeverDue),
                "{never}"
            );
        }
        assert!(matches!(cron("0 9", "UTC"), Err(RecurrenceError::Cron(_))));
        let short = Timing::every(Duration::from_millis(999), at(0)).map(|_| ());
        assert_eq!(short, Err(RecurrenceError::IntervalTooShort));
        for times in [0, TIMES_MAX + 1] {
            let bounds = Bounds {
                times: Some(times),
                ..bounds(0)
            };
            let refused = Recurrence::new(b"id", every(7_000, 0), &bounds, Duration::ZERO);
            assert_eq!(refused.map(|_| ()), Err(RecurrenceError::TimesOutOfRange));
        }
    }

    #[test]
    fn a_spread_is_never_early_and_at_most_the_shortest_interval() {
        let spread = |millis| {
            let timing = Timing::cron("0 9,17 * * *", "UTC").expect("cron");
            Recurrence::new(b"id", timing, &bounds(0), Duration::from_millis(millis))
        };
        let longest = Duration::from_secs(8 * 3_600);
        assert_eq!(
            spread(28_800_001).map(|_| ()),
            Err(RecurrenceError::SpreadTooLong { longest })
        );
        let next = spread(28_800_000)
            .expect("spread")
            .next_after(at(0))
            .expect("occurrence");
        assert_eq!(next.planned, at(9 * HOUR));
        assert!(
            (at(9 * HOUR)..at(17 * HOUR)).contains(&next.due),
            "{next:?}"
        );
    }

    #[test]
    fn an_update_in_the_time_of_a_spread_leaves_no_planned_time_out() {
        let recurrence = |defined| {
            let timing = Timing::cron("0 9 * * *", "UTC").expect("cron");
            let limits = Bounds {
                times: Some(1),
                ..bounds(defined)
            };
            Recurrence::new(b"id", timing, &limits, Duration::from_secs(3_600)).expect("spread")
        };
        let first = recurrence(0).next_after(at(0)).expect("occurrence");
        assert!(first.due > first.planned, "{first:?}");
        let before_due = first.due.as_millis() - 1;
        let updated = recurrence(before_due).next_after(at(0));
        assert_eq!(updated, Some(first));
        let later = recurrence(before_due + 1).next_after(at(0));
        assert!(later.is_some_and(|later| later.planned > first.due));
    }

    #[test]
    fn a_fire_is_outside_of_all_bounds_and_is_never_moved() {
        let limits = Bounds {
            from: Some(at(28_000)),
            times: Some(2),
            fires: true,
            ..bounds(15_000)
        };
        let mut fired = recurrence(every(7_000, 0), &limits);
        assert_eq!(planned(&fired), [15_000, 28_000, 35_000]);
        assert_eq!(fired.first_planned(), Some(at(28_000)));
        fired.begin_after(at(28_000));
        assert_eq!(planned(&fired), [15_000, 35_000]);
        fired.keep_fire_only();
        assert_eq!(planned(&fired), [15_000]);
        let timing = Timing::cron("30 2 * * *", "UTC").expect("cron");
        let cron = recurrence(timing, &limits);
        assert!(!cron.local_time(at(15_000)).expect("a zone").is_moved);
    }

    #[test]
    fn a_local_time_shows_whether_daylight_saving_moves_it() {
        // 2027-03-13T12:00:00Z, the day before the clock goes forward.
        let bounds = bounds(1_804_939_200_000);
        let timing = Timing::cron("30 2 * * *", "America/New_York").expect("cron");
        assert_eq!(timing.to_string(), "at 02:30, America/New_York");
        let recurrence = recurrence(timing, &bounds);
        let times = planned(&recurrence).into_iter().map(|due| {
            let local = recurrence.local_time(at(due)).expect("a zone");
            (local.text, local.is_moved)
        });
        let expected = [
            ("2027-03-14T03:00:00-04:00[America/New_York]", true),
            ("2027-03-15T02:30:00-04:00[America/New_York]", false),
        ];
        assert!(
            times
                .take(2)
                .eq(expected.map(|(text, moved)| (text.to_owned(), moved)))
        );
    }

    #[test]
    fn an_interval_is_described_without_a_zone() {
        let recurrence = recurrence(every(5_400_000, 0), &bounds(0));
        assert_eq!(recurrence.timing().to_string(), "every 1h30m");
        assert_eq!(recurrence.local_time(at(5_400_000)), None);
    }

    #[test]
    fn the_place_in_a_spread_never_changes_between_versions() {
        let place = |id: &str| place_in_spread(id.as_bytes(), Duration::from_secs(300)).as_millis();
        assert_eq!([place("a"), place("invoices"), place("")], PLACES);
    }

    const PLACES: [u128; 3] = [241_996, 273_785, 256_037];

    #[test]
    fn schedules_are_spread_evenly() {
        let mut buckets = [0; 10];
        for id in 0..10_000 {
            let place =
                place_in_spread(format!("schedule-{id}").as_bytes(), Duration::from_secs(10));
            buckets[place.as_secs() as usize] += 1;
        }
        assert!(
            buckets.iter().all(|count| (900..1_100).contains(count)),
            "{buckets:?}"
        );
    }

    proptest! {
        #[test]
        fn occurrences_rise_and_the_last_one_is_found(
            interval in 1_000u64..100_000_000,
            anchor: i32,
            spread in 0u64..100_000_000,
            start in 0i64..4_000_000_000_000,
            length in 0i64..100_000_000,
        ) {
            let spread = Duration::from_millis(spread.min(interval));
            let timing = every(interval, anchor.into());
            let recurrence = Recurrence::new(b"id", timing, &bounds(0), spread).expect("recurrence");
            let (after, through) = (at(start), at(start + length));
            let next = |after: &Timestamp| recurrence.next_after(*after).map(|next| next.due);
            let all: Vec<_> = std::iter::successors(next(&after), next)
                .take_while(|due| *due <= through)
                .collect();
            prop_assert!(all.iter().is_sorted_by(|one, other| one < other));
            prop_assert!(all.first().is_none_or(|first| *first > after));
            let last = recurrence.last_between(after, through).map(|last| last.due);
            prop_assert_eq!(last, all.last().copied());
        }

        #[test]
        fn any_instant_has_an_answer(after: i64, defined: i64, from: i64, zone in 0usize..3) {
            let zone = ["UTC", "Pacific/Apia", "America/New_York"][zone];
            for timing in [Timing::cron("0 2 * * *", zone).expect("cron"), every(1_000, from)] {
                let bounds = Bounds { from: Some(at(from)), ..bounds(defined) };
                if let Ok(recurrence) = Recurrence::new(b"id", timing, &bounds, Duration::ZERO) {
                    let next = recurrence.next_after(at(after));
                    prop_assert!(next.is_none_or(|next| next.due > at(after).max(at(defined))));
                }
            }
        }
    }
}
