//! The caller's side of a producer: sends records, and closes the client and its thread.

use super::ffi::{NativeProducer, ProduceRequest, TopicHandle};
use super::limit::KAFKA_TOPIC_HANDLES_MAX;
use crate::broker::Error;
use crate::broker::send_budget::SendBudget;
use crate::client_thread::ClientThread;
use crate::model::header::Header;
use crate::model::is_topic_name;
use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Dropping it gives up the records in flight and joins the thread.
pub(super) struct ProducerClient {
    /// Handles by topic name. To send by name, librdkafka takes its global write lock and searches
    /// its list of topics for every record.
    topics: BTreeMap<Box<str>, TopicHandle>,
    /// `None` once retired. The last owner closes the client, which blocks: it must be the thread.
    pub(super) native: Option<Arc<NativeProducer>>,
    stop: Arc<AtomicBool>,
    thread: ClientThread,
}

impl ProducerClient {
    /// Opens a client and starts its thread. `serve` serves the client, and returns soon after the
    /// flag is set.
    pub(super) fn start(
        config: &ClientConfig,
        budget: Arc<SendBudget>,
        thread_name: &str,
        serve: impl FnOnce(Arc<NativeProducer>, Arc<AtomicBool>) + Send + 'static,
    ) -> Result<Self, Error> {
        let native = Arc::new(NativeProducer::new(config, budget)?);
        let stop = Arc::<AtomicBool>::default();
        let (client, flag) = (native.clone(), stop.clone());
        let thread = ClientThread::start(thread_name, move || serve(client, flag))
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            topics: BTreeMap::new(),
            native: Some(native),
            stop,
            thread,
        })
    }

    pub(super) fn send<'h>(
        &mut self,
        topic: &str,
        request: &ProduceRequest<'_>,
        headers: impl Iterator<Item = Header<'h>>,
    ) -> Result<(), Code> {
        let native = self.native.as_ref().ok_or(Code::DestroyBroker)?;
        if !self.topics.contains_key(topic) {
            let name = Some(topic).filter(|name| is_topic_name(name));
            let handle = name.and_then(|name| native.topic(name));
            let handle = handle.ok_or(Code::InvalidTopic)?;
            // Messages may name any number of topics, so start again when the map is full.
            if self.topics.len() >= KAFKA_TOPIC_HANDLES_MAX {
                self.topics.clear();
            }
            self.topics.insert(topic.into(), handle);
        }
        native.send(&self.topics[topic], request, headers)
    }

    /// Stops the thread, which gives up the records in flight. Their reports still arrive.
    pub(super) fn retire(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.topics.clear();
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
