//! A Kafka cluster in memory for the simulation and for tests: deterministic, with faults that can
//! be switched on.
//!
//! It has no threads, no timers and no randomness, so everything happens inside a call.
//! `nats_semantics` makes it behave like NATS.
//!
//! A dropped [`MemoryTarget`] is a process that died. Its unsent records are lost, and the records
//! in the network still arrive.

mod group_commits;
mod nats_semantics;
mod partition_log;
mod source;
mod target;
mod transactions;

pub(crate) use source::MemorySource;
pub(crate) use target::MemoryTarget;
pub(crate) use transactions::MemoryTransactions;

use crate::broker::{Catalog, DeliveryFailure, Error, GroupAdmin, OffsetCommit, PartitionInfo};
use crate::clock::Clock;
use crate::model::header::Header;
use crate::model::{Offset, Partition, SourceIdentity, Timestamp};
use async_trait::async_trait;
use group_commits::Group;
use nats_semantics::DedupWindow;
use partition_log::{LogRecord, PartitionLog};
use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use target::ProducerState;
use tokio::sync::Notify;
use transactions::Transactions;

/// A handle on the cluster; clones share it.
#[derive(Clone)]
pub(crate) struct MemoryCluster {
    state: Rc<RefCell<ClusterState>>,
    /// Signals every change, so that waiting calls check again.
    changed: Rc<Notify>,
}

struct ClusterState {
    /// The cluster id.
    id: &'static str,
    clock: Rc<dyn Clock>,
    topics: BTreeMap<Arc<str>, Topic>,
    groups: BTreeMap<String, Group>,
    producers: BTreeMap<u64, ProducerState>,
    transactions: Transactions,
    /// How often the consumers of streams were recreated.
    consumer_generation: u64,
    /// Numbers members, targets and topic incarnations.
    counter: u64,
    faults: ClusterFaults,
}

/// The faults that are switched on.
struct ClusterFaults {
    down: bool,
    hold_sends: bool,
    hold_reports: bool,
    producers_failed: bool,
    /// The next sends are reported with an unknown outcome; the value says whether the record
    /// arrives.
    unknown_outcomes: Vec<bool>,
    /// The largest batch that a source returns, in records.
    batch_max: usize,
    /// Partitions that can be neither described nor read nor written.
    leaderless: BTreeSet<Partition>,
    /// Partitions whose records are not acknowledged.
    unreplicated: BTreeSet<Partition>,
    /// Commits are neither answered nor stored.
    coordinator_silent: bool,
}

struct Topic {
    incarnation: u64,
    partitions: Vec<PartitionLog>,
    /// Key, payload and headers, in bytes.
    record_size_max: Option<usize>,
    refusal: Option<DeliveryFailure>,
    /// The partition of the next record without a key.
    next_without_key: usize,
    /// True if its partitions are filter subjects of one stream.
    is_stream: bool,
    dedup_window: Option<DedupWindow>,
}

/// A record as it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredRecord {
    pub(crate) partition: i32,
    pub(crate) offset: Offset,
    pub(crate) at: Timestamp,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Clients, contents, and the actions of operators.
impl MemoryCluster {
    pub(crate) fn new(clock: Rc<dyn Clock>) -> Self {
        Self::with_id("memory", clock)
    }

    pub(crate) fn with_id(id: &'static str, clock: Rc<dyn Clock>) -> Self {
        let faults = ClusterFaults {
            down: false,
            hold_sends: false,
            hold_reports: false,
            producers_failed: false,
            unknown_outcomes: Vec::new(),
            batch_max: 500,
            leaderless: BTreeSet::new(),
            unreplicated: BTreeSet::new(),
            coordinator_silent: false,
        };
        let state = ClusterState {
            id,
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

    pub(crate) fn source(&self, group: &str) -> MemorySource {
        MemorySource::new(self.clone(), group)
    }

    pub(crate) fn target(&self, in_flight_max: usize) -> MemoryTarget {
        MemoryTarget::open(self.clone(), in_flight_max)
    }

    pub(crate) fn transactional_producers(&self) -> MemoryTransactions {
        MemoryTransactions::new(self.clone())
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
        });
    }

    pub(crate) fn delete_topic(&self, name: &str) {
        self.update(|state| {
            state.forget_commits(name);
            state.topics.remove(name);
        });
    }

    /// Deletes and recreates a topic, so quickly that no reader notices.
    pub(crate) fn recreate_topic(&self, name: &str) {
        self.update(|state| {
            state.forget_commits(name);
            let incarnation = state.next_number();
            let topic = state.topics.get_mut(name).expect("a topic that exists");
            topic.incarnation = incarnation;
            topic.clear();
        });
    }

