//! Transactional ids whose producers send each record in a batch of its own for a while.
//!
//! If a broker rejects a batch, it does not say which record is at fault, and no other producer can
//! take part in the transaction. So the producer fails, and its successors send single records.

use crate::limit::KAFKA_SINGLE_RECORD_BATCHES_DURATION;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct SingleRecordMode(Mutex<BTreeMap<String, Instant>>);

impl SingleRecordMode {
    /// The end of the mode for this id, or `None` if it is not active.
    pub(super) fn until(&self, transactional_id: &str) -> Option<Instant> {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        ids.retain(|_, until| *until > now);
        ids.get(transactional_id).copied()
    }

    pub(super) fn start(&self, transactional_id: &str) {
        let until = Instant::now() + KAFKA_SINGLE_RECORD_BATCHES_DURATION;
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(transactional_id.to_owned(), until);
    }
}
