//! Calls librdkafka directly where its Rust crate has no fast API: batches from a consumer's queue,
//! topic handles, and headers that are not parsed.
//!
//! This code is separate from the service's Kafka adapter. If both shared it, slow code would not
//! show in the ratio of service and baseline.
//!
//! The unsafe code relies on three invariants. A client outlives everything that was taken from it,
//! because it is the last field of its owner.
//! A message is destroyed once, after the last borrow of it. librdkafka allows calls of its
//! functions from any thread.
#![allow(
    unsafe_code,
    reason = "librdkafka is a C library; the rest of the measurements is safe because this module is"
)]

use std::ffi::{CStr, CString};
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr, RDKafkaType};
use rdkafka_sys as sys;

const OK: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR;

/// Messages per read.
const BATCH: usize = 4_096;

/// Reads the given partitions and commits nothing.
pub(crate) struct Reader {
    queue: *mut sys::rd_kafka_queue_t,
    taken: Vec<*mut sys::rd_kafka_message_t>,
    client: Client<DefaultClientContext>,
}

impl Reader {
    /// The configuration must contain a group. The reader does not join it.
    pub(crate) fn new(config: &ClientConfig, partitions: &TopicPartitionList) -> Reader {
        let native = config
            .create_native_config()
            .expect("a valid configuration");
        let client = Client::new(
            config,
            native,
            RDKafkaType::RD_KAFKA_CONSUMER,
            DefaultClientContext,
        )
        .expect("a consumer");
        // SAFETY: the client is alive and copies the list. The queue belongs to `self` until `drop`
        // destroys it.
        let queue = unsafe {
            assert_eq!(
                sys::rd_kafka_assign(client.native_ptr(), partitions.ptr()),
                OK,
                "partitions can be assigned"
            );
            sys::rd_kafka_queue_get_consumer(client.native_ptr())
        };
        assert!(!queue.is_null(), "the configuration names a group");
        Reader {
            queue,
            taken: Vec::with_capacity(BATCH),
            client,
        }
    }

    /// Passes the next batch to `each`, and returns the number of its messages. Waits up to
    /// `patience` for the first one.
    pub(crate) fn read(
        &mut self,
        patience: Duration,
        mut each: impl FnMut(&mut Taken<'_>),
    ) -> usize {
        let patience = i32::try_from(patience.as_millis()).expect("a short wait");
        let room = self.taken.spare_capacity_mut();
        // SAFETY: the queue is alive and `room` has the given length. The function writes as many
        // pointers as it returns, and these messages then belong to `self`.
        unsafe {
            let count = sys::rd_kafka_consume_batch_queue(
                self.queue,
                patience,
                room.as_mut_ptr().cast(),
                room.len(),
            );
            self.taken.set_len(usize::try_from(count).unwrap_or(0));
        }
        let mut count = 0;
        for message in self.taken.drain(..) {
            // SAFETY: the message belongs to `self`, and no borrow of it outlives `each`.
            unsafe {
                if (*message).err == OK {
                    each(&mut Taken(&mut *message));
                    count += 1;
                }
                sys::rd_kafka_message_destroy(message);
            }
        }
        count
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: the queue belongs to `self`, and the client is dropped after it.
        unsafe {
            sys::rd_kafka_consumer_close(self.client.native_ptr());
            sys::rd_kafka_queue_destroy(self.queue);
        }
    }
}

/// A message that was read.
pub(crate) struct Taken<'a>(&'a mut sys::rd_kafka_message_t);

impl Taken<'_> {
    pub(crate) fn key(&self) -> &[u8] {
        // SAFETY: the message owns its key.
        unsafe { slice(self.0.key, self.0.key_len) }
    }

    pub(crate) fn payload(&self) -> &[u8] {
        // SAFETY: the message owns its payload.
        unsafe { slice(self.0.payload, self.0.len) }
    }

    /// The timestamp in epoch milliseconds. It is the broker's if the topic is configured for that.
    pub(crate) fn timestamp(&self) -> i64 {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is alive.
        unsafe { sys::rd_kafka_message_timestamp(self.0, &mut kind) }
    }

    /// Copies the message, and takes its headers. Then it needs the consumer no longer.
    pub(crate) fn detach(&mut self) -> Detached {
        let mut headers = std::ptr::null_mut();
        // SAFETY: the message is alive. Its headers now belong to the new value.
        let detached = unsafe { sys::rd_kafka_message_detach_headers(self.0, &mut headers) };
        assert_eq!(detached, OK, "every message of the load has headers");
        Detached {
            key: self.key().to_vec(),
            payload: self.payload().to_vec(),
            headers,
        }
    }
}

/// A message that is kept in memory. It owns its headers.
pub(crate) struct Detached {
    key: Vec<u8>,
    payload: Vec<u8>,
    headers: *mut sys::rd_kafka_headers_t,
}

impl Detached {
    /// The number in a header.
    pub(crate) fn number(&self, name: &CStr) -> Option<i64> {
        let (mut value, mut length) = (std::ptr::null(), 0);
        // SAFETY: the headers are alive, and so is the value as long as they do not change.
        let text = unsafe {
            sys::rd_kafka_header_get_last(self.headers, name.as_ptr(), &mut value, &mut length);
            slice(value, length)
        };
        std::str::from_utf8(text).ok()?.parse().ok()
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        if !self.headers.is_null() {
            // SAFETY: the headers belong to `self`.
            unsafe { sys::rd_kafka_headers_destroy(self.headers) };
        }
    }
}