    pub(crate) fn partitions(&self, topic: &str) -> Vec<Partition> {
        self.state().partitions(&[topic.to_owned()])
    }

    /// Grows a topic to this number of partitions.
    pub(crate) fn add_partitions(&self, name: &str, total: i32) {
        self.update(|state| {
            let topic = state.topics.get_mut(name).expect("a topic that exists");
            topic.partitions.resize_with(
                usize::try_from(total).expect("not negative"),
                PartitionLog::default,
            );
        });
    }

    /// Removes records before `first`, as retention does. A stream is trimmed in all subjects.
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

    /// Removes the records from `end` on, as an unclean election of a leader does. The topic keeps
    /// its identity.
    pub(crate) fn truncate(&self, partition: &Partition, end: Offset) {
        self.update(|state| {
            let log = state.log(partition).expect("a partition that exists");
            log.truncate(end.0);
        });
    }

    /// Skips offsets, as compaction and aborted transactions do.
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

    /// Writes a record as another producer would, with its own timestamp.
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

    /// The committed records of a topic, by partition and offset.
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

    /// The committed offset and metadata of a partition.
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
    /// Switches the brokers off: queries fail, reading pauses, and sent records wait in the client.
    pub(crate) fn set_down(&self, down: bool) {
        self.update(|state| {
            state.faults.down = down;
            state.deliver();
        });
    }

    /// Takes the leaders of these partitions away, and gives all others theirs back.
    pub(crate) fn set_leaderless(&self, partitions: &[Partition]) {
        self.update(|state| {
            state.faults.leaderless = partitions.iter().cloned().collect();
            state.deliver();
        });
    }

    /// Takes the followers of these partitions away, and gives all others theirs back. Records that
    /// are written meanwhile are not acknowledged before.
    pub(crate) fn set_unreplicated(&self, partitions: &[Partition]) {
        self.update(|state| {
            let before = std::mem::take(&mut state.faults.unreplicated);
            state.faults.unreplicated = partitions.iter().cloned().collect();
            for partition in before.iter().chain(partitions) {
                let is_replicated = !partitions.contains(partition);
                let log = state.log(partition).expect("a partition that exists");
                log.set_replicated(is_replicated);
            }
            state.deliver();
        });
    }

    /// A follower becomes the leader of the partition. Returns the first offset of the records that
    /// were not acknowledged and are lost.
    pub(crate) fn change_leader(&self, partition: &Partition) -> Offset {
        self.update(|state| {
            state.faults.unreplicated.remove(partition);
            let log = state.log(partition).expect("a partition that exists");
            Offset(log.change_leader())
        })
    }

    /// The commits of a group expire, as they do after days without a commit.
    pub(crate) fn expire_commits(&self, group: &str) {
        self.update(|state| drop(state.groups.remove(group)));
    }

    /// Makes a topic reject every record (`None`: accept again).
    pub(crate) fn refuse_records(&self, topic: &str, failure: Option<DeliveryFailure>) {
        self.update(|state| {
            state
                .topics
                .get_mut(topic)
                .expect("a topic that exists")
                .refusal = failure;
        });
    }

    /// Makes a topic reject records with more bytes of key, payload and headers.
    pub(crate) fn limit_record_size(&self, topic: &str, bytes: Option<usize>) {
        self.update(|state| {
            state
                .topics
                .get_mut(topic)
                .expect("a topic that exists")
                .record_size_max = bytes;
        });
    }

    /// Holds sent records in the network. They arrive after the release, even if their sender has
    /// died.
    pub(crate) fn hold_sends(&self, hold: bool) {
        self.update(|state| {
            state.faults.hold_sends = hold;
            state.deliver();
        });
    }

    /// Drops the records in the network whose senders have died.
    pub(crate) fn drop_sends_of_dead_producers(&self) {
        self.update(|state| {
            state.producers.retain(|_, outbox| !outbox.is_dead());
            state.transactions.drop_dead_producers();
        });
    }

    /// Holds delivery reports, although the records arrive.
    pub(crate) fn hold_reports(&self, hold: bool) {
        self.update(|state| {
            state.faults.hold_reports = hold;
            state.deliver();
        });
    }

    /// Releases this many held reports of each target.
    pub(crate) fn release_reports(&self, count: usize) {
        self.update(|state| {
            state
                .producers
                .values_mut()
                .for_each(|outbox| outbox.release_reports(count));
        });
    }

