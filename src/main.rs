//! The process: parse, load, install, run, and say how it ended. Decides nothing.

use clap::Parser;
use postdate::{Cli, Command, Config, ConfigError, Telemetry};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell if this fails.
            let _ = writeln!(std::io::stderr(), "postdate: {}", format!("{error:#}").trim_end());
            ExitCode::from(if error.is::<ConfigError>() { WRONG_USAGE } else { FAILED })
        }
    }
}

fn execute(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(run) => {
            let (config, telemetry) = prepare(&run.config)?;
            postdate::run(&config, &telemetry)
        }
        Command::Reset(reset) => {
            let (config, _telemetry) = prepare(&reset.config)?;
            config.check_source(&reset.route, &reset.topic)?;
            postdate::reset(&config, &reset)
        }
    }
}

fn prepare(file: &Path) -> anyhow::Result<(Config, Telemetry)> {
    let config = Config::load(file)?;
    let telemetry = Telemetry::install(&config)?;
    Ok((config, telemetry))
}
