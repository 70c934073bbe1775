//! Cron expressions in zones, against an oracle that knows the written rules and the zone data. In
//! UTC, also against the library croner.
//!
//! The oracle walks through every minute around the transitions of a zone. It matches the fields as
//! the test generated them, so it shares no code with the parser or the search.
//!
//! `cargo test --lib cron_oracle` takes seconds. The ignored test covers all zones:
//! `POSTDATE_SEEDS=200 cargo test --lib cron_oracle -- --ignored`.

use super::cron_expression::CronExpression;
use super::cron_in_zone::CronInZone;
use super::zones::{zone, zone_names};
use croner::{CivilDateTime, CronDateTime, Resolution, Weekday};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp as Instant};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Zones with unusual rules: half hours, double gaps, transitions at midnight, Ramadan, a skipped
/// day, a change of offset by three hours.
const ZONES: [&str; 16] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Scoresbysund",
    "America/Nuuk",
    "America/Caracas",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "Asia/Gaza",
    "Asia/Pyongyang",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Pacific/Apia",
];

/// A generated field: its text, and the values that it matches.
struct Field {
    text: String,
    values: BTreeSet<i32>,
    is_wildcard: bool,
}

fn field(rng: &mut StdRng, least: i32, greatest: i32) -> Field {
    let mut pick = |from: i32, to: i32| rng.random_range(from..=to);
    let single = |value: i32| (value.to_string(), BTreeSet::from([value]), false);
    let (text, values, is_wildcard) = match pick(0, 9) {
        0..=2 => ("*".to_owned(), (least..=greatest).collect(), true),
        3..=5 => single(pick(least, greatest)),
        6 => {
            let step = pick(1, greatest);
            let values = (least..=greatest).step_by(step as usize).collect();
            (format!("*/{step}"), values, true)
        }
        7 => {
            let (from, step) = (pick(least, greatest), pick(1, greatest));
            let values = (from..=greatest).step_by(step as usize).collect();
            (format!("{from}/{step}"), values, true)
        }
        8 => {
            let from = pick(least, greatest);
            let to = pick(from, greatest);
            (format!("{from}-{to}"), (from..=to).collect(), false)
        }
        _ => {
            let (one, other) = (pick(least, greatest), pick(least, greatest));
            (
                format!("{one},{other}"),
                BTreeSet::from([one, other]),
                false,
            )
        }
    };
    Field {
        text,
        values,
        is_wildcard,
    }
}

/// A generated expression of five fields. `day` decides a date.
struct Expression {
    text: String,
    minute: Field,
    hour: Field,
    month: Field,
    day: Day,
}

enum Day {
    Any,
    OfMonth(BTreeSet<i32>),
    OfWeek(BTreeSet<i32>),
    Either(BTreeSet<i32>, BTreeSet<i32>),
    Last,
    Nth(i32, i32),
    LastWeekdayOf(i32),
    Nearest(i32),
}

impl Expression {
    fn random(rng: &mut StdRng) -> Self {
        let minute = field(rng, 0, 59);
        // Most transitions are at night.
        let at_night = field(rng, 0, 3);
        let hour = if at_night.is_wildcard {
            field(rng, 0, 23)
        } else {
            at_night
        };
        let month = if rng.random_bool(0.7) {
            Field {
                text: "*".to_owned(),
                values: (1..=12).collect(),
                is_wildcard: true,
            }
        } else {
            field(rng, 1, 12)
        };
        let (days, mut weekdays) = (field(rng, 1, 31), field(rng, 0, 7));
        weekdays.values = weekdays.values.iter().map(|day| day % 7).collect();
        let (day, of_month, of_week) = match rng.random_range(0..=9) {
            0..=3 => (Day::Any, "*".to_owned(), "?".to_owned()),
            4 if days.text != "*" => (Day::OfMonth(days.values), days.text, "*".to_owned()),
            5 if weekdays.text != "*" => {
                (Day::OfWeek(weekdays.values), "*".to_owned(), weekdays.text)
            }
            6 if days.text != "*" && weekdays.text != "*" => (
                Day::Either(days.values, weekdays.values),
                days.text,
                weekdays.text,
            ),
            7 => (Day::Last, "L".to_owned(), "?".to_owned()),
            8 => {
                let (weekday, nth) = (rng.random_range(0..=6), rng.random_range(1..=5));
                (
                    Day::Nth(weekday, nth),
                    "?".to_owned(),
                    format!("{weekday}#{nth}"),
                )
            }
            9 => {
                let day = rng.random_range(1..=31);
                (Day::Nearest(day), format!("{day}W"), "?".to_owned())
            }
            _ => {
                let weekday = rng.random_range(0..=6);
                (
                    Day::LastWeekdayOf(weekday),
                    "*".to_owned(),
                    format!("{weekday}L"),
                )
            }
        };
        let mut text = String::new();
        write!(
            text,
            "{} {} {of_month} {} {of_week}",
            minute.text, hour.text, month.text
        )
        .unwrap();
        Self {
            text,
            minute,
            hour,
            month,
            day,
        }
    }

