//! The source port of the memory cluster.

use super::partition_log::PartitionLog;
use super::{ClusterState, MemoryCluster};
use crate::broker::{Error, Event, OffsetCommit, PartitionInfo, RecordBatch, Source};
use crate::model::{Offset, Partition, Timestamp};
use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;
use std::collections::BTreeMap;

pub(crate) struct MemorySource {
    cluster: MemoryCluster,
    group: String,
    reading: BTreeMap<Partition, PartitionReader>,
    /// The partition that was read last. The next one in order is read next.
    last_read: Option<Partition>,
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
    pub(super) fn new(cluster: MemoryCluster, group: &str) -> Self {
        Self {
            cluster,
            group: group.to_owned(),
            reading: BTreeMap::new(),
            last_read: None,
        }
    }
}

fn next_event(source: &mut MemorySource, state: &mut ClusterState) -> Option<Result<Event, Error>> {
    if state.faults.down {
        return None;
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

    fn describe(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Result<PartitionInfo, Error>>, Error>> {
        let (cluster, partitions) = (self.cluster.clone(), partitions.to_vec());
        Box::pin(async move { cluster.update(|state| state.describe(&partitions)) })
    }

    fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Option<String>>, Error>> {
        let (cluster, group) = (self.cluster.clone(), self.group.clone());
        let partitions = partitions.to_vec();
        Box::pin(async move { cluster.committed(&group, &partitions).await })
    }

    fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> LocalBoxFuture<'static, Result<Vec<Offset>, Error>> {
        let (cluster, partitions) = (self.cluster.clone(), partitions.to_vec());
        Box::pin(async move { cluster.offsets_at(&partitions, time) })
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
        let (cluster, group) = (self.cluster.clone(), self.group.clone());
        Box::pin(async move {
            cluster.coordinator().await;
            cluster.update(|state| {
                state.check_available()?;
                state.groups.entry(group).or_default().commit_all(&commits)
            })
        })
    }

    async fn close(&mut self) {
        self.reading.clear();
    }
}
