//! `postdate schedules list`, and the schedules of the HTTP API: the schedules of a recurring route, as its
//! topic defines them.

use super::definitions::read_definitions;
use crate::admin::changes::ChangeError;
use crate::admin::schedules::{
    DefinitionRecord, Schedule, ScheduleState, SchedulesReport, SchedulesRequest,
};
use crate::cli::ListSchedulesArgs;
use crate::clock::{Clock as _, WallClock};
use crate::command::page::{Page, Table, Tone};
use crate::command::pending::Server;
use crate::command::{Access, Refused};
use crate::config::{Config, Error as ConfigError, Payloads};
use crate::limit::SCHEDULES_PAGE_MAX;
use crate::model::{
    ParsedDefinition, Partition, Record, Timestamp, Watermark, as_id, parse_definition,
};
use anyhow::Result;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::collections::BTreeMap;
use url::form_urlencoded::Serializer;

/// The schedules by id and partition. An end removes the schedule of its partition.
struct Schedules {
    request: SchedulesRequest,
    found: BTreeMap<(String, Partition), Schedule>,
    /// The least id that had no room. Ids from it on are incomplete.
    end: Option<String>,
}

impl Schedules {
    fn new(request: SchedulesRequest) -> Self {
        Self {
            request,
            found: BTreeMap::new(),
            end: None,
        }
    }

    fn wants(&self, id: &str) -> bool {
        let SchedulesRequest {
            id: wanted, after, ..
        } = &self.request;
        wanted.as_deref().is_none_or(|wanted| wanted == id)
            && after.as_deref().is_none_or(|after| after <= id)
            && self.end.as_deref().is_none_or(|end| id < end)
    }

    fn add(&mut self, partition: &Partition, record: &Record<'_>, now: Timestamp) {
        let Some(id) = as_id(record.key).filter(|id| self.wants(id)) else {
            return;
        };
        let key = (id.to_owned(), partition.clone());
        let mut listed = Schedule {
            id: id.to_owned(),
            topic: partition.topic.to_string(),
            partition: partition.index,
            offset: record.offset.0,
            state: ScheduleState::Wrong,
            schedule: None,
            next_ms: None,
            next: None,
            error: None,
            record: self.request.with_records.then(|| {
                Box::new(DefinitionRecord {
                    timestamp: record.timestamp,
                    payload: record.payload.unwrap_or_default().to_vec(),
                    headers: record.headers.as_block().to_vec(),
                    read_to: Watermark(record.offset.next().0),
                })
            }),
        };
        match parse_definition(record, Some(id)) {
            ParsedDefinition::Ended => {
                self.found.remove(&key);
                return;
            }
            ParsedDefinition::Rejected(rejection) => listed.error = Some(rejection.detail),
            ParsedDefinition::Defined(definition) => {
                let next = definition.recurrence.next_after(now);
                let next = next.filter(|_| !definition.is_paused);
                listed.state = match next {
                    _ if definition.is_paused => ScheduleState::Paused,
                    Some(_) => ScheduleState::Active,
                    None => ScheduleState::Over,
                };
                listed.schedule = Some(definition.recurrence.timing().to_string());
                listed.next_ms = next.map(|next| next.due.as_millis());
                listed.next = next.map(|next| next.due.to_rfc3339());
            }
        }
        self.found.insert(key, listed);
        if self.found.len() > self.request.limit
            && let Some(((id, _), _)) = self.found.pop_last()
        {
            self.found.retain(|(kept, _), _| *kept < id);
            self.end = Some(id);
        }
    }

    /// The partition was read up to `end`.
    fn on_read_to(&mut self, partition: &Partition, end: Watermark) {
        let of_partition = self.found.iter_mut();
        let of_partition = of_partition.filter(|((_, found), _)| found == partition);
        for record in of_partition.filter_map(|(_, schedule)| schedule.record.as_mut()) {
            record.read_to = end;
        }
    }

    fn into_report(self, config: &Config, now: Timestamp) -> SchedulesReport {
        SchedulesReport {
            shows_payloads: config.admin.payloads == Payloads::Shown,
            deployment: config.deployment.clone(),
            route: self.request.route,
            at_ms: now.as_millis(),
            more: self.end.is_some(),
            after: self.end,
            schedules: self.found.into_values().collect(),
        }
    }
}

/// Answers a call of the API.
pub(crate) async fn answer_schedules(
    config: &Config,
    request: SchedulesRequest,
) -> Result<SchedulesReport, ChangeError> {
    let report = read(config, request, WallClock.now()).await;
    report.map_err(|error| {
        let is_refused = error.is::<Refused>() || error.is::<ConfigError>();
        let text = format!("{error:#}");
        match is_refused {
            true => ChangeError::Refused(text),
            false => ChangeError::Failed(text),
        }
    })
}

