//! One simulated process: the loops of all roles as local tasks, wired as in `role/mod.rs`.
//!
//! A kill drops them at any await.

use crate::broker::{Catalog, Source, Target, TransactionalProducers};
use crate::clock::Clock;
use crate::health::Health;
use crate::ingress::{self, Appender, Ingress};
use crate::limit::{
    CLOCK_SKEW_MAX, COMPACT_BYTES_MAX, COMPACT_REQUEST_QUEUE_MAX, COMPACT_RESULT_QUEUE_MAX,
    DEFINITION_QUEUE_MAX, FETCH_BYTES_MAX, HINT_QUEUE_MAX, IngressMemory, LEASE_EVENT_QUEUE_MAX,
    LOADER_QUEUE_MAX, LOADER_REPLIES_MAX, OUTCOME_RECORDS_MAX,
};
use crate::membership::{
    self, Assignments, ClusterCatalog, ReadAssignment, SourceTopics, WorkerLoop,
};
use crate::metric;
use crate::model::{
    Dialect, Dialects, FORMAT_LEVEL, Hint, Naming, ReplyRules, RetryKeys, Role, RoutingRules,
    SessionId, StartPoint, TargetRules, WithoutDelay, WorkerEntry,
};
use crate::outcomes::{OutcomeSender, OutcomeTopic, outcome_topics};
use crate::run::RunBuilder;
use crate::run::ThinHours;
use crate::store::Store;
use crate::testing::sim::delivery_observer::DeliveryObserver;
use crate::testing::sim::faults::network::OverNetwork;
use crate::testing::sim::faults::producer::{NetworkProducer, NetworkTransactions};
use crate::testing::sim::faults::slow_store::SlowStore;
use crate::testing::sim::mutants::ingress_sends_directly::IngressSendsDirectly;
use crate::testing::sim::mutants::marker_faults::MarkerFaults;
use crate::testing::sim::mutants::source_faults::SourceFaults;
use crate::testing::sim::process_control::ProcessControl;
use crate::testing::sim::world::{
    ANSWERS, DEAD, GROUP, MARKERS, OUTCOMES, ROUTE, SOURCE, TARGET, World,
};
use crate::timer::{
    self, CompactionPolicy, Compactor, DefinitionBatch, DefinitionReader, DefinitionReadings,
    DeliveryAlerts, Dispatcher, LeaseEvent, LeaseKeeper, Loader, Producers, ReadingsByRoute,
    ReleaseResult, RetryPolicy, RouteCatalog, RouteOptions,
};
use crate::trace::Tracer;
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const CLUSTER: &str = "main";

/// Retries are signed.
pub(crate) const RETRY_KEY: &str = "the key of all simulated processes";

/// Small, so that the simulation reaches the memory limit of the loader.
pub(crate) const MEMORY: usize = 24 * 1024;

/// Short, so that a takeover fits between two faults.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// Thresholds that fit the short time and few messages of a simulation.
const THIN: ThinHours = ThinHours {
    ends_after: Duration::ZERO,
    messages_min: 4,
};
const SHAPE: CompactionPolicy = CompactionPolicy {
    job_bytes_max: COMPACT_BYTES_MAX,
    thin: THIN,
    merge_count: 2,
    full_messages: 16,
    split_lead: Duration::from_secs(5),
    own_hour_within: Duration::from_secs(10),
    urgent_within: Duration::from_secs(2),
    job_messages_max: 32,
    margin: Duration::from_secs(4),
};

/// The tasks of one process, and the handles that control it.
pub(crate) struct Process {
    pub(crate) control: ProcessControl,
    tasks: Vec<JoinHandle<()>>,
    stop: CancellationToken,
    health: Health,
}

/// The parts of one run of a process that ingress and timer share.
struct Shared<'a> {
    world: &'a World,
    health: Health,
    store: Rc<dyn Store>,
    clock: Rc<dyn Clock>,
    rules: RoutingRules,
    policy: CompactionPolicy,
    outcomes: Option<OutcomeTopic>,
    /// Asks the roles to stop.
    stop: CancellationToken,
    /// Ends the waits for the store.
    give_up: CancellationToken,
    /// Cancelled when the timer has ended.
    timers_done: CancellationToken,
    /// Cancelled when the timer has released its leases.
    leases_released: CancellationToken,
}

