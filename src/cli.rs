//! The command line: what can be asked for. Does none of it.

use crate::limit::{DEMO_DURATION_MAX, DEMO_DURATION_MIN};
use crate::model::{Delay, parse_after};
use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;
use std::time::Duration;

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
  1    failed; the reason is the last thing that was said. `check`: an item failed. `ledger`: one does not balance
  2    wrong usage or configuration; nothing was started or changed
  3    `pending --id`: nothing waits under that id";

const PENDING_AFTER: &str = "Counts are upper bounds: messages are stored in batches, and a batch counts until its last one is delivered;
cancelled ones count along. With the embedded store and a running service, the service is asked, at `admin.listen`.

Examples:
  postdate pending --config postdate.toml
  postdate pending --config postdate.toml --route orders --json | jq '.hours[] | [.start, .messages]'
  postdate pending --config postdate.toml --id order-42 || echo 'it is gone'

Exit codes:
  0    told what waits; with --id: something waits under it
  1    the store, or the service that has it, cannot be asked
  2    wrong usage or configuration
  3    with --id: nothing waits under it";

const LEDGER_AFTER: &str =
    "For each shard: accepted = delivered + cancelled + dead letters + set aside + sent back + pending. With the embedded store and a
running service, the service is asked, at `admin.listen`.

Examples:
  postdate ledger --config postdate.toml
  postdate ledger --config postdate.toml --json | jq '.shards[] | select(.balances | not)'

Exit codes:
  0    every ledger balances, as far as can be known: one that a loss of the store made unsure counts as balanced
  1    one does not balance; or the store, or the service that has it, cannot be asked
  2    wrong usage or configuration";

const SEND_AFTER: &str = "What the service would refuse is refused here, with the same code and the same words, before anything is sent.

Examples:
  postdate send --config postdate.toml --route orders --key order-42 --in 30m --id order-42 'still unpaid?'
  postdate send --config postdate.toml --route orders --at 2027-01-31T09:00:00Z --file mail.json --header type=mail
  echo 'good morning' | postdate send --config postdate.toml --route orders --in 8h -
  postdate send --config postdate.toml --route orders --key order-42 --cancel --id order-42

Exit codes:
  0    sent, and acknowledged by all in-sync replicas
  1    the broker refused it, or did not answer; if it is said that it may have arrived, look before you send again
  2    wrong usage or configuration, or the service would refuse it; nothing was sent";

const CHECK_AFTER: &str = "It changes nothing, and asks with the credentials of the configuration: run it where the service will run.

Examples:
  postdate check --config postdate.toml
  postdate check --config postdate.toml --json | jq '.items[] | select(.verdict != \"ok\")'

Exit codes:
  0    no item failed; warnings do not count
  1    an item failed
  2    wrong usage or configuration; nothing was looked at";

const COMPLETION_AFTER: &str = "Examples:
  bash   postdate completion bash > /etc/bash_completion.d/postdate
  zsh    postdate completion zsh > \"${fpath[1]}/_postdate\"
  fish   postdate completion fish > ~/.config/fish/completions/postdate.fish";

