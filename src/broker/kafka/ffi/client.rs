//! A librdkafka client whose events are polled, and probes that show whether a broker responds.

use super::admin;
use super::producer::TopicHandle;
use super::queue::Queue;
use super::{CallError, check_call, millis};
use crate::limit::KAFKA_PROBE_TIMEOUT;
use rdkafka::client::{Client, ClientContext, DefaultClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaType};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString, c_int};
use std::sync::OnceLock;
use std::time::Duration;

/// A client whose main queue (logs, errors, delivery reports) is served by [`NativeClient::poll`].
pub(crate) struct NativeClient {
    main_queue: Queue,
    /// The first topic that the client used. A probe asks a broker about it.
    probe_topic: OnceLock<CString>,
    client: Client<DefaultClientContext>,
}

/// The probe topic of a client that has used no topic yet. It need not exist.
const DEFAULT_PROBE_TOPIC: &CStr = c"postdate-probe";

/// A log line or an error of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientEvent {
    Log {
        /// From 0 (emergency) to 7 (debug).
        syslog_level: i32,
        text: String,
    },
    Error {
        code: RDKafkaErrorCode,
        text: String,
    },
}

/// The broker that a probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeTarget {
    /// The cluster's controller: a small request, but the controller may be the broker that is
    /// down.
    Controller,
    /// Any connected broker: a large response, with all topics that the client knows, or with all
    /// topics of the cluster if it knows none.
    AnyBroker,
}

impl NativeClient {
    /// `events`: the kinds of events, besides errors, that the main queue gets.
    pub(super) fn new(
        config: &ClientConfig,
        kind: RDKafkaType,
        events: c_int,
    ) -> Result<Self, KafkaError> {
        let native = config.create_native_config()?;
        // SAFETY: the configuration is alive, and no client owns it yet.
        unsafe { sys::rd_kafka_conf_set_events(native.ptr(), events | sys::RD_KAFKA_EVENT_ERROR) };
        let client = Client::new(config, native, kind, DefaultClientContext)?;
        // SAFETY: the client is alive, and this owns the new reference to its queue.
        let main_queue = unsafe { Queue::own(sys::rd_kafka_queue_get_main(client.native_ptr())) };
        Ok(Self {
            main_queue: main_queue.expect("every client has a main queue"),
            probe_topic: OnceLock::new(),
            client,
        })
    }

    /// A client for admin requests only. It joins no group and reads no records.
    pub(crate) fn admin_client(config: &ClientConfig) -> Result<Self, KafkaError> {
        Self::new(config, RDKafkaType::RD_KAFKA_CONSUMER, 0)
    }

    pub(super) fn ptr(&self) -> *mut sys::rd_kafka_t {
        self.client.native_ptr()
    }

    pub(super) fn client(&self) -> &Client<DefaultClientContext> {
        &self.client
    }

    pub(super) fn main_queue(&self) -> &Queue {
        &self.main_queue
    }

    /// Serves one event of the main queue. Returns the number of served events: 0 after `timeout`.
    pub(crate) fn poll(&self, timeout: Duration, on_event: &mut dyn FnMut(ClientEvent)) -> usize {
        let Some(event) = self.main_queue.poll(timeout) else {
            return 0;
        };
        event.client_event().into_iter().for_each(on_event);
        1
    }

    /// Returns whether a broker responds within [`KAFKA_PROBE_TIMEOUT`].
    pub(crate) fn probe(&self, target: ProbeTarget) -> bool {
        match target {
            ProbeTarget::Controller => {
                let topic = self.probe_topic.get();
                admin::controller_responds(
                    self,
                    topic.map_or(DEFAULT_PROBE_TOPIC, CString::as_c_str),
                )
            }
            ProbeTarget::AnyBroker => self.metadata(None, KAFKA_PROBE_TIMEOUT, |_| ()).is_ok(),
        }
    }

    /// Makes a topic available for probes.
    pub(super) fn remember_topic(&self, topic: &CStr) {
        self.probe_topic.get_or_init(|| topic.to_owned());
    }

    /// Requests the cluster's metadata: of one topic, or of all topics that the client knows.
    pub(super) fn metadata<T>(
        &self,
        topic: Option<&TopicHandle>,
        timeout: Duration,
        read: impl FnOnce(&sys::rd_kafka_metadata) -> T,
    ) -> Result<T, CallError> {
        let mut metadata: *const sys::rd_kafka_metadata = std::ptr::null();
        let topic = topic.map_or(std::ptr::null_mut(), TopicHandle::ptr);
        // SAFETY: the client and the topic are alive; this owns the metadata of a successful call.
        unsafe {
            let code = sys::rd_kafka_metadata(self.ptr(), 0, topic, &mut metadata, millis(timeout));
            check_call(code)?;
            let answer = read(&*metadata);
            sys::rd_kafka_metadata_destroy(metadata);
            Ok(answer)
        }
    }
}

/// The number of events that wait for a poll of this client.
pub(crate) fn queued_events<C: ClientContext>(client: &Client<C>) -> usize {
    // SAFETY: the client is alive.
    usize::try_from(unsafe { sys::rd_kafka_outq_len(client.native_ptr()) }).unwrap_or(0)
}
