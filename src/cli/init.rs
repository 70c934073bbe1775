//! Defines the flags of `postdate init`, and those that it shares with `postdate check`.

use super::{CheckArgs, OutputArgs};
use crate::config::BrokerKind;
use clap::Args;
use std::path::PathBuf;

pub(super) const HELP_AFTER: &str =
    "At a terminal the command asks for what the flags do not say. Elsewhere it takes the defaults, but needs --kafka or --nats.
A file with other content is not overwritten without --force. A login is not asked for: add it to the file, then run
`postdate check --fix`.

Examples:
  postdate init
  postdate init --kafka kafka:9092 --store redis://redis:6379 --route orders --max-delay 7d
  postdate init --nats nats://nats:4222 --source DELAYED:delayed.orders --target orders --apply

Exit codes:
  0    the file is written, and the plan, or the applied changes, make the configuration work
  1    an item failed that the plan does not repair, or a change failed; the file is written
  2    wrong usage, or the file exists; nothing was written";

/// The flags that name the servers.
pub(crate) const SERVER_FLAGS: &str = "--kafka HOST:PORT, or --nats URL";
/// The question for them.
pub(crate) const SERVERS_QUESTION: &str =
    "Kafka brokers as host:port, or NATS servers as nats://host:port";

/// The size of topics and streams that a plan creates.
#[derive(Clone, Debug, Args)]
pub struct SizeArgs {
    /// Partitions of a new topic; a new dead-letter topic has one
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..))]
    pub partitions: u16,
    /// Replicas of a new topic or stream; default: 3, or as many as there are brokers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub replicas: Option<u8>,
}

/// Flags of [`Command::Init`](super::Command::Init).
#[derive(Clone, Debug, Args)]
pub struct InitArgs {
    /// The configuration file to write
    #[arg(long, value_name = "FILE", default_value = "postdate.toml")]
    pub config: PathBuf,
    /// Overwrite a file with other content
    #[arg(long)]
    pub force: bool,
    /// Make the changes of the plan: create topics or streams, and raise retention
    #[arg(long)]
    pub apply: bool,
    /// Brokers of a Kafka cluster, with commas between them
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "nats")]
    pub kafka: Option<String>,
    /// Servers of a NATS cluster, with commas between them
    #[arg(long, value_name = "URL")]
    pub nats: Option<String>,
    /// Where messages wait: redis://host:port, or a folder for a single process; default:
    /// ./postdate-data
    #[arg(long, value_name = "URL|FOLDER")]
    pub store: Option<String>,
    /// The name of this installation, which must not change later; default: prod
    #[arg(long, value_name = "NAME")]
    pub deployment: Option<String>,
    /// The name of the route; default: orders
    #[arg(long, value_name = "NAME")]
    pub route: Option<String>,
    /// The topic to which producers write; default: ROUTE.delayed, or DELAYED:delayed.ROUTE
    #[arg(long, value_name = "TOPIC|STREAM:SUBJECT")]
    pub source: Option<String>,
    /// The topic or subject to which messages are delivered; default: ROUTE
    #[arg(long, value_name = "TOPIC|SUBJECT")]
    pub target: Option<String>,
    /// The topic or subject for rejected messages; default: ROUTE.dead, or dead.ROUTE
    #[arg(long, value_name = "TOPIC|SUBJECT")]
    pub dead_letter: Option<String>,
    /// The longest delay that the route accepts; default: 30d
    #[arg(long, value_name = "DELAY")]
    pub max_delay: Option<String>,
    #[command(flatten)]
    pub size: SizeArgs,
}

impl InitArgs {
    /// The servers that a flag names, and their kind.
    pub(crate) fn servers(&self) -> Option<(BrokerKind, &str)> {
        let flags = [
            (BrokerKind::Kafka, &self.kafka),
            (BrokerKind::Nats, &self.nats),
        ];
        let mut given = flags.into_iter();
        given.find_map(|(kind, servers)| Some((kind, servers.as_deref()?)))
    }

    /// The check that follows.
    pub fn check(&self) -> CheckArgs {
        CheckArgs {
            config: self.config.clone(),
            fix: true,
            apply: self.apply,
            size: self.size.clone(),
            output: OutputArgs::default(),
        }
    }
}
