//! The target port of the memory cluster: Kafka's partitioner, with sends and reports that can be
//! held, rejected and lost.

use super::partition_log::LogRecord;
use super::{ClusterState, MemoryCluster, Topic};
use crate::broker::{
    DeliveryFailure, DeliveryReport, FailureKind, OutgoingRecord, SendResult, Target,
};
use crate::model::{DeadLetterReason, Partition};
use async_trait::async_trait;
use std::collections::VecDeque;
use std::sync::Arc;

/// A producer.
pub(crate) struct MemoryTarget {
    cluster: MemoryCluster,
    id: u64,
    in_flight_max: usize,
    /// Records that were accepted and not reported yet.
    in_flight: usize,
    closed: bool,
}

/// The records and reports of one producer.
#[derive(Default)]
pub(super) struct ProducerState {
    sends: VecDeque<PendingSend>,
    held_reports: VecDeque<DeliveryReport>,
    reports: Vec<DeliveryReport>,
    is_dead: bool,
}

pub(super) struct PendingSend {
    pub(super) topic: Arc<str>,
    pub(super) partition: Option<i32>,
    pub(super) record: LogRecord,
    pub(super) ticket: u64,
    /// The message id by which a stream detects duplicates.
    pub(super) id: Option<String>,
}

impl ProducerState {
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead
    }

    pub(super) fn release_reports(&mut self, count: usize) {
        let count = count.min(self.held_reports.len());
        self.reports.extend(self.held_reports.drain(..count));
    }
}

impl ClusterState {
    /// Stores sent records, unless the cluster is down or the network holds them.
    pub(super) fn deliver(&mut self) {
        if self.faults.down || self.faults.hold_sends {
            return;
        }
        let mut outboxes = std::mem::take(&mut self.producers);
        for outbox in outboxes.values_mut() {
            for mut send in std::mem::take(&mut outbox.sends) {
                if self.waits_for_brokers(&mut send) {
                    outbox.sends.push_back(send);
                    continue;
                }
                let report = self.arrive(send);
                outbox.held_reports.push_back(report);
            }
            if !self.faults.hold_reports {
                outbox.release_reports(usize::MAX);
            }
        }
        outboxes.retain(|_, outbox| !outbox.is_dead);
        self.producers = outboxes;
        self.run_transaction_requests();
    }

    /// True if the partition of the record has no leader, or no follower that copies it. The client
    /// then sends it again and again.
    pub(super) fn waits_for_brokers(&mut self, send: &mut PendingSend) -> bool {
        let Some(topic) = self.topics.get_mut(&send.topic) else {
            return false;
        };
        let key = send.record.key.as_deref();
        let index = *(send.partition).get_or_insert_with(|| topic.partition_of(key));
        let partition = Partition::new(send.topic.clone(), index);
        self.faults.leaderless.contains(&partition) || self.faults.unreplicated.contains(&partition)
    }

    fn arrive(&mut self, send: PendingSend) -> DeliveryReport {
        let lost = if self.faults.unknown_outcomes.is_empty() {
            None
        } else {
            Some(self.faults.unknown_outcomes.remove(0))
        };
        let ticket = send.ticket;
        let outcome = match lost {
            Some(false) => Err(unknown()),
            Some(true) => self.store(send, None).and(Err(unknown())),
            None => self.store(send, None).map(drop),
        };
        DeliveryReport {
            ticket,
            position: None,
            outcome,
        }
    }

    /// `writer`: the owner of the transaction, if any.
    pub(super) fn store(
        &mut self,
        send: PendingSend,
        writer: Option<u64>,
    ) -> Result<Partition, DeliveryFailure> {
        let now = self.clock.now();
        let PendingSend {
            topic: name,
            partition,
            mut record,
            id,
            ..
        } = send;
        let topic = self
            .topics
            .get_mut(&name)
            .ok_or_else(|| not_now(&format!("the topic `{name}` does not exist")))?;
        if let Some(refusal) = &topic.refusal {
            return Err(refusal.clone());
        }
        if topic
            .record_size_max
            .is_some_and(|size_max| record.size() > size_max)
        {
            return Err(failure(
                FailureKind::Rejected,
                DeadLetterReason::TooLarge,
                "the record is larger than the topic takes",
            ));
        }
        let index = partition.unwrap_or_else(|| topic.partition_of(record.key.as_deref()));
        let partition = Partition::new(name, index);
        if topic
            .dedup_window
            .as_mut()
            .zip(id)
            .is_some_and(|(window, id)| window.is_duplicate(id))
        {
            return Ok(partition);
        }
        let missing = || not_now("the topic has no such partition");
        record.set_arrival_time(now);
        match writer {
            Some(writer) => self
                .log(&partition)
                .ok_or_else(missing)?
                .append_in_transaction(record, writer),
            None => self.append(&partition, record).ok_or_else(missing)?,
        };
        Ok(partition)
    }
}

