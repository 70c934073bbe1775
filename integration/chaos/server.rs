//! Runs the brokers of a chaos run, a cluster of Kafka or NATS, with its topics or streams.

use std::time::Duration;

use async_nats::jetstream::stream::Config;

use crate::asked::{Broker, Mode};
use crate::env::{KafkaCluster, Nats, PATIENCE, eventually};
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
    Nats(Vec<Nats>),
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
                let nats = match brokers {
                    1 => vec![Nats::start()],
                    _ => Nats::start_cluster().into(),
                };
                // A new cluster has no leader yet.
                eventually("the streams are created", PATIENCE, || {
                    create_streams(&nats[0], brokers)
                });
                Self::Nats(nats)
            }
        }
    }

    pub(crate) fn kill(&mut self, node: usize) {
        match self {
            Self::Kafka(kafka) => kafka.nodes[node].kill(),
            Self::Nats(nats) => nats[node].kill(),
        }
    }

    pub(crate) fn stop(&mut self, node: usize) {
        match self {
            Self::Kafka(kafka) => kafka.nodes[node].stop(),
            Self::Nats(nats) => nats[node].stop(),
        }
    }

    pub(crate) fn restart(&mut self, node: usize) {
        match self {
            Self::Kafka(kafka) => kafka.nodes[node].restart(),
            Self::Nats(nats) => nats[node].restart(),
        }
    }

    pub(crate) fn pause(&self, node: usize) {
        match self {
            Self::Kafka(kafka) => kafka.nodes[node].pause(),
            Self::Nats(nats) => nats[node].pause(),
        }
    }

    pub(crate) fn resume(&self, node: usize) {
        match self {
            Self::Kafka(kafka) => kafka.nodes[node].resume(),
            Self::Nats(nats) => nats[node].resume(),
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
                    url(nats),
                    subjects.join(", ")
                )
            }
        };
        format!("{store}{route}delivery = \"{mode}\"\n")
    }
}

/// Creates the streams, replicated across all servers.
fn create_streams(nats: &Nats, replicas: usize) -> Option<()> {
    let stream = |name: &str, subjects| Config {
        name: name.to_owned(),
        subjects,
        num_replicas: replicas,
        ..Config::default()
    };
    let read = stream(READ, vec![subject("*"), STRAY.to_owned()]);
    let arrived = Config {
        duplicate_window: WINDOW,
        ..stream(ARRIVED, vec![TARGET.to_owned(), DEAD.to_owned()])
    };
    nats.ask(async move |context| {
        for config in [read, arrived] {
            context.get_or_create_stream(config).await.ok()?;
        }
        Some(())
    })
}

/// The addresses of all servers.
pub(crate) fn url(nats: &[Nats]) -> String {
    nats.iter().map(Nats::url).collect::<Vec<_>>().join(",")
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