impl Process {
    pub(crate) fn start(world: &World, random: &mut StdRng) -> Self {
        Self::join(world, ProcessControl::new(world, 0), random)
    }

    /// Starts one more worker of a fleet.
    pub(crate) fn join(world: &World, control: ProcessControl, random: &mut StdRng) -> Self {
        let mut process = Self {
            control,
            tasks: Vec::new(),
            stop: CancellationToken::new(),
            health: Health::new(),
        };
        process.run(world, random);
        process
    }

    pub(crate) async fn kill(&mut self, world: &World) {
        world.allow_duplicates();
        for task in self.tasks.drain(..) {
            task.abort();
            let _cancelled = task.await;
        }
    }

    pub(crate) fn ensure_running(&mut self, world: &World, random: &mut StdRng) {
        if self.tasks.is_empty() {
            self.stop = CancellationToken::new();
            self.run(world, random);
        }
    }

    /// Returns whether its readiness reasons contain these words.
    pub(crate) fn reports_not_ready(&self, words: &str) -> bool {
        self.health
            .not_ready()
            .iter()
            .any(|complaint| complaint.reason.contains(words))
    }

    /// Asks it to stop. Returns whether it stopped in time.
    pub(crate) async fn stop(&mut self) -> bool {
        self.stop.cancel();
        for task in self.tasks.drain(..) {
            if tokio::time::timeout(Duration::from_secs(10), task)
                .await
                .is_err()
            {
                return false;
            }
        }
        true
    }

    fn spawn<E: std::fmt::Debug>(
        &mut self,
        world: &World,
        name: &'static str,
        body: impl Future<Output = Result<(), E>> + 'static,
    ) {
        let world = world.clone();
        self.tasks
            .push(tokio::task::spawn_local(self.control.freezable(
                async move {
                    if let Err(error) = body.await {
                        world.note(format!("{name} failed: {error:?}"));
                    }
                },
            )));
    }

    /// The producers of the process, each behind an observer.
    fn producers(&self, world: &World) -> Producers {
        let client = || -> Box<dyn Target> {
            let target: Box<dyn Target> =
                Box::new(NetworkProducer::new(world, &self.control.network));
            Box::new(DeliveryObserver::new(world, &self.control, target))
        };
        let transactors: Box<dyn TransactionalProducers> =
            Box::new(NetworkTransactions::new(world, &self.control.network));
        let transactors: Box<dyn TransactionalProducers> = Box::new(MarkerFaults::new(transactors));
        let transactors: Box<dyn TransactionalProducers> =
            Box::new(DeliveryObserver::new(world, &self.control, transactors));
        let clients = BTreeMap::from([(CLUSTER.to_owned(), [client(), client()])]);
        let transactors = BTreeMap::from([(CLUSTER.to_owned(), transactors)]);
        Producers::new(clients, transactors)
    }

    /// Starts the roles. The order of the draws from `random` and of the tasks is part of what a
    /// seed repeats.
    fn run(&mut self, world: &World, random: &mut StdRng) {
        self.health = Health::new();
        let give_up = CancellationToken::new();
        let outcomes = self.start_outcomes(world, give_up.clone());
        let (hint, hints) = mpsc::channel(HINT_QUEUE_MAX);
        let shared = Shared {
            world,
            health: self.health.clone(),
            store: Rc::new(SlowStore::new(world, &self.control, random.random())),
            clock: Rc::new(self.control.start_clock()),
            rules: rules(world, random),
            policy: if world.has_real_levels() {
                CompactionPolicy::DEFAULT
            } else {
                SHAPE
            },
            outcomes,
            stop: self.stop.clone(),
            give_up,
            timers_done: CancellationToken::new(),
            leases_released: CancellationToken::new(),
        };
        let assignments = self.start_membership(&shared, random.random());
        self.start_ingress(&shared, hint, &assignments, random);
        self.start_timer(&shared, hints, assignments, random);
    }

