//! `postdate pause` and `postdate resume`: write a control record to each partition of a route.

use super::change::ChangeWriter;
use super::page::{Page, Tone, confirm, print_document};
use super::pending::{QueryClient, Server};
use super::{Access, Outcome, Refused, run};
use crate::admin::changes::{ChangeError, WriteChanges as _};
use crate::admin::pause_api::control;
use crate::cli::PauseArgs;
use crate::limit::{ADMIN_OUTCOME_INTERVAL, ADMIN_OUTCOME_TIMEOUT};
use crate::model::Timestamp;
use crate::model::readable::{moment, several};
use crate::store::query::{PauseReport, Query, WorkersReport};
use anyhow::{Result, anyhow};
use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;
use tokio::time::Instant;

pub fn pause(access: &Access, args: &PauseArgs) -> Result<Outcome> {
    run(set_paused(access, args, true))
}

pub fn resume(access: &Access, args: &PauseArgs) -> Result<Outcome> {
    run(set_paused(access, args, false))
}

async fn set_paused(access: &Access, args: &PauseArgs, pauses: bool) -> Result<Outcome> {
    let config = match access {
        Access::Config(config) => config,
        Access::Server(server) => {
            confirm_pause(access, args, pauses)?;
            return request(server, args, pauses).await;
        }
    };
    config.route_named_or_only(Some(&args.route))?;
    let client = QueryClient::open(config).await?;
    let route = args.route.clone();
    let query = Query::Pause { route };
    let report: PauseReport = client.ask(&query).await?;
    let workers: WorkersReport = client.ask(&Query::Workers).await?;
    // A route that is paused already may be resumed: no older version can read its shards.
    let is_refused = pauses || report.paused == 0;
    if let Some(why) = workers.refuses_pause().filter(|_| is_refused) {
        return Err(Refused(why).into());
    }
    let (at, change) = control(&report, pauses, (&args.note, &user())).map_err(Refused)?;
    confirm_pause(access, args, pauses)?;
    let mut writer = ChangeWriter::new(config);
    let written = writer.write(change).await;
    writer.close().await;
    let written = written.map_err(|error| match error {
        ChangeError::Refused(why) => Refused(why).into(),
        ChangeError::Failed(why) => anyhow!(why),
    })?;
    let written: Vec<(String, i32)> = serde_json::from_str(&written)?;
    let end = Instant::now() + ADMIN_OUTCOME_TIMEOUT;
    let (report, is_reached) = loop {
        let mut report: PauseReport = client.ask(&query).await?;
        report.add_unknown(&written);
        if let Some(why) = report.overtaken(pauses, at) {
            return Err(Refused(why).into());
        }
        let is_reached = report.is_reached(pauses, at);
        if is_reached || Instant::now() >= end {
            break (report, is_reached);
        }
        tokio::time::sleep(ADMIN_OUTCOME_INTERVAL).await;
    };
    print_report(&report, is_reached, args)
}

/// Lets the service write the records.
async fn request(server: &Server, args: &PauseArgs, pauses: bool) -> Result<Outcome> {
    let route = utf8_percent_encode(&args.route, NON_ALPHANUMERIC);
    let action = if pauses { "pause" } else { "resume" };
    let path = format!("/v1/routes/{route}:{action}");
    let body = json!({ "note": args.note });
    let (status, report) = server.post::<PauseReport>(&path, &body).await?;
    print_report(&report, status == StatusCode::OK, args)
}

fn confirm_pause(access: &Access, args: &PauseArgs, pauses: bool) -> Result<()> {
    let verb = if pauses { "Pause" } else { "Resume" };
    let question = format!("{verb} the delivery of {}{}?", args.route, access.place());
    if !args.yes && !confirm(&question)? {
        let text = "nothing was written: confirm at a terminal, or use --yes";
        return Err(Refused(text.to_owned()).into());
    }
    Ok(())
}

fn print_report(report: &PauseReport, is_reached: bool, args: &PauseArgs) -> Result<Outcome> {
    print_document(report, args.output, |report, page| {
        text(report, is_reached, page)
    })?;
    Ok(Outcome::failing_if(!is_reached))
}

/// For the note.
fn user() -> String {
    let user = std::env::var("USER").ok().filter(|user| user.len() <= 32);
    user.map_or_else(|| "postdate".to_owned(), |user| format!("postdate, {user}"))
}

fn text(report: &PauseReport, is_reached: bool, page: &Page) -> String {
    let (paused, shards) = (report.paused, report.shards);
    let mut text = format!("{paused} of {} paused", several(shards, "shard"));
    if let Some(since) = report.since_ms {
        text += &format!(", since {}", moment(Timestamp::from_millis(since)));
    }
    text += ".\n";
    if !is_reached {
        let line = "Not all records were read yet: see `postdate workers`. A source over its `max_waiting` is not read: raise it.";
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
        insta::assert_snapshot!(text(&report, false, &Page::PLAIN), @r"
        11 of 12 shards paused, since 2026-11-21 23:00:05 UTC.
        Not all records were read yet: see `postdate workers`. A source over its `max_waiting` is not read: raise it.
        Messages that were claimed before may still go out: 2 shards.
        ");
    }
}
