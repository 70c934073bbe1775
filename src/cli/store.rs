//! Flags of `postdate store`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

pub(super) const HELP_AFTER: &str = "Without --apply the command only prints the plan.

Examples:
  postdate store copy --config postdate.toml --to new.toml
  postdate store copy --config postdate.toml --to new.toml --apply
  postdate store copy --config postdate.toml --to new.toml --route orders --apply

Exit codes:
  0    the plan was printed, or everything was copied
  1    a worker is alive, a shard cannot be copied, or a store does not answer. After an interruption, repeat the command
  2    wrong usage or configuration; nothing was copied";

/// Flags of [`Command::Store`](super::Command::Store).
#[derive(Debug, Args)]
pub struct StoreArgs {
    #[command(subcommand)]
    pub action: StoreAction,
}

#[derive(Debug, Subcommand)]
pub enum StoreAction {
    /// Copies the waiting messages to the store of another configuration; only prints a plan without
    /// --apply
    ///
    /// Stop all processes of the deployment first. The old store is only read. Start the service with the
    /// other configuration afterwards. An interrupted command can be repeated: it skips shards that are
    /// copied or moved before, and ends the same. It refuses a shard of which the new store has other data.
    Copy(StoreCopyArgs),
}

/// Flags of [`StoreAction::Copy`].
#[derive(Debug, Args)]
pub struct StoreCopyArgs {
    /// The configuration file (TOML) of the service, with the old store
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The configuration file (TOML) with the new store, for the next start of the service
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// Copy only this route; workers of other routes may run
    #[arg(long)]
    pub route: Option<String>,
    /// Erase older states of the shards in the new store first, for example of a rehearsal
    #[arg(long)]
    pub replace: bool,
    /// Copy; without it, only print the plan
    #[arg(long)]
    pub apply: bool,
}