/// What the process was asked to do.
#[derive(Debug, Parser)]
#[command(name = "postdate", version, about = "Delayed delivery for Kafka", long_about = ABOUT, after_long_help = AFTER)]
#[command(
    after_help = "`postdate --help` explains more, and lists the exit codes.",
    disable_help_subcommand = true
)]
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
    Run(RunArgs),
    /// Shows the whole service at work, without any server
    ///
    /// A Kafka in this process, the service with a store in a temporary folder, and a shop that sends for later: what waits, what arrives and
    /// how late, live. It prints how to send messages of your own to it, with kcat or any client built on librdkafka (the Java client
    /// cannot talk to it). On a terminal it is a picture, in which the service's warnings and errors have a line and are printed again at
    /// the end; elsewhere, or with --plain, it is a line a second, and logs go to stderr.
    ///
    /// With --config it is the same show on your Kafka, by a route of yours: it says where it will write before it does, and counts only
    /// its own messages.
    ///
    /// q, Ctrl-C or SIGTERM ends the sending and waits for what is still due; a second time it leaves at once. Exit code 0: all that was
    /// sent has arrived, exactly once and not early. 1: it has not, or was not waited for.
    Demo(DemoArgs),
    /// Erases what the store keeps of a source topic that was recreated
    ///
    /// A shard whose source topic was deleted and created again stops, for its positions mean nothing in the new topic. Stop the processes
    /// that serve the route, run this, and start them again: reading begins anew at the first retained record. While messages of the old
    /// topic still wait, nothing is erased unless --discard says so. Where messages arrive on NATS, it ends only when the duplicate windows
    /// of the streams there have passed: until then new messages with the ids of old ones would be dropped.
    Reset(ResetArgs),
    /// Tells what waits, or where one message does
    ///
    /// Totals by route, by shard (a source partition) and by hour of the due times; what waits under routes that the configuration no longer
    /// has; what was set aside. With --id: the message that waits under that `postdate-id`.
    #[command(after_long_help = PENDING_AFTER)]
    Pending(PendingArgs),
    /// Tells what became of the messages that were accepted, and whether it adds up
    ///
    /// The store keeps a ledger of each shard (a source partition) beside its messages, through restarts and takeovers.
    #[command(after_long_help = LEDGER_AFTER)]
    Ledger(LedgerArgs),
    /// Sends one delayed message, or cancels one
    ///
    /// Writes a record with Postdate's headers to the route's source topic, as any producer could, and tells where it went and when it is due.
    #[command(after_long_help = SEND_AFTER)]
    Send(Box<SendArgs>),
    /// Tells what would work with a configuration, and what would not
    ///
    /// Looks at the Kafka clusters and their topics, at the store, at clocks, and at what waits; each item is ok, warn or fail, with what was
    /// found and what to do.
    #[command(after_long_help = CHECK_AFTER)]
    Check(CheckArgs),
    /// Prints the completion script of a shell
    #[command(after_long_help = COMPLETION_AFTER)]
    Completion(CompletionArgs),
}

/// See [`Command::Run`].
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// See [`Command::Demo`].
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// How long to send: 5s to 1h. It ends when the last has arrived
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = demo_length)]
    pub duration: Duration,
    /// A line a second instead of the picture
    #[arg(long)]
    pub plain: bool,
    /// Show it on the Kafka and the store of this configuration file (TOML) instead
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Show it on a NATS server with JetStream instead, in a stream of its own that is taken away at the end
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    pub nats: Option<String>,
    /// The route that is used, if the configuration has several
    #[arg(long, requires = "config")]
    pub route: Option<String>,
    /// Begin without asking
    #[arg(long, requires = "config")]
    pub yes: bool,
}

fn demo_length(text: &str) -> Result<Duration, String> {
    let length = parse_after(text)
        .map(Delay::as_duration)
        .ok_or("write it with a unit: 30s, 2m")?;
    if (DEMO_DURATION_MIN..=DEMO_DURATION_MAX).contains(&length) {
        Ok(length)
    } else {
        Err("it takes 5s to 1h".to_owned())
    }
}

/// See [`Command::Reset`].
#[derive(Debug, Args)]
pub struct ResetArgs {
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
    /// End at once, though streams of NATS on which messages arrive still pass over what bears the ids of old ones
    #[arg(long)]
    pub no_wait: bool,
}

/// See [`Command::Pending`].
#[derive(Debug, Args)]
pub struct PendingArgs {
    /// The configuration file (TOML) of the service
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Only this route, whether or not the configuration still has it
    #[arg(long)]
    pub route: Option<String>,
    /// Look for the message that waits under this `postdate-id`
    #[arg(long)]
    pub id: Option<String>,
    /// Print one JSON document, which docs/commands.md describes
    #[arg(long)]
    pub json: bool,
}

/// See [`Command::Ledger`].
#[derive(Debug, Args)]
pub struct LedgerArgs {
    /// The configuration file (TOML) of the service
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Only this route, whether or not the configuration still has it
    #[arg(long)]
    pub route: Option<String>,
    /// Print one JSON document, which docs/commands.md describes
    #[arg(long)]
    pub json: bool,
}

