//! `postdate audit`: prints the last changes and shown payloads of the HTTP API and the console.

use super::page::{Page, Table, Tone, print_document};
use super::pending::QueryClient;
use super::{Access, Outcome, run};
use crate::cli::AuditArgs;
use crate::limit::AUDIT_LINES_MAX;
use crate::model::Timestamp;
use crate::model::readable::moment;
use crate::store::query::{AuditLine, AuditReport, Query};
use anyhow::Result;

const HEAD: [&str; 6] = ["WHEN", "WHO", "ACTION", "ROUTE", "MESSAGES", "RESULT"];

/// Prints one row per line, the newest first.
pub fn audit(access: &Access, args: &AuditArgs) -> Result<Outcome> {
    run(async {
        let client = QueryClient::of(access).await?;
        let query = Query::Audit {
            changes_only: args.changes,
            after: None,
            limit: args.limit.clamp(1, AUDIT_LINES_MAX),
        };
        let report: AuditReport = client.ask(&query).await?;
        print_document(&report, args.output, text)?;
        Ok(Outcome::Done)
    })
}

fn text(report: &AuditReport, page: &Page) -> String {
    let mut text = page.title(&report.deployment, &report.store, report.at_ms) + "\n";
    if report.items.is_empty() {
        text += "No change and no shown payload is in the list.\n";
    } else {
        let mut table = Table::new(&[0, 1, 2, 3, 4, 5], HEAD);
        for line in &report.items {
            table.row(Tone::Plain, cells(line));
        }
        text += &table.print(page);
    }
    if report.unreadable > 0 {
        let line = format!(
            "Lines of another key, which cannot be read: {}.",
            report.unreadable
        );
        text += &format!("\n{}\n", page.paint(Tone::Warning, &line));
    }
    if report.more {
        text += "\nOlder lines follow: raise --limit.\n";
    }
    text
}

fn cells(line: &AuditLine) -> [String; 6] {
    let at = Timestamp::from_millis(line.at_ms.div_euclid(1_000) * 1_000);
    let cells = [
        moment(at),
        format!("{} {}", line.actor, line.address),
        line.action.clone(),
        line.route.clone().unwrap_or_default(),
        line.object(),
        line.result(),
    ];
    // A terminal shows no control character of a producer.
    cells.map(|cell| {
        cell.trim_end()
            .chars()
            .filter(|c| !c.is_control())
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_who_has_changed_what() {
        let line = AuditLine {
            at_ms: 1_795_302_005_123,
            actor: "operator".to_owned(),
            address: "10.0.0.7:5555".to_owned(),
            action: "cancel".to_owned(),
            route: Some("orders".to_owned()),
            partition: Some(3),
            offset: Some(4711),
            id: Some("order\u{1b}[2J-42".to_owned()),
            outcome: Some("written".to_owned()),
            ..AuditLine::default()
        };
        let report = AuditReport {
            deployment: "prod".to_owned(),
            store: "redis r:1".to_owned(),
            items: vec![line],
            unreadable: 2,
            more: true,
            ..AuditReport::default()
        };
        insta::assert_snapshot!(text(&report, &Page::PLAIN), @r"
        prod  redis r:1  1970-01-01 00:00:00 UTC

          WHEN                     WHO                     ACTION  ROUTE   MESSAGES                        RESULT
          2026-11-21 23:00:05 UTC  operator 10.0.0.7:5555  cancel  orders  message 3/4711, id order[2J-42  written

        Lines of another key, which cannot be read: 2.

        Older lines follow: raise --limit.
        ");
    }
}
