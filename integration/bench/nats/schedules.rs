//! Measures the schedules of the NATS server itself with the same messages.
//!
//! Each message has its own subject, and the server publishes it to the target at its time.
//! Schedules have no retries, dead letters or order, and the stream stores them uncompressed.

use std::time::Duration;

use async_nats::Subject;
use serde_json::json;
use time::OffsetDateTime;

use super::feeder::Feeder;
use super::streams::{Streams, stamp};
use crate::ends::{Ends as _, Feed as _};
use crate::env::now_ms;
use crate::feeder::steadily;
use crate::ledger::Verdict;
use crate::route::wait_for;
use crate::row::{Lateness, Row, Stage, System};
use crate::stage::{Bench, LOOK};
use crate::workload::Message;

impl Bench<'_, Streams> {
    /// Measures storing, and a steady load at each rate that the server can store.
    pub(super) fn schedules(&self) -> Vec<Row> {
        let mut rows = vec![self.schedules_store()];
        rows.extend(
            self.load
                .steady
                .rates
                .iter()
                .filter_map(|rate| self.schedules_steady(*rate)),
        );
        rows
    }

    fn schedules_store(&self) -> Row {
        self.progress.step("NATS schedules: into the stream");
        let (stream, count, now) = (self.schedule_stream(), self.load.count, now_ms());
        let start = self.meter.read(Duration::ZERO);
        let feeder = Feeder::new(self.ends.addr(), Vec::new(), &self.load.message);
        for number in 0..count {
            schedule(&feeder, &stream, number, now + self.load.delay.of(number));
            if number % 1_024 == 0 {
                self.progress.at(number, count);
            }
        }
        feeder.finish();
        let usage = start.until(self.meter.read(Duration::ZERO));
        let info = self.ends.info(&stream, &json!({}));
        let held = info["state"]["messages"]
            .as_u64()
            .map_or(0, |messages| messages as usize);
        let bytes = info["state"]["bytes"]
            .as_u64()
            .map(|bytes| bytes as f64 / count as f64);
        self.ends.remove(&stream);
        let verdict = Verdict {
            count,
            lost: count.saturating_sub(held),
            ..Verdict::default()
        };
        let row = Row::service(System::Schedules, Stage::Store, &usage, verdict)
            .within(usage.wall.as_secs_f64());
        Row {
            bytes,
            cpu_us: None,
            redis_cpu_us: None,
            ..row
        }
    }

    /// Measures a steady load. Returns `None` if the server stores less than nine tenths of the
    /// rate.
    fn schedules_steady(&self, rate: usize) -> Option<Row> {
        self.progress
            .step(&format!("NATS schedules: steady load, {rate}/s"));
        let (stream, steady) = (self.schedule_stream(), &self.load.steady);
        let all = rate * steady.lasts.as_secs() as usize;
        let start = self.meter.read(Duration::ZERO);
        let feeder = Feeder::new(self.ends.addr(), Vec::new(), &self.load.message);
        let dues = steadily(
            rate,
            steady,
            |number, due| schedule(&feeder, &stream, number, due),
            |sent| self.progress.at(sent, all),
        );
        feeder.finish();
        if dues.len() < all / 10 * 9 {
            self.progress.phase(&format!(
                "NATS schedules: {rate}/s is more than they can do, and is left out"
            ));
            self.ends.remove(&stream);
            return None;
        }
        let target = format!("{stream}.out");
        let arrived = || {
            let info = self
                .ends
                .info(&stream, &json!({ "subjects_filter": target }));
            info["state"]["subjects"][&target]
                .as_u64()
                .map_or(0, |messages| messages as usize)
        };
        wait_for(self.progress, dues.len(), LOOK, arrived);
        let usage = start.until(self.meter.read(Duration::ZERO));
        let (verdict, lateness) = self.judge_schedules(&stream, &target, &dues);
        self.ends.remove(&stream);
        let row = Row::service(System::Schedules, Stage::Steady(rate), &usage, verdict);
        Some(Row {
            lateness_ms: Lateness::of(&lateness),
            cpu_us: None,
            redis_cpu_us: None,
            ..row
        })
    }

    /// The verdict, and the lateness of each message in milliseconds, ascending.
    fn judge_schedules(&self, stream: &str, target: &str, dues: &[i64]) -> (Verdict, Vec<i64>) {
        let (mut came, mut lateness) = (vec![0_usize; dues.len()], Vec::new());
        let mut verdict = Verdict {
            count: dues.len(),
            ..Verdict::default()
        };
        self.ends.each(stream, self.ends.held(stream), |message| {
            if message.subject.as_str() != target {
                return;
            }
            match Message::number(&message.payload).filter(|number| *number < dues.len()) {
                Some(number) => {
                    came[number] += 1;
                    let late = stamp(message) - dues[number];
                    verdict.early += usize::from(late < 0);
                    lateness.push(late);
                }
                None => verdict.changed += 1,
            }
        });
        verdict.lost = came.iter().filter(|times| **times == 0).count();
        verdict.doubled = came.iter().map(|times| times.saturating_sub(1)).sum();
        lateness.sort_unstable();
        (verdict, lateness)
    }

    fn schedule_stream(&self) -> String {
        self.ends
            .make_with("schedules", &json!({ "allow_msg_schedules": true }))
    }
}

fn schedule(feeder: &Feeder<'_>, stream: &str, number: usize, due: i64) {
    let mut headers = feeder.headers(number);
    headers.insert("Nats-Schedule", format!("@at {}", rfc3339(due)));
    headers.insert("Nats-Schedule-Target", format!("{stream}.out"));
    feeder.send_to(
        Subject::from(format!("{stream}.at.{number}")),
        number,
        headers,
    );
}

fn rfc3339(millis: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000)
        .expect("a time of this age");
    let (date, (hour, minute, second, milli)) = (at.date(), at.to_hms_milli());
    format!(
        "{}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z",
        date.year(),
        u8::from(date.month()),
        date.day()
    )
}
