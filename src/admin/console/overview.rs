//! The first page, and the page of a route.

use super::frame::{Frame, Moment, Visit};
use super::{chart, lateness};
use crate::admin::api::PathParams;
use crate::admin::problem::Problem;
use crate::admin::queries::Queries;
use crate::health::HealthProblem;
use crate::model::Timestamp;
use crate::model::readable::{count, size};
use crate::store::query::{
    Amount, LedgerReport, PendingReport, PendingRoute, PendingShard, Query, ShardLedger,
    WorkersReport,
};
use askama::Template;
use axum::response::Response;
use std::collections::BTreeMap;

const HOUR_MS: i64 = 3_600_000;
/// Shards that a page lists.
const SHARDS_SHOWN_MAX: usize = 200;
/// Routes that a page lists.
const ROUTES_SHOWN_MAX: usize = 200;

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
    left_out: usize,
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
    paused: u64,
    shards: String,
    waiting: String,
    stored: String,
    first_hour: String,
    last_hour: String,
    quarantined: String,
    dead_letters: String,
}

impl RouteRow {
    /// `dead_letters`: the number since the start of the route.
    fn new(route: &PendingRoute, dead_letters: u64, at_ms: i64) -> Self {
        Self {
            name: route.route.clone(),
            is_configured: route.configured,
            paused: route.paused,
            shards: count(route.shards),
            waiting: count(route.amount.messages),
            stored: size(route.amount.bytes),
            first_hour: hour_text(route.first_hour_ms, at_ms),
            last_hour: match route.first_hour_ms.is_some() && route.last_hour_ms.is_none() {
                true => "not known yet".to_owned(),
                false => hour_text(route.last_hour_ms, at_ms),
            },
            quarantined: quarantined(&route.amount),
            dead_letters: count(dead_letters),
        }
    }
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
    let mut dead_letters: BTreeMap<&str, u64> = BTreeMap::new();
    for shard in &ledger.shards {
        *dead_letters.entry(&shard.route).or_default() += shard.sum.outcomes.dead_lettered;
    }
    let routes = report.routes.iter().take(ROUTES_SHOWN_MAX).map(|route| {
        let dead_letters = dead_letters.get(route.route.as_str());
        RouteRow::new(
            route,
            dead_letters.copied().unwrap_or_default(),
            report.at_ms,
        )
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
        left_out: report.routes.len().saturating_sub(ROUTES_SHOWN_MAX),
    })
}

#[derive(Template)]
#[template(path = "route.html")]
struct RoutePage {
    frame: Frame,
    route: String,
    is_configured: bool,
    is_recurring: bool,
    paused: Option<PausedRoute>,
    /// Each shard is.
    is_paused: bool,
    may_change: bool,
    figures: Figures,
    forecast: Option<String>,
    shards: Vec<ShardRow>,
    left_out: u64,
    ledger: LedgerReport,
}

/// A route with paused shards.
struct PausedRoute {
    paused: u64,
    shards: u64,
    since: Option<Moment>,
    note: String,
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
            first_hour: hour_text(shard.first_hour_ms, at_ms),
            quarantined: quarantined(&shard.amount),
            difference: difference
                .map_or_else(String::new, |ledger| ledger.sum.difference.to_string()),
        }
    }
}

/// The hour of a route's or shard's first or last message. Finer times would need the messages themselves.
fn hour_text(hour_ms: Option<i64>, at_ms: i64) -> String {
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
    let paused = match report.routes.iter().any(|route| route.paused > 0) {
        true => Some(paused_route(queries, &route).await?),
        false => None,
    };
    let shards = report.shards.iter().take(SHARDS_SHOWN_MAX);
    let shards: Vec<_> = shards
        .map(|shard| ShardRow::new(shard, &ledger.shards, report.at_ms))
        .collect();
    let all = report.shards.len() as u64 + report.shards_left_out;
    Ok(RoutePage {
        frame: visit.frame("overview", format!("Route {route}")),
        is_configured: report.routes.iter().all(|route| route.configured),
        is_recurring: visit.console.options.recurring.contains(&route),
        is_paused: paused.as_ref().is_some_and(|it| it.paused == it.shards),
        paused,
        may_change: visit.actor.may_change,
        figures: Figures::new(&report),
        forecast: chart::forecast(&report.hours, Timestamp::from_millis(report.at_ms)),
        left_out: all - shards.len() as u64,
        shards,
        ledger,
        route,
    })
}

