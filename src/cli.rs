//! The command line: what can be asked for. Does none of it.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const ABOUT: &str = "Delayed delivery for Kafka.

A producer sends a record to a source topic with the header `postdate-after: 30m` (or `postdate-at: <time>`); the message waits in Redis, \
and arrives on its target topic at its due time. Which topics those are, a configuration file says: `config/kafka.toml` is the smallest \
that works, `config/default.toml` explains every option.";

const AFTER: &str = "Environment:
  POSTDATE_<KEY>    lies over a key of the file, with __ for each dot: POSTDATE_ROUTE__ORDERS__MAX_DELAY=7d sets route.orders.max_delay.
                    Lists are written as in the file (POSTDATE_ROLES='[\"timer\"]'); text that looks like a number needs quotes ('\"0123\"').

Signals:
  SIGTERM, SIGINT   take nothing new, finish what is under way, give the shards back, and exit with 0.

Exit codes:
  0    done, or stopped as asked
  1    failed; the reason is the last thing that was logged
  2    wrong usage or configuration; nothing was started or changed";

/// What the process was asked to do.
#[derive(Debug, Parser)]
#[command(name = "postdate", version, about = "Delayed delivery for Kafka", long_about = ABOUT, after_long_help = AFTER)]
#[command(after_help = "`postdate --help` explains more, and lists the exit codes.", disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// See [`Cli`].
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the service until it is told to stop
    ///
    /// Runs what `roles` names: ingress, which reads the sources and stores messages, and timer, which delivers them when they are due.
    /// More processes with the same configuration share the work. /readyz on the address `admin.listen` says whether all is well.
    Run(Run),
    /// Erases what the store keeps of a source topic that was recreated
    ///
    /// A shard whose source topic was deleted and created again stops, for its positions mean nothing in the new topic. Stop the processes
    /// that serve the route, run this, and start them again: reading begins anew at the first retained record. While messages of the old
    /// topic still wait, nothing is erased unless --discard says so.
    Reset(Reset),
}

/// See [`Command::Run`].
#[derive(Debug, Args)]
pub struct Run {
    /// The configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// See [`Command::Reset`].
#[derive(Debug, Args)]
pub struct Reset {
    /// The configuration file (TOML) of the service
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The route whose shards are meant
    #[arg(long)]
    pub route: String,
    /// The source topic that was recreated
    #[arg(long)]
    pub topic: String,
    /// Only this partition, instead of all that the topic has now
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(0..))]
    pub partition: Option<i32>,
    /// Also erase messages that still wait: they will never be delivered
    #[arg(long)]
    pub discard: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_fits_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_reset_names_route_topic_and_partition() {
        let line =
            ["postdate", "reset", "--config", "c.toml", "--route", "orders", "--topic", "orders.delayed", "--partition", "3", "--discard"];
        let Command::Reset(reset) = Cli::try_parse_from(line).unwrap().command else { panic!("another command") };
        assert_eq!(
            (reset.route.as_str(), reset.topic.as_str(), reset.partition, reset.discard),
            ("orders", "orders.delayed", Some(3), true)
        );
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in [&["postdate"][..], &["postdate", "run"], &["postdate", "rnu"], &["postdate", "reset", "--config", "c", "--route", "r"]]
        {
            assert!(Cli::try_parse_from(line).is_err(), "{line:?}");
        }
        let negative = ["postdate", "reset", "--config", "c", "--route", "r", "--topic", "t", "--partition=-1"];
        assert!(Cli::try_parse_from(negative).is_err());
    }

    #[test]
    fn the_help_tells_the_exit_codes() {
        let help = Cli::command().render_long_help().to_string();
        assert!(
            ["Exit codes:", "  0 ", "  1 ", "  2 ", "POSTDATE_ROUTE__ORDERS__MAX_DELAY"].iter().all(|text| help.contains(text)),
            "{help}"
        );
    }
}
