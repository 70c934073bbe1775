//! Admin requests about topics, offsets and commits, with answers in the port's types.

use super::worker::WorkerThread;
use crate::broker::kafka::error::call_error;
use crate::broker::kafka::ffi::{self, Isolation, TopicDescription};
use crate::broker::{Error, PartitionInfo};
use crate::model::{Offset, Partition, SourceIdentity, Timestamp, is_topic_name};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub(super) type TopicsByName = BTreeMap<String, Result<Option<TopicDescription>, Error>>;

impl WorkerThread {
    /// All partitions of the topics, sorted, each with its incarnation.
    pub(crate) fn partitions(
        &mut self,
        names: &[String],
    ) -> Result<Vec<(Partition, SourceIdentity)>, Error> {
        let mut found = Vec::new();
        for topic in self.topics(names.iter().map(String::as_str), false)? {
            let identity = self.identity(&topic)?;
            let name: Arc<str> = topic.name.into();
            let indexes = topic.partitions.into_iter();
            found.extend(
                indexes.map(|index| (Partition::new(name.clone(), index), identity.clone())),
            );
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }

    fn identity(&self, topic: &TopicDescription) -> Result<SourceIdentity, Error> {
        let cluster = self.cluster_id();
        if cluster.is_none() && topic.id.is_some() {
            // Brokers with topic ids have a cluster id.
            let why = "the cluster id is not known yet";
            return Err(Error::Unavailable(why.to_owned()));
        }
        Ok(SourceIdentity::new(cluster.as_deref(), topic.id.as_deref()))
    }

    pub(crate) fn describe_partitions(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Result<PartitionInfo, Error>>, Error> {
        let names = partitions.iter().map(|it| &*it.topic).collect();
        let topics = self.topics_by_name(&names, false)?;
        let identity = |partition: &Partition| {
            let topic = match topics.get(&*partition.topic) {
                Some(Err(error)) => return Err(error.clone()),
                Some(Ok(topic)) => topic.as_ref(),
                None => None,
            };
            let topic = topic.filter(|topic| topic.partitions.contains(&partition.index));
            let topic = topic.ok_or_else(|| {
                Error::Rejected(format!("the partition {partition} does not exist"))
            })?;
            self.identity(topic).map(Some)
        };
        let identities: Vec<Result<_, Error>> = partitions.iter().map(identity).collect();
        let existing = partitions.iter().zip(&identities);
        let existing = existing.filter(|(_, identity)| identity.is_ok());
        let existing: Vec<Partition> = existing.map(|(partition, _)| partition.clone()).collect();
        let first_offsets = self.offsets(&existing, rdkafka::Offset::Beginning)?;
        let end_offsets = self.offsets(&existing, rdkafka::Offset::End)?;
        let mut offsets = first_offsets.into_iter().zip(end_offsets);
        let described = identities.into_iter().map(|identity| {
            let identity = identity?;
            let (first, end) = offsets.next().expect("every partition has an answer");
            Ok(PartitionInfo {
                identity,
                first_offset: first?,
                end_offset: end?,
            })
        });
        Ok(described.collect())
    }

    /// The offset of the first record that is not older than `time`, or else the end.
    pub(crate) fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> Result<Vec<Offset>, Error> {
        let ends = self.offsets(partitions, rdkafka::Offset::End)?;
        // The client passes an offset on as a time, and a negative time would have another meaning.
        let millis = time.as_millis().max(0);
        let found = self.listed_offsets(partitions, rdkafka::Offset::Offset(millis))?;
        let found = found.into_iter().zip(ends);
        let or_end =
            found.map(|(offset, end)| u64::try_from(offset?).map_or(end, |it| Ok(Offset(it))));
        or_end.collect()
    }

    fn offsets(
        &mut self,
        partitions: &[Partition],
        offset: rdkafka::Offset,
    ) -> Result<Vec<Result<Offset, Error>>, Error> {
        let listed = self.listed_offsets(partitions, offset)?.into_iter();
        let checked = listed.map(|offset| {
            let offset = offset?;
            u64::try_from(offset)
                .map(Offset)
                .map_err(|_| Error::Unavailable(format!("the broker returned the offset {offset}")))
        });
        Ok(checked.collect())
    }

    fn listed_offsets(
        &mut self,
        partitions: &[Partition],
        offset: rdkafka::Offset,
    ) -> Result<Vec<Result<i64, Error>>, Error> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let found =
            self.call(|call| ffi::list_offsets(call, partitions, offset, Isolation::Committed))?;
        let offset_of = |partition| {
            let answer = found.get(partition).cloned().unwrap_or_else(|| {
                let text = "the broker's answer lacks the partition";
                Err((Code::Fail, text.to_owned()))
            });
            answer.map_err(call_error)
        };
        Ok(partitions.iter().map(offset_of).collect())
    }

    /// The metadata that `group` committed, within about `timeout`. A topic with an invalid name
    /// has none.
    pub(crate) fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
        timeout: Duration,
    ) -> Result<Vec<Option<String>>, Error> {
        let is_valid = |partition: &&Partition| is_topic_name(&partition.topic);
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

    /// Describes topics. `None`: the topic does not exist, or its name is invalid. `Err`: the cluster
    /// did not answer.
    pub(crate) fn topics_by_name(
        &mut self,
        names: &BTreeSet<&str>,
        with_permissions: bool,
    ) -> Result<TopicsByName, Error> {
        let together = match self.topics(names.iter().copied(), with_permissions) {
            Ok(found) => Some(found),
            // The error of a common request does not name its topic, so ask for each topic alone.
            Err(Error::Rejected(_)) => None,
            Err(error) => return Err(error),
        };
        let topics = names.iter().map(|name| {
            let topic = match &together {
                Some(found) => Ok(found.iter().find(|topic| topic.name == *name).cloned()),
                None => {
                    let alone = self.topics(std::iter::once(*name), false);
                    alone.map(|found| found.into_iter().next())
                }
            };
            ((*name).to_owned(), topic)
        });
        Ok(topics.collect())
    }

    /// Describes topics. Omits those that do not exist and those with invalid names.
    pub(super) fn topics<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        with_permissions: bool,
    ) -> Result<Vec<TopicDescription>, Error> {
        let names: BTreeSet<&str> = names.filter(|name| is_topic_name(name)).collect();
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