impl Topic {
    /// Like `murmur2_random` of librdkafka, but without the randomness.
    fn partition_of(&mut self, key: Option<&[u8]>) -> i32 {
        let count = self.partitions.len();
        let index = match key {
            Some(key) => (murmur2(key) & 0x7fff_ffff) as usize % count,
            None => {
                self.next_without_key += 1;
                self.next_without_key % count
            }
        };
        i32::try_from(index).expect("fewer partitions than that")
    }
}

/// The hash of Kafka's partitioner.
fn murmur2(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mix = |k: u32| {
        let k = k.wrapping_mul(M);
        (k ^ (k >> 24)).wrapping_mul(M)
    };
    let (words, rest) = key.as_chunks::<4>();
    let seed = 0x9747_b28c ^ key.len() as u32;
    let mut hash = words.iter().fold(seed, |hash, word| {
        hash.wrapping_mul(M) ^ mix(u32::from_le_bytes(*word))
    });
    if !rest.is_empty() {
        let tail = rest
            .iter()
            .rev()
            .fold(0, |tail, byte| tail << 8 | u32::from(*byte));
        hash = (hash ^ tail).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

pub(super) fn failure(
    kind: FailureKind,
    reason: DeadLetterReason,
    detail: &str,
) -> DeliveryFailure {
    DeliveryFailure {
        kind,
        reason,
        detail: detail.to_owned(),
    }
}

fn not_now(detail: &str) -> DeliveryFailure {
    failure(
        FailureKind::NotDelivered,
        DeadLetterReason::UnknownTarget,
        detail,
    )
}

fn unknown() -> DeliveryFailure {
    failure(
        FailureKind::MaybeDelivered,
        DeadLetterReason::TimedOut,
        "the answer was lost",
    )
}

/// Returns whether Kafka accepts the topic name.
pub(super) fn is_name(topic: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=249).contains(&topic.len()) && topic.bytes().all(fits) && topic != "." && topic != ".."
}

impl MemoryTarget {
    pub(super) fn open(cluster: MemoryCluster, in_flight_max: usize) -> Self {
        let id = cluster.update(|state| {
            let id = state.next_number();
            state.producers.insert(id, ProducerState::default());
            id
        });
        Self {
            cluster,
            id,
            in_flight_max,
            in_flight: 0,
            closed: false,
        }
    }

    fn end(&mut self) {
        self.closed = true;
        self.cluster.update(|state| {
            // Records in the client die with it; records in the network do not.
            let in_network = state.faults.hold_sends && !state.faults.down;
            match state.producers.get_mut(&self.id) {
                Some(outbox) if in_network => outbox.is_dead = true,
                _ => drop(state.producers.remove(&self.id)),
            }
        });
    }
}

#[async_trait(?Send)]
impl Target for MemoryTarget {
    fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        if self.closed || self.cluster.state().faults.producers_failed {
            return SendResult::Failed(failure(
                FailureKind::ClientFailed,
                DeadLetterReason::TimedOut,
                "the producer is closed",
            ));
        }
        if self.in_flight >= self.in_flight_max {
            return SendResult::QueueFull;
        }
        if !is_name(record.topic) {
            return SendResult::Failed(failure(
                FailureKind::Rejected,
                DeadLetterReason::InvalidTarget,
                "no topic can have that name",
            ));
        }
        self.in_flight += 1;
        self.cluster.update(|state| {
            let now = state.clock.now();
            let stored = LogRecord::new(
                now,
                Some(now),
                (record.key, record.payload),
                record.all_headers(),
            );
            let send = PendingSend {
                topic: record.topic.into(),
                partition: record.partition,
                record: stored,
                ticket,
                id: record
                    .message_id()
                    .filter(|_| !fault!(SendWithoutMessageId)),
            };
            state
                .producers
                .entry(self.id)
                .or_default()
                .sends
                .push_back(send);
            state.deliver();
        });
        SendResult::Accepted
    }

    /// Safe to drop: reports leave only with the return value.
    async fn next_reports(&mut self) -> Vec<DeliveryReport> {
        let id = self.id;
        let taken = self.cluster.wait_for(|state| {
            let outbox = state.producers.get_mut(&id)?;
            (!outbox.reports.is_empty()).then(|| std::mem::take(&mut outbox.reports))
        });
        let reports = taken.await;
        self.in_flight -= reports.len();
        reports
    }

    async fn close(&mut self) {
        self.end();
    }
}

impl Drop for MemoryTarget {
    fn drop(&mut self) {
        if !self.closed {
            self.end();
        }
    }
}
