//! The process: parses the command line, loads the configuration, runs the command, and exits with
//! its code.

use clap::Parser;
use postdate::{
    Access, Cli, Command, Config, ConfigError, Outcome, Refused, ServiceArgs, StoreAction,
    Telemetry,
};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Options that jemalloc reads at its start. By default each thread of a large machine has an arena
/// of its own, which keeps freed memory for ten seconds: memory that the budget does not know (G6).
/// The first word of a slice is the address of its text, as jemalloc expects.
#[allow(
    unsafe_code,
    reason = "jemalloc reads its options from a symbol of this name"
)]
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: &[u8] = b"narenas:4,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;
const NOT_FOUND: u8 = 3;
const TOO_LATE: u8 = 4;

fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Failing) => ExitCode::from(FAILED),
        Ok(Outcome::Nothing) => ExitCode::from(NOT_FOUND),
        Ok(Outcome::TooLate) => ExitCode::from(TOO_LATE),
        Err(error) => {
            // If stderr fails, there is no other way to report the error.
            let _ = writeln!(
                std::io::stderr(),
                "postdate: {}",
                format!("{error:#}").trim_end()
            );
            let is_usage = error.is::<ConfigError>() || error.is::<Refused>();
            ExitCode::from(if is_usage { WRONG_USAGE } else { FAILED })
        }
    }
}

fn execute(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Run(run) => {
            let (config, telemetry) = prepare(&run.config)?;
            postdate::run(&config, &telemetry, &run.config).map(|()| Outcome::Done)
        }
        Command::Demo(demo) => postdate::demo(&demo).map(|()| Outcome::Done),
        Command::Init(init) => {
            postdate::init(&init)?;
            postdate::check(&prepare_quietly(&init.config)?, &init.check())
        }
        Command::Reset(reset) => {
            let (config, _telemetry) = prepare(&reset.config)?;
            config.check_source(&reset.route, &reset.topic)?;
            postdate::reset(&config, &reset).map(|()| Outcome::Done)
        }
        Command::Pending(pending) => postdate::pending(&access(&pending.service)?, &pending),
        Command::Messages(messages) => postdate::messages(&access(messages.service())?, &messages),
        Command::Purge(purge) => postdate::purge(&access(&purge.service)?, &purge),
        Command::Pause(pause) => postdate::pause(&access(&pause.service)?, &pause),
        Command::Resume(resume) => postdate::resume(&access(&resume.service)?, &resume),
        Command::Ledger(ledger) => postdate::ledger(&access(&ledger.service)?, &ledger),
        Command::Workers(workers) => postdate::workers(&access(&workers.service)?, &workers),
        Command::Audit(audit) => postdate::audit(&access(&audit.service)?, &audit),
        Command::Quarantine(quarantine) => {
            postdate::quarantine(&prepare_quietly(&quarantine.config)?, &quarantine)
        }
        Command::Store(store) => {
            let StoreAction::Copy(copy) = store.action;
            let config = prepare_quietly(&copy.config)?;
            postdate::store_copy(&config, &Config::load(&copy.to)?, &copy)
        }
        Command::Redrive(redrive) => postdate::redrive(&access(&redrive.service)?, &redrive),
        Command::Schedules(schedules) => postdate::schedules(&schedules, access),
        Command::Send(send) => postdate::send(&prepare_quietly(&send.config)?, &send),
        Command::Cancel(cancel) => {
            postdate::send(&prepare_quietly(&cancel.config)?, &(*cancel).into())
        }
        Command::Reschedule(args) => {
            postdate::send(&prepare_quietly(&args.message.config)?, &(*args).into())
        }
        Command::Check(check) => postdate::check(&prepare_quietly(&check.config)?, &check),
        Command::Completion(completion) => postdate::complete(&completion),
    }
}

/// The service of a command.
fn access(service: &ServiceArgs) -> anyhow::Result<Access> {
    match &service.config {
        Some(file) => Ok(Access::Config(Box::new(prepare_quietly(file)?))),
        None => Access::server(service),
    }
}

/// For commands whose output contains all results: only errors are logged.
fn prepare_quietly(file: &Path) -> anyhow::Result<Config> {
    let config = Config::load(file)?.log_errors_only();
    Telemetry::install(&config)?;
    Ok(config)
}

fn prepare(file: &Path) -> anyhow::Result<(Config, Telemetry)> {
    let config = Config::load(file)?;
    let telemetry = Telemetry::install(&config)?;
    Ok((config, telemetry))
}
