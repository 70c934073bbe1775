//! Whether the disk has room for what is new: some is always left for what is needed to deliver what waits.

use crate::limit;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Watches over the file system that a folder lies on.
#[derive(Clone)]
pub(super) struct DiskSpace {
    path: PathBuf,
    /// Bytes that are not given to births and appends.
    reserve: Arc<AtomicU64>,
}

impl DiskSpace {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            reserve: Arc::new(AtomicU64::new(limit::EMBEDDED_DISK_RESERVE_BYTES)),
        }
    }

    /// A file system that does not answer is not full: the write itself will show what is wrong.
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
