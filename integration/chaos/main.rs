//! `make chaos`: a fleet of real processes on a real Kafka, or a real NATS, and a real Redis, under load, while processes and servers are killed, frozen,
//! emptied and put back in time, one by one and several at once; then all heals, and what arrived is held against what was sent. It goes on
//! for as long as it is told, and writes a report.
//!
//! Arguments: `for=30m` (also `s`, `h`), `broker=kafka|nats`, `brokers=1|3`, `mode=at-least-once|exactly-once`, `rate=500` messages a second, `seed=7`, `report=FILE`. The exit
//! code is 1 if a promise was broken. The same seed injects the same faults, though not at the same instants of the processes.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it runs in real time, prints what it does, and stops at what it cannot do"
)]

mod asked;
#[path = "../env/mod.rs"]
mod env;
mod fault;
mod fleet;
mod kafka;
mod nats;
mod report;
mod sender;
mod server;
mod storm;
mod tally;

use std::process::ExitCode;

use asked::Asked;
use storm::Storm;

fn main() -> ExitCode {
    let asked = match Asked::from(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(complaint) => {
            eprintln!("{complaint}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = Storm::begin(&asked).rage();
    let page = report::page(&asked, &outcome);
    println!("{page}");
    if let Some(path) = &asked.report {
        std::fs::write(path, &page).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    if outcome.is_kept(&asked) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
