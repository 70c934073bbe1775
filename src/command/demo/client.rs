//! What the demo's own loops send and watch by, each on its thread: a client of the broker where it takes place.

use super::venue::Venue;
use crate::broker::kafka::{self, KafkaSource, KafkaTarget};
use crate::broker::nats::{self, NatsSource, NatsTarget, SourceOptions};
use crate::broker::{Error, Source, Target};
use crate::config::BrokerKind;
use crate::health::HealthPart;
use crate::limit::DEMO_IN_FLIGHT_MAX;
use crate::role::{cluster, nats_cluster};

/// How clients are made.
#[derive(Clone)]
pub(super) enum Clients {
    Kafka {
        from: kafka::Cluster,
        to: kafka::Cluster,
    },
    Nats(nats::Cluster),
}

impl Clients {
    pub(super) fn of(venue: &Venue) -> Self {
        let route = &venue.config.routes[&venue.route];
        match venue.place.kind {
            BrokerKind::Kafka => Self::Kafka {
                from: cluster(&venue.config, &route.source.cluster),
                to: cluster(&venue.config, route.target_cluster()),
            },
            BrokerKind::Nats => Self::Nats(nats_cluster(&venue.config, &route.source.cluster)),
        }
    }

    /// Sends to the source; `run` is a name that no other demo has.
    pub(super) fn target(&self, run: &str, part: HealthPart) -> Result<Box<dyn Target>, Error> {
        Ok(match self {
            Self::Kafka { from, .. } => Box::new(KafkaTarget::new(from, DEMO_IN_FLIGHT_MAX, part)?),
            Self::Nats(cluster) => Box::new(NatsTarget::new(
                cluster,
                DEMO_IN_FLIGHT_MAX,
                run.to_owned(),
                part,
            )?),
        })
    }

    /// Reads `topics`, as the only member of `group`.
    pub(super) fn source(
        &self,
        group: String,
        topics: Vec<String>,
        part: HealthPart,
    ) -> Result<Box<dyn Source>, Error> {
        Ok(match self {
            Self::Kafka { to, .. } => Box::new(KafkaSource::new(to, group, &topics, part)?),
            Self::Nats(cluster) => {
                let reading = SourceOptions {
                    member: "watcher".to_owned(),
                    group,
                    topics,
                    reads_schedules: false,
                };
                Box::new(NatsSource::new(cluster, reading, part)?)
            }
        })
    }
}
