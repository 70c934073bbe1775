//! Measures a steady load beside millions of messages that wait for days, and a restart of the
//! service.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::LIMIT;
use crate::ends::Feed as _;
use crate::env::{Postdate, eventually};
use crate::feeder::Feeder;
use crate::ledger::Verdict;
use crate::route::{Route, begun, wait_for};
use crate::row::{Depth, Lateness, Process, Row, Stage, System};
use crate::stage::{Bench, LOOK, judge_waiting, stop};
use crate::workload::{COUNT_MAX, Deep, Steady};

/// Compaction is finished if it rewrote no run for this long. The compactor scans every ten
/// seconds.
const SETTLED: Duration = Duration::from_secs(20);
/// Stop waiting for compaction after this time.
const SETTLE_MAX: Duration = Duration::from_secs(240);

/// Timeout for the deletion of delivered messages. The waiting messages stay in the store.
const DELETED_MAX: Duration = Duration::from_secs(5);

/// A route with its running service.
struct Served<'a> {
    route: Route<'a>,
    service: Postdate,
    start_up: Duration,
    /// Due times of all steady loads so far, indexed by number.
    dues: Vec<i64>,
    /// Memory of Redis before the route stored anything, in bytes.
    empty: usize,
}

impl Bench<'_> {
    /// Measures a steady load on an empty store, then stores the waiting messages. Measures the
    /// same load beside these, after a restart and again after compaction.
    pub(crate) fn deep(&self) -> Vec<Row> {
        let Deep { rate, waiting, .. } = self.load.deep;
        let depth = |waiting, settled| Depth {
            rate,
            waiting,
            settled,
        };
        self.progress.step(&format!("deep: {rate}/s, none waiting"));
        let mut shallow = self.served();
        let mut rows = vec![self.load_beside(&mut shallow, depth(0, false))];
        stop(shallow.service);
        self.progress
            .step(&format!("deep: {waiting} into the store"));
        let mut served = self.served();
        rows.push(self.sink(&mut served));
        self.progress
            .step(&format!("deep: {rate}/s beside {waiting}, after a restart"));
        self.calm();
        served.restart(self);
        rows.push(self.load_beside(&mut served, depth(waiting, false)));
        self.progress.step("deep: until the rewriter rests");
        if self.settle(&served.service) {
            self.progress
                .phase(&format!("deep: {rate}/s beside {waiting}, merged"));
            rows.push(self.load_beside(&mut served, depth(waiting, true)));
        }
        stop(served.service);
        [&served.route.source, &served.route.target]
            .into_iter()
            .for_each(|topic| self.ends.remove(topic));
        rows
    }

    fn served(&self) -> Served<'_> {
        let (route, began) = (self.route(), Instant::now());
        let mut stored = route.stored(self.redis);
        let (empty, mut service) = (stored.memory(), route.serve(&["ingress", "timer"]));
        begun(&mut service, "the service is ready", |service| {
            service.ready() && stored.is_leased()
        });
        Served {
            route,
            service,
            start_up: began.elapsed(),
            dues: Vec::new(),
            empty,
        }
    }

    /// Sends the waiting messages through the source while the service runs. The row measures how
    /// they are stored.
    fn sink(&self, served: &mut Served<'_>) -> Row {
        let (Deep { waiting, delay, .. }, numbers) = (self.load.deep, COUNT_MAX / 2);
        let (route, service, began) = (&served.route, &served.service, Instant::now());
        let start = self.meter.read(service.cpu());
        let feeder = Feeder::new(self.ends.addr(), &route.source, &self.load.message);
        for number in 0..waiting {
            feeder.send(
                numbers + number % numbers,
                ("postdate-after", delay.of(number)),
            );
            if number % 1_024 == 0 {
                self.progress.at(number, waiting);
            }
        }
        feeder.finish();
        let mut stored = route.stored(self.redis);
        wait_for(self.progress, waiting, LOOK, || {
            stored.records().unwrap_or(0)
        });
        let usage = start.until(self.meter.read(service.cpu()));
        let verdict = judge_waiting(route, waiting, stored.pending());
        let row = Row::service(System::Postdate, Stage::Fill(waiting), &usage, verdict)
            .within(began.elapsed().as_secs_f64());
        let bytes = (stored.memory() - served.empty) as f64 / waiting as f64;
        Row {
            bytes: Some(bytes),
            process: Some(Process::of(service, Some(served.start_up))),
            ..row
        }
    }

    /// Waits until all stored messages are on disk and Redis rewrites no file. In production the
    /// waiting messages were written long ago.
    fn calm(&self) {
        self.progress
            .phase("deep: until all that was stored is on the disk");
        eventually("Redis has written its file anew", LIMIT, || {
            self.redis.is_calm().then_some(())
        });
        let written = Command::new("sync").status();
        assert!(
            written.is_ok_and(|status| status.success()),
            "what was written reaches the disk"
        );
    }

    fn load_beside(&self, served: &mut Served<'_>, depth: Depth) -> Row {
        let Depth { rate, waiting, .. } = depth;
        let steady = Steady {
            lasts: self.load.deep.lasts,
            ..self.load.steady.clone()
        };
        let Served {
            route,
            service,
            dues,
            ..
        } = served;
        let (mut stored, first, before) = (
            route.stored(self.redis),
            dues.len(),
            Process::of(service, None),
        );
        let bytes = (waiting > 0).then(|| (stored.memory() - served.empty) as f64 / waiting as f64);
        let usage = self.flow(rate, &steady, (route, service), dues).usage;
        let process = Process::of(service, Some(served.start_up));
        let process = Process {
            rewritten_runs: process.rewritten_runs - before.rewritten_runs,
            ..process
        };
        let arrivals = self.judge_arrived(route, dues.len(), |number| dues[number]);
        let late = arrivals.lateness(|number| Some(dues[number]).filter(|_| number >= first));
        let flowed = Verdict {
            count: dues.len() - first,
            ..arrivals.verdict
        };
        let row = Row::service(System::Postdate, Stage::Beside(depth), &usage, flowed);
        let began = Instant::now();
        while stored.pending() > waiting && began.elapsed() < DELETED_MAX {
            std::thread::sleep(LOOK);
        }
        // The waiting messages are checked by the store's count. The target must contain no such
        // message.
        let pending = stored.pending();
        let (lost, doubled) = (
            flowed.lost + waiting.saturating_sub(pending),
            flowed.doubled + pending.saturating_sub(waiting),
        );
        let verdict = Verdict {
            count: flowed.count + waiting,
            lost,
            doubled,
            ..flowed
        };
        Row {
            bytes,
            lateness_ms: Lateness::of(&late),
            process: Some(process),
            verdict,
            ..row
        }
    }

    /// Waits until compaction is finished. Returns `false` after `SETTLE_MAX`.
    fn settle(&self, service: &Postdate) -> bool {
        let rewritten = || service.metrics().sum("postdate_rewritten_runs_total");
        let (began, mut last, mut moved) = (Instant::now(), rewritten(), Instant::now());
        while moved.elapsed() < SETTLED {
            if began.elapsed() > SETTLE_MAX {
                self.progress
                    .phase("deep: the rewriter is still at work, and not waited for");
                return false;
            }
            std::thread::sleep(Duration::from_secs(1));
            let now = rewritten();
            if now > last {
                (last, moved) = (now, Instant::now());
            }
        }
        true
    }
}

impl Served<'_> {
    /// Restarts the service as an operator does, and measures the time until every shard has an
    /// owner.
    fn restart(&mut self, bench: &Bench<'_>) {
        let (status, _) = self.service.terminate();
        assert!(
            status.success(),
            "the service ends with {status}:\n{}",
            self.service.logs()
        );
        let (mut stored, began) = (self.route.stored(bench.redis), Instant::now());
        self.service.restart();
        begun(&mut self.service, "the service is ready again", |service| {
            service.ready() && stored.is_leased()
        });
        self.start_up = began.elapsed();
    }
}
