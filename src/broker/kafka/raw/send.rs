//! Sending: records with any bytes in their headers, and the reports of what became of them, a batch at a time.

use super::{ClientEvent, Message, NativeClient, text};
use crate::model::header::Header;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr, RDKafkaType};
use rdkafka_sys as sys;
use std::ffi::{CString, c_void};
use std::ptr::NonNull;
use std::time::Duration;

const _: () = assert!(
    size_of::<usize>() >= size_of::<u64>(),
    "a ticket travels through librdkafka as a pointer's bits"
);

/// librdkafka's `RD_KAFKA_PARTITION_UA`, which the bindings leave out.
const PARTITIONER_DECIDES: i32 = -1;

/// A producer.
pub(in super::super) struct NativeProducer(NativeClient);

/// A topic of one sender; cheaper to send to than a name. Must not outlive its sender.
pub(in super::super) struct TopicHandle(NonNull<sys::rd_kafka_topic_t>);

// SAFETY: librdkafka's topics are locked inside.
unsafe impl Send for TopicHandle {}

impl TopicHandle {
    pub(super) fn ptr(&self) -> *mut sys::rd_kafka_topic_t {
        self.0.as_ptr()
    }
}

/// One record to send; all of it is copied.
pub(in super::super) struct ProduceRequest<'a> {
    pub(in super::super) partition: Option<i32>,
    pub(in super::super) key: Option<&'a [u8]>,
    pub(in super::super) payload: Option<&'a [u8]>,
    /// Comes back with the report.
    pub(in super::super) ticket: u64,
}

/// What became of one record.
pub(in super::super) struct Delivery<'a> {
    pub(in super::super) message: Message<'a>,
    pub(in super::super) ticket: u64,
    pub(in super::super) error: Option<RDKafkaErrorCode>,
}

/// Whether a record that was not acknowledged may have arrived all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum PersistStatus {
    NotPersisted,
    PossiblyPersisted,
    Persisted,
}

impl NativeProducer {
    pub(in super::super) fn new(config: &ClientConfig) -> Result<Self, KafkaError> {
        NativeClient::new(
            config,
            RDKafkaType::RD_KAFKA_PRODUCER,
            sys::RD_KAFKA_EVENT_DR,
        )
        .map(Self)
    }

    pub(in super::super) fn native(&self) -> &NativeClient {
        &self.0
    }

    /// `None`: no broker could have a topic of that name.
    pub(in super::super) fn topic(&self, name: &str) -> Option<TopicHandle> {
        let name = CString::new(name).ok()?;
        self.0.knows(&name);
        // SAFETY: the client and the name are alive; the reference is ours to destroy.
        NonNull::new(unsafe {
            sys::rd_kafka_topic_new(self.0.ptr(), name.as_ptr(), std::ptr::null_mut())
        })
        .map(TopicHandle)
    }

