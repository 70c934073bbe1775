//! Defines the result of one measurement, and the median of several runs.

use serde::Serialize;

use crate::ledger::Verdict;
use crate::meter::Usage;

/// The system that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum System {
    PlainCopy,
    /// The fast copy, the baseline of the measurements on Kafka.
    Floor,
    /// Messages that this process holds in memory, the floor of the lateness.
    InMemory,
    Postdate,
    Embedded,
    /// Postdate with encryption, on Redis.
    Encrypted,
    /// The handwritten layout with one Redis entry per message.
    Layout,
    /// Libraries for delayed tasks, with one Redis entry per message, in Go, Java and JavaScript.
    Asynq,
    Redisson,
    #[serde(rename = "bullmq")]
    BullMq,
    /// Systems on NATS: reading a stream, copying it with and without ids, Postdate, and the
    /// server's own schedules.
    NatsReading,
    NatsCopyOnce,
    NatsFloor,
    Nats,
    Schedules,
}

/// The kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    Copy,
    Read,
    Store,
    Drain,
    /// Store and drain together, one after the other.
    Both,
    /// Messages per second of a steady load.
    Steady(usize),
    /// Reading and delivering a backlog at the same time: its first seconds, or all of it.
    Through {
        backlog: Backlog,
        is_start: bool,
    },
    /// All messages are due in one millisecond.
    Burst,
    /// Messages per second of a shard without the burst, measured during the burst.
    Meanwhile(usize),
    /// All messages of another route arrive at once.
    Flood,
    /// Messages per second of a route during the flood of another.
    BesideFlood {
        rate: usize,
        is_worst: bool,
    },
    /// Cancels per second. The lateness is the time from the cancel to its answer.
    Answers(usize),
    /// Messages per second of the load beside the cancels.
    BesideCancels(usize),
    /// Number of long-waiting messages that are stored.
    Fill(usize),
    /// A steady load beside the waiting messages.
    Beside(Depth),
    /// Drain and steady load as a `read_committed` consumer sees them. The number is messages per
    /// second.
    SeenDrain(Delivery),
    SeenSteady(Delivery, usize),
    /// The messages of a steady load that were due after the event, as a `read_committed` consumer
    /// sees them.
    Moved(Delivery, Event),
    /// Number of shards without messages.
    Idle(usize),
    /// A steady load of messages per second in many partitions: its first seconds after the
    /// service is ready, or the rest.
    Spread {
        rate: usize,
        partitions: usize,
        is_start: bool,
    },
    /// The same over many routes.
    Routes {
        rate: usize,
        routes: usize,
        is_start: bool,
    },
    /// Number of routes without messages.
    IdleRoutes(usize),
    /// Reading the backlog of one of these routes, while the others have no messages.
    RouteBacklog(usize),
}

/// The kind of messages in a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Backlog {
    /// Their due time has passed when they are read.
    Overdue,
    /// They have a delay of zero.
    Undelayed,
}

impl Backlog {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Backlog::Overdue => "overdue backlog",
            Backlog::Undelayed => "backlog without delay",
        }
    }
}

/// A change in the set of timers.
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

/// The delivery guarantee of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Delivery {
    AtLeastOnce,
    ExactlyOnce,
}

impl Delivery {
    pub(crate) const BOTH: [Delivery; 2] = [Delivery::AtLeastOnce, Delivery::ExactlyOnce];

    /// The name in the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Delivery::AtLeastOnce => "at-least-once",
            Delivery::ExactlyOnce => "exactly-once",
        }
    }
}

/// The conditions of a steady load beside waiting messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Depth {
    /// Messages per second of the load, and the number of waiting messages.
    pub(crate) rate: usize,
    pub(crate) waiting: usize,
    /// True if compaction was finished before the load.
    pub(crate) settled: bool,
}

/// Figures of the service's process besides its processor time.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Process {
    /// Seconds from the start until the service is ready and holds every shard.
    pub(crate) start_up_s: Option<f64>,
    /// Peak memory, and the budget for loaded messages, in bytes.
    pub(crate) peak_bytes: f64,
    pub(crate) budget_bytes: f64,
    pub(crate) threads: f64,
    /// Open file descriptors.
    pub(crate) descriptors: f64,
    /// Runs that compaction rewrote.
    pub(crate) rewritten_runs: f64,
}

