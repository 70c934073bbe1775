//! Client options: Postdate's defaults, its limits, and the properties that it enforces.

use super::limit::{KAFKA_PRODUCER_QUEUE_BYTES_MAX, KAFKA_REQUEST_TIMEOUT};
use super::login::Login;
use super::password;
use crate::broker::Error;
use crate::limit::PARTITION_DISCOVERY_INTERVAL;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A Kafka cluster as configured.
#[derive(Clone)]
pub(crate) struct Cluster {
    /// Name in the configuration, for logs.
    pub(crate) name: Arc<str>,
    /// `host:port` of the bootstrap brokers.
    pub(crate) brokers: Vec<String>,
    /// The user's librdkafka properties. Never print the values: some are secrets.
    pub(crate) properties: BTreeMap<String, String>,
}

/// Options of one kind of client. User properties override `defaults` and `limits`, but not
/// `enforced`, because Postdate's promises depend on those.
pub(super) struct ClientOptions {
    pub(super) defaults: &'static [(&'static str, &'static str)],
    pub(super) limits: &'static [(&'static str, u64)],
    pub(super) enforced: &'static [(&'static str, &'static str)],
}

pub(super) const NO_OPTIONS: ClientOptions = ClientOptions {
    defaults: &[],
    limits: &[],
    enforced: &[],
};

const ALL_CLIENTS: ClientOptions = ClientOptions {
    defaults: &[
        ("client.id", "postdate"),
        ("socket.keepalive.enable", "true"),
        // A client with metrics push waits up to a second for its last push when it is closed.
        ("enable.metrics.push", "false"),
        // A broker that is back is used soon.
        ("reconnect.backoff.max.ms", "2000"),
    ],
    limits: &[
        // Metadata shows new and deleted topics and partitions.
        (
            "topic.metadata.refresh.interval.ms",
            millis(PARTITION_DISCOVERY_INTERVAL),
        ),
        (
            "metadata.max.age.ms",
            3 * millis(PARTITION_DISCOVERY_INTERVAL),
        ),
    ],
    ..NO_OPTIONS
};

/// Limits of a client for requests.
pub(super) const ASKING_LIMITS: &[(&str, u64)] = &[SOCKET_TIMEOUT];

/// A broker that leaves a request without an answer for this time is disconnected. librdkafka sends a
/// request for any broker to the one that it has used last. With its default, a minute, one frozen broker
/// would make an idle client believe that the whole cluster does not answer.
pub(super) const SOCKET_TIMEOUT: (&str, u64) = ("socket.timeout.ms", millis(KAFKA_REQUEST_TIMEOUT));

/// Defaults of every client that sends.
pub(super) const PRODUCER_DEFAULTS: &[(&str, &str)] = &[
    ("socket.nagle.disable", "true"),
    // A broker answers the requests of one connection one after the other. With more than one in
    // flight, librdkafka 2.12 busy-waits for the next answer.
    ("max.in.flight.requests.per.connection", "1"),
];

/// Enforced for every client that sends.
pub(super) const PRODUCER_ENFORCED: &[(&str, &str)] = &[
    ("enable.idempotence", "true"),
    ("request.required.acks", "all"),
    ("partitioner", "murmur2_random"),
    // The largest value that librdkafka accepts: the broker decides which record is too large.
    ("message.max.bytes", "1000000000"),
    ("delivery.report.only.error", "false"),
];

