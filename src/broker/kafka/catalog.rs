//! What a cluster says of its topics and of a group's commits. Every question blocks until brokers answer, so they are put on a thread of
//! their own, by `inquiry`; nothing here joins a group.

use super::health::ClusterHealth;
use super::inquiry::{AdminWorker, Chores};
use super::raw::{self, CallContext, CallError, NativeClient, OffsetSpec, TopicDescription};
use super::{ClientOptions, Cluster, client_creation_error, failure, is_valid_topic_name};
use crate::broker::describe::{ClusterDescriber, ClusterInfo};
use crate::broker::{Catalog, Error, PartitionInfo};
use crate::health::HealthPart;
use crate::model::{Offset, Partition, SourceIdentity};
use async_trait::async_trait;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const SIDE: ClientOptions = ClientOptions {
    defaults: &[],
    limits: &[],
    enforced: &[
        ("enable.auto.commit", "false"),
        ("isolation.level", "read_committed"),
    ],
};

/// The catalog port on one cluster.
pub(crate) struct KafkaCatalog {
    inquiry: AdminWorker,
}

impl KafkaCatalog {
    /// `part` tells of its cluster. It is connected for questions about `group` from the start; one about another has to wait for that.
    pub(crate) fn new(
        cluster: &Cluster,
        group: Option<&str>,
        part: HealthPart,
    ) -> Result<Self, Error> {
        Ok(Self {
            inquiry: inquiry(cluster, group, ClusterHealth::new(&cluster.name, part))?,
        })
    }
}

/// By a client of its own, which reads what is committed only.
pub(super) fn inquiry(
    cluster: &Cluster,
    group: Option<&str>,
    health: ClusterHealth,
) -> Result<AdminWorker, Error> {
    let mut config = cluster.config(&SIDE, &[]);
    group
        .into_iter()
        .for_each(|group| _ = config.set("group.id", group));
    let native = Arc::new(
        NativeClient::admin_client(&config).map_err(|error| client_creation_error(&error))?,
    );
    AdminWorker::start(native, health, Chores::serving(config))
}

#[async_trait(?Send)]
impl Catalog for KafkaCatalog {
    async fn partitions(&mut self, topics: &[String]) -> Result<Vec<Partition>, Error> {
        self.inquiry.partitions(topics).await
    }

    async fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.inquiry.committed(group, partitions).await
    }

    async fn close(&mut self) {
        self.inquiry.end().await;
    }
}

#[async_trait(?Send)]
impl ClusterDescriber for KafkaCatalog {
    async fn describe_cluster(&mut self, topics: &[String]) -> Result<ClusterInfo, Error> {
        self.inquiry.inspect(topics).await
    }
}

pub(super) fn partitions(
    asking: &mut CallContext<'_>,
    names: &[String],
) -> Result<Vec<Partition>, Error> {
    let mut found = Vec::new();
    for topic in topics(asking, names.iter().map(String::as_str))? {
        let name: Arc<str> = topic.name.into();
        found.extend(
            topic
                .partitions
                .into_iter()
                .map(|index| Partition::new(name.clone(), index)),
        );
    }
    found.sort();
    Ok(found)
}

/// `saw` is told what topics there are.
pub(super) fn describe(
    asking: &mut CallContext<'_>,
    partitions: &[Partition],
    saw: impl FnOnce(&BTreeMap<String, TopicDescription>),
) -> Result<Vec<PartitionInfo>, Error> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let topics: BTreeMap<String, TopicDescription> =
        topics(asking, partitions.iter().map(|partition| &*partition.topic))?
            .into_iter()
            .map(|topic| (topic.name.clone(), topic))
            .collect();
    saw(&topics);
    for partition in partitions {
        if !topics
            .get(&*partition.topic)
            .is_some_and(|topic| topic.partitions.contains(&partition.index))
        {
            return Err(Error::Rejected(format!(
                "the partition {partition} does not exist"
            )));
        }
    }
    let places = places(partitions);
    let firsts = raw::list_offsets(asking, &places, OffsetSpec::Earliest).map_err(failed)?;
    let ends = raw::list_offsets(asking, &places, OffsetSpec::Latest).map_err(failed)?;
    let mut described = Vec::with_capacity(partitions.len());
    for (partition, (first, end)) in partitions.iter().zip(firsts.into_iter().zip(ends)) {
        let identity = topics[&*partition.topic]
            .id
            .as_deref()
            .map(|id| SourceIdentity(id.into()));
        described.push(PartitionInfo {
            identity,
            first_offset: offset(first)?,
            end_offset: offset(end)?,
        });
    }
    Ok(described)
}

/// By the client's group, within `patience` or a little more. Of a topic that cannot exist nothing was ever committed.
pub(super) fn committed(
    asking: &mut CallContext<'_>,
    partitions: &[Partition],
    patience: Duration,
) -> Result<Vec<Option<String>>, Error> {
    let possible: Vec<Partition> = partitions
        .iter()
        .filter(|partition| is_valid_topic_name(&partition.topic))
        .cloned()
        .collect();
    if possible.is_empty() {
        return Ok(vec![None; partitions.len()]);
    }
    let mut found = raw::committed(asking, &places(&possible), patience)
        .map_err(failed)?
        .into_iter();
    let one = |partition: &Partition| {
        if is_valid_topic_name(&partition.topic) {
            found.next().unwrap_or(Ok(None)).map_err(failed)
        } else {
            Ok(None)
        }
    };
    partitions.iter().map(one).collect()
}

/// What the cluster says of topics; those that do not exist, or cannot, are left out.
pub(super) fn topics<'a>(
    asking: &mut CallContext<'_>,
    names: impl Iterator<Item = &'a str>,
) -> Result<Vec<TopicDescription>, Error> {
    let names: Vec<&str> = names
        .filter(|name| is_valid_topic_name(name))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let found = raw::describe_topics(asking, &names).map_err(failed)?;
    let existing = found.into_iter().filter(|topic| {
        !matches!(
            topic,
            Err((Code::UnknownTopicOrPartition | Code::UnknownTopic, _))
        )
    });
    existing.map(|topic| topic.map_err(failed)).collect()
}

fn places(partitions: &[Partition]) -> Vec<(String, i32)> {
    partitions
        .iter()
        .map(|partition| (partition.topic.to_string(), partition.index))
        .collect()
}

fn offset(found: Result<i64, CallError>) -> Result<Offset, Error> {
    let found = found.map_err(failed)?;
    u64::try_from(found)
        .map(Offset)
        .map_err(|_| Error::Unavailable(format!("the broker answers the offset {found}")))
}

fn failed((code, words): CallError) -> Error {
    failure::call_error(code, &words)
}
