//! Messages of one shard that are not yet a run: collected in the order of their offsets, sealed into one run a slice. Pure.

use crate::limit::{BATCH_BYTES_MAX, BATCH_MESSAGES_MAX};
use crate::model::{Body, Cursor, Slice};
use crate::run::{Encoder, Namer, Run, record};
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

    /// Empties the batch into runs, one a slice, each sorted by (due, offset) (I3).
    pub(crate) fn seal(&mut self, encoder: &mut Encoder, namer: &mut Namer) -> (Vec<Run>, Vec<Change>) {
        self.entries.sort_unstable_by_key(|entry| (entry.slice, entry.place));
        let mut runs = Vec::new();
        for group in self.entries.chunk_by(|a, b| a.slice == b.slice) {
            let bodies = &self.bodies;
            let records = group.iter().map(|entry| (entry.place, &bodies[entry.start..entry.end]));
            let (summary, bytes) = encoder.encode(records);
            runs.push(Run { name: namer.next(summary.count, summary.least_offset), slice: group[0].slice, summary, bytes });
        }
        let changes = std::mem::take(&mut self.changes);
        self.clear();
        (runs, changes)
    }
}
