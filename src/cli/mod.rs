//! Defines the command line: its commands, flags and help texts. It does not run commands.

mod audit;
mod init;
mod messages;
mod output;
mod redrive;
mod schedules;
mod send;
mod service;
mod store;

pub use audit::AuditArgs;
pub use init::InitArgs;
pub(crate) use init::{SERVER_FLAGS, SERVERS_QUESTION, SizeArgs};
pub(crate) use messages::{ChangeArgs, FilterArgs, ListArgs, MessagesAction, MoveArgs, ShowArgs};
pub use messages::{MessagesArgs, PauseArgs, PurgeArgs};
pub(crate) use output::OutputArgs;
pub use redrive::RedriveArgs;
pub use schedules::SchedulesArgs;
pub(crate) use schedules::{
    ChangeScheduleArgs, ListSchedulesArgs, OneScheduleArgs, PreviewArgs, SchedulesAction,
};
pub use send::{CancelOneArgs, RescheduleArgs, SendArgs};
pub use service::ServiceArgs;
pub(crate) use service::URL_VARIABLE;
pub use store::{StoreAction, StoreArgs, StoreCopyArgs};

use crate::model::StartPoint;
use crate::model::{Delay, parse_after};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;
use std::time::Duration;

const ABOUT: &str = "Delayed delivery for Kafka and NATS.

A producer sends a record to a source topic with the header `postdate-after: 30m` (or `postdate-at: <time>`). \
The message waits in a store and arrives on its target topic at its due time. A configuration file names the topics: \
`config/kafka.toml` is the smallest one, `config/default.toml` describes all options.";

const AFTER: &str = "Environment:
  POSTDATE_<KEY>    overrides a key of the file, with __ for each dot: POSTDATE_ROUTE__ORDERS__MAX_DELAY=7d sets
                    route.orders.max_delay. Write lists as in the file (POSTDATE_ROLES='[\"timer\"]'), and text that
                    looks like a number in quotes ('\"0123\"').

Signals:
  SIGTERM, SIGINT   stop reading, deliver the messages in flight, release all shards, and exit with 0.

Exit codes:
  0    the command succeeded, or the service was stopped
  1    the command failed: its last message is the reason. `check`: an item failed. `ledger`: a ledger does not balance
  2    wrong usage or configuration; nothing was started or changed
  3    `pending --id`, `messages show`, `send --reply`, `cancel --reply`, `reschedule --reply`: no such message waits
  4    `send --reply`, `cancel --reply`, `reschedule --reply`: the message was being sent";

const PENDING_AFTER: &str =
    "Counts are upper bounds: messages are stored in batches, and a batch counts until its last message is delivered.
Cancelled messages count, too. With the embedded store, the command asks a running service at `admin.listen`.

Examples:
  postdate pending --config postdate.toml
  postdate pending --config postdate.toml --route orders --json | jq '.hours[] | [.start, .messages]'
  postdate pending --config postdate.toml --id order-42 || echo 'no longer waiting'
  postdate pending --url https://postdate.example:8088 --token-file token

Exit codes:
  0    the counts were printed; with --id: a message with this id waits
  1    the store or the service does not answer
  2    wrong usage or configuration
  3    with --id: no message with this id waits";

const LEDGER_AFTER: &str =
    "For each shard: accepted = delivered + cancelled + dead letters + quarantined + retried + pending.
With the embedded store, the command asks a running service at `admin.listen`.

Examples:
  postdate ledger --config postdate.toml
  postdate ledger --config postdate.toml --json | jq '.shards[] | select(.balances | not)'
  postdate ledger --url https://postdate.example:8088 --token-file token

Exit codes:
  0    every ledger balances; a ledger that a store loss made uncertain counts as balanced
  1    a ledger does not balance; or the store or the service does not answer
  2    wrong usage or configuration";

const WORKERS_AFTER: &str =
    "With the embedded store, the command asks a running service at `admin.listen`.

Examples:
  postdate workers --config postdate.toml
  postdate workers --config postdate.toml --json | jq '.workers[] | [.name, .delivers.shards]'