    fn has_wildcard_time(&self) -> bool {
        self.minute.is_wildcard || self.hour.is_wildcard
    }

    fn matches(&self, local: DateTime) -> bool {
        local.second() == 0
            && self.minute.values.contains(&local.minute().into())
            && self.hour.values.contains(&local.hour().into())
            && self.month.values.contains(&local.month().into())
            && self.matches_day(local)
    }

    fn matches_day(&self, local: DateTime) -> bool {
        let (date, day) = (local.date(), i32::from(local.day()));
        let weekday = i32::from(date.weekday().to_sunday_zero_offset());
        let length = i32::from(date.days_in_month());
        match &self.day {
            Day::Any => true,
            Day::OfMonth(days) => days.contains(&day),
            Day::OfWeek(weekdays) => weekdays.contains(&weekday),
            Day::Either(days, weekdays) => days.contains(&day) || weekdays.contains(&weekday),
            Day::Last => day == length,
            Day::Nth(of, nth) => weekday == *of && (day + 6) / 7 == *nth,
            Day::LastWeekdayOf(of) => weekday == *of && day > length - 7,
            Day::Nearest(of) => {
                // The nearest weekday of the month: the least distance, and a Friday before a Monday
                // two days away.
                let is_weekday = |day: i32| {
                    let moved = (weekday + day - date.day() as i32).rem_euclid(7);
                    (1..=5).contains(&moved)
                };
                let candidates = (1..=length).filter(|day| is_weekday(*day));
                *of <= length && candidates.min_by_key(|day| (day - of).abs()) == Some(day)
            }
        }
    }
}

/// Each minute of a time span, with the local time that the zone's clock shows.
struct Minutes(Vec<(Instant, DateTime)>);

impl Minutes {
    fn of(zone: &TimeZone, from: Instant, minutes: i64) -> Self {
        let at = |minute| from + SignedDuration::from_mins(minute);
        Self(
            (0..minutes)
                .map(|minute| (at(minute), zone.to_datetime(at(minute))))
                .collect(),
        )
    }

    /// The occurrences in the span, except in its first 26 hours: a clock may go back by a day.
    fn occurrences(&self, expression: &Expression) -> Vec<Instant> {
        let begin = self.0[0].0 + SignedDuration::from_hours(26);
        let mut found = Vec::new();
        let mut shown = self.0[0].1;
        for (instant, local) in &self.0 {
            let is_due = if expression.has_wildcard_time() {
                expression.matches(*local)
            } else {
                // The clock shows these times, or skips them, for the first time.
                let mut is_due = false;
                let mut new = shown;
                while new < *local {
                    new += SignedDuration::from_mins(1);
                    is_due |= expression.matches(new);
                }
                is_due
            };
            shown = shown.max(*local);
            if is_due && *instant >= begin {
                found.push(*instant);
            }
        }
        found
    }
}

/// The spans around the transitions of a zone in 1995 to 2034, and one ordinary span.
fn spans(zone: &TimeZone) -> Vec<Minutes> {
    let [from, to]: [Instant; 2] =
        ["1995-01-01T00:00Z", "2035-01-01T00:00Z"].map(|text| text.parse().unwrap());
    let transitions = zone
        .following(from)
        .map(|transition| transition.timestamp());
    let transitions = transitions.take_while(|instant| *instant < to);
    let starts = transitions.chain(["2027-02-27T00:00Z".parse().unwrap()]);
    // A transition is at a full minute in these years.
    starts
        .map(|start| Minutes::of(zone, start - SignedDuration::from_hours(30), 60 * 84))
        .collect()
}

