//! Reports on their way from an adapter's own thread to the port's caller.

use super::Report;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// As many at most as records were taken over.
#[derive(Default)]
pub(super) struct Reports {
    waiting: Mutex<Vec<Report>>,
    came: Notify,
}

impl Reports {
    pub(super) fn put(&self, reports: &mut Vec<Report>) {
        if !reports.is_empty() {
            self.waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .append(reports);
            self.came.notify_one();
        }
    }

    /// Dropped early, it loses nothing: reports leave only with the answer.
    pub(super) async fn take(&self) -> Vec<Report> {
        loop {
            let reports =
                std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if !reports.is_empty() {
                return reports;
            }
            self.came.notified().await;
        }
    }
}
