//! Admin requests about topics and commits, with answers in the port's types.

use super::worker::WorkerThread;
use crate::broker::Error;
use crate::broker::kafka::error::call_error;
use crate::broker::kafka::ffi::{
    self, DescribedTopics, NativeClient, TopicDescription, TopicsCall,
};
use crate::broker::kafka::limit::KAFKA_REQUEST_TIMEOUT;
use crate::model::{Partition, SourceIdentity, is_topic_name};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// `None`: the topic does not exist, or its name is invalid. `Err`: the cluster does not describe it.
pub(super) type TopicsByName = BTreeMap<String, Result<Option<TopicDescription>, Error>>;

/// A question for topics that was sent.
pub(super) struct TopicsRequest {
    /// `None`: no name is valid.
    call: Option<TopicsCall>,
    /// `None`: the controller is asked.
    broker: Option<i32>,
    /// All names, without descriptions.
    topics: TopicsByName,
    /// Dropped after the call, which it must outlive.
    pub(super) native: Arc<NativeClient>,
}

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

    pub(super) fn partition_identity(
        &self,
        topics: &TopicsByName,
        partition: &Partition,
    ) -> Result<SourceIdentity, Error> {
        let topic = match topics.get(&*partition.topic) {
            Some(Err(error)) => return Err(error.clone()),
            Some(Ok(topic)) => topic.as_ref(),
            None => None,
        };
        let topic = topic.filter(|topic| topic.partitions.contains(&partition.index));
        let topic = topic
            .ok_or_else(|| Error::Rejected(format!("the partition {partition} does not exist")))?;
        self.identity(topic)
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

    /// Describes topics with one request.
    pub(crate) fn topics_by_name(
        &mut self,
        names: &BTreeSet<&str>,
        with_permissions: bool,
        timeout: Duration,
    ) -> Result<TopicsByName, Error> {
        let mut request = self.ask_topics(names, with_permissions, timeout)?;
        let Some(call) = request.call.take() else {
            return Ok(request.topics);
        };
        let described = self.call(|context| call.wait(context));
        self.learn_topics(request.broker, request.topics, described)
    }

    /// Any broker can answer it, although its answer may be old. After a request without an answer, the
    /// next one goes to another broker. The first request of a client goes to the controller.
    pub(super) fn ask_topics(
        &mut self,
        names: &BTreeSet<&str>,
        with_permissions: bool,
        timeout: Duration,
    ) -> Result<TopicsRequest, Error> {
        self.brokers.take_answer();
        let broker = self.brokers.ids().first().copied();
        let native = self.client()?;
        let all = names.iter().map(|name| ((*name).to_owned(), Ok(None)));
        let valid = names.iter().copied().filter(|name| is_topic_name(name));
        let valid: Vec<&str> = valid.collect();
        let mut call = None;
        if let Some(name) = valid.first() {
            if broker.is_none() {
                self.refresh_brokers(name);
            }
            let started = TopicsCall::start(&native, &valid, with_permissions, broker, timeout);
            call = Some(started.map_err(call_error)?);
        }
        Ok(TopicsRequest {
            call,
            broker,
            topics: all.collect(),
            native,
        })
    }

    /// The answer of a request that is polled. `None`: it has not arrived.
    pub(super) fn take_topics(
        &mut self,
        request: &mut TopicsRequest,
    ) -> Result<Option<TopicsByName>, Error> {
        let described = match &request.call {
            Some(call) => match call.try_take() {
                Some(described) => self.record(described),
                None => return Ok(None),
            },
            None => Ok(Vec::new()),
        };
        let topics = std::mem::take(&mut request.topics);
        self.learn_topics(request.broker, topics, described)
            .map(Some)
    }

    /// The watch for recreations learns the ids of the topics.
    fn learn_topics(
        &mut self,
        asked: Option<i32>,
        mut topics: TopicsByName,
        described: Result<DescribedTopics, Error>,
    ) -> Result<TopicsByName, Error> {
        if described.is_err() {
            let mut valid = topics.keys().filter(|name| is_topic_name(name));
            if let Some(name) = valid.next() {
                self.refresh_brokers(name);
            }
            if let Some(broker) = asked.or_else(|| self.controller()) {
                self.brokers.ask_last(broker);
            }
        }
        for (name, topic) in described? {
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
