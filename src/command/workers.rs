//! `postdate workers`: lists the workers, their sessions, and the shards that each of them delivers.

use super::page::{Page, Table, Tone, print_document};
use super::pending::QueryClient;
use super::{Access, Outcome, run};
use crate::cli::WorkersArgs;
use crate::model::readable::{count, length, several, size};
use crate::store::query::{Query, ShardLoad, WorkerReport, WorkersReport};
use anyhow::Result;
use std::time::Duration;

const HEAD: [&str; 8] = [
    "WORKER", "ROLES", "ROUTES", "SESSION", "ENDS IN", "SHARDS", "MESSAGES", "SIZE",
];

/// Prints one row per session.
pub fn workers(access: &Access, workers: &WorkersArgs) -> Result<Outcome> {
    run(async {
        let client = QueryClient::of(access).await?;
        let report: WorkersReport = client.ask(&Query::Workers).await?;
        print_document(&report, workers.output, text)?;
        Ok(Outcome::Done)
    })
}

fn text(report: &WorkersReport, page: &Page) -> String {
    let mut text = page.title(&report.deployment, &report.store, report.at_ms) + "\n";
    if report.workers.is_empty() {
        text += "No worker has a session, so nothing is read or delivered.\n";
    } else {
        let mut table = Table::new(&[0, 1, 2, 3], HEAD);
        for worker in &report.workers {
            let tone = match worker.expires_in_ms {
                0 => Tone::Bad,
                _ if !worker.connected => Tone::Warning,
                _ => Tone::Plain,
            };
            table.row(tone, cells(worker));
        }
        text += &table.print(page);
    }
    let ShardLoad {
        shards, messages, ..
    } = report.without_worker;
    if shards > 0 {
        let (shards, messages) = (several(shards, "shard"), several(messages, "message"));
        let line = format!("No worker delivers {shards} with {messages}.");
        text += &format!("\n{}\n", page.paint(Tone::Warning, &line));
    }
    text
}

fn cells(worker: &WorkerReport) -> [String; 8] {
    let list = |texts: Vec<&str>| match texts.as_slice() {
        [] => "-".to_owned(),
        texts => texts.join(","),
    };
    let roles = worker.roles.iter().map(|role| role.name()).collect();
    let routes = worker.routes.iter().map(String::as_str).collect();
    [
        worker.name.clone(),
        match worker.roles.is_empty() {
            true => "leaving".to_owned(),
            false => list(roles),
        },
        list(routes),
        // The first part is the id of the name.
        worker
            .session
            .rsplit('-')
            .next()
            .unwrap_or_default()
            .to_owned(),
        match (worker.expires_in_ms, worker.connected) {
            (0, _) => "expired".to_owned(),
            (_, false) => "disconnected".to_owned(),
            (millis, true) => length(Duration::from_millis(millis)),
        },
        count(worker.delivers.shards),
        count(worker.delivers.messages),
        size(worker.delivers.bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Role;

    #[test]
    fn a_row_shows_a_worker_with_its_session_and_its_shards() {
        let worker = |name: &str, expires_in_ms, connected, shards| WorkerReport {
            name: name.to_owned(),
            session: format!("{name}-1"),
            roles: [Role::Ingress, Role::Timer].into(),
            routes: ["orders".to_owned()].into(),
            expires_in_ms,
            connected,
            delivers: ShardLoad {
                shards,
                messages: 1_000 * shards,
                bytes: 0,
            },
            ..WorkerReport::default()
        };
        let leaving = WorkerReport {
            roles: [].into(),
            ..worker("d", 5_000, true, 0)
        };
        let report = WorkersReport {
            deployment: "prod".to_owned(),
            store: "redis r:1".to_owned(),
            workers: vec![
                worker("a", 5_000, true, 3),
                worker("b", 0, true, 0),
                worker("c", 4_000, false, 0),
                leaving,
            ],
            without_worker: ShardLoad {
                shards: 2,
                messages: 7,
                bytes: 0,
            },
            ..WorkersReport::default()
        };
        let text = text(&report, &Page::PLAIN);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let first = ["a", "ingress,timer", "orders", "1", "5s", "3", "3,000"];
        assert_eq!(rows[3][..7], first, "{text}");
        assert_eq!(rows[4][4], "expired", "{text}");
        assert_eq!(rows[5][4], "disconnected", "{text}");
        assert_eq!(rows[6][1], "leaving", "{text}");
        let end = "\nNo worker delivers 2 shards with 7 messages.\n";
        assert!(text.ends_with(end), "{text}");
    }
}
