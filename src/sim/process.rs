//! One process of a simulation: all roles' loops, wired as `role/mod.rs` wires them, each a local task. Killing it drops them where they stand.

use super::client::{Exchange, Producer};
use super::link::Linked;
use super::member::{Member, Witness};
use super::relaying::Relaying;
use super::slow::Slow;
use super::world::{DEAD, GROUP, MARKERS, ROUTE, SOURCE, TARGET, World};
use crate::broker::{Catalog, Source, Target, Transactors};
use crate::health::Health;
use crate::ingress::{self, Ingress, Writer};
use crate::limit::{
    CHORES_MAX, CLOCK_SKEW_MAX, HINTS_MAX, HOLDINGS_MAX, LOADER_QUEUE_MAX, REPLIES_MAX,
    REWRITES_MAX,
};
use crate::metric;
use crate::model::{AllowList, Dialects, Naming, Rules, WithoutDelay};
use crate::mutant::{self, Mutant};
use crate::run::Thin;
use crate::store::Store;
use crate::timer::{
    self, Claimable, Claimer, Clients, Dispatcher, Loader, Outcry, Outlets, Policy, Rewriter,
    RouteOptions, Shape,
};
use crate::trace::Tracer;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const CLUSTER: &str = "main";

/// Small, so that the loader's economies are simulated too.
const MEMORY: usize = 24 * 1024;

/// Short, so that a takeover fits between two faults.
pub(super) const LEASE: Duration = Duration::from_secs(1);

/// Thin is what is thin in a simulation, and far what lies past the hour that ends in the midst of it.
const THIN: Thin = Thin {
    after: Duration::ZERO,
    below: 4,
};
const SHAPE: Shape = Shape {
    thin: THIN,
    fan: 2,
    full: 16,
    far_least: Duration::from_secs(5),
    far_after: Duration::from_secs(10),
    urgent: Duration::from_secs(2),
    messages_max: 32,
    margin: Duration::from_secs(4),
};

/// See the module's page.
pub(crate) struct Process {
    pub(crate) member: Member,
    tasks: Vec<JoinHandle<()>>,
    stop: CancellationToken,
    health: Health,
}

impl Process {
    pub(crate) fn start(world: &World, random: &mut StdRng) -> Self {
        Self::join(world, Member::new(world, 0), random)
    }

    /// One more of a fleet.
    pub(crate) fn join(world: &World, member: Member, random: &mut StdRng) -> Self {
        let mut process = Self {
            member,
            tasks: Vec::new(),
            stop: CancellationToken::new(),
            health: Health::new(),
        };
        process.run(world, random);
        process
    }

    pub(crate) async fn kill(&mut self, world: &World) {
        world.disturb();
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

    /// Whether it says so of itself.
    pub(crate) fn complains(&self, words: &str) -> bool {
        self.health
            .not_ready()
            .iter()
            .any(|complaint| complaint.reason.contains(words))
    }

    /// Asks it to stop and waits until it has.
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
            .push(tokio::task::spawn_local(self.member.run(async move {
                if let Err(error) = body.await {
                    world.note(format!("{name} failed: {error:?}"));
                }
            })));
    }

    /// What it sends by, each under the eyes of a witness.
    fn outlets(&self, world: &World) -> Outlets {
        let client = || -> Box<dyn Target> {
            let target: Box<dyn Target> = Box::new(Producer::new(world, &self.member.link));
            Box::new(Witness::new(world, &self.member, target))
        };
        let transactors: Box<dyn Transactors> = Box::new(Exchange::new(world, &self.member.link));
        let transactors: Box<dyn Transactors> =
            Box::new(Witness::new(world, &self.member, transactors));
        let clients = BTreeMap::from([(
            CLUSTER.to_owned(),
            Clients {
                short: client(),
                long: client(),
            },
        )]);
        let transactors = BTreeMap::from([(CLUSTER.to_owned(), transactors)]);
        Outlets::new(clients, transactors)
    }

