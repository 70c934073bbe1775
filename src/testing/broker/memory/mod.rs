//! A Kafka of memory for the simulation and for tests: both ports and the catalog on one shared cluster, deterministic, with faults to
//! switch on. It has no threads, no timers and no randomness: whatever happens, happens inside a call. In `stream`: what it takes for it to
//! stand for NATS.
//!
//! A dropped [`MemorySource`] or [`MemoryTarget`] is a process that died: its partitions go to others, what it had not sent is gone, and
//! what the network already has arrives all the same.

mod consumer_group;
mod nats_semantics;
mod partition_log;
mod source;
mod target;
mod transactions;

pub(crate) use source::MemorySource;
pub(crate) use target::MemoryTarget;
pub(crate) use transactions::MemoryTransactors;

use crate::broker::{Catalog, DeliveryFailure, Error};
use crate::clock::Clock;
use crate::model::header::Header;
use crate::model::{Offset, Partition, Timestamp};
use async_trait::async_trait;
use consumer_group::Group;
use nats_semantics::DedupWindow;
use partition_log::{LogRecord, PartitionLog};
use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use target::ProducerState;
use tokio::sync::Notify;
use transactions::Transactions;

/// A handle on the cluster; clones are the same cluster.
#[derive(Clone)]
pub(crate) struct MemoryCluster {
    state: Rc<RefCell<ClusterState>>,
    /// Told of every change; whoever waits looks again.
    changed: Rc<Notify>,
}

struct ClusterState {
    clock: Rc<dyn Clock>,
    topics: BTreeMap<Arc<str>, Topic>,
    groups: BTreeMap<String, Group>,
    producers: BTreeMap<u64, ProducerState>,
    transactions: Transactions,
    /// How often the consumers of streams were made.
    consumer_generation: u64,
    /// Names members, targets and the incarnations of topics.
    counter: u64,
    faults: ClusterFaults,
}

/// What is switched on.
struct ClusterFaults {
    down: bool,
    hold_sends: bool,
    hold_reports: bool,
    keep_dead_members: bool,
    producers_failed: bool,
    /// So many sends to come are reported as unknown; whether they arrive.
    unknown_outcomes: Vec<bool>,
    /// Records of one batch that a source hands out.
    batch_max: usize,
}

struct Topic {
    incarnation: u64,
    partitions: Vec<PartitionLog>,
    /// Bytes of key, payload and headers.
    record_size_max: Option<usize>,
    refusal: Option<DeliveryFailure>,
    /// Where the next record without a key goes.
    next_without_key: usize,
    /// Its partitions are filter subjects of one stream.
    is_stream: bool,
    dedup_window: Option<DedupWindow>,
}

/// A record as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredRecord {
    pub(crate) partition: i32,
    pub(crate) offset: Offset,
    pub(crate) at: Timestamp,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Whose clients, what there is, and what a person does to it.
impl MemoryCluster {
    pub(crate) fn new(clock: Rc<dyn Clock>) -> Self {
        let faults = ClusterFaults {
            down: false,
            hold_sends: false,
            hold_reports: false,
            keep_dead_members: false,
            producers_failed: false,
            unknown_outcomes: Vec::new(),
            batch_max: 500,
        };
        let state = ClusterState {
            clock,
            topics: BTreeMap::new(),
            groups: BTreeMap::new(),
            producers: BTreeMap::new(),
            transactions: Transactions::default(),
            consumer_generation: 0,
            counter: 0,
            faults,
        };
        Self {
            state: Rc::new(RefCell::new(state)),
            changed: Rc::default(),
        }
    }

    pub(crate) fn source(&self, group: &str, topics: &[String]) -> MemorySource {
        MemorySource::join(self.clone(), group, topics)
    }

    pub(crate) fn target(&self, in_flight_max: usize) -> MemoryTarget {
        MemoryTarget::open(self.clone(), in_flight_max)
    }

    pub(crate) fn transactors(&self) -> MemoryTransactors {
        MemoryTransactors::new(self.clone())
    }

    pub(crate) fn catalog(&self) -> MemoryCatalog {
        MemoryCatalog(self.clone())
    }

    pub(crate) fn create_topic(&self, name: &str, partitions: i32) {
        self.update(|state| {
            let incarnation = state.next_number();
            let partitions = (0..partitions).map(|_| PartitionLog::default()).collect();
            let topic = Topic {
                incarnation,
                partitions,
                record_size_max: None,
                refusal: None,
                next_without_key: 0,
                is_stream: false,
                dedup_window: None,
            };
            state.topics.insert(name.into(), topic);
            state.rebalance();
        });
    }

