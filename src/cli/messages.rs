//! Flags of `postdate messages`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

pub(super) const HELP_AFTER: &str =
    "Times are RFC 3339, or milliseconds since 1970. With the embedded store, the command asks a running service at `admin.listen`.

Examples:
  postdate messages list --config postdate.toml --route orders --due-to 2027-01-31T09:00:00Z
  postdate messages show --config postdate.toml --route orders --partition 3 --offset 4711
  postdate messages cancel --config postdate.toml --route orders --header campaign:black-friday
  postdate messages cancel --config postdate.toml --route orders --header campaign:black-friday --yes --rate 500

Exit codes:
  0    the messages were printed, or the cancels were sent
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
    /// The configuration file.
    #[must_use]
    pub fn config(&self) -> &PathBuf {
        match &self.action {
            MessagesAction::List(list) => &list.filter.config,
            MessagesAction::Show(show) => &show.config,
            MessagesAction::Cancel(cancel) => &cancel.filter.config,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum MessagesAction {
    /// Lists waiting messages
    List(ListArgs),
    /// Prints one waiting message with its headers, and its payload if `admin.payloads` is "shown"
    Show(ShowArgs),
    /// Cancels waiting messages that have an id; only counts them without --yes
    ///
    /// Sends a cancel for each message to its partition, as a producer does. A message that is being
    /// sent is not stopped. `postdate ledger` counts what was cancelled.
    Cancel(CancelArgs),
}

/// Conditions of a search.
#[derive(Clone, Debug, Args)]
pub struct FilterArgs {
    /// The configuration file (TOML) of the service
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
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
}

#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Print at most this many messages
    #[arg(long, default_value_t = 100)]
    pub limit: usize,
    /// A table, or one JSON document
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    /// The configuration file (TOML) of the service
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
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
    /// Lines for people, or one JSON document
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

#[derive(Clone, Debug, Args)]
pub struct CancelArgs {
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Cancel at most this many messages
    #[arg(long, default_value_t = 1_000)]
    pub limit: usize,
    /// Send at most this many cancels per second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Send the cancels, instead of a dry run
    #[arg(long)]
    pub yes: bool,
    /// Lines for people, or one JSON document
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    #[default]
    Table,
    Json,
}
