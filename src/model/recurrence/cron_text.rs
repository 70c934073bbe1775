//! From the text of a cron expression to its fields.
//!
//! An expression has five to seven fields. With six, the first one is the second. With seven, the
//! last one is the year.
//!
//! | field | values | also |
//! |---|---|---|
//! | second | 0-59, default 0 | |
//! | minute | 0-59 | |
//! | hour | 0-23 | |
//! | day of month | 1-31 | `?`, `L` (last day), `LW` (last weekday), `15W` (weekday nearest to the 15th) |
//! | month | 1-12, `JAN`-`DEC` | |
//! | day of week | 0-7, `SUN`-`SAT`; 0 and 7 are Sunday | `?`, `FRI#2` (second Friday), `FRIL` (last Friday) |
//! | year | 1970-2199, default `*` | |
//!
//! A field is `*`, or a list of values, ranges `a-b` and steps `*/n`, `a-b/n` and `a/n`. The last
//! one means from a to the greatest value. A range does not wrap, except to a Sunday: `FRI-SUN`.
//! Letters may be in any case.
//!
//! If both day fields are restricted, a day matches if one of them matches. `@yearly`,
//! `@annually`, `@monthly`, `@weekly`, `@daily`, `@midnight` and `@hourly` are short forms.

use super::cron_expression::{CronExpression, DaysOfMonth, DaysOfWeek, Set, YEARS, Years};
use std::ops::RangeInclusive;

/// A text that is no cron expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CronTextError {
    #[error("five to seven fields: [second] minute hour day-of-month month day-of-week [year]")]
    FieldCount,
    #[error("one of @yearly, @monthly, @weekly, @daily and @hourly")]
    ShortForm,
    #[error("a valid {field}: {accepted}")]
    Field {
        field: &'static str,
        accepted: &'static str,
    },
}

struct Field {
    name: &'static str,
    accepted: &'static str,
    values: RangeInclusive<u32>,
    /// The names of values, from the least value on.
    names: &'static [&'static str],
}

const SECOND: Field = Field {
    name: "second",
    accepted: "0-59, lists, ranges a-b, and steps */n",
    values: 0..=59,
    names: &[],
};
const MINUTE: Field = Field {
    name: "minute",
    ..SECOND
};
const HOUR: Field = Field {
    name: "hour",
    accepted: "0-23, lists, ranges a-b, and steps */n",
    values: 0..=23,
    ..SECOND
};
const DAY_OF_MONTH: Field = Field {
    name: "day of month",
    accepted: "1-31, lists, ranges a-b, steps */n, L, LW, and 15W",
    values: 1..=31,
    ..SECOND
};
const MONTH: Field = Field {
    name: "month",
    accepted: "1-12 or JAN-DEC, lists, ranges a-b, and steps */n",
    values: 1..=12,
    names: &[
        "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
    ],
};
const DAY_OF_WEEK: Field = Field {
    name: "day of week",
    accepted: "0-7 or SUN-SAT, lists, ranges a-b, steps */n, FRI#2, and FRIL",
    values: 0..=7,
    names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
};
const YEAR: Field = Field {
    name: "year",
    accepted: "1970-2199, lists, ranges a-b, and steps */n",
    values: YEARS,
    ..SECOND
};

impl Field {
    fn error(&self) -> CronTextError {
        CronTextError::Field {
            field: self.name,
            accepted: self.accepted,
        }
    }

    /// Passes each value of the field to `insert`. Returns whether the field has a wildcard.
    fn parse(&self, text: &str, mut insert: impl FnMut(u32)) -> Result<bool, CronTextError> {
        let mut has_wildcard = false;
        for part in text.split(',') {
            has_wildcard |= self
                .parse_part(part, &mut insert)
                .ok_or_else(|| self.error())?;
        }
        Ok(has_wildcard)
    }

    fn parse_set(&self, text: &str) -> Result<(Set, bool), CronTextError> {
        let mut set = Set::default();
        let has_wildcard = self.parse(text, |value| set.insert(value))?;
        Ok((set, has_wildcard))
    }

    fn parse_part(&self, part: &str, insert: impl FnMut(u32)) -> Option<bool> {
        let (range, step) = match part.split_once('/') {
            None => (part, None),
            Some((range, step)) => (range, Some(number(step)?)),
        };
        let (least, greatest) = (*self.values.start(), *self.values.end());
        let (from, to, is_wildcard) = match range.split_once('-') {
            _ if range == "*" => (least, greatest, true),
            Some((from, to)) => (self.value(from)?, self.value(to)?, false),
            None if step.is_some() => (self.value(range)?, greatest, true),
            None => (self.value(range)?, self.value(range)?, false),
        };
        // FRI-SUN ends with the second Sunday of the values.
        let to = if greatest == 7 && to == 0 && from > 0 {
            7
        } else {
            to
        };
        let step = step.unwrap_or(1);
        if from > to || !(1..=greatest).contains(&step) {
            return None;
        }
        (from..=to).step_by(step as usize).for_each(insert);
        Some(is_wildcard)
    }

