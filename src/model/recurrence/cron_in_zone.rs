//! From local times to instants: the rules for daylight saving.
//!
//! - **A fixed time** is due at the first instant at which the local clock shows it or a later
//!   time. A time that the clock skips is due at the first instant after the gap. A time that the
//!   clock shows twice is due once, at the earlier instant. Times that meet in one instant are one
//!   occurrence.
//! - **An expression with a wildcard** in its second, minute or hour is due at each instant at
//!   which the local clock shows a time that matches. So it has no occurrence in a gap, and runs
//!   through both passes of a repeated hour.

use super::cron_expression::CronExpression;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp as Instant};

/// A search gives up after this many years: an expression may match only times that are in a gap.
const YEARS_SEARCHED: i16 = 400;

#[derive(Clone, Debug)]
pub(super) struct CronInZone {
    pub(super) expression: CronExpression,
    pub(super) zone: TimeZone,
}

impl CronInZone {
    /// The first occurrence after an instant, which is a whole second. `None` if there is none
    /// within 400 years.
    pub(super) fn next_after(&self, after: Instant) -> Option<Instant> {
        if self.expression.has_wildcard_time {
            self.next_of_wildcard(after)
        } else {
            self.next_of_fixed(after)
        }
    }

    fn next_of_fixed(&self, after: Instant) -> Option<Instant> {
        // Passes the fixed times of a repeated hour at most: they were due in its first pass.
        let mut local = self.zone.to_datetime(after);
        loop {
            local = self.expression.at_or_after(second_after(local)?)?;
            let instant = self.first_shown(local)?;
            if instant > after {
                return Some(instant);
            }
        }
    }

    /// The first instant at which the clock shows a local time or a later one.
    fn first_shown(&self, local: DateTime) -> Option<Instant> {
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset: before }
            | AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local).ok(),
            AmbiguousOffset::Gap { before, after } => self.transition(local, before, after),
        }
    }

    /// The transition that skips or repeats a local time.
    ///
    /// Searches by the offsets, because jiff's lists of transitions are wrong where a zone's table
    /// ends and its rule begins, as in America/Indiana/Winamac in 2007.
    fn transition(&self, local: DateTime, before: Offset, after: Offset) -> Option<Instant> {
        let ends =
            [before, after].map(|offset| offset.to_timestamp(local).ok().map(Instant::as_second));
        let (mut earlier, mut later) = (ends[0]?.min(ends[1]?), ends[0]?.max(ends[1]?));
        while later - earlier > 1 {
            let middle = earlier.midpoint(later);
            if self.zone.to_offset(Instant::from_second(middle).ok()?) == before {
                earlier = middle;
            } else {
                later = middle;
            }
        }
        Instant::from_second(later).ok()
    }

    fn next_of_wildcard(&self, after: Instant) -> Option<Instant> {
        let local = self.zone.to_datetime(after);
        let next = self.next_shown(second_after(local)?, after);
        let ambiguous = self.zone.to_ambiguous_timestamp(local).offset();
        let AmbiguousOffset::Fold {
            before,
            after: later,
        } = ambiguous
        else {
            return next;
        };
        if self.zone.to_offset(after) != before {
            return next;
        }
        // The clock will show some local times again that are not after this one.
        let second_pass = self.transition(local, before, later)?;
        let from = self.zone.to_datetime(second_pass);
        let in_second_pass = self.next_shown(from, second_before(second_pass)?);
        [next, in_second_pass].into_iter().flatten().min()
    }

    /// The first instant after `after` at which the clock shows a time that matches and is at least
    /// `from`.
    fn next_shown(&self, from: DateTime, after: Instant) -> Option<Instant> {
        let mut local = self.expression.at_or_after(from)?;
        while local.year() <= from.year().saturating_add(YEARS_SEARCHED) {
            match self.zone.to_ambiguous_timestamp(local).offset() {
                AmbiguousOffset::Unambiguous { offset } => return offset.to_timestamp(local).ok(),
                AmbiguousOffset::Fold {
                    before,
                    after: later,
                } => {
                    let first = before
                        .to_timestamp(local)
                        .ok()
                        .filter(|instant| *instant > after);
                    return first.or_else(|| later.to_timestamp(local).ok());
                }
                AmbiguousOffset::Gap { before, after } => {
                    let gap_end = self.transition(local, before, after)?;
                    local = self
                        .expression
                        .at_or_after(self.zone.to_datetime(gap_end))?;
                }
            }
        }
        None
    }
}

fn second_after(local: DateTime) -> Option<DateTime> {
    local.checked_add(SignedDuration::from_secs(1)).ok()
}

