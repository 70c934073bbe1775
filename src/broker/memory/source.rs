//! The source port on the cluster of memory.

use super::log::Log;
use super::{MemoryCluster, State};
use crate::broker::{Batch, Commit, Described, Error, Event, Source};
use crate::model::{Identity, Offset, Partition};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};

/// A member of a group.
pub(crate) struct MemorySource {
    cluster: MemoryCluster,
    group: String,
    topics: Vec<String>,
    id: u64,
    reading: BTreeMap<Partition, Reading>,
    /// Who was read last: the next in order has its turn.
    last: Option<Partition>,
    /// Missing topics that were told of.
    missed: BTreeSet<String>,
}

struct Reading {
    epoch: u64,
    next: u64,
    /// `None`: read from a topic that did not exist.
    incarnation: Option<u64>,
    ended: bool,
    out_of_range: bool,
    /// Of the consumer that reads.
    make: u64,
}

impl MemorySource {
    pub(super) fn join(cluster: MemoryCluster, group: &str, topics: &[String]) -> Self {
        let id = cluster.change(|state| {
            let id = state.count();
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
            last: None,
            missed: BTreeSet::new(),
        }
    }

    fn leave(&mut self, alive: bool) {
        self.cluster.change(|state| {
            let held = state.faults.hold_dead && !alive;
            if let Some(group) = state.groups.get_mut(&self.group) {
                if held {
                    group.die(self.id)
                } else {
                    group.leave(self.id)
                }
            }
            state.rebalance();
        });
    }
}

/// What comes next; what the group did comes first.
fn look(source: &mut MemorySource, state: &mut State) -> Option<Result<Event, Error>> {
    if state.faults.down {
        return None;
    }
    if let Some(event) = state.groups.get_mut(&source.group)?.told(source.id) {
        if let Event::Lost(partitions) = &event {
            source
                .reading
                .retain(|partition, _| !partitions.contains(partition));
        }
        return Some(Ok(event));
    }
    source.missed.retain(|topic| state.topic(topic).is_none());
    if let Some(missing) = source
        .topics
        .iter()
        .find(|topic| state.topic(topic).is_none() && !source.missed.contains(*topic))
    {
        source.missed.insert(missing.clone());
        return Some(Err(Error::Refused(format!(
            "the topic `{missing}` does not exist"
        ))));
    }
    let after = source.last.iter().flat_map(|last| {
        source
            .reading
            .keys()
            .filter(move |partition| *partition > last)
    });
    let turns: Vec<Partition> = after.chain(source.reading.keys()).cloned().collect();
    let MemorySource { reading, last, .. } = source;
    turns.into_iter().find_map(|partition| {
        let event = read(&partition, reading.get_mut(&partition)?, state)?;
        *last = Some(partition);
        Some(Ok(event))
    })
}

fn read(partition: &Partition, reading: &mut Reading, state: &mut State) -> Option<Event> {
    let incarnation = state.topic(&partition.topic).map(|topic| topic.incarnation);
    let (batch_max, make) = (state.faults.batch_max, state.make);
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
    if reading.make != make {
        // As a client may that loses its consumer before that has brought anything.
        (reading.make, reading.next) = (make, log.first());
    }
    if let Some(batch) = batch(partition, reading, log, batch_max) {
        reading.ended = false;
        return Some(Event::Records(batch));
    }
    let end = log.stable_end();
    if reading.next < end || !reading.ended {
        (reading.next, reading.ended) = (end.max(reading.next), true);
        return Some(Event::End {
            partition: partition.clone(),
            epoch: reading.epoch,
            at: Offset(reading.next),
        });
    }
    None
}

fn batch(
    partition: &Partition,
    reading: &mut Reading,
    log: &Log,
    records_max: usize,
) -> Option<Batch> {
    let mut batch = Batch::new(partition.clone(), reading.epoch);
    for (offset, stored) in log.from(reading.next).take(records_max) {
        batch.push(
            (Offset(offset), stored.timestamp),
            stored.key.as_deref(),
            stored.payload.as_deref(),
            stored.headers(),
        );
        reading.next = offset + 1;
    }
    (batch.len() > 0).then_some(batch)
}

#[async_trait(?Send)]
impl Source for MemorySource {
    /// Dropping it loses nothing: what it answers is taken only with the answer.
    async fn next(&mut self) -> Result<Event, Error> {
        let cluster = self.cluster.clone();
        cluster.wait(|state| look(self, state)).await
    }

    async fn describe(&mut self, partitions: &[Partition]) -> Result<Vec<Described>, Error> {
        self.cluster.change(|state| {
            state.answers()?;
            let describe = |partition: &Partition| {
                let missing =
                    || Error::Refused(format!("the partition {partition} does not exist"));
                let incarnation = state
                    .topic(&partition.topic)
                    .ok_or_else(missing)?
                    .incarnation;
                let log = state.log(partition).ok_or_else(missing)?;
                let identity = Some(Identity(format!("incarnation-{incarnation}").into()));
                Ok(Described {
                    identity,
                    first: Offset(log.first()),
                    end: Offset(log.end()),
                })
            };
            partitions.iter().map(describe).collect()
        })
    }

    async fn committed(&mut self, partitions: &[Partition]) -> Result<Vec<Option<String>>, Error> {
        self.cluster.committed(&self.group, partitions)
    }

    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64) {
        let (incarnation, make) = {
            let state = self.cluster.state();
            (
                state.topic(&partition.topic).map(|topic| topic.incarnation),
                state.make,
            )
        };
        let reading = Reading {
            epoch,
            next: from.0,
            incarnation,
            ended: false,
            out_of_range: false,
            make,
        };
        self.reading.insert(partition.clone(), reading);
    }

    fn stop(&mut self, partition: &Partition) {
        self.reading.remove(partition);
    }

    fn end(&self, partition: &Partition) -> Option<Offset> {
        self.cluster
            .change(|state| state.log(partition).map(|log| Offset(log.end())))
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<(), Error> {
        self.cluster.change(|state| {
            state.answers()?;
            let (guarded, free): (Vec<_>, Vec<_>) = commits.iter().cloned().partition(|commit| {
                state
                    .topic(&commit.partition.topic)
                    .is_none_or(|topic| !topic.is_stream)
            });
            let group = state.groups.entry(self.group.clone()).or_default();
            group.put(&free);
            if group.commit_all(self.id, &guarded) {
                Ok(())
            } else {
                Err(Error::Unavailable("the group has rebalanced".into()))
            }
        })
    }

    async fn close(&mut self) {
        self.leave(true);
    }
}

impl Drop for MemorySource {
    fn drop(&mut self) {
        self.leave(false);
    }
}
