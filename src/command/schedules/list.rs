//! `postdate schedules list`: the schedules of a recurring route, as its topic defines them.

use super::definitions::read_definitions;
use crate::cli::ListSchedulesArgs;
use crate::command::page::{Page, Table, Tone};
use crate::config::Config;
use crate::model::{ParsedDefinition, Partition, Record, Timestamp, as_id, parse_definition};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;

/// The document of `--json`. Fields are only added, never renamed or removed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    deployment: String,
    route: String,
    pub(super) schedules: Vec<Listed>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Listed {
    id: String,
    topic: String,
    partition: i32,
    /// The offset of the definition.
    offset: u64,
    state: State,
    /// The schedule in words. `None` for a wrong definition.
    schedule: Option<String>,
    /// The next due time.
    next_ms: Option<i64>,
    next: Option<String>,
    /// Why the definition is wrong.
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Active,
    Paused,
    /// It has no further occurrence.
    Over,
    /// The definition was rejected, and has ended the schedule.
    Wrong,
}

/// The schedules by id and partition. An end removes the schedule of its partition.
#[derive(Default)]
struct Schedules(BTreeMap<(String, Partition), Listed>);

impl Schedules {
    fn add(&mut self, partition: &Partition, record: &Record<'_>, now: Timestamp) {
        let Some(id) = as_id(record.key) else {
            return;
        };
        let key = (id.to_owned(), partition.clone());
        let mut listed = Listed {
            id: id.to_owned(),
            topic: partition.topic.to_string(),
            partition: partition.index,
            offset: record.offset.0,
            state: State::Wrong,
            schedule: None,
            next_ms: None,
            next: None,
            error: None,
        };
        match parse_definition(record, Some(id)) {
            ParsedDefinition::Ended => {
                self.0.remove(&key);
                return;
            }
            ParsedDefinition::Rejected(rejection) => listed.error = Some(rejection.detail),
            ParsedDefinition::Defined(definition) => {
                let next = definition.recurrence.next_after(now);
                let next = next.filter(|_| !definition.is_paused);
                listed.state = match next {
                    _ if definition.is_paused => State::Paused,
                    Some(_) => State::Active,
                    None => State::Over,
                };
                listed.schedule = Some(definition.recurrence.timing().to_string());
                listed.next_ms = next.map(|next| next.due.as_millis());
                listed.next = next.map(|next| next.due.to_rfc3339());
            }
        }
        self.0.insert(key, listed);
    }
}

pub(super) async fn read(
    config: &Config,
    args: &ListSchedulesArgs,
    now: Timestamp,
) -> Result<Report> {
    let route = config.route_named_or_only(args.route.as_deref())?;
    let mut schedules = Schedules::default();
    read_definitions(config, route, |partition, record| {
        let is_wanted = |id: &String| record.key == Some(id.as_bytes());
        if args.id.as_ref().is_none_or(is_wanted) {
            schedules.add(partition, record, now);
        }
    })
    .await?;
    Ok(Report {
        deployment: config.deployment.clone(),
        route: route.to_owned(),
        schedules: schedules.0.into_values().collect(),
    })
}

pub(super) fn text(report: &Report, page: &Page) -> String {
    if report.schedules.is_empty() {
        return format!("Route {} has no such schedule.\n", report.route);
    }
    let mut table = Table::new(&[0, 1, 2, 3], ["SCHEDULE", "STATE", "NEXT", "DUE"]);
    for listed in &report.schedules {
        let (tone, state) = match listed.state {
            State::Active => (Tone::Plain, "active"),
            State::Paused => (Tone::Faint, "paused"),
            State::Over => (Tone::Faint, "over"),
            State::Wrong => (Tone::Bad, "wrong"),
        };
        let meaning = listed.schedule.as_ref().or(listed.error.as_ref());
        let next = listed.next.as_deref().unwrap_or("-");
        table.row(
            tone,
            [
                listed.id.clone(),
                state.to_owned(),
                next.to_owned(),
                meaning.cloned().unwrap_or_default(),
            ],
        );
    }
    table.print(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::header::push_header;
    use crate::model::{Headers, Offset, parse_rfc3339};

    /// Key, headers, and whether there is a payload.
    type Sent<'a> = (&'a str, &'a [(&'a str, &'a str)], bool);

    #[test]
    fn the_last_record_of_an_id_tells_its_state() {
        let now = parse_rfc3339("2027-01-31T09:00:00Z").unwrap();
        let mut schedules = Schedules::default();
        let every = ("postdate-every", "1h");
        let records: [Sent<'_>; 7] = [
            ("a", &[every], true),
            ("b", &[every], true),
            ("c", &[every, ("postdate-paused", "true")], true),
            (
                "d",
                &[every, ("postdate-until", "2027-01-31T08:00:00Z")],
                true,
            ),
            ("b", &[], false),
            ("e", &[("postdate-every", "x")], true),
            ("not an id", &[every], true),
        ];
        for ((key, headers, has_payload), offset) in records.into_iter().zip(0..) {
            let mut block = Vec::new();
            for (name, value) in headers {
                push_header(&mut block, name.as_bytes(), Some(value.as_bytes()));
            }
            let record = Record {
                offset: Offset(offset),
                timestamp: parse_rfc3339("2027-01-31T06:30:00Z"),
                key: Some(key.as_bytes()),
                payload: has_payload.then_some(b"template"),
                headers: Headers::from_block(&block),
            };
            schedules.add(&Partition::new("schedules", 0), &record, now);
        }
        let report = Report {
            deployment: "d".to_owned(),
            route: "reports".to_owned(),
            schedules: schedules.0.into_values().collect(),
        };
        let text = text(&report, &Page::PLAIN);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().take(3).collect())
            .collect();
        assert_eq!(
            lines,
            [
                ["a", "active", "2027-01-31T10:00:00Z"],
                ["c", "paused", "-"],
                ["d", "over", "-"],
                ["e", "wrong", "-"],
            ]
        );
    }
}
