//! `[kafka.<name>]`: the brokers of a cluster, and properties for its clients. Librdkafka knows
//! which properties exist; this module rejects those that Postdate sets itself.

use crate::broker::{Cluster, kafka};
use crate::config::check::At;
use crate::config::decode::secret::Secret;
use crate::config::{ClusterTable, name};
use serde::Deserialize;
use std::collections::BTreeMap;
use url::Url;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct Kafka {
    pub(crate) brokers: Vec<String>,
    /// Properties for librdkafka. All are secret, because only librdkafka knows which hold a
    /// password.
    #[serde(default)]
    pub(crate) properties: BTreeMap<String, Secret>,
}

const TOKEN_PREFIX: &str = "sasl.oauthbearer.";
const TOKEN_METHOD: &str = "sasl.oauthbearer.method";
const TOKEN_ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url";
const TOKEN_REGION: &str = "sasl.oauthbearer.aws.region";
const TOKEN_OPTIONAL: [&str; 2] = ["sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"];
const TOKEN_REQUIRED: [&str; 3] = [
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    TOKEN_ENDPOINT,
];

/// The two names of the property that limits requests in flight. With idempotence librdkafka keeps
/// the order of at most five.
const IN_FLIGHT: [&str; 2] = ["max.in.flight.requests.per.connection", "max.in.flight"];

/// The properties that running clients can change. Both are secrets.
const LIVE_PROPERTIES: [&str; 2] = ["sasl.password", "sasl.oauthbearer.client.secret"];

impl ClusterTable for Kafka {
    fn check(&self, at: &At<'_>) {
        let brokers = at.key("brokers");
        brokers.check_list(&self.brokers);
        for (index, broker) in self.brokers.iter().enumerate() {
            if !name::is_broker(broker) {
                let what = "invalid broker address";
                brokers.key(index).refuse(what, name::BROKER);
            }
        }
        let properties = at.key("properties");
        for (name, value) in &self.properties {
            check_property(&properties.key(name), name, value.expose());
        }
        self.check_token_login(&properties);
    }

    fn addresses(&self) -> Vec<String> {
        self.brokers.clone()
    }

    fn cluster(&self, name: &str, _deployment: &str) -> Box<dyn Cluster> {
        Box::new(self.kafka_cluster(name))
    }
}

impl Kafka {
    pub(crate) fn kafka_cluster(&self, name: &str) -> kafka::Cluster {
        let properties = self.properties.iter();
        let properties = properties.map(|(key, value)| (key.clone(), value.expose().to_owned()));
        kafka::Cluster {
            name: name.into(),
            brokers: self.brokers.clone(),
            properties: properties.collect(),
        }
    }

    /// Takes the secrets of the table that running clients have. A login that begins or ends needs other
    /// clients.
    pub(in crate::config) fn take_live_properties(&mut self, running: &Self) {
        for property in LIVE_PROPERTIES {
            if let Some(value) = self.properties.get_mut(property)
                && let Some(running) = running.properties.get(property)
            {
                value.clone_from(running);
            }
        }
    }

    /// Postdate gets the tokens of `OAUTHBEARER` by client credentials, or makes those of AWS IAM.
    fn check_token_login(&self, at: &At<'_>) {
        let value = |name: &str| self.properties.get(name).map(Secret::expose);
        let mechanism = value("sasl.mechanisms").or(value("sasl.mechanism"));
        let has_own_tokens = value("enable.sasl.oauthbearer.unsecure.jwt") == Some("true");
        let (required, optional): (&[_], &[_]) = match value(TOKEN_METHOD) {
            Some("oidc") => (&TOKEN_REQUIRED, &TOKEN_OPTIONAL),
            Some("aws-iam") => (&[TOKEN_REGION], &[]),
            _ if mechanism == Some("OAUTHBEARER") && !has_own_tokens => {
                let fix = "add \"sasl.oauthbearer.method\" = \"oidc\" or \"aws-iam\"";
                return at.key(TOKEN_METHOD).refuse("missing", fix);
            }
            _ => return,
        };
        if mechanism != Some("OAUTHBEARER") {
            let fix = "add \"sasl.mechanisms\" = \"OAUTHBEARER\"";
            at.key("sasl.mechanisms").refuse("not OAUTHBEARER", fix);
        }
        for name in required {
            if value(name).is_none() {
                let fix = format!("add \"{name}\", or \"{name}_file\" with the path of a file");
                at.key(*name).refuse("missing", fix);
            }
        }
        let endpoint = value(TOKEN_ENDPOINT).map(Url::parse);
        let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        if endpoint.is_some_and(|url| !url.as_ref().is_ok_and(is_http)) {
            let fix = "write https:// and the address of the token endpoint";
            at.key(TOKEN_ENDPOINT).refuse("not an address", fix);
        }
        let known = |name: &str| {
            required.contains(&name) || optional.contains(&name) || name == TOKEN_METHOD
        };
        for name in self.properties.keys() {
            if name.starts_with(TOKEN_PREFIX) && !known(name) {
                let fix = "remove it: this login has no such option";
                at.key(name).refuse("Postdate does not know it", fix);
            }
        }
    }
}

fn check_property(at: &At<'_>, name: &str, value: &str) {
    if let Some(reason) = owner_reason(name) {
        let what = format!("Postdate sets {name} itself: {reason}");
        at.refuse(what, "remove it");
    } else if name.is_empty() || !name::is_alphanumeric_or(name, "._-") {
        let fix = "use a name of librdkafka's, such as \"security.protocol\"";
        at.refuse("no property has this name", fix);
    } else if IN_FLIGHT.contains(&name) && !matches!(value.parse(), Ok(1..=5)) {
        let fix = "use 5 or less: with more, a retry of the client could break the order";
        at.refuse("expected a number from 1 to 5", fix);
    }
}

/// Why Postdate sets a property itself; `None` if it does not.
fn owner_reason(property: &str) -> Option<&'static str> {
    Some(match property {
        "bootstrap.servers" | "metadata.broker.list" => "`brokers` lists the brokers",
        "group.id" => "each route has its own consumer group, <deployment>.<route>",
        "group.instance.id" | "group.protocol" | "partition.assignment.strategy" => {
            "the consumer group has no members; the store's membership assigns partitions"
        }
        "enable.auto.commit" | "enable.auto.offset.store" => {
            "an offset is committed only after the store has all messages before it"
        }
        "auto.offset.reset" => "offsets come from the store; a reset would lose or repeat messages",
        "isolation.level" => "messages of aborted transactions must not be delivered",
        "enable.partition.eof" => "the end of a partition moves the watermark",
        "partitioner" => "a key must go to the same partition as with the Java client",
        "enable.idempotence" => {
            "without it a retry of the client makes duplicates and breaks the order"
        }
        "enable.gapless.guarantee" => "Postdate's protocol depends on the order of retries",
        "acks" | "request.required.acks" => {
            "a message is delivered only when all in-sync replicas have it"
        }
        "transactional.id" => "Postdate manages its transactions",
        "delivery.report.only.error" => {
            "a message is delivered only when the broker has confirmed it"
        }
        "message.max.bytes" => "the broker decides which messages are too large",
        _ => return None,
    })
}
