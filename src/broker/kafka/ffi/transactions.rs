//! Transaction calls with a timeout; a call that timed out continues when it is repeated.
//!
//! The crate's own calls take the group from a consumer, and Postdate has none for this group.

use super::client::NativeClient;
use super::producer::{NativeProducer, TopicHandle};
use super::{millis, text};
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka_sys as sys;
use std::ffi::CString;
use std::time::Duration;

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

impl NativeProducer {
    /// Waits for a connection to a broker with a request for one topic's metadata. A late answer is
    /// no error. Without a connection [`NativeProducer::init_transactions`] may miss the
    /// coordinator, and then tries again only after 500 ms.
    pub(crate) fn connect(&self, topic: &TopicHandle, timeout: Duration) -> Result<(), TxnError> {
        match self.client().metadata(Some(topic), timeout, |_| ()) {
            Ok(()) | Err((RDKafkaErrorCode::OperationTimedOut, _)) => Ok(()),
            Err((code, text)) => Err(TxnError {
                code,
                text,
                next_step: NextStep::Retry,
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
        // SAFETY: client, group and list are alive, and librdkafka copies them; this owns the group
        // metadata and the error.
        unsafe {
            let metadata = sys::rd_kafka_consumer_group_metadata_new(group.as_ptr());
            let error = sys::rd_kafka_send_offsets_to_transaction(
                self.ptr(),
                offsets.ptr(),
                metadata,
                millis(timeout),
            );
            sys::rd_kafka_consumer_group_metadata_destroy(metadata);
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

    fn ptr(&self) -> *mut sys::rd_kafka_t {
        NativeClient::ptr(self.client())
    }
}

/// SAFETY: `error` is null or alive, and the caller gives it up.
unsafe fn take_txn_error(error: *mut sys::rd_kafka_error_t) -> Result<(), TxnError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is alive until it is destroyed here.
    unsafe {
        let next_step = if sys::rd_kafka_error_is_fatal(error) != 0 {
            NextStep::Fatal
        } else if sys::rd_kafka_error_txn_requires_abort(error) != 0 {
            NextStep::Abort
        } else if sys::rd_kafka_error_is_retriable(error) != 0 {
            NextStep::Retry
        } else {
            NextStep::Fatal
        };
        let result = TxnError {
            code: sys::rd_kafka_error_code(error).into(),
            text: text(sys::rd_kafka_error_string(error)),
            next_step,
        };
        sys::rd_kafka_error_destroy(error);
        Err(result)
    }
}
