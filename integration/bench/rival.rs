//! Measures the rivals, which keep one Redis entry per message, with the same messages on the same
//! Redis.
//!
//! A rival has no Kafka on either side. It checks a due message and drops it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::env::now_ms;
use crate::feeder::steadily;
use crate::fresh::find_memory;
use crate::layout::{Taker, Writer};
use crate::ledger::Verdict;
use crate::program::{Job, Program, Running};
use crate::route::memory;
use crate::row::{Lateness, Row, Stage, System};
use crate::stage::{Bench, OVERDUE_SPAN, millis};
use crate::workload::spread;

/// Limit of messages for a library. It is slow, and a greater count does not make it faster.
const LIBRARY_COUNT: usize = 100_000;
/// Time that a library needs to schedule a message on a busy machine.
const LIBRARY_PACE: Duration = Duration::from_micros(300);
/// Time that its program needs to start, read the messages and warm up.
const LIBRARY_START: Duration = Duration::from_secs(10);

impl Bench<'_> {
    /// Measures the per-message layout: in, out, and a steady load at each rate that it can
    /// sustain.
    pub(crate) fn layout(&self) -> Vec<Row> {
        let (store, drain) = (self.layout_store(), self.layout_drain());
        self.with_steady(store, drain, |rate| self.layout_steady(rate))
    }

    /// Measures a library in the same way.
    pub(crate) fn library(&self, program: &Program) -> Vec<Row> {
        let (store, drain) = (self.library_store(program), self.library_drain(program));
        self.with_steady(store, drain, |rate| self.library_steady(program, rate))
    }

    fn with_steady(&self, store: Row, drain: Row, steady: impl Fn(usize) -> Row) -> Vec<Row> {
        let both = store.and(&drain);
        // Above this rate a backlog grows, so the lateness would depend only on the length of the
        // measurement.
        let follows = |rate: usize| both.rate.is_some_and(|most| (rate as f64) < most);
        let rates = self.load.steady.rates.iter();
        let rows: Vec<Row> = rates
            .filter_map(|rate| {
                if follows(*rate) {
                    Some(steady(*rate))
                } else {
                    self.leave_out(*rate)
                }
            })
            .collect();
        [store, drain, both].into_iter().chain(rows).collect()
    }

    fn leave_out(&self, rate: usize) -> Option<Row> {
        self.progress
            .step(&format!("{rate}/s is more than it can do, and is left out"));
        None
    }

    fn layout_store(&self) -> Row {
        self.progress.step("per-message layout: into Redis");
        self.empty_redis();
        let (mut writer, mut connection) = (self.layout_writer(), self.redis.client());
        find_memory();
        let (before, start) = (memory(&mut connection), self.meter.read(Duration::ZERO));
        let now = now_ms();
        self.layout_fill(&mut writer, |number| now + self.load.delay.of(number));
        let usage = start.until(self.meter.read(Duration::ZERO));
        let count = self.load.count;
        let bytes = (memory(&mut connection) - before) as f64 / count as f64;
        let verdict = Verdict {
            count,
            ..Verdict::default()
        };
        let row = Row::service(System::Layout, Stage::Store, &usage, verdict)
            .within(usage.wall.as_secs_f64());
        Row {
            bytes: Some(bytes),
            ..row.of_redis_alone()
        }
    }

    fn layout_drain(&self) -> Row {
        self.progress.step("per-message layout: out of Redis");
        self.empty_redis();
        let (mut writer, first) = (self.layout_writer(), now_ms() - millis(OVERDUE_SPAN));
        let due = |number| first + spread(number, OVERDUE_SPAN);
        self.layout_fill(&mut writer, due);
        let count = self.load.count;
        let mut taker = Taker::new(self.redis, self.load.partitions, &self.load.message, count);
        let start = self.meter.read(Duration::ZERO);
        taker.run(&AtomicUsize::new(count), |taken| {
            self.progress.at(taken, count);
        });
        let usage = start.until(self.meter.read(Duration::ZERO));
        let (verdict, _) = taker.judge(count, due);
        Row::service(System::Layout, Stage::Drain, &usage, verdict)
            .within(usage.wall.as_secs_f64())
            .of_redis_alone()
    }

    fn layout_steady(&self, rate: usize) -> Row {
        self.progress
            .step(&format!("per-message layout: steady load, {rate}/s"));
        self.empty_redis();
        let steady = &self.load.steady;
        let most = rate * (steady.lasts.as_secs() as usize + 1);
        let (mut writer, goal) = (self.layout_writer(), AtomicUsize::new(usize::MAX));
        let mut taker = Taker::new(self.redis, self.load.partitions, &self.load.message, most);
        let start = self.meter.read(Duration::ZERO);
        let dues = std::thread::scope(|scope| {
            scope.spawn(|| taker.run(&goal, |_| {}));
            let (writer, progress) = (std::cell::RefCell::new(&mut writer), self.progress);
            let dues = steadily(
                rate,
                steady,
                |number, due| writer.borrow_mut().send(number, due),
                |sent| {
                    writer.borrow_mut().serve();
                    progress.at(sent, most);
                },
            );
            writer.borrow_mut().flush();
            goal.store(dues.len(), Ordering::Relaxed);
            dues
        });
        let usage = start.until(self.meter.read(Duration::ZERO));
        let (verdict, lateness) = taker.judge(dues.len(), |number| dues[number]);
        let row =
            Row::service(System::Layout, Stage::Steady(rate), &usage, verdict).of_redis_alone();
        Row {
            lateness_ms: Lateness::of(&lateness),
            ..row
        }
    }

    fn layout_writer(&self) -> Writer<'_> {
        Writer::new(self.redis, self.load.partitions, &self.load.message)
    }

    fn layout_fill(&self, writer: &mut Writer<'_>, due: impl Fn(usize) -> i64) {
        for number in 0..self.load.count {
            writer.send(number, due(number));
            if number % 1_024 == 0 {
                self.progress.at(number, self.load.count);
            }
        }
        writer.flush();
    }

    fn library_store(&self, program: &Program) -> Row {
        let name = program.system.name();
        self.progress.step(&format!("{name}: into Redis"));
        self.empty_redis();
        let count = self.load.count.min(LIBRARY_COUNT);
        let job = Job {
            count,
            at: |number| self.load.delay.of(number),
            options: &["store"],
        };
        let mut running = self.start(program, &job);
        let mut connection = self.redis.client();
        let before = memory(&mut connection);
        find_memory();
        let start = self.meter.read(running.cpu());
        let outcome = running.run();
        let usage = start.until(self.meter.read(running.cpu()));
        let bytes = (memory(&mut connection) - before) as f64 / count as f64;
        let verdict = Verdict {
            count,
            ..Verdict::default()
        };
        let row =
            Row::service(program.system, Stage::Store, &usage, verdict).within(outcome.seconds);
        Row {
            bytes: Some(bytes),
            broker_cpu_us: None,
            ..row
        }
    }

    fn library_drain(&self, program: &Program) -> Row {
        let what = format!("{}: out of Redis", program.system.name());
        self.progress.step(&what);
        self.empty_redis();
        let count = self.load.count.min(LIBRARY_COUNT);
        let first = now_ms() + millis(LIBRARY_PACE * count as u32 + LIBRARY_START);
        let at = |number| first + spread(number, OVERDUE_SPAN);
        let job = |options| Job { count, at, options };
        let store = job(&["--absolute", "store"]);
        drop(self.start(program, &store).run());
        self.wait_until_due(first + millis(Duration::from_secs(1)));
        self.progress.phase(&what);
        let mut running = self.start(program, &job(&["--absolute", "drain"]));
        let start = self.meter.read(running.cpu());
        let outcome = running.run();
        let usage = start.until(self.meter.read(running.cpu()));
        let verdict = outcome.verdict(count);
        let row =
            Row::service(program.system, Stage::Drain, &usage, verdict).within(outcome.seconds);
        Row {
            broker_cpu_us: None,
            ..row
        }
    }

    fn library_steady(&self, program: &Program, rate: usize) -> Row {
        let name = program.system.name();
        self.progress
            .step(&format!("{name}: steady load, {rate}/s"));
        self.empty_redis();
        let (steady, per_second) = (&self.load.steady, rate.to_string());
        let count = rate * steady.lasts.as_secs() as usize;
        let job = Job {
            count,
            at: |number| steady.delay.of(number),
            options: &["--rate", &per_second, "steady"],
        };
        let mut running = self.start(program, &job);
        let start = self.meter.read(running.cpu());
        let outcome = running.run();
        let usage = start.until(self.meter.read(running.cpu()));
        let (stage, verdict) = (Stage::Steady(rate), outcome.verdict(count));
        Row {
            broker_cpu_us: None,
            lateness_ms: Lateness::of(outcome.lateness()),
            ..Row::service(program.system, stage, &usage, verdict)
        }
    }

    fn start<F: Fn(usize) -> i64>(&self, program: &Program, job: &Job<'_, F>) -> Running {
        Running::start(program, self.redis, &self.load.message, job)
    }
}
