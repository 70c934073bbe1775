//! The measurements, one after the other on the same servers; each fills topics of its own, and judges what arrived.

use std::time::{Duration, Instant};

use crate::env::{Postdate, Redis, eventually, now_ms};
use crate::ledger::{Verdict, judge};
use crate::meter::Meter;
use crate::route::{Route, begun, wait_for};
use crate::table::{FLOOR, Row};
use crate::topics::Topics;
use crate::workload::{Control, Feeder, spread};
use crate::{LIMIT, copy};

/// Of the steady load whose lateness is measured: messages a second, and for how long.
pub(crate) const RATE: usize = 10_000;
pub(crate) const STEADY: Duration = Duration::from_secs(30);

/// How long its messages wait: 2 to 10 seconds.
const DELAY_MIN: Duration = Duration::from_secs(2);
const DELAY_SPAN: Duration = Duration::from_secs(8);

/// Over how long the messages of the drain were due: so, every run holds messages of all of it.
pub(crate) const OVERDUE_SPAN: Duration = Duration::from_secs(10);

/// For a message to be sent and stored, on a busy machine.
pub(crate) const PACE: Duration = Duration::from_micros(20);

/// Of the copies before the first that is measured: a fresh JVM is slow.
const WARM_UP: usize = 100_000;

/// How often is looked whether the target has everything. Each look costs the broker four requests.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

pub(crate) struct Bench<'a> {
    pub(crate) topics: &'a Topics<'a>,
    pub(crate) redis: &'a Redis,
    pub(crate) meter: Meter<'a>,
    /// Messages of each rate.
    pub(crate) count: usize,
}