    fn run(&mut self, world: &World, random: &mut StdRng) {
        let health = Health::new();
        self.health = health.clone();
        let (hint, hints) = mpsc::channel(HINTS_MAX);
        let (give_up, stop, timers_done) = (
            CancellationToken::new(),
            self.stop.clone(),
            CancellationToken::new(),
        );
        let ((jobs, settled), (jobs_in, settled_out)) = ingress::channels();
        let store: Rc<dyn Store> = Rc::new(Slow::new(world, &self.member, random.random()));
        let ports = ingress::Ports {
            source: source(world, &self.member),
            store: store.clone(),
            clock: self.member.clock.clone(),
            health: ingress::Parts::new(&health, ROUTE),
            metric: metric::Route::new(ROUTE),
            tracer: Tracer::default(),
            jobs,
            settled,
            timers_done: timers_done.clone(),
        };
        let shape = if world.is_true_to_scale() {
            Shape::DEFAULT
        } else {
            SHAPE
        };
        let options = ingress::Options {
            deployment: "sim".into(),
            route: ROUTE.into(),
            rules: rules(),
            stops_at_gap: false,
            thin: shape.thin,
        };
        self.spawn(
            world,
            "ingress",
            Ingress::new(options, ports, random.random()).serve(stop.clone()),
        );
        let writer = Writer {
            store: store.clone(),
            jobs: jobs_in,
            settled: settled_out,
            hints: vec![hint],
            health: health.part("writer"),
        };
        self.spawn(world, "writer", writer.serve(give_up.clone()));

        let (requests, requests_in) = mpsc::channel(LOADER_QUEUE_MAX);
        let (replies_out, replies) = mpsc::channel(REPLIES_MAX);
        let (chores, chores_in) = mpsc::channel(CHORES_MAX);
        let (looked_out, looked) = mpsc::channel(REWRITES_MAX);
        let (holdings_out, holdings) = mpsc::channel(HOLDINGS_MAX);
        let (gave_up, gave_up_in) = mpsc::channel(HOLDINGS_MAX);
        let claimer = Claimer {
            routes: vec![claimable(world, &self.member, &health)],
            store: store.clone(),
            clock: self.member.clock.clone(),
            leases: health.part("leases"),
            clocks: health.part("clocks"),
            lease: LEASE,
            skew_max: CLOCK_SKEW_MAX,
            random: StdRng::seed_from_u64(random.random()),
            metric: metric::Timer::new(),
            holdings: holdings_out,
            gave_up: gave_up_in,
        };
        let ports = timer::Ports {
            store: store.clone(),
            clock: self.member.clock.clone(),
            claims: Rc::new(health.part("claims")),
            clock_ahead: health.part("clock ahead"),
            metric: metric::Timer::new(),
            outlets: self.outlets(world),
            holdings,
            gave_up,
            requests,
            replies,
            hints,
            chores,
            looked,
        };
        let dispatcher = Dispatcher::new(timer_options(world, &health), ports);
        let served = timer::serve(
            claimer,
            dispatcher,
            timer::Stops::new(stop.clone(), give_up.clone(), timers_done.clone()),
        );
        self.spawn(world, "timer", async move {
            let _done = timers_done.drop_guard();
            served.await
        });
        let loader = Loader {
            store: store.clone(),
            requests: requests_in,
            replies: replies_out,
            health: health.part("loader"),
        };
        self.spawn(world, "loader", loader.serve(give_up));
        let rewriter = Rewriter {
            store,
            chores: chores_in,
            done: looked_out,
            shape,
            writer: random.random(),
        };
        let rewriter = self.member.rewriter.over(rewriter.serve(stop));
        self.spawn(world, "rewriter", rewriter);
    }
}

fn rules() -> Rules {
    Rules {
        naming: Naming::Topic,
        default_target: Some(TARGET.into()),
        allow: AllowList::new(Vec::<String>::new()),
        sources: BTreeSet::from([SOURCE.to_owned()]),
        max_delay: Duration::from_secs(7 * 24 * 3_600),
        retry_max: Duration::from_secs(1),
        without_delay: WithoutDelay::Relay,
        dialects: Dialects::default(),
    }
}

fn source(world: &World, member: &Member) -> Box<dyn Source> {
    let port: Box<dyn Source> = Box::new(world.cluster().source(GROUP, &[SOURCE.to_owned()]));
    let source = Box::new(Linked {
        link: member.link.clone(),
        port,
    });
    if mutant::active(Mutant::IngressRelays) {
        Box::new(Relaying {
            world: world.clone(),
            source,
        })
    } else {
        source
    }
}

fn claimable(world: &World, member: &Member, health: &Health) -> Claimable {
    let port: Box<dyn Catalog> = Box::new(world.cluster().catalog());
    Claimable {
        route: ROUTE.into(),
        topics: vec![SOURCE.to_owned()],
        group: GROUP.to_owned(),
        catalog: Box::new(Linked {
            link: member.link.clone(),
            port,
        }),
        health: health.part("catalog"),
    }
}

fn timer_options(world: &World, health: &Health) -> timer::Options {
    let (overdue_after, catch_up_rate) = world.late();
    let route = RouteOptions {
        rules: rules(),
        dead_letter: DEAD.to_owned(),
        retry: Policy {
            max_attempts: 1_000,
            backoff: Duration::from_millis(200),
            backoff_max: Duration::from_secs(1),
        },
        overdue_after,
        catch_up_rate,
        source_cluster: CLUSTER.to_owned(),
        target_cluster: CLUSTER.to_owned(),
        dead_letter_cluster: CLUSTER.to_owned(),
        markers: world.is_exactly_once().then(|| MARKERS.to_owned()),
        reach: std::sync::Arc::default(),
        metric: metric::Route::new(ROUTE),
        tracer: Tracer::default(),
        outcry: Outcry::new(health.part("outlets")),
    };
    timer::Options {
        deployment: "sim".to_owned(),
        routes: BTreeMap::from([(ROUTE.into(), route)]),
        // More piles up behind a transaction that waits, and a backlog far beyond the budget passes through it slowly.
        memory: if world.is_exactly_once() {
            8 * MEMORY
        } else {
            MEMORY
        },
        skew_max: CLOCK_SKEW_MAX,
    }
}
