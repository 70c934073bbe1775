//! Flags of `postdate audit`.

use super::{OutputArgs, ServiceArgs};
use clap::Args;

pub(super) const HELP_AFTER: &str =
    "With the embedded store, the command asks a running service at `admin.listen`.

Examples:
  postdate audit --config postdate.toml
  postdate audit --config postdate.toml --output json | jq '.items[] | select(.action == \"purge\")'

Exit codes:
  0    the lines were printed
  1    the store, or the service that owns it, does not answer
  2    wrong usage or configuration";

/// Flags of [`Command::Audit`](super::Command::Audit).
#[derive(Clone, Debug, Args)]
pub struct AuditArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Without publishes, shown payloads, dry runs and calls that continue a change
    #[arg(long)]
    pub changes: bool,
    /// Print at most this many lines
    #[arg(long, default_value_t = 100)]
    pub limit: usize,
    #[command(flatten)]
    pub output: OutputArgs,
}
