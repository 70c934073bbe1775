//! Starts the admin server, and the threads that answer its queries, keep its audit lines, write its changes, redrive dead
//! letters, and read schedules.

use super::memory::resident_bytes;
use super::query_context;
use super::wiring::Wiring;
use crate::admin::changes::idempotency::Requests;
use crate::admin::queries::QueryCall;
use crate::admin::{self, Auth, ConsoleOptions, Endpoint};
use crate::clock::{Clock, WallClock};
use crate::command::{ChangeWriter, answer_dead_letters, answer_schedules};
use crate::config::{Colour, Config};
use crate::limit::STORE_RETRY_DELAY_MAX;
use crate::metric;
use crate::store::StoreQuery;
use crate::store::query::{AuditLine, PendingRoute, QueryContext, pending_report};
use crate::task::TaskGroup;
use crate::telemetry::Telemetry;
use anyhow::Result;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc::Receiver;

/// `process` is a number that no other process has.
pub(super) fn start(
    group: &mut TaskGroup,
    wiring: &Arc<Wiring>,
    listener: TcpListener,
    telemetry: &Telemetry,
    process: u64,
) -> Result<()> {
    let (audit, audit_in) = admin::audit::channel();
    let (queries, queries_in) = admin::queries::channel();
    let (changes, changes_in) = admin::changes::channel();
    let (dead_letters, dead_letters_in) = admin::dead_letters::channel();
    let (schedules, schedules_in) = admin::schedules::channel();
    let admin = &wiring.config.admin;
    let tls = admin.tls()?;
    let auth = Auth::new(admin.credentials(), audit);
    let console = console_options(&wiring.config);
    let health = wiring.health.clone();
    let render_metrics = render_metrics(wiring, telemetry);
    group.spawn_thread("admin", move |stop| async move {
        let endpoint = Endpoint {
            auth,
            tls,
            health,
            render_metrics,
            queries,
            changes,
            dead_letters,
            schedules,
            console,
        };
        admin::serve(listener, endpoint, stop).await
    })?;
    let for_changes = wiring.clone();
    group.spawn_thread("changes", move |stop| async move {
        let config = &for_changes.config;
        let connect = async || for_changes.store.connect_admin().await;
        let requests = Requests::new(for_changes.keys.clone(), connect);
        let mut writer = ChangeWriter::new(config);
        admin::changes::serve(changes_in, &mut writer, requests, stop.clone()).await;
        writer.close().await;
        stop.cancelled().await;
        anyhow::Ok(())
    })?;
    let config = wiring.config.clone();
    group.spawn_thread("dead-letters", move |stop| async move {
        let dead_letters = async |request| answer_dead_letters(&config, request).await;
        let schedules = async |request| answer_schedules(&config, request).await;
        tokio::join!(
            admin::dead_letters::serve(dead_letters_in, dead_letters, stop.clone()),
            admin::schedules::serve(schedules_in, schedules, stop.clone()),
        );
        stop.cancelled().await;
        anyhow::Ok(())
    })?;
    start_queries(group, wiring.clone(), queries_in, audit_in, process)
}

fn start_queries(
    group: &mut TaskGroup,
    wiring: Arc<Wiring>,
    queries: Receiver<QueryCall>,
    audit: Receiver<AuditLine>,
    process: u64,
) -> Result<()> {
    group.spawn_thread("queries", move |stop| async move {
        let context = query_context(&wiring.config);
        let keys = context.keys.clone();
        let connect = async || Ok(wiring.store.connect_query().await? as Rc<dyn StoreQuery>);
        let connect_admin = async || wiring.store.connect_admin().await;
        let removed = log_removed_routes(&wiring, &context);
        tokio::join!(
            async { _ = stop.run_until_cancelled(removed).await },
            admin::queries::serve(queries, context.clone(), WallClock, connect, stop.clone()),
            admin::audit::serve(audit, (keys, process), connect_admin, stop.clone()),
        );
        // The admin thread may end first and close the channel. A thread must not end before the
        // stop.
        stop.cancelled().await;
        anyhow::Ok(())
    })?;
    Ok(())
}

/// Lists the routes that messages wait for and that the configuration does not have.
async fn log_removed_routes(wiring: &Wiring, context: &QueryContext) {
    let report = loop {
        if let Ok(store) = wiring.store.connect_query().await
            && let Ok(report) = pending_report(&*store, context, None, WallClock.now()).await
        {
            break report;
        }
        tokio::time::sleep(STORE_RETRY_DELAY_MAX).await;
    };
    let is_removed = |route: &&PendingRoute| !route.configured && route.amount.messages > 0;
    for route in report.routes.iter().filter(is_removed) {
        tracing::warn!(
            route = route.route,
            messages = route.amount.messages,
            "messages wait for a route that the configuration does not have: they are delivered when it has the route \
             again, with the same source"
        );
    }
}

fn console_options(config: &Config) -> ConsoleOptions {
    let recurring = config.routes.iter().filter(|(_, route)| route.recurring);
    ConsoleOptions {
        deployment: config.deployment.clone(),
        environment: config.admin.environment.clone(),
        colour: config.admin.colour.map_or("", Colour::class),
        recurring: recurring.map(|(name, _)| name.clone()).collect(),
    }
}

/// Updates the metrics of the process, then renders all metrics.
fn render_metrics(wiring: &Wiring, telemetry: &Telemetry) -> admin::RenderMetrics {
    let process =
        metric::ProcessMetrics::new(wiring.started.process, wiring.config.memory_budget());
    let health = wiring.health.clone();
    let telemetry = telemetry.clone();
    Arc::new(move || {
        if let Some(bytes) = resident_bytes() {
            process.set_resident(bytes);
        }
        process.set(health.not_ready().is_empty(), !health.degraded().is_empty());
        telemetry.render()
    })
}
