//! Tests the README's promises on real servers, in one binary so that most tests share one Kafka
//! and one Redis.
//!
//! It starts the servers on free loopback ports. It fails with a clear message if `make servers`
//! has not fetched them.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::too_many_lines,
    clippy::type_complexity,
    clippy::unwrap_used,
    reason = "real servers run in real time and on threads of their own, a test may fail where the service may not, and a table is long"
)]

mod admin;
mod answers;
#[allow(
    dead_code,
    reason = "the bench's own: only what it refuses is looked at here"
)]
#[path = "bench/asked.rs"]
mod asked;
mod bad_input;
mod change;
mod changes;
mod clients;
mod cluster;
mod command;
mod console;
mod contract;
mod delivery;
mod demo;
mod deploy;
mod dialect;
mod embedded;
mod encryption;
mod env;
mod exactly_once;
mod fleet;
mod foreign;
mod hints;
mod init;
mod installations;
mod levels;
mod login;
mod memory;
mod moves;
mod nats;
mod nats_headers;
mod nats_limits;
mod nats_login;
mod nats_source;
mod nats_target;
mod new_cluster;
mod outage;
mod outcomes;
mod pause;
mod quota;
mod rate;
mod recurring;
mod redis_cluster;
mod redrive;
mod refused_loads;
mod reload;
mod reschedule;
mod restart;
mod rights;
mod routes;
mod rules_change;
mod secrets;
mod sentinel;
mod service;
mod shutdown;
mod signed_retries;
mod source;
mod store_copy;
mod traces;
mod upgrade;
mod verdict;
mod window;
#[allow(
    dead_code,
    unused_imports,
    reason = "the bench's own, like what is asked for"
)]
#[path = "bench/workload/mod.rs"]
mod workload;
