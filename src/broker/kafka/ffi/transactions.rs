//! Transaction calls with a timeout; a call that timed out continues when it is repeated.
//!
//! The crate's own calls take the group from a consumer, and Postdate has none for this group.

use super::producer::{NativeProducer, TopicHandle};
use super::{millis, take_error};
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
