//! Admin requests about topics, offsets and commits, with answers in the port's types.

use crate::broker::kafka::error::call_error;
use crate::broker::kafka::ffi::{self, CallContext, CallError, TopicDescription};
use crate::broker::kafka::topic_name::is_valid_topic_name;
use crate::broker::{Error, PartitionInfo};
use crate::model::{Offset, Partition, SourceIdentity};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// All partitions of the topics, sorted.
pub(super) fn partitions(
    context: &mut CallContext<'_>,
    names: &[String],
) -> Result<Vec<Partition>, Error> {
    let mut found = Vec::new();
    for topic in topics(context, names.iter().map(String::as_str))? {
        let name: Arc<str> = topic.name.into();
        let indexes = topic.partitions.into_iter();
        found.extend(indexes.map(|index| Partition::new(name.clone(), index)));
    }
    found.sort();
    Ok(found)
}

/// Describes partitions. `on_topics` gets the descriptions of their topics.
pub(super) fn describe_partitions(
    context: &mut CallContext<'_>,
    partitions: &[Partition],
    on_topics: impl FnOnce(&BTreeMap<String, TopicDescription>),
) -> Result<Vec<PartitionInfo>, Error> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let names = partitions.iter().map(|partition| &*partition.topic);
    let topics: BTreeMap<String, TopicDescription> = topics(context, names)?
        .into_iter()
        .map(|topic| (topic.name.clone(), topic))
        .collect();
    on_topics(&topics);
    for partition in partitions {
        let topic = topics.get(&*partition.topic);
        if !topic.is_some_and(|topic| topic.partitions.contains(&partition.index)) {
            return Err(Error::Rejected(format!(
                "the partition {partition} does not exist"
            )));
        }
    }
    let keys = keys(partitions);
    let first_offsets =
        ffi::list_offsets(context, &keys, rdkafka::Offset::Beginning).map_err(to_error)?;
    let end_offsets = ffi::list_offsets(context, &keys, rdkafka::Offset::End).map_err(to_error)?;
    let mut described = Vec::with_capacity(partitions.len());
    for (partition, (first, end)) in partitions
        .iter()
        .zip(first_offsets.into_iter().zip(end_offsets))
    {
        let id = topics[&*partition.topic].id.as_deref();
        described.push(PartitionInfo {
            identity: id.map(|id| SourceIdentity(id.into())),
            first_offset: to_offset(first)?,
            end_offset: to_offset(end)?,
        });
    }
    Ok(described)
}

/// The metadata that the client's group committed, within about `timeout`. A topic with an invalid
/// name has none.
pub(super) fn committed_metadata(
    context: &mut CallContext<'_>,
    partitions: &[Partition],
    timeout: Duration,
) -> Result<Vec<Option<String>>, Error> {
    let valid: Vec<Partition> = partitions
        .iter()
        .filter(|partition| is_valid_topic_name(&partition.topic))
        .cloned()
        .collect();
    if valid.is_empty() {
        return Ok(vec![None; partitions.len()]);
    }
    let mut found = ffi::committed_metadata(context, &keys(&valid), timeout)
        .map_err(to_error)?
        .into_iter();
    let metadata_of = |partition: &Partition| {
        if is_valid_topic_name(&partition.topic) {
            found.next().unwrap_or(Ok(None)).map_err(to_error)
        } else {
            Ok(None)
        }
    };
    partitions.iter().map(metadata_of).collect()
}

/// Describes topics. Omits those that do not exist and those with invalid names.
pub(super) fn topics<'a>(
    context: &mut CallContext<'_>,
    names: impl Iterator<Item = &'a str>,
) -> Result<Vec<TopicDescription>, Error> {
    let names: BTreeSet<&str> = names.filter(|name| is_valid_topic_name(name)).collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = names.into_iter().collect();
    let found = ffi::describe_topics(context, &names).map_err(to_error)?;
    let is_missing = |topic: &Result<TopicDescription, CallError>| {
        matches!(
            topic,
            Err((Code::UnknownTopicOrPartition | Code::UnknownTopic, _))
        )
    };
    found
        .into_iter()
        .filter(|topic| !is_missing(topic))
        .map(|topic| topic.map_err(to_error))
        .collect()
}

fn keys(partitions: &[Partition]) -> Vec<(String, i32)> {
    partitions
        .iter()
        .map(|partition| (partition.topic.to_string(), partition.index))
        .collect()
}

fn to_offset(found: Result<i64, CallError>) -> Result<Offset, Error> {
    let offset = found.map_err(to_error)?;
    u64::try_from(offset)
        .map(Offset)
        .map_err(|_| Error::Unavailable(format!("the broker answers the offset {offset}")))
}

fn to_error((code, text): CallError) -> Error {
    call_error(code, &text)
}
