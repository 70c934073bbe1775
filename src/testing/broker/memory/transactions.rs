//! Transactions of the memory cluster.
//!
//! A new producer fences the old one with the same id. Records of an open transaction are
//! invisible. A marker is committed together with the records or not at all.

use super::partition_log::LogRecord;
use super::target::{PendingSend, failure, is_name};
use super::{ClusterState, MemoryCluster};
use crate::broker::{
    DeliveryFailure, DeliveryReport, FailureKind, OutgoingRecord, ProducerEvent, ProducerIdentity,
    SendResult, TransactionalProducers, TxnOffset,
};
use crate::model::{DeadLetterReason, Partition};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The transactional ids at the brokers, and the producers that use them.
#[derive(Default)]
pub(super) struct Transactions {
    ids: BTreeMap<String, IdState>,
    /// By process and producer number.
    producers: BTreeMap<(u64, u64), MemoryProducer>,
}

/// The broker's state of a transactional id.
#[derive(Default)]
struct IdState {
    /// The epoch of the current producer.
    epoch: u64,
    written: BTreeSet<Partition>,
}

/// One transactional producer.
struct MemoryProducer {
    name: ProducerIdentity,
    /// Assigned when the producer is opened.
    epoch: Option<u64>,
    requests: VecDeque<QueuedRequest>,
    held_events: VecDeque<ProducerEvent>,
    events: Vec<ProducerEvent>,
    /// True if a record of the transaction was rejected.
    has_failed: bool,
    is_lost: bool,
    is_dead: bool,
    /// The marker before the fence, if the injected fault reads it too early.
    marker_before_fence: Option<Option<String>>,
}

enum QueuedRequest {
    Open,
    Send(PendingSend),
    Commit(TxnOffset),
    Abort,
}

impl Transactions {
    pub(super) fn drop_dead_producers(&mut self) {
        self.producers.retain(|_, producer| !producer.is_dead);
    }
}

impl ClusterState {
    /// Executes the requests that can be executed.
    pub(super) fn run_transaction_requests(&mut self) {
        if self.faults.down || self.faults.hold_sends {
            return;
        }
        let mut producers = std::mem::take(&mut self.transactions.producers);
        for producer in producers.values_mut() {
            if self.faults.producers_failed {
                producer.fail();
            }
            while !producer.is_lost
                && let Some(mut request) = producer.requests.pop_front()
            {
                if self.request_waits(&mut request) {
                    producer.requests.push_front(request);
                    break;
                }
                let happened = self.answer_request(producer, request);
                producer.held_events.push_back(happened);
            }
            if !self.faults.hold_reports {
                producer.events.extend(producer.held_events.drain(..));
            }
        }
        producers.retain(|_, producer| !producer.is_dead);
        self.transactions.producers = producers;
    }

    /// True while the partition of a record, or the coordinator of the marker, has no broker.
    fn request_waits(&mut self, request: &mut QueuedRequest) -> bool {
        match request {
            QueuedRequest::Send(send) => self.waits_for_brokers(send),
            QueuedRequest::Open | QueuedRequest::Commit(_) => self.faults.coordinator_silent,
            QueuedRequest::Abort => false,
        }
    }

    fn answer_request(
        &mut self,
        producer: &mut MemoryProducer,
        request: QueuedRequest,
    ) -> ProducerEvent {
        let id = &producer.name.transactional_id;
        if let QueuedRequest::Open = request {
            self.end_transaction(id, false);
            let epoch = self.next_number();
            self.transactions.ids.entry(id.clone()).or_default().epoch = epoch;
            producer.epoch = Some(epoch);
            let marker = self.read_marker(&producer.name);
            return ProducerEvent::Opened(producer.marker_before_fence.take().unwrap_or(marker));
        }
        let epoch = producer.epoch.filter(|epoch| {
            self.transactions
                .ids
                .get(id)
                .is_some_and(|name| name.epoch == *epoch)
        });
        let Some(epoch) = epoch else {
            producer.is_lost = true;
            producer.requests.clear();
            return ProducerEvent::Failed {
                is_fenced: true,
                reason: "another bears its name".into(),
            };
        };
        match request {
            QueuedRequest::Open => unreachable!("it was answered above"),
            QueuedRequest::Send(send) => {
                ProducerEvent::Reports(vec![self.send_in_transaction(producer, epoch, send)])
            }
            QueuedRequest::Commit(marker) => {
                assert!(
                    !producer.has_failed,
                    "a transaction with a record that was not taken is committed"
                );
                self.end_transaction(id, true);
                let ProducerIdentity {
                    offset_group: group,
                    partition,
                    ..
                } = &producer.name;
                self.groups.entry(group.clone()).or_default().commit_marker(
                    partition.clone(),
                    marker.offset,
                    marker.metadata,
                );
                ProducerEvent::Committed
            }
            QueuedRequest::Abort => {
                self.end_transaction(id, false);
                producer.has_failed = false;
                ProducerEvent::Aborted
            }
        }
    }

    fn read_marker(&self, name: &ProducerIdentity) -> Option<String> {
        Some(
            self.groups
                .get(&name.offset_group)?
                .commit(&name.partition)?
                .1
                .clone(),
        )
    }

