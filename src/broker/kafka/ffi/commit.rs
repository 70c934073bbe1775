//! Non-blocking offset commits, each with its own result.
//!
//! librdkafka does not call the crate's commit callback for commits with explicit offsets.

use super::queue::{Event, Queue, WakingQueue};
use super::{check, list_elements};
use rdkafka::TopicPartitionList;
use rdkafka::client::{Client, ClientContext};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka_sys as sys;
use std::ffi::c_void;
use std::thread::Thread;
use std::time::Duration;

/// The queue of the results of one client's commits. Must not outlive the client.
pub(crate) struct CommitQueue(WakingQueue);

pub(crate) struct CommitReply {
    pub(crate) number: usize,
    pub(crate) result: Result<(), RDKafkaErrorCode>,
}

impl CommitQueue {
    pub(crate) fn new<C: ClientContext>(client: &Client<C>) -> Self {
        // SAFETY: the client is alive, and outlives the queue.
        Self(WakingQueue::new(unsafe {
            Queue::create(client.native_ptr())
        }))
    }

    /// Unparks `thread` whenever the empty queue gets a result.
    pub(crate) fn set_waker(&mut self, thread: Thread) {
        self.0.set_waker(thread);
    }

    /// Starts a commit. A reply with `number` follows only after `Ok`.
    pub(crate) fn start<C: ClientContext>(
        &self,
        client: &Client<C>,
        offsets: &TopicPartitionList,
        number: usize,
    ) -> Result<(), RDKafkaErrorCode> {
        // SAFETY: client, list and queue are alive; librdkafka copies the list. The number is
        // passed as a pointer's bits, and nothing follows that pointer.
        check(unsafe {
            sys::rd_kafka_commit_queue(
                client.native_ptr(),
                offsets.ptr(),
                self.0.queue().ptr(),
                None,
                number as *mut c_void,
            )
        })
    }

    /// The next result, without waiting.
    pub(crate) fn next_reply(&self) -> Option<CommitReply> {
        let event = self.0.queue().poll(Duration::ZERO)?;
        // SAFETY: the event is alive.
        let number = unsafe { sys::rd_kafka_event_opaque(event.ptr()) } as usize;
        let result = match event.check() {
            Ok(()) => check_partitions(&event),
            Err((code, _)) => Err(code),
        };
        Some(CommitReply { number, result })
    }
}

/// The first error of a partition, which the event's own error does not cover.
fn check_partitions(event: &Event) -> Result<(), RDKafkaErrorCode> {
    // SAFETY: the event is alive and owns the list.
    let elements = unsafe { list_elements(sys::rd_kafka_event_topic_partition_list(event.ptr())) };
    elements.iter().try_for_each(|element| check(element.err))
}
