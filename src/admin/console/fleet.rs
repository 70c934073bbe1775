//! The pages of the workers and of the ledger.

use super::frame::{Frame, Visit};
use crate::admin::problem::Problem;
use crate::model::readable::{count, length};
use crate::store::Balance;
use crate::store::query::{LedgerReport, Query, WorkerReport, WorkersReport};
use askama::Template;
use axum::response::Response;
use std::time::Duration;

/// Shards that the page of the ledger lists.
const SHARDS_SHOWN_MAX: usize = 500;

#[derive(Template)]
#[template(path = "workers.html")]
struct WorkersPage {
    frame: Frame,
    workers: Vec<WorkerRow>,
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
            routes: routes.join(", "),
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
    Ok(WorkersPage {
        frame: visit.frame("workers", "Workers"),
        workers: report.workers.into_iter().map(WorkerRow::new).collect(),
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