    /// Takes a record over for `topic`, which must be this sender's. A report follows only if this is `Ok`.
    pub(in super::super) fn send<'h>(
        &self,
        topic: &TopicHandle,
        record: &ProduceRequest<'_>,
        headers: impl Iterator<Item = Header<'h>>,
    ) -> Result<(), RDKafkaErrorCode> {
        let headers = Headers::new(headers);
        let (key, key_length) = parts(record.key);
        let (payload, payload_length) = parts(record.payload);
        // SAFETY: the client and the topic are alive; key and payload are copied by MSG_F_COPY; each tag is followed by arguments of the
        // types that librdkafka reads for it; the list ends with END.
        let code = unsafe {
            sys::rd_kafka_producev(
                self.0.ptr(),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_RKT,
                topic.0.as_ptr(),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_PARTITION,
                record.partition.unwrap_or(PARTITIONER_DECIDES),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_MSGFLAGS,
                sys::RD_KAFKA_MSG_F_COPY,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_KEY,
                key,
                key_length,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_VALUE,
                payload,
                payload_length,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_OPAQUE,
                record.ticket as usize as *mut c_void,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_HEADERS,
                headers.0.as_ptr(),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_END,
            )
        };
        if code != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(code.into());
        }
        // A record that was taken over owns its headers.
        std::mem::forget(headers);
        Ok(())
    }

    /// Hands out what waits in the main queue, or the first that comes within `patience`: reports come many at a time. Answers how much
    /// it was: 0 or 1.
    pub(in super::super) fn poll(
        &self,
        patience: Duration,
        notice: &mut dyn FnMut(ClientEvent),
        mut delivery: impl FnMut(&Delivery<'_>),
    ) -> usize {
        let Some(event) = self.0.main.poll(patience) else {
            return 0;
        };
        event.notice().into_iter().for_each(notice);
        if event.kind() == sys::RD_KAFKA_EVENT_DR {
            // SAFETY: the event is alive, and its messages live as long as it.
            while let Some(message) =
                unsafe { sys::rd_kafka_event_message_next(event.0.as_ptr()).as_ref() }
            {
                let error = (message.err != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR)
                    .then(|| message.err.into());
                delivery(&Delivery {
                    message: Message(message),
                    ticket: message._private as usize as u64,
                    error,
                });
            }
        }
        1
    }

    /// Records taken over whose reports were not handed out yet, and whatever else waits in the main queue.
    pub(in super::super) fn queued_events(&self) -> usize {
        super::queued_events(&self.0.client)
    }

    /// Why this client can send nothing any more.
    pub(in super::super) fn fatal(&self) -> Option<String> {
        self.0.client.fatal_error().map(|(_, reason)| reason)
    }

    /// Gives up all that is under way; a report follows for each.
    pub(in super::super) fn purge(&self) {
        // SAFETY: the client is alive.
        unsafe {
            sys::rd_kafka_purge(
                self.0.ptr(),
                sys::RD_KAFKA_PURGE_F_QUEUE | sys::RD_KAFKA_PURGE_F_INFLIGHT,
            )
        };
    }

    /// Wakes [`Sender::serve`] from another thread.
    pub(in super::super) fn wake_poll(&self) {
        // SAFETY: the queue is alive.
        unsafe { sys::rd_kafka_queue_yield(self.0.main.0.as_ptr()) }
    }

    /// Has the client fail for good, as a broker that lost data would.
    #[cfg(feature = "test-support")]
    pub(in super::super) fn fail_for_good(&self) {
        // SAFETY: the client and the text are alive.
        unsafe {
            sys::rd_kafka_test_fatal_error(
                self.0.ptr(),
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
                c"planted by a test".as_ptr(),
            );
        }
    }
}

impl Delivery<'_> {
    pub(in super::super) fn status(&self) -> PersistStatus {
        // SAFETY: the message is alive.
        match unsafe { sys::rd_kafka_message_status(self.message.0) } {
            sys::rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED => {
                PersistStatus::NotPersisted
            }
            sys::rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_POSSIBLY_PERSISTED => {
                PersistStatus::PossiblyPersisted
            }
            sys::rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_PERSISTED => PersistStatus::Persisted,
        }
    }

    /// The broker's own words, if it had any.
    pub(in super::super) fn words(&self) -> String {
        // SAFETY: the message is alive, and so is the text for as long.
        unsafe { text(sys::rd_kafka_message_produce_errstr(self.message.0)) }
    }
}

impl Drop for TopicHandle {
    fn drop(&mut self) {
        // SAFETY: the reference is ours.
        unsafe { sys::rd_kafka_topic_destroy(self.0.as_ptr()) }
    }
}

/// Headers that no record owns yet.
struct Headers(NonNull<sys::rd_kafka_headers_t>);

impl Headers {
    fn new<'h>(headers: impl Iterator<Item = Header<'h>>) -> Self {
        // SAFETY: it allocates, or aborts.
        let list = Self(
            NonNull::new(unsafe { sys::rd_kafka_headers_new(8) })
                .expect("librdkafka aborts when memory is out"),
        );
        for (name, value) in headers {
            let (value, length) = parts(value);
            // SAFETY: the list is alive; name and value are as long as said, and copied.
            unsafe {
                sys::rd_kafka_header_add(
                    list.0.as_ptr(),
                    name.as_ptr().cast(),
                    name.len() as isize,
                    value,
                    length as isize,
                )
            };
        }
        list
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        // SAFETY: nobody took the headers over.
        unsafe { sys::rd_kafka_headers_destroy(self.0.as_ptr()) }
    }
}

/// Null is a null pointer; the empty slice's is not null.
fn parts(bytes: Option<&[u8]>) -> (*const c_void, usize) {
    bytes.map_or((std::ptr::null(), 0), |bytes| {
        (bytes.as_ptr().cast(), bytes.len())
    })
}