Exit codes:
  0    the workers were printed
  1    the store, or the service that owns it, does not answer
  2    wrong usage or configuration";

const QUARANTINE_AFTER: &str = "Examples:
  postdate quarantine list --config postdate.toml
  postdate quarantine restore --config postdate.toml --route orders

Exit codes:
  0    every run was printed or restored
  1    a run cannot be restored; or the store does not answer
  2    wrong usage or configuration";

const CHECK_AFTER: &str =
    "Only --apply changes something, and only on the brokers: it creates missing topics or streams, and raises the retention of
sources. A repeat is safe. The command uses the logins of the configuration: run it on the machine of the service.

Examples:
  postdate check --config postdate.toml
  postdate check --config postdate.toml --fix
  postdate check --config postdate.toml --fix --apply
  postdate check --config postdate.toml --json | jq '.items[] | select(.verdict != \"ok\")'

Exit codes:
  0    no item failed; there may be warnings. With --fix: the plan repairs all items that failed
  1    an item failed, or a change failed
  2    wrong usage or configuration; nothing was checked";

/// Shortest demo: a message or two need time to wait.
const DEMO_DURATION_MIN: Duration = Duration::from_secs(5);
/// Longest demo: it remembers every message that it sends.
const DEMO_DURATION_MAX: Duration = Duration::from_secs(3_600);

const COMPLETION_AFTER: &str = "Examples:
  bash   postdate completion bash > /etc/bash_completion.d/postdate
  zsh    postdate completion zsh > \"${fpath[1]}/_postdate\"
  fish   postdate completion fish > ~/.config/fish/completions/postdate.fish";

