//! `postdate schedules show`, `pause`, `resume` and `fire`: one schedule of a recurring route.

use super::list::read;
use super::preview;
use crate::admin::changes::{ChangeError, WriteChanges as _};
use crate::admin::schedules::change::{ScheduleAction, ScheduleReceipt, WrittenDefinition};
use crate::admin::schedules::show::{ScheduleName, ScheduleReport};
use crate::admin::schedules::{Schedule, SchedulesReport};
use crate::cli::{ChangeScheduleArgs, OneScheduleArgs};
use crate::command::page::{Page, Tone, confirm, print, print_document};
use crate::command::pending::Server;
use crate::command::{Access, ChangeWriter, Outcome, Refused};
use crate::config::Config;
use crate::model::Timestamp;
use crate::model::readable::{moment, size};
use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use url::form_urlencoded::Serializer;

const NONE: &str = "No record of the topic defines this schedule.\n";

pub(super) async fn show(
    access: &Access,
    args: &OneScheduleArgs,
    now: Timestamp,
) -> Result<Outcome> {
    let found = match access {
        Access::Config(config) => {
            let found = find(config, args, now).await?;
            found.and_then(|(report, schedule)| ScheduleReport::new(&report, schedule))
        }
        Access::Server(server) => {
            let path = path_of(args, "")?;
            server.find(Method::GET, &path, Bytes::new()).await?
        }
    };
    let Some(report) = found else {
        print(NONE)?;
        return Ok(Outcome::Nothing);
    };
    print_document(&report, args.output, text)?;
    Ok(Outcome::Done)
}

pub(super) async fn change(
    access: &Access,
    action: ScheduleAction,
    args: &ChangeScheduleArgs,
    now: Timestamp,
) -> Result<Outcome> {
    let id = &args.schedule.id;
    let question = match action {
        ScheduleAction::Pause => format!("Pause the schedule {id}{}?", access.place()),
        ScheduleAction::Resume => format!("Resume the schedule {id}{}?", access.place()),
        ScheduleAction::Fire => format!("Deliver the schedule {id}{} now?", access.place()),
    };
    if !args.yes && !confirm(&question)? {
        let text = "nothing was written: confirm at a terminal, or use --yes";
        return Err(Refused(text.to_owned()).into());
    }
    let receipt = match access {
        Access::Config(config) => write(config, action, &args.schedule, now).await?,
        Access::Server(server) => request(server, action, &args.schedule).await?,
    };
    let Some(receipt) = receipt else {
        print(NONE)?;
        return Ok(Outcome::Nothing);
    };
    print_document(&receipt, args.schedule.output, |receipt, _| {
        receipt_text(receipt, action)
    })?;
    Ok(Outcome::Done)
}

/// The schedule in its topic, and the report that it is from.
async fn find(
    config: &Config,
    args: &OneScheduleArgs,
    now: Timestamp,
) -> Result<Option<(SchedulesReport, Schedule)>> {
    let name = ScheduleName {
        route: config
            .route_named_or_only(args.route.as_deref())?
            .to_owned(),
        id: args.id.clone(),
        topic: args.topic.clone(),
        partition: args.partition,
    };
    let mut report = read(config, name.request(), now).await?;
    let found = name.find(&mut report).map_err(Refused)?;
    Ok(found.map(|schedule| (report, schedule)))
}

/// `None`: there is no such schedule.
async fn write(
    config: &Config,
    action: ScheduleAction,
    args: &OneScheduleArgs,
    now: Timestamp,
) -> Result<Option<ScheduleReceipt>> {
    let Some((report, schedule)) = find(config, args, now).await? else {
        return Ok(None);
    };
    let change = action.change(&report.route, &schedule, now);
    let Some(change) = change.map_err(Refused)? else {
        return Ok(Some(action.receipt(schedule, None)));
    };
    let mut writer = ChangeWriter::new(config);
    let written = writer.write(change).await;
    writer.close().await;
    let written = written.map_err(|error| match error {
        ChangeError::Refused(why) => Refused(why).into(),
        ChangeError::Failed(why) => anyhow!(why),
    })?;
    let written: WrittenDefinition = serde_json::from_str(&written)?;
    if let Some(text) = written.conflict(action) {
        bail!(text);
    }
    Ok(Some(action.receipt(schedule, Some(written.offset))))
}

/// Lets the service write the record.
async fn request(
    server: &Server,
    action: ScheduleAction,
    args: &OneScheduleArgs,
) -> Result<Option<ScheduleReceipt>> {
    let path = path_of(args, &format!(":{}", action.name()))?;
    server.find(Method::POST, &path, Bytes::new()).await
}

