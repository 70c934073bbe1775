//! A consumer of explicitly assigned partitions that returns messages in batches. It joins no group
//! and stores no position. Each partition may have its own queue.

use super::client::NativeClient;
use super::queue::Queue;
use super::{bytes, check, take_error, text};
use crate::broker::Error;
use crate::model::header::Header;
use rdkafka::TopicPartitionList;
use rdkafka::config::ClientConfig;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaType};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::Thread;

pub(crate) struct NativeConsumer {
    /// Room for the messages of one read. Empty between two reads.
    room: Vec<*mut sys::rd_kafka_message_t>,
    queue: Queue,
    /// Other threads may use it for requests.
    pub(crate) native: Arc<NativeClient>,
}

// SAFETY: `room` holds no pointers between two calls, and the other fields are `Send`.
unsafe impl Send for NativeConsumer {}

impl NativeConsumer {
    /// `messages_max`: the most messages of one [`NativeConsumer::read`]. librdkafka needs a
    /// `group.id` in the configuration.
    pub(crate) fn new(config: &ClientConfig, messages_max: usize) -> Result<Self, Error> {
        let native = NativeClient::new(config, RDKafkaType::RD_KAFKA_CONSUMER)?;
        // SAFETY: the client is alive and outlives the queue, which is declared before it.
        let queue = unsafe { Queue::own(sys::rd_kafka_queue_get_consumer(native.ptr())) };
        let queue = queue.ok_or_else(|| Error::Rejected("a consumer needs a group.id".into()))?;
        Ok(Self {
            room: Vec::with_capacity(messages_max),
            queue,
            native: Arc::new(native),
        })
    }

    /// Unparks `thread` whenever the empty queue gets a message.
    pub(crate) fn set_waker(&mut self, thread: Thread) {
        self.queue.set_waker(thread, None);
    }

    /// A queue of its own for some partitions. librdkafka bounds each queue by itself, so a full one
    /// does not stop the others. Must not outlive the consumer.
    pub(crate) fn record_queue(&self) -> RecordQueue {
        // SAFETY: the client is alive, and the caller destroys the queue first.
        RecordQueue(unsafe { Queue::create(self.native.ptr()) })
    }

    /// The messages of the partition go to `queue`. Call it before [`NativeConsumer::assign`].
    pub(crate) fn forward(&self, topic: &str, partition: i32, queue: &RecordQueue) {
        let Ok(topic) = CString::new(topic) else {
            return;
        };
        // SAFETY: the client and the queues are alive; this owns the reference to the partition's
        // queue.
        unsafe {
            let (client, topic) = (self.native.ptr(), topic.as_ptr());
            let of_partition = sys::rd_kafka_queue_get_partition(client, topic, partition);
            if !of_partition.is_null() {
                sys::rd_kafka_queue_forward(of_partition, queue.0.ptr());
                sys::rd_kafka_queue_destroy(of_partition);
            }
        }
    }

    /// Adds partitions, each at its own offset.
    pub(crate) fn assign(&self, partitions: &TopicPartitionList) -> Result<(), String> {
        // SAFETY: client and list are alive; librdkafka copies the list; this owns the error.
        let result = unsafe {
            let (client, list) = (self.native.ptr(), partitions.ptr());
            take_error(sys::rd_kafka_incremental_assign(client, list))
        };
        result.map_err(|(_, text)| text)
    }

    /// Removes partitions. Later reads return none of their messages, not even fetched ones.
    pub(crate) fn unassign(&self, partitions: &TopicPartitionList) -> Result<(), String> {
        // SAFETY: as above.
        let result = unsafe {
            let (client, list) = (self.native.ptr(), partitions.ptr());
            take_error(sys::rd_kafka_incremental_unassign(client, list))
        };
        result.map_err(|(_, text)| text)
    }

    /// Passes the fetched messages to `each`, without waiting. Returns whether the batch was full,
    /// so that more may be waiting.
    pub(crate) fn read(&mut self, each: impl FnMut(&Message<'_>)) -> bool {
        read_queue(&mut self.room, &self.queue, each)
    }

    /// The same for the partitions of one queue.
    pub(crate) fn read_from(
        &mut self,
        queue: &RecordQueue,
        each: impl FnMut(&Message<'_>),
    ) -> bool {
        read_queue(&mut self.room, &queue.0, each)
    }
}

fn read_queue(
    room: &mut Vec<*mut sys::rd_kafka_message_t>,
    queue: &Queue,
    mut each: impl FnMut(&Message<'_>),
) -> bool {
    let (buffer, size) = (room.as_mut_ptr(), room.capacity());
    // SAFETY: the queue is alive, and the buffer has room for `size` messages. librdkafka writes
    // `count` of them, which this owns.
    let count = unsafe {
        let count = sys::rd_kafka_consume_batch_queue(queue.ptr(), 0, buffer, size);
        let count = usize::try_from(count).unwrap_or(0);
        room.set_len(count);
        count
    };
    for message in room.drain(..) {
        // SAFETY: the message is destroyed once, after the borrow.
        unsafe {
            each(&Message(&*message));
            sys::rd_kafka_message_destroy(message);
        }
    }
    count == size
}

/// The messages of some partitions of a consumer.
pub(crate) struct RecordQueue(Queue);

impl RecordQueue {
    /// Sets `is_ready` and unparks `thread` whenever the empty queue gets a message.
    pub(crate) fn set_waker(&mut self, thread: Thread, is_ready: Arc<AtomicBool>) {
        self.0.set_waker(thread, Some(is_ready));
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
        let name = unsafe { CStr::from_ptr(sys::rd_kafka_topic_name(self.0.rkt)) };
        name.to_str().unwrap_or("")
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
        use sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE as NOT_AVAILABLE;
        let mut kind = NOT_AVAILABLE;
        // SAFETY: the message is alive.
        let timestamp = unsafe { sys::rd_kafka_message_timestamp(self.0, &mut kind) };
        (kind != NOT_AVAILABLE && timestamp != -1).then_some(timestamp)
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
            match check(sys::rd_kafka_message_headers(self.0, &mut headers)) {
                Ok(()) if !headers.is_null() => sys::rd_kafka_header_cnt(headers),
                _ => 0,
            }
        };
        // SAFETY: the headers live as long as the message.
        (0..count).map_while(move |index| unsafe { header(headers, index) })
    }
}

/// SAFETY: `headers` live for `'a`.
unsafe fn header<'a>(headers: *const sys::rd_kafka_headers_t, index: usize) -> Option<Header<'a>> {
    let (mut name, mut value, mut length) = (std::ptr::null(), std::ptr::null(), 0);
    let code = sys::rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut length);
    check(code).ok()?;
    Some((CStr::from_ptr(name).to_bytes(), bytes(value, length)))
}
