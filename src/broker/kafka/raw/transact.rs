//! Transactions: the calls block for so long as they are told to, and can be called again to go on where they were. The crate's own take
//! the group from a consumer, and there is none.

use super::{NativeClient, NativeProducer, TopicHandle, millis, text};
use rdkafka::TopicPartitionList;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka_sys as sys;
use std::ffi::CString;
use std::time::Duration;

/// Why a call did not succeed, and what may follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct TxnError {
    pub(in super::super) code: RDKafkaErrorCode,
    pub(in super::super) words: String,
    pub(in super::super) after: NextStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum NextStep {
    /// The same call may succeed.
    Retry,
    /// The transaction can only be aborted.
    Abort,
    /// Nothing can be done by this client any more.
    Fatal,
}

impl NativeProducer {
    /// Waits for a connection to a broker, by a question for one topic: without any, all topics are asked for. Whether the answer comes in time
    /// does not matter. Without a connection [`Sender::init_transactions`] may look for the coordinator in vain, between the broker it was told of
    /// and the one that this calls itself, and looks again only after 500 ms.
    pub(in super::super) fn connect(
        &self,
        topic: &TopicHandle,
        patience: Duration,
    ) -> Result<(), TxnError> {
        match self.native().metadata(Some(topic), patience, |_| ()) {
            Ok(()) | Err((RDKafkaErrorCode::OperationTimedOut, _)) => Ok(()),
            Err((code, words)) => Err(TxnError {
                code,
                words,
                after: NextStep::Retry,
            }),
        }
    }

    /// Fences whoever bore the client's transactional id, and ends that one's transaction.
    pub(in super::super) fn init_transactions(&self, patience: Duration) -> Result<(), TxnError> {
        // SAFETY: the client is alive; the error is ours.
        unsafe {
            undone(sys::rd_kafka_init_transactions(
                self.native().ptr(),
                millis(patience),
            ))
        }
    }

    pub(in super::super) fn begin_transaction(&self) -> Result<(), TxnError> {
        // SAFETY: as above.
        unsafe { undone(sys::rd_kafka_begin_transaction(self.native().ptr())) }
    }

    /// Makes `offsets` of a group without members a part of the transaction. The patience is not always heeded.
    pub(in super::super) fn send_offsets(
        &self,
        group: &str,
        offsets: &TopicPartitionList,
        patience: Duration,
    ) -> Result<(), TxnError> {
        let group =
            CString::new(group).expect("a group's name is made of names without zero bytes");
        // SAFETY: client, group and list are alive; both are copied; the metadata is ours to destroy.
        unsafe {
            let metadata = sys::rd_kafka_consumer_group_metadata_new(group.as_ptr());
            let error = sys::rd_kafka_send_offsets_to_transaction(
                self.native().ptr(),
                offsets.ptr(),
                metadata,
                millis(patience),
            );
            sys::rd_kafka_consumer_group_metadata_destroy(metadata);
            undone(error)
        }
    }

    pub(in super::super) fn commit_transaction(&self, patience: Duration) -> Result<(), TxnError> {
        // SAFETY: as above.
        unsafe {
            undone(sys::rd_kafka_commit_transaction(
                self.native().ptr(),
                millis(patience),
            ))
        }
    }

    /// Its records' reports are to be taken by [`Sender::serve`] before it can succeed.
    pub(in super::super) fn abort_transaction(&self, patience: Duration) -> Result<(), TxnError> {
        // SAFETY: as above.
        unsafe {
            undone(sys::rd_kafka_abort_transaction(
                self.native().ptr(),
                millis(patience),
            ))
        }
    }

    /// Why this client can do nothing any more, with its code.
    pub(in super::super) fn fatal_error(&self) -> Option<(RDKafkaErrorCode, String)> {
        let native: &NativeClient = self.native();
        native.client.fatal_error()
    }
}

/// SAFETY: `error` is null or the caller's, who gives it up.
unsafe fn undone(error: *mut sys::rd_kafka_error_t) -> Result<(), TxnError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is alive until it is destroyed here.
    unsafe {
        let code: RDKafkaRespErr = sys::rd_kafka_error_code(error);
        let after = match () {
            () if sys::rd_kafka_error_is_fatal(error) != 0 => NextStep::Fatal,
            () if sys::rd_kafka_error_txn_requires_abort(error) != 0 => NextStep::Abort,
            () if sys::rd_kafka_error_is_retriable(error) != 0 => NextStep::Retry,
            () => NextStep::Fatal,
        };
        let undone = TxnError {
            code: code.into(),
            words: text(sys::rd_kafka_error_string(error)),
            after,
        };
        sys::rd_kafka_error_destroy(error);
        Err(undone)
    }
}
