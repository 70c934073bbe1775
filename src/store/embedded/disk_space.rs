//! Checks whether the disk has room for new data. A reserve stays free for deliveries.

use crate::limit;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file system of a folder.
#[derive(Clone)]
pub(super) struct DiskSpace {
    path: PathBuf,
    /// Free bytes below which no new data is stored.
    reserve: Arc<AtomicU64>,
}

impl DiskSpace {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            reserve: Arc::new(AtomicU64::new(limit::EMBEDDED_DISK_RESERVE_BYTES)),
        }
    }

    /// A file system that gives no answer counts as not full: the write itself reports the error.
    pub(super) fn is_full(&self) -> bool {
        let reserve = self.reserve.load(Ordering::Relaxed);
        rustix::fs::statvfs(&self.path)
            .is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) < reserve)
    }

    #[cfg(test)]
    pub(super) fn set_reserve(&self, bytes: u64) {
        self.reserve.store(bytes, Ordering::Relaxed);
    }
}
