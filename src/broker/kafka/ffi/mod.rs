//! Direct calls of librdkafka, and the only `unsafe` code of the crate.
//!
//! The calls here have no safe form in the `rdkafka` crate, or a slow one, or one that panics on
//! bytes that are not UTF-8.
//!
//! | file | missing in the crate |
//! |---|---|
//! | `client` | A client whose events are polled. Probes. Tokens without a callback. |
//! | `queue` | Event queues that unpark a thread. |
//! | `consumer` | Batches from the queues of a consumer. Header names as bytes. |
//! | `group` | Offsets of any group, without a client for each group. |
//! | `producer` | Header names as bytes. Reports in batches. Transactions with offsets of any group. |
//! | `admin` | Topic ids and permissions. Offsets of many partitions. Commit metadata as bytes. One setting of a topic. |
//! | `mock` | A controller of the mock cluster, for the demo. |
//!
//! Soundness rules for every file:
//! - A pointer from librdkafka is wrapped at once in a type that destroys it once. Such a type
//!   declares its queues before the client, because the client must outlive them.
//! - Data borrowed from an event or a message lives as long as the Rust borrow of it.
//! - librdkafka's client and queue functions may be called from any thread.
#![allow(
    unsafe_code,
    reason = "librdkafka is a C library; the rest of the crate is safe because this module is"
)]
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "the SAFETY line of an unsafe function covers its whole body"
)]

mod admin;
mod client;
mod consumer;
mod group;
mod mock;
mod producer;
mod queue;

pub(super) use admin::{
    CallContext, DescribedTopics, Isolation, ListedOffsets, OffsetsCall, TopicDescription,
    TopicsCall, committed_metadata, set_topic_config,
};
pub(super) use client::{ClientEvent, NativeClient, ProbeTarget, log_in};
pub(super) use consumer::{Message, NativeConsumer, RecordQueue};
pub(super) use group::{GroupAnswer, GroupCall, broker_ids};
pub(crate) use mock::InProcessKafka;
pub(super) use producer::{
    Delivery, NativeProducer, NextStep, ProduceRequest, TopicHandle, TxnError,
};

use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka_sys as sys;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

/// Why a call, or a part of it, failed. The text is never empty.
pub(super) type CallError = (RDKafkaErrorCode, String);

/// librdkafka counts timeouts in milliseconds. A short timeout does not become zero.
fn millis(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_micros().div_ceil(1_000)).unwrap_or(c_int::MAX)
}

fn check(code: RDKafkaRespErr) -> Result<(), RDKafkaErrorCode> {
    if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        Ok(())
    } else {
        Err(code.into())
    }
}

/// Like [`check`], with the code's own text.
fn check_call(code: RDKafkaRespErr) -> Result<(), CallError> {
    check(code).map_err(|code| (code, code.to_string()))
}

/// SAFETY: `error` is null or alive.
unsafe fn check_error(error: *const sys::rd_kafka_error_t) -> Result<(), CallError> {
    if error.is_null() {
        return Ok(());
    }
    check(sys::rd_kafka_error_code(error))
        .map_err(|code| (code, text(sys::rd_kafka_error_string(error))))
}

/// Like [`check_error`], and destroys the error.
///
/// SAFETY: `error` is null or alive, and the caller gives it up.
unsafe fn take_error(error: *mut sys::rd_kafka_error_t) -> Result<(), CallError> {
    let result = check_error(error);
    sys::rd_kafka_error_destroy(error);
    result
}

/// SAFETY: `pointer` is null or a C string that is alive.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    let text = CStr::from_ptr(pointer).to_string_lossy();
    text.trim().to_owned()
}

/// SAFETY: `pointer` is null or points to `length` bytes that live for `'a`.
unsafe fn bytes<'a>(pointer: *const c_void, length: usize) -> Option<&'a [u8]> {
    (!pointer.is_null()).then(|| std::slice::from_raw_parts(pointer.cast(), length))
}

/// SAFETY: `pointer` is null or points to `count` values that live for `'a`.
unsafe fn slice<'a, T>(pointer: *const T, count: usize) -> &'a [T] {
    if pointer.is_null() {
        &[]
    } else {
        std::slice::from_raw_parts(pointer, count)
    }
}

/// SAFETY: `list` is null or alive for `'a`.
unsafe fn list_elements<'a>(
    list: *const sys::rd_kafka_topic_partition_list_t,
) -> &'a [sys::rd_kafka_topic_partition_t] {
    list.as_ref().map_or(&[], |list| {
        slice(list.elems, usize::try_from(list.cnt).unwrap_or(0))
    })
}

/// `None` becomes a null pointer, and an empty slice another pointer.
fn bytes_to_raw(bytes: Option<&[u8]>) -> (*const c_void, usize) {
    bytes.map_or((std::ptr::null(), 0), |bytes| {
        (bytes.as_ptr().cast(), bytes.len())
    })
}