/// The parsed command line.
#[derive(Debug, Parser)]
#[command(name = "postdate", version, about = "Delayed delivery for Kafka and NATS", long_about = ABOUT, after_long_help = AFTER)]
#[command(
    after_help = "`postdate --help` describes more, and lists the exit codes.",
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// A command with its flags. The comments of variants and fields are the help texts.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the service until it is stopped
    ///
    /// Runs the configured `roles`: ingress reads the sources and stores messages, timer delivers
    /// them at their due time. Processes with the same configuration share the work. /readyz at
    /// `admin.listen` reports problems.
    Run(RunArgs),
    /// Demonstrates the service without any server
    ///
    /// Starts an in-process Kafka, the service with a store in a temporary folder, and a generator
    /// of delayed messages. Shows live how many messages wait, and how late they arrive. The first
    /// lines explain how to send your own messages with kcat or another client of librdkafka; the
    /// Java client cannot connect. On a terminal the demo draws a chart, with warnings and errors of
    /// the service above it. Elsewhere, or with --plain, it prints one line per second, and logs go
    /// to stderr.
    ///
    /// With --config, the demo uses your Kafka and a route of your configuration. It says where it
    /// will write before it starts, and counts its own messages only.
    ///
    /// q, Ctrl-C or SIGTERM stops sending and waits for the messages that are still due; a second
    /// one exits at once. Exit code 0: every message arrived exactly once and not early. 1: it did
    /// not, or the demo did not wait.
    Demo(DemoArgs),
    /// Writes a configuration, and plans its topics and rights
    ///
    /// Writes a commented configuration file with one route. Then does the same as `postdate check
    /// --fix`: it checks the servers, and prints a plan with the topics or streams and the rights
    /// that are needed, as commands. It changes nothing on the servers without --apply.
    #[command(after_long_help = init::HELP_AFTER)]
    Init(Box<InitArgs>),
    /// Moves the position of a source topic, and erases its stored state
    ///
    /// Needed if the topic was recreated, truncated, or moved to another cluster: the old offsets
    /// mean nothing then, so its shards stop. Stop all processes of the deployment, run this
    /// command, and start them again: they read the topic from the record that --from names. The
    /// command refuses to run while a worker is alive. If messages of the old topic still wait, it
    /// erases nothing without --discard. It may be repeated after an interruption. If the route delivers to NATS, the command waits until the duplicate windows of
    /// the target streams have passed. Before that, the streams would drop new messages with the
    /// ids of old ones.
    Reset(ResetArgs),
    /// Counts the waiting messages, or finds one of them
    ///
    /// Prints totals by route, by shard (a source partition) and by hour of the due time. It
    /// includes messages of routes that the configuration no longer has, and messages in
    /// quarantine. With --id it prints the message that waits with that `postdate-id`.
    #[command(after_long_help = PENDING_AFTER)]
    Pending(PendingArgs),
    /// Lists, shows or changes waiting messages
    ///
    /// Searches by due time, id, key or header. A search of many stored batches takes time, and a
    /// message may be missing or repeated if the timer merges batches meanwhile.
    #[command(after_long_help = messages::HELP_AFTER)]
    Messages(Box<MessagesArgs>),
    /// Cancels all waiting messages of a route; only counts them without --yes
    ///
    /// The same as `postdate messages cancel` without a condition. Messages without an id stay, unless
    /// the route has `change_by_origin`. Stop the producers first.
    #[command(after_long_help = messages::PURGE_AFTER)]
    Purge(PurgeArgs),
    /// Pauses the delivery of a route
    ///
    /// Writes a record to each partition of its sources, so the pause survives the loss of the store. Records
    /// are still read, and waiting messages can be changed. Messages that were claimed before still go
    /// out. A repeat is safe. Needs `retry_key`.
    #[command(after_long_help = messages::PAUSE_AFTER)]
    Pause(PauseArgs),
    /// Resumes the delivery of a route
    ///
    /// The messages that became due meanwhile are delivered at once, at most at the `catch_up_rate` of the
    /// route. A repeat is safe.
    #[command(after_long_help = messages::PAUSE_AFTER)]
    Resume(PauseArgs),
    /// Sends dead letters through their source once more
    ///
    /// Counts the dead letters of a route by code. Sends them with --yes, or after a confirmation at a
    /// terminal. A message that had a due time is delivered at once. If the source and the dead letters
    /// are in one Kafka cluster, an interrupted and repeated redrive neither loses nor doubles a message.
    #[command(after_long_help = redrive::HELP_AFTER)]
    Redrive(Box<RedriveArgs>),
    /// Counts the outcomes of all accepted messages, and checks the sum
    ///
    /// The store keeps a ledger of each shard (a source partition) with its messages. Restarts and
    /// takeovers do not reset it.
    #[command(after_long_help = LEDGER_AFTER)]
    Ledger(LedgerArgs),
    /// Lists the workers, and the shards that each of them delivers
    ///
    /// A worker is a running process of the deployment. Each has a session in the store, which ends
    /// some seconds after its last heartbeat.
    #[command(after_long_help = WORKERS_AFTER)]
    Workers(WorkersArgs),
    /// Lists the last changes that were requested, and payloads that were shown
    ///
    /// The store keeps 1,000 lines of the HTTP API and the console of all processes. The log is the record: it
    /// has all of them, under the target `postdate::audit`.
    #[command(after_long_help = audit::HELP_AFTER)]
    Audit(AuditArgs),
    /// Lists unreadable runs in quarantine, or puts them back
    ///
    /// A run is a stored batch of messages. It is in quarantine if it could not be read. `restore` puts
    /// each run back that this version can read. Its messages are delivered at their due times, but not before 10 seconds have passed.
    /// Messages of the run that were delivered or cancelled before are delivered again. The command
    /// ends the leases of these shards, so messages in flight may be delivered twice. With the embedded
    /// store, stop the service first.
    #[command(after_long_help = QUARANTINE_AFTER)]
    Quarantine(QuarantineArgs),
    /// Moves the waiting messages to another store
    ///
    /// For example from a folder to Redis, or from one Redis to a Redis Cluster. `copy` copies them while
    /// the service is stopped.
    #[command(after_long_help = store::HELP_AFTER)]
    Store(StoreArgs),
    /// Sends one delayed message, or cancels one
    ///
    /// Writes a record with Postdate's headers to the route's source topic, as any producer could.
    /// Prints its partition and offset, and its due time.
    #[command(after_long_help = send::HELP_AFTER)]
    Send(Box<SendArgs>),
    /// Cancels the message that waits with an id
    ///
    /// Does the same as `postdate send --cancel`: writes a cancel to the partition of the message.
    /// With --reply it waits until the service has decided, and prints whether the cancel was in time.
    #[command(after_long_help = send::CANCEL_AFTER)]
    Cancel(Box<CancelOneArgs>),
    /// Shows when recurring schedules are due, and pauses, resumes or fires one
    ///
    /// `preview` computes the next times of a definition before you send it. It shows them in UTC and in
    /// the zone of the schedule, and marks those that daylight saving moves. `list` shows the schedules
    /// of a recurring route, and `show` one of them with its definition. `pause`, `resume` and `fire`
    /// write its definition again.
    #[command(after_long_help = schedules::HELP_AFTER)]
    Schedules(SchedulesArgs),
    /// Gives the message that waits with an id a later due time
    ///
    /// Writes a reschedule to the partition of the message. It keeps its payload, headers and origin.
    /// With --reply it waits until the service has decided, and prints whether it was in time.
    #[command(after_long_help = send::RESCHEDULE_AFTER)]
    Reschedule(Box<RescheduleArgs>),
    /// Checks whether a configuration would work
    ///
    /// Checks the clusters and their topics, the store, the clocks, and the waiting messages. Each
    /// item is ok, warn or fail, with a finding and a fix. With --fix, also prints a plan that creates
    /// missing topics or streams and raises retention, and the rights that the service needs.
    #[command(after_long_help = CHECK_AFTER)]
    Check(CheckArgs),
    /// Prints the completion script of a shell
    #[command(after_long_help = COMPLETION_AFTER)]
    Completion(CompletionArgs),
}