    /// Starts the loop that sends outcome records, if the route has an outcome topic.
    fn start_outcomes(
        &mut self,
        world: &World,
        give_up: CancellationToken,
    ) -> Option<OutcomeTopic> {
        if !world.has_outcomes() {
            return None;
        }
        let route = (ROUTE.to_owned(), CLUSTER.to_owned(), OUTCOMES.to_owned());
        let (mut topics, routes, records) = outcome_topics("sim", [route], OUTCOME_RECORDS_MAX);
        let client: Box<dyn Target> = Box::new(NetworkProducer::new(world, &self.control.network));
        let targets = BTreeMap::from([(CLUSTER.to_owned(), client)]);
        let sender = OutcomeSender::new(targets, routes, OUTCOME_RECORDS_MAX);
        self.spawn(world, "outcomes", async move {
            sender.serve(records, give_up).await;
            Ok::<_, Infallible>(())
        });
        topics.remove(ROUTE)
    }

    /// Starts the membership loop.
    fn start_membership(&mut self, shared: &Shared<'_>, process: u32) -> Assignments {
        let (world, health) = (shared.world, &shared.health);
        let (publisher, assignments) = membership::channels([ROUTE.into()]);
        let ports = membership::Ports {
            clusters: vec![sources(world, &self.control, health)],
            store: shared.store.clone(),
            health: health.register("membership"),
            metric: metric::MembershipMetrics::new(),
            publisher,
            clock: shared.clock.clone(),
            clock_health: health.register("clocks"),
            skew_max: CLOCK_SKEW_MAX,
            loops: health.clone(),
            length: LEASE,
        };
        let entry = WorkerEntry {
            name: format!("worker {}", self.control.number),
            lock_id: self.control.number.to_string(),
            roles: [Role::Ingress, Role::Timer].into(),
            routes: [ROUTE.into()].into(),
            clusters: BTreeSet::new(),
            format: FORMAT_LEVEL,
        };
        let session = SessionId::first(entry.id(), process);
        let worker = WorkerLoop::new(ports, entry, session);
        let released = shared.leases_released.clone();
        self.spawn(
            world,
            "membership",
            worker.serve(shared.stop.clone(), released),
        );
        assignments
    }

    /// The partitions to read: those of `assigned`, or all while a fault makes the process read all.
    fn overridden(
        &mut self,
        world: &World,
        mut assigned: watch::Receiver<ReadAssignment>,
    ) -> watch::Receiver<ReadAssignment> {
        let (overridden, receiver) = watch::channel(assigned.borrow().clone());
        let mut reads_all = self.control.reads_all.subscribe();
        let cluster = world.cluster().clone();
        self.spawn(world, "assignment", async move {
            loop {
                let mut assignment = assigned.borrow_and_update().clone();
                if *reads_all.borrow_and_update() {
                    assignment.partitions = cluster.partitions(SOURCE).into_iter().collect();
                }
                overridden.send_replace(assignment);
                tokio::select! {
                    changed = assigned.changed() => if changed.is_err() {
                        return Ok::<_, Infallible>(());
                    },
                    _ = reads_all.changed() => {}
                }
            }
        });
        receiver
    }

    /// Starts the reader of the source and the writer of the store.
    fn start_ingress(
        &mut self,
        shared: &Shared<'_>,
        hint: mpsc::Sender<Hint>,
        assignments: &Assignments,
        random: &mut StdRng,
    ) {
        let (world, health) = (shared.world, &shared.health);
        let assignment = self.overridden(world, assignments.reads[ROUTE].clone());
        let (appender, inbox) = ingress::appender_channels();
        let ports = ingress::Ports {
            source: source(world, &self.control),
            store: shared.store.clone(),
            clock: shared.clock.clone(),
            health: ingress::HealthParts::new(health, ROUTE),
            metric: world.duplicate_counter().route_metrics(),
            memory_metric: metric::MemoryGauges::new("unstored"),
            tracer: Tracer::default(),
            appender,
            assignment,
            session_clock: assignments.session_clock.clone(),
            timers_done: shared.timers_done.clone(),
        };
        let options = ingress::Options {
            deployment: "sim".into(),
            route: ROUTE.into(),
            rules: shared.rules.clone(),
            tells_outcomes: shared.outcomes.is_some(),
            stops_at_gap: false,
            quota: watch::channel(world.quota()).1,
            start: StartPoint::First,
            thin: shared.policy.thin,
            keys: world.keys(),
            memory: IngressMemory {
                unstored: 64 << 20,
                call: 4 << 20,
            },
        };
        self.spawn(
            world,
            "ingress",
            Ingress::new(options, ports, random.random()).serve(shared.stop.clone()),
        );
        let writer = Appender {
            store: shared.store.clone(),
            inbox,
            hints: vec![hint],
            health: health.register("writer"),
            call_bytes_max: 4 << 20,
            outcomes: shared.outcomes.clone(),
        };
        self.spawn(world, "writer", writer.serve(shared.give_up.clone()));
    }

