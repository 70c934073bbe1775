//! Collects messages of one shard, in offset order, until they are encoded into runs. Pure.

use super::quota::Waiting;
use crate::limit::{BATCH_BYTES_MAX, BATCH_MESSAGES_MAX};
use crate::model::{Body, Cursor, OutcomeDraft, ShardId, Slice};
use crate::run::{EncodedMessage, FarTarget, Run, RunBuilder, record};
use crate::store::IdChange;
use std::ops::Range;

/// The batch that the next append stores. Its buffers are reused by later batches.
#[derive(Default)]
pub(crate) struct AppendBatch {
    bodies: Vec<u8>,
    entries: Vec<Entry>,
    /// With plain ids.
    pub(super) changes: Vec<IdChange<Box<str>>>,
    /// At most one of each record. Empty if the route has no outcome topic.
    pub(super) drafts: Vec<OutcomeDraft>,
}

/// One message: its position, and the range of its body in `bodies`.
struct Entry {
    slice: Slice,
    position: Cursor,
    body: Range<usize>,
}

impl AppendBatch {
    pub(crate) fn add(&mut self, slice: Slice, position: Cursor, body: &Body<'_>) {
        let start = self.bodies.len();
        record::encode(body, &mut self.bodies);
        self.entries.push(Entry {
            slice,
            position,
            body: start..self.bodies.len(),
        });
    }

    pub(crate) fn allocated_bytes(&self) -> usize {
        self.bodies.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.changes.capacity() * size_of::<IdChange<Box<str>>>()
            + self.drafts.capacity() * size_of::<OutcomeDraft>()
    }

    pub(super) fn waiting(&self) -> Waiting {
        Waiting {
            messages: self.entries.len() as u64,
            bytes: self.bodies.len() as u64,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() + self.changes.len() >= BATCH_MESSAGES_MAX
            || self.bodies.len() >= BATCH_BYTES_MAX
    }

    /// Empties the batch. The memory of one giant record is given back.
    pub(crate) fn clear(&mut self) {
        self.bodies.clear();
        self.entries.clear();
        self.changes.clear();
        self.drafts.clear();
        self.bodies.shrink_to(2 * BATCH_BYTES_MAX);
    }

    /// Frees the buffers if the batch is empty. They grow again with the next batch.
    pub(crate) fn free_if_empty(&mut self) {
        if self.entries.is_empty() && self.changes.is_empty() {
            *self = Self::default();
        }
    }

    /// The drafts of the messages and changes. Call it before the runs are built.
    pub(super) fn take_drafts(&mut self) -> Vec<OutcomeDraft> {
        std::mem::take(&mut self.drafts)
    }

    /// Encodes the messages into runs, hashes the ids, and empties the batch. Hours with few messages
    /// share a run.
    pub(crate) fn build_runs(
        &mut self,
        shard: &ShardId,
        builder: &mut RunBuilder,
        far: FarTarget,
    ) -> (Vec<Run>, Vec<IdChange>) {
        let bodies = &self.bodies;
        let placed = |entry: &Entry| EncodedMessage {
            slice: entry.slice,
            place: entry.position,
            record: &bodies[entry.body.clone()],
        };
        let mut messages: Vec<_> = self.entries.iter().map(placed).collect();
        let runs = builder.build(shard, &mut messages, Some(far));
        let stored = |id: Box<str>| builder.keys().stored_id(shard, &id);
        let changes = self.changes.drain(..).map(|change| change.map_id(stored));
        let changes = changes.collect();
        self.clear();
        (runs, changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Offset, Partition, Timestamp};
    use crate::run::ThinHours;

    fn add(batch: &mut AppendBatch, offset: u64, payload: &[u8]) {
        let due = Timestamp::from_millis(1);
        let body = Body {
            payload: Some(payload),
            ..Body::default()
        };
        batch.add(Slice::of(due, due), Cursor::new(due, Offset(offset)), &body);
    }

    fn build(batch: &mut AppendBatch) -> usize {
        batch
            .build_runs(
                &ShardId::new("r", Partition::new("t", 0)),
                &mut RunBuilder::plain(1),
                FarTarget::at(Timestamp::from_millis(1), ThinHours::DEFAULT),
            )
            .0
            .len()
    }

    #[test]
    fn a_giant_record_frees_its_memory_and_a_usual_batch_keeps_it() {
        let mut batch = AppendBatch::default();
        add(&mut batch, 1, &vec![0; 3 * BATCH_BYTES_MAX]);
        assert!(batch.allocated_bytes() > 3 * BATCH_BYTES_MAX);
        assert_eq!(build(&mut batch), 1);
        assert!(batch.bodies.capacity() <= 2 * BATCH_BYTES_MAX);
        (0..1_000).for_each(|offset| add(&mut batch, offset, b"a"));
        let allocated = batch.allocated_bytes();
        assert_eq!(build(&mut batch), 1);
        assert_eq!(batch.allocated_bytes(), allocated);
    }

    #[test]
    fn only_an_empty_batch_is_freed() {
        let mut batch = AppendBatch::default();
        add(&mut batch, 1, &[0; 1_000]);
        batch.free_if_empty();
        assert_eq!(build(&mut batch), 1);
        assert!(batch.allocated_bytes() > 1_000);
        batch.free_if_empty();
        assert_eq!(batch.allocated_bytes(), 0);
    }
}