    fn value(&self, text: &str) -> Option<u32> {
        let name = self
            .names
            .iter()
            .position(|name| name.eq_ignore_ascii_case(text));
        let value = match name {
            Some(index) => self.values.start() + u32::try_from(index).ok()?,
            None => number(text)?,
        };
        self.values.contains(&value).then_some(value)
    }
}

/// Digits only, at most four of them.
fn number(text: &str) -> Option<u32> {
    let is_number = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

impl CronExpression {
    pub(super) fn parse(text: &str) -> Result<Self, CronTextError> {
        let text = if text.starts_with('@') {
            short_form(text).ok_or(CronTextError::ShortForm)?
        } else {
            text
        };
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let (second, [minute, hour, day, month, weekday], year) = match *fields {
            [minute, hour, day, month, weekday] => ("0", [minute, hour, day, month, weekday], "*"),
            [second, minute, hour, day, month, weekday] => {
                (second, [minute, hour, day, month, weekday], "*")
            }
            [second, minute, hour, day, month, weekday, year] => {
                (second, [minute, hour, day, month, weekday], year)
            }
            _ => return Err(CronTextError::FieldCount),
        };
        let (seconds, wildcard_second) = SECOND.parse_set(second)?;
        let (minutes, wildcard_minute) = MINUTE.parse_set(minute)?;
        let (hours, wildcard_hour) = HOUR.parse_set(hour)?;
        let (months, _) = MONTH.parse_set(month)?;
        Ok(Self {
            seconds,
            minutes,
            hours,
            days_of_month: days_of_month(day)?,
            months,
            days_of_week: days_of_week(weekday)?,
            years: years(year)?,
            has_wildcard_time: wildcard_second || wildcard_minute || wildcard_hour,
        })
    }
}

fn short_form(text: &str) -> Option<&'static str> {
    Some(match text.to_ascii_lowercase().as_str() {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => return None,
    })
}

fn is_any_day(text: &str) -> bool {
    matches!(text, "*" | "?")
}

fn days_of_month(text: &str) -> Result<Option<DaysOfMonth>, CronTextError> {
    if is_any_day(text) {
        return Ok(None);
    }
    let mut field = DaysOfMonth::default();
    for part in text.split(',') {
        if part.eq_ignore_ascii_case("L") {
            field.last = true;
        } else if part.eq_ignore_ascii_case("LW") {
            field.last_weekday = true;
        } else if let Some(day) = part.strip_suffix(['W', 'w']) {
            let day = DAY_OF_MONTH
                .value(day)
                .ok_or_else(|| DAY_OF_MONTH.error())?;
            field.nearest_weekdays.insert(day);
        } else {
            DAY_OF_MONTH.parse(part, |day| field.days.insert(day))?;
        }
    }
    Ok(Some(field))
}

fn days_of_week(text: &str) -> Result<Option<DaysOfWeek>, CronTextError> {
    if is_any_day(text) {
        return Ok(None);
    }
    let error = || DAY_OF_WEEK.error();
    let mut field = DaysOfWeek::default();
    for part in text.split(',') {
        if let Some((day, nth)) = part.split_once('#') {
            let nth = number(nth)
                .filter(|nth| (1..=5).contains(nth))
                .ok_or_else(error)?;
            let day = DAY_OF_WEEK.value(day).ok_or_else(error)?;
            field.nth[nth as usize - 1].insert(day % 7);
        } else if let Some(day) = part.strip_suffix(['L', 'l']) {
            field
                .last
                .insert(DAY_OF_WEEK.value(day).ok_or_else(error)? % 7);
        } else {
            DAY_OF_WEEK.parse(part, |day| field.days.insert(day % 7))?;
        }
    }
    Ok(Some(field))
}

