//! The topic handles of one producer.
//!
//! Sending by handle is cheaper than sending by name: for a name, librdkafka takes its global write
//! lock and searches its list of topics, for every record.

use super::ffi::{NativeProducer, TopicHandle};
use super::topic_name::is_valid_topic_name;
use crate::limit::KAFKA_TOPIC_HANDLES_MAX;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;

/// Must be cleared or dropped before the producer is dropped.
#[derive(Default)]
pub(super) struct TopicHandles {
    /// Indexes into `handles`.
    by_name: BTreeMap<Box<str>, usize>,
    handles: Vec<TopicHandle>,
}

impl TopicHandles {
    /// The handle of a topic. `producer` must be the same in every call.
    pub(super) fn get(
        &mut self,
        producer: &NativeProducer,
        topic: &str,
    ) -> Result<&TopicHandle, Code> {
        let at = match self.by_name.get(topic) {
            Some(at) => *at,
            None => self.create(producer, topic)?,
        };
        Ok(&self.handles[at])
    }

    pub(super) fn clear(&mut self) {
        self.by_name.clear();
        self.handles.clear();
    }

    /// Creates a handle. Returns its index.
    fn create(&mut self, producer: &NativeProducer, topic: &str) -> Result<usize, Code> {
        if !is_valid_topic_name(topic) {
            return Err(Code::InvalidTopic);
        }
        let handle = producer.topic(topic).ok_or(Code::InvalidTopic)?;
        // Messages may name any number of topics, so start again when the map is full.
        if self.handles.len() >= KAFKA_TOPIC_HANDLES_MAX {
            self.clear();
        }
        self.handles.push(handle);
        let at = self.handles.len() - 1;
        self.by_name.insert(topic.into(), at);
        Ok(at)
    }
}
