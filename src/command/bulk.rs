//! Changes of many waiting messages: `postdate messages cancel | reschedule | fire` and `postdate purge`.
//! Without `--yes` they only count, and ask at a terminal.

use super::change::ChangeWriter;
use super::messages;
use super::page::{confirm, print_document};
use super::pending::{QueryClient, Server};
use super::{Access, Outcome, Refused, run};
use crate::admin::bulk_changes::{BulkReport, batch_max, has_condition};
use crate::admin::change_api::NewDue;
use crate::admin::changes::{Change, ChangeKind, WriteChanges as _};
use crate::admin::message_change::Action;
use crate::cli::{ChangeArgs, FilterArgs, MoveArgs, OutputArgs, PurgeArgs};
use crate::clock::{Clock as _, WallClock};
use crate::limit::{BULK_CALL_SECONDS, SEARCH_PAGE_MAX};
use crate::model::Timestamp;
use crate::model::readable::{count, several};
use crate::store::query::{MessagePage, Query, Search, SearchPosition, WorkersReport};
use anyhow::{Result, anyhow};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Cancels all waiting messages of a route.
pub fn purge(access: &Access, purge: &PurgeArgs) -> Result<Outcome> {
    let filter = FilterArgs {
        route: purge.route.clone(),
        ..FilterArgs::default()
    };
    let bulk = Bulk {
        search: messages::search(&filter)?,
        action: Action::Cancel,
        limit: purge.limit,
        rate: purge.rate,
    };
    run(bulk.run(access, purge.yes, purge.output))
}

/// Changes the messages of a filter.
pub(super) async fn change(access: &Access, action: Action, args: &ChangeArgs) -> Result<Outcome> {
    let search = messages::search(&args.filter)?;
    if !has_condition(&search.filter) {
        let text = "name a condition; `postdate purge` cancels all messages of a route";
        return Err(Refused(text.to_owned()).into());
    }
    let bulk = Bulk {
        search,
        action,
        limit: args.limit,
        rate: args.rate,
    };
    bulk.run(access, args.yes, args.output).await
}

pub(super) async fn reschedule(access: &Access, args: &MoveArgs) -> Result<Outcome> {
    let due = NewDue {
        at: args.at.clone(),
        delay: args.delay.clone(),
    };
    let due = due.due(WallClock.now());
    let due = due.map_err(|problem| Refused(problem.detail))?;
    change(access, Action::Reschedule(due), &args.change).await
}

/// A change, its conditions and its bounds.
struct Bulk {
    search: Search,
    action: Action,
    limit: usize,
    /// Changes per second.
    rate: u32,
}

impl Bulk {
    async fn run(mut self, access: &Access, yes: bool, output: OutputArgs) -> Result<Outcome> {
        if self.limit == 0 {
            return Err(Refused("--limit: write at least 1".to_owned()).into());
        }
        let client = QueryClient::of(access).await?;
        if self.action.needs_copies() && matches!(client, QueryClient::Service(..)) {
            let text = "the service uses the store alone, and it does not give payloads away: use --url and --token-file \
                        instead of --config, or its console";
            return Err(Refused(text.to_owned()).into());
        }
        let mut is_dry = !yes;
        loop {
            let mut report = BulkReport::new(&self.search.filter.route, self.action, is_dry);
            let done = match access {
                Access::Config(config) => {
                    let mut writer = ChangeWriter::new(config);
                    let done = self.change(&client, &mut writer, &mut report).await;
                    writer.close().await;
                    done
                }
                Access::Server(server) => self.request(server, &mut report).await,
            };
            if !is_dry && std::io::stderr().is_terminal() {
                let _ = writeln!(std::io::stderr());
            }
            print_document(&report, output, |report, _| text(report))?;
            done.map_err(|error| match access {
                _ if is_dry || error.is::<Refused>() => error,
                Access::Config(_) => {
                    error.context("a change was not sent, so the command ended early")
                }
                Access::Server(_) => error.context(
                    "a call failed, so the command ended early. The call may have changed messages: see `postdate audit`",
                ),
            })?;
            let (found, place) = (several(report.found, "message"), access.place());
            let question = format!("Change {found}{place}?");
            if !is_dry || report.found == 0 || output.is_json() || !confirm(&question)? {
                return Ok(Outcome::Done);
            }
            // At most the number that the user has confirmed.
            self.limit = report.found as usize;
            is_dry = false;
        }
    }

    /// Lets the service change the messages, call after call.
    async fn request(&self, server: &Server, report: &mut BulkReport) -> Result<()> {
        let filter = &self.search.filter;
        if filter.offset.is_some() {
            let text = "--offset needs --config; or `POST /v1/routes/ROUTE/messages/PARTITION/OFFSET:cancel` of the API";
            return Err(Refused(text.to_owned()).into());
        }
        let route = utf8_percent_encode(&filter.route, NON_ALPHANUMERIC);
        let path = match has_condition(filter) {
            true => format!("/v1/routes/{route}/messages:{}", self.action.name()),
            false => format!("/v1/routes/{route}:purge"),
        };
        let time = |time: Option<Timestamp>| time.map(|time| time.as_millis().to_string());
        let header = filter.header.as_ref();
        let header = header.map(|(name, value)| format!("{name}:{value}"));
        loop {
            let body = json!({
                "due_from": time(filter.due_from),
                "due_to": time(filter.due_to),
                "id": filter.id,
                "key": filter.key,
                "header": header,
                "topic": filter.topic,
                "partition": filter.partition,
                "at": report.due_ms.map(|due| due.to_string()),
                "dry_run": report.dry_run,
                "limit": self.limit.saturating_sub(report.found as usize),
                "rate": self.rate,
                "after": report.after,
            });
            let (_, answer) = server.post(&path, &body).await?;
            *report = std::mem::take(report).plus(answer);
            self.show_progress(report);
            if !report.more || report.found as usize >= self.limit {
                return Ok(());
            }
        }
    }

