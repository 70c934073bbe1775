//! The bounds of the records that a target has accepted and not reported on.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Producers that share it share its bytes. Each counts its own records.
#[derive(Debug)]
pub(crate) struct SendBudget {
    /// Records of one producer.
    pub(crate) records_max: usize,
    bytes_max: usize,
    used_bytes: AtomicUsize,
}

impl SendBudget {
    pub(crate) fn new(records_max: usize, bytes_max: usize) -> Self {
        Self {
            records_max,
            bytes_max,
            used_bytes: AtomicUsize::new(0),
        }
    }

    /// Returns whether one more record is accepted, which may exceed the bytes. If not, records are
    /// in flight. Their reports make room, and never wait for anything else.
    pub(crate) fn has_room(&self) -> bool {
        self.used_bytes() < self.bytes_max
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    pub(super) fn add(&self, bytes: usize) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
