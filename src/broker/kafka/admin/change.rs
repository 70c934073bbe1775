//! Makes the changes that a check proposes, and names the commands of Kafka's tools for them.

use super::{KafkaCatalog, WorkerThread};
use crate::broker::Error;
use crate::broker::inspection::{Change, NewTopic};
use crate::broker::kafka::error::{call_error, client_creation_error};
use crate::broker::kafka::ffi;
use crate::broker::kafka::limit::KAFKA_REQUEST_TIMEOUT;
use crate::broker::kafka::login::Login;
use crate::broker::kafka::options::NO_OPTIONS;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic as NativeTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::time::Duration;

const RETENTION: &str = "retention.ms";

impl KafkaCatalog {
    pub(super) async fn change(&mut self, change: &Change) -> Result<(), Error> {
        match change {
            Change::Create(topic) => self.create_topic(topic).await,
            Change::SetRetention { name, retention } => {
                let (name, millis) = (name.clone(), retention.as_millis().to_string());
                let request = move |worker: &mut WorkerThread| {
                    worker.call(|call| ffi::set_topic_config(call, &name, RETENTION, &millis))
                };
                self.request(request).await
            }
        }
    }

    async fn create_topic(&self, topic: &NewTopic) -> Result<(), Error> {
        let mut config = self.cluster.config(&NO_OPTIONS, &[]);
        let login = Login::take_from(&mut config)?;
        let client: AdminClient<DefaultClientContext> = config
            .create()
            .map_err(|error| client_creation_error(&error))?;
        ffi::log_in(client.inner(), login.as_ref())?;
        let replication = TopicReplication::Fixed(topic.replicas.into());
        let mut native = NativeTopic::new(&topic.name, topic.partitions.into(), replication);
        let settings = settings(topic);
        native.config = settings
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        let options = AdminOptions::new()
            .request_timeout(Some(KAFKA_REQUEST_TIMEOUT))
            .operation_timeout(Some(KAFKA_REQUEST_TIMEOUT));
        let failed = |code: Code| Err(call_error((code, code.to_string())));
        match client.create_topics([&native], &options).await.as_deref() {
            Ok([Err((_, Code::TopicAlreadyExists))]) => Ok(()),
            Ok([Err((_, code))]) => failed(*code),
            Ok(_) => Ok(()),
            Err(error) => failed(KafkaError::rdkafka_error_code(error).unwrap_or(Code::Fail)),
        }
    }
}

/// The settings of a new topic that must not follow the broker's defaults.
fn settings(topic: &NewTopic) -> Vec<(&'static str, String)> {
    let mut settings = Vec::new();
    if topic.replicas >= 3 {
        // An acknowledged record then survives the loss of one broker.
        settings.push(("min.insync.replicas", "2".to_owned()));
    }
    if topic.is_compacted {
        settings.push(("cleanup.policy", "compact".to_owned()));
        // An outage of this length loses no definition that an update has replaced.
        let kept = Duration::from_secs(86_400).as_millis();
        settings.push(("min.compaction.lag.ms", kept.to_string()));
    } else if let Some(retention) = topic.retention {
        settings.push(("cleanup.policy", "delete".to_owned()));
        settings.push((RETENTION, retention.as_millis().to_string()));
        settings.push(("retention.bytes", "-1".to_owned()));
    }
    settings
}

pub(super) fn command(brokers: &str, change: &Change) -> String {
    match change {
        Change::Create(topic) => {
            let settings = settings(topic).into_iter();
            let settings = settings.map(|(name, value)| format!(" --config {name}={value}"));
            format!(
                "kafka-topics.sh --bootstrap-server {brokers} --create --topic {} --partitions {} --replication-factor {}{}",
                topic.name,
                topic.partitions,
                topic.replicas,
                settings.collect::<String>()
            )
        }
        Change::SetRetention { name, retention } => format!(
            "kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics --entity-name {name} --add-config {RETENTION}={}",
            retention.as_millis()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_change_has_a_command_of_kafkas_tools() {
        let day = Duration::from_secs(24 * 3_600);
        let source = NewTopic {
            name: "orders.delayed".into(),
            subjects: Vec::new(),
            partitions: 6,
            replicas: 3,
            retention: Some(31 * day),
            is_compacted: false,
        };
        let target = NewTopic {
            name: "orders".into(),
            replicas: 1,
            retention: None,
            ..source.clone()
        };
        let longer = Change::SetRetention {
            name: "orders.delayed".into(),
            retention: day,
        };
        let commands = [Change::Create(source), Change::Create(target), longer];
        let commands = commands.map(|change| command("a:1,b:2", &change));
        insta::assert_snapshot!(commands.join("\n"), @r"
        kafka-topics.sh --bootstrap-server a:1,b:2 --create --topic orders.delayed --partitions 6 --replication-factor 3 --config min.insync.replicas=2 --config cleanup.policy=delete --config retention.ms=2678400000 --config retention.bytes=-1
        kafka-topics.sh --bootstrap-server a:1,b:2 --create --topic orders --partitions 6 --replication-factor 1
        kafka-configs.sh --bootstrap-server a:1,b:2 --alter --entity-type topics --entity-name orders.delayed --add-config retention.ms=86400000
        ");
    }
}
