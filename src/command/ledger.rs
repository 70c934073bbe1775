//! `postdate ledger`: shows the outcome of all accepted messages and checks that the numbers
//! balance.

use super::page::{Page, Table, Tone, print_document};
use super::pending::QueryClient;
use super::{Access, Outcome, run};
use crate::cli::LedgerArgs;
use crate::model::readable::{count, several};
use crate::store::Balance;
use crate::store::query::{LedgerReport, Query, ShardLedger};
use anyhow::Result;
use std::iter;

const HEAD: [&str; 9] = [
    "SHARD",
    "ACCEPTED",
    "DELIVERED",
    "CANCELLED",
    "DEAD LETTERS",
    "QUARANTINED",
    "RETRIED",
    "PENDING",
    "DIFFERENCE",
];
const MISSING: &str = "missing: accepted, but neither pending nor finished. See PostdateLedgerDoesNotBalance in docs/runbook.md.";
const SURPLUS: &str = "too many: more were finished than accepted. See PostdateLedgerDoesNotBalance in docs/runbook.md.";
const UNSURE: &str = "(?) The store lost data, a timer lost its lease, or another version wrote to the shard. The ledger is exact again when no message is pending.";

/// Prints the ledger of each shard. Fails if a ledger does not balance.
pub fn ledger(access: &Access, ledger: &LedgerArgs) -> Result<Outcome> {
    run(async {
        let route = ledger.route.clone();
        let client = QueryClient::of(access).await?;
        let report: LedgerReport = client.ask(&Query::Ledger { route }).await?;
        if let Some(route) = ledger.route.as_ref().filter(|_| report.shards.is_empty()) {
            client.require_route(route).await?;
        }
        print_document(&report, ledger.output, text)?;
        Ok(Outcome::failing_if(!report.balances))
    })
}

/// One row per shard, and explanations of differences.
fn text(report: &LedgerReport, page: &Page) -> String {
    let mut text = page.title(&report.deployment, &report.store, report.at_ms) + "\n";
    if report.shards.is_empty() {
        return text + "There are no shards yet.\n";
    }
    let mut table = Table::new(&[0], HEAD);
    for shard in &report.shards {
        let tone = if shard.balances {
            Tone::Plain
        } else {
            Tone::Bad
        };
        table.row(tone, cells(name(shard), &shard.sum));
    }
    if report.shards.len() > 1 {
        table.row(Tone::Strong, cells("total".to_owned(), &report.total));
    }
    text += &table.print(page);
    for shard in report.shards.iter().filter(|shard| !shard.balances) {
        let difference = shard.sum.difference;
        let what = if difference > 0 { MISSING } else { SURPLUS };
        let messages = several(difference.unsigned_abs(), "message");
        let line = format!("{}: {messages} {what}", name(shard));
        text += &format!("\n{}\n", page.paint(Tone::Bad, &line));
    }
    if report.shards.iter().any(|shard| shard.sum.is_uncertain) {
        text += &format!("\n{}\n", page.paint(Tone::Warning, UNSURE));
    }
    text
}

fn name(shard: &ShardLedger) -> String {
    format!("{} {}/{}", shard.route, shard.topic, shard.partition)
}

fn cells(name: String, sum: &Balance) -> [String; 9] {
    let difference = if sum.is_uncertain {
        "(?)".to_owned()
    } else {
        sum.difference.to_string()
    };
    let counts = sum.counts().map(count).into_iter();
    let mut cells = iter::once(name).chain(counts).chain([difference]);
    std::array::from_fn(|_| cells.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::OutcomeCounts;

    fn line(partition: i32, balances: bool, sum: Balance) -> ShardLedger {
        ShardLedger {
            route: "orders".to_owned(),
            topic: "orders.delayed".to_owned(),
            partition,
            balances,
            sum,
        }
    }

    #[test]
    fn a_line_tells_what_became_of_a_shards_messages_and_what_is_missing() {
        let sum = Balance {
            accepted: 12_000,
            outcomes: OutcomeCounts {
                delivered: 9_990,
                cancelled: 3,
                dead_lettered: 2,
                retried: 4,
            },
            quarantined: 1,
            pending: 2_000,
            difference: 0,
            is_uncertain: false,
        };
        let missing = Balance {
            accepted: 12_001,
            difference: 1,
            ..sum
        };
        let unsure = Balance {
            is_uncertain: true,
            ..sum
        };
        let shards = vec![
            line(0, true, sum),
            line(1, false, missing),
            line(2, true, unsure),
        ];
        let document = LedgerReport {
            deployment: "prod".into(),
            store: "redis r:1".into(),
            at_ms: 0,
            balances: false,
            total: sum,
            shards,
        };
        let text = text(&document, &Page::PLAIN);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows[3],
            [
                "orders",
                "orders.delayed/0",
                "12,000",
                "9,990",
                "3",
                "2",
                "1",
                "4",
                "2,000",
                "0"
            ],
            "{text}"
        );
        assert_eq!(rows[4].last(), Some(&"1"), "{text}");
        assert_eq!(rows[5].last(), Some(&"(?)"), "{text}");
        assert!(
            text.contains("orders orders.delayed/1: 1 message missing: accepted"),
            "{text}"
        );
        assert_eq!(text.matches("missing").count(), 1, "{text}");
        assert!(text.ends_with(&format!("\n{UNSURE}\n")), "{text}");
    }
}
