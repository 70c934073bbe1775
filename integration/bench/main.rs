//! `make bench`: measures the service and a plain copy, its baseline, in the same run.
//!
//! The speed of a machine can vary by half between hours, so compare only figures of the same run.
//!
//! A number as argument sets how many messages the rates are measured over.
//! Words select the measurements: `copy`, `ingress`, `drain`, `through`, `encrypted`, `embedded`, `steady`,
//! `burst`, `answers`, `exact`, `fleet`, `idle`, `many`, `routes`, `flood`,
//! `deep`, `layout`, `asynq`, `redisson`, `bullmq`, `nats`.
//! Without such a word, all measurements run except `deep`, which takes minutes, and `nats`.
//! `workload=FILE` sets the messages, `waiting=50000000` sets the depth, and `runs=3` reports the
//! median of three runs.
//!
//! No time is asserted. The exit code is 1 if a message was lost, doubled, early or changed.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it measures real time, prints a table, and stops at what it cannot measure"
)]

mod answers;
mod asked;
mod burst;
mod compare;
mod copy;
mod deep;
mod embedded;
mod ends;
#[path = "../env/mod.rs"]
mod env;
mod exact;
mod feeder;
mod fleet;
mod flood;
mod fresh;
mod held;
mod idle;
mod in_memory;
mod layout;
mod ledger;
mod many;
mod meter;
mod nats;
mod program;
mod progress;
mod raw;
mod report;
mod rival;
mod route;
mod routes;
mod row;
mod stage;
mod table;
mod through;
mod topics;
mod watch;
mod workload;

use std::process::ExitCode;
use std::time::Duration;

use asked::Asked;
use env::{Kafka, Nats, Redis};
use meter::Meter;
use nats::Streams;
use program::{LIBRARIES, Program};
use progress::Progress;
use report::Results;
use row::Row;
use stage::Bench;
use topics::Topics;

/// The same allocator as the service, because it affects the cost of a copy.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Longer than any step takes at a tenth of the usual speed.
const LIMIT: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let (asked, programs) = match prepare() {
        Ok(prepared) => prepared,
        Err(complaint) => {
            eprintln!("{complaint}");
            return ExitCode::FAILURE;
        }
    };
    let results = Results::new(&asked, measure(&asked, &programs));
    results.write();
    println!("{}\n", results.conditions());
    table::print(&results.rows, &results.runs);
    table::print_idle(&results.rows);
    table::print_comparisons(&results.comparisons);
    table::print_strained(&results.rows, &results.held);
    println!("{}\n", report::LEGEND);
    report::tell();
    let kept = results.are_kept();
    println!(
        "{}",
        if kept {
            "Nothing was lost, doubled, early or changed."
        } else {
            "A PROMISE WAS BROKEN: see the last column."
        }
    );
    if kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Parses the command line and builds the programs of the selected libraries. A library whose
/// program does not build is left out unless it was named.
fn prepare() -> Result<(Asked, Vec<Program>), String> {
    let mut asked = Asked::from(std::env::args().skip(1))?;
    let mut programs = Vec::new();
    let wanted = LIBRARIES.map(|(_, name)| (asked.wants(name), asked.insists_on(name)));
    for ((system, name), (is_wanted, is_named)) in LIBRARIES.into_iter().zip(wanted) {
        if !is_wanted {
            continue;
        }
        match Program::build(system, name, &report::folder()) {
            Ok(program) => programs.push(program),
            Err(complaint) if is_named => {
                return Err(format!("{name} cannot be measured: {complaint}"));
            }
            Err(complaint) => {
                eprintln!("bench: {name} is left out: {complaint}");
                asked.leave_out(name);
            }
        }
    }
    Ok((asked, programs))
}

