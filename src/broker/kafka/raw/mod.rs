//! The one place that calls librdkafka by hand, and the only one with `unsafe`: what the `rdkafka` crate has no safe form of, or a slow one,
//! or one that panics on bytes that are not UTF-8. It knows handles and bytes, and nothing of what they are used for.
//!
//! | file | what the crate lacks |
//! |---|---|
//! | `read` | batches from a consumer's queue; header names as bytes |
//! | `send` | header names as bytes; delivery reports a batch at a time, with their status |
//! | `transact` | markers of a group without members; what may follow on an error |
//! | `ask` | topic ids; offsets of many partitions at once; commit metadata as bytes; whether anybody is there |
//! | `inspect` | a wait for settings and rights that can be given up |
//! | `commit` | commits that do not wait, each with its answer |
//! | `mock` | how soon a group of the in-process broker begins |
//!
//! What keeps it sound, everywhere:
//! - A pointer that librdkafka hands out is wrapped at once in a type that destroys it once, and that declares its queues before the
//!   client, for a client must outlive what was taken from it.
//! - What is borrowed from an event or a message lives as long as the Rust borrow of that event or message.
//! - librdkafka's client and queue functions may be called from any thread.
#![allow(
    unsafe_code,
    reason = "librdkafka is a C library; the rest of the crate is safe because this module is"
)]

mod ask;
mod commit;
mod inspect;
mod mock;
mod read;
mod send;
mod transact;

pub(super) use ask::{
    CallContext, CallError, OffsetSpec, TopicDescription, committed, describe_topics, list_offsets,
};
pub(super) use commit::CommitQueue;
pub(super) use inspect::{ConfigOwner, ConfigValues, brokers, configs, permissions};
pub(super) use mock::MockBroker;
pub(super) use read::{Message, NativeConsumer};
pub(super) use send::{Delivery, NativeProducer, PersistStatus, ProduceRequest, TopicHandle};
pub(super) use transact::{NextStep, TxnError};

use crate::limit::KAFKA_PROBE_TIMEOUT;
use rdkafka::client::{Client, ClientContext, DefaultClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr, RDKafkaType};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::Duration;

/// A client whose main queue (logs, errors, delivery reports) is served by [`NativeClient::serve`].
pub(super) struct NativeClient {
    main: Queue,
    /// The first topic that it had to do with: what a broker is asked about to hear whether it is there.
    known: OnceLock<CString>,
    client: Client<DefaultClientContext>,
}

/// Asked about by a client that has had to do with no topic yet. None need exist of that name.
const NO_TOPIC: &CStr = c"postdate-probe";

/// What a client says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClientEvent {
    Log {
        level: LogLevel,
        text: String,
    },
    Error {
        code: RDKafkaErrorCode,
        text: String,
    },
}

/// How much a log line matters to librdkafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogLevel {
    Error,
    Warning,
    Info,
    Debug,
}

impl From<RDKafkaLogLevel> for LogLevel {
    fn from(level: RDKafkaLogLevel) -> Self {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => Self::Error,
            RDKafkaLogLevel::Warning => Self::Warning,
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => Self::Info,
            RDKafkaLogLevel::Debug => Self::Debug,
        }
    }
}

impl NativeClient {
    fn new(config: &ClientConfig, kind: RDKafkaType, events: c_int) -> Result<Self, KafkaError> {
        let native = config.create_native_config()?;
        // SAFETY: the configuration is alive, and not yet given to a client.
        unsafe { sys::rd_kafka_conf_set_events(native.ptr(), events | sys::RD_KAFKA_EVENT_ERROR) };
        let client = Client::new(config, native, kind, DefaultClientContext)?;
        // SAFETY: the client is alive; the reference to its queue is ours to destroy.
        let main = unsafe { Queue::own(sys::rd_kafka_queue_get_main(client.native_ptr())) };
        Ok(Self {
            main: main.expect("every client has a main queue"),
            known: OnceLock::new(),
            client,
        })
    }

