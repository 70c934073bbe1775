//! Queues events from an adapter's thread for the caller of the port.

use super::DeliveryReport;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

pub(super) type DeliveryReports = EventQueue<DeliveryReport>;

/// Bounded by its producers: an adapter queues at most one event per accepted record or call.
pub(super) struct EventQueue<T> {
    waiting: Mutex<Vec<T>>,
    arrived: Notify,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            arrived: Notify::new(),
        }
    }
}

impl<T> EventQueue<T> {
    /// Moves all of `events` into the queue.
    pub(super) fn push(&self, events: &mut Vec<T>) {
        if !events.is_empty() {
            self.waiting().append(events);
            self.arrived.notify_one();
        }
    }

    /// Waits until there is an event, and takes all. Cancel-safe: events leave only with the
    /// result.
    pub(super) async fn take(&self) -> Vec<T> {
        loop {
            let events = std::mem::take(&mut *self.waiting());
            if !events.is_empty() {
                return events;
            }
            self.arrived.notified().await;
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
