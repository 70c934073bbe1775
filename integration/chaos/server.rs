//! Runs the broker of a chaos run, a Kafka cluster or a NATS server, with its topics or streams.

use std::time::Duration;

use async_nats::jetstream::stream::Config;

use crate::asked::{Broker, Mode};
use crate::env::{KafkaCluster, Nats};
use crate::store::Store;

pub(crate) const PARTITIONS: i32 = 8;
pub(crate) const SOURCE: &str = "chaos.delayed";
pub(crate) const TARGET: &str = "chaos.target";
pub(crate) const DEAD: &str = "chaos.dead";

/// Subject of stray messages, in the same stream as the source subjects. No route reads it.
pub(crate) const STRAY: &str = "chaos.stray";

/// Streams of the source and of the target.
const READ: &str = "CHAOS_READ";
pub(crate) const ARRIVED: &str = "CHAOS_ARRIVED";

/// Duplicate window of the target stream. 120 s is the default of NATS.
pub(crate) const WINDOW: Duration = Duration::from_secs(120);

/// The broker that the fleet uses.
pub(crate) enum Server {
    Kafka(KafkaCluster),
    Nats(Nats),
}

impl Server {
    pub(crate) fn start(broker: Broker, brokers: usize) -> Self {
        match broker {
            Broker::Kafka => {
                let kafka = KafkaCluster::start(brokers);
                kafka.create_topic(SOURCE, PARTITIONS, &[]);
                kafka.create_topic(
                    TARGET,
                    PARTITIONS,
                    &[("message.timestamp.type", "LogAppendTime")],
                );
                kafka.create_topic(DEAD, 1, &[]);
                Self::Kafka(kafka)
            }
            Broker::Nats => {
                let nats = Nats::start();
                nats.create_stream(READ, &[&subject("*"), STRAY]);
                let subjects = vec![TARGET.to_owned(), DEAD.to_owned()];
                nats.create_stream_with(Config {
                    name: ARRIVED.to_owned(),
                    subjects,
                    duplicate_window: WINDOW,
                    ..Config::default()
                });
                Self::Nats(nats)
            }
        }
    }

    pub(crate) fn kill(&mut self, node: usize) {
        match self {
            Self::Kafka(kafka) => kafka.nodes[node].kill(),
            Self::Nats(nats) => nats.kill(),
        }
    }

    pub(crate) fn stop(&mut self, node: usize) {
        match self {
            Self::Kafka(kafka) => kafka.nodes[node].stop(),
            Self::Nats(nats) => nats.stop(),
        }
    }

    pub(crate) fn restart(&mut self, node: usize) {
        match self {
            Self::Kafka(kafka) => kafka.nodes[node].restart(),
            Self::Nats(nats) => nats.restart(),
        }
    }

    pub(crate) fn pause(&self, node: usize) {
        match self {
            Self::Kafka(kafka) => kafka.nodes[node].pause(),
            Self::Nats(nats) => nats.pause(),
        }
    }

    pub(crate) fn resume(&self, node: usize) {
        match self {
            Self::Kafka(kafka) => kafka.nodes[node].resume(),
            Self::Nats(nats) => nats.resume(),
        }
    }

    /// The configuration of the Postdate processes.
    pub(crate) fn config(&self, store: &Store, mode: Mode) -> String {
        let store = format!("deployment = \"chaos\"\n{}\n", store.table());
        let route = match self {
            Self::Kafka(kafka) => format!(
                r#"
[kafka.main]
brokers = [{}]
[route.chaos]
source = {{ kafka = "main", topics = ["{SOURCE}"] }}
target = {{ kafka = "main", topic = "{TARGET}" }}
dead_letter = {{ kafka = "main", topic = "{DEAD}" }}
"#,
                brokers(kafka)
            ),
            Self::Nats(nats) => {
                let subjects: Vec<_> = (0..PARTITIONS)
                    .map(|partition| format!("\"{}\"", subject(partition)))
                    .collect();
                format!(
                    r#"
[nats.edge]
url = "{}"
[route.chaos]
source = {{ nats = "edge", stream = "{READ}", subjects = [{}] }}
target = {{ nats = "edge", subject = "{TARGET}" }}
dead_letter = {{ nats = "edge", subject = "{DEAD}" }}
"#,
                    nats.url(),
                    subjects.join(", ")
                )
            }
        };
        format!("{store}{route}delivery = \"{mode}\"\n")
    }
}

/// The NATS subject that acts as a partition.
pub(crate) fn subject(partition: impl std::fmt::Display) -> String {
    format!("{SOURCE}.{partition}")
}

/// The broker addresses as TOML strings.
fn brokers(kafka: &KafkaCluster) -> String {
    let addrs = kafka
        .nodes
        .iter()
        .map(|node| format!("\"{}\"", node.addr()));
    addrs.collect::<Vec<_>>().join(", ")
}
