//! Describes a cluster, for `inspection`. A detail that cannot be read holds its error.

use super::{KafkaCatalog, WorkerThread};
use crate::broker::Error;
use crate::broker::kafka::error::{client_creation_error, invalid_topic_name};
use crate::broker::kafka::ffi::{self, TopicDescription};
use crate::broker::kafka::limit::KAFKA_REQUEST_TIMEOUT;
use crate::broker::kafka::login::Login;
use crate::broker::kafka::options::NO_OPTIONS;
use crate::model::is_topic_name;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Configuration values by name, without sensitive ones.
type ConfigValues = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClusterInfo {
    pub(super) broker_count: usize,
    pub(super) cluster_id: Option<String>,
    /// Retention of the offsets of an inactive group.
    pub(super) offsets_retention: Option<Result<Duration, String>>,
    /// By name. `None`: the topic does not exist.
    pub(super) topics: BTreeMap<String, Result<Option<TopicInfo>, String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TopicInfo {
    pub(super) partitions: usize,
    /// The client's permissions to read and to write; `None`: the cluster does not report them.
    pub(super) permissions: Option<(bool, bool)>,
    pub(super) config: Result<TopicConfig, String>,
}

/// The settings that decide how long a topic keeps its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TopicConfig {
    /// Compaction may delete all but the latest record of a key.
    pub(super) is_compacted: bool,
    /// Records beyond the two bounds below are deleted. `None`: no bound.
    pub(super) has_retention: bool,
    pub(super) retention: Option<Duration>,
    /// Per partition.
    pub(super) retention_bytes: Option<u64>,
}

impl KafkaCatalog {
    /// Describes the cluster and these topics, one part after the other. `Err`: the cluster did not
    /// answer or rejected everything.
    pub(super) async fn describe_cluster(
        &mut self,
        names: &[String],
    ) -> Result<ClusterInfo, Error> {
        let names = names.to_vec();
        let request = move |worker: &mut WorkerThread| {
            let brokers = worker.broker_ids()?;
            let names = names.iter().map(String::as_str).collect();
            let topics = worker.topics_by_name(&names, true, KAFKA_REQUEST_TIMEOUT)?;
            Ok((brokers, topics, worker.cluster_id()))
        };
        let (brokers, topics, cluster_id) = self.request(request).await?;
        let mut options = self.cluster.config(&NO_OPTIONS, &[]);
        let login = Login::take_from(&mut options)?;
        let client: AdminClient<DefaultClientContext> = options
            .create()
            .map_err(|error| client_creation_error(&error))?;
        ffi::log_in(client.inner(), login.as_ref())?;
        let mut info = ClusterInfo {
            broker_count: brokers.len(),
            cluster_id,
            ..ClusterInfo::default()
        };
        if let Some(broker) = brokers.first() {
            let config = config(&client, ResourceSpecifier::Broker(*broker)).await;
            info.offsets_retention = Some(config.and_then(|values| offsets_retention(&values)));
        }
        for (name, topic) in topics {
            let topic = match topic {
                _ if !is_topic_name(&name) => Err(invalid_topic_name(&name)),
                Ok(Some(topic)) => Ok(Some(topic_info(&client, &topic).await)),
                Ok(None) => Ok(None),
                Err(error) => Err(error.to_string()),
            };
            info.topics.insert(name, topic);
        }
        Ok(info)
    }
}

impl WorkerThread {
    fn broker_ids(&mut self) -> Result<Vec<i32>, Error> {
        const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
        let deadline = Instant::now() + KAFKA_REQUEST_TIMEOUT;
        self.call(|call| {
            loop {
                let metadata = call.native.client().fetch_metadata(None, REQUEST_TIMEOUT);
                let code = match &metadata {
                    Ok(found) => return Ok(found.brokers().iter().map(|it| it.id()).collect()),
                    Err(error) => error.rdkafka_error_code().unwrap_or(Code::Fail),
                };
                // No broker is connected or has answered. The call is repeated to serve the client
                // meanwhile.
                let is_late =
                    matches!(code, Code::BrokerTransportFailure | Code::OperationTimedOut);
                if !(is_late && (call.keep_waiting)() && Instant::now() < deadline) {
                    return Err((code, code.to_string()));
                }
            }
        })
    }
}

async fn topic_info(
    client: &AdminClient<DefaultClientContext>,
    topic: &TopicDescription,
) -> TopicInfo {
    let config = config(client, ResourceSpecifier::Topic(&topic.name)).await;
    TopicInfo {
        partitions: topic.partitions.len(),
        permissions: topic.permissions,
        config: config.map(|values| topic_config(&values)),
    }
}

async fn config(
    client: &AdminClient<DefaultClientContext>,
    owner: ResourceSpecifier<'_>,
) -> Result<ConfigValues, String> {
    let text = |error: KafkaError| match error.rdkafka_error_code() {
        Some(code) => code.to_string(),
        None => error.to_string(),
    };
    let options = AdminOptions::new().request_timeout(Some(KAFKA_REQUEST_TIMEOUT));
    let found = client.describe_configs(&[owner], &options).await;
    let resource = found.map_err(text)?.into_iter().next().transpose();
    let entries = resource.map_err(|code| code.to_string())?;
    // A sensitive entry has no value.
    let values: ConfigValues = entries
        .into_iter()
        .flat_map(|resource| resource.entries)
        .filter_map(|entry| Some((entry.name, entry.value?)))
        .collect();
    // The client drops the error of a single topic or broker. Each has settings.
    if values.is_empty() {
        return Err("the broker shows no settings: the user needs DescribeConfigs".to_owned());
    }
    Ok(values)
}

fn offsets_retention(values: &ConfigValues) -> Result<Duration, String> {
    values
        .get("offsets.retention.minutes")
        .and_then(|minutes| minutes.parse::<u64>().ok())
        .map(|minutes| Duration::from_secs(minutes * 60))
        .ok_or_else(|| "the broker does not report it".to_owned())
}

/// Kafka writes a missing bound as -1.
fn topic_config(values: &ConfigValues) -> TopicConfig {
    let policy = values
        .get("cleanup.policy")
        .map_or("delete", String::as_str);
    let number = |name: &str| {
        let value: i64 = values.get(name)?.parse().ok()?;
        u64::try_from(value).ok()
    };
    TopicConfig {
        is_compacted: policy.split(',').any(|word| word.trim() == "compact"),
        has_retention: policy.split(',').any(|word| word.trim() == "delete"),
        retention: number("retention.ms").map(Duration::from_millis),
        retention_bytes: number("retention.bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_config_is_read_as_kafka_writes_it() {
        let values = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        let unbounded = TopicConfig {
            is_compacted: false,
            has_retention: true,
            retention: None,
            retention_bytes: None,
        };
        assert_eq!(
            topic_config(&values(&[
                ("retention.ms", "-1"),
                ("retention.bytes", "-1"),
                ("cleanup.policy", "delete")
            ])),
            unbounded
        );
        assert_eq!(topic_config(&ConfigValues::new()), unbounded);
        assert_eq!(
            topic_config(&values(&[
                ("retention.ms", "5000"),
                ("retention.bytes", "7"),
                ("cleanup.policy", "compact, delete")
            ])),
            TopicConfig {
                is_compacted: true,
                has_retention: true,
                retention: Some(Duration::from_secs(5)),
                retention_bytes: Some(7)
            }
        );
        assert!(!topic_config(&values(&[("cleanup.policy", "compact")])).has_retention);
    }
}