fn second_before(instant: Instant) -> Option<Instant> {
    instant.checked_sub(SignedDuration::from_secs(1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::recurrence::zones::zone;

    /// The first occurrences after an instant, as local times with their offsets.
    fn next<const N: usize>(text: &str, zone_name: &str, after: &str) -> [String; N] {
        let zone = zone(zone_name).expect(zone_name);
        let expression = CronExpression::parse(text).expect(text);
        let cron = CronInZone { expression, zone };
        let mut after: Instant = after.parse().expect(after);
        std::array::from_fn(|_| {
            after = cron.next_after(after).expect(text);
            let local = cron.zone.to_datetime(after);
            format!("{local}{}", cron.zone.to_offset(after))
        })
    }

    #[test]
    fn a_fixed_time_in_a_gap_is_due_at_the_first_instant_after_it() {
        assert_eq!(
            next("30 2 * * *", "America/New_York", "2027-03-13T12:00Z"),
            ["2027-03-14T03:00:00-04", "2027-03-15T02:30:00-04"]
        );
        assert_eq!(
            next("15 2 * * *", "Australia/Lord_Howe", "2027-10-02T03:00Z"),
            ["2027-10-03T02:30:00+11", "2027-10-04T02:15:00+11"]
        );
        // Midnight does not exist on this day.
        assert_eq!(
            next("0 0 * * FRI", "Africa/Cairo", "2027-04-24T00:00Z"),
            ["2027-04-30T01:00:00+03", "2027-05-07T00:00:00+03"]
        );
    }

    #[test]
    fn a_list_of_fixed_times_loses_none_in_a_gap() {
        assert_eq!(
            next("0 2,14 * * *", "America/New_York", "2027-03-14T05:00Z"),
            [
                "2027-03-14T03:00:00-04",
                "2027-03-14T14:00:00-04",
                "2027-03-15T02:00:00-04"
            ]
        );
        // 02:00 and 03:00 are the same instant on this day.
        assert_eq!(
            next("0 2,3 * * *", "America/New_York", "2027-03-14T05:00Z"),
            ["2027-03-14T03:00:00-04", "2027-03-15T02:00:00-04"]
        );
    }

    #[test]
    fn a_gap_of_three_hours_or_a_day_or_at_the_end_of_a_day_skips_no_fixed_time() {
        assert_eq!(
            next("30 2 * * *", "Antarctica/Casey", "2009-10-17T00:00Z"),
            ["2009-10-18T05:00:00+11", "2009-10-19T02:30:00+11"]
        );
        assert_eq!(
            next("0 9 * * FRI", "Pacific/Apia", "2011-12-29T00:00Z"),
            ["2011-12-31T00:00:00+14", "2012-01-06T09:00:00+14"]
        );
        assert_eq!(
            next("45 23 4 5 *", "Asia/Pyongyang", "2018-05-01T00:00Z"),
            ["2018-05-05T00:00:00+09", "2019-05-04T23:45:00+09"]
        );
    }

    #[test]
    fn a_repeated_hour_delivers_fixed_times_once() {
        assert_eq!(
            next("30 1 * * *", "America/New_York", "2027-11-06T12:00Z"),
            ["2027-11-07T01:30:00-04", "2027-11-08T01:30:00-05"]
        );
        // After the second pass began, the time is over for this day.
        assert_eq!(
            next("30 1 * * *", "America/New_York", "2027-11-07T06:00Z"),
            ["2027-11-08T01:30:00-05"]
        );
    }

    #[test]
    fn a_wildcard_runs_through_both_passes_and_skips_a_gap() {
        assert_eq!(
            next("*/30 * * * *", "America/New_York", "2027-11-07T05:00Z"),
            [
                "2027-11-07T01:30:00-04",
                "2027-11-07T01:00:00-05",
                "2027-11-07T01:30:00-05",
                "2027-11-07T02:00:00-05"
            ]
        );
        assert_eq!(
            next("*/30 * * * *", "America/New_York", "2027-03-14T06:00Z"),
            ["2027-03-14T01:30:00-05", "2027-03-14T03:00:00-04"]
        );
        assert_eq!(
            next("*/30 2 * * *", "America/New_York", "2027-03-13T12:00Z"),
            ["2027-03-15T02:00:00-04", "2027-03-15T02:30:00-04"]
        );
    }

    #[test]
    fn the_end_of_a_gap_is_right_where_the_table_of_a_zone_ends() {
        assert_eq!(
            next("17 2 * * *", "America/Indiana/Winamac", "2007-03-11T00:00Z"),
            ["2007-03-11T04:00:00-04", "2007-03-12T02:17:00-04"]
        );
    }

    #[test]
    fn a_wildcard_that_is_always_in_a_gap_ends() {
        let zone = zone("America/New_York").expect("zone");
        let expression = CronExpression::parse("*/5 2 ? 3 SUN#2").expect("expression");
        let after = "2027-01-01T00:00Z".parse().expect("instant");
        assert_eq!(CronInZone { expression, zone }.next_after(after), None);
    }
}
