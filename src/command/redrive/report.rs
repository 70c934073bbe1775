//! Counts dead letters by code, and shows them to people.

use crate::admin::dead_letters::{
    DeadLetterFilter, DeadLetterGroup, DeadLetterSample, DeadLettersReport,
};
use crate::command::page::{Page, Table, Tone};
use crate::limit::{DEAD_LETTER_CODES_MAX, DEAD_LETTER_SAMPLES_MAX, DEAD_LETTER_TEXT_BYTES_MAX};
use crate::model::readable::{count as number, moment, several};
use crate::model::{DeadLetter, Rejection, Timestamp};
use crate::store::query::text_of_bytes;

/// The group of the codes beyond [`DEAD_LETTER_CODES_MAX`], which Postdate never writes.
const OTHER_CODES: &str = "other";

/// Why a dead letter cannot be redriven.
#[derive(Clone, Debug)]
pub(super) enum Obstacle {
    ByReference,
    /// The route does not read the topic of its origin any more.
    NoSource,
    /// The service would make it a dead letter again.
    Refused(Rejection),
}

impl Obstacle {
    fn text(&self) -> String {
        match self {
            Self::ByReference => "by reference: the payload is only in the source".to_owned(),
            Self::NoSource => "the route does not read its source topic any more".to_owned(),
            Self::Refused(Rejection { reason, detail }) => {
                format!("it would fail again: {reason}: {detail}")
            }
        }
    }
}

pub(super) fn meets(filter: &DeadLetterFilter, found: &DeadLetter<'_>) -> bool {
    let is = |wanted: &Option<String>, text: &str| wanted.as_ref().is_none_or(|it| it == text);
    let key = || found.key().map(text_of_bytes);
    let header = |(name, value): &(String, String)| found.has_header(name, value);
    is(&filter.code, found.code)
        && is(&filter.origin, found.origin)
        && (filter.key.is_none() || filter.key == key())
        && filter.header.as_ref().is_none_or(header)
        && filter.from.is_none_or(|from| found.at() >= Some(from))
        && filter.to.is_none_or(|to| found.at() <= Some(to))
}

/// Dead letters that can be redriven.
pub(super) fn redrivable(report: &DeadLettersReport) -> u64 {
    report.codes.iter().map(DeadLetterGroup::redrivable).sum()
}

pub(super) fn count(
    report: &mut DeadLettersReport,
    partition: i32,
    found: &DeadLetter<'_>,
    obstacle: Option<&Obstacle>,
) {
    let is_dry_run = report.redrive.as_ref().is_some_and(|it| it.dry_run);
    if let Some(redrive) = report.redrive.as_mut().filter(|_| is_dry_run) {
        redrive.redriven += u64::from(obstacle.is_none());
    }
    let codes = &mut report.codes;
    let place = |code: &str| codes.iter().position(|group| group.code == code);
    let code = match place(found.code) {
        None if codes.len() >= DEAD_LETTER_CODES_MAX => OTHER_CODES,
        _ => found.code,
    };
    let index = place(code).unwrap_or_else(|| {
        codes.push(DeadLetterGroup {
            code: code.to_owned(),
            ..DeadLetterGroup::default()
        });
        codes.len() - 1
    });
    let group = &mut codes[index];
    group.count += 1;
    match obstacle {
        None => {}
        Some(Obstacle::ByReference) => group.by_reference += 1,
        Some(Obstacle::NoSource | Obstacle::Refused(_)) => group.refused += 1,
    }
    if group.samples.len() < DEAD_LETTER_SAMPLES_MAX {
        group.samples.push(DeadLetterSample {
            partition,
            offset: found.offset().0,
            dead_ms: found.at().map(Timestamp::as_millis),
            due_ms: found.due.map(Timestamp::as_millis),
            origin: found.origin.to_owned(),
            key: found.key().map(text_of_bytes).map(cut),
            detail: cut(found.detail.to_owned()),
            obstacle: obstacle.map(Obstacle::text).map(cut),
        });
    }
}

/// Adds the answer to the next call. The samples are those of the first answers.
pub(super) fn add(report: &mut DeadLettersReport, answer: DeadLettersReport) {
    let earlier = std::mem::replace(report, answer);
    let later = std::mem::replace(&mut report.codes, earlier.codes);
    report.scanned += earlier.scanned;
    if let Some(redrive) = &mut report.redrive {
        redrive.redriven += earlier.redrive.map_or(0, |earlier| earlier.redriven);
    }
    for group in later {
        add_group(&mut report.codes, group);
    }
}

