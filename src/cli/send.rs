//! Flags of `postdate send`, `postdate cancel` and `postdate reschedule`.

use super::OutputArgs;
use clap::{ArgGroup, Args};
use std::path::PathBuf;

pub(super) const HELP_AFTER: &str =
    "The command rejects messages that the service would reject, with the same code and text, before it sends anything.

Examples:
  postdate send --config postdate.toml --route orders --key order-42 --in 30m --id order-42 'still unpaid?'
  postdate send --config postdate.toml --route orders --at 2027-01-31T09:00:00Z --file mail.json --header type=mail
  echo 'good morning' | postdate send --config postdate.toml --route orders --in 8h -
  postdate send --config postdate.toml --route orders --key order-42 --cancel --id order-42 --reply

Exit codes:
  0    sent, and acknowledged by all in-sync replicas; with --reply: scheduled, replaced or cancelled
  1    the broker rejected it or did not answer; if the command says that it may have arrived, check before you retry.
       With --reply: no answer within 30 seconds, or the record was refused
  2    wrong usage or configuration, or the service would reject it; nothing was sent
  3    with --reply: no message waits with the id on the partition
  4    with --reply: the message was being sent, so the cancel was too late";

pub(super) const CANCEL_AFTER: &str =
    "The command looks up the partition of the id. If no message waits with it, name the partition with --key, --partition or --subject.

Examples:
  postdate cancel --config postdate.toml --route orders --id order-42
  postdate cancel --config postdate.toml --route orders --id order-42 --reply

Exit codes:
  0    sent, and acknowledged by all in-sync replicas; with --reply: cancelled
  1    the broker rejected it or did not answer. With --reply: no answer within 30 seconds, or the record was refused
  2    wrong usage or configuration, or the partition of the id is unknown; nothing was sent
  3    with --reply: no message waits with the id on the partition
  4    with --reply: the message was being sent, so the cancel was too late";

pub(super) const RESCHEDULE_AFTER: &str =
    "A message can only be put off: its new due time is later than the one that it has. To deliver it earlier, send it again with its id.
The command finds the partition as `postdate cancel` does.

Examples:
  postdate reschedule --config postdate.toml --route orders --id order-42 --in 30m
  postdate reschedule --config postdate.toml --route orders --id order-42 --at 2027-01-31T09:00:00Z --reply

Exit codes:
  0    sent, and acknowledged by all in-sync replicas; with --reply: rescheduled
  1    the broker rejected it or did not answer. With --reply: no answer within 30 seconds, or the record was refused
  2    wrong usage or configuration, or the partition of the id is unknown; nothing was sent
  3    with --reply: no message waits with the id on the partition
  4    with --reply: the message was being sent, so the reschedule was too late";

