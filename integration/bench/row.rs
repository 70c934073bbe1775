//! One measurement, as it is printed, plotted and kept; and the middle one of several runs.

use serde::Serialize;

use crate::ledger::Verdict;
use crate::meter::Usage;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum System {
    PlainCopy,
    /// The copy that all else is held against.
    Floor,
    Postdate,
    Embedded,
    /// An entry a message in Redis, by hand.
    Layout,
    /// A library that does it.
    Asynq,
    /// From stream to stream of NATS: merely reading, copies, the service, and what the server itself has.
    NatsReading,
    NatsCopyOnce,
    NatsFloor,
    Nats,
    Schedules,
}

/// At what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    Copy,
    Read,
    Store,
    Drain,
    /// Store and drain, one after the other.
    Both,
    /// So many messages a second.
    Steady(usize),
    /// All due in one millisecond.
    Burst,
    /// So many messages a second of a shard beside those that have the burst, while it lasts.
    Meanwhile(usize),
    /// So many that wait for days, into the store.
    Fill(usize),
    /// A steady load beside them.
    Beside(Depth),
    /// Drain and a steady load as a consumer sees them that reads only what is committed.
    SeenDrain(Delivery),
    SeenSteady(Delivery, usize),
    /// A steady load seen so, of what was due after that.
    Moved(Delivery, Event),
    /// So many shards, and nothing to do.
    Idle(usize),
}

/// What happens to timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    Joined,
    Asked,
    Killed,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Event::Joined => "another joined",
            Event::Asked => "one was asked to end",
            Event::Killed => "one of two was killed",
        }
    }
}

/// What a route promises of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Delivery {
    AtLeastOnce,
    ExactlyOnce,
}

impl Delivery {
    pub(crate) const BOTH: [Delivery; 2] = [Delivery::AtLeastOnce, Delivery::ExactlyOnce];

    /// As in the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Delivery::AtLeastOnce => "at-least-once",
            Delivery::ExactlyOnce => "exactly-once",
        }
    }
}

/// What a steady load has below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Depth {
    /// Messages a second, and messages that wait.
    pub(crate) rate: usize,
    pub(crate) waiting: usize,
    /// The rewriter has nothing left to do.
    pub(crate) settled: bool,
}

/// What the service's process took beside processor time.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Process {
    /// From its start until it is ready and holds every shard.
    pub(crate) start_up_s: Option<f64>,
    /// The most memory that it had at once, and its budget for messages that are loaded: bytes.
    pub(crate) peak_bytes: f64,
    pub(crate) budget_bytes: f64,
    /// Stored runs that were put together or split meanwhile.
    pub(crate) rewritten_runs: f64,
}

/// What is taken while nothing is to be done: per cent of a core.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Idle {
    pub(crate) service: f64,
    pub(crate) redis: f64,
    pub(crate) broker: f64,
}

/// What does not apply is left out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) system: System,
    pub(crate) stage: Stage,
    /// Messages a second.
    pub(crate) rate: Option<f64>,
    /// Microseconds of processor time a message: of the copy or the service, of Redis, of the broker.
    pub(crate) cpu_us: Option<f64>,
    pub(crate) redis_cpu_us: Option<f64>,
    pub(crate) broker_cpu_us: Option<f64>,
    /// Of the store, a message that waits.
    pub(crate) bytes: Option<f64>,
    pub(crate) lateness_ms: Option<Lateness>,
    /// Of what was due while the last fifth of a steady load came: as the load's p50, unless it grows.
    pub(crate) last_p50_ms: Option<f64>,
    pub(crate) process: Option<Process>,
    pub(crate) idle: Option<Idle>,
    /// The part of all cores that other programs had.
    pub(crate) others: f64,
    pub(crate) verdict: Verdict,
}

/// Milliseconds between the due and the arrival.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Lateness {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) greatest: f64,
}

impl Lateness {
    /// Of times in ascending order; none: nothing arrived.
    pub(crate) fn of(sorted: &[i64]) -> Option<Lateness> {
        let last = sorted.len().checked_sub(1)?;
        let share = |per_mille: usize| sorted[(sorted.len() * per_mille / 1_000).min(last)] as f64;
        Some(Lateness {
            p50: share(500),
            p99: share(990),
            p99_9: share(999),
            greatest: share(1_000),
        })
    }
}

impl Row {
    fn new(system: System, stage: Stage, usage: &Usage, verdict: Verdict) -> Row {
        Row {
            system,
            stage,
            rate: None,
            cpu_us: None,
            redis_cpu_us: None,
            broker_cpu_us: Some(usage.broker.as_secs_f64() * 1e6 / verdict.count as f64),
            bytes: None,
            lateness_ms: None,
            last_p50_ms: None,
            process: None,
            idle: None,
            others: usage.others,
            verdict,
        }
    }

