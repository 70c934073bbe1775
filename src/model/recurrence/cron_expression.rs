//! The fields of a cron expression as sets, and the next local time that they match.

use jiff::civil::{Date, DateTime, Time};

/// The search for a day ends after this many months: the calendar repeats after 400 years.
const MONTHS_SEARCHED: usize = 400 * 12;

/// The years that an expression may name.
pub(super) const YEARS: std::ops::RangeInclusive<u32> = 1970..=2199;

/// A set of numbers below 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Set(u64);

impl Set {
    pub(super) fn insert(&mut self, value: u32) {
        self.0 |= 1 << value;
    }

    fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn contains(self, value: u32) -> bool {
        self.0 >> value & 1 == 1
    }

    /// The least number that is at least `from`, which is below 64.
    fn at_or_above(self, from: u32) -> Option<u32> {
        let rest = self.0 >> from << from;
        (rest != 0).then(|| rest.trailing_zeros())
    }

    fn least(self) -> Option<u32> {
        self.at_or_above(0)
    }

    fn greatest(self) -> Option<u32> {
        self.0.checked_ilog2()
    }

    /// The least distance of two neighbours. `None` for fewer than two numbers.
    fn least_distance(self) -> Option<u32> {
        (1..64).find(|distance| self.0 & (self.0 >> distance) != 0)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = u32> {
        (0..64).filter(move |value| self.contains(*value))
    }
}

/// The field "day of month".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DaysOfMonth {
    pub(super) days: Set,
    /// Days with `W`: the weekday of the same month that is nearest to the day.
    pub(super) nearest_weekdays: Set,
    /// `L`
    pub(super) last: bool,
    /// `LW`
    pub(super) last_weekday: bool,
}

/// The field "day of week". Sunday is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DaysOfWeek {
    pub(super) days: Set,
    /// Days with `#n`, at index n - 1.
    pub(super) nth: [Set; 5],
    /// Days with `L`.
    pub(super) last: Set,
}

/// The field "year".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Years([Set; 4]);

impl Years {
    pub(super) fn insert(&mut self, year: u32) {
        let index = year - YEARS.start();
        self.0[index as usize / 64].insert(index % 64);
    }

    pub(super) fn contains(&self, year: u32) -> bool {
        YEARS.contains(&year) && {
            let index = year - YEARS.start();
            self.0[index as usize / 64].contains(index % 64)
        }
    }
}

/// A parsed cron expression. Each field has at least one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CronExpression {
    pub(super) seconds: Set,
    pub(super) minutes: Set,
    pub(super) hours: Set,
    /// `None` for `*` and `?`: then the day of week alone decides.
    pub(super) days_of_month: Option<DaysOfMonth>,
    pub(super) months: Set,
    /// `None` for `*` and `?`: then the day of month alone decides.
    pub(super) days_of_week: Option<DaysOfWeek>,
    /// `None` for `*`.
    pub(super) years: Option<Box<Years>>,
    /// The second, minute or hour has a `*` or a step without an end, such as `0/15`.
    pub(super) has_wildcard_time: bool,
}

impl CronExpression {
    /// The first local time at or after `from` that matches. `None` if there is none within 400
    /// years.
    pub(super) fn at_or_after(&self, from: DateTime) -> Option<DateTime> {
        let date = from.date();
        if self.days_of(date.year(), date.month()).contains(day(date))
            && let Some(time) = self.time_at_or_after(from.time())
        {
            return Some(date.to_datetime(time));
        }
        let time = self.time_at_or_after(Time::midnight())?;
        Some(self.date_after(date)?.to_datetime(time))
    }

    fn time_at_or_after(&self, from: Time) -> Option<Time> {
        let [hour, minute, second] =
            [from.hour(), from.minute(), from.second()].map(i8::cast_unsigned);
        let (hour, minute, second) = (hour.into(), minute.into(), second.into());
        let (first_minute, first_second) = (self.minutes.least()?, self.seconds.least()?);
        if self.hours.contains(hour) {
            if self.minutes.contains(minute)
                && let Some(second) = self.seconds.at_or_above(second)
            {
                return time(hour, minute, second);
            }
            if let Some(minute) = self.minutes.at_or_above(minute + 1) {
                return time(hour, minute, first_second);
            }
        }
        time(
            self.hours.at_or_above(hour + 1)?,
            first_minute,
            first_second,
        )
    }

    fn date_after(&self, date: Date) -> Option<Date> {
        let (mut year, mut month) = (date.year(), date.month());
        let mut from = day(date) + 1;
        for _ in 0..=MONTHS_SEARCHED {
            if let Some(day) = self.days_of(year, month).at_or_above(from) {
                return Date::new(year, month, i8::try_from(day).ok()?).ok();
            }
            (year, month) = if month == 12 {
                (year + 1, 1)
            } else {
                (year, month + 1)
            };
            from = 1;
        }
        None
    }