fn years(text: &str) -> Result<Option<Box<Years>>, CronTextError> {
    if text == "*" {
        return Ok(None);
    }
    let mut years = Box::<Years>::default();
    YEAR.parse(text, |year| years.insert(year))?;
    Ok(Some(years))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> CronExpression {
        CronExpression::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn two_spellings_of_one_schedule_are_equal() {
        let table = [
            ("0 9 * * MON-FRI", "0 9 * * 1-5"),
            ("0 9 * * mon-Fri", "0 9 ? * 1,2,3,4,5"),
            ("0 9 * * *", "0 0 9 * * *"),
            ("0 9 * * *", " 0  0\t9 ? * ? * "),
            ("0 9 * * FRI-SUN", "0 9 * * 5,6,0"),
            ("0 9 * * FRI-SUN", "0 9 * * 5-7"),
            ("0 9 * * 7", "0 9 * * SUN"),
            ("0 9 * * 7-7", "0 9 * * 0"),
            ("0 9 * * 0-7", "0 9 * * 0-6"),
            ("0 9 1 JAN,jul *", "0 9 1 1,7 *"),
            ("*/15 * * * *", "0/15 * * * *"),
            ("5/20 * * * *", "0 5/20 * * * *"),
            ("0 9-17/4 * * *", "0 9,13,17 * * *"),
            ("007 9 * * *", "7 09 * * *"),
            ("0 9 * * 5#3,MON#1", "0 9 * * MON#1,FRI#3"),
            ("0 9 * * 7L", "0 9 * * sunl"),
            ("0 9 lw * *", "0 9 LW * *"),
            ("@yearly", "0 0 1 1 *"),
            ("@annually", "0 0 1 1 *"),
            ("@monthly", "0 0 1 * *"),
            ("@weekly", "0 0 * * SUN"),
            ("@Daily", "0 0 * * *"),
            ("@midnight", "@daily"),
            ("@hourly", "0 * * * *"),
        ];
        for (one, other) in table {
            assert_eq!(parse(one), parse(other), "{one} and {other}");
        }
    }

    #[test]
    fn a_star_or_a_step_without_end_is_a_wildcard() {
        let wildcards = [
            "* 9 * * *",
            "0 * * * *",
            "*/5 9 * * *",
            "5/5 9 * * *",
            "* 0 9 * * *",
        ];
        for text in wildcards {
            assert!(parse(text).has_wildcard_time, "{text}");
        }
        for text in [
            "0 9 * * *",
            "0,30 2,14 * * *",
            "0-59 0-23 * * *",
            "0-30/10 2 * * *",
        ] {
            assert!(!parse(text).has_wildcard_time, "{text}");
        }
    }

    #[test]
    fn a_rejection_names_the_field() {
        let table = [
            ("x 0 9 * * *", "second"),
            ("60 9 * * *", "minute"),
            ("-1 9 * * *", "minute"),
            ("+1 9 * * *", "minute"),
            ("1.5 9 * * *", "minute"),
            ("*/0 9 * * *", "minute"),
            ("*/60 9 * * *", "minute"),
            ("/15 9 * * *", "minute"),
            ("1,,2 9 * * *", "minute"),
            (", 9 * * *", "minute"),
            ("? 9 * * *", "minute"),
            ("5-1 9 * * *", "minute"),
            ("1-2-3 9 * * *", "minute"),
            ("1/2/3 9 * * *", "minute"),
            ("L 9 * * *", "minute"),
            ("00000 9 * * *", "minute"),
            ("0 24 * * *", "hour"),
            ("0 22-2 * * *", "hour"),
            ("0 9 0 * *", "day of month"),
            ("0 9 32 * *", "day of month"),
            ("0 9 0W * *", "day of month"),
            ("0 9 W * *", "day of month"),
            ("0 9 1-5W * *", "day of month"),
            ("0 9 L-3 * *", "day of month"),
            ("0 9 1,? * *", "day of month"),
            ("0 9 * 0 *", "month"),
            ("0 9 * 13 *", "month"),
            ("0 9 * JUNE *", "month"),
            ("0 9 * NOV-FEB *", "month"),
            ("0 9 * * 8", "day of week"),
            ("0 9 * * MONDAY", "day of week"),
            ("0 9 * * FRI-TUE", "day of week"),
            ("0 9 * * L", "day of week"),
            ("0 9 * * FRI#0", "day of week"),
            ("0 9 * * FRI#6", "day of week"),
            ("0 9 * * MON-FRI#2", "day of week"),
            ("0 0 9 * * * 1969", "year"),
            ("0 0 9 * * * 2200", "year"),
        ];
        for (text, expected) in table {
            match CronExpression::parse(text) {
                Err(CronTextError::Field { field, .. }) => assert_eq!(field, expected, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in ["", " ", "9", "* * * *", "* * * * * * * *"] {
            assert_eq!(
                CronExpression::parse(text),
                Err(CronTextError::FieldCount),
                "{text}"
            );
        }
        for text in ["@", "@reboot", "@every 5m", "@daily ", "@daily 5"] {
            assert_eq!(
                CronExpression::parse(text),
                Err(CronTextError::ShortForm),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text in "[-0-9*/,?#LWSUNMRI@ ]{0,40}", other in "\\PC{0,40}") {
            let _ = CronExpression::parse(&text);
            let _ = CronExpression::parse(&other);
        }
    }
}