/// The bounds of a producer's queue, enforced because callers rely on room for `messages_max`. A
/// [`SendBudget`](crate::broker::send_budget::SendBudget) has a lower bound of bytes, but accepts one
/// record of any size.
pub(super) fn queue_limits(messages_max: usize) -> [(&'static str, String); 2] {
    let kbytes = kbytes(KAFKA_PRODUCER_QUEUE_BYTES_MAX);
    [
        ("queue.buffering.max.messages", messages_max.to_string()),
        ("queue.buffering.max.kbytes", kbytes.to_string()),
    ]
}

/// Makes a producer send each record in a batch of its own.
pub(super) fn set_single_record(config: &mut ClientConfig) {
    config
        .set("batch.num.messages", "1")
        .set("queue.buffering.max.ms", "0");
}

/// Properties that librdkafka knows by two names. Without this table the order of the properties
/// would decide which of the two counts.
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

pub(super) const fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

pub(super) const fn kbytes(bytes: u64) -> u64 {
    bytes / 1024
}

impl Cluster {
    /// Gives the secrets of this cluster to all clients that run with the same login.
    pub(crate) fn change_secrets(&self) -> Result<(), Error> {
        let config = self.config(&NO_OPTIONS, &[]);
        password::change(&config);
        Login::change_secret(&config)
    }

    /// The configuration of a client. `runtime_enforced` are enforced properties whose values are
    /// known only at run time.
    pub(super) fn config(
        &self,
        options: &ClientOptions,
        runtime_enforced: &[(&str, String)],
    ) -> ClientConfig {
        let owned = |(name, value): &(&'static str, &str)| (*name, (*value).to_owned());
        let defaults = ALL_CLIENTS.defaults.iter().chain(options.defaults);
        let limits = ALL_CLIENTS.limits.iter().chain(options.limits);
        let user = self.properties.iter();
        let enforced: BTreeMap<&str, String> = options
            .enforced
            .iter()
            .map(owned)
            .chain([("metadata.broker.list", self.brokers.join(","))])
            .chain(runtime_enforced.iter().cloned())
            .map(|(name, value)| (canonical_name(name), value))
            .collect();
        for property in self.properties.keys() {
            if enforced.contains_key(canonical_name(property)) {
                tracing::warn!(
                    cluster = %self.name,
                    property,
                    "ignoring user-set Kafka property: Postdate sets it itself"
                );
            }
        }
        // A later value replaces an earlier one.
        let values: BTreeMap<&str, String> = defaults
            .map(owned)
            .chain(limits.map(|(name, limit)| (*name, limit.to_string())))
            .chain(user.map(|(name, value)| (name.as_str(), value.clone())))
            .map(|(name, value)| (canonical_name(name), value))
            .chain(enforced)
            .collect();
        let values = values.into_iter();
        let mut config: ClientConfig = values
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        config.set_log_level(log_level());
        config
    }
}

fn canonical_name(name: &str) -> &str {
    ALIASES
        .iter()
        .find(|(alias, _)| *alias == name)
        .map_or(name, |(_, canonical)| canonical)
}

/// librdkafka's own log lines are for debugging. Operators get cluster problems from
/// [`ClusterHealth`](super::health::ClusterHealth).
fn log_level() -> RDKafkaLogLevel {
    if tracing::enabled!(target: "librdkafka", tracing::Level::DEBUG) {
        RDKafkaLogLevel::Debug
    } else {
        RDKafkaLogLevel::Error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::kafka::error::client_creation_error;

    const OPTIONS: ClientOptions = ClientOptions {
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
    fn user_properties_override_defaults_but_not_enforced_values_under_either_name() {
        let cluster = cluster(&[
            ("queue.buffering.max.ms", "7"),
            ("request.required.acks", "0"),
            ("client.id", "mine"),
            ("message.send.max.retries", "5"),
        ]);
        let config = cluster.config(&OPTIONS, &[("group.id", "g".into())]);
        let expected = [
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
        for (name, value) in expected {
            assert_eq!(config.get(name), value, "{name}");
        }
    }

    #[test]
    fn librdkafka_knows_every_alias() {
        for (alias, canonical) in ALIASES {
            let value = match *alias {
                "bootstrap.servers" => "a:1",
                "compression.type" => "gzip",
                "sasl.mechanism" => "PLAIN",
                "acks" => "1",
                _ => "1234",
            };
            let config = ClientConfig::from_iter([((*alias).to_owned(), value.to_owned())]);
            assert_eq!(
                config
                    .create_native_config()
                    .unwrap()
                    .get(canonical)
                    .unwrap(),
                value,
                "{alias}"
            );
        }
    }

    #[test]
    fn an_error_text_does_not_contain_the_value_of_a_property() {
        let config = cluster(&[("ssl.key.password", "x"), ("session.timeout.ms", "hunter2")])
            .config(&OPTIONS, &[]);
        let Err(error) = config.create_native_config() else {
            panic!("hunter2 is not a number")
        };
        let text = client_creation_error(&error).to_string();
        assert!(
            text.contains("session.timeout.ms") && !text.contains("hunter2"),
            "{text}"
        );
        let config = cluster(&[("sesion.timeout.ms", "6000")]).config(&OPTIONS, &[]);
        let Err(error) = config.create_native_config() else {
            panic!("there is no such property")
        };
        let text = client_creation_error(&error).to_string();
        assert!(text.contains("sesion.timeout.ms"), "{text}");
    }
}
