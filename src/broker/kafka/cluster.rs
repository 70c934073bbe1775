//! The [`Cluster`](crate::broker::Cluster) port on Kafka.

use super::options::Cluster;
use super::{
    EndReader, FACTS, KafkaCatalog, KafkaSource, KafkaStoredRecords, KafkaTarget,
    KafkaTransactionalProducers, rights,
};
use crate::broker::cluster::{
    ClusterAdmin, NamedRecords, Opened, RouteUse, SourceOptions, TargetOptions, TargetPurpose,
};
use crate::broker::send_budget::SendBudget;
use crate::broker::{self, Error, Source, StoredRecords, Target, TransactionalProducers};
use crate::health::HealthPart;
use crate::limit::{COMMAND_DELIVERY_TIMEOUT, SourceMemory};
use async_trait::async_trait;
use std::sync::Arc;

#[async_trait(?Send)]
impl broker::Cluster for Cluster {
    fn qualified_name(&self) -> String {
        format!("{}.{}", FACTS.key, self.name)
    }

    fn sources(
        &self,
        routes: Vec<SourceOptions>,
        memory: SourceMemory,
        health: &mut dyn FnMut(String) -> HealthPart,
    ) -> Result<Vec<Box<dyn Source>>, Error> {
        let part = health(format!("of {}", self.qualified_name()));
        let sources = KafkaSource::for_routes(self, &routes, memory, part)?.into_iter();
        Ok(sources.map(|source| Box::new(source) as _).collect())
    }

    fn admin(&self, group: Option<&str>, health: HealthPart) -> Opened<dyn ClusterAdmin> {
        Ok(Box::new(KafkaCatalog::new(self, group, health)?))
    }

    fn stored_records(&self, group: &str, health: HealthPart) -> Opened<dyn StoredRecords> {
        Ok(Box::new(KafkaStoredRecords::new(self, group, health)?))
    }

    fn target(&self, options: TargetOptions, health: HealthPart) -> Opened<dyn Target> {
        let budget = options.budget;
        Ok(Box::new(match options.purpose {
            TargetPurpose::Fast => KafkaTarget::new(self, budget, health)?,
            TargetPurpose::Bulk => KafkaTarget::for_bulk(self, budget, health)?,
            TargetPurpose::Command => {
                KafkaTarget::new(&self.with_command_timeout(), budget, health)?
            }
        }))
    }

    fn transactional_producers(
        &self,
        budget: Arc<SendBudget>,
        marker_group: &str,
        health: HealthPart,
    ) -> Opened<dyn TransactionalProducers> {
        let producers = KafkaTransactionalProducers::new(self, budget, Some(marker_group), health)?;
        Ok(Box::new(producers))
    }

    async fn new_records(&self, name: Option<String>) -> Result<Option<NamedRecords>, Error> {
        let Some(topic) = name else { return Ok(None) };
        let reader = EndReader::open(self, &topic)?;
        Ok(Some((topic, Box::new(reader))))
    }

    fn rights(&self, routes: &[RouteUse<'_>]) -> Vec<String> {
        rights::lines(&self.brokers.join(","), routes)
    }
}

impl Cluster {
    /// Replaces the configured delivery timeout, which is for the service: it retries for minutes.
    fn with_command_timeout(&self) -> Self {
        let mut cluster = self.clone();
        cluster.properties.remove("delivery.timeout.ms");
        let timeout = COMMAND_DELIVERY_TIMEOUT.as_millis().to_string();
        let name = "message.timeout.ms".to_owned();
        cluster.properties.insert(name, timeout);
        cluster
    }
}