fn add_group(codes: &mut Vec<DeadLetterGroup>, mut group: DeadLetterGroup) {
    let is_known = codes.iter().any(|known| known.code == group.code);
    if !is_known && codes.len() >= DEAD_LETTER_CODES_MAX {
        OTHER_CODES.clone_into(&mut group.code);
    }
    let Some(index) = codes.iter().position(|known| known.code == group.code) else {
        codes.push(group);
        return;
    };
    let known = &mut codes[index];
    known.count += group.count;
    known.by_reference += group.by_reference;
    known.refused += group.refused;
    known.samples.extend(group.samples);
    known.samples.truncate(DEAD_LETTER_SAMPLES_MAX);
}

fn cut(mut text: String) -> String {
    if text.len() > DEAD_LETTER_TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(DEAD_LETTER_TEXT_BYTES_MAX));
        text.push_str("...");
    }
    text
}

pub(super) fn text(report: &DeadLettersReport, page: &Page) -> String {
    let mut text = String::new();
    if report.codes.is_empty() {
        text += "No dead letter meets the conditions.\n";
    } else {
        let head = ["CODE", "COUNT", "CAN BE SENT", "FIRST", "KEY", "DETAIL"];
        let mut table = Table::new(&[0, 3, 4, 5], head);
        for group in &report.codes {
            table.row(Tone::Plain, row(group));
        }
        text += &table.print(page);
        text += &obstacles(&report.codes);
    }
    let redrive = report.redrive.as_ref();
    if let Some(redrive) = redrive {
        let messages = several(redrive.redriven, "message");
        text += &match redrive.dry_run {
            true => format!("\n{messages} would be sent. Nothing was sent: --yes sends them.\n"),
            false => format!("\nSent: {}.\n", number(redrive.redriven)),
        };
    }
    if report.more {
        text += "More may follow: repeat the command, or raise --limit.\n";
    }
    text
}

fn row(group: &DeadLetterGroup) -> [String; 6] {
    let sample = group.samples.first().cloned().unwrap_or_default();
    let dead = sample.dead_ms.map(Timestamp::from_millis);
    [
        group.code.clone(),
        number(group.count),
        number(group.redrivable()),
        dead.map_or_else(|| "-".to_owned(), moment),
        sample.key.unwrap_or_else(|| "-".to_owned()),
        sample.detail.lines().next().unwrap_or_default().to_owned(),
    ]
}

/// The reasons in the samples, each once.
fn obstacles(codes: &[DeadLetterGroup]) -> String {
    let mut lines = Vec::new();
    for group in codes {
        for sample in &group.samples {
            let obstacle = sample.obstacle.iter();
            lines.extend(obstacle.map(|obstacle| format!("{}: {obstacle}\n", group.code)));
        }
    }
    lines.sort();
    lines.dedup();
    match lines.is_empty() {
        true => String::new(),
        false => format!("\nNot sent again:\n{}", lines.concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::dead_letters::RedriveReport;

    #[test]
    fn the_answers_of_several_calls_are_added() {
        let answer = |code: &str, count: u64, more| DeadLettersReport {
            codes: vec![DeadLetterGroup {
                code: code.to_owned(),
                count,
                refused: 1,
                samples: vec![DeadLetterSample::default(); 3],
                ..DeadLetterGroup::default()
            }],
            scanned: 10,
            more,
            after: Some(format!("0-{count}")),
            redrive: Some(RedriveReport {
                dry_run: false,
                redriven: count - 1,
            }),
            ..DeadLettersReport::default()
        };
        let mut report = DeadLettersReport::default();
        add(&mut report, answer("a", 4, true));
        add(&mut report, answer("b", 2, true));
        add(&mut report, answer("a", 3, false));
        let groups = report.codes.iter();
        let groups = groups.map(|it| (&*it.code, it.count, it.refused, it.samples.len()));
        let groups: Vec<_> = groups.collect();
        assert_eq!(
            groups,
            [("a", 7, 2, DEAD_LETTER_SAMPLES_MAX), ("b", 2, 1, 3)]
        );
        assert_eq!((report.scanned, report.more), (30, false));
        assert_eq!(report.after.as_deref(), Some("0-3"));
        assert_eq!(report.redrive.unwrap().redriven, 3 + 1 + 2);
        report.redrive = None;
        for number in 0..2 * DEAD_LETTER_CODES_MAX {
            add(&mut report, answer(&format!("x{number}"), 1, true));
        }
        assert_eq!(report.codes.len(), DEAD_LETTER_CODES_MAX + 1);
    }
}
