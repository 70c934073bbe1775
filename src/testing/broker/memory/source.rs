//! The source port of the memory cluster.

use super::partition_log::PartitionLog;
use super::{ClusterState, MemoryCluster};
use crate::broker::{Error, Event, OffsetCommit, PartitionInfo, RecordBatch, Source};
use crate::model::{Offset, Partition, Timestamp};
use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;
use std::collections::{BTreeMap, BTreeSet};

/// A member of a consumer group.
pub(crate) struct MemorySource {
    cluster: MemoryCluster,
    group: String,
    topics: Vec<String>,
    id: u64,
    reading: BTreeMap<Partition, PartitionReader>,
    /// The partition that was read last. The next one in order is read next.
    last_read: Option<Partition>,
    /// Missing topics that were reported.
    reported_missing: BTreeSet<String>,
}

struct PartitionReader {
    epoch: u64,
    next: u64,
    /// `None`: the topic did not exist when reading started.
    incarnation: Option<u64>,
    end_reported: bool,
    error_reported: bool,
    out_of_range: bool,
    /// The generation of the consumer that reads.
    consumer_generation: u64,
}

impl MemorySource {
    pub(super) fn join(cluster: MemoryCluster, group: &str, topics: &[String]) -> Self {
        let id = cluster.update(|state| {
            let id = state.next_number();
            state
                .groups
                .entry(group.to_owned())
                .or_default()
                .join(id, topics);
            state.rebalance();
            id
        });
        let group = group.to_owned();
        Self {
            cluster,
            group,
            topics: topics.to_vec(),
            id,
            reading: BTreeMap::new(),
            last_read: None,
            reported_missing: BTreeSet::new(),
        }
    }

    fn leave_group(&mut self, alive: bool) {
        self.cluster.update(|state| {
            let held = state.faults.keep_dead_members && !alive;
            if let Some(group) = state.groups.get_mut(&self.group) {
                if held {
                    group.mark_dead(self.id);
                } else {
                    group.leave(self.id);
                }
            }
            state.rebalance();
        });
    }
}

/// The next event. Group events come first.
fn next_event(source: &mut MemorySource, state: &mut ClusterState) -> Option<Result<Event, Error>> {
    if state.faults.down {
        return None;
    }
    if let Some(event) = state.groups.get_mut(&source.group)?.next_event(source.id) {
        if let Event::Revoked(partitions) = &event {
            source
                .reading
                .retain(|partition, _| !partitions.contains(partition));
        }
        return Some(Ok(event));
    }
    source
        .reported_missing
        .retain(|topic| state.topic(topic).is_none());
    if let Some(missing) = source
        .topics
        .iter()
        .find(|topic| state.topic(topic).is_none() && !source.reported_missing.contains(*topic))
    {
        source.reported_missing.insert(missing.clone());
        return Some(Err(Error::Rejected(format!(
            "the topic `{missing}` does not exist"
        ))));
    }
    let after = source.last_read.iter().flat_map(|last| {
        source
            .reading
            .keys()
            .filter(move |partition| *partition > last)
    });
    let turns: Vec<Partition> = after.chain(source.reading.keys()).cloned().collect();
    let MemorySource {
        reading,
        last_read: last,
        ..
    } = source;
    turns.into_iter().find_map(|partition| {
        let event = read_partition(&partition, reading.get_mut(&partition)?, state)?;
        *last = Some(partition);
        Some(Ok(event))
    })
}