/// Processor time of an idle service, its Redis and its broker, in per cent of a core.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Idle {
    pub(crate) service: f64,
    pub(crate) redis: f64,
    pub(crate) broker: f64,
}

impl Process {
    /// The median of each figure over the rows that have it.
    fn median(rows: &[&Row]) -> Option<Process> {
        let of = |figure: fn(&Process) -> Option<f64>| {
            median_of(rows, |row| figure(row.process.as_ref()?))
        };
        Some(Process {
            start_up_s: of(|process| process.start_up_s),
            peak_bytes: of(|process| Some(process.peak_bytes))?,
            budget_bytes: of(|process| Some(process.budget_bytes))?,
            threads: of(|process| Some(process.threads))?,
            descriptors: of(|process| Some(process.descriptors))?,
            rewritten_runs: of(|process| Some(process.rewritten_runs))?,
        })
    }
}

impl Idle {
    /// The median of each figure over the rows that have it.
    fn median(rows: &[&Row]) -> Option<Idle> {
        let of = |figure: fn(&Idle) -> f64| median_of(rows, |row| row.idle.as_ref().map(figure));
        Some(Idle {
            service: of(|idle| idle.service)?,
            redis: of(|idle| idle.redis)?,
            broker: of(|idle| idle.broker)?,
        })
    }
}

/// The result of one measurement. Figures that do not apply are `None`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) system: System,
    pub(crate) stage: Stage,
    /// Messages per second.
    pub(crate) rate: Option<f64>,
    /// Processor time in microseconds per message: of the copy or the service, of Redis, and of the
    /// broker.
    pub(crate) cpu_us: Option<f64>,
    pub(crate) redis_cpu_us: Option<f64>,
    pub(crate) broker_cpu_us: Option<f64>,
    /// Bytes of the store per waiting message.
    pub(crate) bytes: Option<f64>,
    pub(crate) lateness_ms: Option<Lateness>,
    /// The p50 of the messages that were due in the last fifth of a steady load. If it exceeds the
    /// p50 of the whole load, the lateness grows.
    pub(crate) last_p50_ms: Option<f64>,
    pub(crate) process: Option<Process>,
    pub(crate) idle: Option<Idle>,
    /// Share of all cores that other programs used, from 0 to 1.
    pub(crate) others: f64,
    pub(crate) verdict: Verdict,
}

/// Milliseconds from the due time to the arrival.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Lateness {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) greatest: f64,
}

impl Lateness {
    /// Computes the percentiles of ascending values. Returns `None` if there are no values.
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

