//! Reading: partitions assigned by hand, and their messages in batches. No group is joined and no position is kept.

use super::{ClientEvent, NativeClient, Queue, WakingQueue, bytes, text};
use crate::model::header::Header;
use rdkafka::TopicPartitionList;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr, RDKafkaType};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::sync::Arc;
use std::thread::Thread;
use std::time::Duration;

/// A consumer that reads what it is told to.
pub(in super::super) struct NativeConsumer {
    taken: Taken,
    queue: WakingQueue,
    native: Arc<NativeClient>,
}

/// Messages that were taken from the queue and are not destroyed yet.
struct Taken(Vec<*mut sys::rd_kafka_message_t>);

// SAFETY: a message may be read and destroyed on any thread, and only one thread at a time has these.
unsafe impl Send for Taken {}

impl NativeConsumer {
    /// `messages_max` bounds one [`Reader::read`]. The configuration must name a group, for librdkafka reads no partition without.
    pub(in super::super) fn new(
        config: &ClientConfig,
        messages_max: usize,
    ) -> Result<Self, KafkaError> {
        let native = Arc::new(NativeClient::new(
            config,
            RDKafkaType::RD_KAFKA_CONSUMER,
            0,
        )?);
        // SAFETY: the client is alive and outlives the queue, which is declared before it.
        let queue = unsafe { Queue::own(sys::rd_kafka_queue_get_consumer(native.ptr())) };
        let queue =
            queue.ok_or_else(|| KafkaError::ClientCreation("a reader needs a group.id".into()))?;
        Ok(Self {
            taken: Taken(Vec::with_capacity(messages_max)),
            queue: WakingQueue::new(queue),
            native,
        })
    }

    /// The same client, to ask with from another thread.
    pub(in super::super) fn native(&self) -> &Arc<NativeClient> {
        &self.native
    }

    pub(in super::super) fn serve(&self, notice: &mut dyn FnMut(ClientEvent)) -> usize {
        self.native.poll(Duration::ZERO, notice)
    }

    /// Has `thread` unparked whenever there is something to read where there was nothing.
    pub(in super::super) fn wake(&mut self, thread: Thread) {
        self.queue.wake(thread);
    }

    /// Adds partitions, each at its own offset.
    pub(in super::super) fn assign(&self, partitions: &TopicPartitionList) -> Result<(), String> {
        // SAFETY: client and list are alive; the list is copied.
        settle(unsafe { sys::rd_kafka_incremental_assign(self.native.ptr(), partitions.ptr()) })
    }

    /// Takes partitions away. When it returns, [`Reader::read`] hands out nothing of theirs that was fetched before.
    pub(in super::super) fn unassign(&self, partitions: &TopicPartitionList) -> Result<(), String> {
        // SAFETY: as above.
        settle(unsafe { sys::rd_kafka_incremental_unassign(self.native.ptr(), partitions.ptr()) })
    }

    /// Hands out what has been fetched, without waiting. `false`: there was less than one read may bring, so nothing is left for now.
    pub(in super::super) fn read(&mut self, mut each: impl FnMut(&Message<'_>)) -> bool {
        let room = self.taken.0.spare_capacity_mut();
        let room = (room.as_mut_ptr().cast(), room.len());
        // SAFETY: the queue is alive, and the room is as long as said.
        let count =
            unsafe { sys::rd_kafka_consume_batch_queue(self.queue.ptr(), 0, room.0, room.1) };
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: as many were written, and they are ours now.
        unsafe { self.taken.0.set_len(count) };
        for &message in &self.taken.0 {
            // SAFETY: the message is ours and destroyed only after the borrow.
            each(&Message(unsafe { &*message }));
        }
        self.taken.clear();
        count == room.1
    }
}

impl Taken {
    fn clear(&mut self) {
        for message in self.0.drain(..) {
            // SAFETY: the message is ours, and nothing borrows from it any more.
            unsafe { sys::rd_kafka_message_destroy(message) };
        }
    }
}

/// A read that panicked leaves some behind.
impl Drop for Taken {
    fn drop(&mut self) {
        self.clear();
    }
}

impl NativeClient {
    /// The end of a partition that this client reads, as its last fetch told it; `None`: nothing was fetched. Asks nobody.
    pub(in super::super) fn end(&self, topic: &str, partition: i32) -> Option<u64> {
        let topic = CString::new(topic).ok()?;
        let (mut low, mut high) = (-1, -1);
        // SAFETY: client and name are alive, and both offsets are written to.
        let code = unsafe {
            sys::rd_kafka_get_watermark_offsets(
                self.ptr(),
                topic.as_ptr(),
                partition,
                &mut low,
                &mut high,
            )
        };
        if code != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return None;
        }
        u64::try_from(high).ok()
    }
}

