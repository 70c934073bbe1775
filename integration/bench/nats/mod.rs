//! Measures Postdate on NATS, beside a copy of a stream, reading it, and the server's own
//! schedules.

mod client;
mod copy;
mod feeder;
mod schedules;
mod streams;

pub(crate) use streams::Streams;

use std::time::Duration;

use crate::ends::Ends as _;
use crate::fresh::find_memory;
use crate::ledger::{Verdict, judge};
use crate::meter::Usage;
use crate::row::{Row, Stage, System};
use crate::stage::Bench;

impl Bench<'_, Streams> {
    /// Runs all measurements on NATS, in the order of the report.
    pub(crate) fn nats(&self) -> Vec<Row> {
        let mut rows = self.nats_copies();
        let (ingress, pace) = self.alone(|| self.ingress());
        let drain = self.alone(|| self.drain(Some(pace)));
        let both = ingress.and(&drain);
        rows.extend([ingress, drain, both]);
        rows.extend(
            self.load
                .steady
                .rates
                .iter()
                .map(|rate| self.alone(|| self.steady(*rate))),
        );
        rows.extend(self.schedules());
        rows
    }

    /// Runs a measurement after deleting all streams of the server.
    fn alone<T>(&self, measure: impl FnOnce() -> T) -> T {
        self.ends.clear();
        measure()
    }

    /// Measures reading a stream, and copying it with and without ids.
    fn nats_copies(&self) -> Vec<Row> {
        self.progress.step("NATS: copy");
        let source = self.ends.make("copied");
        self.fill(&source, self.load.count, |_| ("postdate-after", 3_600_000));
        self.progress.phase("NATS: merely reading");
        let usage = self.used(|| copy::read(self.ends.addr(), &source, self.load.count));
        let read = Verdict {
            count: self.load.count,
            ..Verdict::default()
        };
        let mut rows = vec![Row {
            stage: Stage::Read,
            ..Row::copy(System::NatsReading, &usage, read)
        }];
        for (system, has_ids) in [(System::NatsCopyOnce, true), (System::NatsFloor, false)] {
            self.progress.phase(if has_ids {
                "NATS: copy, each message once"
            } else {
                "NATS: copy"
            });
            let target = self.ends.make("copy");
            let usage = self
                .used(|| copy::copy(self.ends.addr(), &source, &target, self.load.count, has_ids));
            rows.push(Row::copy(
                system,
                &usage,
                judge(self.ends, &target, self.sent(), |_| None).verdict,
            ));
            self.ends.remove(&target);
        }
        self.ends.remove(&source);
        rows
    }

    fn used(&self, work: impl FnOnce()) -> Usage {
        find_memory();
        let start = self.meter.read(Duration::ZERO);
        work();
        start.until(self.meter.read(Duration::ZERO))
    }
}