    /// Of a copy by this process.
    pub(crate) fn copy(system: System, usage: &Usage, verdict: Verdict) -> Row {
        let count = verdict.count as f64;
        let row = Row::new(system, Stage::Copy, usage, verdict);
        Row {
            rate: Some(count / usage.wall.as_secs_f64()),
            cpu_us: Some(usage.here.as_secs_f64() * 1e6 / count),
            ..row
        }
    }

    /// Of a program that keeps its messages in Redis.
    pub(crate) fn service(system: System, stage: Stage, usage: &Usage, verdict: Verdict) -> Row {
        let each = |cpu: std::time::Duration| Some(cpu.as_secs_f64() * 1e6 / verdict.count as f64);
        let row = Row::new(system, stage, usage, verdict);
        Row {
            cpu_us: each(usage.service),
            redis_cpu_us: each(usage.redis),
            ..row
        }
    }

    /// Of the service while it has nothing to do.
    pub(crate) fn at_rest(stage: Stage, usage: &Usage, verdict: Verdict) -> Row {
        let part = |cpu: std::time::Duration| cpu.as_secs_f64() / usage.wall.as_secs_f64() * 100.0;
        let idle = Idle {
            service: part(usage.service),
            redis: part(usage.redis),
            broker: part(usage.broker),
        };
        Row {
            broker_cpu_us: None,
            idle: Some(idle),
            ..Row::new(System::Postdate, stage, usage, verdict)
        }
    }

    /// Of what runs in this process beside the load, and without a broker.
    pub(crate) fn of_redis_alone(self) -> Row {
        Row {
            cpu_us: None,
            broker_cpu_us: None,
            ..self
        }
    }

    pub(crate) fn within(self, seconds: f64) -> Row {
        Row {
            rate: Some(self.verdict.count as f64 / seconds),
            ..self
        }
    }

    /// What a message costs on both of two ways.
    pub(crate) fn and(&self, other: &Row) -> Row {
        let add = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b);
        Row {
            stage: Stage::Both,
            rate: add(self.rate.map(f64::recip), other.rate.map(f64::recip)).map(f64::recip),
            cpu_us: add(self.cpu_us, other.cpu_us),
            redis_cpu_us: add(self.redis_cpu_us, other.redis_cpu_us),
            broker_cpu_us: add(self.broker_cpu_us, other.broker_cpu_us),
            bytes: None,
            lateness_ms: None,
            last_p50_ms: None,
            process: None,
            idle: None,
            others: self.others.max(other.others),
            verdict: if self.verdict.is_kept() {
                other.verdict
            } else {
                self.verdict
            },
            ..*self
        }
    }

    pub(crate) fn name(&self) -> String {
        match (self.system, self.stage) {
            (System::PlainCopy, _) => "copy, poll and send".to_owned(),
            (System::Floor, _) => "copy, in batches: the floor".to_owned(),
            (System::Postdate, Stage::Store) => "ingress: source to store".to_owned(),
            (System::Postdate, Stage::Drain) => "drain: store to target, overdue".to_owned(),
            (System::Postdate, Stage::Both) => "ingress and drain, together".to_owned(),
            (System::Embedded, stage @ Stage::Steady(_)) => stage.name(),
            (System::Postdate, stage) => stage.name(),
            (System::NatsReading, _) => "NATS: merely reading: the floor of ingress".to_owned(),
            (System::NatsCopyOnce, _) => "NATS: copy, each with an id".to_owned(),
            (System::NatsFloor, _) => "NATS: copy: the floor".to_owned(),
            (System::Nats, Stage::Store) => "NATS: ingress, source to store".to_owned(),
            (System::Nats, Stage::Drain) => "NATS: drain, store to target, overdue".to_owned(),
            (System::Nats, Stage::Both) => "NATS: ingress and drain, together".to_owned(),
            (System::Nats, stage) => format!("NATS: {}", stage.name()),
            (System::Schedules, Stage::Store) => "NATS schedules: into the stream".to_owned(),
            (System::Embedded, Stage::Drain) => "embedded: store to target, overdue".to_owned(),
            (System::Embedded, _) => "embedded: source to store".to_owned(),
            (system, stage) => format!("{}: {}", system.name(), stage.name()),
        }
    }

    /// The one in the middle, figure by figure, of the same measurement in several runs. Of the verdicts, the first that is bad.
    fn median(rows: &[&Row]) -> Row {
        let of = |figure: fn(&Row) -> Option<f64>| {
            median(rows.iter().filter_map(|row| figure(row)).collect())
        };
        let late = |figure: fn(&Lateness) -> f64| {
            median(
                rows.iter()
                    .filter_map(|row| row.lateness_ms.as_ref().map(figure))
                    .collect(),
            )
        };
        let lateness = || {
            let (p50, p99, p99_9) = (
                late(|late| late.p50)?,
                late(|late| late.p99)?,
                late(|late| late.p99_9)?,
            );
            Some(Lateness {
                p50,
                p99,
                p99_9,
                greatest: late(|late| late.greatest)?,
            })
        };
        let of_process = |figure: fn(&Process) -> Option<f64>| {
            median(
                rows.iter()
                    .filter_map(|row| figure(row.process.as_ref()?))
                    .collect(),
            )
        };
        let process = || {
            let (peak, budget) = (
                of_process(|process| Some(process.peak_bytes))?,
                of_process(|process| Some(process.budget_bytes))?,
            );
            let (start_up_s, rewritten) = (
                of_process(|process| process.start_up_s),
                of_process(|process| Some(process.rewritten_runs))?,
            );
            Some(Process {
                start_up_s,
                peak_bytes: peak,
                budget_bytes: budget,
                rewritten_runs: rewritten,
            })
        };
        let of_idle = |figure: fn(&Idle) -> f64| {
            median(
                rows.iter()
                    .filter_map(|row| row.idle.as_ref().map(figure))
                    .collect(),
            )
        };
        let idle = || {
            let (service, redis, broker) = (
                of_idle(|idle| idle.service)?,
                of_idle(|idle| idle.redis)?,
                of_idle(|idle| idle.broker)?,
            );
            Some(Idle {
                service,
                redis,
                broker,
            })
        };
        Row {
            rate: of(|row| row.rate),
            cpu_us: of(|row| row.cpu_us),
            redis_cpu_us: of(|row| row.redis_cpu_us),
            broker_cpu_us: of(|row| row.broker_cpu_us),
            bytes: of(|row| row.bytes),
            lateness_ms: lateness(),
            last_p50_ms: of(|row| row.last_p50_ms),
            process: process(),
            idle: idle(),
            others: of(|row| Some(row.others)).unwrap_or(0.0),
            verdict: rows
                .iter()
                .find(|row| !row.verdict.is_kept())
                .unwrap_or(&rows[0])
                .verdict,
            ..*rows[0]
        }
    }
}

