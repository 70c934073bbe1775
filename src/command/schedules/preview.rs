//! `postdate schedules preview`: shows when a schedule would be due. Needs no server.

use crate::admin::schedules::Preview;
use crate::cli::PreviewArgs;
use crate::command::Refused;
use crate::command::page::{Page, Table, Tone};
use crate::model::header::push_header;
use crate::model::{
    Definition, Headers, Offset, ParsedDefinition, Record, Timestamp, parse_definition,
};

/// The next times of a schedule. Refuses a wrong definition with the reason.
pub(super) fn preview(args: &PreviewArgs, now: Timestamp) -> Result<Preview, Refused> {
    let definition = definition(args, now)?;
    let count = args.next.into();
    Ok(Preview::new(&definition, Timestamp::AT_ONCE, count))
}

/// The definition that a record with these headers would have.
fn definition(args: &PreviewArgs, now: Timestamp) -> Result<Definition, Refused> {
    let mut block = Vec::new();
    for header in &args.headers {
        let pair = header.split_once('=').filter(|(name, _)| !name.is_empty());
        let unnamed = || Refused(format!("--header {header:?}: write NAME=VALUE"));
        let (name, value) = pair.ok_or_else(unnamed)?;
        push_header(&mut block, name.as_bytes(), Some(value.as_bytes()));
    }
    let record = Record {
        offset: Offset(0),
        timestamp: Some(now),
        key: Some(args.id.as_bytes()),
        payload: Some(b"template"),
        headers: Headers::from_block(&block),
    };
    match parse_definition(&record, Some(&args.id)) {
        ParsedDefinition::Defined(definition) => Ok(definition),
        ParsedDefinition::Ended => unreachable!("the record has a payload"),
        ParsedDefinition::Rejected(rejection) => Err(Refused(format!(
            "the definition is wrong ({}): {}",
            rejection.reason.code(),
            rejection.detail
        ))),
    }
}

pub(super) fn text(preview: &Preview, page: &Page) -> String {
    let zone_data = format!(
        "  missed: {}, zone data {}",
        preview.missed, preview.zone_data
    );
    let mut text = format!(
        "{}{}\n",
        page.paint(Tone::Strong, &preview.schedule),
        page.paint(Tone::Faint, &zone_data)
    );
    if preview.paused {
        text += &page.paint(Tone::Warning, "paused: no occurrence is delivered");
        text += "\n";
    }
    // A schedule that is over has no more.
    if preview.next.is_empty() {
        return text;
    }
    let mut table = Table::new(&[0, 1, 2], ["DUE", "LOCAL TIME", ""]);
    for time in &preview.next {
        let local = time.local.clone().unwrap_or_default();
        let (tone, note) = if time.moved {
            (Tone::Warning, "moved: the clock skips the planned time")
        } else {
            (Tone::Plain, "")
        };
        table.row(tone, [time.due.clone(), local, note.to_owned()]);
    }
    text + "\n" + &table.print(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::OutputArgs;
    use crate::model::{parse_rfc3339, zone_data_version};

    fn args(headers: &[&str], next: u16) -> PreviewArgs {
        PreviewArgs {
            headers: headers.iter().map(|header| (*header).to_owned()).collect(),
            id: "preview".to_owned(),
            next,
            now: None,
            output: OutputArgs::default(),
        }
    }

    fn at(time: &str) -> Timestamp {
        parse_rfc3339(time).unwrap()
    }

    #[test]
    fn a_preview_marks_what_daylight_saving_moves() {
        let args = args(
            &["postdate-cron=30 2 * * *", "postdate-zone=America/New_York"],
            2,
        );
        let preview = preview(&args, at("2027-03-13T12:00:00Z")).unwrap();
        let expected = format!(
            "at 02:30, America/New_York  missed: latest, zone data {}\n\n  \
             DUE                   LOCAL TIME\n  \
             2027-03-14T07:00:00Z  2027-03-14T03:00:00-04:00[America/New_York]  moved: the clock skips the planned time\n  \
             2027-03-15T06:30:00Z  2027-03-15T02:30:00-04:00[America/New_York]\n",
            zone_data_version()
        );
        assert_eq!(text(&preview, &Page::PLAIN), expected);
    }

    #[test]
    fn a_schedule_that_ends_has_fewer_times() {
        let args = args(&["postdate-every=15m", "postdate-times=2"], 5);
        let preview = preview(&args, at("2027-01-31T09:00:00Z")).unwrap();
        let due: Vec<&str> = preview.next.iter().map(|time| &*time.due).collect();
        assert_eq!(due, ["2027-01-31T09:15:00Z", "2027-01-31T09:30:00Z"]);
        assert_eq!(preview.schedule, "every 15m");
    }

    #[test]
    fn a_wrong_definition_is_refused() {
        for (header, expected) in [
            ("postdate-cron=0 24 * * *", "invalid_schedule"),
            ("postdate-cron=0 9 30 2 *", "never_due"),
            ("=", "write NAME=VALUE"),
        ] {
            let refused = preview(&args(&[header], 5), at("2027-01-31T09:00:00Z")).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }
}
