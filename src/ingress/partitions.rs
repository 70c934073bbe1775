//! The assigned partitions, with indexes of what the loop must do next. So a turn of the loop costs
//! the same for one partition and for thousands.

use super::partition::AssignedPartition;
use super::quota::Waiting;
use crate::model::Partition;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct Partitions {
    all: BTreeMap<Partition, Indexed>,
    index: Index,
}

struct Indexed {
    partition: AssignedPartition,
    entry: Entry,
}

#[derive(Default)]
struct Index {
    opens: BTreeSet<(Instant, Partition)>,
    flushes: BTreeSet<(Instant, Partition)>,
    /// Bytes in the batches of all partitions.
    batch_bytes: usize,
    /// The waiting messages of all partitions.
    waiting: Waiting,
    /// Partitions whose records were stored before the store lost them.
    rebuilding: usize,
}

/// The index's knowledge of one partition.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Entry {
    open_at: Option<Instant>,
    flush_at: Option<Instant>,
    batch_bytes: usize,
    waiting: Waiting,
    is_rebuilding: bool,
}

/// A partition that is being changed. Dropping it updates the indexes.
pub(super) struct PartitionMut<'a> {
    indexed: &'a mut Indexed,
    index: &'a mut Index,
}

impl Deref for PartitionMut<'_> {
    type Target = AssignedPartition;

    fn deref(&self) -> &AssignedPartition {
        &self.indexed.partition
    }
}

impl DerefMut for PartitionMut<'_> {
    fn deref_mut(&mut self) -> &mut AssignedPartition {
        &mut self.indexed.partition
    }
}

impl Drop for PartitionMut<'_> {
    fn drop(&mut self) {
        let partition = &self.indexed.partition;
        let entry = Entry {
            open_at: partition.open_at,
            flush_at: partition.flush_at(),
            batch_bytes: partition.batch.allocated_bytes(),
            waiting: partition.waiting(),
            is_rebuilding: partition.is_rebuilding(),
        };
        self.index
            .replace(&partition.shard.partition, self.indexed.entry, entry);
        self.indexed.entry = entry;
    }
}

impl Index {
    fn replace(&mut self, id: &Partition, old: Entry, new: Entry) {
        replace_time(&mut self.opens, id, old.open_at, new.open_at);
        replace_time(&mut self.flushes, id, old.flush_at, new.flush_at);
        self.batch_bytes = self.batch_bytes - old.batch_bytes + new.batch_bytes;
        self.waiting = self.waiting.minus(old.waiting).plus(new.waiting);
        self.rebuilding =
            self.rebuilding - usize::from(old.is_rebuilding) + usize::from(new.is_rebuilding);
    }
}

fn replace_time(
    times: &mut BTreeSet<(Instant, Partition)>,
    id: &Partition,
    old: Option<Instant>,
    new: Option<Instant>,
) {
    if old == new {
        return;
    }
    if let Some(at) = old {
        times.remove(&(at, id.clone()));
    }
    if let Some(at) = new {
        times.insert((at, id.clone()));
    }
}

impl Partitions {
    pub(super) fn insert(&mut self, partition: AssignedPartition) {
        let id = partition.shard.partition.clone();
        self.remove(&id);
        let entry = Entry::default();
        let indexed = Indexed { partition, entry };
        self.all.insert(id.clone(), indexed);
        // Dropping the guard adds the partition to the indexes.
        drop(self.get_mut(&id));
    }

    pub(super) fn remove(&mut self, id: &Partition) {
        if let Some(removed) = self.all.remove(id) {
            self.index.replace(id, removed.entry, Entry::default());
        }
    }

    pub(super) fn get(&self, id: &Partition) -> Option<&AssignedPartition> {
        self.all.get(id).map(|indexed| &indexed.partition)
    }