async fn paused_route(queries: &Queries, route: &str) -> Result<PausedRoute, Problem> {
    let report = queries.pause(route).await?;
    Ok(PausedRoute {
        paused: report.paused,
        shards: report.shards,
        since: Moment::of(report.since_ms, Timestamp::from_millis(report.at_ms)),
        note: report.note.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::query::PendingHour;

    const NOW: i64 = 1_795_302_005_000;

    fn forecast() -> Option<String> {
        let hour = |index| PendingHour {
            start_ms: NOW + index * HOUR_MS,
            start: String::new(),
            messages: 10_000_000 - index as u64,
            bytes: 0,
        };
        let hours: Vec<_> = (0..48).map(hour).collect();
        chart::forecast(&hours, Timestamp::from_millis(NOW))
    }

    fn figures() -> Figures {
        let amount = Amount {
            messages: 123_456_789,
            bytes: 12_345_678_901,
            quarantined: 1_000,
        };
        let report = PendingReport {
            total: amount,
            ..PendingReport::default()
        };
        Figures::new(&report)
    }

    #[test]
    fn the_first_page_stays_small_with_200_routes() {
        let route = |index| PendingRoute {
            first_hour_ms: Some(NOW + HOUR_MS),
            last_hour_ms: Some(NOW + 2 * HOUR_MS),
            route: format!("reminders_of_the_customers_{index}"),
            configured: true,
            paused: 3,
            shards: 1_000,
            amount: Amount {
                messages: 123_456_789,
                bytes: 12_345_678_901,
                quarantined: 1_000,
            },
        };
        let routes =
            (0..ROUTES_SHOWN_MAX).map(|index| RouteRow::new(&route(index), 1_234_567, NOW));
        let page = OverviewPage {
            frame: Frame::example("Overview"),
            not_ready: Vec::new(),
            degraded: Vec::new(),
            lateness: Some("≤ 25ms".to_owned()),
            fleet: Ok(Fleet {
                figures: figures(),
                live_workers: 16,
                balances: true,
                forecast: forecast(),
                routes: routes.collect(),
                left_out: 100,
            }),
        };
        let bytes = page.render().unwrap().len();
        assert!(bytes <= 100 * 1024, "{bytes}");
    }

    #[test]
    fn the_page_of_a_route_stays_small_with_many_shards() {
        let shard = |index| ShardRow {
            name: format!("reminders.of.the.customers.in.all.countries/{index}"),
            waiting: "123,456,789".to_owned(),
            stored: "123.4 MiB".to_owned(),
            first_hour: "2027-01-31 09:00 UTC".to_owned(),
            quarantined: "1,000".to_owned(),
            difference: "-1000".to_owned(),
        };
        let page = RoutePage {
            frame: Frame::example("Route reminders"),
            route: "reminders".to_owned(),
            is_configured: true,
            is_recurring: true,
            paused: Some(PausedRoute {
                paused: 999,
                shards: 1_000,
                since: Moment::of(Some(NOW), Timestamp::from_millis(NOW)),
                note: "x".repeat(200),
            }),
            is_paused: false,
            may_change: true,
            figures: figures(),
            forecast: forecast(),
            shards: (0..SHARDS_SHOWN_MAX).map(shard).collect(),
            left_out: 800,
            ledger: LedgerReport::default(),
        };
        let bytes = page.render().unwrap().len();
        assert!(bytes <= 100 * 1024, "{bytes}");
    }
}