/// See [`Command::Send`].
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["payload", "file", "cancel"]))]
#[command(group = ArgGroup::new("when").required(true).args(["delay", "at", "cancel"]))]
#[command(group = ArgGroup::new("place").multiple(true).args(["key", "partition", "subject"]))]
pub struct SendArgs {
    /// The configuration file (TOML) of the service
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The route that is to deliver it
    #[arg(long)]
    pub route: String,
    /// The source topic, if the route has several; else its first
    #[arg(long)]
    pub topic: Option<String>,
    /// The subject to send to, if the route reads NATS and could read it by several
    #[arg(long)]
    pub subject: Option<String>,
    /// The record's key: it decides the partition, there and on the target
    #[arg(long, allow_hyphen_values = true)]
    pub key: Option<String>,
    /// This partition of the source topic, instead of the key's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub partition: Option<i32>,
    /// A header of the message's own; may be given many times
    #[arg(long = "header", value_name = "NAME=VALUE")]
    pub headers: Vec<String>,
    /// The payload; `-` reads standard input
    pub payload: Option<String>,
    /// A file that holds the payload
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Due after this delay, as `postdate-after` has it: 30m, 1h30m, 250ms, 7d, or milliseconds
    #[arg(long = "in", value_name = "DELAY", allow_hyphen_values = true)]
    pub delay: Option<String>,
    /// Due at this time, as `postdate-at` has it: 2027-01-31T09:00:00Z, or epoch milliseconds
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub at: Option<String>,
    /// The message's `postdate-id`: it replaces what waits under it on the same partition
    #[arg(long)]
    pub id: Option<String>,
    /// Another target topic than the route's default
    #[arg(long, value_name = "TOPIC")]
    pub to: Option<String>,
    /// Cancel what waits under --id, on the partition on which it does; if that cannot be looked up, where --key leads
    #[arg(long, requires = "id", requires = "place")]
    pub cancel: bool,
    /// Print one JSON document, which docs/commands.md describes
    #[arg(long)]
    pub json: bool,
}

/// See [`Command::Check`].
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration file (TOML) to be checked
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Print one JSON document, which docs/commands.md describes
    #[arg(long)]
    pub json: bool,
}

/// See [`Command::Completion`].
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell
    pub shell: Shell,
}

impl CompletionArgs {
    /// The script, for the whole command line.
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
    fn the_command_line_fits_together() {
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
        ];
        let Command::Reset(reset) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command")
        };
        assert_eq!(
            (
                reset.route.as_str(),
                reset.topic.as_str(),
                reset.partition,
                reset.discard
            ),
            ("orders", "orders.delayed", Some(3), true)
        );
    }

    #[test]
    fn a_demo_needs_nothing_and_lasts_for_a_time_that_it_can() {
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
    fn what_is_not_understood_is_refused() {
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
    fn a_message_has_one_payload_and_one_time_and_a_cancel_has_an_id_and_a_place() {
        let parse = |line: &[&str]| {
            Cli::try_parse_from(
                ["postdate", "send", "--config", "c", "--route", "r"]
                    .iter()
                    .chain(line),
            )
        };
        for line in [
            &["--in", "30m", "text"][..],
            &["--in", "-5", "-"],
            &["--at", "-1", "--file", "f"],
            &["--cancel", "--id", "a", "--key", "k"],
            &["--cancel", "--id", "a", "--partition", "3"],
        ] {
            assert!(
                parse(line).is_ok(),
                "{line:?}: {}",
                parse(line).unwrap_err()
            );
        }
        for line in [
            &["text"][..],
            &["--in", "30m"],
            &["--in", "30m", "--at", "0", "text"],
            &["--in", "30m", "--file", "f", "text"],
            &["--cancel", "--id", "a"],
            &["--cancel", "--key", "k"],
            &["--cancel", "--id", "a", "--key", "k", "text"],
            &["--cancel", "--id", "a", "--key", "k", "--in", "1s"],
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
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
    fn the_help_tells_the_exit_codes() {
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