    /// The days of a month that match.
    fn days_of(&self, year: i16, month: i8) -> Set {
        let is_in_year = self
            .years
            .as_ref()
            .is_none_or(|years| years.contains(year.cast_unsigned().into()));
        let is_in_month = self.months.contains(month.cast_unsigned().into());
        let Ok(first) = Date::new(year, month, 1) else {
            return Set::default();
        };
        if !is_in_year || !is_in_month {
            return Set::default();
        }
        let month = Month::starting(first);
        match (&self.days_of_month, &self.days_of_week) {
            (None, None) => month.all_days(),
            (Some(days), None) => month.days_of_month(days),
            (None, Some(days)) => month.days_of_week(days),
            (Some(of_month), Some(of_week)) => month
                .days_of_month(of_month)
                .union(month.days_of_week(of_week)),
        }
    }

    /// The shortest time between two local times that match, on one day or on neighbouring days.
    pub(super) fn shortest_interval_seconds(&self) -> u32 {
        let span = |set: Set| set.greatest().unwrap_or(0) - set.least().unwrap_or(0);
        let of_second = self.seconds.least_distance();
        let of_minute = self
            .minutes
            .least_distance()
            .map(|distance| 60 * distance - span(self.seconds));
        let in_hour = 60 * span(self.minutes) + span(self.seconds);
        let of_hour = self
            .hours
            .least_distance()
            .map(|distance| 3_600 * distance - in_hour);
        let of_day = 86_400 - (3_600 * span(self.hours) + in_hour);
        let candidates = [of_second, of_minute, of_hour, Some(of_day)];
        candidates.into_iter().flatten().min().unwrap_or(of_day)
    }
}

/// A month of a year, for the rules that depend on its length and on its weekdays.
#[derive(Clone, Copy)]
struct Month {
    length: u32,
    /// The weekday of day 0, which is the day before the first one.
    weekday_of_zero: u32,
}

impl Month {
    fn starting(first: Date) -> Self {
        let weekday = first.weekday().to_sunday_zero_offset().cast_unsigned();
        Self {
            length: first.days_in_month().cast_unsigned().into(),
            weekday_of_zero: (u32::from(weekday) + 6) % 7,
        }
    }

    fn all_days(self) -> Set {
        Set((2 << self.length) - 2)
    }

    /// Sunday is 0.
    fn weekday(self, day: u32) -> u32 {
        (self.weekday_of_zero + day) % 7
    }

    fn days_of_month(self, field: &DaysOfMonth) -> Set {
        let mut days = field.days;
        if field.last {
            days.insert(self.length);
        }
        if field.last_weekday {
            days.insert(self.nearest_weekday(self.length));
        }
        for day in field
            .nearest_weekdays
            .iter()
            .filter(|day| *day <= self.length)
        {
            days.insert(self.nearest_weekday(day));
        }
        days.intersection(self.all_days())
    }

    /// The nearest day from Monday to Friday in this month.
    fn nearest_weekday(self, day: u32) -> u32 {
        match self.weekday(day) {
            6 if day > 1 => day - 1,
            6 => day + 2,
            0 if day < self.length => day + 1,
            0 => day - 2,
            _ => day,
        }
    }

    fn days_of_week(self, field: &DaysOfWeek) -> Set {
        let mut days = Set::default();
        for day in 1..=self.length {
            let (weekday, nth) = (self.weekday(day), (day - 1) / 7);
            let is_last = day + 7 > self.length;
            if field.days.contains(weekday)
                || field.nth[nth as usize].contains(weekday)
                || is_last && field.last.contains(weekday)
            {
                days.insert(day);
            }
        }
        days
    }
}

fn day(date: Date) -> u32 {
    date.day().cast_unsigned().into()
}

