//! Measures a flood: one route gets as many messages per second as a producer can send, and another
//! route in the same process has a small steady load.

use std::ops::Range;
use std::time::Duration;

use crate::ends::{Ends as _, Feed as _, Names};
use crate::env::now_ms;
use crate::feeder::{Feeder, steadily};
use crate::ledger::Arrivals;
use crate::many::DELAY;
use crate::route::{begun, wait_for};
use crate::row::{Lateness, Row, Stage, System};
use crate::stage::{Bench, LOOK, millis, stop};
use crate::topics;
use crate::workload::{Steady, Workload};

/// Messages per second of the other route.
const BESIDE: usize = 500;

/// The steady load starts this long before the flood, which exceeds its longest delay.
const LEAD: Duration = Duration::from_secs(10);

/// The steady load must last longer than the flood. Its messages after the flood do not count.
const LASTS: Duration = Duration::from_secs(60);

/// Length of the worst part that has a row of its own, and the step of the search for it.
const PART: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(500);

impl Bench<'_> {
    /// Measures the rate of the flood, and the lateness of the other route meanwhile.
    pub(crate) fn flood(&self) -> Vec<Row> {
        self.progress.step("flood");
        let [source, target] = ["source", "target"].map(|name| self.ends.make(name));
        let route = self.route();
        let flooded = topics::route(
            "flooded",
            &Names {
                source: &source,
                target: &target,
                dead: &route.dead,
                delivery: route.delivery,
            },
        );
        let route = route.with_options(flooded);
        let mut service = route.serve(&["ingress", "timer"]);
        let leases = f64::from(2 * self.ends.partitions);
        begun(&mut service, "the service is ready", |service| {
            service.ready() && service.metrics().sum("postdate_leases_held") >= leases
        });
        let start = self.meter.read(service.cpu());
        let (addr, load) = (self.ends.addr(), self.load);
        let (dues, flood_dues) = std::thread::scope(|scope| {
            let flood = scope.spawn(|| send_flood(addr, &source, load));
            let feeder = Feeder::new(self.ends.addr(), &route.source, &self.load.message);
            let steady = Steady {
                lasts: LASTS,
                delay: DELAY,
                ..self.load.steady.clone()
            };
            let send = |number, due| feeder.send(number, ("postdate-at", due));
            let dues = steadily(BESIDE, &steady, send, |_| feeder.serve());
            feeder.finish();
            (dues, flood.join().expect("the flood is sent"))
        });
        let (count, all) = (flood_dues.len(), flood_dues.len() + dues.len());
        wait_for(self.progress, all, LOOK, || {
            self.ends.held(&target) + route.delivered()
        });
        let usage = start.until(self.meter.read(service.cpu()));
        stop(service);
        let flood = self.judge_target(&target, count, |number| flood_dues[number]);
        let other = self.judge_arrived(&route, dues.len(), |number| dues[number]);
        let meanwhile = flood.first(0..count)..flood.last(0..count);
        let rate = count as f64 * 1e3 / (meanwhile.end - meanwhile.start) as f64;
        let beside = |late: Option<Lateness>, is_worst| {
            let stage = Stage::BesideFlood {
                rate: BESIDE,
                is_worst,
            };
            let row = Row::service(System::Postdate, stage, &usage, other.verdict);
            Row {
                lateness_ms: late,
                redis_cpu_us: None,
                ..row.of_redis_alone()
            }
        };
        vec![
            Row {
                rate: Some(rate),
                ..Row::service(System::Postdate, Stage::Flood, &usage, flood.verdict)
            },
            beside(lateness(&other, &dues, meanwhile.clone()), false),
            beside(worst(&other, &dues, &meanwhile), true),
        ]
    }
}

/// Sends the messages of the flood as fast as the client takes them. Returns their due times.
fn send_flood(addr: &str, source: &str, load: &Workload) -> Vec<i64> {
    std::thread::sleep(LEAD);
    let feeder = Feeder::new(addr, source, &load.message);
    let dues = (0..load.count).map(|number| {
        let due = now_ms() + DELAY.of(number);
        feeder.send(number, ("postdate-at", due));
        due
    });
    let dues = dues.collect();
    feeder.finish();
    dues
}

/// The lateness of the messages that were due in this time.
fn lateness(arrivals: &Arrivals, dues: &[i64], time: Range<i64>) -> Option<Lateness> {
    let due = |number: usize| Some(dues[number]).filter(|due| time.contains(due));
    Lateness::of(&arrivals.lateness(due))
}

/// The lateness in the part of this time that has the greatest p99.
fn worst(arrivals: &Arrivals, dues: &[i64], time: &Range<i64>) -> Option<Lateness> {
    let starts = time.clone().step_by(millis(STEP) as usize);
    let parts = starts.filter_map(|start| {
        let part = start..(start + millis(PART)).min(time.end);
        lateness(arrivals, dues, part)
    });
    parts.max_by(|a, b| a.p99.total_cmp(&b.p99))
}