    pub(crate) fn delete_topic(&self, name: &str) {
        self.update(|state| {
            state.forget_commits(name);
            state.topics.remove(name);
            state.rebalance();
        });
    }

    /// Deletes a topic and makes it again, empty, so quickly that no group notices.
    pub(crate) fn recreate_topic(&self, name: &str) {
        self.update(|state| {
            state.forget_commits(name);
            let incarnation = state.next_number();
            let topic = state.topics.get_mut(name).expect("a topic that exists");
            topic.incarnation = incarnation;
            topic.clear();
        });
    }

    /// Raises a topic to so many partitions in all.
    pub(crate) fn add_partitions(&self, name: &str, total: i32) {
        self.update(|state| {
            let topic = state.topics.get_mut(name).expect("a topic that exists");
            topic.partitions.resize_with(
                usize::try_from(total).expect("not negative"),
                PartitionLog::default,
            );
            state.rebalance();
        });
    }

    /// Retention: removes what lies before `first`; of a stream, whatever the subject.
    pub(crate) fn trim_to(&self, partition: &Partition, first: Offset) {
        self.update(|state| {
            let topic = state
                .topics
                .get_mut(&partition.topic)
                .expect("a topic that exists");
            let (is_stream, index) = (
                topic.is_stream,
                usize::try_from(partition.index).expect("not negative"),
            );
            let trimmed = topic
                .partitions
                .iter_mut()
                .enumerate()
                .filter(|(at, _)| is_stream || *at == index);
            trimmed.for_each(|(_, log)| log.trim(first.0));
        });
    }

    /// Leaves out so many offsets, as compaction or an aborted transaction does.
    pub(crate) fn skip_offsets(&self, partition: &Partition, count: u64) {
        self.update(|state| {
            state
                .log(partition)
                .expect("a partition that exists")
                .skip(count);
            state
                .topics
                .get_mut(&partition.topic)
                .expect("a topic that exists")
                .align_ends();
        });
    }

    /// Writes a record as some producer would, with its own timestamp.
    pub(crate) fn produce<'h>(
        &self,
        partition: &Partition,
        timestamp: Option<Timestamp>,
        (key, payload): (Option<&[u8]>, Option<&[u8]>),
        headers: impl IntoIterator<Item = Header<'h>>,
    ) -> Offset {
        self.update(|state| {
            let stored = LogRecord::new(state.clock.now(), timestamp, (key, payload), headers);
            state
                .append(partition, stored)
                .expect("a partition that exists")
        })
    }

    /// Writes a record in a transaction that is aborted.
    pub(crate) fn produce_aborted(&self, partition: &Partition, payload: &[u8]) {
        self.update(|state| {
            let (stored, writer) = (
                LogRecord::new(state.clock.now(), None, (None, Some(payload)), []),
                state.next_number(),
            );
            let log = state.log(partition).expect("a partition that exists");
            log.append_in_transaction(stored, writer);
            log.end_transaction(writer, false);
        });
    }

    /// All that a topic holds for a reader of what is committed, by partition and offset.
    pub(crate) fn records(&self, topic: &str) -> Vec<StoredRecord> {
        let state = self.state();
        let logs = state
            .topics
            .get(topic)
            .map(|topic| topic.partitions.as_slice())
            .unwrap_or_default();
        logs.iter()
            .zip(0..)
            .flat_map(|(log, index)| log.committed_records(index))
            .collect()
    }

    /// What the group committed for a partition: offset and metadata.
    pub(crate) fn committed_offset(
        &self,
        group: &str,
        partition: &Partition,
    ) -> Option<(Offset, String)> {
        self.state().groups.get(group)?.commit(partition).cloned()
    }
}

/// Faults.
impl MemoryCluster {
    /// No broker answers: questions fail, reading pauses, and what is sent waits in its client.
    pub(crate) fn set_down(&self, down: bool) {
        self.update(|state| {
            state.faults.down = down;
            state.deliver();
        });
    }

    /// Refuses every record for a topic (`None`: no more).
    pub(crate) fn refuse_records(&self, topic: &str, failure: Option<DeliveryFailure>) {
        self.update(|state| {
            state
                .topics
                .get_mut(topic)
                .expect("a topic that exists")
                .refusal = failure
        });
    }

    /// Bytes of key, payload and headers beyond which a topic refuses a record.
    pub(crate) fn limit_record_size(&self, topic: &str, bytes: Option<usize>) {
        self.update(|state| {
            state
                .topics
                .get_mut(topic)
                .expect("a topic that exists")
                .record_size_max = bytes
        });
    }

    /// Holds what is sent in the network; let go, it arrives, even if its sender died meanwhile.
    pub(crate) fn hold_sends(&self, hold: bool) {
        self.update(|state| {
            state.faults.hold_sends = hold;
            state.deliver();
        });
    }

