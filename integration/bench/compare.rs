//! Compares Postdate with its rivals, which keep one Redis entry per message.
//!
//! Each ratio uses the figures of one run. With several runs it is the median of their ratios.

use serde::Serialize;

use crate::row::{Row, Stage, System, find, median};

/// The systems that Postdate is compared with.
pub(crate) const RIVALS: [System; 4] = [
    System::Layout,
    System::Asynq,
    System::Redisson,
    System::BullMq,
];

/// Reads one figure of a row.
pub(crate) type Figure = fn(&Row) -> Option<f64>;

#[derive(Serialize)]
pub(crate) struct Comparison {
    pub(crate) what: String,
    pub(crate) postdate: f64,
    pub(crate) rivals: Vec<Beside>,
}

/// A rival's value, and its ratio to Postdate's value.
#[derive(Serialize)]
pub(crate) struct Beside {
    pub(crate) system: System,
    pub(crate) value: f64,
    pub(crate) times: f64,
}

/// Compares every figure that Postdate and at least one rival have.
pub(crate) fn compare(rows: &[Row], runs: &[Vec<Row>]) -> Vec<Comparison> {
    let fixed: [(&str, Stage, Figure); 6] = [
        ("bytes of Redis per waiting message", Stage::Store, |row| {
            row.bytes
        }),
        ("Redis CPU us per message, in and out", Stage::Both, |row| {
            row.redis_cpu_us
        }),
        ("Redis CPU us per message, in", Stage::Store, |row| {
            row.redis_cpu_us
        }),
        ("Redis CPU us per message, out", Stage::Drain, |row| {
            row.redis_cpu_us
        }),
        ("messages/s, in", Stage::Store, |row| row.rate),
        ("messages/s, out", Stage::Drain, |row| row.rate),
    ];
    let fixed = fixed
        .into_iter()
        .map(|(what, stage, figure)| (what.to_owned(), stage, figure));
    let steady = rows
        .iter()
        .filter(|row| row.system == System::Postdate)
        .filter_map(|row| match row.stage {
            Stage::Steady(rate) => Some((rate, row.stage)),
            _ => None,
        });
    let steady = steady.flat_map(|(rate, stage)| {
        let cpu: Figure = |row| row.redis_cpu_us;
        let late: Figure = |row| row.lateness_ms.map(|late| late.p99);
        [
            (
                format!("Redis CPU us per message, steady {rate}/s"),
                stage,
                cpu,
            ),
            (format!("p99 lateness in ms, steady {rate}/s"), stage, late),
        ]
    });
    fixed
        .chain(steady)
        .filter_map(|(what, stage, figure)| {
            comparison(what, rows, runs, |row| {
                (row.stage == stage).then(|| figure(row))?
            })
        })
        .collect()
}

fn comparison(
    what: String,
    rows: &[Row],
    runs: &[Vec<Row>],
    figure: impl Fn(&Row) -> Option<f64>,
) -> Option<Comparison> {
    let of = |rows: &[Row], system: System| {
        rows.iter()
            .filter(|row| row.system == system)
            .find_map(&figure)
    };
    let postdate = of(rows, System::Postdate)?;
    let beside = |system: System| {
        let times = |run: &Vec<Row>| Some(of(run, system)? / of(run, System::Postdate)?);
        Some(Beside {
            system,
            value: of(rows, system)?,
            times: median(runs.iter().filter_map(times).collect())?,
        })
    };
    let rivals: Vec<Beside> = RIVALS.into_iter().filter_map(beside).collect();
    (!rivals.is_empty()).then_some(Comparison {
        what,
        postdate,
        rivals,
    })
}

/// The baseline of a measurement: reading, if the stage sends nothing on, and otherwise the copy on
/// the same broker.
fn floor(system: System, stage: Stage) -> (System, Stage) {
    match (system, stage) {
        (System::NatsReading, _) | (System::Nats, Stage::Store) => {
            (System::NatsReading, Stage::Read)
        }
        (System::Nats | System::NatsCopyOnce | System::NatsFloor | System::Schedules, _) => {
            (System::NatsFloor, Stage::Copy)
        }
        _ => (System::Floor, Stage::Copy),
    }
}

/// The ratio of a figure to the same figure of the baseline.
pub(crate) fn of_the_floor(
    runs: &[Vec<Row>],
    system: System,
    stage: Stage,
    figure: Figure,
) -> Option<f64> {
    let (below, base) = floor(system, stage);
    let of = |run: &Vec<Row>| {
        Some(figure(find(run, system, stage)?)? / figure(find(run, below, base)?)?)
    };
    median(runs.iter().filter_map(of).collect())
}
