//! Measures one process with hundreds and thousands of partitions: the lateness of a load that
//! begins as soon as the process is ready, and then its rest.

use std::time::{Duration, Instant};

use crate::ledger::Arrivals;
use crate::meter::Usage;
use crate::route::begun;
use crate::row::{Lateness, Process, Row, Stage, System};
use crate::stage::{Bench, stop};
use crate::workload::{Delay, Steady};

const PARTITIONS: [i32; 2] = [256, 1_024];
pub(crate) const RATE: usize = 1_000;
const LASTS: Duration = Duration::from_secs(40);
pub(crate) const DELAY: Delay = Delay::Uniform {
    min: Duration::from_millis(500),
    max: Duration::from_secs(5),
};

/// The start of the load has a row of its own: the clients are new then.
const START: Duration = Duration::from_secs(8);

impl Bench<'_> {
    /// Measures the load and the idle service, for each number of partitions.
    pub(crate) fn many(&self) -> Vec<Row> {
        let rows = PARTITIONS.map(|partitions| {
            let topics = self.ends.with(partitions);
            let bench = Bench {
                ends: &topics,
                ..*self
            };
            let mut rows = bench.spread(partitions as usize);
            rows.push(bench.idle(partitions));
            rows
        });
        rows.concat()
    }

    fn spread(&self, partitions: usize) -> Vec<Row> {
        self.progress
            .step(&format!("many: {RATE}/s in {partitions} partitions"));
        let (route, began) = (self.route(), Instant::now());
        let mut stored = route.stored(self.redis);
        let mut service = route.serve(&["ingress", "timer"]);
        begun(&mut service, "the service is ready", |service| {
            service.ready() && stored.records().is_some() && stored.is_leased()
        });
        let (start_up, mut dues) = (began.elapsed(), Vec::new());
        let usage = self
            .flow(RATE, &self.short_delays(), (&route, &service), &mut dues)
            .usage;
        let process = Process::of(&service, Some(start_up));
        stop(service);
        let arrivals = self.judge_arrived(&route, dues.len(), |number| dues[number]);
        [&route.source, &route.target]
            .into_iter()
            .for_each(|topic| self.ends.remove(topic));
        let stage = |is_start| Stage::Spread {
            rate: RATE,
            partitions,
            is_start,
        };
        start_and_rest(&arrivals, &dues, &usage, process, stage)
    }

    pub(crate) fn short_delays(&self) -> Steady {
        Steady {
            lasts: LASTS,
            delay: DELAY,
            ..self.load.steady.clone()
        }
    }
}

/// The rows of the start of a load, and of the rest.
pub(crate) fn start_and_rest(
    arrivals: &Arrivals,
    dues: &[i64],
    usage: &Usage,
    process: Process,
    stage: impl Fn(bool) -> Stage,
) -> Vec<Row> {
    let first = RATE * START.as_secs() as usize;
    let late = |is_start: bool| {
        let is_in = |number| (number < first) == is_start;
        Lateness::of(&arrivals.lateness(|number| is_in(number).then(|| dues[number])))
    };
    let row = |is_start: bool| Row {
        lateness_ms: late(is_start),
        process: Some(process).filter(|_| !is_start),
        ..Row::service(System::Postdate, stage(is_start), usage, arrivals.verdict)
    };
    vec![row(true), row(false)]
}
