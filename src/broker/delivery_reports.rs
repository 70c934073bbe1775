//! Reports on their way from an adapter's own thread to the port's caller.

use super::DeliveryReport;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// As many at most as records were taken over.
#[derive(Default)]
pub(super) struct DeliveryReports {
    waiting: Mutex<Vec<DeliveryReport>>,
    arrived: Notify,
}

impl DeliveryReports {
    pub(super) fn push(&self, reports: &mut Vec<DeliveryReport>) {
        if !reports.is_empty() {
            self.waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .append(reports);
            self.arrived.notify_one();
        }
    }

    /// Dropped early, it loses nothing: reports leave only with the answer.
    pub(super) async fn take(&self) -> Vec<DeliveryReport> {
        loop {
            let reports =
                std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if !reports.is_empty() {
                return reports;
            }
            self.arrived.notified().await;
        }
    }
}