    /// Reports the next `count` sends with an unknown outcome. `arrive`: whether the records
    /// arrive.
    pub(crate) fn lose_reports(&self, count: usize, arrive: bool) {
        self.update(|state| {
            state
                .faults
                .unknown_outcomes
                .extend(std::iter::repeat_n(arrive, count));
        });
    }

    /// Makes all producers fail permanently until `failed` is `false`.
    pub(crate) fn fail_producers(&self, failed: bool) {
        self.update(|state| {
            state.faults.producers_failed = failed;
            state.deliver();
        });
    }

    /// Makes the coordinator of all groups silent: calls for commits wait until it answers again.
    pub(crate) fn silence_coordinator(&self, silent: bool) {
        self.update(|state| {
            state.faults.coordinator_silent = silent;
            state.deliver();
        });
    }

    /// Consumers of another program or version join a group, or leave it.
    pub(crate) fn set_members(&self, group: &str, has_members: bool) {
        self.update(|state| {
            let group = state.groups.entry(group.to_owned()).or_default();
            group.has_members = has_members;
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

    /// Waits until `look` returns a value.
    async fn wait_for<T>(&self, mut look: impl FnMut(&mut ClusterState) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(found) = look(&mut self.state.borrow_mut()) {
                return found;
            }
            changed.await;
        }
    }

    /// Waits for the group coordinator.
    async fn coordinator(&self) {
        let answers = |state: &mut ClusterState| (!state.faults.coordinator_silent).then_some(());
        self.wait_for(answers).await;
    }

    async fn committed(
        &self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.coordinator().await;
        let state = self.state();
        state.check_available()?;
        let commit = |partition| Some(state.groups.get(group)?.commit(partition)?.1.clone());
        Ok(partitions.iter().map(commit).collect())
    }

    fn offsets_at(&self, partitions: &[Partition], time: Timestamp) -> Result<Vec<Offset>, Error> {
        self.update(|state| {
            state.check_available()?;
            let logs = partitions
                .iter()
                .map(|partition| state.log(partition).map(|it| it.offset_at(time)));
            Ok(logs.collect::<Option<_>>().expect("partitions that exist"))
        })
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

    fn describe(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<Result<PartitionInfo, Error>>, Error> {
        self.check_available()?;
        let describe = |partition: &Partition| {
            if self.faults.leaderless.contains(partition) {
                let text = "the partition has no leader";
                return Err(Error::Unavailable(text.to_owned()));
            }
            let missing = || Error::Rejected(format!("the partition {partition} does not exist"));
            let identity = self.identity(&partition.topic).ok_or_else(missing)?;
            let log = self.log(partition).ok_or_else(missing)?;
            Ok(PartitionInfo {
                identity: Some(identity),
                first_offset: Offset(log.first()),
                end_offset: Offset(log.last_stable_offset()),
            })
        };
        Ok(partitions.iter().map(describe).collect())
    }

    fn identity(&self, topic: &str) -> Option<SourceIdentity> {
        let incarnation = self.topic(topic)?.incarnation;
        let (id, cluster) = (format!("incarnation-{incarnation}"), &self.id);
        Some(SourceIdentity::new(Some(cluster), Some(&id)))
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

    /// Returns `None` if there is no such partition.
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
}

/// The catalog port.
pub(crate) struct MemoryCatalog(MemoryCluster);

#[async_trait(?Send)]
impl Catalog for MemoryCatalog {
    async fn partitions(
        &mut self,
        topics: &[String],
    ) -> Result<Vec<(Partition, SourceIdentity)>, Error> {
        let state = self.0.state();
        state.check_available()?;
        let found = state.partitions(topics).into_iter();
        let identity = |topic: &str| state.identity(topic).expect("a topic that exists");
        Ok(found
            .map(|partition| {
                let identity = identity(&partition.topic);
                (partition, identity)
            })
            .collect())
    }

    async fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.0.committed(group, partitions).await
    }

    async fn close(&mut self) {}
}

#[async_trait(?Send)]
impl GroupAdmin for MemoryCatalog {
    async fn describe(&mut self, partitions: &[Partition]) -> Result<Vec<PartitionInfo>, Error> {
        let described = self.0.update(|state| state.describe(partitions))?;
        described.into_iter().collect()
    }

    async fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> Result<Vec<Offset>, Error> {
        self.0.offsets_at(partitions, time)
    }

    async fn commit_unused(&mut self, group: &str, commits: &[OffsetCommit]) -> Result<(), Error> {
        self.0.coordinator().await;
        self.0.update(|state| {
            state.check_available()?;
            let group = state.groups.entry(group.to_owned()).or_default();
            group.commit_all(commits)
        })
    }
}

#[cfg(test)]
mod tests;
