//! Flags of `postdate messages`.

use super::{OutputArgs, ServiceArgs};
use clap::{ArgGroup, Args, Subcommand};

pub(super) const HELP_AFTER: &str =
    "Times are RFC 3339, or milliseconds since 1970. With the embedded store, the command asks a running service at `admin.listen`.

Examples:
  postdate messages list --config postdate.toml --route orders --due-to 2027-01-31T09:00:00Z
  postdate messages show --config postdate.toml --route orders --partition 3 --offset 4711
  postdate messages cancel --config postdate.toml --route orders --header campaign:black-friday
  postdate messages cancel --config postdate.toml --route orders --header campaign:black-friday --yes --rate 500
  postdate messages fire --config postdate.toml --route orders --id order-42 --yes
  postdate messages reschedule --config postdate.toml --route orders --due-to 2027-01-31T09:00:00Z --in 2h --yes
  postdate messages list --url https://postdate.example:8088 --token-file token --route orders

Exit codes:
  0    the messages were printed or counted, or the records were sent
  1    the store, the service or the broker does not answer
  2    wrong usage or configuration
  3    show: no such message waits";

/// Flags of [`Command::Messages`](super::Command::Messages).
#[derive(Debug, Args)]
pub struct MessagesArgs {
    #[command(subcommand)]
    pub action: MessagesAction,
}

impl MessagesArgs {
    #[must_use]
    pub fn service(&self) -> &ServiceArgs {
        match &self.action {
            MessagesAction::List(list) => &list.filter.service,
            MessagesAction::Show(show) => &show.service,
            MessagesAction::Cancel(change) | MessagesAction::Fire(change) => &change.filter.service,
            MessagesAction::Reschedule(args) => &args.change.filter.service,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum MessagesAction {
    /// Lists waiting messages
    List(ListArgs),
    /// Prints one waiting message with its headers, and its payload if `admin.payloads` is "shown"
    Show(ShowArgs),
    /// Cancels waiting messages; only counts them without --yes
    ///
    /// Sends a record for each message to its partition, as a producer does. A message that is being
    /// sent is not stopped. A message needs an id, or `change_by_origin` of its route. At a terminal,
    /// the command asks after it has counted.
    Cancel(ChangeArgs),
    /// Delivers waiting messages now; only counts them without --yes
    ///
    /// Sends a copy of each message to its partition, which takes the place of the waiting one. A message
    /// that is due within 5 seconds is left alone. Otherwise as `cancel`.
    Fire(ChangeArgs),
    /// Gives waiting messages another due time; only counts them without --yes
    ///
    /// A message keeps its payload, headers and first origin. Otherwise as `fire`.
    Reschedule(MoveArgs),
}

/// Conditions of a search.
#[derive(Clone, Debug, Default, Args)]
pub struct FilterArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// The route of the messages
    #[arg(long)]
    pub route: String,
    /// The earliest due time
    #[arg(long, value_name = "TIME")]
    pub due_from: Option<String>,
    /// The latest due time
    #[arg(long, value_name = "TIME")]
    pub due_to: Option<String>,
    /// The `postdate-id`
    #[arg(long)]
    pub id: Option<String>,
    /// The key of the record
    #[arg(long)]
    pub key: Option<String>,
    /// A header and its value
    #[arg(long, value_name = "NAME:VALUE")]
    pub header: Option<String>,
    /// The source topic
    #[arg(long)]
    pub topic: Option<String>,
    /// The source partition
    #[arg(long, value_name = "N")]
    pub partition: Option<u32>,
    /// The source offset
    #[arg(long, value_name = "N", requires = "partition")]
    pub offset: Option<u64>,
}

#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Print at most this many messages
    #[arg(long, default_value_t = 100)]
    pub limit: usize,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// The route of the message
    #[arg(long)]
    pub route: String,
    /// The source topic, if the route has several
    #[arg(long)]
    pub topic: Option<String>,
    /// The source partition
    #[arg(long, value_name = "N")]
    pub partition: u32,
    /// The source offset
    #[arg(long, value_name = "N")]
    pub offset: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Clone, Debug, Args)]
pub struct ChangeArgs {
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Change at most this many messages
    #[arg(long, default_value_t = 1_000)]
    pub limit: usize,
    /// Send at most this many records per second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Send the records, instead of a dry run
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `postdate messages reschedule`.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("when").required(true).args(["delay", "at"]))]
pub struct MoveArgs {
    #[command(flatten)]
    pub change: ChangeArgs,
    /// The delay from now: 30m, 1h30m, 7d
    #[arg(long = "in", value_name = "DELAY")]
    pub delay: Option<String>,
    /// The new due time: 2027-01-31T09:00:00Z, or milliseconds since 1970
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
}

pub(super) const PURGE_AFTER: &str = "Examples:
  postdate purge --config postdate.toml --route orders
  postdate purge --config postdate.toml --route orders --yes --rate 1000

Exit codes:
  0    the messages were counted, or the records were sent
  1    the store, the service or the broker does not answer
  2    wrong usage or configuration";

/// Flags of [`Command::Purge`](super::Command::Purge).
#[derive(Clone, Debug, Args)]
pub struct PurgeArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// The route of the messages
    #[arg(long)]
    pub route: String,
    /// Cancel at most this many messages; default: all
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    pub limit: usize,
    /// Send at most this many records per second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Send the records, instead of a dry run
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

pub(super) const PAUSE_AFTER: &str = "Examples:
  postdate pause --config postdate.toml --route orders --note \"incident 4711\" --yes
  postdate resume --config postdate.toml --route orders --yes

Exit codes:
  0    all shards of the route are paused, or none
  1    the store, the service or the broker does not answer, or some shards have not read the record yet
  2    wrong usage or configuration, or the route cannot be paused";

/// Flags of [`Command::Pause`](super::Command::Pause) and [`Command::Resume`](super::Command::Resume).
#[derive(Clone, Debug, Args)]
pub struct PauseArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// The route
    #[arg(long)]
    pub route: String,
    /// Why, at most 150 bytes. The console and the logs show it
    #[arg(long, default_value = "", hide_default_value = true)]
    pub note: String,
    /// Do not ask for a confirmation
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}