/// Takes over an error that librdkafka made, if it made one.
fn settle(error: *mut sys::rd_kafka_error_t) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is ours to destroy, and the text is copied before.
    unsafe {
        let reason = text(sys::rd_kafka_error_string(error));
        sys::rd_kafka_error_destroy(error);
        Err(reason)
    }
}

/// A message as librdkafka holds it: read, or reported on, or an error in its place.
pub(in super::super) struct Message<'a>(pub(super) &'a sys::rd_kafka_message_t);

impl<'a> Message<'a> {
    /// The error that stands in the message's place, and what librdkafka says of it.
    pub(in super::super) fn error(&self) -> Option<(RDKafkaErrorCode, String)> {
        if self.0.err == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return None;
        }
        // SAFETY: the message is alive, and so is the text for as long.
        Some((self.0.err.into(), unsafe {
            text(sys::rd_kafka_message_errstr(self.0))
        }))
    }

    /// Empty for an error that concerns no topic.
    pub(in super::super) fn topic(&self) -> &'a str {
        if self.0.rkt.is_null() {
            return "";
        }
        // SAFETY: a message holds its topic alive. Kafka's topic names are ASCII.
        unsafe { CStr::from_ptr(sys::rd_kafka_topic_name(self.0.rkt)) }
            .to_str()
            .unwrap_or("")
    }

    /// The same for messages of one topic and partition of one client, and cheaper to compare than their names.
    pub(in super::super) fn origin(&self) -> (usize, i32) {
        (self.0.rkt as usize, self.0.partition)
    }

    pub(in super::super) fn partition(&self) -> i32 {
        self.0.partition
    }

    /// Of an end-of-partition error: the partition's end.
    pub(in super::super) fn offset(&self) -> i64 {
        self.0.offset
    }

    /// Epoch milliseconds.
    pub(in super::super) fn timestamp(&self) -> Option<i64> {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is alive.
        let timestamp = unsafe { sys::rd_kafka_message_timestamp(self.0, &mut kind) };
        (kind != sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE
            && timestamp != -1)
            .then_some(timestamp)
    }

    pub(in super::super) fn key(&self) -> Option<&'a [u8]> {
        // SAFETY: the message is alive, and owns its key.
        unsafe { bytes(self.0.key, self.0.key_len) }
    }

    pub(in super::super) fn payload(&self) -> Option<&'a [u8]> {
        // SAFETY: as above.
        unsafe { bytes(self.0.payload, self.0.len) }
    }

    /// In order, duplicates and nulls included. librdkafka hands names out as C strings: one with a zero byte in it ends there.
    pub(in super::super) fn headers(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        let mut headers: *mut sys::rd_kafka_headers_t = std::ptr::null_mut();
        // SAFETY: the message is alive and keeps the headers that it parses here.
        let code = unsafe { sys::rd_kafka_message_headers(self.0, &mut headers) };
        let found = code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR && !headers.is_null();
        // SAFETY: the headers are alive.
        let count = if found {
            unsafe { sys::rd_kafka_header_cnt(headers) }
        } else {
            0
        };
        let indexes: Range<usize> = 0..count;
        // SAFETY: the headers live as long as the message, and the index is in range.
        indexes.map_while(move |index| unsafe { header(headers, index) })
    }
}

/// SAFETY: `headers` live for `'a`.
unsafe fn header<'a>(headers: *const sys::rd_kafka_headers_t, index: usize) -> Option<Header<'a>> {
    let (mut name, mut value, mut length) = (std::ptr::null(), std::ptr::null(), 0);
    // SAFETY: as the function's own.
    unsafe {
        let code = sys::rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut length);
        (code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR)
            .then(|| (CStr::from_ptr(name).to_bytes(), bytes(value, length)))
    }
}