fn path_of(args: &OneScheduleArgs, action: &str) -> Result<String> {
    let route = args.route.as_deref().ok_or_else(|| {
        let text = "--route: name the recurring route of the service";
        Refused(text.to_owned())
    })?;
    let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
    let (route, id) = (encoded(route), encoded(&args.id));
    let mut line = Serializer::new(String::new());
    if let Some(topic) = &args.topic {
        line.append_pair("topic", topic);
    }
    if let Some(partition) = args.partition {
        line.append_pair("partition", &partition.to_string());
    }
    let line = line.finish();
    let mark = if line.is_empty() { "" } else { "?" };
    Ok(format!(
        "/v1/routes/{route}/schedules/{id}{action}{mark}{line}"
    ))
}

fn text(report: &ScheduleReport, page: &Page) -> String {
    let schedule = &report.schedule;
    let place = format!(
        "{}/{} offset {}",
        schedule.topic, schedule.partition, schedule.offset
    );
    let written = report.timestamp_ms.map(Timestamp::from_millis);
    let mut fields = vec![
        ("schedule", schedule.id.clone()),
        ("state", schedule.state.name().to_owned()),
        ("definition", place),
        ("written", written.map_or_else(|| "-".to_owned(), moment)),
    ];
    for header in &report.headers {
        let value = header.value.as_deref().unwrap_or("null");
        fields.push(("header", format!("{}: {value}", header.name)));
    }
    let payload = report.payload.clone();
    let hidden = || format!("{}, hidden by admin.payloads", size(report.payload_bytes));
    fields.push(("payload", payload.unwrap_or_else(hidden)));
    if let Some(error) = &schedule.error {
        fields.push(("error", page.paint(Tone::Bad, error)));
    }
    let preview = report.preview.as_ref();
    let preview = preview.map(|it| format!("\n{}", preview::text(it, page)));
    page.fields(&fields) + &preview.unwrap_or_default()
}

fn receipt_text(receipt: &ScheduleReceipt, action: ScheduleAction) -> String {
    let ScheduleReceipt {
        id,
        topic,
        partition,
        ..
    } = receipt;
    let Some(offset) = receipt.offset else {
        let state = receipt.state.name();
        return format!("Schedule {id} was {state} already. Nothing was written.\n");
    };
    let done = match action {
        ScheduleAction::Pause => "is paused",
        ScheduleAction::Resume => "is resumed",
        ScheduleAction::Fire => "is delivered once more, now",
    };
    format!("Schedule {id} {done}: {topic}/{partition} offset {offset}.\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::schedules::{DefinitionRecord, ScheduleState};
    use crate::model::Watermark;
    use crate::model::header::block_of_lines;

    #[test]
    fn a_schedule_is_shown_with_its_definition_and_its_next_times() {
        let lines = [
            "own: header",
            "postdate-cron: 0 9 * * SUN",
            "postdate-zone: Europe/Berlin",
        ];
        let record = DefinitionRecord {
            timestamp: Some(Timestamp::from_millis(1_801_386_000_000)),
            payload: b"template".to_vec(),
            headers: block_of_lines(&lines),
            read_to: Watermark(8),
        };
        let schedule = Schedule {
            id: "invoices".to_owned(),
            topic: "schedules".to_owned(),
            partition: 3,
            offset: 7,
            state: ScheduleState::Active,
            schedule: None,
            next_ms: None,
            next: None,
            error: None,
            record: Some(Box::new(record)),
        };
        let report = SchedulesReport {
            at_ms: 1_805_000_000_000,
            ..SchedulesReport::default()
        };
        let report = ScheduleReport::new(&report, schedule).unwrap();
        let text = text(&report, &Page::PLAIN);
        let text = text.replace(crate::model::zone_data_version(), "RELEASE");
        insta::assert_snapshot!(text, @r"
          schedule    invoices
          state       active
          definition  schedules/3 offset 7
          written     2027-01-31 09:00:00 UTC
          header      own: header
          header      postdate-cron: 0 9 * * SUN
          header      postdate-zone: Europe/Berlin
          payload     8 B, hidden by admin.payloads

        at 09:00 on Sunday, Europe/Berlin  missed: latest, zone data RELEASE

          DUE                   LOCAL TIME
          2027-03-14T08:00:00Z  2027-03-14T09:00:00+01:00[Europe/Berlin]
          2027-03-21T08:00:00Z  2027-03-21T09:00:00+01:00[Europe/Berlin]
          2027-03-28T07:00:00Z  2027-03-28T09:00:00+02:00[Europe/Berlin]
          2027-04-04T07:00:00Z  2027-04-04T09:00:00+02:00[Europe/Berlin]
          2027-04-11T07:00:00Z  2027-04-11T09:00:00+02:00[Europe/Berlin]
        ");
    }

    #[test]
    fn a_path_names_the_schedule_and_its_partition() {
        let args = OneScheduleArgs {
            route: Some("reports".to_owned()),
            id: "a:b".to_owned(),
            partition: Some(3),
            ..OneScheduleArgs::default()
        };
        let path = path_of(&args, ":fire").unwrap();
        assert_eq!(path, "/v1/routes/reports/schedules/a%3Ab:fire?partition=3");
        assert!(
            path_of(&OneScheduleArgs::default(), "")
                .unwrap_err()
                .is::<Refused>()
        );
    }
}
