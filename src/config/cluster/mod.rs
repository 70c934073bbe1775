//! The kinds of brokers: the tables of their clusters, and those in which a route names topics or
//! subjects on them.

mod kafka;
mod nats;

pub(crate) use kafka::Kafka;
pub(crate) use nats::Nats;

use crate::broker;
use crate::broker::facts::BrokerFacts;
use crate::model::{Naming, source_topic};
use serde::Deserialize;

/// The kind of a cluster. Two clusters never have the same name, even if their kinds differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BrokerKind {
    #[default]
    Kafka,
    Nats,
}

impl BrokerKind {
    pub(crate) const ALL: [Self; 2] = [Self::Kafka, Self::Nats];

    pub(crate) const fn facts(self) -> &'static BrokerFacts {
        match self {
            Self::Kafka => &broker::kafka::FACTS,
            Self::Nats => &broker::nats::FACTS,
        }
    }

    /// The kind whose clusters have this key in the configuration.
    pub(super) fn with_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.facts().key == key)
    }

    /// Each message has a subject, and a source selects messages by it.
    pub(crate) fn has_subjects(self) -> bool {
        self.facts().naming == Naming::Subject
    }

    /// The key that names a destination on such a cluster.
    pub(crate) fn name_key(self) -> &'static str {
        match self.facts().naming {
            Naming::Topic => "topic",
            Naming::Subject => "subject",
        }
    }
}

/// The topics of one cluster that a route reads. [`source_topic`] writes those of NATS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "SourceTable")]
pub(crate) struct Source {
    pub(crate) kind: BrokerKind,
    pub(crate) cluster: String,
    pub(crate) topics: Vec<String>,
}

/// `source` as it is written.
#[derive(Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "expected a table of kafka and topics, or of nats, stream and subjects"
)]
enum SourceTable {
    Kafka {
        kafka: String,
        topics: Vec<String>,
    },
    Nats {
        nats: String,
        stream: String,
        subjects: Vec<String>,
    },
}

impl From<SourceTable> for Source {
    fn from(table: SourceTable) -> Self {
        let (kind, cluster, topics) = match table {
            SourceTable::Kafka { kafka, topics } => (BrokerKind::Kafka, kafka, topics),
            SourceTable::Nats {
                nats,
                stream,
                subjects,
            } => {
                let topics = subjects.iter().map(|filter| source_topic(&stream, filter));
                (BrokerKind::Nats, nats, topics.collect())
            }
        };
        Self {
            kind,
            cluster,
            topics,
        }
    }
}

/// A topic or a subject that a route writes to. A target's subject may be a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "DestinationTable")]
pub(crate) struct Destination {
    pub(crate) kind: BrokerKind,
    pub(crate) cluster: String,
    pub(crate) name: String,
}

/// `target` or `dead_letter` as it is written.
#[derive(Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "expected a table of kafka and topic, or of nats and subject"
)]
enum DestinationTable {
    Kafka { kafka: String, topic: String },
    Nats { nats: String, subject: String },
}

impl From<DestinationTable> for Destination {
    fn from(table: DestinationTable) -> Self {
        let (kind, cluster, name) = match table {
            DestinationTable::Kafka { kafka, topic } => (BrokerKind::Kafka, kafka, topic),
            DestinationTable::Nats { nats, subject } => (BrokerKind::Nats, nats, subject),
        };
        Self {
            kind,
            cluster,
            name,
        }
    }
}
