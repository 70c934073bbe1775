//! Admin requests about topics, offsets and commits, with answers in the port's types.

use super::worker::WorkerThread;
use crate::broker::kafka::error::call_error;
use crate::broker::kafka::ffi::{self, Isolation, TopicDescription};
use crate::broker::kafka::partition_list;
use crate::broker::kafka::topic_name::is_valid_topic_name;
use crate::broker::{Error, OffsetCommit, PartitionInfo};
use crate::model::{Offset, Partition, SourceIdentity, Timestamp};
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

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
            self.identity(topic).map(Some)
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
        let or_end = found.map(|(offset, end)| u64::try_from(offset).map_or(end, Offset));
        Ok(or_end.collect())
    }

    /// Commits offsets for a group without members.
    pub(crate) fn commit(&mut self, group: &str, commits: &[OffsetCommit]) -> Result<(), Error> {
        if commits.is_empty() {
            return Ok(());
        }
        self.use_group(group)?;
        let mut offsets = TopicPartitionList::with_capacity(commits.len());
        for commit in commits {
            let metadata = Some(&*commit.metadata);
            partition_list::add(&mut offsets, &commit.partition, commit.offset, metadata);
        }
        let committed = self.call(|call| match ffi::commit_offsets(call, &offsets) {
            Err((Code::UnknownMemberId | Code::IllegalGeneration, _)) => Ok(false),
            committed => committed.map(|()| true),
        })?;
        if committed {
            return Ok(());
        }
        Err(Error::Rejected(format!(
            "the consumer group {group} has members: stop all processes of the deployment. A process that was \
             killed is a member for 10 more seconds"
        )))
    }

    fn offsets(
        &mut self,
        partitions: &[Partition],
        offset: rdkafka::Offset,
    ) -> Result<Vec<Offset>, Error> {
        let listed = self.listed_offsets(partitions, offset)?.into_iter();
        let checked = listed.map(|offset| {
            u64::try_from(offset)
                .map(Offset)
                .map_err(|_| Error::Unavailable(format!("the broker returned the offset {offset}")))
        });
        checked.collect()
    }

    fn listed_offsets(
        &mut self,
        partitions: &[Partition],
        offset: rdkafka::Offset,
    ) -> Result<Vec<i64>, Error> {
        let found =
            self.call(|call| ffi::list_offsets(call, partitions, offset, Isolation::Uncommitted))?;
        let offset_of = |partition| {
            let answer = found.get(partition).cloned().unwrap_or_else(|| {
                let text = "the broker's answer lacks the partition";
                Err((Code::Fail, text.to_owned()))
            });
            answer.map_err(call_error)
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
