//! Compares a measurement with another one of the same run.
//!
//! | measurement | compared with |
//! |---|---|
//! | a steady load | the same load held in memory |
//! | the start of a backlog | the whole backlog |
//! | a load beside waiting messages | the same load on an empty store |
//! | burst | drain |
//! | the backlog of one of many routes | that of a route alone |
//! | exactly-once | at-least-once |

use serde::Serialize;

use crate::compare::Figure;
use crate::row::{Delivery, Depth, Row, Stage, System, find, median};

#[derive(Serialize)]
pub(crate) struct Held {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) against: String,
    pub(crate) base: f64,
    /// The median of the ratios of all runs.
    pub(crate) times: f64,
}

pub(crate) fn held(rows: &[Row], runs: &[Vec<Row>]) -> Vec<Held> {
    let pair = |row: &Row| -> Option<Held> {
        let p99: Figure = |row| row.lateness_ms.map(|late| late.p99);
        let (unit, base, figure): (&str, Stage, Figure) = match row.stage {
            Stage::Steady(_) if row.system == System::Postdate => ("p99 ms", row.stage, p99),
            Stage::Beside(Depth {
                rate, waiting: 1.., ..
            }) => (
                "p99 ms",
                Stage::Beside(Depth {
                    rate,
                    waiting: 0,
                    settled: false,
                }),
                p99,
            ),
            Stage::Through {
                backlog,
                is_start: true,
            } => (
                "messages/s",
                Stage::Through {
                    backlog,
                    is_start: false,
                },
                |row| row.rate,
            ),
            Stage::Burst => ("messages/s", Stage::Drain, |row| row.rate),
            Stage::RouteBacklog(2..) => ("messages/s", Stage::RouteBacklog(1), |row| row.rate),
            Stage::SeenDrain(Delivery::ExactlyOnce) => (
                "messages/s",
                Stage::SeenDrain(Delivery::AtLeastOnce),
                |row| row.rate,
            ),
            Stage::SeenSteady(Delivery::ExactlyOnce, rate) => (
                "p99 ms",
                Stage::SeenSteady(Delivery::AtLeastOnce, rate),
                p99,
            ),
            _ => return None,
        };
        let system = match row.stage {
            Stage::Steady(_) => System::InMemory,
            _ => System::Postdate,
        };
        let below = find(rows, system, base)?;
        let of = |run: &Vec<Row>, system, stage| figure(find(run, system, stage)?);
        let times = runs
            .iter()
            .filter_map(|run| Some(of(run, row.system, row.stage)? / of(run, system, base)?));
        Some(Held {
            what: format!("{unit}, {}", row.name()),
            value: figure(row)?,
            against: below.name(),
            base: figure(below)?,
            times: median(times.collect())?,
        })
    };
    rows.iter().filter_map(pair).collect()
}
