//! Starts the two threads of each route's ingress.

use super::brokers::{Cluster, SourceOptions};
use super::wiring::{StoreThread, Wiring, consumer_group, routing_rules};
use crate::broker::Source;
use crate::clock::WallClock;
use crate::config::OnSourceGap;
use crate::ingress::{self, Appender, AppenderHandle, AppenderInbox, Ingress};
use crate::metric;
use crate::model::Hint;
use crate::run::ThinHours;
use crate::task::TaskGroup;
use anyhow::{Context, Result};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc;

/// `process` is a random number that no other process has. `hints` are the receivers of hints.
pub(super) fn start(
    group: &mut TaskGroup,
    wiring: &Arc<Wiring>,
    route: &str,
    hints: Vec<mpsc::Sender<Hint>>,
    process: u64,
) -> Result<()> {
    let (handle, inbox) = ingress::appender_channels();
    start_ingress(group, wiring, route.to_owned(), handle, process)?;
    start_appender(group, wiring, route.to_owned(), inbox, hints)
}

fn start_ingress(
    group: &mut TaskGroup,
    wiring: &Arc<Wiring>,
    route: String,
    appender: AppenderHandle,
    process: u64,
) -> Result<()> {
    let name = format!("ingress-{route}");
    wiring.spawn_with_store(group, &name, async move |thread: StoreThread| {
        let wiring = &thread.wiring;
        let ports = ingress::Ports {
            source: source(wiring, &route, process)?,
            store: thread.store,
            clock: Rc::new(WallClock),
            health: ingress::HealthParts::new(&wiring.health, &route),
            metric: metric::RouteMetrics::new(&route),
            tracer: wiring.tracer.clone(),
            appender,
            timers_done: wiring.timers_done.clone(),
        };
        thread.startup.finish();
        let ingress = Ingress::new(options(wiring, &route), ports, process);
        Ok(ingress.serve(thread.stop).await?)
    })
}

fn start_appender(
    group: &mut TaskGroup,
    wiring: &Arc<Wiring>,
    route: String,
    inbox: AppenderInbox,
    hints: Vec<mpsc::Sender<Hint>>,
) -> Result<()> {
    let name = format!("appender-{route}");
    wiring.spawn_with_store(group, &name, async move |thread: StoreThread| {
        let wiring = &thread.wiring;
        let appender = Appender {
            store: thread.store,
            inbox,
            hints,
            health: wiring.ready_part(&format!("route {route} appender")),
        };
        thread.startup.finish();
        // Not `stop`: the ingress ends first, and closes the channel when everything is stored.
        Ok(appender.serve(wiring.give_up.clone()).await?)
    })
}

fn source(wiring: &Wiring, name: &str, process: u64) -> Result<Box<dyn Source>> {
    let route = wiring.route(name);
    let options = SourceOptions {
        group: consumer_group(&wiring.config, name),
        member: format!("{process:016x}"),
        topics: route.source.topics.clone(),
        dialects: route.dialects,
    };
    let health = wiring
        .health
        .register(format!("route {name} source client"));
    Cluster::of(&wiring.config, &route.source.cluster)
        .source(options, health)
        .with_context(|| format!("route.{name}.source"))
}

fn options(wiring: &Wiring, name: &str) -> ingress::Options {
    ingress::Options {
        deployment: wiring.config.deployment.as_str().into(),
        route: name.into(),
        rules: routing_rules(&wiring.config, name),
        stops_at_gap: wiring.route(name).on_source_gap == OnSourceGap::Stop,
        thin: ThinHours::DEFAULT,
    }
}
