//! A producer that sends headers as bytes and returns delivery reports in batches, and its
//! transaction calls. A transaction call that timed out continues when it is repeated.

use super::client::{ClientEvent, NativeClient, queued_events};
use super::consumer::Message;
use super::{bytes_to_raw, check, millis, take_error, text};
use crate::broker::kafka::limit::{KAFKA_SENT_HEADER_BYTES, KAFKA_SENT_RECORD_BYTES};
use crate::broker::send_budget::SendBudget;
use crate::broker::{Error, OutgoingRecord};
use crate::model::header::Header;
use rdkafka::TopicPartitionList;
use rdkafka::config::ClientConfig;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaType};
use rdkafka_sys as sys;
use std::ffi::{CString, c_void};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const _: () = assert!(
    size_of::<usize>() >= size_of::<u64>(),
    "a ticket is passed through librdkafka as a pointer's bits"
);

/// librdkafka's `RD_KAFKA_PARTITION_UA`, which the bindings lack.
const PARTITION_UNASSIGNED: i32 = -1;

pub(crate) struct NativeProducer {
    client: NativeClient,
    budget: Arc<SendBudget>,
    /// Bytes of this producer's records in the budget.
    pending_bytes: AtomicUsize,
}

impl Deref for NativeProducer {
    type Target = NativeClient;

    fn deref(&self) -> &NativeClient {
        &self.client
    }
}

impl Drop for NativeProducer {
    fn drop(&mut self) {
        self.budget.remove(*self.pending_bytes.get_mut());
    }
}

/// A topic of one producer. Must not outlive the producer.
pub(crate) struct TopicHandle(NonNull<sys::rd_kafka_topic_t>);

// SAFETY: librdkafka locks its topics.
unsafe impl Send for TopicHandle {}

impl TopicHandle {
    pub(super) fn ptr(&self) -> *mut sys::rd_kafka_topic_t {
        self.0.as_ptr()
    }
}

impl Drop for TopicHandle {
    fn drop(&mut self) {
        // SAFETY: this owns the reference.
        unsafe { sys::rd_kafka_topic_destroy(self.ptr()) }
    }
}

/// A record to send. librdkafka copies all of it.
pub(crate) struct ProduceRequest<'a> {
    /// `None`: the partitioner chooses.
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) payload: Option<&'a [u8]>,
    /// Returned with the delivery report.
    pub(crate) ticket: u64,
}

impl<'a> ProduceRequest<'a> {
    pub(crate) fn new(record: &OutgoingRecord<'a>, ticket: u64) -> Self {
        Self {
            partition: record.partition,
            key: record.key,
            payload: record.payload,
            ticket,
        }
    }
}

impl NativeProducer {
    /// Counts the bytes of its records in `budget`, without checking its bounds.
    pub(crate) fn new(config: &ClientConfig, budget: Arc<SendBudget>) -> Result<Self, Error> {
        Ok(Self {
            client: NativeClient::new(config, RDKafkaType::RD_KAFKA_PRODUCER)?,
            budget,
            pending_bytes: AtomicUsize::new(0),
        })
    }

    /// `None`: the name is invalid.
    pub(crate) fn topic(&self, name: &str) -> Option<TopicHandle> {
        let name = CString::new(name).ok()?;
        self.probe_topic.get_or_init(|| name.clone());
        let no_config = std::ptr::null_mut();
        // SAFETY: the client and the name are alive; this owns the reference.
        NonNull::new(unsafe { sys::rd_kafka_topic_new(self.ptr(), name.as_ptr(), no_config) })
            .map(TopicHandle)
    }