    /// The median of each figure over the rows that have it.
    fn median(rows: &[&Row]) -> Option<Lateness> {
        let of = |figure: fn(&Lateness) -> f64| {
            median_of(rows, |row| row.lateness_ms.as_ref().map(figure))
        };
        Some(Lateness {
            p50: of(|late| late.p50)?,
            p99: of(|late| late.p99)?,
            p99_9: of(|late| late.p99_9)?,
            greatest: of(|late| late.greatest)?,
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

    /// The row of a copy that this process made.
    pub(crate) fn copy(system: System, usage: &Usage, verdict: Verdict) -> Row {
        let count = verdict.count as f64;
        let row = Row::new(system, Stage::Copy, usage, verdict);
        Row {
            rate: Some(count / usage.wall.as_secs_f64()),
            cpu_us: Some(usage.here.as_secs_f64() * 1e6 / count),
            ..row
        }
    }

    /// The row of a program that keeps its messages in a store.
    pub(crate) fn service(system: System, stage: Stage, usage: &Usage, verdict: Verdict) -> Row {
        let each = |cpu: std::time::Duration| Some(cpu.as_secs_f64() * 1e6 / verdict.count as f64);
        let row = Row::new(system, stage, usage, verdict);
        Row {
            cpu_us: each(usage.service),
            redis_cpu_us: each(usage.redis),
            ..row
        }
    }

    /// The row of an idle service.
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

    /// Removes the processor time of program and broker. Use this for code that runs in this
    /// process, or if the figure means nothing for the row.
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

    /// Adds the costs per message of two stages that follow each other.
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
            (System::NatsReading, _) => "NATS: reading: the floor of ingress".to_owned(),
            (System::NatsCopyOnce, _) => "NATS: copy, each with an id".to_owned(),
            (System::NatsFloor, _) => "NATS: copy: the floor".to_owned(),
            (System::Nats, Stage::Store) => "NATS: ingress, source to store".to_owned(),
            (System::Nats, Stage::Drain) => "NATS: drain, store to target, overdue".to_owned(),
            (System::Nats, Stage::Both) => "NATS: ingress and drain, together".to_owned(),
            (System::Nats, stage) => format!("NATS: {}", stage.name()),
            (System::Schedules, Stage::Store) => "NATS schedules: into the stream".to_owned(),
            (System::Encrypted, Stage::Store) => "encrypted: source to store".to_owned(),
            (System::Encrypted, _) => "encrypted: store to target, overdue".to_owned(),
            (System::Embedded, Stage::Drain) => "embedded: store to target, overdue".to_owned(),
            (System::Embedded, _) => "embedded: source to store".to_owned(),
            (system, stage) => format!("{}: {}", system.name(), stage.name()),
        }
    }

    /// The median of each figure over several runs. The verdict is the first one that shows a
    /// defect.
    fn median(rows: &[&Row]) -> Row {
        let of = |figure: fn(&Row) -> Option<f64>| median_of(rows, figure);
        Row {
            rate: of(|row| row.rate),
            cpu_us: of(|row| row.cpu_us),
            redis_cpu_us: of(|row| row.redis_cpu_us),
            broker_cpu_us: of(|row| row.broker_cpu_us),
            bytes: of(|row| row.bytes),
            lateness_ms: Lateness::median(rows),
            last_p50_ms: of(|row| row.last_p50_ms),
            process: Process::median(rows),
            idle: Idle::median(rows),
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
            System::InMemory => "held in memory",
            System::Postdate => "Postdate",
            System::Embedded => "embedded",
            System::Encrypted => "encrypted",
            System::Layout => "per-message layout",
            System::Asynq => "asynq",
            System::Redisson => "Redisson",
            System::BullMq => "BullMQ",
            System::NatsReading => "NATS, reading",
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
            Stage::Through { backlog, is_start } => {
                let part = if is_start { ", first 5 s" } else { "" };
                format!("through: {}{part}", backlog.name())
            }
            Stage::Burst => "burst: due in one millisecond".to_owned(),
            Stage::Meanwhile(rate) => format!("burst: {rate}/s of another shard, meanwhile"),
            Stage::Flood => "flood: into one route and out".to_owned(),
            Stage::BesideFlood { rate, is_worst } => {
                let part = if is_worst { "worst 3 s" } else { "meanwhile" };
                format!("flood: {rate}/s of another route, {part}")
            }
            Stage::Answers(rate) => format!("answers: {rate}/s cancels, until the answer"),
            Stage::BesideCancels(rate) => format!("answers: {rate}/s beside the cancels"),
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
            Stage::Spread {
                rate,
                partitions,
                is_start,
            } => {
                let part = if is_start { "the start" } else { "then" };
                format!("many: {rate}/s in {partitions} partitions, {part}")
            }
            Stage::Routes {
                rate,
                routes,
                is_start,
            } => {
                let part = if is_start { "the start" } else { "then" };
                format!("routes: {rate}/s over {routes} routes, {part}")
            }
            Stage::IdleRoutes(routes) => format!("idle: {routes} routes"),
            Stage::RouteBacklog(1) => "routes: backlog of a route alone".to_owned(),
            Stage::RouteBacklog(routes) => format!("routes: backlog of one of {routes}"),
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

/// Takes each measurement of the first run and returns its medians over all runs.
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

/// The median of a figure over the rows that have it.
fn median_of(rows: &[&Row], figure: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
    median(rows.iter().filter_map(|row| figure(row)).collect())
}

/// The median. For an even count it is the mean of the two middle values.
pub(crate) fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let (below, above) = (
        figures.get(figures.len().checked_sub(1)? / 2)?,
        figures.get(figures.len() / 2)?,
    );
    Some(f64::midpoint(*below, *above))
}
