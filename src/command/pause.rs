//! `postdate pause` and `postdate resume`: write a control record to each partition of a route.

use super::change::ChangeWriter;
use super::page::{Page, Tone, confirm, print_document};
use super::pending::QueryClient;
use super::{Outcome, Refused, run};
use crate::admin::changes::ChangeError;
use crate::admin::pause_api::control_records;
use crate::cli::{Output, PauseArgs};
use crate::config::Config;
use crate::limit::{ADMIN_OUTCOME_INTERVAL, ADMIN_OUTCOME_TIMEOUT};
use crate::model::Timestamp;
use crate::model::readable::{moment, several};
use crate::store::query::{PauseReport, Query, WorkersReport};
use anyhow::{Result, anyhow};
use tokio::time::Instant;

pub fn pause(config: &Config, args: &PauseArgs) -> Result<Outcome> {
    run(set_paused(config, args, true))
}

pub fn resume(config: &Config, args: &PauseArgs) -> Result<Outcome> {
    run(set_paused(config, args, false))
}

async fn set_paused(config: &Config, args: &PauseArgs, pauses: bool) -> Result<Outcome> {
    config.route_named_or_only(Some(&args.route))?;
    let client = QueryClient::open(config).await?;
    let route = args.route.clone();
    let query = Query::Pause { route };
    let report: PauseReport = client.ask(&query).await?;
    let workers: WorkersReport = client.ask(&Query::Workers).await?;
    let records = control_records(&report, &workers, pauses, (&args.note, &user()));
    let records = records.map_err(Refused)?;
    let verb = if pauses { "Pause" } else { "Resume" };
    let shards = several(report.shards, "shard");
    let question = format!("{verb} the delivery of {}, {shards}?", args.route);
    if !args.yes && !confirm(&question)? {
        let text = "nothing was written: confirm at a terminal, or use --yes";
        return Err(Refused(text.to_owned()).into());
    }
    let mut writer = ChangeWriter::default();
    let mut written = Ok(());
    for record in records {
        written = writer.write(config, record).await.map(drop);
        if written.is_err() {
            break;
        }
    }
    writer.close().await;
    written.map_err(|error| match error {
        ChangeError::Refused(why) => Refused(why).into(),
        ChangeError::Failed(why) => {
            anyhow!("{why}. Some records may be written: repeat the command")
        }
    })?;
    let report = outcome(&client, &query, pauses).await?;
    let as_json = args.output == Output::Json;
    print_document(&report, as_json, |report, page| text(report, pauses, page))?;
    Ok(Outcome::failing_if(!report.is_reached(pauses)))
}

/// For the note.
fn user() -> String {
    let user = std::env::var("USER").ok().filter(|user| user.len() <= 32);
    user.map_or_else(|| "postdate".to_owned(), |user| format!("postdate, {user}"))
}

/// Waits until the shards have read their records, at most some seconds.
async fn outcome(client: &QueryClient, query: &Query, pauses: bool) -> Result<PauseReport> {
    let end = Instant::now() + ADMIN_OUTCOME_TIMEOUT;
    loop {
        let report: PauseReport = client.ask(query).await?;
        if report.is_reached(pauses) || Instant::now() >= end {
            return Ok(report);
        }
        tokio::time::sleep(ADMIN_OUTCOME_INTERVAL).await;
    }
}

fn text(report: &PauseReport, pauses: bool, page: &Page) -> String {
    let (paused, shards) = (report.paused, report.shards);
    let mut text = format!("{paused} of {} paused", several(shards, "shard"));
    if let Some(since) = report.since_ms {
        text += &format!(", since {}", moment(Timestamp::from_millis(since)));
    }
    text += ".\n";
    if !report.is_reached(pauses) {
        let line =
            "The other records are in the source, and were not read yet. See `postdate workers`.";
        text += &format!("{}\n", page.paint(Tone::Warning, line));
    }
    if report.in_flight > 0 {
        let shards = several(report.in_flight, "shard");
        text += &format!("Messages that were claimed before may still go out: {shards}.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_how_many_shards_are_paused() {
        let report = PauseReport {
            shards: 12,
            paused: 11,
            in_flight: 2,
            since_ms: Some(1_795_302_005_000),
            ..PauseReport::default()
        };
        insta::assert_snapshot!(text(&report, true, &Page::PLAIN), @r"
        11 of 12 shards paused, since 2026-11-21 23:00:05 UTC.
        The other records are in the source, and were not read yet. See `postdate workers`.
        Messages that were claimed before may still go out: 2 shards.
        ");
    }
}