    /// A client that only asks; it joins no group and reads nothing.
    pub(super) fn admin_client(config: &ClientConfig) -> Result<Self, KafkaError> {
        Self::new(config, RDKafkaType::RD_KAFKA_CONSUMER, 0)
    }

    fn ptr(&self) -> *mut sys::rd_kafka_t {
        self.client.native_ptr()
    }

    /// Hands out what waits in the main queue, or the first that comes within `patience`. Answers how much it was: 0 or 1.
    pub(super) fn poll(&self, patience: Duration, notice: &mut dyn FnMut(ClientEvent)) -> usize {
        self.main.poll(patience).map_or(0, |event| {
            event.notice().into_iter().for_each(notice);
            1
        })
    }

    /// Whether a broker answers within [`KAFKA_PROBE_TIMEOUT`].
    pub(super) fn probe(&self, ping: ProbeTarget) -> bool {
        match ping {
            ProbeTarget::Controller => {
                ask::is_there(self, self.known.get().map_or(NO_TOPIC, CString::as_c_str))
            }
            ProbeTarget::AnyBroker => self.metadata(None, KAFKA_PROBE_TIMEOUT, |_| ()).is_ok(),
        }
    }

    /// The client has to do with this topic: a broker may be asked about it.
    fn knows(&self, topic: &CStr) {
        self.known.get_or_init(|| topic.to_owned());
    }

    /// What a broker says of the cluster, and of one topic, or of those that this client knows: if it knows none, of all.
    fn metadata<T>(
        &self,
        topic: Option<&TopicHandle>,
        patience: Duration,
        read: impl FnOnce(&sys::rd_kafka_metadata) -> T,
    ) -> Result<T, CallError> {
        let mut metadata: *const sys::rd_kafka_metadata = std::ptr::null();
        let topic = topic.map_or(std::ptr::null_mut(), TopicHandle::ptr);
        // SAFETY: the client is alive, and the topic is, if there is one; the answer is ours to destroy.
        unsafe {
            match sys::rd_kafka_metadata(self.ptr(), 0, topic, &mut metadata, millis(patience)) {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => {
                    let answer = read(&*metadata);
                    sys::rd_kafka_metadata_destroy(metadata);
                    Ok(answer)
                }
                code => Err((code.into(), RDKafkaErrorCode::from(code).to_string())),
            }
        }
    }
}

/// Whom to ask whether anybody is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeTarget {
    /// The broker that the cluster calls its controller, a small question. It may be the one that is gone.
    Controller,
    /// Any broker that seems connected. The answer is as long as the list of topics that the client knows: if it knows none, of all topics.
    AnyBroker,
}

/// How much waits to be served by a poll of this client.
pub(super) fn queued_events<C: ClientContext>(client: &Client<C>) -> usize {
    // SAFETY: the client is alive.
    usize::try_from(unsafe { sys::rd_kafka_outq_len(client.native_ptr()) }).unwrap_or(0)
}

/// One reference to a queue.
struct Queue(NonNull<sys::rd_kafka_queue_t>);

// SAFETY: librdkafka's queues are locked inside.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// SAFETY: `pointer` is null or a reference that the caller gives up, of a client that outlives the result.
    unsafe fn own(pointer: *mut sys::rd_kafka_queue_t) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    fn poll(&self, patience: Duration) -> Option<Event> {
        // SAFETY: the queue is alive; the event is ours to destroy.
        NonNull::new(unsafe { sys::rd_kafka_queue_poll(self.0.as_ptr(), millis(patience)) })
            .map(Event)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and nobody uses it any more.
        unsafe { sys::rd_kafka_queue_destroy(self.0.as_ptr()) }
    }
}

/// A queue that unparks a thread whenever something comes where there was nothing.
struct WakingQueue {
    queue: Queue,
    /// Boxed, for librdkafka holds its address.
    woken: Option<Box<Thread>>,
}

impl WakingQueue {
    fn new(queue: Queue) -> Self {
        Self { queue, woken: None }
    }

    fn ptr(&self) -> *mut sys::rd_kafka_queue_t {
        self.queue.0.as_ptr()
    }

    fn poll(&self, patience: Duration) -> Option<Event> {
        self.queue.poll(patience)
    }

