//! The caller's side of a producer: sends records, and closes the client and its thread.

use super::ffi::{NativeProducer, ProduceRequest, TopicHandle};
use super::topic_name::is_valid_topic_name;
use crate::client_thread::ClientThread;
use crate::limit::KAFKA_TOPIC_HANDLES_MAX;
use crate::model::header::Header;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Dropping it gives up the records in flight and joins the thread.
pub(super) struct ProducerClient {
    topic_handles: TopicHandles,
    /// `None` once retired. The last owner closes the client, which blocks: it must be the thread.
    native: Option<Arc<NativeProducer>>,
    stop: Arc<AtomicBool>,
    thread: ClientThread,
}

impl ProducerClient {
    /// `thread` serves the client, and ends soon after `stop` is set.
    pub(super) fn new(
        native: Arc<NativeProducer>,
        stop: Arc<AtomicBool>,
        thread: ClientThread,
    ) -> Self {
        Self {
            topic_handles: TopicHandles::default(),
            native: Some(native),
            stop,
            thread,
        }
    }

    /// `None` once retired.
    pub(super) fn native(&self) -> Option<&NativeProducer> {
        self.native.as_deref()
    }

    pub(super) fn send<'h>(
        &mut self,
        topic: &str,
        request: &ProduceRequest<'_>,
        headers: impl Iterator<Item = Header<'h>>,
    ) -> Result<(), Code> {
        let Some(native) = &self.native else {
            return Err(Code::DestroyBroker);
        };
        native.send(self.topic_handles.get(native, topic)?, request, headers)
    }

    /// Stops the thread, which gives up the records in flight. Their reports still arrive.
    pub(super) fn retire(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.topic_handles.clear();
        if let Some(native) = self.native.take() {
            native.wake_poll();
        }
    }

    /// Returns whether a retired client has reported on all records and is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.thread.is_finished()
    }

    pub(super) async fn close(&mut self) {
        self.retire();
        self.thread.join().await;
    }
}

impl Drop for ProducerClient {
    fn drop(&mut self) {
        self.retire();
    }
}

/// The topic handles of one producer. Sending by name costs more: for every record,
/// librdkafka would take its global write lock and search its list of topics.
#[derive(Default)]
struct TopicHandles {
    /// Indexes into `handles`.
    by_name: BTreeMap<Box<str>, usize>,
    handles: Vec<TopicHandle>,
}

impl TopicHandles {
    /// `producer` must be the same in every call.
    fn get(&mut self, producer: &NativeProducer, topic: &str) -> Result<&TopicHandle, Code> {
        let at = match self.by_name.get(topic) {
            Some(at) => *at,
            None => self.create(producer, topic)?,
        };
        Ok(&self.handles[at])
    }

    fn clear(&mut self) {
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