/// Flags of [`Command::Send`](super::Command::Send).
#[derive(Clone, Debug, Default, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["payload", "file", "cancel"]))]
#[command(group = ArgGroup::new("when").required(true).args(["delay", "at", "cancel"]))]
pub struct SendArgs {
    /// The configuration file (TOML) of the service
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The route that delivers the message
    #[arg(long)]
    pub route: String,
    /// The source topic; default: the route's first
    #[arg(long)]
    pub topic: Option<String>,
    /// The subject to publish to; required if the route reads several subjects of NATS
    #[arg(long)]
    pub subject: Option<String>,
    /// The record's key, which chooses the partition of the source and of the target
    #[arg(long, allow_hyphen_values = true)]
    pub key: Option<String>,
    /// The partition of the source topic; default: chosen by the key
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub partition: Option<i32>,
    /// A header of the message; can be repeated
    #[arg(long = "header", value_name = "NAME=VALUE")]
    pub headers: Vec<String>,
    /// The payload; `-` reads standard input
    pub payload: Option<String>,
    /// A file that contains the payload
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The delay, as in `postdate-after`: 30m, 1h30m, 250ms, 7d, or milliseconds
    #[arg(long = "in", value_name = "DELAY", allow_hyphen_values = true)]
    pub delay: Option<String>,
    /// The due time, as in `postdate-at`: 2027-01-31T09:00:00Z, or milliseconds since 1970
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub at: Option<String>,
    /// The `postdate-id`; the message replaces one that waits with this id in the same partition
    #[arg(long)]
    pub id: Option<String>,
    /// The target topic; default: the route's target
    #[arg(long, value_name = "TOPIC")]
    pub to: Option<String>,
    /// Cancel the message that waits with --id, in its partition; if none is found, in the partition
    /// of --key
    #[arg(long, requires = "id")]
    pub cancel: bool,
    /// Give the message that waits with --id the due time
    #[arg(skip)]
    pub reschedule: bool,
    /// The origin of the message to change, in place of --id
    #[arg(skip)]
    pub of: Option<String>,
    /// Wait for the answer, and print the outcome. TOPIC is a topic or subject in `allow_replies` of
    /// the route; default: its first name without a pattern, or an inbox on NATS
    #[arg(long, value_name = "TOPIC", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub reply: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of [`Command::Cancel`](super::Command::Cancel).
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["id", "of"]))]
pub struct CancelOneArgs {
    /// The configuration file (TOML) of the service
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The route that would deliver the message
    #[arg(long)]
    pub route: String,
    /// The `postdate-id` of the message
    #[arg(long)]
    pub id: Option<String>,
    /// The origin of a message that has no id, as answers and `postdate messages` show it. The route must have
    /// `change_by_origin`
    #[arg(long, value_name = "ORIGIN")]
    pub of: Option<String>,
    /// The source topic; default: the route's first
    #[arg(long)]
    pub topic: Option<String>,
    /// The subject to publish to; required if the route reads several subjects of NATS
    #[arg(long)]
    pub subject: Option<String>,
    /// The key of the message, which chooses the partition if none is found
    #[arg(long, allow_hyphen_values = true)]
    pub key: Option<String>,
    /// The partition of the source topic; default: where the id is found
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub partition: Option<i32>,
    /// Wait for the answer, and print the outcome; as in `postdate send`
    #[arg(long, value_name = "TOPIC", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub reply: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of [`Command::Reschedule`](super::Command::Reschedule).
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("when").required(true).args(["delay", "at"]))]
pub struct RescheduleArgs {
    #[command(flatten)]
    pub message: CancelOneArgs,
    /// The delay from now, as in `postdate-after`: 30m, 1h30m, 250ms, 7d, or milliseconds
    #[arg(long = "in", value_name = "DELAY", allow_hyphen_values = true)]
    pub delay: Option<String>,
    /// The new due time, as in `postdate-at`: 2027-01-31T09:00:00Z, or milliseconds since 1970
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub at: Option<String>,
}

impl From<RescheduleArgs> for SendArgs {
    fn from(reschedule: RescheduleArgs) -> Self {
        Self {
            cancel: false,
            reschedule: true,
            delay: reschedule.delay,
            at: reschedule.at,
            ..reschedule.message.into()
        }
    }
}

impl SendArgs {
    /// True if the record changes a message that waits.
    pub(crate) fn is_change(&self) -> bool {
        self.cancel || self.reschedule
    }
}

impl From<CancelOneArgs> for SendArgs {
    fn from(cancel: CancelOneArgs) -> Self {
        Self {
            config: cancel.config,
            route: cancel.route,
            topic: cancel.topic,
            subject: cancel.subject,
            key: cancel.key,
            partition: cancel.partition,
            id: cancel.id,
            of: cancel.of,
            cancel: true,
            reply: cancel.reply,
            output: cancel.output,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::Cli;
    use clap::Parser as _;

    #[test]
    fn a_message_has_one_payload_and_one_time_and_a_cancel_has_an_id() {
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
            &["--cancel", "--id", "a"],
            &["--cancel", "--id", "a", "--partition", "3"],
            &["--cancel", "--id", "a", "--key", "k", "--reply"],
            &["--in", "30m", "--reply", "text"],
            &["--in", "30m", "--reply=replies", "text"],
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
            &["--cancel", "--key", "k"],
            &["--cancel", "--id", "a", "--key", "k", "text"],
            &["--cancel", "--id", "a", "--key", "k", "--in", "1s"],
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_reschedule_has_an_id_and_one_time() {
        let parse = |line: &[&str]| {
            let all = ["postdate", "reschedule", "--config", "c", "--route", "r"];
            Cli::try_parse_from(all.iter().chain(line))
        };
        for line in [
            &["--id", "a", "--in", "30m"][..],
            &["--id", "a", "--at", "5", "--partition", "3", "--reply"],
            &["--of", "prod/r/t/0/1", "--at", "5"],
        ] {
            assert!(parse(line).is_ok(), "{line:?}");
        }
        for line in [
            &["--id", "a"][..],
            &["--in", "30m"],
            &["--id", "a", "--of", "o", "--in", "30m"],
            &["--id", "a", "--in", "30m", "--at", "5"],
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }
}
