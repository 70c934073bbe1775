//! Decodes `[kafka.<name>]`: the brokers of a cluster, and properties for its clients. Librdkafka
//! knows which properties exist; this module rejects those that Postdate's promises depend on.

use super::decode::{At, scalar, whole};
use super::name;
use super::secret::Secret;
use figment::value::Value;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;

/// One Kafka cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kafka {
    pub(crate) brokers: Vec<String>,
    /// Properties for librdkafka. All are secret, because only librdkafka knows which hold a
    /// password.
    pub(crate) properties: BTreeMap<String, Secret>,
}

/// The two names of the property that limits requests in flight. With idempotence librdkafka keeps
/// the order of at most five.
const IN_FLIGHT: [&str; 2] = ["max.in.flight.requests.per.connection", "max.in.flight"];

/// `[kafka.<name>]` as it is written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct KafkaTable {
    brokers: Option<Vec<String>>,
    /// Read through [`At`], because property names contain dots, which TOML may read as tables.
    #[allow(dead_code, reason = "decoding checks that it is a table")]
    properties: BTreeMap<String, IgnoredAny>,
}

pub(super) fn check(at: &At<'_>, table: KafkaTable) -> Kafka {
    let brokers = at.key("brokers");
    brokers.missing("add brokers = [\"127.0.0.1:9092\"]");
    let brokers = brokers.entries(table.brokers);
    for (at, broker) in &brokers {
        if !name::is_broker(broker) {
            at.refuse("invalid broker address", name::BROKER);
        }
    }
    let mut properties = BTreeMap::new();
    collect(&at.key("properties"), "", &mut properties);
    Kafka {
        brokers: brokers.into_iter().map(|(_, broker)| broker).collect(),
        properties: properties
            .into_iter()
            .filter_map(|(name, property)| {
                let value = property.and_then(|property| property.check(&name))?;
                Some((name, value))
            })
            .collect(),
    }
}

/// One property, before its value is checked.
struct Property<'a> {
    at: At<'a>,
    /// The value is the path of the file that contains the property.
    by_file: bool,
}

/// Collects the properties below `at` by their names with dots, without the `_file` of those that a
/// file contains. A property that is given twice is reported and `None`.
fn collect<'a>(at: &At<'a>, prefix: &str, properties: &mut BTreeMap<String, Option<Property<'a>>>) {
    for key in at
        .value()
        .and_then(Value::as_dict)
        .into_iter()
        .flat_map(|dict| dict.keys())
    {
        let at = at.key(key);
        let name = format!("{prefix}{key}");
        if at.value().is_some_and(|value| value.as_dict().is_some()) {
            collect(&at, &format!("{name}."), properties);
            continue;
        }
        let plain = name.strip_suffix("_file");
        let property = Property {
            by_file: plain.is_some(),
            at,
        };
        let name = plain.unwrap_or(&name).to_owned();
        let kept = match properties.remove(&name).flatten() {
            None => Some(property),
            Some(other) if other.at.overrides(&property.at) => Some(other),
            Some(other) if property.at.overrides(&other.at) => Some(property),
            Some(other) => {
                property.at.given_twice(&other.at);
                None
            }
        };
        properties.insert(name, kept);
    }
}

impl Property<'_> {
    fn check(&self, name: &str) -> Option<Secret> {
        let at = &self.at;
        if let Some(reason) = owner_reason(name) {
            at.refuse(
                format!("Postdate sets {name} itself: {reason}"),
                "remove it",
            );
            return None;
        }
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || !name.chars().all(is_allowed) {
            let fix = "use a name of librdkafka's, such as \"security.protocol\"";
            at.refuse("no property has this name", fix);
            return None;
        }
        let text = self.text()?;
        if IN_FLIGHT.contains(&name) && !matches!(text.parse(), Ok(1..=5)) {
            let fix = "use 5 or less: with more, a retry of the client could break the order";
            at.refuse("expected a number from 1 to 5", fix);
            return None;
        }
        Some(Secret::new(text))
    }

    /// The value as text: it may also be a whole number, or true or false.
    fn text(&self) -> Option<String> {
        let at = &self.at;
        let text = match at.value()? {
            Value::String(_, text) if self.by_file => return at.secret_file(text),
            Value::String(_, text) => {
                return Some(text.clone()).filter(|text| !text.contains('\0'));
            }
            Value::Char(..) => return None,
            value @ Value::Num(..) if whole(value).is_some() && !self.by_file => scalar(value),
            value @ Value::Bool(..) if !self.by_file => scalar(value),
            _ => None,
        };
        // A password `0123` in a variable was read as the number 123.
        let is_cut = |before: &str| before.ends_with(|c: char| c.is_ascii_digit() || c == '+');
        let is_whole = |raw: &str, text: &str| {
            raw.match_indices(text)
                .any(|(start, _)| !is_cut(&raw[..start]))
        };
        let text = text.filter(|text| at.raw().is_none_or(|raw| is_whole(raw, text)));
        if text.is_none() {
            let (what, fix) = at.explain_text(false);
            at.refuse(what, fix);
        }
        text
    }
}

/// Why Postdate sets a property itself; `None` if it does not.
fn owner_reason(property: &str) -> Option<&'static str> {
    Some(match property {
        "bootstrap.servers" | "metadata.broker.list" => "`brokers` lists the brokers",
        "group.id" => "each route has its own consumer group, <deployment>.<route>",
        "group.instance.id" => "members come and go, and one process has several",
        "group.protocol" | "partition.assignment.strategy" => {
            "Postdate's protocol depends on how partitions are assigned"
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