    /// Queues a record for `topic`, which must belong to this producer. A delivery report follows
    /// only after `Ok`.
    pub(crate) fn send<'h>(
        &self,
        topic: &TopicHandle,
        request: &ProduceRequest<'_>,
        headers: impl Iterator<Item = Header<'h>>,
    ) -> Result<(), RDKafkaErrorCode> {
        use sys::rd_kafka_vtype_t as Tag;
        let mut bytes = 0;
        let counted = headers.inspect(|header| bytes += header_bytes(header));
        let headers = Headers::new(counted);
        bytes += record_bytes(request.key, request.payload);
        let (key, key_length) = bytes_to_raw(request.key);
        let (payload, payload_length) = bytes_to_raw(request.payload);
        // SAFETY: the client and the topic are alive. MSG_F_COPY copies key and payload. Each tag
        // is followed by arguments of the types that librdkafka reads for it, and END ends the
        // list.
        let code = unsafe {
            sys::rd_kafka_producev(
                self.ptr(),
                Tag::RD_KAFKA_VTYPE_RKT,
                topic.ptr(),
                Tag::RD_KAFKA_VTYPE_PARTITION,
                request.partition.unwrap_or(PARTITION_UNASSIGNED),
                Tag::RD_KAFKA_VTYPE_MSGFLAGS,
                sys::RD_KAFKA_MSG_F_COPY,
                Tag::RD_KAFKA_VTYPE_KEY,
                key,
                key_length,
                Tag::RD_KAFKA_VTYPE_VALUE,
                payload,
                payload_length,
                Tag::RD_KAFKA_VTYPE_OPAQUE,
                request.ticket as usize as *mut c_void,
                Tag::RD_KAFKA_VTYPE_HEADERS,
                headers.0.as_ptr(),
                Tag::RD_KAFKA_VTYPE_END,
            )
        };
        check(code)?;
        // A queued record owns its headers.
        std::mem::forget(headers);
        self.budget.add(bytes);
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Serves one event of the main queue: a batch of delivery reports, a log line or an error.
    /// Returns whether there was one within `timeout`.
    pub(crate) fn poll(
        &self,
        timeout: Duration,
        on_event: &mut dyn FnMut(ClientEvent),
        mut on_delivery: impl FnMut(&Delivery<'_>),
    ) -> bool {
        self.renew_login(on_event);
        let Some(event) = self.main_queue.poll(timeout) else {
            return false;
        };
        event.client_event().into_iter().for_each(on_event);
        if event.kind() == sys::RD_KAFKA_EVENT_DR {
            // SAFETY: the event is alive and owns its messages.
            while let Some(native) =
                unsafe { sys::rd_kafka_event_message_next(event.ptr()).as_ref() }
            {
                let message = Message(native);
                let headers: usize = message.headers().map(|it| header_bytes(&it)).sum();
                let bytes = record_bytes(message.key(), message.payload()) + headers;
                on_delivery(&Delivery {
                    message,
                    ticket: native._private as usize as u64,
                    error: check(native.err).err(),
                });
                self.budget.remove(bytes);
                self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
        }
        true
    }

    /// Gives up all records that have no report. A report follows for each.
    pub(crate) fn purge(&self) {
        let flags = sys::RD_KAFKA_PURGE_F_QUEUE | sys::RD_KAFKA_PURGE_F_INFLIGHT;
        // SAFETY: the client is alive.
        unsafe { sys::rd_kafka_purge(self.ptr(), flags) };
    }

    /// The number of records without a report and of other events in the main queue.
    pub(crate) fn queued_events(&self) -> usize {
        queued_events(self.client())
    }

    /// Ends a [`NativeProducer::poll`] in another thread.
    pub(crate) fn wake_poll(&self) {
        self.main_queue.wake_poll();
    }

    /// Makes the client fail fatally, as if a broker had lost data.
    #[cfg(feature = "test-support")]
    pub(crate) fn inject_fatal_error(&self) {
        // SAFETY: the client and the text are alive.
        unsafe {
            sys::rd_kafka_test_fatal_error(
                self.ptr(),
                sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
                c"injected by a test".as_ptr(),
            );
        }
    }
}

/// Memory of a queued record without headers. Its delivery report gives the same.
fn record_bytes(key: Option<&[u8]>, payload: Option<&[u8]>) -> usize {
    let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
    KAFKA_SENT_RECORD_BYTES + length(key) + length(payload)
}

/// Memory of one header of a queued record. A report gives the name up to its first zero byte.
fn header_bytes((name, value): &Header<'_>) -> usize {
    let name = name
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(name.len());
    KAFKA_SENT_HEADER_BYTES + name + value.map_or(0, <[u8]>::len)
}

/// A delivery report.
pub(crate) struct Delivery<'a> {
    pub(crate) message: Message<'a>,
    pub(crate) ticket: u64,
    pub(crate) error: Option<RDKafkaErrorCode>,
}

impl Delivery<'_> {
    /// Returns whether a broker may have stored the record, although it did not acknowledge it.
    pub(crate) fn may_be_stored(&self) -> bool {
        // SAFETY: the message is alive.
        let status = unsafe { sys::rd_kafka_message_status(self.message.0) };
        status != sys::rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED
    }

    /// The broker's error text, or an empty one.
    pub(crate) fn text(&self) -> String {
        // SAFETY: the message is alive and owns the text.
        unsafe { text(sys::rd_kafka_message_produce_errstr(self.message.0)) }
    }
}

/// Headers that no record owns yet.
struct Headers(NonNull<sys::rd_kafka_headers_t>);

