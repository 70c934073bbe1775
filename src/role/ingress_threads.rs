//! Starts the two threads of the ingress, which serve all routes: one reads, and one stores.

use super::wiring::{StoreThread, Wiring, consumer_group, routing_rules};
use crate::broker::Source;
use crate::broker::cluster::SourceOptions;
use crate::config::OnSourceGap;
use crate::ingress::{self, Appender, AppenderHandle, Ingress};
use crate::limit::STORE_RESPONSE_TIMEOUT;
use crate::membership::{Assignments, ReadAssignment, SessionClock};
use crate::metric;
use crate::model::{Hint, StartPoint};
use crate::run::ThinHours;
use crate::task::{TaskGroup, join_loops};
use anyhow::{Context, Result};
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// The parts of one route's ingress that its appender or the membership share.
struct RouteParts {
    route: Arc<str>,
    assignment: watch::Receiver<ReadAssignment>,
    appender: AppenderHandle,
    /// A random number that no other process has.
    process: u64,
}

/// `hints` are the receivers of hints.
pub(super) fn start(
    group: &mut TaskGroup,
    wiring: &Arc<Wiring>,
    hints: Vec<mpsc::Sender<Hint>>,
    assignments: &mut Assignments,
    random: &mut StdRng,
) -> Result<()> {
    let (mut routes, mut inboxes) = (Vec::new(), Vec::new());
    let session_clock = assignments.session_clock.clone();
    for (route, assignment) in std::mem::take(&mut assignments.reads) {
        let (appender, inbox) = ingress::appender_channels();
        inboxes.push((route.clone(), inbox));
        routes.push(RouteParts {
            route,
            assignment,
            appender,
            process: random.random(),
        });
    }
    let build_ingress = move |thread: StoreThread| {
        let names = routes.iter().map(|parts| &*parts.route);
        let mut sources = sources(&thread.wiring, names, "source client")?;
        let mut ingresses = Vec::new();
        for parts in routes {
            let source = sources
                .remove(&*parts.route)
                .expect("a source for each route");
            let session_clock = session_clock.clone();
            ingresses.push(ingress(&thread, parts, source, session_clock));
        }
        let stop = thread.stop;
        Ok(async move {
            let loops = ingresses.into_iter().map(|it| it.serve(stop.clone()));
            Ok(join_loops(loops, &stop).await?)
        })
    };
    let build_appenders = move |thread: StoreThread| {
        let StoreThread {
            wiring,
            store,
            stop,
        } = thread;
        // Not `stop`: the ingress ends first, and closes the channels when everything is stored.
        let give_up = wiring.give_up.clone();
        let appenders = inboxes.into_iter().map(|(route, inbox)| Appender {
            store: store.clone(),
            inbox,
            hints: hints.clone(),
            health: wiring.ready_part(&format!("route {route} appender")),
            call_bytes_max: wiring.memory.ingress.call,
        });
        let appenders: Vec<_> = appenders.collect();
        Ok(async move {
            let loops = appenders.into_iter().map(|it| it.serve(give_up.clone()));
            Ok(join_loops(loops, &stop).await?)
        })
    };
    let timeout = STORE_RESPONSE_TIMEOUT;
    wiring.spawn_with_store(group, "ingress", timeout, build_ingress)?;
    wiring.spawn_with_store(group, "appender", timeout, build_appenders)
}

fn ingress(
    thread: &StoreThread,
    parts: RouteParts,
    source: Box<dyn Source>,
    session_clock: SessionClock,
) -> Ingress {
    let (wiring, name) = (&thread.wiring, &*parts.route);
    let ports = ingress::Ports {
        source,
        store: thread.store.clone(),
        clock: Rc::new(wiring.clock.clone()),
        health: ingress::HealthParts::new(&wiring.health, name),
        metric: metric::RouteMetrics::new(name),
        memory_metric: metric::MemoryGauges::new("unstored"),
        tracer: wiring.tracer.clone(),
        appender: parts.appender,
        assignment: parts.assignment,
        session_clock,
        timers_done: wiring.timers_done.clone(),
    };
    let options = ingress::Options {
        deployment: wiring.config.deployment.as_str().into(),
        route: parts.route.clone(),
        rules: routing_rules(&wiring.config, name),
        start: match wiring.config.routes[name].start {
            // A partition that is created while the process serves the route is read from its first record.
            StartPoint::End => StartPoint::Time(wiring.started.routes[name]),
            start => start,
        },
        stops_at_gap: wiring.config.routes[name].on_source_gap == OnSourceGap::Stop,
        quota: wiring.limits[name].quota.subscribe(),
        thin: ThinHours::DEFAULT,
        keys: wiring.keys.clone(),
        memory: wiring.memory.ingress,
    };
    Ingress::new(options, ports, parts.process)
}

/// A source for each of these routes. The sources of one cluster share their clients. `client` is the name of
/// the clients in the readiness of the process.
pub(super) fn sources<'a>(
    wiring: &Wiring,
    routes: impl Iterator<Item = &'a str>,
    client: &str,
) -> Result<BTreeMap<String, Box<dyn Source>>> {
    let mut by_cluster: BTreeMap<&str, Vec<SourceOptions>> = BTreeMap::new();
    for name in routes {
        let route = &wiring.config.routes[name];
        let options = SourceOptions {
            route: name.to_owned(),
            group: consumer_group(&wiring.config, name),
            topics: route.source.topics.clone(),
            dialects: route.dialects,
        };
        let of_cluster = by_cluster.entry(&route.source.cluster).or_default();
        of_cluster.push(options);
    }
    let mut found = BTreeMap::new();
    for (cluster, options) in by_cluster {
        let names: Vec<String> = options.iter().map(|it| it.route.clone()).collect();
        let cluster = wiring.config.cluster(cluster);
        let mut health = |of: String| wiring.health.register(format!("{client} {of}"));
        let sources = cluster.sources(options, wiring.memory.source, &mut health);
        let sources = sources.with_context(|| cluster.qualified_name())?;
        found.extend(names.into_iter().zip(sources));
    }
    Ok(found)
}
