//! Starts the two threads of each route's ingress.

use super::brokers::{Cluster, SourceOptions};
use super::wiring::{StoreThread, Wiring, consumer_group, routing_rules};
use crate::broker::Source;
use crate::clock::Clock as _;
use crate::config::OnSourceGap;
use crate::ingress::{self, Appender, Ingress};
use crate::limit::STORE_RESPONSE_TIMEOUT;
use crate::membership::{ReadAssignment, SessionClock};
use crate::metric;
use crate::model::{Hint, StartPoint};
use crate::run::ThinHours;
use crate::task::TaskGroup;
use anyhow::{Context, Result};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// `process` is a random number that no other process has. `hints` are the receivers of hints.
pub(super) fn start(
    group: &mut TaskGroup,
    wiring: &Arc<Wiring>,
    route: &str,
    hints: Vec<mpsc::Sender<Hint>>,
    assignment: watch::Receiver<ReadAssignment>,
    session_clock: SessionClock,
    process: u64,
) -> Result<()> {
    let (appender, inbox) = ingress::appender_channels();
    let (name, started_at) = (route.to_owned(), wiring.clock.now());
    let build_ingress = move |thread: StoreThread| {
        let wiring = &thread.wiring;
        let ports = ingress::Ports {
            source: source(wiring, &name, "source client")?,
            store: thread.store,
            clock: Rc::new(wiring.clock.clone()),
            health: ingress::HealthParts::new(&wiring.health, &name),
            metric: metric::RouteMetrics::new(&name),
            memory_metric: metric::MemoryGauges::new("unstored"),
            tracer: wiring.tracer.clone(),
            appender,
            assignment,
            session_clock,
            timers_done: wiring.timers_done.clone(),
        };
        let options = ingress::Options {
            deployment: wiring.config.deployment.as_str().into(),
            route: name.as_str().into(),
            rules: routing_rules(&wiring.config, &name),
            start: match wiring.config.routes[&name].start {
                // A partition that is created while the process runs is read from its first record.
                StartPoint::End => StartPoint::Time(started_at),
                start => start,
            },
            stops_at_gap: wiring.config.routes[&name].on_source_gap == OnSourceGap::Stop,
            quota: wiring.limits[&name].quota.subscribe(),
            thin: ThinHours::DEFAULT,
            keys: wiring.keys.clone(),
            memory: wiring.memory.ingress,
        };
        let ingress = Ingress::new(options, ports, process);
        Ok(async move { Ok(ingress.serve(thread.stop).await?) })
    };
    let health = format!("route {route} appender");
    let build_appender = move |thread: StoreThread| {
        let appender = Appender {
            store: thread.store,
            inbox,
            hints,
            health: thread.wiring.ready_part(&health),
            call_bytes_max: thread.wiring.memory.ingress.call,
        };
        // Not `stop`: the ingress ends first, and closes the channel when everything is stored.
        let give_up = thread.wiring.give_up.clone();
        Ok(async move { Ok(appender.serve(give_up).await?) })
    };
    let timeout = STORE_RESPONSE_TIMEOUT;
    wiring.spawn_with_store(group, &format!("ingress-{route}"), timeout, build_ingress)?;
    wiring.spawn_with_store(group, &format!("appender-{route}"), timeout, build_appender)
}

/// `client` is the name of the client in the readiness of the process.
pub(super) fn source(wiring: &Wiring, name: &str, client: &str) -> Result<Box<dyn Source>> {
    let route = &wiring.config.routes[name];
    let options = SourceOptions {
        group: consumer_group(&wiring.config, name),
        topics: route.source.topics.clone(),
        dialects: route.dialects,
        memory: wiring.memory.source,
    };
    let health = wiring.health.register(format!("route {name} {client}"));
    Cluster::of(&wiring.config, &route.source.cluster)
        .source(options, health)
        .with_context(|| format!("route.{name}.source"))
}