    fn send_in_transaction(
        &mut self,
        producer: &mut MemoryProducer,
        epoch: u64,
        send: PendingSend,
    ) -> DeliveryReport {
        let ticket = send.ticket;
        let outcome = if producer.has_failed {
            // As a client that purges its queue at the abort.
            Err(failure(
                FailureKind::NotDelivered,
                DeadLetterReason::TimedOut,
                "its transaction is to be aborted",
            ))
        } else {
            self.store(send, Some(epoch))
        };
        let outcome = outcome.map(|partition| {
            let name = self
                .transactions
                .ids
                .get_mut(&producer.name.transactional_id)
                .expect("a name that is borne");
            name.written.insert(partition);
        });
        producer.has_failed |= outcome.is_err();
        DeliveryReport {
            ticket,
            position: None,
            outcome,
        }
    }

    /// Ends the open transaction of an id.
    fn end_transaction(&mut self, id: &str, is_committed: bool) {
        let Some(name) = self.transactions.ids.get_mut(id) else {
            return;
        };
        let (epoch, written) = (name.epoch, std::mem::take(&mut name.written));
        for partition in written {
            if let Some(log) = self.log(&partition) {
                log.end_transaction(epoch, is_committed);
            }
        }
    }
}

impl MemoryProducer {
    fn fail(&mut self) {
        if !self.is_lost {
            self.is_lost = true;
            self.requests.clear();
            // Events that were not read are lost.
            self.held_events.clear();
            self.held_events.push_back(ProducerEvent::Failed {
                is_fenced: false,
                reason: "the producer has failed permanently".into(),
            });
        }
    }
}

fn closed(detail: &str) -> DeliveryFailure {
    failure(
        FailureKind::ClientFailed,
        DeadLetterReason::TimedOut,
        detail,
    )
}

/// The transactional producers of one process.
pub(crate) struct MemoryTransactions {
    cluster: MemoryCluster,
    process: u64,
}

impl MemoryTransactions {
    pub(super) fn new(cluster: MemoryCluster) -> Self {
        let process = cluster.update(ClusterState::next_number);
        Self { cluster, process }
    }

    fn request(&self, number: u64, request: QueuedRequest) {
        self.cluster.update(|state| {
            if let Some(producer) = state
                .transactions
                .producers
                .get_mut(&(self.process, number))
                .filter(|producer| !producer.is_lost)
            {
                producer.requests.push_back(request);
            }
            state.deliver();
        });
    }

    fn drop_producers(&self, is_mine: impl Fn(u64) -> bool) {
        self.cluster.update(|state| {
            // As without transactions, the network still delivers the requests that it holds.
            let in_network = state.faults.hold_sends && !state.faults.down;
            let process = self.process;
            let producers = &mut state.transactions.producers;
            producers
                .iter_mut()
                .filter(|((of, number), _)| *of == process && is_mine(*number))
                .for_each(|(_, producer)| producer.is_dead = true);
            producers.retain(|_, producer| {
                !producer.is_dead || in_network && !producer.requests.is_empty()
            });
        });
    }
}

#[async_trait(?Send)]
impl TransactionalProducers for MemoryTransactions {
    fn preconnect(&mut self, _: &ProducerIdentity) {}

    fn open(&mut self, number: u64, name: &ProducerIdentity) {
        self.cluster.update(|state| {
            let early = fault!(ReadMarkerBeforeFence).then(|| state.read_marker(name));
            let producer = MemoryProducer {
                name: name.clone(),
                epoch: None,
                requests: VecDeque::from([QueuedRequest::Open]),
                held_events: VecDeque::new(),
                events: Vec::new(),
                has_failed: false,
                is_lost: false,
                is_dead: false,
                marker_before_fence: early,
            };
            state
                .transactions
                .producers
                .insert((self.process, number), producer);
            state.deliver();
        });
    }

    fn send(&mut self, number: u64, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        let is_open = self
            .cluster
            .state()
            .transactions
            .producers
            .get(&(self.process, number))
            .is_some_and(|producer| !producer.is_lost);
        if !is_open {
            return SendResult::Failed(closed("the producer is lost"));
        }
        if !is_name(record.topic) {
            return SendResult::Failed(failure(
                FailureKind::Rejected,
                DeadLetterReason::InvalidTarget,
                "no topic can have that name",
            ));
        }
        let now = self.cluster.state().clock.now();
        let stored = LogRecord::new(
            now,
            Some(now),
            (record.key, record.payload),
            record.all_headers(),
        );
        self.request(
            number,
            QueuedRequest::Send(PendingSend {
                topic: record.topic.into(),
                partition: record.partition,
                record: stored,
                ticket,
                id: None,
            }),
        );
        SendResult::Accepted
    }

    fn commit(&mut self, number: u64, marker: TxnOffset) {
        self.request(number, QueuedRequest::Commit(marker));
    }

    fn abort(&mut self, number: u64) {
        self.request(number, QueuedRequest::Abort);
    }

    fn discard(&mut self, number: u64) {
        self.drop_producers(|of| of == number);
    }

    /// Safe to drop: events leave only with the return value.
    async fn next_events(&mut self) -> Vec<(u64, ProducerEvent)> {
        let process = self.process;
        let taken = self.cluster.wait_for(|state| {
            let mine = state
                .transactions
                .producers
                .range_mut((process, 0)..=(process, u64::MAX))
                .filter(|(_, producer)| !producer.is_dead);
            let happened: Vec<_> = mine
                .flat_map(|((_, number), producer)| {
                    producer
                        .events
                        .drain(..)
                        .map(|happened| (*number, happened))
                })
                .collect();
            (!happened.is_empty()).then_some(happened)
        });
        taken.await
    }

    async fn close(&mut self) {
        self.drop_producers(|_| true);
    }
}

impl Drop for MemoryTransactions {
    fn drop(&mut self) {
        self.drop_producers(|_| true);
    }
}