    /// Starts the lease keeper with the dispatcher, the loader and the compactor.
    fn start_timer(
        &mut self,
        shared: &Shared<'_>,
        hints: mpsc::Receiver<Hint>,
        assignments: Assignments,
        random: &mut StdRng,
    ) {
        let (world, health, store) = (shared.world, &shared.health, &shared.store);
        let (requests, requests_in) = mpsc::channel(LOADER_QUEUE_MAX);
        let (replies_out, replies) = mpsc::channel(LOADER_REPLIES_MAX);
        let (compaction_jobs, jobs_in) = mpsc::channel(COMPACT_REQUEST_QUEUE_MAX);
        let (results_out, compaction_results) = mpsc::channel(COMPACT_RESULT_QUEUE_MAX);
        let (lease_events_out, lease_events) = mpsc::channel(LEASE_EVENT_QUEUE_MAX);
        let (release_results, releases) = mpsc::channel(LEASE_EVENT_QUEUE_MAX);
        let leases = self.lease_keeper(shared, assignments, (lease_events_out, releases));
        let (wanted_definitions, definitions) = self.start_definition_reader(shared);
        let ports = timer::Ports {
            store: store.clone(),
            clock: shared.clock.clone(),
            claims_health: Rc::new(health.register("claims")),
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
        let options = timer_options(shared);
        let dispatcher = Dispatcher::new(options, ports, self.producers(world));
        let timers_done = shared.timers_done.clone();
        let served = timer::serve(
            leases,
            dispatcher,
            shared.stop.clone(),
            shared.give_up.clone(),
            timers_done.clone(),
        );
        let released = shared.leases_released.clone();
        self.spawn(world, "timer", async move {
            let _done = (timers_done.drop_guard(), released.drop_guard());
            served.await
        });
        let loader = Loader {
            store: store.clone(),
            keys: world.keys(),
            requests: requests_in,
            replies: replies_out,
            health: health.register("loader"),
            fetch_bytes_max: FETCH_BYTES_MAX,
            give_up: shared.give_up.clone(),
        };
        self.spawn(world, "loader", loader.serve());
        let compactor = Compactor::new(
            store.clone(),
            jobs_in,
            results_out,
            shared.policy,
            RunBuilder::new(random.random(), world.keys()),
        );
        let compactor = self
            .control
            .compactor
            .wrap(compactor.serve(shared.stop.clone()));
        self.spawn(world, "compactor", compactor);
    }

    /// Starts the reader of definitions, if the route is recurring.
    fn start_definition_reader(
        &mut self,
        shared: &Shared<'_>,
    ) -> (ReadingsByRoute, mpsc::Receiver<DefinitionBatch>) {
        let (batches, definitions) = mpsc::channel(DEFINITION_QUEUE_MAX);
        if !shared.rules.is_recurring {
            return (BTreeMap::new(), definitions);
        }
        let (sender, wanted) = watch::channel(DefinitionReadings::new());
        let reader = DefinitionReader {
            route: ROUTE.into(),
            source: Box::new(OverNetwork {
                network: self.control.network.clone(),
                port: Box::new(shared.world.cluster().source(GROUP)) as Box<dyn Source>,
            }),
            wanted,
            batches,
            health: shared.health.register("definitions"),
        };
        let served = reader.serve(shared.stop.clone());
        self.spawn(shared.world, "definitions", served);
        (BTreeMap::from([(ROUTE.into(), sender)]), definitions)
    }

    fn lease_keeper(
        &self,
        shared: &Shared<'_>,
        assignments: Assignments,
        (events, release_results): (mpsc::Sender<LeaseEvent>, mpsc::Receiver<ReleaseResult>),
    ) -> LeaseKeeper {
        LeaseKeeper {
            routes: vec![commits(shared.world, &self.control)],
            view: assignments.view,
            session_clock: assignments.session_clock,
            store: shared.store.clone(),
            clock: shared.clock.clone(),
            lease_health: shared.health.register("leases"),
            lease_length: LEASE,
            metric: metric::TimerMetrics::new(),
            events,
            release_results,
        }
    }
}

/// The rules for one run of a process. If the world changes its rules, each run has others: shorter
/// delays, no target, or a dialect more.
fn rules(world: &World, random: &mut StdRng) -> RoutingRules {
    let change = if world.changes_rules() {
        random.random_range(0..4)
    } else {
        0
    };
    let default = Some(TARGET).filter(|_| change != 1);
    RoutingRules {
        targets: TargetRules::new(Naming::Topic, default, Vec::<String>::new(), [SOURCE]),
        max_delay: match change {
            2 => Duration::from_secs(1),
            _ => world.max_delay(),
        },
        max_retry_wait: Duration::from_secs(1),
        without_delay: WithoutDelay::Relay,
        on_duplicate: world.on_duplicate(),
        change_by_origin: false,
        dialects: match change {
            3 => Dialects::from_iter([Dialect::RabbitMq]),
            _ => Dialects::default(),
        },
        replies: (!world.is_recurring()).then(|| ReplyRules {
            targets: TargetRules::replies(Naming::Topic, [ANSWERS], [SOURCE]),
            is_exactly_once: world.is_exactly_once(),
        }),
        is_recurring: world.is_recurring(),
        retry_keys: RetryKeys::new(RETRY_KEY, false),
    }
}

fn source(world: &World, control: &ProcessControl) -> Box<dyn Source> {
    let port: Box<dyn Source> = Box::new(world.cluster().source(GROUP));
    let source = Box::new(SourceFaults {
        world: world.clone(),
        inner: Box::new(OverNetwork {
            network: control.network.clone(),
            port,
        }),
    });
    if fault!(IngressSendsDirectly) {
        Box::new(IngressSendsDirectly {
            world: world.clone(),
            source,
        })
    } else {
        source
    }
}

fn catalog(world: &World, control: &ProcessControl) -> Box<dyn Catalog> {
    let port: Box<dyn Catalog> = Box::new(world.cluster().catalog());
    Box::new(OverNetwork {
        network: control.network.clone(),
        port,
    })
}

fn sources(world: &World, control: &ProcessControl, health: &Health) -> ClusterCatalog {
    ClusterCatalog {
        catalog: catalog(world, control),
        routes: vec![SourceTopics {
            route: ROUTE.into(),
            topics: vec![SOURCE.to_owned()],
            health: health.register("catalog"),
        }],
    }
}

fn commits(world: &World, control: &ProcessControl) -> RouteCatalog {
    RouteCatalog {
        route: ROUTE.into(),
        group: GROUP.to_owned(),
        catalog: catalog(world, control),
    }
}

fn timer_options(shared: &Shared<'_>) -> timer::Options {
    let (world, health) = (shared.world, &shared.health);
    let (overdue_after, catch_up_rate) = world.overdue();
    let route = RouteOptions {
        rules: shared.rules.clone(),
        dead_letter: DEAD.to_owned(),
        retry: RetryPolicy {
            max_attempts: 1_000,
            backoff: Duration::from_millis(200),
            backoff_max: Duration::from_secs(1),
        },
        overdue_after,
        drops_expired: false,
        rate: watch::channel(world.rate()).1,
        catch_up_rate: watch::channel(catch_up_rate).1,
        source_cluster: CLUSTER.to_owned(),
        target_cluster: CLUSTER.to_owned(),
        dead_letter_cluster: CLUSTER.to_owned(),
        marker_group: world.is_exactly_once().then(|| MARKERS.to_owned()),
        known_topics: Arc::default(),
        metric: world.duplicate_counter().route_metrics(),
        tracer: Tracer::default(),
        outcomes: shared.outcomes.clone(),
        alerts: DeliveryAlerts::new(health.register("outlets")),
    };
    timer::Options {
        deployment: "sim".to_owned(),
        keys: world.keys(),
        routes: BTreeMap::from([(ROUTE.into(), Rc::new(route))]),
        // A waiting transaction holds back more messages, and a backlog larger than the budget
        // drains slowly. With a rate, such a backlog also delays new messages.
        memory: world.memory().unwrap_or_else(|| {
            let is_large = world.is_exactly_once() || world.rate().is_some();
            if is_large { 8 * MEMORY } else { MEMORY }
        }),
        send_budgets: Vec::new(),
        skew_max: CLOCK_SKEW_MAX,
    }
}
