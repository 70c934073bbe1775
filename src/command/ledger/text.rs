//! Formats the ledgers as text: a table with one row per shard, and explanations of differences.

use crate::command::page::{Page, Side, Table, Tone, count, moment, several};
use crate::model::Timestamp;
use crate::store::Balance;
use crate::store::query::{LedgerReport, ShardLedger};

const HEAD: [&str; 9] = [
    "SHARD",
    "ACCEPTED",
    "DELIVERED",
    "CANCELLED",
    "DEAD LETTERS",
    "SET ASIDE",
    "SENT BACK",
    "PENDING",
    "DIFFERENCE",
];
const MISSING: &str = "missing: accepted, and neither there nor accounted for. See PostdateLedgerDoesNotBalance in docs/runbook.md.";
const SURPLUS: &str =
    "more than were accepted came to an end. See PostdateLedgerDoesNotBalance in docs/runbook.md.";
const UNSURE: &str = "(?) The store lost data, or a timer its lease, or another version was at work: exact again once nothing of the shard is pending.";

pub(super) fn sheet(sheet: &LedgerReport, page: &Page) -> String {
    let at = moment(Timestamp::from_millis(
        sheet.at_ms.div_euclid(1_000) * 1_000,
    ));
    let rest = page.paint(Tone::Faint, &format!("  {}  {at}", sheet.store));
    let mut text = format!("{}{rest}\n", page.paint(Tone::Strong, &sheet.deployment));
    if sheet.shards.is_empty() {
        return text + "\nThere are no shards yet.\n";
    }
    let mut sides = [Side::Right; 9];
    sides[0] = Side::Left;
    let mut table = Table::new(sides);
    table.row(Tone::Faint, HEAD);
    for line in &sheet.shards {
        let tone = if line.balances {
            Tone::Plain
        } else {
            Tone::Bad
        };
        table.row(tone, cells(name(line), &line.sum));
    }
    if sheet.shards.len() > 1 {
        table.row(Tone::Strong, cells("total".to_owned(), &sheet.total));
    }
    text += "\n";
    text += &table.print(page);
    for line in sheet.shards.iter().filter(|line| !line.balances) {
        let (messages, what) = (
            several(line.sum.difference.unsigned_abs(), "message"),
            if line.sum.difference > 0 {
                MISSING
            } else {
                SURPLUS
            },
        );
        text += &format!(
            "\n{}\n",
            page.paint(Tone::Bad, &format!("{}: {messages} {what}", name(line)))
        );
    }
    if sheet.shards.iter().any(|line| line.sum.is_uncertain) {
        text += &format!("\n{}\n", page.paint(Tone::Odd, UNSURE));
    }
    text
}

fn name(line: &ShardLedger) -> String {
    format!("{} {}/{}", line.route, line.topic, line.partition)
}

fn cells(name: String, sum: &Balance) -> [String; 9] {
    let difference = if sum.is_uncertain {
        "(?)".to_owned()
    } else {
        sum.difference.to_string()
    };
    let [
        accepted,
        delivered,
        cancelled,
        dead_lettered,
        quarantined,
        sent_back,
        pending,
    ] = sum.counts().map(count);
    [
        name,
        accepted,
        delivered,
        cancelled,
        dead_lettered,
        quarantined,
        sent_back,
        pending,
        difference,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::OutcomeCounts;

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
        let text = sheet(&document, &Page::PLAIN);
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
