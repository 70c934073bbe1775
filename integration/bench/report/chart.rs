//! Selects the figures and colours of each plot.

use super::svg::{Axes, Bar, Line, bars, panel, short};
use crate::compare::{Figure, of_the_floor};
use crate::row::{Lateness, Row, Stage, System, find};

/// The medians, and the runs behind them.
#[derive(Clone, Copy)]
pub(super) struct Figures<'a> {
    pub(super) rows: &'a [Row],
    pub(super) runs: &'a [Vec<Row>],
}

impl Figures<'_> {
    /// Draws one bar for each row that has the figure, labelled with its ratio to the baseline if
    /// there is one.
    pub(super) fn bars(self, figure: Figure, unit: &str) -> Option<String> {
        let drawn = self.rows.iter().filter_map(|row| {
            let value = figure(row)?;
            let times = of_the_floor(self.runs, row.system, row.stage, figure);
            let of_floor =
                times.map_or_else(String::new, |times| format!(", {times:.2} of the floor"));
            let (parts, text) = (
                vec![(row.system.class(), value)],
                format!("{}{unit}{of_floor}", short(value)),
            );
            Some(Bar {
                label: row.name(),
                parts,
                text,
                range: self.range(row, figure),
            })
        });
        some_bars(&drawn.collect::<Vec<_>>())
    }

    /// Draws the processor time by program, Redis and broker. `scale` returns the factor from
    /// microseconds per message to `unit`, or `None` to leave out the row.
    pub(super) fn cpu(self, scale: fn(&Row) -> Option<f64>, unit: &str) -> Option<String> {
        let drawn = self.rows.iter().filter_map(|row| {
            let factor = scale(row)?;
            let parts = [
                ("program", row.cpu_us),
                ("redis", row.redis_cpu_us),
                ("broker", row.broker_cpu_us),
            ];
            let parts: Vec<_> = parts
                .into_iter()
                .filter_map(|(class, value)| Some((class, value? * factor)))
                .collect();
            let values: Vec<_> = parts.iter().map(|(_, value)| short(*value)).collect();
            let text = format!("{} {unit}", values.join(" + "));
            (!parts.is_empty()).then(|| Bar {
                label: row.name(),
                parts,
                text,
                range: None,
            })
        });
        some_bars(&drawn.collect::<Vec<_>>())
    }

    /// Draws one panel for each percentile, all with the same axes. Each panel has the name of its
    /// percentile.
    pub(super) fn lateness(self) -> Vec<(&'static str, String)> {
        let of = |figure: fn(&Lateness) -> f64| {
            let points = |system: System| {
                self.steady(system)
                    .map(|(rate, late)| (rate, figure(late).max(0.5)))
                    .collect::<Vec<_>>()
            };
            let line = |system: System| Line {
                class: system.class(),
                name: system.name().to_owned(),
                points: points(system),
            };
            self.systems().into_iter().map(line).collect::<Vec<_>>()
        };
        let panels = [
            ("p50", of(|late| late.p50)),
            ("p99", of(|late| late.p99)),
            ("p99.9", of(|late| late.p99_9)),
        ];
        let points = || {
            panels
                .iter()
                .flat_map(|(_, lines)| lines)
                .flat_map(|line| &line.points)
        };
        let mut rates: Vec<f64> = points().map(|(rate, _)| *rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        let highest = points().map(|(_, value)| *value).fold(10.0, f64::max);
        if rates.is_empty() {
            return Vec::new();
        }
        // Leave room for the label above the highest point.
        let axes = Axes {
            x: rates,
            y: (0.5, highest * 2.0),
        };
        panels
            .iter()
            .map(|(name, lines)| {
                (
                    *name,
                    panel(
                        lines,
                        &axes,
                        "messages a second",
                        "milliseconds after the due",
                    ),
                )
            })
            .collect()
    }

    /// The systems that have a lateness.
    pub(super) fn systems(self) -> Vec<System> {
        let mut systems: Vec<System> = Vec::new();
        for row in self.rows.iter().filter(|row| row.lateness_ms.is_some()) {
            if !systems.contains(&row.system) {
                systems.push(row.system);
            }
        }
        systems
    }

    fn steady(&self, system: System) -> impl Iterator<Item = (f64, &Lateness)> {
        self.rows
            .iter()
            .filter(move |row| row.system == system)
            .filter_map(|row| match row.stage {
                Stage::Steady(rate) => Some((rate as f64, row.lateness_ms.as_ref()?)),
                _ => None,
            })
    }

    /// The least and the greatest value, if there are several runs.
    fn range(self, row: &Row, figure: Figure) -> Option<(f64, f64)> {
        let of_runs: Vec<f64> = self
            .runs
            .iter()
            .filter_map(|run| find(run, row.system, row.stage))
            .filter_map(figure)
            .collect();
        let (least, most) = (
            of_runs.iter().copied().reduce(f64::min)?,
            of_runs.iter().copied().reduce(f64::max)?,
        );
        (of_runs.len() > 1).then_some((least, most))
    }
}

fn some_bars(drawn: &[Bar]) -> Option<String> {
    (!drawn.is_empty()).then(|| bars(drawn))
}

impl System {
    /// The CSS class. A system has the same colour in every plot.
    pub(super) fn class(self) -> &'static str {
        match self {
            System::PlainCopy => "plain",
            System::Floor | System::InMemory => "floor",
            System::Postdate | System::Encrypted => "postdate",
            System::Embedded => "embedded",
            System::Layout => "layout",
            System::Asynq => "asynq",
            System::Redisson => "redisson",
            System::BullMq => "bullmq",
            System::NatsReading | System::NatsCopyOnce => "plain",
            System::NatsFloor => "floor",
            System::Nats => "nats",
            System::Schedules => "schedules",
        }
    }
}
