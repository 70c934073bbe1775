//! Flags of `postdate schedules`.

use super::{OutputArgs, ServiceArgs};
use crate::model::{Timestamp, parse_rfc3339};
use clap::{Args, Subcommand};

pub(super) const HELP_AFTER: &str =
    "`preview` needs no server and no configuration. It reads the headers as the service does. All others read the topic of definitions.
`pause`, `resume` and `fire` read the definition, and write it again with `postdate-paused` or `postdate-fire`. If its producer writes at the
same time, the last record counts, and the command fails.

Examples:
  postdate schedules preview --header 'postdate-cron=0 9 * * MON-FRI' --header postdate-zone=Europe/Berlin
  postdate schedules preview --header postdate-every=15m --next 10 --json
  postdate schedules list --config postdate.toml --route reports
  postdate schedules list --url https://postdate.example:8088 --token-file token --route reports
  postdate schedules show --config postdate.toml --route reports --id invoices
  postdate schedules fire --config postdate.toml --route reports --id invoices --yes

Exit codes:
  0    the times or the schedules were printed. pause, resume, fire: the record is written, or was not needed
  1    the broker or the service does not answer; or another record of the schedule was written at the same time
  2    wrong usage or configuration, or the definition is wrong
  3    list --id, show, pause, resume, fire: no such schedule";

/// Flags of [`Command::Schedules`](super::Command::Schedules).
#[derive(Debug, Args)]
pub struct SchedulesArgs {
    #[command(subcommand)]
    pub action: SchedulesAction,
}

#[derive(Debug, Subcommand)]
pub enum SchedulesAction {
    /// Prints the next times at which a schedule would be due
    Preview(PreviewArgs),
    /// Lists the schedules of a recurring route with their next times
    List(ListSchedulesArgs),
    /// Prints one schedule with its definition, its state and its next five times
    Show(OneScheduleArgs),
    /// Stops the deliveries of a schedule: writes its definition again, with `postdate-paused: true`
    Pause(ChangeScheduleArgs),
    /// Ends the pause of a schedule. Times during the pause are not delivered
    Resume(ChangeScheduleArgs),
    /// Delivers a schedule once more, now, also if it is paused or over
    Fire(ChangeScheduleArgs),
}

/// Flags of [`SchedulesAction::Preview`].
#[derive(Debug, Args)]
pub struct PreviewArgs {
    /// A header of the definition; can be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", required = true)]
    pub headers: Vec<String>,
    /// The id of the schedule. With a spread, it determines when in the spread the schedule is due
    #[arg(long, default_value = "preview")]
    pub id: String,
    /// The number of times to print
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub next: u16,
    /// The timestamp of the definition (RFC 3339); default: now
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub(crate) now: Option<Timestamp>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of [`SchedulesAction::List`].
#[derive(Debug, Args)]
pub struct ListSchedulesArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// The recurring route; not needed with --config if there is only one route
    #[arg(long)]
    pub route: Option<String>,
    /// Only the schedule with this id
    #[arg(long)]
    pub id: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of [`SchedulesAction::Show`].
#[derive(Debug, Default, Args)]
pub struct OneScheduleArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// The recurring route; not needed with --config if there is only one route
    #[arg(long)]
    pub route: Option<String>,
    /// The id of the schedule
    #[arg(long)]
    pub id: String,
    /// The topic, if the id has a schedule on several
    #[arg(long)]
    pub topic: Option<String>,
    /// The partition, if the id has a schedule on several
    #[arg(long)]
    pub partition: Option<i32>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of [`SchedulesAction::Pause`], [`SchedulesAction::Resume`] and [`SchedulesAction::Fire`].
#[derive(Debug, Args)]
pub struct ChangeScheduleArgs {
    #[command(flatten)]
    pub schedule: OneScheduleArgs,
    /// Do not ask for a confirmation
    #[arg(long)]
    pub yes: bool,
}

fn instant(text: &str) -> Result<Timestamp, String> {
    parse_rfc3339(text).ok_or_else(|| "write a time like 2027-01-31T09:00:00Z".to_owned())
}
