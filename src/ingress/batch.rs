//! Messages of one shard that are not yet in a run: collected in the order of their offsets. Pure.

use crate::limit::{BATCH_BYTES_MAX, BATCH_MESSAGES_MAX};
use crate::model::{Body, Cursor, Slice};
use crate::run::{EncodedMessage, FarTarget, Run, RunBuilder, record};
use crate::store::IdChange;

/// See the module's page. Its buffers are reused from seal to seal, as long as they are no larger than a batch.
#[derive(Default)]
pub(crate) struct AppendBatch {
    bodies: Vec<u8>,
    entries: Vec<Entry>,
    changes: Vec<IdChange>,
}

struct Entry {
    slice: Slice,
    place: Cursor,
    start: usize,
    end: usize,
}

impl AppendBatch {
    pub(crate) fn add(&mut self, slice: Slice, place: Cursor, body: &Body<'_>) {
        let start = self.bodies.len();
        record::encode(body, &mut self.bodies);
        self.entries.push(Entry {
            slice,
            place,
            start,
            end: self.bodies.len(),
        });
    }

    pub(crate) fn add_change(&mut self, change: IdChange) {
        self.changes.push(change);
    }

    /// Memory that it takes, full or empty.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.bodies.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.changes.capacity() * size_of::<IdChange>()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() + self.changes.len() >= BATCH_MESSAGES_MAX
            || self.bodies.len() >= BATCH_BYTES_MAX
    }

    /// One giant record must not keep its memory for as long as the partition is read.
    pub(crate) fn clear(&mut self) {
        self.bodies.clear();
        self.entries.clear();
        self.changes.clear();
        self.bodies.shrink_to(2 * BATCH_BYTES_MAX);
    }

    /// An empty one gives its buffers back; they grow again with the next batch.
    pub(crate) fn free_if_empty(&mut self) {
        if self.entries.is_empty() && self.changes.is_empty() {
            *self = Self::default();
        }
    }

    /// Empties the batch into runs.
    pub(crate) fn build_runs(
        &mut self,
        sealer: &mut RunBuilder,
        far: FarTarget,
    ) -> (Vec<Run>, Vec<IdChange>) {
        let bodies = &self.bodies;
        let placed = |entry: &Entry| EncodedMessage {
            slice: entry.slice,
            place: entry.place,
            record: &bodies[entry.start..entry.end],
        };
        let runs = sealer.build(
            &mut self.entries.iter().map(placed).collect::<Vec<_>>(),
            Some(far),
        );
        let changes = std::mem::take(&mut self.changes);
        self.clear();
        (runs, changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Disposition, Headers, Offset, Timestamp};
    use crate::run::ThinHours;

    fn add(batch: &mut AppendBatch, offset: u64, payload: &[u8]) {
        let (due, headers) = (Timestamp::from_millis(1), Headers::from_block(&[]));
        let (id, target, dialect, disposition) = (None, None, None, Disposition::Deliver);
        let body = Body {
            key: None,
            payload: Some(payload),
            headers,
            id,
            target,
            dialect,
            disposition,
        };
        batch.add(Slice::of(due, due), Cursor::new(due, Offset(offset)), &body);
    }

    fn seal(batch: &mut AppendBatch) -> usize {
        batch
            .build_runs(
                &mut RunBuilder::new(1),
                FarTarget::at(Timestamp::from_millis(1), ThinHours::DEFAULT),
            )
            .0
            .len()
    }

    #[test]
    fn a_giant_record_does_not_keep_its_memory_and_a_usual_batch_does() {
        let mut batch = AppendBatch::default();
        add(&mut batch, 1, &vec![0; 3 * BATCH_BYTES_MAX]);
        assert!(batch.allocated_bytes() > 3 * BATCH_BYTES_MAX);
        assert_eq!(seal(&mut batch), 1);
        assert!(batch.bodies.capacity() <= 2 * BATCH_BYTES_MAX);
        (0..1_000).for_each(|offset| add(&mut batch, offset, b"a"));
        let held = batch.allocated_bytes();
        assert_eq!((seal(&mut batch), batch.allocated_bytes()), (1, held));
    }

    #[test]
    fn what_rests_holds_nothing_and_what_has_messages_does_not_rest() {
        let mut batch = AppendBatch::default();
        add(&mut batch, 1, &[0; 1_000]);
        batch.free_if_empty();
        assert_eq!(seal(&mut batch), 1);
        assert!(batch.allocated_bytes() > 1_000);
        batch.free_if_empty();
        assert_eq!(batch.allocated_bytes(), 0);
    }
}
