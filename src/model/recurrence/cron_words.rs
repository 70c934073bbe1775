//! A cron expression in words, for people: `at 09:00 on Monday to Friday`.

use super::cron_expression::{CronExpression, DaysOfMonth, DaysOfWeek, Set, YEARS};
use std::fmt;

const WEEKDAYS: [&str; 8] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

const MONTHS: [&str; 13] = [
    "",
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const NTH: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];

/// More times of a day than these are not listed.
const TIMES_LISTED: usize = 4;

impl fmt::Display for CronExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.times().unwrap_or_else(|| self.periods()))?;
        let of_month = self.days_of_month.as_ref().map(days_of_month);
        let of_week = self.days_of_week.as_ref().map(days_of_week);
        if let Some(days) = join([of_month, of_week].into_iter().flatten().collect(), "or") {
            write!(f, " on {days}")?;
        }
        if self.months.iter().count() < 12 {
            let months = values(&self.months.iter().collect::<Vec<_>>(), |month| {
                MONTHS[month as usize].to_owned()
            });
            write!(f, " in {months}")?;
        }
        if let Some(set) = &self.years {
            let all = YEARS.filter(|year| set.contains(*year));
            write!(
                f,
                " in {}",
                values(&all.collect::<Vec<_>>(), |year| year.to_string())
            )?;
        }
        Ok(())
    }
}

impl CronExpression {
    /// `at 09:00 and 17:00`. `None` for many times.
    fn times(&self) -> Option<String> {
        let sets = [self.hours, self.minutes, self.seconds];
        let count: usize = sets.iter().map(|set| set.iter().count()).product();
        if count > TIMES_LISTED {
            return None;
        }
        let mut times = Vec::new();
        for hour in self.hours.iter() {
            for minute in self.minutes.iter() {
                for second in self.seconds.iter() {
                    times.push(match second {
                        0 => format!("{hour:02}:{minute:02}"),
                        _ => format!("{hour:02}:{minute:02}:{second:02}"),
                    });
                }
            }
        }
        join(times, "and").map(|times| format!("at {times}"))
    }

    /// `every 15 minutes from 09:00 to 17:59`.
    fn periods(&self) -> String {
        let [seconds, minutes] = [self.seconds, self.minutes].map(|set| Period::of(set, 60));
        let mut words = Vec::new();
        match seconds {
            Period::Values(second) if second == "0" => {}
            seconds => words.push(seconds.words("second", "at second")),
        }
        match (words.is_empty(), minutes) {
            (false, Period::Every(1)) => {}
            (true, minutes) => words.push(minutes.words("minute", "at minute")),
            (false, minutes) => words.push(minutes.words("minute", "in minute")),
        }
        match (
            Period::of(self.hours, 24),
            self.hours.iter().collect::<Vec<_>>().as_slice(),
        ) {
            (Period::Every(1), _) => {}
            (_, [first, .., last]) if (last - first) as usize + 1 == self.hours.iter().count() => {
                words.push(format!("from {first:02}:00 to {last:02}:59"));
            }
            (hours, _) => words.push(hours.words("hour", "in hour")),
        }
        words.join(" ")
    }
}

enum Period {
    Every(u32),
    Values(String),
}

impl Period {
    fn of(set: Set, end: u32) -> Self {
        let all: Vec<u32> = set.iter().collect();
        let step = all.get(1).copied().unwrap_or(end);
        if step < end && all.iter().copied().eq((0..end).step_by(step as usize)) {
            return Self::Every(step);
        }
        Self::Values(values(&all, |value| value.to_string()))
    }

    fn words(self, unit: &str, before_values: &str) -> String {
        match self {
            Self::Every(1) => format!("every {unit}"),
            Self::Every(step) => format!("every {step} {unit}s"),
            Self::Values(values) => format!("{before_values} {values}"),
        }
    }
}

fn days_of_month(field: &DaysOfMonth) -> String {
    let mut days = Vec::new();
    let numbered: Vec<u32> = field.days.iter().collect();
    if !numbered.is_empty() {
        days.push(format!("day {}", values(&numbered, |day| day.to_string())));
    }
    let nearest = field.nearest_weekdays.iter();
    days.extend(nearest.map(|day| format!("the weekday nearest to day {day}")));
    if field.last_weekday {
        days.push("the last weekday".to_owned());
    }
    if field.last {
        days.push("the last day".to_owned());
    }
    format!("{} of the month", join(days, "and").unwrap_or_default())
}

