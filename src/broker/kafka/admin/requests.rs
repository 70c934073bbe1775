//! Admin requests about topics, offsets and commits, with answers in the port's types.

use super::worker::WorkerThread;
use crate::broker::kafka::error::call_error;
use crate::broker::kafka::ffi::{self, Isolation, ListedOffsets, OffsetsCall, TopicDescription};
use crate::broker::kafka::limit::KAFKA_REQUEST_TIMEOUT;
use crate::broker::{Error, PartitionInfo};
use crate::model::{Offset, Partition, SourceIdentity, Timestamp, is_topic_name};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// `None`: the topic does not exist, or its name is invalid. `Err`: the cluster does not describe it.
pub(super) type TopicsByName = BTreeMap<String, Result<Option<TopicDescription>, Error>>;

impl WorkerThread {
    /// All partitions of the topics, sorted, each with its incarnation.
    pub(crate) fn partitions(
        &mut self,
        names: &[String],
    ) -> Result<Vec<(Partition, SourceIdentity)>, Error> {
        let names = names.iter().map(String::as_str).collect();
        let mut found = Vec::new();
        for (name, topic) in self.topics_by_name(&names, false, KAFKA_REQUEST_TIMEOUT)? {
            let Some(topic) = topic? else { continue };
            let (name, identity) = (Arc::<str>::from(name), self.identity(&topic)?);
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

    /// `timeout`: of each of the two requests. The partitions whose broker does not tell their offsets have
    /// an error, and the others do not.
    pub(crate) fn describe_partitions(
        &mut self,
        partitions: &[Partition],
        timeout: Duration,
    ) -> Result<Vec<Result<PartitionInfo, Error>>, Error> {
        let names = partitions.iter().map(|it| &*it.topic).collect();
        let topics = self.topics_by_name(&names, false, timeout)?;
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
        let at = |offset| existing.clone().map(move |(it, _)| (it, offset)).collect();
        let (first, end) = (at(rdkafka::Offset::Beginning), at(rdkafka::Offset::End));
        let [first, end] = self.list_offsets([first, end], timeout)?;
        let described = partitions
            .iter()
            .zip(identities)
            .map(|(partition, identity)| {
                Ok(PartitionInfo {
                    identity: identity?,
                    first_offset: known_offset(&first, partition)?,
                    end_offset: known_offset(&end, partition)?,
                })
            });
        Ok(described.collect())
    }

    /// The offset of the first record of each partition that is not older than the time, or else the
    /// end. The partitions whose broker does not answer within `timeout` have an error.
    pub(crate) fn offsets_at(
        &mut self,
        times: &[(Partition, Timestamp)],
        timeout: Duration,
    ) -> Result<Vec<Result<Offset, Error>>, Error> {
        let at_time = times.iter().map(|(partition, time)| {
            // The client passes an offset on as a time, and a negative time would have another meaning.
            let millis = time.as_millis().max(0);
            (partition, rdkafka::Offset::Offset(millis))
        });
        let at_end = times.iter().map(|(it, _)| (it, rdkafka::Offset::End));
        let (at_time, at_end) = (at_time.collect(), at_end.collect());
        let [found, ends] = self.list_offsets([at_time, at_end], timeout)?;
        let or_end = times.iter().map(|(partition, _)| {
            let end = known_offset(&ends, partition)?;
            let found = listed_offset(&found, partition)?;
            Ok(u64::try_from(found).map_or(end, Offset))
        });
        Ok(or_end.collect())
    }

    /// Both requests run at the same time. No partition may repeat in one of them.
    fn list_offsets(
        &mut self,
        requests: [Vec<(&Partition, rdkafka::Offset)>; 2],
        timeout: Duration,
    ) -> Result<[ListedOffsets; 2], Error> {
        if requests.iter().all(Vec::is_empty) {
            return Ok(Default::default());
        }
        self.call(|call| {
            let [first, second] = requests.map(|offsets| {
                let offsets = offsets.into_iter();
                OffsetsCall::start(call.native, offsets, Isolation::Committed, timeout)
            });
            let (first, second) = (first?, second?);
            Ok([first.wait(call)?, second.wait(call)?])
        })
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

    /// Describes topics with one request. The watch for recreations learns their ids.
    pub(crate) fn topics_by_name(
        &mut self,
        names: &BTreeSet<&str>,
        with_permissions: bool,
        timeout: Duration,
    ) -> Result<TopicsByName, Error> {
        let valid = names.iter().copied().filter(|name| is_topic_name(name));
        let valid: Vec<&str> = valid.collect();
        let all = names.iter().map(|name| ((*name).to_owned(), Ok(None)));
        let mut topics: TopicsByName = all.collect();
        if valid.is_empty() {
            return Ok(topics);
        }
        for (name, topic) in
            self.call(|call| ffi::describe_topics(call, &valid, with_permissions, timeout))?
        {
            let topic = match topic {
                Ok(topic) => Ok(Some(topic)),
                Err((Code::UnknownTopicOrPartition | Code::UnknownTopic, _)) => Ok(None),
                Err(error) => Err(call_error(error)),
            };
            topics.insert(name, topic);
        }
        if let Some(watch) = &mut self.watch {
            watch.update(topics.values().flatten().flatten());
        }
        Ok(topics)
    }
}

fn listed_offset(listed: &ListedOffsets, partition: &Partition) -> Result<i64, Error> {
    let answer = listed.get(partition).cloned().unwrap_or_else(|| {
        let text = "the broker's answer lacks the partition";
        Err((Code::Fail, text.to_owned()))
    });
    answer.map_err(call_error)
}

fn known_offset(listed: &ListedOffsets, partition: &Partition) -> Result<Offset, Error> {
    let offset = listed_offset(listed, partition)?;
    let known = u64::try_from(offset).map(Offset);
    known.map_err(|_| Error::Unavailable(format!("no answer from the leader of {partition}")))
}