/// Flags of [`Command::Run`].
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Flags of [`Command::Demo`].
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Send messages for this time, from 5s to 1h; the demo ends when the last message has arrived
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = demo_duration)]
    pub duration: Duration,
    /// Print one line per second instead of the chart
    #[arg(long)]
    pub plain: bool,
    /// Use the brokers and the store of this configuration file (TOML) instead of in-process ones
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Use a NATS server with JetStream instead; the demo creates a stream there and deletes it at
    /// the end
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    pub nats: Option<String>,
    /// The route to use; required if the configuration has several
    #[arg(long, requires = "config")]
    pub route: Option<String>,
    /// Start without a confirmation
    #[arg(long, requires = "config")]
    pub yes: bool,
}

fn demo_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_after(text)
        .map(Delay::as_duration)
        .ok_or("write it with a unit: 30s, 2m")?;
    if (DEMO_DURATION_MIN..=DEMO_DURATION_MAX).contains(&duration) {
        Ok(duration)
    } else {
        Err("choose from 5s to 1h".to_owned())
    }
}

fn start_point(text: &str) -> Result<StartPoint, String> {
    let start = StartPoint::parse(text);
    start.ok_or_else(|| {
        "write first, end, an offset, or a time like 2026-11-21T08:00:00Z".to_owned()
    })
}

/// Flags of [`Command::Reset`].
#[derive(Debug, Args)]
pub struct ResetArgs {
    /// The configuration file (TOML) of the service
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The route whose state is erased
    #[arg(long)]
    pub route: String,
    /// The source topic
    #[arg(long)]
    pub topic: String,
    /// Where to start reading: the first retained record, the end, an offset of one partition, or a
    /// time (RFC 3339)
    #[arg(long, value_name = "first|end|OFFSET|TIME", default_value = "first", value_parser = start_point)]
    pub(crate) from: StartPoint,
    /// Reset only this partition; default: all partitions of the topic
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(0..))]
    pub partition: Option<i32>,
    /// Also erase messages that still wait; they are never delivered
    #[arg(long)]
    pub discard: bool,
    /// Do not wait for the duplicate windows of NATS streams; they may drop new messages with old
    /// ids
    #[arg(long)]
    pub no_wait: bool,
}

/// Flags of [`Command::Pending`].
#[derive(Debug, Args)]
pub struct PendingArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Count only this route, which the configuration need not have; default: all routes
    #[arg(long)]
    pub route: Option<String>,
    /// Find the message that waits with this `postdate-id`
    #[arg(long)]
    pub id: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of [`Command::Ledger`].
