//! `make chaos`: runs real Postdate processes under load, injects faults, and compares what arrived
//! with the messages that were sent.
//!
//! The load runs against a real Redis and a real Kafka or NATS. The faults kill, freeze or stop
//! processes and servers, and empty Redis or roll it back. They come one by one, or two at once.
//! The run then stops all faults, waits until every message arrived, and prints a report.
//!
//! Arguments: `for=30m` (also `s`, `h`), `broker=kafka|nats`, `brokers=1|3`,
//! `mode=at-least-once|exactly-once`, `rate=500` (messages per second), `faults=broker` (only faults of
//! this part: timers, ingresses, redis or broker; or none at all), `redis=single|sentinel|cluster`, `failovers=50`
//! (of Redis, instead of `for`), `seed=7`, `report=FILE`.
//! The exit code is 1 if a promise was broken.
//! The same seed injects the same faults, but they hit the processes at different points of their
//! work.
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
mod store;
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
