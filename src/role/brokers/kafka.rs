//! Builds the Kafka clients from the configuration.

use super::{BrokerAdapter, SourceOptions, TargetOptions, TargetPurpose};
use crate::broker::kafka::{
    Cluster, KafkaCatalog, KafkaSource, KafkaTarget, KafkaTransactionalProducers,
};
use crate::broker::{Catalog, Source, Target, TransactionalProducers};
use crate::config::Config;
use crate::health::HealthPart;
use crate::limit::COMMAND_DELIVERY_TIMEOUT;
use crate::model::Naming;
use anyhow::Result;

pub(super) struct Kafka;

impl BrokerAdapter for Kafka {
    fn naming(&self) -> Naming {
        Naming::Topic
    }

    fn source(
        &self,
        config: &Config,
        cluster: &str,
        options: SourceOptions,
        health: HealthPart,
    ) -> Result<Box<dyn Source>> {
        let cluster = kafka_cluster(config, cluster);
        let source = KafkaSource::new(&cluster, options.group, &options.topics, health)?;
        Ok(Box::new(source))
    }

    fn catalog(
        &self,
        config: &Config,
        cluster: &str,
        group: &str,
        health: HealthPart,
    ) -> Result<Box<dyn Catalog>> {
        let cluster = kafka_cluster(config, cluster);
        Ok(Box::new(KafkaCatalog::new(&cluster, Some(group), health)?))
    }

    fn target(
        &self,
        config: &Config,
        cluster: &str,
        options: TargetOptions,
        health: HealthPart,
    ) -> Result<Box<dyn Target>> {
        let mut cluster = kafka_cluster(config, cluster);
        let in_flight_max = options.in_flight_max;
        Ok(Box::new(match options.purpose {
            TargetPurpose::Fast => KafkaTarget::new(&cluster, in_flight_max, health)?,
            TargetPurpose::Bulk => KafkaTarget::for_bulk(&cluster, in_flight_max, health)?,
            TargetPurpose::Command => {
                // The configured timeout is for the service, which retries for minutes.
                cluster.properties.remove("delivery.timeout.ms");
                let timeout = COMMAND_DELIVERY_TIMEOUT.as_millis().to_string();
                let name = "message.timeout.ms".to_owned();
                cluster.properties.insert(name, timeout);
                KafkaTarget::new(&cluster, in_flight_max, health)?
            }
        }))
    }

    fn transactional_producers(
        &self,
        config: &Config,
        cluster: &str,
        marker_group: &str,
        health: HealthPart,
    ) -> Result<Box<dyn TransactionalProducers>> {
        let cluster = kafka_cluster(config, cluster);
        let producers = KafkaTransactionalProducers::new(&cluster, Some(marker_group), health)?;
        Ok(Box::new(producers))
    }
}

/// A configured Kafka cluster, as the adapter takes it.
pub(crate) fn kafka_cluster(config: &Config, name: &str) -> Cluster {
    let kafka = &config.kafka[name];
    let properties = kafka
        .properties
        .iter()
        .map(|(key, value)| (key.clone(), value.expose().to_owned()));
    Cluster {
        name: name.into(),
        brokers: kafka.brokers.clone(),
        properties: properties.collect(),
    }
}
