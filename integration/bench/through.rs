//! Measures reading and delivering at the same time by one process: a backlog of messages that are
//! overdue when they are read, and one of messages without a delay.

use std::time::Duration;

use crate::env::now_ms;
use crate::feeder::Control;
use crate::fresh::find_memory;
use crate::route::wait_for;
use crate::row::{Backlog, Row, Stage, System};
use crate::stage::{Bench, LOOK, OVERDUE_SPAN, millis, stop};
use crate::workload::{BACKLOG_COUNTS, spread};

/// The start of a backlog has a row of its own.
const START: Duration = Duration::from_secs(5);

impl Bench<'_> {
    pub(crate) fn through(&self) -> Vec<Row> {
        let first = now_ms() - millis(2 * OVERDUE_SPAN);
        let overdue = self.backlog(Backlog::Overdue, |number| {
            ("postdate-at", first + spread(number, OVERDUE_SPAN))
        });
        let undelayed = self.backlog(Backlog::Undelayed, |_| ("postdate-after", 0));
        [overdue, undelayed].concat()
    }

    /// Measures from the first arrival to the last one. The row of the start counts what arrived
    /// within `START` of the first arrival.
    fn backlog(&self, backlog: Backlog, control: impl Fn(usize) -> Control) -> Vec<Row> {
        self.progress.step(&format!("through: {}", backlog.name()));
        let (route, count) = (self.route(), self.load.count * BACKLOG_COUNTS);
        self.fill(&route.source, count, control);
        self.progress
            .phase("through: from the source to the target");
        find_memory();
        let service = route.serve(&["ingress", "timer"]);
        let start = self.meter.read(Duration::ZERO);
        wait_for(self.progress, count, LOOK, || route.delivered());
        let usage = start.until(self.meter.read(service.cpu()));
        stop(service);
        let arrivals = self.judge_arrived(&route, count, |_| i64::MIN);
        let row = |is_start| {
            let stage = Stage::Through { backlog, is_start };
            Row::service(System::Postdate, stage, &usage, arrivals.verdict)
        };
        let began = arrivals.first(0..count);
        let seconds = (arrivals.last(0..count) - began) as f64 / 1e3;
        let at_first = arrivals.count_until(began + millis(START)) as f64;
        vec![
            row(false).within(seconds),
            Row {
                rate: (seconds > START.as_secs_f64()).then(|| at_first / START.as_secs_f64()),
                redis_cpu_us: None,
                ..row(true).of_redis_alone()
            },
        ]
    }
}