/// Returns the rows of each run. It writes the results after every measurement, so a later failure
/// loses no rows.
fn measure(asked: &Asked, programs: &[Program]) -> Vec<Vec<Row>> {
    let (redis, progress) = (Redis::start(), Progress::new(asked.steps()));
    let (kafka, nats) = (
        asked.wants_kafka().then(Kafka::start_fast),
        asked.wants("nats").then(Nats::start),
    );
    let load = &asked.load;
    let mut runs: Vec<Vec<Row>> = Vec::new();
    for _ in 0..asked.runs {
        let mut rows = Vec::new();
        let mut note = |more: Vec<Row>| {
            if more.is_empty() {
                return;
            }
            rows.extend(more);
            Results::new(asked, runs.iter().chain([&rows]).cloned().collect()).write();
        };
        if let Some(kafka) = &kafka {
            let (topics, broker) = (Topics::new(kafka, load.partitions), || kafka.cpu());
            let meter = Meter {
                broker: &broker,
                redis: &redis,
            };
            run(
                asked,
                &Bench {
                    ends: &topics,
                    redis: &redis,
                    meter,
                    load,
                    progress: &progress,
                    is_encrypted: false,
                },
                programs,
                &mut note,
            );
        }
        if let Some(nats) = &nats {
            let (streams, broker) = (Streams::new(nats, load.partitions), || nats.cpu());
            let meter = Meter {
                broker: &broker,
                redis: &redis,
            };
            note(
                Bench {
                    ends: &streams,
                    redis: &redis,
                    meter,
                    load,
                    progress: &progress,
                    is_encrypted: false,
                }
                .nats(),
            );
        }
        runs.push(rows);
    }
    runs
}

fn run(asked: &Asked, bench: &Bench<'_>, programs: &[Program], note: &mut impl FnMut(Vec<Row>)) {
    if asked.wants("copy") {
        note(bench.copies());
    }
    let ingress = asked.wants("ingress").then(|| bench.ingress());
    let pace = ingress.as_ref().map(|(_, pace)| *pace);
    let ingress = ingress.map(|(row, _)| row);
    note(ingress.iter().cloned().collect());
    let drain = asked.wants("drain").then(|| bench.drain(pace));
    let both = ingress
        .as_ref()
        .zip(drain.as_ref())
        .map(|(ingress, drain)| ingress.and(drain));
    note(drain.into_iter().chain(both).collect());
    if asked.wants("through") {
        note(bench.through());
    }
    if asked.wants("encrypted") {
        let bench = Bench {
            is_encrypted: true,
            ..*bench
        };
        note(vec![bench.ingress().0]);
        note(vec![bench.drain(pace)]);
    }
    if asked.wants("embedded") {
        note(vec![bench.embedded_ingress()]);
        note(vec![bench.embedded_drain()]);
    }
    run_timely(asked, bench, note);
    if asked.wants("deep") {
        note(bench.deep());
    }
    if asked.wants("layout") {
        note(bench.layout());
    }
    for program in programs {
        note(bench.library(program));
    }
}

/// Runs the measurements of lateness and of the idle service.
fn run_timely(asked: &Asked, bench: &Bench<'_>, note: &mut impl FnMut(Vec<Row>)) {
    if asked.is_timely() {
        bench.warm_up();
    }
    if asked.wants("steady") {
        asked
            .load
            .steady
            .rates
            .iter()
            .for_each(|rate| note(vec![bench.steady(*rate)]));
        let greatest = asked.load.steady.rates.iter().max();
        note(
            greatest
                .map(|rate| bench.in_memory(*rate))
                .into_iter()
                .collect(),
        );
    }
    if asked.wants("burst") && asked.load.partitions > 1 {
        note(bench.burst());
    }
    if asked.wants("answers") {
        note(bench.answers());
    }
    if asked.wants("exact") {
        note(bench.exact());
    }
    if asked.wants("fleet") {
        note(bench.fleet());
    }
    if asked.wants("idle") {
        note(vec![bench.idle(idle::SHARDS)]);
    }
    if asked.wants("many") {
        note(bench.many());
    }
    if asked.wants("routes") {
        note(bench.routes());
    }
    if asked.wants("flood") {
        note(bench.flood());
    }
}
