//! The pages of the workers and of the ledger.

use super::frame::{Frame, Visit, clipped};
use crate::admin::problem::Problem;
use crate::model::readable::{count, length, several};
use crate::store::Balance;
use crate::store::query::{LedgerReport, Query, ShardLoad, WorkerReport, WorkersReport};
use askama::Template;
use axum::response::Response;
use std::time::Duration;

/// Shards that the page of the ledger lists.
const SHARDS_SHOWN_MAX: usize = 200;
/// Workers that their page lists.
const WORKERS_SHOWN_MAX: usize = 200;
/// Characters of the list of a worker's routes.
const ROUTES_TEXT_MAX: usize = 200;

#[derive(Template)]
#[template(path = "workers.html")]
struct WorkersPage {
    frame: Frame,
    workers: Vec<WorkerRow>,
    left_out: usize,
    without_worker: Option<String>,
}

struct WorkerRow {
    name: String,
    roles: String,
    routes: String,
    /// Empty if the session has expired.
    expires_in: String,
    shards: String,
    messages: String,
}

impl WorkerRow {
    fn new(worker: WorkerReport) -> Self {
        let roles: Vec<_> = worker.roles.iter().map(|role| role.name()).collect();
        let routes: Vec<_> = worker.routes.into_iter().collect();
        Self {
            name: worker.name,
            roles: match roles.as_slice() {
                [] => "leaving".to_owned(),
                roles => roles.join(", "),
            },
            routes: clipped(&routes.join(", "), ROUTES_TEXT_MAX),
            expires_in: match worker.expires_in_ms {
                0 => String::new(),
                millis => length(Duration::from_millis(millis)),
            },
            shards: count(worker.delivers.shards),
            messages: count(worker.delivers.messages),
        }
    }
}

pub(super) async fn workers(visit: Visit) -> Response {
    visit.show(workers_page(&visit).await)
}

async fn workers_page(visit: &Visit) -> Result<WorkersPage, Problem> {
    let report: WorkersReport = visit.console.queries.report(Query::Workers).await?;
    let left_out = report.workers.len().saturating_sub(WORKERS_SHOWN_MAX);
    let workers = report.workers.into_iter().take(WORKERS_SHOWN_MAX);
    let ShardLoad {
        shards, messages, ..
    } = report.without_worker;
    let without = || {
        let (shards, messages) = (several(shards, "shard"), several(messages, "message"));
        format!("No worker of this list delivers {shards} with {messages}.")
    };
    Ok(WorkersPage {
        frame: visit.frame("workers", "Workers"),
        workers: workers.map(WorkerRow::new).collect(),
        left_out,
        without_worker: (shards > 0).then(without),
    })
}

#[derive(Template)]
#[template(path = "ledger.html")]
struct LedgerPage {
    frame: Frame,
    balances: bool,
    shards: Vec<LedgerRow>,
    total: LedgerRow,
    left_out: usize,
}

struct LedgerRow {
    name: String,
    counts: Vec<String>,
    difference: String,
    balances: bool,
}

impl LedgerRow {
    fn new(name: String, sum: &Balance, balances: bool) -> Self {
        Self {
            name,
            counts: sum.counts().map(count).into_iter().collect(),
            difference: match sum.is_uncertain {
                true => "uncertain".to_owned(),
                false => sum.difference.to_string(),
            },
            balances,
        }
    }
}

pub(super) async fn ledger(visit: Visit) -> Response {
    visit.show(ledger_page(&visit).await)
}

async fn ledger_page(visit: &Visit) -> Result<LedgerPage, Problem> {
    let query = Query::Ledger { route: None };
    let report: LedgerReport = visit.console.queries.report(query).await?;
    let shards = report.shards.iter().take(SHARDS_SHOWN_MAX).map(|shard| {
        let name = format!("{} {}/{}", shard.route, shard.topic, shard.partition);
        LedgerRow::new(name, &shard.sum, shard.balances)
    });
    Ok(LedgerPage {
        frame: visit.frame("ledger", "Ledger"),
        balances: report.balances,
        total: LedgerRow::new("total".to_owned(), &report.total, report.balances),
        left_out: report.shards.len().saturating_sub(SHARDS_SHOWN_MAX),
        shards: shards.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::query::WorkerReport;

    #[test]
    fn the_pages_stay_small_with_many_shards_and_workers() {
        let sum = Balance {
            accepted: 123_456_789,
            pending: 123_456_789,
            ..Balance::default()
        };
        let row = |index| {
            let name = format!("reminders reminders.of.the.customers/{index}");
            LedgerRow::new(name, &sum, false)
        };
        let page = LedgerPage {
            frame: Frame::example("Ledger"),
            balances: false,
            shards: (0..SHARDS_SHOWN_MAX).map(row).collect(),
            total: LedgerRow::new("total".to_owned(), &sum, false),
            left_out: 800,
        };
        let ledger = page.render().unwrap().len();
        let worker = |index| WorkerReport {
            name: format!("postdate-timer-7d9f8b6c5d-{index}"),
            routes: (0..200).map(|route| format!("route_{route}")).collect(),
            expires_in_ms: 10_000,
            ..WorkerReport::default()
        };
        let workers = (0..WORKERS_SHOWN_MAX).map(worker).map(WorkerRow::new);
        let page = WorkersPage {
            frame: Frame::example("Workers"),
            workers: workers.collect(),
            left_out: 100,
            without_worker: None,
        };
        let workers = page.render().unwrap().len();
        let max = 100 * 1024;
        assert!(ledger <= max && workers <= max, "{ledger} {workers}");
    }
}
