//! Compares exactly-once with at-least-once delivery, as a `read_committed` consumer sees them.
//!
//! It measures a drain of the store and a steady load.

use std::time::Duration;

use crate::ends::Feed as _;
use crate::env::now_ms;
use crate::feeder::{Feeder, steadily};
use crate::fresh::find_memory;
use crate::route::{begun, wait_for};
use crate::row::{Delivery, Lateness, Process, Row, Stage, System};
use crate::stage::{Bench, LOOK, OVERDUE_SPAN, PACE, millis, stop};
use crate::watch::Watch;
use crate::workload::spread;

/// Messages per second of the steady load.
const RATE: usize = 20_000;

impl Bench<'_> {
    pub(crate) fn exact(&self) -> Vec<Row> {
        // This load is not measured. During it a fresh JVM compiles the broker's transaction code.
        self.progress.step("exactly-once: warming up the broker");
        self.seen_load(Delivery::ExactlyOnce);
        let drains = Delivery::BOTH.map(|delivery| self.seen_drain(delivery));
        let steady = Delivery::BOTH.map(|delivery| self.seen_steady(delivery));
        drains.into_iter().chain(steady).collect()
    }

    /// Measures the delivery of messages that became due while no timer ran, until the consumer has
    /// seen the last one.
    fn seen_drain(&self, delivery: Delivery) -> Row {
        self.progress.step(&format!("drain, {}", delivery.name()));
        let (route, count) = (self.route().delivering(delivery.name()), self.load.count);
        let first = now_ms() + millis(2 * PACE * count as u32 + Duration::from_secs(10));
        let due = |number| first + spread(number, OVERDUE_SPAN);
        self.fill(&route.source, count, |number| ("postdate-at", due(number)));
        let mut stored = route.stored(self.redis);
        let ingress = route.serve(&["ingress"]);
        wait_for(self.progress, count, LOOK, || stored.records().unwrap_or(0));
        stop(ingress);
        self.wait_until_due(first);
        self.progress.phase("out of the store");
        find_memory();
        let watch = Watch::start(self.ends, &route.target);
        let mut service = route.serve(&["timer"]);
        begun(&mut service, "the shards are leased", |_| {
            stored.is_leased()
        });
        let (start, since) = (self.meter.read(service.cpu()), now_ms());
        wait_for(self.progress, count, LOOK, || watch.count());
        let usage = start.until(self.meter.read(service.cpu()));
        stop(service);
        let seen = watch.end();
        let seconds = (seen.last() - since) as f64 / 1e3;
        let verdict = seen.judge(count, route.dead(), due);
        Row::service(
            System::Postdate,
            Stage::SeenDrain(delivery),
            &usage,
            verdict,
        )
        .within(seconds)
    }

    /// Measures how late the consumer sees a steady load.
    fn seen_steady(&self, delivery: Delivery) -> Row {
        self.progress
            .step(&format!("steady load, {}", delivery.name()));
        self.seen_load(delivery)
    }

    fn seen_load(&self, delivery: Delivery) -> Row {
        let (route, steady) = (self.route().delivering(delivery.name()), &self.load.steady);
        let mut service = route.serve(&["ingress", "timer"]);
        service.wait_until_ready();
        let watch = Watch::start(self.ends, &route.target);
        let start = self.meter.read(service.cpu());
        let feeder = Feeder::new(self.ends.addr(), &route.source, &self.load.message);
        let all = RATE * steady.lasts.as_secs() as usize;
        let dues = steadily(
            RATE,
            steady,
            |number, due| feeder.send(number, ("postdate-at", due)),
            |sent| {
                feeder.serve();
                self.progress.at(sent, all);
            },
        );
        feeder.finish();
        wait_for(self.progress, dues.len(), LOOK, || watch.count());
        let usage = start.until(self.meter.read(service.cpu()));
        let process = Process::of(&service, None);
        stop(service);
        let seen = watch.end();
        let verdict = seen.judge(dues.len(), route.dead(), |number| dues[number]);
        let row = Row::service(
            System::Postdate,
            Stage::SeenSteady(delivery, RATE),
            &usage,
            verdict,
        );
        Row {
            lateness_ms: Lateness::of(&seen.lateness(|number| dues[number])),
            process: Some(process),
            ..row
        }
    }
}
