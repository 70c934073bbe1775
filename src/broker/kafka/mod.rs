//! Kafka, on librdkafka: what source, target and catalog share of a cluster and its client options. It neither reads nor sends.
//!
//! | file | duty |
//! |---|---|
//! | `source` | the [`Source`](super::Source) port; one thread that serves the two below |
//! | `member` | the consumer that belongs to the group: partitions gained and lost, commits; it reads nothing |
//! | `reader` | the consumer that reads at explicit offsets; it belongs to no group |
//! | `catalog` | the [`Catalog`](super::Catalog) port; what is asked of topics, offsets and commits |
//! | `inspection` | the [`Inspection`](super::inspection::Inspection) port: what a cluster is set to |
//! | `inquiry` | the thread that asks, and watches over what changes unasked |
//! | `target` | the [`Target`](super::Target) port |
//! | `succession` | producers that replace each other when one failed for good |
//! | `lane` | one producer and the thread that serves its reports |
//! | `transact` | the [`Transactors`](super::Transactors) port |
//! | `transactor` | one transactional producer and its thread |
//! | `mending` | before it begins: the end of what a broker has left open of the last one |
//! | `hanging` | where that is seen, and how it is ended |
//! | `last` | how it was to end |
//! | `wire` | requests that librdkafka has no call for |
//! | `failure` | what each of librdkafka's errors means to the port's callers |
//! | `health` | whether the cluster answers, said once per change |
//! | `mock` | a broker in this process, where there is no other |
//! | `raw` | the calls that librdkafka's Rust crate has no safe form of |

mod catalog;
#[cfg(feature = "test-support")]
mod contract;
mod failure;
mod hanging;
mod health;
mod inquiry;
mod inspection;
mod lane;
mod last;
mod member;
mod mending;
mod mock;
mod namesake;
mod raw;
mod reader;
mod source;
mod succession;
mod target;
mod topics;
mod transact;
mod transactor;
mod wire;

pub(crate) use catalog::KafkaCatalog;
#[cfg(feature = "test-support")]
pub use contract::{kafka_contract, kafka_outage_contract};
pub(crate) use mock::InProcessKafka;
pub(crate) use source::KafkaSource;
pub(crate) use target::KafkaTarget;
pub(crate) use transact::KafkaTransactionalProducers;

use super::{Error, client_thread};
use crate::limit::{KAFKA_METADATA_AGE_MAX, KAFKA_METADATA_INTERVAL, KAFKA_RECONNECT_DELAY_MAX};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A Kafka cluster as the configuration names it.
#[derive(Clone)]
pub(crate) struct Cluster {
    /// The name in the configuration, for logs.
    pub(crate) name: Arc<str>,
    /// `host:port` of some brokers; the others are learned from them.
    pub(crate) brokers: Vec<String>,
    /// Handed to librdkafka as they are, but for what Postdate's promises rest on. Some are secrets: never print them.
    pub(crate) properties: BTreeMap<String, String>,
}

/// What one kind of client sets: `defaults`, and `bounds` from `limit.rs`, give way to the cluster's properties; `owned` do not.
struct ClientOptions {
    defaults: &'static [(&'static str, &'static str)],
    limits: &'static [(&'static str, u64)],
    enforced: &'static [(&'static str, &'static str)],
}

/// Of every client.
const ALL_CLIENTS: ClientOptions = ClientOptions {
    defaults: &[
        ("client.id", "postdate"),
        ("socket.keepalive.enable", "true"),
        // What brokers may ask of clients' own metrics. A client that ends waits up to a second to hand in the last of them.
        ("enable.metrics.push", "false"),
    ],
    limits: &[
        (
            "topic.metadata.refresh.interval.ms",
            millis(KAFKA_METADATA_INTERVAL),
        ),
        ("metadata.max.age.ms", millis(KAFKA_METADATA_AGE_MAX)),
        (
            "reconnect.backoff.max.ms",
            millis(KAFKA_RECONNECT_DELAY_MAX),
        ),
    ],
    enforced: &[],
};

/// Owned by every client that sends.
const PRODUCER_ENFORCED: &[(&str, &str)] = &[
    ("enable.idempotence", "true"),
    ("request.required.acks", "all"),
    ("partitioner", "murmur2_random"),
    // The most that librdkafka takes: the broker is to judge.
    ("message.max.bytes", "1000000000"),
    ("delivery.report.only.error", "false"),
];

/// As librdkafka's options count.
const fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

const fn kbytes(bytes: u64) -> u64 {
    bytes / 1024
}

/// The longest name of a topic.
const TOPIC_BYTES_MAX: usize = 249;

/// Whether Kafka can have a topic of that name. One that it cannot have must not reach librdkafka, which ends a name at a zero byte, takes
/// one that begins with `^` for a pattern, and asks the brokers for any other with every refresh from then on.
fn is_valid_topic_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=TOPIC_BYTES_MAX).contains(&name.len())
        && name.bytes().all(fits)
        && name != "."
        && name != ".."
}

fn invalid_topic_name(name: &str) -> String {
    format!(
        "`{}` is not a name that a topic can have: 1-{TOPIC_BYTES_MAX} of A-Z a-z 0-9 . _ -, neither . nor ..",
        name.escape_debug()
    )
}

