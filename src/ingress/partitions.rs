//! All assigned partitions of one ingress, and their next opening or flush.

use super::partition::AssignedPartition;
use crate::limit::INGRESS_BUFFER_BYTES_MAX;
use crate::model::Partition;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct Partitions(BTreeMap<Partition, AssignedPartition>);

impl Partitions {
    pub(super) fn assign(&mut self, id: Partition, partition: AssignedPartition) {
        self.0.insert(id, partition);
    }

    pub(super) fn revoke(&mut self, id: &Partition) {
        self.0.remove(id);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Partition, &AssignedPartition)> {
        self.0.iter()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut AssignedPartition> {
        self.0.values_mut()
    }

    pub(super) fn get(&self, id: &Partition) -> Option<&AssignedPartition> {
        self.0.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &Partition) -> Option<&mut AssignedPartition> {
        self.0.get_mut(id)
    }

    /// The partition, if its current reading has this epoch.
    pub(super) fn reading(&mut self, id: &Partition, epoch: u64) -> Option<&mut AssignedPartition> {
        self.get_mut(id)
            .filter(|partition| partition.is_reading_epoch(epoch))
    }

    /// The partitions whose shards must be opened now.
    pub(super) fn due_to_open(&self, now: Instant) -> Vec<Partition> {
        let is_due =
            |partition: &AssignedPartition| partition.open_at().is_some_and(|at| at <= now);
        let due = self.0.iter().filter(|(_, partition)| is_due(partition));
        due.map(|(id, _)| id.clone()).collect()
    }

    /// When the first partition must be opened or flushed. Ignores flushes while the appender has
    /// no room.
    pub(super) fn next_wake(&self, appender_has_room: bool) -> Option<Instant> {
        let times = self.0.values().filter_map(|partition| {
            let flush_at = partition.flush_at().filter(|_| appender_has_room);
            partition.open_at().or(flush_at)
        });
        times.min()
    }

    pub(super) fn any_flush_due(&self, now: Instant) -> bool {
        self.0.values().any(|partition| partition.is_flush_due(now))
    }

    /// Returns `true` while append results are outstanding.
    pub(super) fn await_appender(&self) -> bool {
        self.0.values().any(AssignedPartition::awaits_appender)
    }

    /// Why partitions are stopped, each reason once.
    pub(super) fn stop_reasons(&self) -> BTreeSet<&str> {
        let partitions = self.0.values();
        partitions
            .filter_map(|partition| partition.stop_reason())
            .collect()
    }

    /// Returns `true` if there is buffer memory to read more. If there is not, frees the buffers of
    /// empty batches. If that is not enough, makes all other batches flush at once and returns
    /// `false`.
    pub(super) fn has_buffer_room(&mut self) -> bool {
        if self.allocated_bytes() < INGRESS_BUFFER_BYTES_MAX {
            return true;
        }
        for partition in self.values_mut() {
            partition.free_empty_batch();
        }
        if self.allocated_bytes() < INGRESS_BUFFER_BYTES_MAX {
            return true;
        }
        for partition in self.values_mut() {
            if partition.has_batch() {
                partition.flush_within(Duration::ZERO);
            }
        }
        false
    }

    fn allocated_bytes(&self) -> usize {
        self.0
            .values()
            .map(AssignedPartition::allocated_bytes)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{APPEND_LINGER_MIN, BATCH_BYTES_MAX};
    use crate::model::{Body, Cursor, Offset, ShardId, Slice, Timestamp, Watermark};
    use crate::run::{FarTarget, RunBuilder, ThinHours};

    /// Partitions with one batch each, of the given size.
    fn partitions_with_batches(count: i32, bytes: usize, now: Instant) -> Partitions {
        let mut partitions = Partitions::default();
        let payload = vec![0; bytes];
        let due = Timestamp::MAX;
        for index in 0..count {
            let id = Partition::new("t", index);
            let shard = ShardId::new("r", id.clone());
            let mut partition = AssignedPartition::new("prod", shard, now);
            partition.start_reading(Watermark(0), 1);
            partition.record_read(Offset(0), now);
            let body = Body {
                payload: Some(&payload),
                ..Body::default()
            };
            let position = Cursor::new(due, Offset(0));
            partition.add_message(Slice::of(due, due), position, &body);
            partitions.assign(id, partition);
        }
        partitions
    }

    #[tokio::test(start_paused = true)]
    async fn buffers_of_empty_batches_are_freed_before_reading_stops() {
        let now = Instant::now();
        let mut partitions = partitions_with_batches(40, BATCH_BYTES_MAX / 2, now);
        assert!(!partitions.has_buffer_room(), "all buffers are in use");
        for (_, partition) in partitions.iter() {
            assert_eq!(partition.flush_at(), Some(now + APPEND_LINGER_MIN));
        }
        let far = FarTarget::at(Timestamp::from_millis(0), ThinHours::DEFAULT);
        for partition in partitions.values_mut() {
            partition.build_append(&mut RunBuilder::new(1), far);
        }
        assert!(partitions.allocated_bytes() > INGRESS_BUFFER_BYTES_MAX);
        assert!(partitions.has_buffer_room());
        assert!(partitions.allocated_bytes() < INGRESS_BUFFER_BYTES_MAX);
    }
}
