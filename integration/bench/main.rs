//! `make bench`: what the service does, beside its floor (a plain copy), in one run - the speed of a machine drifts by half between hours,
//! so that figures of different runs say nothing about each other.
//!
//! An argument that is a number sets how many messages the rates are measured over; words (`copy`, `ingress`, `drain`, `embedded`, `steady`) choose what
//! is measured, for whoever works on one of them. Nothing is asserted of a time; but where a message was lost, doubled, early or changed, the
//! exit code is 1.
#![allow(
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it measures real time, prints a table, and stops at what it cannot measure"
)]

mod copy;
mod embedded;
#[path = "../env/mod.rs"]
mod env;
mod ledger;
mod meter;
mod raw;
mod route;
mod stage;
mod table;
mod topics;
mod workload;

use std::process::ExitCode;
use std::time::Duration;

use env::{Kafka, Redis};
use meter::Meter;
use stage::Bench;
use table::Row;
use topics::{PARTITIONS, Topics};

/// As the program that is measured: what a copy costs depends on it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Longer than anything takes at a tenth of the speed seen.
const LIMIT: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let asked = Asked::from(std::env::args().skip(1));
    let (kafka, redis) = (Kafka::start_fast(), Redis::start());
    let topics = Topics::new(&kafka);
    let bench = Bench { topics: &topics, redis: &redis, meter: Meter { kafka: &kafka, redis: &redis }, count: asked.count };
    let copies = asked.wants("copy").then(|| bench.copies());
    let ingress = asked.wants("ingress").then(|| bench.ingress());
    let drain = asked.wants("drain").then(|| bench.drain(ingress.as_ref().map(|(_, pace)| *pace)));
    let embedded = asked.wants("embedded").then(|| [bench.embedded_ingress(), bench.embedded_drain()]);
    let steady = asked.wants("steady").then(|| bench.steady());

    println!("{} messages of 191 bytes, 12 bytes of key and two headers, over {PARTITIONS} partitions; acks=all, idempotent.", asked.count);
    println!(
        "The service is a process of its own, built as it is shipped; it shares this machine with load, Kafka and Redis: {}.\n",
        machine()
    );
    let both = ingress.as_ref().zip(drain.as_ref()).map(|((ingress, _), drain)| ingress.and(drain, "ingress and drain, together"));
    let (ingress, lateness) = (ingress.map(|(row, _)| row), steady.as_ref().map(|(_, lateness)| lateness.clone()));
    let rows: Vec<Row> = copies
        .into_iter()
        .flatten()
        .chain(ingress)
        .chain(drain)
        .chain(both)
        .chain(embedded.into_iter().flatten())
        .chain(steady.map(|(row, _)| row))
        .collect();
    table::print(&rows);
    if let Some(lateness) = lateness {
        table::print_lateness(&lateness);
    }
    println!("{LEGEND}\n");
    let kept = rows.iter().all(|row| row.verdict.is_kept());
    println!("{}", if kept { "Nothing was lost, doubled, early or changed." } else { "A PROMISE WAS BROKEN: see the last column." });
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What to measure.
struct Asked {
    /// Messages of each rate.
    count: usize,
    /// By their first words; none: all of them.
    stages: Vec<String>,
}

impl Asked {
    /// Words that begin with a dash are cargo's own.
    fn from(words: impl Iterator<Item = String>) -> Asked {
        let (counts, stages): (Vec<_>, Vec<_>) =
            words.filter(|word| !word.starts_with('-')).partition(|word| word.parse::<usize>().is_ok());
        let count = counts.last().and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
        Asked { count, stages }
    }

    fn wants(&self, stage: &str) -> bool {
        self.stages.is_empty() || self.stages.iter().any(|asked| asked == stage)
    }
}

const LEGEND: &str = "\
Speeds depend on the machine's day, and on what else it does: compare ratios, and only of one run.
- copy: consume, produce, nothing else, as fast as the client's Rust crate lets (poll and send), and as fast as librdkafka can (batches from
  its queue, a topic's handle, headers unparsed): the floor.
- ingress: the service as `ingress` alone, dues over 24 hours; from the birth of the shards until the store's watermarks stand at the source's
  end. Judged by what the store counts as pending, and by a target where nothing may be yet.
- drain: the service as `timer` alone, started when everything is overdue; from its leases to the broker's stamp of the last record.
- embedded: the same with the embedded store, by the whole service in one process; every batch is on the disk (fsync) before it counts. Its bytes are
  those of the folder's files, journal and all.
- steady: the whole service, delays of 2 to 10 seconds; its processor time includes all waiting. After its due: by the broker's stamp
  (LogAppendTime of the target) against the due that was sent.
- CPU: of the copy or the service, microseconds a message, user and system, from /proc/PID/stat; Redis likewise. Bytes: of Redis' used_memory with
  the messages less without, or of the folder, a waiting message. Others' CPU: the part of all cores that went to programs which are not of this run.
- arrived: by numbers in the keys, none lost, doubled, changed, dead-lettered, or stamped before its due.";

/// Of what others would have to know to compare.
fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("an unknown CPU", |(_, model)| model);
    format!("{} x {model}", std::thread::available_parallelism().map_or(1, usize::from))
}
