//! Flags of `postdate redrive`.

use super::{OutputArgs, ServiceArgs};
use clap::Args;

pub(super) const HELP_AFTER: &str =
    "Times are RFC 3339, or milliseconds since 1970. Remove the cause first: the messages fail again otherwise.

Examples:
  postdate redrive --config postdate.toml --route orders
  postdate redrive --config postdate.toml --route orders --code unknown_target --from 2027-01-31T09:00:00Z --yes --rate 500
  postdate redrive --url https://postdate.example:8088 --token-file token --route orders --key order-42 --yes
  postdate redrive --config postdate.toml --route orders --output json | jq '.codes[] | [.code, .count]'

Exit codes:
  0    the dead letters were counted, or sent
  1    a broker or the service does not answer, or does not take a message; a repeat continues
  2    wrong usage or configuration";

/// Flags of [`Command::Redrive`](super::Command::Redrive).
#[derive(Clone, Debug, Args)]
pub struct RedriveArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// The route whose dead letters are sent again
    #[arg(long)]
    pub route: String,
    /// Only dead letters with this code, as in `postdate-error`
    #[arg(long)]
    pub code: Option<String>,
    /// Only those with this key
    #[arg(long)]
    pub key: Option<String>,
    /// Only those with this header and value
    #[arg(long, value_name = "NAME:VALUE")]
    pub header: Option<String>,
    /// Only the one with this `postdate-origin`
    #[arg(long)]
    pub origin: Option<String>,
    /// Only those that are dead since this time
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Only those that were dead at this time
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// Send at most this many messages
    #[arg(long, default_value_t = 1_000)]
    pub limit: u64,
    /// Send at most this many messages per second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Send without a confirmation
    #[arg(long)]
    pub yes: bool,
    /// Only count, and do not ask at a terminal
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}
