//! Measures the copies and the basic stages of the service: ingress, drain and steady load.
//!
//! Each measurement uses new topics on the same servers and checks the messages that arrived.

use std::time::{Duration, Instant};

use crate::ends::{Ends, Feed as _};
use crate::env::{Postdate, Redis, eventually, now_ms};
use crate::feeder::{Control, steadily};
use crate::fresh::find_memory;
use crate::ledger::{Arrivals, Sent, Verdict, judge};
use crate::meter::{Meter, Usage};
use crate::progress::Progress;
use crate::route::{Route, begun, wait_for};
use crate::row::{Lateness, Row, Stage, System};
use crate::topics::Topics;
use crate::workload::{Steady, Workload, spread};
use crate::{LIMIT, copy};

/// Range of the due times in a drain. They are shuffled, so every run contains due times of the
/// whole range.
pub(crate) const OVERDUE_SPAN: Duration = Duration::from_secs(10);

/// Time to send and store one message on a busy machine.
pub(crate) const PACE: Duration = Duration::from_micros(20);

/// Messages copied before each measured copy, because a fresh JVM is slow.
const WARM_UP: usize = 100_000;

/// Length and rate of the load before the first measured steady load. Small requests use other JVM
/// code than a copy, and compiling it takes an additional core.
const STEADY_WARM_UP: Duration = Duration::from_secs(30);
const STEADY_WARM_UP_RATE: usize = 5_000;

/// The last fifth of a steady load is evaluated separately. It shows if the lateness grows.
const LAST_PART: u32 = 5;

/// Interval of the checks for completion. Each check sends the broker requests for every partition.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

pub(crate) struct Bench<'a, E = Topics<'a>> {
    pub(crate) ends: &'a E,
    pub(crate) redis: &'a Redis,
    pub(crate) meter: Meter<'a>,
    pub(crate) load: &'a Workload,
    pub(crate) progress: &'a Progress,
    /// The service encrypts its messages in Redis.
    pub(crate) is_encrypted: bool,
}

impl Bench<'_> {
    /// Measures the plain copy and the fast copy, which is the floor.
    pub(crate) fn copies(&self) -> Vec<Row> {
        self.progress.step("copy");
        let (warm, source) = (self.ends.make("warm"), self.ends.make("copied"));
        self.fill(&warm, WARM_UP, |_| ("postdate-after", 3_600_000));
        self.fill(&source, self.load.count, |_| ("postdate-after", 3_600_000));
        let kinds: [(System, copy::Copy); 2] = [
            (System::PlainCopy, copy::plain),
            (System::Floor, copy::best),
        ];
        let rows = kinds.map(|(system, copy)| {
            copy(self.ends, &warm, &self.ends.make("warmed"), WARM_UP);
            self.progress.phase(if system == System::Floor {
                "copy, in batches"
            } else {
                "copy, poll and send"
            });
            let target = self.ends.make("copy");
            find_memory();
            let start = self.meter.read(Duration::ZERO);
            copy(self.ends, &source, &target, self.load.count);
            let usage = start.until(self.meter.read(Duration::ZERO));
            Row::copy(
                system,
                &usage,
                judge(self.ends, &target, self.sent(), |_| None).verdict,
            )
        });
        rows.into()
    }
}