fn read_partition(
    partition: &Partition,
    reading: &mut PartitionReader,
    state: &mut ClusterState,
) -> Option<Event> {
    if state.faults.leaderless.contains(partition) {
        reading.end_reported = false;
        return (!std::mem::replace(&mut reading.error_reported, true)).then(|| {
            Event::Unreadable {
                partition: partition.clone(),
                epoch: reading.epoch,
                reason: format!("{partition} cannot be read: the partition has no leader"),
            }
        });
    }
    reading.error_reported = false;
    let incarnation = state.topic(&partition.topic).map(|topic| topic.incarnation);
    let (batch_max, generation) = (state.faults.batch_max, state.consumer_generation);
    let log = state.log(partition)?;
    if reading.out_of_range {
        return None;
    }
    if incarnation != reading.incarnation || !(log.first()..=log.end()).contains(&reading.next) {
        reading.out_of_range = true;
        return Some(Event::OutOfRange {
            partition: partition.clone(),
            epoch: reading.epoch,
        });
    }
    if reading.consumer_generation != generation {
        // A client may lose its consumer before the consumer has returned a record.
        (reading.consumer_generation, reading.next) = (generation, log.first());
    }
    if let Some(batch) = read_batch(partition, reading, log, batch_max) {
        reading.end_reported = false;
        return Some(Event::Records(batch));
    }
    let end = log.last_stable_offset();
    if reading.next < end || !reading.end_reported {
        (reading.next, reading.end_reported) = (end.max(reading.next), true);
        return Some(Event::EndReached {
            partition: partition.clone(),
            epoch: reading.epoch,
            at: Offset(reading.next),
        });
    }
    None
}

fn read_batch(
    partition: &Partition,
    reading: &mut PartitionReader,
    log: &PartitionLog,
    records_max: usize,
) -> Option<RecordBatch> {
    let mut batch = RecordBatch::new(partition.clone(), reading.epoch);
    for (offset, stored) in log.committed_from(reading.next).take(records_max) {
        batch.push(
            Offset(offset),
            stored.timestamp,
            stored.key.as_deref(),
            stored.payload.as_deref(),
            stored.headers().iter(),
        );
        reading.next = offset + 1;
    }
    (batch.len() > 0).then_some(batch)
}

#[async_trait(?Send)]
impl Source for MemorySource {
    /// Safe to drop: an event leaves only with the return value.
    async fn next_event(&mut self) -> Result<Event, Error> {
        let cluster = self.cluster.clone();
        cluster.wait_for(|state| next_event(self, state)).await
    }

    async fn describe(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Result<PartitionInfo, Error>>, Error> {
        self.cluster.update(|state| state.describe(partitions))
    }

    async fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.cluster.committed(&self.group, partitions)
    }

    async fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> Result<Vec<Offset>, Error> {
        self.cluster.offsets_at(partitions, time)
    }

    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64) {
        let (incarnation, generation) = {
            let state = self.cluster.state();
            (
                state.topic(&partition.topic).map(|topic| topic.incarnation),
                state.consumer_generation,
            )
        };
        let reading = PartitionReader {
            epoch,
            next: from.0,
            incarnation,
            end_reported: false,
            error_reported: false,
            out_of_range: false,
            consumer_generation: generation,
        };
        self.reading.insert(partition.clone(), reading);
    }

    fn stop(&mut self, partition: &Partition) {
        self.reading.remove(partition);
    }

    fn known_end(&self, partition: &Partition) -> Option<Offset> {
        self.cluster
            .update(|state| state.log(partition).map(|log| Offset(log.end())))
    }

    fn commit(&mut self, commits: Vec<OffsetCommit>) -> LocalBoxFuture<'static, Result<(), Error>> {
        let (cluster, group, id) = (self.cluster.clone(), self.group.clone(), self.id);
        Box::pin(async move {
            cluster.update(|state| {
                state.check_available()?;
                let (guarded, free): (Vec<_>, Vec<_>) = commits.into_iter().partition(|commit| {
                    let topic = state.topic(&commit.partition.topic);
                    topic.is_none_or(|topic| !topic.is_stream)
                });
                let group = state.groups.entry(group).or_default();
                group.commit_unchecked(&free);
                if group.commit_all(id, &guarded) {
                    Ok(())
                } else {
                    Err(Error::Unavailable("the group has rebalanced".into()))
                }
            })
        })
    }

    async fn close(&mut self) {
        self.leave_group(true);
    }
}

impl Drop for MemorySource {
    fn drop(&mut self) {
        self.leave_group(false);
    }
}