fn days_of_week(field: &DaysOfWeek) -> String {
    let name = |day: u32| WEEKDAYS[day as usize].to_owned();
    let mut days = Vec::new();
    // A week begins with Monday, as people list the days.
    let mut plain: Vec<u32> = field
        .days
        .iter()
        .map(|day| if day == 0 { 7 } else { day })
        .collect();
    plain.sort_unstable();
    if !plain.is_empty() {
        days.push(values(&plain, name));
    }
    for (nth, set) in NTH.iter().zip(&field.nth) {
        days.extend(set.iter().map(|day| format!("the {nth} {}", name(day))));
    }
    days.extend(
        field
            .last
            .iter()
            .map(|day| format!("the last {}", name(day))),
    );
    join(days, "and").unwrap_or_default()
}

/// Rising numbers as a list. Three neighbours or more become a range: `1, 5 to 8 and 20`.
fn values(numbers: &[u32], name: impl Fn(u32) -> String) -> String {
    let ranges = numbers.chunk_by(|one, other| one + 1 == *other);
    let words = ranges.flat_map(|range| match range {
        [first, _, .., last] if range.len() > 2 => {
            vec![format!("{} to {}", name(*first), name(*last))]
        }
        _ => range.iter().map(|number| name(*number)).collect(),
    });
    join(words.collect(), "and").unwrap_or_default()
}

/// `a, b and c`. `None` without words.
fn join(mut words: Vec<String>, last_word: &str) -> Option<String> {
    let last = words.pop()?;
    Some(if words.is_empty() {
        last
    } else {
        format!("{} {last_word} {last}", words.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_described_in_words() {
        let table = [
            ("0 9 * * MON-FRI", "at 09:00 on Monday to Friday"),
            ("30 8,17 * * *", "at 08:30 and 17:30"),
            ("15 0 9 * * *", "at 09:00:15"),
            ("* * * * *", "every minute"),
            ("*/15 * * * *", "every 15 minutes"),
            (
                "*/15 9-17 * * MON-FRI",
                "every 15 minutes from 09:00 to 17:59 on Monday to Friday",
            ),
            ("5 * * * *", "at minute 5"),
            ("5,35 * * * *", "at minute 5 and 35"),
            ("5-10,20 * * * *", "at minute 5 to 10 and 20"),
            ("0 */2 * * *", "at minute 0 every 2 hours"),
            (
                "0 6,9,12,15,18 * * *",
                "at minute 0 in hour 6, 9, 12, 15 and 18",
            ),
            ("* * * * * *", "every second"),
            ("*/10 * * * * *", "every 10 seconds"),
            ("30 * * * * *", "at second 30"),
            (
                "*/10 30 9-11 * * *",
                "every 10 seconds in minute 30 from 09:00 to 11:59",
            ),
            ("0 0 1,15 * *", "at 00:00 on day 1 and 15 of the month"),
            ("0 0 L * *", "at 00:00 on the last day of the month"),
            (
                "0 0 15W,LW * *",
                "at 00:00 on the weekday nearest to day 15 and the last weekday of the month",
            ),
            ("0 0 13 * FRI", "at 00:00 on day 13 of the month or Friday"),
            ("0 0 * * SAT,SUN", "at 00:00 on Saturday and Sunday"),
            ("0 0 * * FRI-SUN", "at 00:00 on Friday to Sunday"),
            (
                "0 0 * * FRI#2,MONL",
                "at 00:00 on the second Friday and the last Monday",
            ),
            (
                "0 0 1 1,4,7,10 *",
                "at 00:00 on day 1 of the month in January, April, July and October",
            ),
            (
                "0 0 0 24 12 ? 2027-2029",
                "at 00:00 on day 24 of the month in December in 2027 to 2029",
            ),
        ];
        for (text, words) in table {
            let expression = CronExpression::parse(text).expect(text);
            assert_eq!(expression.to_string(), words, "{text}");
        }
    }
}