impl<E: Ends> Bench<'_, E> {
    /// Measures ingress from the source into the store. Also returns the time that it took to fill
    /// the source and store the messages.
    pub(crate) fn ingress(&self) -> (Row, Duration) {
        self.progress.step("ingress");
        let (route, began) = (self.route(), Instant::now());
        self.fill(&route.source, self.load.count, |number| {
            ("postdate-after", self.load.delay.of(number))
        });
        let (mut stored, filled) = (route.stored(self.redis), began.elapsed());
        let memory = stored.memory();
        self.progress.phase("ingress: into the store");
        find_memory();
        let mut service = route.serve(&["ingress"]);
        begun(&mut service, "the shards are created", |_| {
            stored.records().is_some()
        });
        let start = self.meter.read(service.cpu());
        wait_for(
            self.progress,
            self.load.count,
            Duration::from_millis(5),
            || stored.records().unwrap_or(0),
        );
        let usage = start.until(self.meter.read(service.cpu()));
        stop(service);
        let verdict = judge_waiting(&route, self.load.count, stored.pending());
        let bytes = (stored.memory() - memory) as f64 / self.load.count as f64;
        let row = Row::service(self.system(), Stage::Store, &usage, verdict)
            .within(usage.wall.as_secs_f64());
        (
            Row {
                bytes: Some(bytes),
                ..row
            },
            filled + usage.wall,
        )
    }

    /// Measures delivery from the store to the target. All messages became due while no timer ran.
    /// `pace` is the time to fill the source and store the messages, if known.
    pub(crate) fn drain(&self, pace: Option<Duration>) -> Row {
        self.progress.step("drain");
        let (route, count) = (self.route(), self.load.count);
        let pace = pace.unwrap_or(PACE * count as u32);
        let first = now_ms() + millis(2 * pace + Duration::from_secs(10));
        let due = |number| first + spread(number, OVERDUE_SPAN);
        self.fill(&route.source, count, |number| ("postdate-at", due(number)));
        let mut stored = route.stored(self.redis);
        let ingress = route.serve(&["ingress"]);
        wait_for(self.progress, count, LOOK, || stored.records().unwrap_or(0));
        let ahead = now_ms() < first;
        stop(ingress);
        self.wait_until_due(first);
        self.progress.phase(if ahead {
            "drain: out of the store"
        } else {
            "drain, though some of it was due before it was stored"
        });
        find_memory();
        let mut service = route.serve(&["timer"]);
        begun(&mut service, "the shards are leased", |_| {
            stored.is_leased()
        });
        let (start, since) = (self.meter.read(service.cpu()), now_ms());
        wait_for(self.progress, count, LOOK, || route.delivered());
        let usage = start.until(self.meter.read(service.cpu()));
        stop(service);
        let arrivals = self.judge_arrived(&route, count, due);
        let seconds = (arrivals.last(0..count) - since) as f64 / 1e3;
        Row::service(self.system(), Stage::Drain, &usage, arrivals.verdict).within(seconds)
    }

    /// Warms up the broker with a steady load that is not measured.
    pub(crate) fn warm_up(&self) {
        self.progress.step("steady load: warming up the broker");
        self.steady_load(
            STEADY_WARM_UP_RATE,
            &Steady {
                lasts: STEADY_WARM_UP,
                ..self.load.steady.clone()
            },
        );
    }

    /// Measures a steady load and its lateness by the broker's timestamps.
    pub(crate) fn steady(&self, rate: usize) -> Row {
        self.progress.step(&format!("steady load: {rate}/s"));
        self.steady_load(rate, &self.load.steady)
    }

    fn steady_load(&self, rate: usize, steady: &Steady) -> Row {
        let route = self.route();
        let mut service = route.serve(&["ingress", "timer"]);
        service.wait_until_ready();
        let (memory, mut dues) = (route.stored(self.redis).memory(), Vec::new());
        let Flow {
            usage,
            waiting,
            memory: full,
            ended,
        } = self.flow(rate, steady, (&route, &service), &mut dues);
        stop(service);
        let bytes = (waiting > 0).then(|| (full - memory) as f64 / waiting as f64);
        let arrivals = self.judge_arrived(&route, dues.len(), |number| dues[number]);
        let row = Row::service(E::SYSTEM, Stage::Steady(rate), &usage, arrivals.verdict);
        let last = ended - millis(steady.lasts / LAST_PART)..ended;
        let lately =
            arrivals.lateness(|number| Some(dues[number]).filter(|due| last.contains(due)));
        let last_p50_ms = Lateness::of(&lately).map(|late| late.p50);
        Row {
            bytes,
            lateness_ms: Lateness::of(&arrivals.lateness(|number| Some(dues[number]))),
            last_p50_ms,
            ..row
        }
    }

    /// Sends a steady load through a running service, until all of it has arrived. Appends its due
    /// times to `dues`, which may contain those of earlier loads.
    pub(crate) fn flow(
        &self,
        rate: usize,
        steady: &Steady,
        (route, service): (&Route<'_, E>, &Postdate),
        dues: &mut Vec<i64>,
    ) -> Flow {
        let (mut stored, first, start) = (
            route.stored(self.redis),
            dues.len(),
            self.meter.read(service.cpu()),
        );
        let feeder = self.ends.feeder(&route.source, &self.load.message);
        let all = rate * steady.lasts.as_secs() as usize;
        let send = |number, due| feeder.send(first + number, ("postdate-at", due));
        dues.extend(steadily(rate, steady, send, |sent| {
            feeder.serve();
            self.progress.at(sent, all);
        }));
        feeder.finish();
        let (ended, waiting, memory) = (now_ms(), stored.pending(), stored.memory());
        wait_for(self.progress, dues.len(), LOOK, || route.delivered());
        Flow {
            usage: start.until(self.meter.read(service.cpu())),
            waiting,
            memory,
            ended,
        }
    }

    /// Creates a new route on an empty Redis.
    pub(crate) fn route(&self) -> Route<'_, E> {
        self.empty_redis();
        Route::in_redis(self.ends, self.redis, self.is_encrypted)
    }

    fn system(&self) -> System {
        if self.is_encrypted {
            System::Encrypted
        } else {
            E::SYSTEM
        }
    }

    pub(crate) fn empty_redis(&self) {
        redis::cmd("FLUSHALL")
            .exec(&mut self.redis.client())
            .expect("Redis answers");
    }

    pub(crate) fn fill(&self, topic: &str, count: usize, control: impl Fn(usize) -> Control) {
        self.progress.phase("filling a topic");
        let feeder = self.ends.feeder(topic, &self.load.message);
        for number in 0..count {
            feeder.send(number, control(number));
            if number % 1_024 == 0 {
                self.progress.at(number, count);
            }
        }
        feeder.finish();
        assert_eq!(
            self.ends.held(topic),
            count,
            "the load is in the topic, once"
        );
    }

    pub(crate) fn wait_until_due(&self, first: i64) {
        self.progress.phase("waiting until all of it is due");
        eventually("the messages are due", LIMIT, || {
            (now_ms() > first + millis(OVERDUE_SPAN)).then_some(())
        });
    }

    pub(crate) fn sent(&self) -> Sent<'_> {
        Sent {
            message: &self.load.message,
            count: self.load.count,
        }
    }

    pub(crate) fn judge_arrived(
        &self,
        route: &Route<'_, E>,
        count: usize,
        due: impl Fn(usize) -> i64,
    ) -> Arrivals {
        let mut arrivals = self.judge_target(&route.target, count, due);
        arrivals.verdict.dead = route.dead();
        arrivals
    }

    /// Checks a load by the target topic alone.
    pub(crate) fn judge_target(
        &self,
        target: &str,
        count: usize,
        due: impl Fn(usize) -> i64,
    ) -> Arrivals {
        let sent = Sent {
            count,
            ..self.sent()
        };
        judge(self.ends, target, sent, |number| Some(due(number)))
    }
}

/// The resources that a steady load used, and the state of Redis at its end.
pub(crate) struct Flow {
    pub(crate) usage: Usage,
    waiting: usize,
    memory: usize,
    /// When the last message was sent, in epoch milliseconds.
    ended: i64,
}

/// Checks a load of which no message is due yet.
pub(crate) fn judge_waiting(route: &Route<'_, impl Ends>, count: usize, pending: usize) -> Verdict {
    let (lost, doubled) = (count.saturating_sub(pending), pending.saturating_sub(count));
    Verdict {
        count,
        lost,
        doubled,
        early: route.delivered(),
        dead: route.dead(),
        ..Verdict::default()
    }
}

/// Stops the service as an operator does.
pub(crate) fn stop(mut service: Postdate) {
    let (status, _) = service.terminate();
    assert!(
        status.success(),
        "the service ends with {status}:\n{}",
        service.logs()
    );
    drop(service);
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("a time that somebody waits for")
}
