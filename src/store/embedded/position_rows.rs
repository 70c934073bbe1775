//! The rows of a shard for its hold, its possible deliveries and its pause.

use super::shard::Shard;
use super::tables::WriteBatch;
use super::{codec, key};
use crate::model::{Pause, Progress};

impl Shard {
    /// The caller writes the row of the hold.
    pub(super) fn end_hold(&mut self) {
        self.meta.hold = None;
    }

    /// Writes the row of the hold.
    pub(super) fn write_hold(&self, batch: &mut WriteBatch<'_>) {
        batch.put(key::hold(self.number()), codec::hold(self.meta.hold));
    }

    /// Extends the pair of possible deliveries, and writes its row.
    pub(super) fn extend_possibly_delivered(&mut self, pair: Progress, batch: &mut WriteBatch<'_>) {
        let before = self.meta.possibly_delivered;
        self.meta.extend_possibly_delivered(pair);
        if self.meta.possibly_delivered != before {
            self.write_possibly_delivered(batch);
        }
    }

    pub(super) fn write_possibly_delivered(&self, batch: &mut WriteBatch<'_>) {
        let key = key::possibly_delivered(self.number());
        batch.put(key, codec::pair(self.meta.possibly_delivered));
    }

    /// Keeps the newer pause, and writes its row.
    pub(super) fn learn_pause(&mut self, pause: Option<&Pause>, batch: &mut WriteBatch<'_>) {
        let before = self.meta.pause.clone();
        self.meta.learn_pause(pause);
        if self.meta.pause != before {
            self.write_pause(batch);
        }
    }

    pub(super) fn write_pause(&self, batch: &mut WriteBatch<'_>) {
        if let Some(pause) = &self.meta.pause {
            batch.put(key::pause(self.number()), pause.to_string().into_bytes());
        }
    }
}
