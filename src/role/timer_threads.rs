//! Starts the threads of the timer: leases and dispatcher, loader, compactor, and the readers of
//! definitions.

use super::ingress_threads::sources;
use super::wiring::{StoreThread, Wiring, consumer_group, marker_group, routing_rules};
use crate::broker::cluster::{ClusterAdmin, TargetOptions, TargetPurpose};
use crate::broker::send_budget::SendBudget;
use crate::broker::{Target, TransactionalProducers};
use crate::config;
use crate::limit::{
    BULK_LANE_MESSAGES_MAX, COMPACT_REQUEST_QUEUE_MAX, COMPACT_RESULT_QUEUE_MAX,
    DEFINITION_QUEUE_MAX, LEASE_EVENT_QUEUE_MAX, LOADER_QUEUE_MAX, LOADER_REPLIES_MAX,
    STORE_RESPONSE_TIMEOUT, TIMER_IN_FLIGHT_MAX,
};
use crate::membership::{Assignments, heartbeat_timeout};
use crate::metric;
use crate::model::Hint;
use crate::run::RunBuilder;
use crate::store::Store;
use crate::task::{self, TaskGroup, join_loops};
use crate::timer::{
    self, CompactionPolicy, CompactionReply, CompactionTask, Compactor, DefinitionBatch,
    DefinitionReader, DefinitionReadings, DeliveryAlerts, Dispatcher, LeaseEvent, LeaseKeeper,
    Loader, MemoryBudget, Producers, ReadingsByRoute, ReleaseResult, RetryPolicy, RouteCatalog,
    RouteOptions,
};
use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// The timer keeps `hint_sender`, so that the queue of hints stays open without an ingress.
pub(super) fn start(
    group: &mut TaskGroup,
    wiring: &Arc<Wiring>,
    (hint_sender, hints): (mpsc::Sender<Hint>, mpsc::Receiver<Hint>),
    assignments: Assignments,
    seed: u64,
) -> Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    let run_writer: u64 = random.random();
    let sender: u64 = random.random();
    let (requests, requests_in) = mpsc::channel(LOADER_QUEUE_MAX);
    let (replies_out, replies) = mpsc::channel(LOADER_REPLIES_MAX);
    let (compaction_jobs, jobs_in) = mpsc::channel(COMPACT_REQUEST_QUEUE_MAX);
    let (results_out, compaction_results) = mpsc::channel(COMPACT_RESULT_QUEUE_MAX);
    let (wanted_definitions, definitions) = start_definition_readers(group, wiring)?;
    let timers_done = wiring.timers_done.clone().drop_guard();
    let leases_released = wiring.leases_released.clone().drop_guard();
    let timeout = heartbeat_timeout(wiring.config.timer.lease);
    wiring.spawn_with_store(group, "timer", timeout, move |thread: StoreThread| {
        let wiring = &thread.wiring;
        let (lease_events_out, lease_events) = mpsc::channel(LEASE_EVENT_QUEUE_MAX);
        let (release_results, releases) = mpsc::channel(LEASE_EVENT_QUEUE_MAX);
        let store = thread.store.clone();
        let leases = lease_keeper(wiring, store, assignments, (lease_events_out, releases))?;
        let ports = timer::Ports {
            store: thread.store,
            clock: Rc::new(wiring.clock.clone()),
            claims_health: Rc::new(wiring.ready_part("claims")),
            metric: metric::TimerMetrics::new(),
            lease_events,
            release_results,
            requests,
            replies,
            hints,
            compaction_jobs,
            compaction_results,
            wanted_definitions,
            definitions,
        };
        let (producers, send_budgets) = producers(wiring, sender)?;
        let dispatcher = Dispatcher::new(options(wiring, send_budgets), ports, producers);
        let (give_up, done) = (wiring.give_up.clone(), wiring.timers_done.clone());
        Ok(async move {
            let _guards = (timers_done, leases_released, hint_sender);
            Ok(timer::serve(leases, dispatcher, thread.stop, give_up, done).await?)
        })
    })?;
    let timeout = STORE_RESPONSE_TIMEOUT;
    wiring.spawn_with_store(group, "loader", timeout, move |thread: StoreThread| {
        let loader = Loader {
            store: thread.store,
            keys: thread.wiring.keys.clone(),
            requests: requests_in,
            replies: replies_out,
            health: thread.wiring.ready_part("loader"),
            fetch_bytes_max: MemoryBudget::fetch_bytes_max(thread.wiring.memory.loaded),
            // Not `stop`: a stopping timer still loads for its handovers, and closes the channel at
            // its end.
            give_up: thread.wiring.give_up.clone(),
        };
        Ok(async move { Ok(loader.serve().await?) })
    })?;
    start_compactor(group, wiring, jobs_in, results_out, run_writer)
}

