//! `[kafka.<name>]`: a cluster's brokers, and the properties that are handed to the client as they are. Which properties there are, only
//! the client knows; here those are refused whose value Postdate's promises rest on.

use super::field::Field;
use super::name;
use super::read::Table;
use super::secret::Secret;
use std::collections::BTreeMap;

/// One Kafka cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kafka {
    pub(crate) brokers: Vec<String>,
    /// Handed to the client as they are. All are secret, for which of them hold a password the client alone knows.
    pub(crate) properties: BTreeMap<String, Secret>,
}

/// Properties that Postdate sets itself, and why.
const OWNED: &[(&str, &str)] = &[
    ("bootstrap.servers", "the brokers stand in `brokers`"),
    ("metadata.broker.list", "the brokers stand in `brokers`"),
    (
        "group.id",
        "each route has a consumer group of its own, <deployment>.<route>",
    ),
    (
        "group.instance.id",
        "members come and go, and one process has several",
    ),
    (
        "group.protocol",
        "how partitions change hands is part of Postdate's protocol",
    ),
    (
        "partition.assignment.strategy",
        "how partitions change hands is part of Postdate's protocol",
    ),
    (
        "enable.auto.commit",
        "a position is committed only after the store holds all before it",
    ),
    (
        "enable.auto.offset.store",
        "a position is committed only after the store holds all before it",
    ),
    (
        "auto.offset.reset",
        "positions come from the store; a reset would lose or repeat messages unseen",
    ),
    (
        "isolation.level",
        "messages of aborted transactions must not be delivered",
    ),
    (
        "enable.partition.eof",
        "the end of a partition moves the watermark",
    ),
    (
        "partitioner",
        "a key must land where the Java client would put it",
    ),
    (
        "enable.idempotence",
        "without it a retry inside the client makes duplicates and breaks the order",
    ),
    (
        "enable.gapless.guarantee",
        "the order of retries is part of Postdate's protocol",
    ),
    (
        "acks",
        "a message is done only when all in-sync replicas have it",
    ),
    (
        "request.required.acks",
        "a message is done only when all in-sync replicas have it",
    ),
    ("transactional.id", "transactions are Postdate's own affair"),
    (
        "delivery.report.only.error",
        "a message is done only when the broker has said so",
    ),
    ("message.max.bytes", "what is too large, the broker decides"),
];

/// Its two names in librdkafka: with idempotence, in order and without a repeat, the client takes no more than five.
const IN_FLIGHT: [&str; 2] = ["max.in.flight.requests.per.connection", "max.in.flight"];

pub(super) fn read(table: &Table<'_>) -> Kafka {
    let brokers = table.required("brokers", "add brokers = [\"127.0.0.1:9092\"]");
    let brokers = brokers
        .map(|field| field.texts("[\"127.0.0.1:9092\"]"))
        .unwrap_or_default();
    for (field, broker) in &brokers {
        if !name::is_broker(broker) {
            field.refuse("this is not a broker's address", name::BROKER);
        }
    }
    let properties = table.table("properties").properties().into_iter();
    Kafka {
        brokers: brokers
            .into_iter()
            .map(|(_, broker)| broker.to_owned())
            .collect(),
        properties: properties
            .filter_map(|(name, (field, by_file))| {
                Some((name.clone(), property(&name, &field, by_file)?))
            })
            .collect(),
    }
}

fn property(name: &str, field: &Field<'_>, by_file: bool) -> Option<Secret> {
    if let Some((_, reason)) = OWNED.iter().find(|(owned, _)| *owned == name) {
        field.refuse(
            format!("Postdate sets {name} itself: {reason}"),
            "remove it",
        );
        return None;
    }
    if name.is_empty()
        || !name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
    {
        field.refuse(
            "no property is called so",
            "use a name of librdkafka's, such as \"security.protocol\"",
        );
        return None;
    }
    let text = if by_file {
        field.file_content()
    } else {
        field.text_of_property()
    }?;
    if IN_FLIGHT.contains(&name) && !matches!(text.parse(), Ok(1..=5)) {
        field.refuse(
            "this is no number from 1 to 5",
            "use 5 or less: with more, a repeat inside the client could break the order",
        );
        return None;
    }
    Some(Secret::new(text))
}
