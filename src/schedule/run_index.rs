//! The known runs of a shard: which of them must be read again, and which can be deleted.

use crate::model::{Cursor, Offset, Progress, Slice, Timestamp};
use crate::run::{RunName, RunSummary};
use std::collections::{BTreeMap, BTreeSet};

/// The runs of one shard that a timer has read.
#[derive(Default)]
pub(crate) struct RunIndex {
    known: BTreeMap<RunName, KnownRun>,
    /// Runs that are only partly in memory, by the due time of the first message that is not.
    partial: BTreeSet<(Timestamp, RunName)>,
    /// May name runs that are not known any more.
    by_last_place: BTreeSet<(Cursor, RunName)>,
    /// Runs behind the delivered cursor that the delivered watermark may not cover yet.
    by_offset: BTreeSet<(Offset, RunName)>,
}

struct KnownRun {
    slice: Slice,
    greatest_offset: Offset,
    /// The due time of the first message that is not in memory.
    unloaded_from: Option<Timestamp>,
    /// Compaction replaced this run. It is still requested when its next message is due: after a
    /// rollback, the store may have this run again, and not the new one.
    is_replaced: bool,
}

impl RunIndex {
    /// Returns whether the run was read. If so, it need not be read again now.
    pub(crate) fn contains(&self, name: &RunName) -> bool {
        self.known.contains_key(name)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Adds a run that was read. Its messages from `unloaded_from` on are not in memory.
    pub(crate) fn insert(
        &mut self,
        name: &RunName,
        slice: Slice,
        summary: &RunSummary,
        unloaded_from: Option<Timestamp>,
    ) {
        self.remove(name);
        let known = KnownRun {
            slice,
            greatest_offset: summary.greatest_offset,
            unloaded_from: None,
            is_replaced: false,
        };
        self.known.insert(name.clone(), known);
        self.by_last_place.insert((summary.last, name.clone()));
        self.set_unloaded_from(name, unloaded_from);
    }

    fn remove(&mut self, name: &RunName) -> Option<KnownRun> {
        self.set_unloaded_from(name, None);
        self.known.remove(name)
    }

    /// Records that the messages of a run from this due time on are not in memory.
    pub(crate) fn set_unloaded_from(&mut self, name: &RunName, due: Option<Timestamp>) {
        if let Some(known) = self.known.get_mut(name) {
            if let Some(before) = std::mem::replace(&mut known.unloaded_from, due) {
                self.partial.remove(&(before, name.clone()));
            }
            self.partial.extend(due.map(|due| (due, name.clone())));
        }
    }

    /// Records that compaction replaced the run.
    pub(crate) fn mark_replaced(&mut self, name: &RunName) {
        if let Some(known) = self.known.get_mut(name) {
            known.is_replaced = true;
        }
    }

    /// Handles a run that is missing in the store. Removes it and returns `true` if it was
    /// replaced; otherwise the store lost it.
    pub(crate) fn remove_if_replaced(&mut self, name: &RunName) -> bool {
        let is_replaced = self.known.get(name).is_some_and(|known| known.is_replaced);
        is_replaced && self.remove(name).is_some()
    }

    /// The least due time of a message that is not in memory.
    pub(crate) fn first_unloaded_due(&self) -> Option<Timestamp> {
        self.partial.first().map(|(due, _)| *due)
    }

    /// A run to read again, because a message due by `until` is not in memory. Each is returned
    /// once.
    pub(crate) fn pop_partial(&mut self, until: Timestamp) -> Option<(Timestamp, Slice, RunName)> {
        self.first_unloaded_due().filter(|due| *due <= until)?;
        let (due, name) = self.partial.pop_first()?;
        let known = self.known.get_mut(&name)?;
        known.unloaded_from = None;
        Some((due, known.slice, name))
    }

    /// Removes the runs that `delivered` covers completely, at most `limit`. The caller must delete
    /// them from the store.
    pub(crate) fn remove_deletable(
        &mut self,
        delivered: Progress,
        limit: usize,
    ) -> Vec<(Slice, RunName)> {
        while let Some((last, _)) = self.by_last_place.first()
            && *last <= delivered.cursor
            && let Some((_, name)) = self.by_last_place.pop_first()
        {
            if let Some(known) = self.known.get(&name) {
                self.by_offset.insert((known.greatest_offset, name));
            }
        }
        let mut deletable = Vec::new();
        while deletable.len() < limit
            && let Some((offset, _)) = self.by_offset.first()
            && delivered.watermark.covers(*offset)
            && let Some((_, name)) = self.by_offset.pop_first()
        {
            if let Some(known) = self.remove(&name) {
                deletable.push((known.slice, name));
            }
        }
        deletable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Watermark;

    fn due(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn place(millis: i64, offset: u64) -> Cursor {
        Cursor::new(due(millis), Offset(offset))
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
        Slice::of(due(1), due(0))
    }

    #[test]
    fn a_run_is_deletable_only_when_cursor_and_watermark_have_passed_it() {
        let (mut index, name) = (RunIndex::default(), RunName::new("a"));
        index.insert(&name, slice(), &summary(place(9, 3), 8), None);
        let at = |due, offset, w| Progress::new(place(due, offset), Watermark(w));
        assert!(index.remove_deletable(at(9, 2, 100), 10).is_empty());
        assert!(index.remove_deletable(at(9, 3, 8), 10).is_empty());
        assert_eq!(
            index.remove_deletable(at(9, 3, 9), 10),
            [(slice(), name.clone())]
        );
        assert!(!index.contains(&name));
        assert!(index.remove_deletable(at(99, 3, 99), 10).is_empty());
    }

    #[test]
    fn a_partial_run_is_returned_once_and_again_after_it_was_cut_again() {
        let (mut index, name) = (RunIndex::default(), RunName::new("a"));
        index.insert(&name, slice(), &summary(place(9, 3), 8), Some(due(5)));
        assert_eq!(index.pop_partial(due(4)), None);
        assert_eq!(
            index.pop_partial(due(5)),
            Some((due(5), slice(), name.clone()))
        );
        assert_eq!(index.pop_partial(due(50)), None);
        index.set_unloaded_from(&name, Some(due(7)));
        index.set_unloaded_from(&name, Some(due(6)));
        assert_eq!(index.pop_partial(due(50)), Some((due(6), slice(), name)));
        assert_eq!(index.pop_partial(due(50)), None);
    }
}
