//! Starts the thread of the membership: the session of this worker, and the assignments.

use super::wiring::{StoreThread, Wiring};
use crate::membership::{
    self, Assignments, ClusterCatalog, Ports, Publisher, SourceTopics, WorkerLoop,
    heartbeat_timeout,
};
use crate::metric;
use crate::model::{SessionId, WorkerEntry, readable_level};
use crate::store::Store;
use crate::task::TaskGroup;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// Starts the thread. `session` is the first one of this process.
pub(super) fn start(
    group: &mut TaskGroup,
    wiring: &Arc<Wiring>,
    session: SessionId,
) -> Result<Assignments> {
    let routes = wiring.config.routes.keys().map(|name| name.as_str().into());
    let (publisher, assignments) = membership::channels(routes);
    let timeout = heartbeat_timeout(wiring.config.timer.lease);
    wiring.spawn_with_store(group, "membership", timeout, move |thread: StoreThread| {
        let wiring = &thread.wiring;
        let ports = ports(wiring, thread.store, publisher)?;
        let worker = WorkerLoop::new(ports, entry(wiring), session);
        let released = wiring.leases_released.clone();
        Ok(async move { Ok(worker.serve(thread.stop, released).await?) })
    })?;
    Ok(assignments)
}

fn ports(wiring: &Wiring, store: Rc<dyn Store>, publisher: Publisher) -> Result<Ports> {
    let mut routes: BTreeMap<&str, Vec<SourceTopics>> = BTreeMap::new();
    for (name, route) in &wiring.config.routes {
        let topics = SourceTopics {
            route: name.as_str().into(),
            topics: route.source.topics.clone(),
            health: wiring.health.register(format!("route {name} catalog")),
        };
        routes
            .entry(&route.source.cluster)
            .or_default()
            .push(topics);
    }
    let mut clusters = Vec::new();
    for (cluster, routes) in routes {
        let (kind, _) = wiring.config.cluster_table(cluster);
        let cluster = wiring.config.cluster(cluster);
        let name = cluster.qualified_name();
        let health = wiring.health.register(format!("catalog client of {name}"));
        let catalog = cluster.admin(None, health).context(name)?;
        if kind.facts().lists_topics_together {
            clusters.push(ClusterCatalog { catalog, routes });
            continue;
        }
        clusters.extend(routes.into_iter().map(|route| ClusterCatalog {
            catalog: catalog.share(),
            routes: vec![route],
        }));
    }
    Ok(Ports {
        clusters,
        store,
        health: wiring.health.register("membership"),
        metric: metric::MembershipMetrics::new(),
        publisher,
        clock: Rc::new(wiring.clock.clone()),
        clock_health: wiring.ready_part("clock"),
        skew_max: wiring.config.timer.max_clock_skew,
        loops: wiring.health.clone(),
        length: wiring.config.timer.lease,
    })
}

fn entry(wiring: &Wiring) -> WorkerEntry {
    let routes = wiring.config.routes.keys();
    WorkerEntry {
        name: wiring.worker.name.clone(),
        lock_id: wiring.worker.lock_id.clone(),
        roles: wiring.config.roles.clone(),
        routes: routes.map(|name| name.as_str().into()).collect(),
        clusters: BTreeSet::new(),
        format: readable_level(),
    }
}