impl Bench<'_> {
    /// The plain copy and the best: the floor.
    pub(crate) fn copies(&self) -> [Row; 2] {
        let warm = self.topics.make("warm");
        self.fill(&warm, WARM_UP, |_| ("postdate-after", 3_600_000));
        let source = self.topics.make("copied");
        self.fill(&source, self.count, |_| ("postdate-after", 3_600_000));
        let kinds: [(&str, copy::Copy); 2] = [("copy, poll and send", copy::plain), (FLOOR, copy::best)];
        kinds.map(|(stage, copy)| {
            copy(self.topics.addr(), &warm, &self.topics.make("warmed"), WARM_UP);
            progress(stage);
            let target = self.topics.make("copy");
            let start = self.meter.read(None);
            copy(self.topics.addr(), &source, &target, self.count);
            let usage = start.until(self.meter.read(None));
            Row::copy(stage, &usage, judge(self.topics, &target, self.count, |_| None).verdict)
        })
    }

    /// From the source into the store, dues spread over a day. Answers, too, how long filling and storing took.
    pub(crate) fn ingress(&self) -> (Row, Duration) {
        let (route, began) = (self.route(), Instant::now());
        let day = Duration::from_secs(86_400);
        self.fill(&route.source, self.count, |number| ("postdate-after", 600_000 + spread(number, day)));
        let (mut stored, filled) = (route.stored(self.redis), began.elapsed());
        let memory = stored.memory();
        progress("ingress");
        let mut service = route.serve(&["ingress"]);
        begun(&mut service, "the shards are born", |_| stored.watermark().is_some());
        let start = self.meter.read(Some(&service));
        wait_for(self.count, Duration::from_millis(5), || stored.watermark().unwrap_or(0));
        let usage = start.until(self.meter.read(Some(&service)));
        stop(service);
        let pending = stored.pending();
        let delivered = route.delivered();
        let verdict = Verdict {
            count: self.count,
            lost: self.count.saturating_sub(pending),
            doubled: pending.saturating_sub(self.count),
            early: delivered,
            dead: route.dead(),
            ..Verdict::default()
        };
        let bytes = (stored.memory() - memory) as f64 / self.count as f64;
        let row = Row::service("ingress: source to store", Some(usage.wall.as_secs_f64()), &usage, verdict);
        (Row { bytes: Some(bytes), ..row }, filled + usage.wall)
    }

    /// From the store to the target: what became due while no timer ran. `pace`: how long it takes to fill and store as many, if known.
    pub(crate) fn drain(&self, pace: Option<Duration>) -> Row {
        let route = self.route();
        let pace = pace.unwrap_or(PACE * self.count as u32);
        let first = now_ms() + millis(2 * pace + Duration::from_secs(10));
        let due = |number| first + spread(number, OVERDUE_SPAN);
        self.fill(&route.source, self.count, |number| ("postdate-at", due(number)));
        let mut stored = route.stored(self.redis);
        let ingress = route.serve(&["ingress"]);
        wait_for(self.count, LOOK, || stored.watermark().unwrap_or(0));
        let ahead = now_ms() < first;
        stop(ingress);
        eventually("the messages are due", LIMIT, || (now_ms() > first + millis(OVERDUE_SPAN)).then_some(()));
        progress(if ahead { "drain" } else { "drain, though some of it was due before it was stored" });
        let mut service = route.serve(&["timer"]);
        begun(&mut service, "the shards are leased", |_| stored.is_leased());
        let (start, since) = (self.meter.read(Some(&service)), now_ms());
        wait_for(self.count, LOOK, || route.delivered());
        let usage = start.until(self.meter.read(Some(&service)));
        stop(service);
        let arrivals = judge(self.topics, &route.target, self.count, |number| Some(due(number)));
        let seconds = (arrivals.last - since) as f64 / 1e3;
        let verdict = Verdict { dead: route.dead(), ..arrivals.verdict };
        Row::service("drain: store to target, overdue", Some(seconds), &usage, verdict)
    }

    /// A steady load, and how late it comes by the broker's stamp.
    pub(crate) fn steady(&self) -> (Row, Vec<i64>) {
        let route = self.route();
        let mut service = route.serve(&["ingress", "timer"]);
        service.wait_until_ready();
        progress("steady load");
        let mut stored = route.stored(self.redis);
        let (memory, start) = (stored.memory(), self.meter.read(Some(&service)));
        let dues = send_steadily(Feeder::new(self.topics.addr(), &route.source));
        let bytes = (stored.memory() - memory) as f64 / stored.pending() as f64;
        wait_for(dues.len(), LOOK, || route.delivered());
        let usage = start.until(self.meter.read(Some(&service)));
        stop(service);
        let arrivals = judge(self.topics, &route.target, dues.len(), |number| Some(dues[number]));
        let verdict = Verdict { dead: route.dead(), ..arrivals.verdict };
        let row = Row::service(&format!("steady: {RATE}/s for {} s", STEADY.as_secs()), None, &usage, verdict);
        (Row { bytes: Some(bytes), ..row }, arrivals.lateness)
    }

    /// A new route, on a Redis that holds nothing.
    fn route(&self) -> Route<'_> {
        redis::cmd("FLUSHALL").exec(&mut self.redis.client()).expect("Redis answers");
        Route::in_redis(self.topics, self.redis)
    }

    pub(crate) fn fill(&self, topic: &str, count: usize, control: impl Fn(usize) -> Control) {
        progress("filling a topic");
        let feeder = Feeder::new(self.topics.addr(), topic);
        (0..count).for_each(|number| feeder.send(number, control(number)));
        feeder.finish();
        assert_eq!(self.topics.held(topic), count, "the load is in the topic, once");
    }
}

/// As many as the time that passed demands, every millisecond. Answers when each was due.
fn send_steadily(feeder: Feeder) -> Vec<i64> {
    let (start, mut dues) = (Instant::now(), Vec::new());
    while start.elapsed() < STEADY {
        while dues.len() < start.elapsed().as_millis() as usize * RATE / 1_000 {
            let due = now_ms() + millis(DELAY_MIN) + spread(dues.len(), DELAY_SPAN);
            feeder.send(dues.len(), ("postdate-at", due));
            dues.push(due);
        }
        feeder.serve();
        std::thread::sleep(Duration::from_millis(1));
    }
    feeder.finish();
    dues
}

/// As an operator ends it.
pub(crate) fn stop(mut service: Postdate) {
    let (status, _) = service.terminate();
    assert!(status.success(), "the service ends with {status}:\n{}", service.logs());
    drop(service);
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("a time that somebody waits for")
}

/// For who waits; the tables go elsewhere.
pub(crate) fn progress(what: &str) {
    eprintln!("bench: {what} ...");
}