/// All schedules that the arguments want.
pub(super) async fn list(
    access: &Access,
    args: &ListSchedulesArgs,
    now: Timestamp,
) -> Result<SchedulesReport> {
    let config = match access {
        Access::Config(config) => config,
        Access::Server(server) => return ask(server, args).await,
    };
    let route = config.route_named_or_only(args.route.as_deref())?;
    let request = SchedulesRequest {
        route: route.to_owned(),
        id: args.id.clone(),
        after: None,
        limit: usize::MAX,
        with_records: false,
    };
    read(config, request, now).await
}

/// Asks the service for page after page.
async fn ask(server: &Server, args: &ListSchedulesArgs) -> Result<SchedulesReport> {
    let Some(route) = &args.route else {
        let text = "--route: name the recurring route of the service";
        return Err(Refused(text.to_owned()).into());
    };
    let route = utf8_percent_encode(route, NON_ALPHANUMERIC);
    let limit = SCHEDULES_PAGE_MAX.to_string();
    let mut schedules = Vec::new();
    let mut after = None;
    loop {
        let given = [("id", args.id.as_ref()), ("after", after.as_ref())];
        let given = given.into_iter();
        let given = given.filter_map(|(name, value)| Some((name, value?)));
        let mut line = Serializer::new(String::new());
        let line = line.append_pair("limit", &limit).extend_pairs(given);
        let path = format!("/v1/routes/{route}/schedules?{}", line.finish());
        let mut page: SchedulesReport = server.get(&path).await?;
        schedules.append(&mut page.schedules);
        after = page.after.take().filter(|_| page.more);
        if after.is_none() {
            return Ok(SchedulesReport {
                schedules,
                more: false,
                ..page
            });
        }
    }
}

pub(super) async fn read(
    config: &Config,
    request: SchedulesRequest,
    now: Timestamp,
) -> Result<SchedulesReport> {
    let route = config.route_named_or_only(Some(&request.route))?;
    let mut schedules = Schedules::new(request.clone());
    let ends = read_definitions(config, route, |partition, record| {
        schedules.add(partition, record, now);
    });
    for (partition, end) in ends.await? {
        schedules.on_read_to(&partition, end);
    }
    Ok(schedules.into_report(config, now))
}

pub(super) fn text(report: &SchedulesReport, page: &Page) -> String {
    if report.schedules.is_empty() {
        return format!("Route {} has no such schedule.\n", report.route);
    }
    let mut table = Table::new(&[0, 1, 2, 3], ["SCHEDULE", "STATE", "NEXT", "DUE"]);
    for listed in &report.schedules {
        let tone = match listed.state {
            ScheduleState::Active => Tone::Plain,
            ScheduleState::Paused | ScheduleState::Over => Tone::Faint,
            ScheduleState::Wrong => Tone::Bad,
        };
        let meaning = listed.schedule.as_ref().or(listed.error.as_ref());
        let next = listed.next.as_deref().unwrap_or("-");
        table.row(
            tone,
            [
                listed.id.clone(),
                listed.state.name().to_owned(),
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

    fn schedules_of(request: SchedulesRequest) -> Schedules {
        let now = parse_rfc3339("2027-01-31T09:00:00Z").unwrap();
        let mut schedules = Schedules::new(request);
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
        schedules
    }

    #[test]
    fn the_last_record_of_an_id_tells_its_state() {
        let request = SchedulesRequest {
            limit: usize::MAX,
            ..SchedulesRequest::default()
        };
        let schedules = schedules_of(request);
        let report = SchedulesReport {
            schedules: schedules.found.into_values().collect(),
            ..SchedulesReport::default()
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

    #[test]
    fn a_page_is_bounded_and_the_next_one_continues_it() {
        let page = |after: Option<&str>, limit| {
            let schedules = schedules_of(SchedulesRequest {
                after: after.map(str::to_owned),
                limit,
                ..SchedulesRequest::default()
            });
            let ids = schedules.found.into_keys().map(|(id, _)| id);
            (ids.collect::<String>(), schedules.end)
        };
        let end = |id: &str| Some(id.to_owned());
        // The second one has ended after the third one had no room.
        assert_eq!(page(None, 2), ("a".to_owned(), end("c")));
        assert_eq!(page(Some("c"), 2), ("cd".to_owned(), end("e")));
        assert_eq!(page(Some("e"), 2), ("e".to_owned(), None));
    }
}
