//! The first page, and the page of a route.

use super::frame::{Frame, Visit};
use super::{chart, lateness};
use crate::admin::api::PathParams;
use crate::admin::problem::Problem;
use crate::admin::queries::Queries;
use crate::health::HealthProblem;
use crate::model::Timestamp;
use crate::model::readable::{count, length, size};
use crate::store::query::{
    Amount, LedgerReport, PendingReport, PendingRoute, PendingShard, Query, ShardLedger,
    WorkersReport,
};
use askama::Template;
use axum::response::Response;
use std::time::Duration;

const HOUR_MS: i64 = 3_600_000;
/// Shards that a page lists.
const SHARDS_SHOWN_MAX: usize = 200;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    not_ready: Vec<HealthProblem>,
    degraded: Vec<HealthProblem>,
    lateness: Option<String>,
    fleet: Result<Fleet, Problem>,
}

/// What the store knows about all workers and routes.
struct Fleet {
    figures: Figures,
    live_workers: usize,
    balances: bool,
    forecast: Option<String>,
    routes: Vec<RouteRow>,
}

/// The numbers at the top of a page.
pub(super) struct Figures {
    pub(super) waiting: String,
    pub(super) stored: String,
    pub(super) soon: String,
    pub(super) quarantined: u64,
}

struct RouteRow {
    name: String,
    is_configured: bool,
    /// For how long its rate has held due messages back. `None`: it holds none back.
    rate_wait: Option<String>,
    shards: String,
    waiting: String,
    stored: String,
    quarantined: String,
}

impl Figures {
    fn new(report: &PendingReport) -> Self {
        let soon = report
            .hours
            .iter()
            .filter(|hour| hour.start_ms <= report.at_ms);
        let soon: u64 = soon.map(|hour| hour.messages).sum();
        Self {
            waiting: count(report.total.messages),
            stored: size(report.total.bytes),
            soon: count(soon + report.due_when_stored.messages),
            quarantined: report.total.quarantined,
        }
    }
}

fn quarantined(amount: &Amount) -> String {
    match amount.quarantined {
        0 => String::new(),
        messages => count(messages),
    }
}

fn rate_wait(route: &PendingRoute) -> Option<String> {
    let wait = Duration::from_millis(route.rate_wait_ms);
    (!wait.is_zero()).then(|| length(wait))
}

pub(super) async fn overview(visit: Visit) -> Response {
    let health = &visit.console.health;
    visit.show(Ok(OverviewPage {
        frame: visit.frame("overview", "Overview"),
        not_ready: health.not_ready(),
        degraded: health.degraded(),
        lateness: lateness::p99(&(visit.console.render_metrics)()),
        fleet: fleet(&visit.console.queries).await,
    }))
}

async fn fleet(queries: &Queries) -> Result<Fleet, Problem> {
    let report: PendingReport = queries.report(Query::Pending { route: None }).await?;
    let workers: WorkersReport = queries.report(Query::Workers).await?;
    let ledger: LedgerReport = queries.report(Query::Ledger { route: None }).await?;
    let routes = report.routes.iter().map(|route| RouteRow {
        name: route.route.clone(),
        is_configured: route.configured,
        rate_wait: rate_wait(route),
        shards: count(route.shards),
        waiting: count(route.amount.messages),
        stored: size(route.amount.bytes),
        quarantined: quarantined(&route.amount),
    });
    let live = workers
        .workers
        .iter()
        .filter(|worker| worker.expires_in_ms > 0);
    Ok(Fleet {
        figures: Figures::new(&report),
        live_workers: live.count(),
        balances: ledger.balances,
        forecast: chart::forecast(&report.hours, Timestamp::from_millis(report.at_ms)),
        routes: routes.collect(),
    })
}

#[derive(Template)]
#[template(path = "route.html")]
struct RoutePage {
    frame: Frame,
    route: String,
    is_configured: bool,
    rate_wait: Option<String>,
    figures: Figures,
    forecast: Option<String>,
    shards: Vec<ShardRow>,
    left_out: u64,
    ledger: LedgerReport,
}

/// A line of a table of shards.
pub(super) struct ShardRow {
    pub(super) name: String,
    pub(super) waiting: String,
    pub(super) stored: String,
    pub(super) first_hour: String,
    pub(super) quarantined: String,
    /// Empty if the ledger of the shard balances.
    pub(super) difference: String,
}

impl ShardRow {
    fn new(shard: &PendingShard, ledgers: &[ShardLedger], at_ms: i64) -> Self {
        let is_same = |ledger: &&ShardLedger| {
            ledger.topic == shard.topic && ledger.partition == shard.partition
        };
        let ledger = ledgers.iter().find(is_same);
        let difference = ledger.filter(|ledger| !ledger.balances);
        Self {
            name: format!("{}/{}", shard.topic, shard.partition),
            waiting: count(shard.amount.messages),
            stored: size(shard.amount.bytes),
            first_hour: first_hour(shard.first_hour_ms, at_ms),
            quarantined: quarantined(&shard.amount),
            difference: difference
                .map_or_else(String::new, |ledger| ledger.sum.difference.to_string()),
        }
    }
}

/// The hour of the first message. Finer times would need the messages themselves.
fn first_hour(hour_ms: Option<i64>, at_ms: i64) -> String {
    match hour_ms {
        None => "–".to_owned(),
        Some(hour) if hour + HOUR_MS <= at_ms => "due".to_owned(),
        Some(hour) if hour <= at_ms => "this hour".to_owned(),
        Some(hour) => {
            let text = Timestamp::from_millis(hour).to_rfc3339();
            text.get(..16).unwrap_or(&text).replacen('T', " ", 1) + " UTC"
        }
    }
}

pub(super) async fn route(visit: Visit, PathParams(route): PathParams<String>) -> Response {
    visit.show(route_page(&visit, route).await)
}

async fn route_page(visit: &Visit, route: String) -> Result<RoutePage, Problem> {
    let queries = &visit.console.queries;
    let report = queries.route(&route).await?;
    let ledger = Query::Ledger {
        route: Some(route.clone()),
    };
    let ledger: LedgerReport = queries.report(ledger).await?;
    let shards = report.shards.iter().take(SHARDS_SHOWN_MAX);
    let shards: Vec<_> = shards
        .map(|shard| ShardRow::new(shard, &ledger.shards, report.at_ms))
        .collect();
    let all = report.shards.len() as u64 + report.shards_left_out;
    Ok(RoutePage {
        frame: visit.frame("overview", format!("Route {route}")),
        is_configured: report.routes.iter().all(|route| route.configured),
        rate_wait: report.routes.iter().find_map(rate_wait),
        figures: Figures::new(&report),
        forecast: chart::forecast(&report.hours, Timestamp::from_millis(report.at_ms)),
        left_out: all - shards.len() as u64,
        shards,
        ledger,
        route,
    })
}
