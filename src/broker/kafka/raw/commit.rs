//! Committing without waiting: each commit's answer comes under its own number. The crate's own commit callback is never called for
//! commits that name their offsets.

use super::{Event, Queue, WakingQueue};
use rdkafka::TopicPartitionList;
use rdkafka::client::{Client, ClientContext};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka_sys as sys;
use std::ffi::c_void;
use std::thread::Thread;
use std::time::Duration;

/// Where the answers to one client's commits come. Must not outlive its client.
pub(in super::super) struct CommitQueue(WakingQueue);

/// The answer to one commit.
pub(in super::super) struct CommitReply {
    pub(in super::super) number: usize,
    pub(in super::super) result: Result<(), RDKafkaErrorCode>,
}

impl CommitQueue {
    pub(in super::super) fn new<C: ClientContext>(client: &Client<C>) -> Self {
        // SAFETY: the client is alive, and outlives the queue.
        let queue = unsafe { Queue::own(sys::rd_kafka_queue_new(client.native_ptr())) };
        Self(WakingQueue::new(
            queue.expect("librdkafka aborts when memory is out"),
        ))
    }

    pub(in super::super) fn wake(&mut self, thread: Thread) {
        self.0.wake(thread);
    }

    /// An answer follows only if this is `Ok`.
    pub(in super::super) fn start<C: ClientContext>(
        &self,
        client: &Client<C>,
        offsets: &TopicPartitionList,
        number: usize,
    ) -> Result<(), RDKafkaErrorCode> {
        // SAFETY: client, list and queue are alive; the list is copied; the number travels as a pointer's bits, and is never followed.
        let code = unsafe {
            sys::rd_kafka_commit_queue(
                client.native_ptr(),
                offsets.ptr(),
                self.0.ptr(),
                None,
                number as *mut c_void,
            )
        };
        if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            Ok(())
        } else {
            Err(code.into())
        }
    }

    pub(in super::super) fn answer(&self) -> Option<CommitReply> {
        let event = self.0.poll(Duration::ZERO)?;
        // SAFETY: the event is alive.
        let number = unsafe { sys::rd_kafka_event_opaque(event.0.as_ptr()) } as usize;
        Some(CommitReply {
            number,
            result: event
                .error()
                .map_or_else(|| parts(&event), |(code, _)| Err(code)),
        })
    }
}

/// The first error of a single partition: the answer as a whole does not tell of it.
fn parts(event: &Event) -> Result<(), RDKafkaErrorCode> {
    // SAFETY: the event is alive, and its list lives as long as it.
    let elements = unsafe {
        let list = sys::rd_kafka_event_topic_partition_list(event.0.as_ptr());
        list.as_ref().map_or(&[][..], |list| {
            super::slice(
                list.elems.cast_const(),
                usize::try_from(list.cnt).unwrap_or(0),
            )
        })
    };
    let failed = elements
        .iter()
        .find(|element| element.err != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR);
    failed.map_or(Ok(()), |element| Err(element.err.into()))
}
