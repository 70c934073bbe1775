//! Parses the command line of a chaos run.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::fault::Subject;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    AtLeastOnce,
    ExactlyOnce,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtLeastOnce => "at-least-once",
            Self::ExactlyOnce => "exactly-once",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broker {
    Kafka,
    Nats,
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kafka => "Kafka",
            Self::Nats => "NATS",
        })
    }
}

/// The servers of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    Sentinel,
    Cluster,
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "one Redis",
            Self::Sentinel => "two Redis servers with three sentinels",
            Self::Cluster => "a Redis Cluster of three primaries with a replica each",
        })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) length: Duration,
    pub(crate) broker: Broker,
    /// Number of brokers. Each topic or stream is replicated across all of them.
    pub(crate) brokers: usize,
    pub(crate) mode: Mode,
    /// Messages per second.
    pub(crate) rate: u32,
    pub(crate) has_faults: bool,
    /// The part of the system that all faults hit. Without it, faults hit all parts.
    pub(crate) faults: Option<Subject>,
    pub(crate) redis: Topology,
    /// Ends the run after so many failovers of Redis, instead of after `length`.
    pub(crate) failovers: Option<usize>,
    pub(crate) seed: u64,
    pub(crate) report: Option<PathBuf>,
}

impl Asked {
    pub(crate) fn from(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut asked = Self {
            length: Duration::from_secs(60),
            broker: Broker::Kafka,
            brokers: 3,
            mode: Mode::AtLeastOnce,
            rate: 500,
            has_faults: true,
            faults: None,
            redis: Topology::Single,
            failovers: None,
            seed: 1,
            report: None,
        };
        // `cargo bench` adds `--bench`.
        for word in words.filter(|word| word != "--bench") {
            let wrong = || {
                format!(
                    "{word}: write for=30m, broker=kafka or broker=nats, brokers=1 or brokers=3, mode=at-least-once or mode=exactly-once, rate=500, faults=broker or faults=none, redis=single, \
                     redis=sentinel or redis=cluster, failovers=50, seed=7, or report=FILE"
                )
            };
            let (key, value) = word.split_once('=').ok_or_else(wrong)?;
            match key {
                "for" => asked.length = length(value).ok_or_else(wrong)?,
                "broker" if value == "kafka" => asked.broker = Broker::Kafka,
                "broker" if value == "nats" => asked.broker = Broker::Nats,
                "brokers" => {
                    asked.brokers = value
                        .parse()
                        .ok()
                        .filter(|count| [1, 3].contains(count))
                        .ok_or_else(wrong)?;
                }
                "mode" if value == "at-least-once" => asked.mode = Mode::AtLeastOnce,
                "mode" if value == "exactly-once" => asked.mode = Mode::ExactlyOnce,
                "rate" => {
                    asked.rate = value
                        .parse()
                        .ok()
                        .filter(|rate| (1..=5_000).contains(rate))
                        .ok_or_else(wrong)?;
                }
                "faults" if value == "none" => asked.has_faults = false,
                "faults" => {
                    asked.faults = Some(match value {
                        "timers" => Subject::Timers,
                        "ingresses" => Subject::Ingresses,
                        "redis" => Subject::Redis,
                        "broker" => Subject::Broker,
                        _ => return Err(wrong()),
                    });
                }
                "redis" if value == "single" => asked.redis = Topology::Single,
                "redis" if value == "sentinel" => asked.redis = Topology::Sentinel,
                "redis" if value == "cluster" => asked.redis = Topology::Cluster,
                "failovers" => asked.failovers = Some(value.parse().map_err(|_| wrong())?),
                "seed" => asked.seed = value.parse().map_err(|_| wrong())?,
                "report" => asked.report = Some(value.into()),
                _ => return Err(wrong()),
            }
        }
        if asked.failovers.is_some() && asked.redis == Topology::Single {
            return Err("failovers=50 needs redis=sentinel or redis=cluster".to_owned());
        }
        if asked.failovers.is_some() && !asked.has_faults {
            return Err("failovers=50 needs faults".to_owned());
        }
        if (asked.broker, asked.mode) == (Broker::Nats, Mode::ExactlyOnce) {
            return Err("mode=exactly-once needs transactions, which NATS has not".to_owned());
        }
        Ok(asked)
    }
}

fn length(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()? * seconds))
        .filter(|length| !length.is_zero())
}
