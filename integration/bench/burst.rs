//! Measures a burst: all messages are due in the same millisecond, in all shards but one.
//!
//! The last shard has a small steady load. Its lateness shows how much a burst delays another
//! shard.

use std::ops::Range;
use std::time::Duration;

use crate::LIMIT;
use crate::ends::Feed as _;
use crate::env::{Postdate, eventually, now_ms};
use crate::feeder::{Feeder, steadily};
use crate::fresh::hold_memory;
use crate::route::{Route, wait_for};
use crate::row::{Lateness, Process, Row, Stage, System};
use crate::stage::{Bench, LOOK, PACE, millis, stop};
use crate::workload::Steady;

/// Messages per second of the shard without the burst.
const BESIDE: usize = 1_000;

/// The steady load starts this long before the burst and ends this long after it. The lead exceeds
/// its longest delay (20 s), so its messages are already due when the burst starts.
const LEAD: Duration = Duration::from_secs(22);
const REST: Duration = Duration::from_secs(15);

/// Times before the burst at which memory is allocated for it, which may take seconds, and
/// released.
const TAKEN_AHEAD: Duration = Duration::from_secs(6);
const GIVEN_AHEAD: Duration = Duration::from_millis(500);

impl Bench<'_> {
    /// Measures the burst, and the messages of the other shard that were due during its delivery.
    pub(crate) fn burst(&self) -> Vec<Row> {
        self.progress.step("burst");
        let (route, count) = (self.route(), self.load.count);
        let mut service = route.serve(&["ingress", "timer"]);
        service.wait_until_ready();
        let due = now_ms() + millis(2 * PACE * count as u32 + LEAD);
        self.pour(&route, due);
        let how = if now_ms() < due - millis(LEAD) {
            ""
        } else {
            ", though it took too long to store"
        };
        self.progress.phase(&format!(
            "burst: until it is due, and out of the store{how}"
        ));
        eventually("the burst is due soon", LIMIT, || {
            (now_ms() >= due - millis(LEAD)).then_some(())
        });
        let start = self.meter.read(service.cpu());
        let dues = std::thread::scope(|scope| {
            scope.spawn(|| give_memory(due));
            self.beside(&route)
        });
        wait_for(self.progress, count + dues.len(), LOOK, || {
            route.delivered()
        });
        let usage = start.until(self.meter.read(service.cpu()));
        let process = Process::of(&service, None);
        stop(service);
        let due_of = |number: usize| number.checked_sub(count).map_or(due, |number| dues[number]);
        let arrivals = self.judge_arrived(&route, count + dues.len(), due_of);
        let last = arrivals.last(0..count);
        let meanwhile: Range<i64> = due..last;
        let lateness = arrivals.lateness(|number| {
            Some(due_of(number)).filter(|due| number >= count && meanwhile.contains(due))
        });
        let row = Row::service(System::Postdate, Stage::Burst, &usage, arrivals.verdict);
        let burst = Row {
            rate: Some(count as f64 * 1e3 / (last - due) as f64),
            process: Some(process),
            ..row
        };
        let other = Row {
            stage: Stage::Meanwhile(BESIDE),
            lateness_ms: Lateness::of(&lateness),
            ..row.of_redis_alone()
        };
        vec![
            burst,
            Row {
                redis_cpu_us: None,
                ..other
            },
        ]
    }

    /// Sends the burst to all partitions except the last.
    fn pour(&self, route: &Route<'_>, due: i64) {
        self.progress.phase("burst: into the store");
        let (count, others) = (self.load.count, self.ends.partitions as usize - 1);
        let feeder = Feeder::new(self.ends.addr(), &route.source, &self.load.message);
        for number in 0..count {
            feeder.send_to(Some((number % others) as i32), number, ("postdate-at", due));
            if number % 1_024 == 0 {
                self.progress.at(number, count);
            }
        }
        feeder.finish();
        let mut stored = route.stored(self.redis);
        wait_for(self.progress, count, LOOK, || stored.records().unwrap_or(0));
    }

    /// Sends the load of the last partition. Its numbers follow those of the burst. Returns the due
    /// times.
    fn beside(&self, route: &Route<'_>) -> Vec<i64> {
        let feeder = Feeder::new(self.ends.addr(), &route.source, &self.load.message);
        let steady = Steady {
            lasts: LEAD + REST,
            ..self.load.steady.clone()
        };
        let (first, last) = (self.load.count, self.ends.partitions - 1);
        let send = |number, due| feeder.send_to(Some(last), first + number, ("postdate-at", due));
        let dues = steadily(BESIDE, &steady, send, |_| feeder.serve());
        feeder.finish();
        dues
    }
}

/// Makes memory available before the burst, as the drain does, so that both are comparable. Does
/// nothing if the burst is due too soon, because the allocation would slow it down.
fn give_memory(due: i64) {
    let left = |ahead| u64::try_from(due - millis(ahead) - now_ms()).map(Duration::from_millis);
    let Ok(pause) = left(TAKEN_AHEAD) else { return };
    std::thread::sleep(pause);
    let held = hold_memory();
    std::thread::sleep(left(GIVEN_AHEAD).unwrap_or_default());
    drop(held);
}

impl Process {
    /// Reads the figures of the process from the kernel and from the service's metrics.
    pub(crate) fn of(service: &Postdate, start_up: Option<Duration>) -> Process {
        let metrics = service.metrics();
        Process {
            start_up_s: start_up.map(|start_up| start_up.as_secs_f64()),
            peak_bytes: service.peak_memory() as f64,
            budget_bytes: metrics.sum_where("postdate_memory_budget_bytes", &[("part", "process")]),
            threads: service.threads().len() as f64,
            descriptors: service.descriptors() as f64,
            rewritten_runs: metrics.sum("postdate_rewritten_runs_total"),
        }
    }
}
