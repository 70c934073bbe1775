//! Admin requests about topics, offsets and commits, with answers in the port's types.

use super::worker::WorkerThread;
use crate::broker::kafka::error::call_error;
use crate::broker::kafka::ffi::{self, Isolation, TopicDescription};
use crate::broker::kafka::topic_name::is_valid_topic_name;
use crate::broker::{Error, PartitionInfo};
use crate::model::{Offset, Partition, SourceIdentity};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

impl WorkerThread {
    /// All partitions of the topics, sorted.
    pub(crate) fn partitions(&mut self, names: &[String]) -> Result<Vec<Partition>, Error> {
        let mut found = Vec::new();
        for topic in self.topics(names.iter().map(String::as_str), false)? {
            let name: Arc<str> = topic.name.into();
            let indexes = topic.partitions.into_iter();
            found.extend(indexes.map(|index| Partition::new(name.clone(), index)));
        }
        found.sort();
        Ok(found)
    }

    pub(crate) fn describe_partitions(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<PartitionInfo>, Error> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let topics = self.topics(partitions.iter().map(|it| &*it.topic), false)?;
        let identity = |partition: &Partition| {
            let mut of_name = topics.iter().filter(|topic| topic.name == *partition.topic);
            let topic = of_name.find(|topic| topic.partitions.contains(&partition.index));
            let topic = topic.ok_or_else(|| {
                Error::Rejected(format!("the partition {partition} does not exist"))
            })?;
            Ok(topic.id.as_deref().map(|id| SourceIdentity(id.into())))
        };
        let identities: Vec<_> = partitions
            .iter()
            .map(identity)
            .collect::<Result<_, Error>>()?;
        let first_offsets = self.offsets(partitions, rdkafka::Offset::Beginning)?;
        let end_offsets = self.offsets(partitions, rdkafka::Offset::End)?;
        let offsets = first_offsets.into_iter().zip(end_offsets);
        let described = identities.into_iter().zip(offsets);
        Ok(described
            .map(|(identity, (first_offset, end_offset))| PartitionInfo {
                identity,
                first_offset,
                end_offset,
            })
            .collect())
    }

    fn offsets(
        &mut self,
        partitions: &[Partition],
        offset: rdkafka::Offset,
    ) -> Result<Vec<Offset>, Error> {
        let found =
            self.call(|call| ffi::list_offsets(call, partitions, offset, Isolation::Uncommitted))?;
        let offset_of = |partition| {
            let answer = found.get(partition).cloned().unwrap_or_else(|| {
                let text = "the broker's answer lacks the partition";
                Err((Code::Fail, text.to_owned()))
            });
            let offset = answer.map_err(call_error)?;
            u64::try_from(offset)
                .map(Offset)
                .map_err(|_| Error::Unavailable(format!("the broker returned the offset {offset}")))
        };
        partitions.iter().map(offset_of).collect()
    }

    /// The metadata that `group` committed, within about `timeout`. A topic with an invalid name
    /// has none.
    pub(crate) fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
        timeout: Duration,
    ) -> Result<Vec<Option<String>>, Error> {
        let is_valid = |partition: &&Partition| is_valid_topic_name(&partition.topic);
        let valid: Vec<Partition> = partitions.iter().filter(is_valid).cloned().collect();
        let mut found = Vec::new().into_iter();
        if !valid.is_empty() {
            self.use_group(group)?;
            let metadata = self.call(|call| ffi::committed_metadata(call, &valid, timeout))?;
            found = metadata.into_iter();
        }
        let metadata_of = |partition| {
            is_valid(&partition)
                .then(|| found.next())
                .flatten()
                .flatten()
        };
        Ok(partitions.iter().map(metadata_of).collect())
    }

    /// Describes topics. Omits those that do not exist and those with invalid names.
    pub(super) fn topics<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        with_permissions: bool,
    ) -> Result<Vec<TopicDescription>, Error> {
        let names: BTreeSet<&str> = names.filter(|name| is_valid_topic_name(name)).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<&str> = names.into_iter().collect();
        let mut found = Vec::with_capacity(names.len());
        for topic in self.call(|call| ffi::describe_topics(call, &names, with_permissions))? {
            match topic {
                Ok(topic) => found.push(topic),
                Err((Code::UnknownTopicOrPartition | Code::UnknownTopic, _)) => {}
                Err(error) => return Err(call_error(error)),
            }
        }
        if let Some(watch) = &mut self.watch {
            watch.update(&found);
        }
        Ok(found)
    }
}
