//! A consumer of explicitly assigned partitions that returns messages in batches. It joins no group
//! and stores no position.

use super::client::{ClientEvent, NativeClient};
use super::queue::{Queue, WakingQueue};
use super::{bytes, check, take_error, text};
use crate::model::header::Header;
use rdkafka::TopicPartitionList;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaType};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::thread::Thread;
use std::time::Duration;

pub(crate) struct NativeConsumer {
    taken: TakenMessages,
    queue: WakingQueue,
    native: Arc<NativeClient>,
}

/// Messages that were taken from the queue and are not destroyed yet.
struct TakenMessages(Vec<*mut sys::rd_kafka_message_t>);

// SAFETY: any thread may read and destroy a message, and one thread at a time owns these.
unsafe impl Send for TakenMessages {}

impl NativeConsumer {
    /// `messages_max`: the most messages of one [`NativeConsumer::read`]. librdkafka needs a
    /// `group.id` in the configuration.
    pub(crate) fn new(config: &ClientConfig, messages_max: usize) -> Result<Self, KafkaError> {
        let native = Arc::new(NativeClient::new(
            config,
            RDKafkaType::RD_KAFKA_CONSUMER,
            0,
        )?);
        // SAFETY: the client is alive and outlives the queue, which is declared before it.
        let queue = unsafe { Queue::own(sys::rd_kafka_queue_get_consumer(native.ptr())) };
        let queue = queue
            .ok_or_else(|| KafkaError::ClientCreation("a consumer needs a group.id".into()))?;
        Ok(Self {
            taken: TakenMessages(Vec::with_capacity(messages_max)),
            queue: WakingQueue::new(queue),
            native,
        })
    }

    /// The client, which other threads may use for requests.
    pub(crate) fn native(&self) -> &Arc<NativeClient> {
        &self.native
    }

    pub(crate) fn poll(&self, on_event: &mut dyn FnMut(ClientEvent)) -> usize {
        self.native.poll(Duration::ZERO, on_event)
    }

    /// Unparks `thread` whenever the empty queue gets a message.
    pub(crate) fn set_waker(&mut self, thread: Thread) {
        self.queue.set_waker(thread);
    }

    /// Adds partitions, each at its own offset.
    pub(crate) fn assign(&self, partitions: &TopicPartitionList) -> Result<(), String> {
        // SAFETY: client and list are alive; librdkafka copies the list; this owns the error.
        let result = unsafe {
            let error = sys::rd_kafka_incremental_assign(self.native.ptr(), partitions.ptr());
            take_error(error)
        };
        result.map_err(|(_, text)| text)
    }

    /// Removes partitions. Later reads return none of their messages, not even fetched ones.
    pub(crate) fn unassign(&self, partitions: &TopicPartitionList) -> Result<(), String> {
        // SAFETY: as above.
        let result = unsafe {
            let error = sys::rd_kafka_incremental_unassign(self.native.ptr(), partitions.ptr());
            take_error(error)
        };
        result.map_err(|(_, text)| text)
    }

