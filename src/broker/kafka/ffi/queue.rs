//! librdkafka's event queues, and queues that unpark a thread.

use super::client::ClientEvent;
use super::{CallError, check, millis, text};
use rdkafka_sys as sys;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::thread::Thread;
use std::time::Duration;

/// One reference to a queue.
pub(super) struct Queue(NonNull<sys::rd_kafka_queue_t>);

// SAFETY: librdkafka locks its queues.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// SAFETY: `pointer` is null, or a reference that the caller gives up, of a client that
    /// outlives the result.
    pub(super) unsafe fn own(pointer: *mut sys::rd_kafka_queue_t) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    /// SAFETY: the client is alive and outlives the result.
    pub(super) unsafe fn create(client: *mut sys::rd_kafka_t) -> Self {
        // SAFETY: as the function's own.
        unsafe { Self::own(sys::rd_kafka_queue_new(client)) }
            .expect("librdkafka aborts if it cannot allocate")
    }

    pub(super) fn ptr(&self) -> *mut sys::rd_kafka_queue_t {
        self.0.as_ptr()
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
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: this owns the reference, and drops it once.
        unsafe { sys::rd_kafka_queue_destroy(self.ptr()) }
    }
}

/// A queue that unparks a thread whenever it gets an event while it is empty.
pub(super) struct WakingQueue {
    queue: Queue,
    /// Boxed, because librdkafka keeps its address.
    waker: Option<Box<Thread>>,
}

impl WakingQueue {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue, waker: None }
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(super) fn set_waker(&mut self, thread: Thread) {
        let thread = Box::new(thread);
        // SAFETY: the queue is alive. The callback's pointer stays valid until it is replaced or
        // removed, which happens under the same queue lock as the callback.
        unsafe {
            sys::rd_kafka_queue_cb_event_enable(
                self.queue.ptr(),
                Some(unpark),
                std::ptr::from_ref(&*thread) as *mut c_void,
            );
        }
        self.waker = Some(thread);
    }
}

impl Drop for WakingQueue {
    fn drop(&mut self) {
        // SAFETY: the queue is alive. After this call the callback no longer uses the box.
        unsafe {
            sys::rd_kafka_queue_cb_event_enable(self.queue.ptr(), None, std::ptr::null_mut());
        }
    }
}

/// Called by librdkafka's threads under the queue's lock.
unsafe extern "C" fn unpark(_: *mut sys::rd_kafka_t, thread: *mut c_void) {
    // SAFETY: see `WakingQueue::set_waker`.
    unsafe { &*thread.cast::<Thread>() }.unpark();
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
        let mut level: c_int = 0;
        // SAFETY: the event is alive and a log event; it owns both texts.
        unsafe {
            let code = sys::rd_kafka_event_log(self.ptr(), &mut facility, &mut line, &mut level);
            (code == 0).then(|| ClientEvent::Log {
                syslog_level: level,
                text: format!("{} {}", text(facility), text(line)),
            })
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this owns the event, and nothing borrows from it any more.
        unsafe { sys::rd_kafka_event_destroy(self.ptr()) }
    }
}