    fn wake(&mut self, thread: Thread) {
        let thread = Box::new(thread);
        // SAFETY: the queue is alive, and the callback's pointer stays valid until another one, or none, is set in its place: both
        // happen under the queue's lock, under which the callback runs too.
        unsafe {
            sys::rd_kafka_queue_cb_event_enable(
                self.ptr(),
                Some(unpark),
                std::ptr::from_ref(&*thread) as *mut c_void,
            )
        };
        self.woken = Some(thread);
    }
}

impl Drop for WakingQueue {
    fn drop(&mut self) {
        // SAFETY: the queue is alive; from here on the box may go.
        unsafe { sys::rd_kafka_queue_cb_event_enable(self.ptr(), None, std::ptr::null_mut()) };
    }
}

/// Called by librdkafka's threads, under the queue's lock.
unsafe extern "C" fn unpark(_: *mut sys::rd_kafka_t, thread: *mut c_void) {
    // SAFETY: see `WakingQueue::wake`.
    unsafe { &*thread.cast::<Thread>() }.unpark();
}

/// One event that was taken from a queue.
struct Event(NonNull<sys::rd_kafka_event_t>);

impl Event {
    fn kind(&self) -> c_int {
        // SAFETY: the event is alive.
        unsafe { sys::rd_kafka_event_type(self.0.as_ptr()) }
    }

    fn error(&self) -> Option<(RDKafkaErrorCode, String)> {
        // SAFETY: the event is alive, and the text lives as long as it.
        unsafe {
            let code = sys::rd_kafka_event_error(self.0.as_ptr());
            (code != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).then(|| {
                (
                    code.into(),
                    text(sys::rd_kafka_event_error_string(self.0.as_ptr())),
                )
            })
        }
    }

    fn notice(&self) -> Option<ClientEvent> {
        match self.kind() {
            sys::RD_KAFKA_EVENT_LOG => self.log(),
            sys::RD_KAFKA_EVENT_ERROR => self
                .error()
                .map(|(code, text)| ClientEvent::Error { code, text }),
            _ => None,
        }
    }

    fn log(&self) -> Option<ClientEvent> {
        let (mut facility, mut line, mut level): (*const c_char, *const c_char, c_int) =
            (std::ptr::null(), std::ptr::null(), 0);
        // SAFETY: the event is alive and a log event; both texts live as long as it.
        unsafe {
            let code =
                sys::rd_kafka_event_log(self.0.as_ptr(), &mut facility, &mut line, &mut level);
            let level = match level {
                ..=3 => LogLevel::Error,
                4 => LogLevel::Warning,
                5..=6 => LogLevel::Info,
                _ => LogLevel::Debug,
            };
            (code == 0).then(|| ClientEvent::Log {
                level,
                text: format!("{} {}", text(facility), text(line)),
            })
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is ours, and what was borrowed from it is gone.
        unsafe { sys::rd_kafka_event_destroy(self.0.as_ptr()) }
    }
}

/// librdkafka's timeouts are milliseconds; a wait that is not zero does not become zero.
fn millis(patience: Duration) -> c_int {
    c_int::try_from(patience.as_micros().div_ceil(1_000)).unwrap_or(c_int::MAX)
}

/// SAFETY: `pointer` is null or a C string that is alive.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: as the function's own.
    unsafe { CStr::from_ptr(pointer) }
        .to_string_lossy()
        .trim()
        .to_owned()
}

/// SAFETY: `pointer` is null or points to `length` bytes that live for `'a`.
unsafe fn bytes<'a>(pointer: *const c_void, length: usize) -> Option<&'a [u8]> {
    // SAFETY: as the function's own.
    (!pointer.is_null()).then(|| unsafe { std::slice::from_raw_parts(pointer.cast(), length) })
}

/// SAFETY: `pointer` is null or points to `count` values that live for `'a`.
unsafe fn slice<'a, T>(pointer: *const T, count: usize) -> &'a [T] {
    // SAFETY: as the function's own.
    if pointer.is_null() {
        &[]
    } else {
        unsafe { std::slice::from_raw_parts(pointer, count) }
    }
}