impl Headers {
    fn new<'h>(headers: impl Iterator<Item = Header<'h>>) -> Self {
        // SAFETY: the call has no preconditions.
        let list = Self(
            NonNull::new(unsafe { sys::rd_kafka_headers_new(8) })
                .expect("librdkafka aborts if it cannot allocate"),
        );
        for (name, value) in headers {
            let (value, length) = bytes_to_raw(value);
            let (name, name_length) = (name.as_ptr().cast(), name.len() as isize);
            let (list, length) = (list.0.as_ptr(), length as isize);
            // SAFETY: the list is alive; librdkafka copies name and value by their lengths.
            unsafe { sys::rd_kafka_header_add(list, name, name_length, value, length) };
        }
        list
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        // SAFETY: no record owns the headers.
        unsafe { sys::rd_kafka_headers_destroy(self.0.as_ptr()) }
    }
}

/// Why a transaction call failed, and what the caller must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TxnError {
    pub(crate) code: RDKafkaErrorCode,
    pub(crate) text: String,
    pub(crate) next_step: NextStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Repeat the call.
    Retry,
    /// Abort the transaction.
    Abort,
    /// Close the client.
    Fatal,
}

/// The transaction calls. The crate's own take the group from a consumer, but this group has none.
impl NativeProducer {
    /// Waits for a connection to a broker with a request for one topic's metadata. A late answer is
    /// no error. Without a connection [`NativeProducer::init_transactions`] may miss the
    /// coordinator, and then tries again only after 500 ms.
    pub(crate) fn connect(&self, topic: &TopicHandle, timeout: Duration) -> Result<(), TxnError> {
        let next_step = NextStep::Retry;
        match self.request_metadata(Some(topic), timeout) {
            Ok(()) | Err((RDKafkaErrorCode::OperationTimedOut, _)) => Ok(()),
            Err((code, text)) => Err(TxnError {
                code,
                text,
                next_step,
            }),
        }
    }

    /// Fences the previous producer of the `transactional.id` and aborts its transaction.
    pub(crate) fn init_transactions(&self, timeout: Duration) -> Result<(), TxnError> {
        // SAFETY: the client is alive; this owns the error.
        unsafe { take_txn_error(sys::rd_kafka_init_transactions(self.ptr(), millis(timeout))) }
    }

    pub(crate) fn begin_transaction(&self) -> Result<(), TxnError> {
        // SAFETY: as above.
        unsafe { take_txn_error(sys::rd_kafka_begin_transaction(self.ptr())) }
    }

    /// Adds `offsets` of a group without members to the transaction. librdkafka may exceed
    /// `timeout`.
    pub(crate) fn send_offsets(
        &self,
        group: &str,
        offsets: &TopicPartitionList,
        timeout: Duration,
    ) -> Result<(), TxnError> {
        let group = CString::new(group).expect("a group name has no zero bytes");
        let (client, offsets, timeout) = (self.ptr(), offsets.ptr(), millis(timeout));
        // SAFETY: client, group and list are alive, and librdkafka copies them; this owns the group
        // metadata and the error.
        unsafe {
            let group = sys::rd_kafka_consumer_group_metadata_new(group.as_ptr());
            let error = sys::rd_kafka_send_offsets_to_transaction(client, offsets, group, timeout);
            sys::rd_kafka_consumer_group_metadata_destroy(group);
            take_txn_error(error)
        }
    }

    pub(crate) fn commit_transaction(&self, timeout: Duration) -> Result<(), TxnError> {
        // SAFETY: as above.
        unsafe {
            take_txn_error(sys::rd_kafka_commit_transaction(
                self.ptr(),
                millis(timeout),
            ))
        }
    }

    /// Succeeds only after [`NativeProducer::poll`] has returned the reports of all records.
    pub(crate) fn abort_transaction(&self, timeout: Duration) -> Result<(), TxnError> {
        // SAFETY: as above.
        unsafe { take_txn_error(sys::rd_kafka_abort_transaction(self.ptr(), millis(timeout))) }
    }
}

/// SAFETY: `error` is null or alive, and the caller gives it up.
unsafe fn take_txn_error(error: *mut sys::rd_kafka_error_t) -> Result<(), TxnError> {
    // librdkafka accepts null: such an error is neither fatal nor anything else.
    let next_step = if sys::rd_kafka_error_is_fatal(error) != 0 {
        NextStep::Fatal
    } else if sys::rd_kafka_error_txn_requires_abort(error) != 0 {
        NextStep::Abort
    } else if sys::rd_kafka_error_is_retriable(error) != 0 {
        NextStep::Retry
    } else {
        NextStep::Fatal
    };
    take_error(error).map_err(|(code, text)| TxnError {
        code,
        text,
        next_step,
    })
}