    /// Only a hint: the report follows.
    fn show_progress(&self, report: &BulkReport) {
        if !report.dry_run && std::io::stderr().is_terminal() {
            let (changed, limit) = (report.changed, self.limit);
            let _ = write!(std::io::stderr(), "\rwritten {changed} of at most {limit} ");
        }
    }

    /// Reads page after page, so that only one is in memory.
    async fn change(
        &self,
        client: &QueryClient,
        writer: &mut ChangeWriter<'_>,
        report: &mut BulkReport,
    ) -> Result<()> {
        let mut search = self.search.clone();
        // On NATS, a change goes to the subject of the message, which is a header.
        search.is_detailed = !report.dry_run;
        search.with_copies = !report.dry_run && self.action.needs_copies();
        // A page is changed within some seconds, so that it hardly changes meanwhile.
        let page_max = match report.dry_run {
            true => SEARCH_PAGE_MAX,
            false => SEARCH_PAGE_MAX.min(BULK_CALL_SECONDS * self.rate as usize),
        };
        loop {
            let left = self.limit.saturating_sub(report.found as usize);
            search.limit = left.min(page_max);
            let query = Query::Messages(Box::new(search.clone()));
            let page: MessagePage = client.ask(&query).await?;
            report.scanned += page.scanned;
            (report.more, report.after) = (page.more, None);
            // An older version may be started meanwhile.
            let copies_refused = match self.action.needs_copies() {
                true => (client.ask::<WorkersReport>(&Query::Workers).await?).refuses_copies(),
                false => None,
            };
            let refused = copies_refused.as_deref();
            self.change_page(&page, refused, writer, report).await?;
            let after = page.after.filter(|_| page.more);
            let route = &search.filter.route;
            let after = after.and_then(|after| SearchPosition::from_token(route, &after));
            if after.is_none() || report.found as usize >= self.limit {
                return Ok(());
            }
            search.after = after;
        }
    }

    async fn change_page(
        &self,
        page: &MessagePage,
        copies_refused: Option<&str>,
        writer: &mut ChangeWriter<'_>,
        report: &mut BulkReport,
    ) -> Result<()> {
        let mut batch = Vec::new();
        for message in &page.items {
            if report.dry_run {
                let plan = self.action.plan(message, WallClock.now());
                report.count_plan(plan, copies_refused);
                continue;
            }
            let change = (self.action).change(&report.route, message, WallClock.now());
            report.count(change.as_ref().err().copied());
            let Ok(change) = change else { continue };
            if matches!(change.kind, ChangeKind::Copy { .. })
                && let Some(why) = copies_refused
            {
                report.count_refused(why.to_owned());
                continue;
            }
            batch.push(change);
            if batch.len() == batch_max(self.rate) {
                self.write(std::mem::take(&mut batch), writer, report)
                    .await?;
            }
        }
        self.write(batch, writer, report).await
    }

    /// Writes the changes, and waits until the next ones may follow.
    async fn write(
        &self,
        batch: Vec<Change>,
        writer: &mut ChangeWriter<'_>,
        report: &mut BulkReport,
    ) -> Result<()> {
        let next = Instant::now() + Duration::from_secs(1) * batch.len() as u32 / self.rate;
        let outcomes = writer.write_many(batch).await;
        if let Some((_, why)) = report.count_written(outcomes) {
            return Err(anyhow!(why));
        }
        self.show_progress(report);
        sleep_until(next).await;
        Ok(())
    }
}

fn text(report: &BulkReport) -> String {
    let verb = match report.action.as_str() {
        "cancel" => "cancelled",
        "fire" => "delivered now",
        _ => "rescheduled",
    };
    let mut text = match report.dry_run {
        true => format!(
            "{} would be {verb}. Nothing was sent: --yes sends the records.\n",
            several(report.found, "message")
        ),
        false => format!("Records written: {}.\n", count(report.changed)),
    };
    for note in report.notes() {
        text += &format!("{note}\n");
    }
    if report.more {
        text += "More may follow.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_messages_that_stay() {
        let report = BulkReport {
            found: 1_200,
            without_id: 3,
            due_soon: 1,
            refused: 2,
            refusal: Some("not sent".to_owned()),
            more: true,
            ..BulkReport::new("orders", Action::Fire, true)
        };
        insta::assert_snapshot!(text(&report), @r"
        1,200 messages would be delivered now. Nothing was sent: --yes sends the records.
        Without an id (see change_by_origin), or another message has it, so no record can name them: 3.
        Due within seconds, or about to be moved: 1.
        Refused: 2. The last one: not sent
        More may follow.
        ");
    }
}