/// Names that librdkafka has twice. Which of the two won would be left to chance.
const ALIASES: &[(&str, &str)] = &[
    ("acks", "request.required.acks"),
    ("bootstrap.servers", "metadata.broker.list"),
    ("compression.type", "compression.codec"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("linger.ms", "queue.buffering.max.ms"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("max.partition.fetch.bytes", "fetch.message.max.bytes"),
    ("retries", "message.send.max.retries"),
    ("sasl.mechanism", "sasl.mechanisms"),
];

impl Cluster {
    /// The options of a client; `more` are owned too, but known only now.
    fn config(&self, side: &ClientOptions, more: &[(&str, String)]) -> ClientConfig {
        let brokers = [("metadata.broker.list", self.brokers.join(","))];
        let owned: BTreeMap<&str, &str> = side
            .enforced
            .iter()
            .copied()
            .chain(
                brokers
                    .iter()
                    .chain(more)
                    .map(|(name, value)| (*name, value.as_str())),
            )
            .map(|(name, value)| (canonical_name(name), value))
            .collect();
        let bounds: Vec<_> = ALL_CLIENTS
            .limits
            .iter()
            .chain(side.limits)
            .map(|(name, bound)| (*name, bound.to_string()))
            .collect();
        let defaults = ALL_CLIENTS.defaults.iter().chain(side.defaults).copied();
        let mut options: BTreeMap<&str, &str> = defaults
            .chain(bounds.iter().map(|(name, bound)| (*name, bound.as_str())))
            .map(|(name, value)| (canonical_name(name), value))
            .collect();
        for (name, value) in &self.properties {
            if owned.contains_key(canonical_name(name)) {
                tracing::warn!(cluster = %self.name, property = name, "a property that postdate's promises rest on is left as it is");
            }
            options.insert(canonical_name(name), value);
        }
        options.extend(owned);
        let mut config: ClientConfig = options
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        config.set_log_level(log_level());
        config
    }
}

fn canonical_name(name: &str) -> &str {
    ALIASES
        .iter()
        .find(|(alias, _)| *alias == name)
        .map_or(name, |(_, real)| real)
}

/// librdkafka's own lines are for whoever asks for them: what an operator must know comes from [`health`].
fn log_level() -> RDKafkaLogLevel {
    if tracing::enabled!(target: "librdkafka", tracing::Level::DEBUG) {
        RDKafkaLogLevel::Debug
    } else {
        RDKafkaLogLevel::Error
    }
}

/// Why a client could not be made: its options, for it does not need a broker to be made.
fn client_creation_error(error: &KafkaError) -> Error {
    match error {
        KafkaError::ClientConfig(_, reason, name, value)
            if value.is_empty() || !reason.contains(value.as_str()) =>
        {
            Error::Rejected(format!("the property `{name}`: {reason}"))
        }
        // librdkafka's reason repeats the value, which may be a secret.
        KafkaError::ClientConfig(_, _, name, _) => Error::Rejected(format!(
            "the property `{name}` cannot have the value it has"
        )),
        KafkaError::ClientCreation(reason) => Error::Rejected(reason.clone()),
        other => Error::Rejected(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: ClientOptions = ClientOptions {
        defaults: &[("linger.ms", "1")],
        limits: &[("session.timeout.ms", 6_000), ("retries", 3)],
        enforced: &[("acks", "all")],
    };

    fn cluster(properties: &[(&str, &str)]) -> Cluster {
        Cluster {
            name: "main".into(),
            brokers: vec!["a:1".into(), "b:2".into()],
            properties: properties
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }

    #[test]
    fn properties_win_over_defaults_and_lose_against_what_is_owned_by_either_name() {
        let cluster = cluster(&[
            ("queue.buffering.max.ms", "7"),
            ("request.required.acks", "0"),
            ("client.id", "mine"),
            ("message.send.max.retries", "5"),
        ]);
        let config = cluster.config(&SIDE, &[("group.id", "g".into())]);
        let options = [
            ("queue.buffering.max.ms", Some("7")),
            ("linger.ms", None),
            ("request.required.acks", Some("all")),
            ("acks", None),
            ("client.id", Some("mine")),
            ("session.timeout.ms", Some("6000")),
            ("message.send.max.retries", Some("5")),
            ("metadata.broker.list", Some("a:1,b:2")),
            ("group.id", Some("g")),
        ];
        for (name, value) in options {
            assert_eq!(config.get(name), value, "{name}");
        }
    }

    #[test]
    fn a_name_that_no_topic_can_have_is_known() {
        for name in ["a", "A-z_0.9", "...", "__x", &"x".repeat(249)] {
            assert!(is_valid_topic_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "^a",
            "a b",
            "a\0b",
            "a/b",
            "ümlaut",
            "a*",
            &"x".repeat(250),
        ] {
            assert!(!is_valid_topic_name(name), "{name:?}");
        }
    }

    #[test]
    fn every_alias_is_one_to_librdkafka() {
        for (alias, real) in ALIASES {
            let value = match *alias {
                "bootstrap.servers" => "a:1",
                "compression.type" => "gzip",
                "sasl.mechanism" => "PLAIN",
                "acks" => "1",
                _ => "1234",
            };
            let config = ClientConfig::from_iter([((*alias).to_owned(), value.to_owned())]);
            assert_eq!(
                config.create_native_config().unwrap().get(real).unwrap(),
                value,
                "{alias}"
            );
        }
    }

    #[test]
    fn a_value_that_may_be_a_secret_is_not_in_the_reason() {
        let config = cluster(&[("ssl.key.password", "x"), ("session.timeout.ms", "hunter2")])
            .config(&SIDE, &[]);
        let Err(error) = config.create_native_config() else {
            panic!("hunter2 is not a number")
        };
        let text = client_creation_error(&error).to_string();
        assert!(
            text.contains("session.timeout.ms") && !text.contains("hunter2"),
            "{text}"
        );
        let config = cluster(&[("sesion.timeout.ms", "6000")]).config(&SIDE, &[]);
        let Err(error) = config.create_native_config() else {
            panic!("there is no such property")
        };
        let text = client_creation_error(&error).to_string();
        assert!(text.contains("sesion.timeout.ms"), "{text}");
    }
}