    /// Passes the fetched messages to `each`, without waiting. Returns whether the batch was full,
    /// so that more may be waiting.
    pub(crate) fn read(&mut self, mut each: impl FnMut(&Message<'_>)) -> bool {
        let room = self.taken.0.spare_capacity_mut();
        let room_length = room.len();
        // SAFETY: the queue is alive, and the buffer has room for `room_length` messages.
        let count = unsafe {
            sys::rd_kafka_consume_batch_queue(
                self.queue.queue().ptr(),
                0,
                room.as_mut_ptr().cast(),
                room_length,
            )
        };
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: librdkafka wrote `count` messages, which this owns.
        unsafe { self.taken.0.set_len(count) };
        for &message in &self.taken.0 {
            // SAFETY: the message is destroyed only after the borrow.
            each(&Message(unsafe { &*message }));
        }
        self.taken.clear();
        count == room_length
    }
}

impl TakenMessages {
    fn clear(&mut self) {
        for message in self.0.drain(..) {
            // SAFETY: this owns the message, and nothing borrows from it any more.
            unsafe { sys::rd_kafka_message_destroy(message) };
        }
    }
}

/// Destroys the messages of a read that panicked.
impl Drop for TakenMessages {
    fn drop(&mut self) {
        self.clear();
    }
}

impl NativeClient {
    /// The end offset that the last fetch of a partition returned; `None` without a fetch. Sends no
    /// request.
    pub(crate) fn end_offset(&self, topic: &str, partition: i32) -> Option<u64> {
        let topic = CString::new(topic).ok()?;
        let mut low = -1;
        let mut high = -1;
        // SAFETY: client and name are alive, and both offsets may be written.
        let code = unsafe {
            sys::rd_kafka_get_watermark_offsets(
                self.ptr(),
                topic.as_ptr(),
                partition,
                &mut low,
                &mut high,
            )
        };
        check(code).ok()?;
        u64::try_from(high).ok()
    }
}

/// A message of librdkafka: a consumed record, a delivery report, or an error in its place.
pub(crate) struct Message<'a>(pub(super) &'a sys::rd_kafka_message_t);

impl<'a> Message<'a> {
    pub(crate) fn error(&self) -> Option<(RDKafkaErrorCode, String)> {
        let code = check(self.0.err).err()?;
        // SAFETY: the message is alive and owns the text.
        Some((code, unsafe { text(sys::rd_kafka_message_errstr(self.0)) }))
    }

    /// Empty for an error without a topic.
    pub(crate) fn topic(&self) -> &'a str {
        if self.0.rkt.is_null() {
            return "";
        }
        // SAFETY: a message keeps its topic alive. Kafka's topic names are ASCII.
        unsafe { CStr::from_ptr(sys::rd_kafka_topic_name(self.0.rkt)) }
            .to_str()
            .unwrap_or("")
    }

    /// A key that is equal for all messages of one partition and cheaper to compare than the names.
    pub(crate) fn origin(&self) -> (usize, i32) {
        (self.0.rkt as usize, self.0.partition)
    }

    pub(crate) fn partition(&self) -> i32 {
        self.0.partition
    }

    /// For an end-of-partition error: the end offset.
    pub(crate) fn offset(&self) -> i64 {
        self.0.offset
    }

    /// Epoch milliseconds.
    pub(crate) fn timestamp(&self) -> Option<i64> {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is alive.
        let timestamp = unsafe { sys::rd_kafka_message_timestamp(self.0, &mut kind) };
        (kind != sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE
            && timestamp != -1)
            .then_some(timestamp)
    }

    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        // SAFETY: the message is alive and owns its key.
        unsafe { bytes(self.0.key, self.0.key_len) }
    }

    pub(crate) fn payload(&self) -> Option<&'a [u8]> {
        // SAFETY: as above.
        unsafe { bytes(self.0.payload, self.0.len) }
    }

    /// In order, with duplicates and nulls. librdkafka returns names as C strings, so a name ends
    /// at its first zero byte.
    pub(crate) fn headers(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        let mut headers: *mut sys::rd_kafka_headers_t = std::ptr::null_mut();
        // SAFETY: the message is alive and owns the headers.
        let count = unsafe {
            let code = sys::rd_kafka_message_headers(self.0, &mut headers);
            if check(code).is_ok() && !headers.is_null() {
                sys::rd_kafka_header_cnt(headers)
            } else {
                0
            }
        };
        // SAFETY: the headers live as long as the message.
        (0..count).map_while(move |index| unsafe { header(headers, index) })
    }
}

/// SAFETY: `headers` live for `'a`.
unsafe fn header<'a>(headers: *const sys::rd_kafka_headers_t, index: usize) -> Option<Header<'a>> {
    let mut name = std::ptr::null();
    let mut value = std::ptr::null();
    let mut length = 0;
    // SAFETY: as the function's own.
    unsafe {
        let code = sys::rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut length);
        check(code).ok()?;
        Some((CStr::from_ptr(name).to_bytes(), bytes(value, length)))
    }
}
