//! The runs of a shard that a timer knows by name: which of them it has to read again, and which it may delete.

use crate::model::{Cursor, Offset, Progress, Slice, Timestamp};
use crate::run::{RunName, RunSummary};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// See the module's page.
#[derive(Default)]
pub(crate) struct RunIndex {
    known: BTreeMap<RunName, KnownRun>,
    /// Runs in memory only up to some due, by the due of the first message that is not.
    partial: BinaryHeap<Reverse<(Timestamp, RunName)>>,
    by_last_place: BinaryHeap<Reverse<(Cursor, RunName)>>,
    /// Runs that lie behind the cursor, but not before the watermark yet.
    by_offset: BinaryHeap<Reverse<(Offset, RunName)>>,
}

struct KnownRun {
    slice: Slice,
    greatest_offset: Offset,
    /// The due of the first message that is not in memory.
    unloaded_from: Option<Timestamp>,
    /// Another run was put in its place. It is asked for all the same when its next message is due: a store that went back may have it again,
    /// and the other not.
    is_replaced: bool,
}

impl RunIndex {
    /// Whether nothing of the run needs to be read now.
    pub(crate) fn contains(&self, name: &RunName) -> bool {
        self.known.contains_key(name)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// A run was read; its messages from `stub` on were left in the store.
    pub(crate) fn insert(
        &mut self,
        name: &RunName,
        slice: Slice,
        summary: &RunSummary,
        stub: Option<Timestamp>,
    ) {
        let known = KnownRun {
            slice,
            greatest_offset: summary.greatest_offset,
            unloaded_from: stub,
            is_replaced: false,
        };
        if self.known.insert(name.clone(), known).is_none() {
            self.by_last_place
                .push(Reverse((summary.last, name.clone())));
        }
        self.push_partial(name, stub);
    }

    /// A run in memory was cut short at `stub`.
    pub(crate) fn mark_unloaded_from(&mut self, name: &RunName, stub: Timestamp) {
        if let Some(known) = self.known.get_mut(name) {
            known.unloaded_from = Some(stub);
            self.push_partial(name, Some(stub));
        }
    }

    /// Another run was put in its place, with what is still to come of it.
    pub(crate) fn mark_replaced(&mut self, name: &RunName) {
        if let Some(known) = self.known.get_mut(name) {
            known.is_replaced = true;
        }
    }

    /// A run is not in the store. Answers whether another was put in its place: then it is forgotten, and that is all.
    pub(crate) fn remove_if_replaced(&mut self, name: &RunName) -> bool {
        let is_replaced = self.known.get(name).is_some_and(|known| known.is_replaced);
        if is_replaced {
            self.known.remove(name);
        }
        is_replaced
    }

    fn push_partial(&mut self, name: &RunName, stub: Option<Timestamp>) {
        if let Some(due) = stub {
            self.partial.push(Reverse((due, name.clone())));
        }
    }

    /// The least due that is known but not in memory.
    pub(crate) fn first_unloaded_due(&mut self) -> Option<Timestamp> {
        while let Some(Reverse((due, name))) = self.partial.peek() {
            if self
                .known
                .get(name)
                .is_some_and(|known| known.unloaded_from == Some(*due))
            {
                return Some(*due);
            }
            self.partial.pop();
        }
        None
    }

    /// A run to read again, for it has messages due up to `until` that are not in memory. It is told once.
    pub(crate) fn pop_partial(&mut self, until: Timestamp) -> Option<(Timestamp, Slice, RunName)> {
        self.first_unloaded_due().filter(|due| *due <= until)?;
        let Reverse((due, name)) = self.partial.pop()?;
        let known = self.known.get_mut(&name)?;
        known.unloaded_from = None;
        Some((due, known.slice, name))
    }

    /// The runs wholly inside `delivered`, at most `limit`; they are forgotten here, so the caller must see them deleted.
    pub(crate) fn remove_deletable(
        &mut self,
        delivered: Progress,
        limit: usize,
    ) -> Vec<(Slice, RunName)> {
        while let Some(head) = self.by_last_place.peek()
            && head.0.0 <= delivered.cursor
        {
            let Some(Reverse((_, name))) = self.by_last_place.pop() else {
                break;
            };
            if let Some(known) = self.known.get(&name) {
                self.by_offset.push(Reverse((known.greatest_offset, name)));
            }
        }
        let mut finished = Vec::new();
        while finished.len() < limit
            && let Some(head) = self.by_offset.peek()
            && delivered.watermark.covers(head.0.0)
        {
            let Some(Reverse((_, name))) = self.by_offset.pop() else {
                break;
            };
            if let Some(known) = self.known.remove(&name) {
                finished.push((known.slice, name));
            }
        }
        finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Watermark;

    fn place(due: i64, offset: u64) -> Cursor {
        Cursor::new(Timestamp::from_millis(due), Offset(offset))
    }

    fn summary(last: Cursor, greatest: u64) -> RunSummary {
        RunSummary {
            count: 2,
            first: place(1, 1),
            last,
            least_offset: Offset(1),
            greatest_offset: Offset(greatest),
        }
    }

    fn slice() -> Slice {
        Slice::of(Timestamp::from_millis(1), Timestamp::from_millis(0))
    }

    #[test]
    fn a_run_is_deleted_only_when_cursor_and_watermark_are_past_it() {
        let (mut inventory, name) = (RunIndex::default(), RunName::new("a"));
        inventory.insert(&name, slice(), &summary(place(9, 3), 8), None);
        let at = |due, offset, w| Progress::new(place(due, offset), Watermark(w));
        assert!(inventory.remove_deletable(at(9, 2, 100), 10).is_empty());
        assert!(inventory.remove_deletable(at(9, 3, 8), 10).is_empty());
        assert_eq!(
            inventory.remove_deletable(at(9, 3, 9), 10),
            [(slice(), name.clone())]
        );
        assert!(!inventory.contains(&name));
        assert!(inventory.remove_deletable(at(99, 3, 99), 10).is_empty());
    }

    #[test]
    fn a_stub_is_told_once_and_again_when_it_was_cut_again() {
        let (mut inventory, name) = (RunIndex::default(), RunName::new("a"));
        inventory.insert(
            &name,
            slice(),
            &summary(place(9, 3), 8),
            Some(Timestamp::from_millis(5)),
        );
        assert_eq!(inventory.pop_partial(Timestamp::from_millis(4)), None);
        assert_eq!(
            inventory.pop_partial(Timestamp::from_millis(5)),
            Some((Timestamp::from_millis(5), slice(), name.clone()))
        );
        assert_eq!(inventory.pop_partial(Timestamp::from_millis(50)), None);
        inventory.mark_unloaded_from(&name, Timestamp::from_millis(7));
        inventory.mark_unloaded_from(&name, Timestamp::from_millis(6));
        assert_eq!(
            inventory.pop_partial(Timestamp::from_millis(50)),
            Some((Timestamp::from_millis(6), slice(), name))
        );
        assert_eq!(inventory.pop_partial(Timestamp::from_millis(50)), None);
    }
}