fn time(hour: u32, minute: u32, second: u32) -> Option<Time> {
    let [hour, minute, second] = [hour, minute, second].map(|part| i8::try_from(part).ok());
    Time::new(hour?, minute?, second?, 0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(text: &str, from: &str) -> Option<String> {
        let expression = CronExpression::parse(text).expect(text);
        let next = expression.at_or_after(from.parse().expect(from));
        next.map(|next| next.to_string())
    }

    #[test]
    fn the_next_local_time_is_the_first_that_matches() {
        let table = [
            // Expression, from, next.
            ("0 9 * * *", "2027-01-31T09:00:00", "2027-01-31T09:00:00"),
            ("0 9 * * *", "2027-01-31T09:00:01", "2027-02-01T09:00:00"),
            ("30 * * * *", "2027-01-31T23:30:01", "2027-02-01T00:30:00"),
            (
                "5,50 9,17 * * *",
                "2027-01-31T09:05:01",
                "2027-01-31T09:50:00",
            ),
            (
                "5,50 9,17 * * *",
                "2027-01-31T09:51:00",
                "2027-01-31T17:05:00",
            ),
            (
                "15,45 59 23 31 12 *",
                "2027-12-31T23:59:16",
                "2027-12-31T23:59:45",
            ),
            (
                "15,45 59 23 31 12 *",
                "2027-12-31T23:59:46",
                "2028-12-31T23:59:15",
            ),
            ("* * * * * *", "2027-12-31T23:59:59", "2027-12-31T23:59:59"),
            ("0 0 31 * *", "2027-02-01T00:00:00", "2027-03-31T00:00:00"),
            ("0 0 29 2 *", "2027-01-01T00:00:00", "2028-02-29T00:00:00"),
            ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00"),
            ("0 0 L * *", "2027-02-01T00:00:00", "2027-02-28T00:00:00"),
            ("0 0 L 2 *", "2028-01-01T00:00:00", "2028-02-29T00:00:00"),
            // 31 January 2027 is a Sunday.
            ("0 0 LW * *", "2027-01-01T00:00:00", "2027-01-29T00:00:00"),
            ("0 0 31W * *", "2027-01-01T00:00:00", "2027-01-29T00:00:00"),
            ("0 0 31W * *", "2027-02-01T00:00:00", "2027-03-31T00:00:00"),
            // 1 May 2027 is a Saturday, and 1 August 2027 a Sunday.
            ("0 0 1W 5 *", "2027-01-01T00:00:00", "2027-05-03T00:00:00"),
            ("0 0 1W 8 *", "2027-01-01T00:00:00", "2027-08-02T00:00:00"),
            (
                "0 0 15W,L 5 *",
                "2027-01-01T00:00:00",
                "2027-05-14T00:00:00",
            ),
            (
                "0 0 * * FRI#5",
                "2027-01-30T00:00:00",
                "2027-04-30T00:00:00",
            ),
            ("0 0 * * FRIL", "2027-02-01T00:00:00", "2027-02-26T00:00:00"),
            // Either day field is enough.
            ("0 0 13 * FRI", "2027-01-09T00:00:00", "2027-01-13T00:00:00"),
            ("0 0 13 * FRI", "2027-01-14T00:00:00", "2027-01-15T00:00:00"),
            (
                "0 0 0 1 1 ? 2030",
                "2027-01-01T00:00:00",
                "2030-01-01T00:00:00",
            ),
            (
                "0 0 0 1 1 ? 2030/5",
                "2030-01-01T00:00:01",
                "2035-01-01T00:00:00",
            ),
        ];
        for (text, from, expected) in table {
            assert_eq!(
                next(text, from).as_deref(),
                Some(expected),
                "{text} from {from}"
            );
        }
    }

    #[test]
    fn a_search_for_a_day_that_does_not_exist_ends() {
        for (text, from) in [
            ("0 0 30 2 *", "2027-01-01T00:00:00"),
            ("0 0 31W 2,4,6,9,11 *", "2027-01-01T00:00:00"),
            ("0 0 0 29 2 ? 2027", "1970-01-01T00:00:00"),
            ("0 0 0 1 1 ? 2026", "2027-01-01T00:00:00"),
            ("0 0 * * *", "9999-12-31T00:00:01"),
        ] {
            assert_eq!(next(text, from), None, "{text}");
        }
    }

    #[test]
    fn the_shortest_interval_is_the_least_distance_of_two_times() {
        let table = [
            ("* * * * * *", 1),
            ("0/7 * * * * *", 4),
            ("10 * * * * *", 60),
            ("0,59 * * * * *", 1),
            ("0 9 * * *", 86_400),
            ("0 9,17 * * *", 8 * 3_600),
            ("0 1,23 * * *", 2 * 3_600),
            ("0 0 9 1 1 ?", 86_400),
            ("0,50 9,10 * * *", 10 * 60),
            ("*/15 9-17 * * MON-FRI", 15 * 60),
        ];
        for (text, seconds) in table {
            let expression = CronExpression::parse(text).expect(text);
            assert_eq!(expression.shortest_interval_seconds(), seconds, "{text}");
        }
    }

    /// A million definitions must fit into 1 GiB together with their templates.
    #[test]
    fn an_expression_is_small() {
        assert!(size_of::<CronExpression>() <= 160);
    }
}
