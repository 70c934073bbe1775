//! Postdate: delayed delivery for Kafka.
#![allow(dead_code, reason = "the ground is laid before what stands on it; goes with the first role")]

mod admin;
mod broker;
mod cli;
mod clock;
mod config;
mod health;
mod limit;
mod metric;
mod model;
mod mutant;
mod run;
mod store;
mod task;
mod telemetry;

pub use cli::{Cli, Command, Reset, Run};
pub use config::{Config, Error as ConfigError};
pub use telemetry::Telemetry;

/// Runs the service until it is told to stop.
pub fn run(_config: &Config, _telemetry: &Telemetry) -> anyhow::Result<()> {
    anyhow::bail!("not wired yet")
}

/// Erases what the store keeps of a source topic that was recreated.
pub fn reset(_config: &Config, _reset: &Reset) -> anyhow::Result<()> {
    anyhow::bail!("not wired yet")
}