/// SAFETY: `pointer` is null or points to `length` bytes that live for `'a`.
unsafe fn slice<'a>(pointer: *const std::ffi::c_void, length: usize) -> &'a [u8] {
    // SAFETY: the caller guarantees the contract of this function.
    if pointer.is_null() {
        &[]
    } else {
        unsafe { std::slice::from_raw_parts(pointer.cast(), length) }
    }
}

/// Sends the messages of a [`Reader`] to one topic.
pub(crate) struct Sender {
    topic: *mut sys::rd_kafka_topic_t,
    reports: *mut sys::rd_kafka_queue_t,
    client: Client<DefaultClientContext>,
}

impl Sender {
    pub(crate) fn new(config: &ClientConfig, topic: &str) -> Sender {
        let native = config
            .create_native_config()
            .expect("a valid configuration");
        // SAFETY: the configuration is alive, and no client owns it yet.
        unsafe { sys::rd_kafka_conf_set_events(native.ptr(), sys::RD_KAFKA_EVENT_DR) };
        let client = Client::new(
            config,
            native,
            RDKafkaType::RD_KAFKA_PRODUCER,
            DefaultClientContext,
        )
        .expect("a producer");
        let name = CString::new(topic).expect("a topic's name has no zero byte");
        // SAFETY: client and name are alive. Topic and queue belong to `self` until `drop` destroys
        // both.
        let (topic, reports) = unsafe {
            let topic =
                sys::rd_kafka_topic_new(client.native_ptr(), name.as_ptr(), std::ptr::null_mut());
            (topic, sys::rd_kafka_queue_get_main(client.native_ptr()))
        };
        assert!(
            !topic.is_null() && !reports.is_null(),
            "the client has a topic and a queue"
        );
        Sender {
            topic,
            reports,
            client,
        }
    }

    /// Sends a message with its key, payload and headers unchanged. Waits while the client's queue
    /// is full.
    pub(crate) fn forward(&self, message: &mut Taken<'_>) {
        let mut headers = std::ptr::null_mut();
        // SAFETY: the message is alive. Its headers now belong to this function, until a successful
        // send takes ownership of them.
        let detached = unsafe { sys::rd_kafka_message_detach_headers(message.0, &mut headers) };
        assert_eq!(detached, OK, "every message of the load has headers");
        self.send_parts(message.key(), message.payload(), headers);
    }

    /// Sends a message that was kept in memory.
    pub(crate) fn send(&self, mut message: Detached) {
        let headers = std::mem::replace(&mut message.headers, std::ptr::null_mut());
        self.send_parts(&message.key, &message.payload, headers);
    }

    fn send_parts(&self, key: &[u8], payload: &[u8], headers: *mut sys::rd_kafka_headers_t) {
        loop {
            match self.produce(key, payload, headers) {
                OK => return,
                RDKafkaRespErr::RD_KAFKA_RESP_ERR__QUEUE_FULL => {
                    self.serve(Duration::from_millis(10));
                }
                code => panic!(
                    "the client takes what was read: {}",
                    RDKafkaErrorCode::from(code)
                ),
            }
        }
    }

    fn produce(
        &self,
        key: &[u8],
        payload: &[u8],
        headers: *mut sys::rd_kafka_headers_t,
    ) -> RDKafkaRespErr {
        use sys::rd_kafka_vtype_t as tag;
        // SAFETY: client and topic are alive. MSG_F_COPY copies key and payload. A successful send
        // takes ownership of the headers. Each tag has arguments of the types that librdkafka reads
        // for it, and END ends the list.
        unsafe {
            sys::rd_kafka_producev(
                self.client.native_ptr(),
                tag::RD_KAFKA_VTYPE_RKT,
                self.topic,
                tag::RD_KAFKA_VTYPE_MSGFLAGS,
                sys::RD_KAFKA_MSG_F_COPY,
                tag::RD_KAFKA_VTYPE_KEY,
                key.as_ptr(),
                key.len(),
                tag::RD_KAFKA_VTYPE_VALUE,
                payload.as_ptr(),
                payload.len(),
                tag::RD_KAFKA_VTYPE_HEADERS,
                headers,
                tag::RD_KAFKA_VTYPE_END,
            )
        }
    }

    /// Handles delivery reports, waiting up to `patience` for the first one. Panics if the broker
    /// refused a record.
    pub(crate) fn serve(&self, patience: Duration) {
        let mut patience = i32::try_from(patience.as_millis()).expect("a short wait");
        loop {
            // SAFETY: the queue is alive. The event belongs to this function, and its messages live
            // as long as the event.
            unsafe {
                let event = sys::rd_kafka_queue_poll(self.reports, patience);
                if event.is_null() {
                    return;
                }
                while let Some(message) = sys::rd_kafka_event_message_next(event).as_ref() {
                    assert_eq!(message.err, OK, "the broker takes what was read");
                }
                sys::rd_kafka_event_destroy(event);
            }
            patience = 0;
        }
    }

    /// Records that were sent and not yet acknowledged.
    pub(crate) fn in_flight(&self) -> usize {
        // SAFETY: the client is alive.
        usize::try_from(unsafe { sys::rd_kafka_outq_len(self.client.native_ptr()) })
            .expect("a length")
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // SAFETY: topic and queue belong to `self`, and the client is dropped after them.
        unsafe {
            sys::rd_kafka_topic_destroy(self.topic);
            sys::rd_kafka_queue_destroy(self.reports);
        }
    }
}
