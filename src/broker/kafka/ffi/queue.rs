//! librdkafka's event queues. A queue may unpark a thread.

use super::client::ClientEvent;
use super::{CallError, check, millis, text};
use rdkafka_sys as sys;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

pub(super) struct Queue {
    pointer: NonNull<sys::rd_kafka_queue_t>,
    /// Boxed, because librdkafka keeps its address.
    waker: Option<Box<Waker>>,
}

/// The action of an empty queue when it gets an event.
struct Waker {
    thread: Thread,
    /// Set before the thread is unparked.
    is_ready: Option<Arc<AtomicBool>>,
}

// SAFETY: librdkafka locks its queues.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// SAFETY: `pointer` is null, or a reference that the caller gives up, of a client that
    /// outlives the result.
    pub(super) unsafe fn own(pointer: *mut sys::rd_kafka_queue_t) -> Option<Self> {
        let waker = None;
        NonNull::new(pointer).map(|pointer| Self { pointer, waker })
    }

    /// SAFETY: the client is alive and outlives the result.
    pub(super) unsafe fn create(client: *mut sys::rd_kafka_t) -> Self {
        Self::own(sys::rd_kafka_queue_new(client)).expect("librdkafka aborts if it cannot allocate")
    }

    pub(super) fn ptr(&self) -> *mut sys::rd_kafka_queue_t {
        self.pointer.as_ptr()
    }

    pub(super) fn poll(&self, timeout: Duration) -> Option<Event> {
        // SAFETY: the queue is alive, and this owns the event.
        NonNull::new(unsafe { sys::rd_kafka_queue_poll(self.ptr(), millis(timeout)) }).map(Event)
    }

    /// Ends a [`Queue::poll`] in another thread.
    pub(super) fn wake_poll(&self) {
        // SAFETY: the queue is alive.
        unsafe { sys::rd_kafka_queue_yield(self.ptr()) }
    }

    /// Sets `is_ready` and unparks `thread` whenever the empty queue gets an event.
    pub(super) fn set_waker(&mut self, thread: Thread, is_ready: Option<Arc<AtomicBool>>) {
        let waker = Box::new(Waker { thread, is_ready });
        let address = std::ptr::from_ref(&*waker) as *mut c_void;
        // SAFETY: the queue is alive. The callback's pointer stays valid until it is replaced or
        // removed, which happens under the same queue lock as the callback.
        unsafe { sys::rd_kafka_queue_cb_event_enable(self.ptr(), Some(unpark), address) }
        self.waker = Some(waker);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue is alive, and this drops its reference once. Without the callback, the
        // box is not used any more.
        unsafe {
            if self.waker.is_some() {
                sys::rd_kafka_queue_cb_event_enable(self.ptr(), None, std::ptr::null_mut());
            }
            sys::rd_kafka_queue_destroy(self.ptr());
        }
    }
}

/// Called by librdkafka's threads under the queue's lock.
///
/// SAFETY: see [`Queue::set_waker`].
unsafe extern "C" fn unpark(_: *mut sys::rd_kafka_t, waker: *mut c_void) {
    let waker = &*waker.cast::<Waker>();
    if let Some(is_ready) = &waker.is_ready {
        is_ready.store(true, Ordering::Release);
    }
    waker.thread.unpark();
}

/// One event that was taken from a queue.
pub(super) struct Event(NonNull<sys::rd_kafka_event_t>);

impl Event {
    pub(super) fn ptr(&self) -> *mut sys::rd_kafka_event_t {
        self.0.as_ptr()
    }

    pub(super) fn kind(&self) -> c_int {
        // SAFETY: the event is alive.
        unsafe { sys::rd_kafka_event_type(self.ptr()) }
    }

    pub(super) fn check(&self) -> Result<(), CallError> {
        // SAFETY: the event is alive, and owns the text.
        unsafe {
            check(sys::rd_kafka_event_error(self.ptr()))
                .map_err(|code| (code, text(sys::rd_kafka_event_error_string(self.ptr()))))
        }
    }

    /// `None` for other kinds of events.
    pub(super) fn client_event(&self) -> Option<ClientEvent> {
        match self.kind() {
            sys::RD_KAFKA_EVENT_LOG => self.log(),
            sys::RD_KAFKA_EVENT_ERROR => {
                let (code, text) = self.check().err()?;
                Some(ClientEvent::Error { code, text })
            }
            _ => None,
        }
    }

    fn log(&self) -> Option<ClientEvent> {
        let mut facility: *const c_char = std::ptr::null();
        let mut line: *const c_char = std::ptr::null();
        let mut syslog_level: c_int = 0;
        // SAFETY: the event is alive and a log event; it owns both texts.
        unsafe {
            let (event, level) = (self.ptr(), &mut syslog_level);
            if sys::rd_kafka_event_log(event, &mut facility, &mut line, level) != 0 {
                return None;
            }
            let text = format!("{} {}", text(facility), text(line));
            Some(ClientEvent::Log { syslog_level, text })
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this owns the event, and nothing borrows from it any more.
        unsafe { sys::rd_kafka_event_destroy(self.ptr()) }
    }
}