impl System {
    pub(crate) fn name(self) -> &'static str {
        match self {
            System::PlainCopy => "plain copy",
            System::Floor => "the floor",
            System::Postdate => "Postdate",
            System::Embedded => "embedded",
            System::Layout => "per-message layout",
            System::Asynq => "asynq",
            System::NatsReading => "NATS, merely reading",
            System::NatsCopyOnce => "NATS, copy with ids",
            System::NatsFloor => "NATS, the floor",
            System::Nats => "Postdate on NATS",
            System::Schedules => "NATS schedules",
        }
    }
}

impl Stage {
    pub(crate) fn name(self) -> String {
        match self {
            Stage::Copy => "copy".to_owned(),
            Stage::Read => "reading".to_owned(),
            Stage::Store => "into Redis".to_owned(),
            Stage::Drain => "out of Redis, overdue".to_owned(),
            Stage::Both => "together".to_owned(),
            Stage::Steady(rate) => format!("steady: {rate}/s"),
            Stage::Burst => "burst: due in one millisecond".to_owned(),
            Stage::Meanwhile(rate) => format!("burst: {rate}/s of another shard, meanwhile"),
            Stage::Fill(waiting) => format!("deep: {} into the store", rounded(waiting)),
            Stage::Beside(Depth {
                rate, waiting: 0, ..
            }) => format!("deep: {rate}/s, none waiting"),
            Stage::Beside(Depth {
                rate,
                waiting,
                settled: false,
            }) => format!("deep: {rate}/s beside {}", rounded(waiting)),
            Stage::Beside(Depth {
                rate,
                waiting,
                settled: true,
            }) => format!("deep: {rate}/s beside {}, merged", rounded(waiting)),
            Stage::SeenDrain(delivery) => format!("seen: out of Redis, {}", delivery.name()),
            Stage::SeenSteady(delivery, rate) => {
                format!("seen: steady {rate}/s, {}", delivery.name())
            }
            Stage::Idle(shards) => format!("idle: {shards} shards"),
            Stage::Moved(delivery, event) => {
                format!("timers: {}, {}", event.name(), delivery.name())
            }
        }
    }
}

fn rounded(count: usize) -> String {
    if count.is_multiple_of(1_000_000) {
        format!("{}M", count / 1_000_000)
    } else {
        count.to_string()
    }
}

/// Each measurement of the first run with its like in the others.
pub(crate) fn medians(runs: &[Vec<Row>]) -> Vec<Row> {
    let like = |row: &Row| {
        runs.iter()
            .filter_map(|run| find(run, row.system, row.stage))
            .collect::<Vec<_>>()
    };
    runs.first()
        .into_iter()
        .flatten()
        .map(|row| Row::median(&like(row)))
        .collect()
}

pub(crate) fn find(rows: &[Row], system: System, stage: Stage) -> Option<&Row> {
    rows.iter()
        .find(|row| row.system == system && row.stage == stage)
}

/// Of an even number, the mean of the two in the middle.
pub(crate) fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let (below, above) = (
        figures.get(figures.len().checked_sub(1)? / 2)?,
        figures.get(figures.len() / 2)?,
    );
    Some(f64::midpoint(*below, *above))
}
