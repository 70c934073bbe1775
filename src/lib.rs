//! # Start here
//!
//! Postdate adds delayed delivery to Kafka. A producer sets a header (`postdate-after: 30m`); the message waits in Redis; at its due time it
//! arrives on its target topic.
//!
//! ## The life of a message
//! ```text
//!   source topic                                                                  target topic
//!        |  broker/kafka/source                                 broker/kafka/target  ^
//!        v                                                                           |
//!   +- ingress ---------------------------+      +- timer -----------------------------------------+
//!   | admit    header -> due, or a reason |      | claimer     leases shards                       |
//!   | batch    messages -> runs, a slice  |      | loader      runs -> memory, ahead of need       |
//!   |          each; what is thin is far  |      | rewriter    thin runs -> few, huge hours split  |
//!   |                                     |      | schedule    what is due next, as a pair (C, W)  |
//!   | writer   compare-and-append (I2)    |      | dispatcher  claim -> hand over -> delivered     |
//!   | commit   only what is stored (I1)   |      | retrier     back through the source, or dead    |
//!   +------------------|------------------+      +-----------------^-------------------------------+
//!                      |             store/redis, lua/             |
//!                      +----------------> runs, W, (C, W) ---------+
//! ```
//! A *shard* is one source partition of one route. Its state lies in one hash slot of Redis: the *watermark* W (next source offset to store),
//! *runs* of messages by *slice* (far, day, hour, minute: the outer levels of one timing wheel), and two pairs (C, W): *claimed*, written
//! before messages are handed over, and *delivered*, written after. **A message is done if and only if its offset lies before W and its (due, offset)
//! is not past C, of the delivered pair.** The log is the
//! truth: whatever the store forgets is read again from the source.
//!
//! Any number of processes share the shards: by leases, of which `timer/placement` says whose they are to be.
//!
//! Where a route delivers exactly once, what is handed over goes in transactions of the broker, along with the pair that says so: `timer/exactly`
//! over the port `broker/transact`. What the store knows of it then only saves work.
//!
//! ## Invariants, cited by number
//! - **I1** A source offset is committed only after the watermark covers it.
//! - **I2** The watermark moves only by compare-and-append, together with the runs it covers.
//! - **I3** A run is immutable and sorted by (due, offset); its name is never used twice.
//! - **I4** The delivered pair covers a message only after its target's acknowledgement, its dead letter, its way back through the source, or
//!   its cancel.
//! - **I5** A claim with an old lease token changes nothing, and claimed never moves back.
//! - **I6** Every buffer has a bound in `limit.rs`.
//!
//! And what is absent: ingress never produces to a broker; no role knows Redis or Kafka; nothing but `TaskGroup` starts a thread; nothing but
//! `clock.rs` reads the time of day; no message has a task, a lock, a log line or a Redis call of its own.
//!
//! ## Layers: a file imports its own folder and lower rows
//! | row | modules |
//! |---|---|
//! | shell | `cli` `config` `role` `command` `telemetry` `testing` |
//! | roles | `ingress` `timer` `admin` |
//! | adapters | `store::redis` `store::embedded` `broker::kafka` `broker::nats` |
//! | ports | `store` `broker` `task` `metric` `trace` `health` `clock` |
//! | algorithms | `run` `wheel` `schedule` |
//! | domain | `model` `limit` |
//!
//! ## Reading path
//! `role/mod.rs` (the wiring) -> `ingress/mod.rs`, `ingress/intake.rs` -> `store/mod.rs` with `lua/append.lua` -> `schedule/mod.rs` ->
//! `timer/dispatcher.rs` with `lua/advance.lua`. A new broker is a folder beside `broker/kafka` and lines in `role/` and `config/`; the
//! conformance suite in `testing/broker/contract` says when it is done.

#[macro_use]
mod testing;

mod admin;
mod broker;
mod cli;
mod clock;
mod command;
mod config;
mod health;
mod ingress;
mod limit;
mod metric;
mod model;
mod retry;
mod role;
mod run;
mod schedule;
mod store;
mod task;
mod telemetry;
mod timer;
mod trace;
mod wheel;

pub use cli::{
    CheckArgs, Cli, Command, CompletionArgs, DemoArgs, LedgerArgs, PendingArgs, ResetArgs, RunArgs,
    SendArgs,
};
pub use command::{Outcome, Refused};
pub use config::{Config, Error as ConfigError};
pub use telemetry::Telemetry;

/// Runs the service until it is told to stop.
pub fn run(config: &Config, telemetry: &Telemetry) -> anyhow::Result<()> {
    role::serve(config, telemetry)
}

/// Shows the service at work.
pub fn demo(demo: &DemoArgs) -> anyhow::Result<()> {
    command::demo(demo)
}

/// Erases what the store keeps of a source topic that was recreated.
pub fn reset(config: &Config, reset: &ResetArgs) -> anyhow::Result<()> {
    command::reset(config, reset)
}

/// Tells what waits, or where one message does.
pub fn pending(config: &Config, pending: &PendingArgs) -> anyhow::Result<Outcome> {
    command::pending(config, pending)
}

/// Tells what became of what was accepted, and whether it adds up.
pub fn ledger(config: &Config, ledger: &LedgerArgs) -> anyhow::Result<Outcome> {
    command::ledger(config, ledger)
}

/// Sends one delayed message, or cancels one.
pub fn send(config: &Config, send: &SendArgs) -> anyhow::Result<Outcome> {
    command::send(config, send)
}

/// Tells what would work, and what would not.
pub fn check(config: &Config, check: &CheckArgs) -> anyhow::Result<Outcome> {
    command::check(config, check)
}

/// Prints the completion script of a shell.
pub fn complete(completion: &CompletionArgs) -> anyhow::Result<Outcome> {
    command::complete(completion)
}

/// Conformance suites for the integration tests, which have the servers.
#[cfg(feature = "test-support")]
pub mod test_support {
    pub use crate::broker::kafka::{kafka_contract, kafka_outage_contract};
    pub use crate::broker::nats::{nats_contract, nats_outage_contract};
}