fn expect_oracle(name: &str, zone: &TimeZone, spans: &[Minutes], expression: &Expression) {
    let parsed = CronExpression::parse(&expression.text).expect(&expression.text);
    assert_eq!(
        parsed.has_wildcard_time,
        expression.has_wildcard_time(),
        "{}",
        expression.text
    );
    let cron = CronInZone {
        expression: parsed,
        zone: zone.clone(),
    };
    for span in spans {
        let (first, last) = (
            span.0[0].0 + SignedDuration::from_hours(26),
            span.0[span.0.len() - 1].0,
        );
        let mut after = first - SignedDuration::from_secs(1);
        let mut found = Vec::new();
        while let Some(next) = cron.next_after(after).filter(|next| *next <= last) {
            assert!(
                next > after,
                "{} in {name}: {next} after {after}",
                expression.text
            );
            found.push(next);
            after = next;
        }
        let expected = span.occurrences(expression);
        let different = found
            .iter()
            .zip(&expected)
            .find(|(found, expected)| found != expected);
        assert!(
            found == expected,
            "{} in {name} from {first}: {} found, {} expected; first difference {different:?}",
            expression.text,
            found.len(),
            expected.len(),
        );
    }
}

#[test]
fn occurrences_are_those_of_the_written_rules_in_unusual_zones() {
    for (seed, name) in (0..).zip(ZONES) {
        let zone = zone(name).expect(name);
        let spans = spans(&zone);
        // A part of the spans keeps the test short.
        let spans: Vec<_> = spans.into_iter().rev().step_by(6).collect();
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..10 {
            expect_oracle(name, &zone, &spans, &Expression::random(&mut rng));
        }
    }
}

#[test]
#[ignore = "all zones: minutes"]
fn occurrences_are_those_of_the_written_rules_in_all_zones() {
    let expressions = std::env::var("POSTDATE_SEEDS").map_or(20, |text| text.parse().unwrap());
    for (seed, name) in (0..).zip(zone_names()) {
        let zone = zone(&name).expect(&name);
        let spans = spans(&zone);
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..expressions {
            expect_oracle(&name, &zone, &spans, &Expression::random(&mut rng));
        }
    }
}

/// A time in UTC, for croner. It supports another version of jiff than ours.
#[derive(Clone, Copy)]
struct Utc(DateTime);

impl CronDateTime for Utc {
    fn to_civil(&self) -> CivilDateTime {
        let Self(time) = self;
        let [month, day, hour, minute, second] = [
            time.month(),
            time.day(),
            time.hour(),
            time.minute(),
            time.second(),
        ]
        .map(|part| u32::from(part.cast_unsigned()));
        CivilDateTime::from_ymd_hms_opt(time.year().into(), month, day, hour, minute, second)
            .unwrap()
    }

    fn civil_weekday(&self) -> Weekday {
        let days = self.0.date().weekday().to_sunday_zero_offset();
        Weekday::from_days_from_sunday(days.cast_unsigned().into())
    }

    fn resolve_civil(
        &self,
        civil: CivilDateTime,
    ) -> Result<Resolution<Self>, croner::errors::CronError> {
        let [month, day, hour, minute, second] = [
            civil.month(),
            civil.day(),
            civil.hour(),
            civil.minute(),
            civil.second(),
        ]
        .map(|part| i8::try_from(part).unwrap());
        let year = i16::try_from(civil.year()).unwrap();
        let time = DateTime::new(year, month, day, hour, minute, second, 0).unwrap();
        Ok(Resolution::Single(Self(time)))
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        self.0
            .checked_add(SignedDuration::from_secs(seconds))
            .ok()
            .map(Self)
    }

    fn cmp_instant(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

#[test]
fn croner_finds_the_same_times_in_utc() {
    let mut rng = StdRng::seed_from_u64(1);
    let parser = croner::parser::CronParser::builder()
        .sloppy_ranges(true)
        .build();
    for _ in 0..300 {
        let Expression { text, .. } = Expression::random(&mut rng);
        let croner = parser.parse(&text).expect(&text);
        let ours = CronInZone {
            expression: CronExpression::parse(&text).expect(&text),
            zone: TimeZone::UTC,
        };
        let mut after: Instant = "2027-01-31T23:59:59Z".parse().unwrap();
        for _ in 0..50 {
            let start = Utc(TimeZone::UTC.to_datetime(after));
            let theirs = croner
                .find_next_occurrence(&start, false)
                .map(|Utc(time)| time)
                .ok();
            let Some(next) = ours.next_after(after) else {
                assert!(
                    theirs.is_none(),
                    "{text}: no time after {after}, {theirs:?}"
                );
                break;
            };
            assert_eq!(
                Some(TimeZone::UTC.to_datetime(next)),
                theirs,
                "{text} after {after}"
            );
            after = next;
        }
    }
}