    /// Loses what the network holds of senders that died.
    pub(crate) fn drop_sends_of_dead_producers(&self) {
        self.update(|state| {
            state.producers.retain(|_, outbox| !outbox.is_dead());
            state.transactions.drop_dead_producers();
        });
    }

    /// Holds reports back, though their records arrive.
    pub(crate) fn hold_reports(&self, hold: bool) {
        self.update(|state| {
            state.faults.hold_reports = hold;
            state.deliver();
        });
    }

    /// Lets so many held reports of each target go.
    pub(crate) fn release_reports(&self, count: usize) {
        self.update(|state| {
            state
                .producers
                .values_mut()
                .for_each(|outbox| outbox.release_reports(count))
        });
    }

    /// The next `count` sends are reported as of unknown outcome; `arrive`: though they arrived.
    pub(crate) fn lose_reports(&self, count: usize, arrive: bool) {
        self.update(|state| {
            state
                .faults
                .unknown_outcomes
                .extend(std::iter::repeat_n(arrive, count))
        });
    }

    /// Producers have failed for good, and are not replaced yet.
    pub(crate) fn fail_producers(&self, failed: bool) {
        self.update(|state| {
            state.faults.producers_failed = failed;
            state.deliver();
        });
    }

    /// Keeps the partitions of members that die until [`MemoryCluster::expire_dead`], as a session timeout does.
    pub(crate) fn keep_dead_members(&self, hold: bool) {
        self.update(|state| state.faults.keep_dead_members = hold);
    }

    pub(crate) fn expire_dead_members(&self) {
        self.update(|state| {
            state.groups.values_mut().for_each(Group::expire_dead);
            state.rebalance();
        });
    }
}

impl MemoryCluster {
    fn state(&self) -> Ref<'_, ClusterState> {
        self.state.borrow()
    }

    fn update<T>(&self, change: impl FnOnce(&mut ClusterState) -> T) -> T {
        let mut state: RefMut<'_, ClusterState> = self.state.borrow_mut();
        let result = change(&mut state);
        drop(state);
        self.changed.notify_waiters();
        result
    }

    /// What `look` answers, as soon as it answers anything.
    async fn wait_for<T>(&self, mut look: impl FnMut(&mut ClusterState) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(found) = look(&mut self.state.borrow_mut()) {
                return found;
            }
            changed.await;
        }
    }

    fn committed(
        &self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        let state = self.state();
        state.check_available()?;
        let commit = |partition| Some(state.groups.get(group)?.commit(partition)?.1.clone());
        Ok(partitions.iter().map(commit).collect())
    }
}

impl ClusterState {
    fn next_number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn check_available(&self) -> Result<(), Error> {
        if self.faults.down {
            Err(Error::Unavailable("the cluster is switched off".into()))
        } else {
            Ok(())
        }
    }

    fn topic(&self, name: &str) -> Option<&Topic> {
        self.topics.get(name)
    }

    fn log(&mut self, partition: &Partition) -> Option<&mut PartitionLog> {
        self.topics
            .get_mut(&partition.topic)?
            .partitions
            .get_mut(usize::try_from(partition.index).ok()?)
    }

    /// `None`: there is no such partition.
    fn append(&mut self, partition: &Partition, stored: LogRecord) -> Option<Offset> {
        let offset = self.log(partition)?.append(stored);
        self.topics.get_mut(&partition.topic)?.align_ends();
        Some(offset)
    }

    fn partitions(&self, topics: &[String]) -> Vec<Partition> {
        let mut found = Vec::new();
        for (name, topic) in topics
            .iter()
            .filter_map(|topic| self.topics.get_key_value(topic.as_str()))
        {
            found.extend(
                topic
                    .partitions
                    .iter()
                    .zip(0..)
                    .map(|(_, index)| Partition::new(name.clone(), index)),
            );
        }
        found.sort();
        found
    }

    fn rebalance(&mut self) {
        let mut groups = std::mem::take(&mut self.groups);
        groups
            .values_mut()
            .for_each(|group| group.rebalance(|topics| self.partitions(topics)));
        self.groups = groups;
    }
}

/// The catalog port.
pub(crate) struct MemoryCatalog(MemoryCluster);

#[async_trait(?Send)]
impl Catalog for MemoryCatalog {
    async fn partitions(&mut self, topics: &[String]) -> Result<Vec<Partition>, Error> {
        let state = self.0.state();
        state.check_available()?;
        Ok(state.partitions(topics))
    }

    async fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.0.committed(group, partitions)
    }

    async fn close(&mut self) {}
}

#[cfg(test)]
mod tests;
