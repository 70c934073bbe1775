//! Measures one process with hundreds of routes: the lateness of a load over all of them, its rest, and
//! how fast it reads the backlog of one route.

use std::time::{Duration, Instant};

use crate::ends::{Ends as _, Feed as _, Names};
use crate::env::Postdate;
use crate::feeder::{Feeder, steadily};
use crate::ledger::Verdict;
use crate::many::{RATE, start_and_rest};
use crate::route::{Route, begun, wait_for};
use crate::row::{Process, Row, Stage, System};
use crate::stage::{Bench, LOOK, millis, stop};
use crate::topics;

const ROUTES: usize = 200;

/// Each route has this number of partitions.
const PARTITIONS: i32 = 2;

/// A backlog is sent for this time, while the process is frozen. Its session lasts longer, so it only has to
/// read afterwards.
const FREEZE: Duration = Duration::from_secs(3);

/// No message of the backlog is due.
const BACKLOG_DELAY: Duration = Duration::from_secs(3_600);

impl Bench<'_> {
    pub(crate) fn routes(&self) -> Vec<Row> {
        let topics = self.ends.with(PARTITIONS);
        let bench = Bench {
            ends: &topics,
            ..*self
        };
        let mut rows = bench.over_routes();
        self.progress.step("routes: backlog of a route alone");
        let (route, sources) = bench.with_routes(1);
        let service = serve(&route, 1);
        rows.push(bench.route_backlog(&route, &service, 1));
        stop(service);
        topics.remove(&sources[0]);
        self.empty_redis();
        rows
    }

    fn over_routes(&self) -> Vec<Row> {
        self.progress
            .step(&format!("routes: {RATE}/s over {ROUTES} routes"));
        let (route, sources) = self.with_routes(ROUTES);
        let began = Instant::now();
        let service = serve(&route, ROUTES);
        let start_up = began.elapsed();
        let feeder = Feeder::over(self.ends.addr(), sources.clone(), &self.load.message);
        let (start, steady) = (self.meter.read(service.cpu()), self.short_delays());
        let all = RATE * steady.lasts.as_secs() as usize;
        let send = |number, due| feeder.send(number, ("postdate-at", due));
        let dues = steadily(RATE, &steady, send, |sent| {
            feeder.serve();
            self.progress.at(sent, all);
        });
        feeder.finish();
        wait_for(self.progress, dues.len(), LOOK, || route.delivered());
        let usage = start.until(self.meter.read(service.cpu()));
        let process = Process::of(&service, Some(start_up));
        let arrivals = self.judge_arrived(&route, dues.len(), |number| dues[number]);
        let stage = |is_start| Stage::Routes {
            rate: RATE,
            routes: ROUTES,
            is_start,
        };
        let mut rows = start_and_rest(&arrivals, &dues, &usage, process, stage);
        self.progress.step(&format!("idle: {ROUTES} routes"));
        let usage = self.resting(&service);
        rows.push(Row::at_rest(
            Stage::IdleRoutes(ROUTES),
            &usage,
            arrivals.verdict,
        ));
        self.progress
            .step(&format!("routes: backlog of one of {ROUTES}"));
        rows.push(self.route_backlog(&route, &service, ROUTES));
        stop(service);
        sources.iter().for_each(|topic| self.ends.remove(topic));
        rows
    }

    /// Creates so many routes with a common target. Returns the first, whose configuration has the others,
    /// and all sources.
    fn with_routes(&self, count: usize) -> (Route<'_>, Vec<String>) {
        let route = self.route();
        let mut sources = vec![route.source.clone()];
        sources.extend((1..count).map(|_| self.ends.make("source")));
        let others = sources.iter().enumerate().skip(1);
        let others = others.map(|(number, source)| {
            let names = Names {
                source,
                target: &route.target,
                dead: &route.dead,
                delivery: route.delivery,
            };
            topics::route(&format!("bench{number}"), &names)
        });
        let options = others.collect();
        (route.with_options(options), sources)
    }

    /// Measures how fast the backlog of the first route is stored.
    fn route_backlog(&self, route: &Route<'_>, service: &Postdate, routes: usize) -> Row {
        let mut stored = route.stored(self.redis);
        let mut records = || stored.records().unwrap_or(0);
        let (before, delivered) = (records(), route.delivered());
        service.pause();
        let feeder = self.ends.feeder(&route.source, &self.load.message);
        let delay = millis(BACKLOG_DELAY);
        let (began, mut count) = (Instant::now(), 0);
        while began.elapsed() < FREEZE {
            feeder.send(count, ("postdate-after", delay));
            count += 1;
        }
        feeder.finish();
        service.resume();
        let start = self.meter.read(service.cpu());
        let goal = before + count;
        let now = wait_for(self.progress, goal, Duration::from_millis(5), records);
        let usage = start.until(self.meter.read(service.cpu()));
        let verdict = Verdict {
            count,
            lost: goal.saturating_sub(now),
            doubled: now.saturating_sub(goal),
            early: route.delivered() - delivered,
            dead: route.dead(),
            ..Verdict::default()
        };
        let stage = Stage::RouteBacklog(routes);
        Row::service(System::Postdate, stage, &usage, verdict).within(usage.wall.as_secs_f64())
    }
}

/// Starts the service, and waits until it reads and delivers all shards.
fn serve(route: &Route<'_>, routes: usize) -> Postdate {
    let mut service = route.serve(&["ingress", "timer"]);
    let shards = (routes * PARTITIONS as usize) as f64;
    begun(&mut service, "the service is ready", |service| {
        service.ready() && service.metrics().sum("postdate_leases_held") >= shards
    });
    service
}
