//! Messages of one shard that are not yet in a run: collected in the order of their offsets. Pure.

use crate::limit::{BATCH_BYTES_MAX, BATCH_MESSAGES_MAX};
use crate::model::{Body, Cursor, Slice};
use crate::run::{Far, Placed, Run, Sealer, record};
use crate::store::Change;

/// See the module's page. Its buffers are reused from seal to seal.
#[derive(Default)]
pub(crate) struct Batch {
    bodies: Vec<u8>,
    entries: Vec<Entry>,
    changes: Vec<Change>,
}

struct Entry {
    slice: Slice,
    place: Cursor,
    start: usize,
    end: usize,
}

impl Batch {
    pub(crate) fn add(&mut self, slice: Slice, place: Cursor, body: &Body<'_>) {
        let start = self.bodies.len();
        record::encode(body, &mut self.bodies);
        self.entries.push(Entry { slice, place, start, end: self.bodies.len() });
    }

    pub(crate) fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bodies.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() + self.changes.len() >= BATCH_MESSAGES_MAX || self.bodies.len() >= BATCH_BYTES_MAX
    }

    pub(crate) fn clear(&mut self) {
        self.bodies.clear();
        self.entries.clear();
        self.changes.clear();
    }

    /// Empties the batch into runs.
    pub(crate) fn seal(&mut self, sealer: &mut Sealer, far: Far) -> (Vec<Run>, Vec<Change>) {
        let bodies = &self.bodies;
        let placed = |entry: &Entry| Placed { slice: entry.slice, place: entry.place, record: &bodies[entry.start..entry.end] };
        let runs = sealer.seal(&mut self.entries.iter().map(placed).collect::<Vec<_>>(), Some(far));
        let changes = std::mem::take(&mut self.changes);
        self.clear();
        (runs, changes)
    }
}