/// Starts a thread that reads the definitions of the recurring routes, if there are any.
fn start_definition_readers(
    group: &mut TaskGroup,
    wiring: &Arc<Wiring>,
) -> Result<(ReadingsByRoute, mpsc::Receiver<DefinitionBatch>)> {
    let (batches, definitions) = mpsc::channel(DEFINITION_QUEUE_MAX);
    let mut wanted_by_route = ReadingsByRoute::new();
    let mut wanted_of = BTreeMap::new();
    let routes = wiring.config.routes.iter();
    for (name, _) in routes.filter(|(_, route)| route.recurring) {
        let (sender, wanted) = watch::channel(DefinitionReadings::new());
        wanted_by_route.insert(name.as_str().into(), sender);
        wanted_of.insert(name.clone(), wanted);
    }
    if wanted_of.is_empty() {
        return Ok((wanted_by_route, definitions));
    }
    let wiring = wiring.clone();
    group.spawn_thread("definitions", move |stop| async move {
        let names = wanted_of.keys().map(String::as_str);
        let sources = sources(&wiring, names, "definitions client")?;
        let routes = sources.into_iter().zip(wanted_of.into_values());
        let readers = routes.map(|((name, source), wanted)| DefinitionReader {
            health: wiring.ready_part(&format!("route {name} definitions")),
            route: name.into(),
            source,
            wanted,
            batches: batches.clone(),
        });
        let readers: Vec<_> = readers.collect();
        drop(batches);
        let loops = readers.into_iter().map(|it| it.serve(stop.clone()));
        join_loops(loops, &stop).await.map_err(anyhow::Error::from)
    })?;
    Ok((wanted_by_route, definitions))
}

fn start_compactor(
    group: &mut TaskGroup,
    wiring: &Arc<Wiring>,
    tasks: mpsc::Receiver<CompactionTask>,
    replies: mpsc::Sender<CompactionReply>,
    writer: u64,
) -> Result<()> {
    let timeout = STORE_RESPONSE_TIMEOUT;
    wiring.spawn_with_store(group, "compactor", timeout, move |thread: StoreThread| {
        task::lower_thread_priority();
        let policy = CompactionPolicy {
            job_bytes_max: thread.wiring.memory.compaction,
            ..CompactionPolicy::DEFAULT
        };
        let compactor = Compactor::new(
            thread.store,
            tasks,
            replies,
            policy,
            RunBuilder::new(writer, thread.wiring.keys.clone()),
        );
        Ok(async move { Ok(compactor.serve(thread.stop).await?) })
    })
}

fn lease_keeper(
    wiring: &Wiring,
    store: Rc<dyn Store>,
    assignments: Assignments,
    (events, release_results): (mpsc::Sender<LeaseEvent>, mpsc::Receiver<ReleaseResult>),
) -> Result<LeaseKeeper> {
    let mut catalogs: BTreeMap<&str, Box<dyn ClusterAdmin>> = BTreeMap::new();
    let mut routes = Vec::new();
    for (name, route) in &wiring.config.routes {
        let group = consumer_group(&wiring.config, name);
        let catalog = match catalogs.entry(&route.source.cluster) {
            Entry::Occupied(known) => known.get().share(),
            Entry::Vacant(new) => {
                let cluster = wiring.config.cluster(&route.source.cluster);
                let part = format!("commits client of {}", cluster.qualified_name());
                let health = wiring.health.register(part);
                new.insert(cluster.admin(Some(&group), health)?).share()
            }
        };
        routes.push(RouteCatalog {
            route: name.as_str().into(),
            group,
            catalog,
        });
    }
    Ok(LeaseKeeper {
        routes,
        view: assignments.view,
        session_clock: assignments.session_clock,
        store,
        clock: Rc::new(wiring.clock.clone()),
        lease_health: wiring.health.register("leases"),
        lease_length: wiring.config.timer.lease,
        metric: metric::TimerMetrics::new(),
        events,
        release_results,
    })
}

fn options(wiring: &Wiring, send_budgets: Vec<Arc<SendBudget>>) -> timer::Options {
    let routes = wiring.config.routes.iter().map(|(name, route)| {
        let options = route_options(wiring, name, route);
        (Arc::from(name.as_str()), Rc::new(options))
    });
    timer::Options {
        deployment: wiring.config.deployment.clone(),
        keys: wiring.keys.clone(),
        routes: routes.collect(),
        memory: wiring.memory.loaded,
        send_budgets,
        skew_max: wiring.config.timer.max_clock_skew,
    }
}