    pub(super) fn get_mut(&mut self, id: &Partition) -> Option<PartitionMut<'_>> {
        let indexed = self.all.get_mut(id)?;
        let index = &mut self.index;
        Some(PartitionMut { indexed, index })
    }

    /// The partition, if this is its current reading.
    pub(super) fn reading(&mut self, id: &Partition, epoch: u64) -> Option<PartitionMut<'_>> {
        let partition = self.get_mut(id);
        partition.filter(|partition| partition.is_reading_epoch(epoch))
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &AssignedPartition> {
        self.all.values().map(|indexed| &indexed.partition)
    }

    fn for_each_mut(&mut self, mut change: impl FnMut(&mut AssignedPartition)) {
        let Self { all, index } = self;
        for indexed in all.values_mut() {
            change(&mut PartitionMut { indexed, index });
        }
    }

    pub(super) fn all_are_reading(&self) -> bool {
        self.index.opens.is_empty()
    }

    /// The time at which the next shard must be opened.
    pub(super) fn next_open_at(&self) -> Option<Instant> {
        self.index.opens.first().map(|(at, _)| *at)
    }

    /// The partitions whose shards must be opened now.
    pub(super) fn due_to_open(&self, now: Instant) -> Vec<Partition> {
        let opens = self.index.opens.iter();
        let due = opens.take_while(|(at, _)| *at <= now);
        due.map(|(_, id)| id.clone()).collect()
    }

    /// The time at which the next batch must be flushed.
    pub(super) fn next_flush_at(&self) -> Option<Instant> {
        self.index.flushes.first().map(|(at, _)| *at)
    }

    /// The partition whose batch must be flushed next, if it must until `until`.
    pub(super) fn next_to_flush(&mut self, until: Instant) -> Option<PartitionMut<'_>> {
        let (at, id) = self.index.flushes.first()?;
        let id = (*at <= until).then(|| id.clone())?;
        self.get_mut(&id)
    }

    /// The waiting messages of all partitions.
    pub(super) fn waiting(&self) -> Waiting {
        self.index.waiting
    }

    /// Returns `true` if one of the shards is paused, or waits for the record that resumes it.
    pub(super) fn are_paused(&self) -> bool {
        self.values().any(AssignedPartition::needs_reading)
    }

    /// Returns `true` if the records of a partition were stored before the store lost them.
    pub(super) fn are_rebuilding(&self) -> bool {
        self.index.rebuilding > 0
    }

    /// Memory of all batches.
    pub(super) fn batch_bytes(&self) -> usize {
        self.index.batch_bytes
    }

    /// Returns `true` if the batches take less than `bytes_max`, so that more may be read. If they do
    /// not, frees the buffers of empty batches. If that is not enough, makes all other batches flush
    /// at once.
    pub(super) fn has_buffer_room(&mut self, bytes_max: usize) -> bool {
        if self.index.batch_bytes < bytes_max {
            return true;
        }
        self.for_each_mut(|partition| partition.batch.free_if_empty());
        let has_room = self.index.batch_bytes < bytes_max;
        if !has_room {
            self.for_each_mut(|partition| {
                if partition.has_batch() {
                    partition.flush_within(Duration::ZERO);
                }
            });
        }
        has_room
    }

    /// Returns the partitions with records that no append covers yet.
    pub(super) fn with_batch(&self) -> Vec<Partition> {
        let with_batch = self.values().filter(|partition| partition.has_batch());
        with_batch
            .map(|partition| partition.shard.partition.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress::batch::AppendBatch;
    use crate::limit::{APPEND_LINGER_MIN, BATCH_BYTES_MAX};
    use crate::model::{Body, Cursor, Offset, ShardId, Slice, Timestamp, Watermark};
    use crate::run::{FarTarget, RunBuilder, ThinHours};
    use crate::store::Appended;
    use proptest::prelude::*;

    fn id(index: i32) -> Partition {
        Partition::new("t", index)
    }

    fn assigned(index: i32, now: Instant) -> AssignedPartition {
        AssignedPartition::new("prod", ShardId::new("r", id(index)), now)
    }

    fn far() -> FarTarget {
        FarTarget::at(Timestamp::from_millis(0), ThinHours::DEFAULT)
    }

    fn add_message(partition: &mut AssignedPartition, offset: u64, bytes: usize, now: Instant) {
        partition.record_read(Offset(offset), now);
        let payload = vec![0; bytes];
        let body = Body {
            payload: Some(&payload),
            ..Body::default()
        };
        let due = Timestamp::MAX;
        let position = Cursor::new(due, Offset(offset));
        partition.batch.add(Slice::of(due, due), position, &body);
    }

    /// Partitions with one batch each, of the given size.
    fn partitions_with_batches(count: i32, bytes: usize, now: Instant) -> Partitions {
        let mut partitions = Partitions::default();
        for index in 0..count {
            let mut partition = assigned(index, now);
            partition.start_reading(Watermark(0), 1);
            add_message(&mut partition, 0, bytes, now);
            partitions.insert(partition);
        }
        partitions
    }

    fn batch_bytes(partitions: &Partitions) -> usize {
        let batches = partitions.values().map(|partition| &partition.batch);
        batches.map(AppendBatch::allocated_bytes).sum()
    }

    #[tokio::test(start_paused = true)]
    async fn buffers_of_empty_batches_are_freed_before_reading_stops() {
        const BYTES_MAX: usize = 16 * BATCH_BYTES_MAX;
        let now = Instant::now();
        let mut partitions = partitions_with_batches(40, BATCH_BYTES_MAX / 2, now);
        assert!(
            !partitions.has_buffer_room(BYTES_MAX),
            "all buffers are in use"
        );
        for partition in partitions.values() {
            assert_eq!(partition.flush_at(), Some(now + APPEND_LINGER_MIN));
        }
        partitions.for_each_mut(|partition| {
            partition.build_append(&mut RunBuilder::plain(1), far());
        });
        assert!(batch_bytes(&partitions) > BYTES_MAX);
        assert!(partitions.has_buffer_room(BYTES_MAX));
        assert!(batch_bytes(&partitions) < BYTES_MAX);
    }

    /// What the indexes must say, from a pass over all partitions.
    fn check_indexes(partitions: &Partitions, until: Instant) {
        let all = || partitions.values();
        let flushes = all().filter_map(AssignedPartition::flush_at).min();
        assert_eq!(partitions.next_flush_at(), flushes);
        let opens = all().filter_map(|partition| partition.open_at).min();
        assert_eq!(partitions.next_open_at(), opens);
        let due = all().filter(|partition| partition.open_at.is_some_and(|at| at <= until));
        assert_eq!(partitions.due_to_open(until).len(), due.count());
        let all_are_reading = all().all(AssignedPartition::is_reading);
        assert_eq!(partitions.all_are_reading(), all_are_reading);
        assert_eq!(partitions.index.batch_bytes, batch_bytes(partitions));
        let waiting = all().map(AssignedPartition::waiting);
        let waiting = waiting.fold(Waiting::default(), Waiting::plus);
        assert_eq!(partitions.waiting(), waiting);
        let rebuilding = all().any(AssignedPartition::is_rebuilding);
        assert_eq!(partitions.are_rebuilding(), rebuilding);
    }

    proptest! {
        #[test]
        fn the_indexes_agree_with_a_pass_over_all_partitions(
            steps in prop::collection::vec((0..4_i32, 0..7_u8, 0..50_u64), 1..80),
        ) {
            let start = Instant::now();
            let mut partitions = Partitions::default();
            // Offsets rise, as in a log.
            for ((index, action, value), offset) in steps.into_iter().zip(0..) {
                let now = start + Duration::from_millis(value);
                if action == 0 {
                    partitions.insert(assigned(index, now));
                } else if action == 1 {
                    partitions.remove(&id(index));
                } else if let Some(mut partition) = partitions.get_mut(&id(index)) {
                    match action {
                        2 => partition.start_reading(Watermark(0), value),
                        3 => partition.stop_reading(now, None),
                        4 if partition.is_reading() => {
                            add_message(&mut partition, offset, 100, now);
                            partition.flush_within(Duration::from_millis(value));
                        }
                        5 => drop(partition.build_append(&mut RunBuilder::plain(1), far())),
                        _ => {
                            let offsets = Watermark(0)..Watermark(0);
                            partition.on_append_result(offsets, &Appended::Unknown);
                        }
                    }
                }
                check_indexes(&partitions, start + Duration::from_millis(25));
            }
        }
    }
}