#[derive(Debug, Args)]
pub struct LedgerArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Count only this route, which the configuration need not have; default: all routes
    #[arg(long)]
    pub route: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of [`Command::Workers`].
#[derive(Debug, Args)]
pub struct WorkersArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of [`Command::Quarantine`].
#[derive(Debug, Args)]
pub struct QuarantineArgs {
    /// List the runs, or restore them
    #[arg(value_enum)]
    pub action: QuarantineAction,
    /// The configuration file (TOML) of the service
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Only the runs of this route; default: all routes
    #[arg(long)]
    pub route: Option<String>,
}

/// The action of [`Command::Quarantine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QuarantineAction {
    /// Print each run, and whether it can be restored
    List,
    /// Put each run back that can be read
    Restore,
}

/// Flags of [`Command::Check`].
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration file (TOML) to check
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Also print a plan: missing topics or streams, retention, and rights
    #[arg(long)]
    pub fix: bool,
    /// Make the changes of the plan: create topics or streams, and raise retention
    #[arg(long, requires = "fix")]
    pub apply: bool,
    #[command(flatten)]
    pub size: SizeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of [`Command::Completion`].
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell
    pub shell: Shell,
}

impl CompletionArgs {
    /// The script for the whole command line.
    pub(crate) fn script(&self) -> String {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "postdate", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_reset_names_route_topic_and_partition() {
        let line = [
            "postdate",
            "reset",
            "--config",
            "c.toml",
            "--route",
            "orders",
            "--topic",
            "orders.delayed",
            "--partition",
            "3",
            "--discard",
            "--from",
            "17",
        ];
        let Command::Reset(reset) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command")
        };
        assert_eq!(
            (
                reset.route.as_str(),
                reset.topic.as_str(),
                reset.partition,
                reset.discard,
                reset.from
            ),
            (
                "orders",
                "orders.delayed",
                Some(3),
                true,
                StartPoint::Offset(crate::model::Offset(17))
            )
        );
    }

    #[test]
    fn a_demo_needs_no_flag_and_limits_its_duration() {
        let demo = |line: &[&str]| match Cli::try_parse_from([&["postdate", "demo"], line].concat())
            .map(|cli| cli.command)
        {
            Ok(Command::Demo(demo)) => Some(demo.duration),
            _ => None,
        };
        assert_eq!(demo(&[]), Some(Duration::from_secs(30)));
        assert_eq!(
            demo(&["--for", "1m30s", "--plain"]),
            Some(Duration::from_secs(90))
        );
        for line in [
            &["--for", "4s"][..],
            &["--for", "2h"],
            &["--for", "soon"],
            &["--route", "orders"],
            &["--yes"],
        ] {
            assert_eq!(demo(line), None, "{line:?}");
        }
    }

    #[test]
    fn an_incomplete_command_line_is_rejected() {
        for line in [
            &["postdate"][..],
            &["postdate", "run"],
            &["postdate", "rnu"],
            &["postdate", "reset", "--config", "c", "--route", "r"],
        ] {
            assert!(Cli::try_parse_from(line).is_err(), "{line:?}");
        }
        let negative = [
            "postdate",
            "reset",
            "--config",
            "c",
            "--route",
            "r",
            "--topic",
            "t",
            "--partition=-1",
        ];
        assert!(Cli::try_parse_from(negative).is_err());
    }

    #[test]
    fn every_shell_has_its_completion() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            assert!(
                CompletionArgs { shell }.script().contains("pending"),
                "{shell}"
            );
        }
    }

    #[test]
    fn the_help_lists_the_exit_codes() {
        let help = Cli::command().render_long_help().to_string();
        assert!(
            [
                "Exit codes:",
                "  0 ",
                "  1 ",
                "  2 ",
                "POSTDATE_ROUTE__ORDERS__MAX_DELAY"
            ]
            .iter()
            .all(|text| help.contains(text)),
            "{help}"
        );
    }
}