fn route_options(wiring: &Wiring, name: &str, route: &config::Route) -> RouteOptions {
    let is_exactly_once = route.delivery == config::Delivery::ExactlyOnce;
    let dead_letters_overdue = route.overdue == config::Overdue::DeadLetter;
    RouteOptions {
        rules: routing_rules(&wiring.config, name),
        dead_letter: route.dead_letter.name.clone(),
        retry: RetryPolicy {
            max_attempts: route.retry.max_attempts,
            backoff: route.retry.backoff,
            backoff_max: route.retry.backoff_max,
        },
        overdue_after: route.overdue_after.filter(|_| dead_letters_overdue),
        drops_expired: route.expired == config::Expired::Drop,
        rate: wiring.limits[name].rate.subscribe(),
        catch_up_rate: wiring.limits[name].catch_up_rate.subscribe(),
        source_cluster: route.source.cluster.clone(),
        target_cluster: route.target_cluster().to_owned(),
        dead_letter_cluster: route.dead_letter.cluster.clone(),
        marker_group: is_exactly_once.then(|| marker_group(&wiring.config, name)),
        known_topics: known_topics(route).into_iter().collect(),
        metric: metric::RouteMetrics::new(name),
        tracer: wiring.tracer.clone(),
        alerts: DeliveryAlerts::new(wiring.health.register(format!("route {name} deliveries"))),
    }
}

/// The topics to which the route can send, as far as the configuration names them: default target,
/// dead letters, and the allow-lists without patterns.
fn known_topics(route: &config::Route) -> BTreeSet<String> {
    let allowed = route.allow.iter().chain(&route.allow_replies).flatten();
    let allowed = allowed.filter(|entry| !entry.contains('*'));
    let default_target = route.target.iter().map(|target| &target.name);
    default_target
        .chain([&route.dead_letter.name])
        .chain(allowed)
        .cloned()
        .collect()
}

/// Producers for every cluster to which messages go: targets, dead letters and, for retries,
/// sources. Exactly-once routes send with transactional producers only. `sender` is a number that
/// no other process has.
/// Also returns the budget of each.
fn producers(wiring: &Wiring, sender: u64) -> Result<(Producers, Vec<Arc<SendBudget>>)> {
    let mut clusters = BTreeSet::new();
    let mut exactly_once = BTreeMap::new();
    for (name, route) in &wiring.config.routes {
        if route.delivery == config::Delivery::ExactlyOnce {
            exactly_once
                .entry(route.source.cluster.as_str())
                .or_insert_with(|| marker_group(&wiring.config, name));
            continue;
        }
        clusters.insert(route.source.cluster.as_str());
        clusters.insert(route.target_cluster());
        clusters.insert(route.dead_letter.cluster.as_str());
    }
    let mut budgets = Vec::new();
    let mut budget = |records_max| {
        let budget = Arc::new(SendBudget::new(records_max, wiring.memory.producer));
        budgets.push(budget.clone());
        budget
    };
    let mut targets = BTreeMap::new();
    for cluster in clusters {
        let [fast, bulk] = [TargetPurpose::Fast, TargetPurpose::Bulk].map(|purpose| {
            target(
                wiring,
                cluster,
                purpose,
                budget(TIMER_IN_FLIGHT_MAX),
                sender,
            )
        });
        let (fast, bulk) = (fast?, bulk?);
        targets.insert(cluster.to_owned(), [fast, bulk]);
    }
    let mut transactional = BTreeMap::new();
    for (cluster, marker_group) in exactly_once {
        let budget = budget(BULK_LANE_MESSAGES_MAX);
        let producers = transactional_producers(wiring, cluster, budget, &marker_group)?;
        transactional.insert(cluster.to_owned(), producers);
    }
    Ok((Producers::new(targets, transactional), budgets))
}

fn target(
    wiring: &Wiring,
    cluster: &str,
    purpose: TargetPurpose,
    budget: Arc<SendBudget>,
    sender: u64,
) -> Result<Box<dyn Target>> {
    let client = match purpose {
        TargetPurpose::Bulk => "bulk target client",
        TargetPurpose::Fast | TargetPurpose::Command => "target client",
    };
    let cluster = wiring.config.cluster(cluster);
    let name = cluster.qualified_name();
    let health = wiring.health.register(format!("{client} of {name}"));
    let options = TargetOptions {
        purpose,
        budget,
        sender: format!("{sender:016x}/{client}"),
    };
    cluster.target(options, health).context(name)
}

fn transactional_producers(
    wiring: &Wiring,
    cluster: &str,
    budget: Arc<SendBudget>,
    marker_group: &str,
) -> Result<Box<dyn TransactionalProducers>> {
    let cluster = wiring.config.cluster(cluster);
    let name = cluster.qualified_name();
    let health = wiring
        .health
        .register(format!("transactions client of {name}"));
    cluster
        .transactional_producers(budget, marker_group, health)
        .context(name)
}
