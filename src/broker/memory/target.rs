//! The target port on the cluster of memory: Kafka's partitioner, and sends and reports that can be held, refused and lost.

use super::log::Stored;
use super::{MemoryCluster, State, Topic};
use crate::broker::{Failure, FailureKind, Outgoing, Report, Sent, Target};
use crate::model::{Partition, Reason};
use async_trait::async_trait;
use std::collections::VecDeque;
use std::sync::Arc;

/// A producer.
pub(crate) struct MemoryTarget {
    cluster: MemoryCluster,
    id: u64,
    in_flight_max: usize,
    /// Taken over, and not handed out as reports yet.
    in_flight: usize,
    closed: bool,
}

/// What one producer has under way.
#[derive(Default)]
pub(super) struct Outbox {
    sends: VecDeque<Send>,
    held: VecDeque<Report>,
    reports: Vec<Report>,
    dead: bool,
}

pub(super) struct Send {
    pub(super) topic: Arc<str>,
    pub(super) partition: Option<i32>,
    pub(super) record: Stored,
    pub(super) ticket: u64,
    /// What a stream knows it by when it comes again.
    pub(super) id: Option<String>,
}

impl Outbox {
    pub(super) fn is_dead(&self) -> bool {
        self.dead
    }

    pub(super) fn release(&mut self, count: usize) {
        let count = count.min(self.held.len());
        self.reports.extend(self.held.drain(..count));
    }
}

impl State {
    /// Lets arrive what can: everything unless the cluster is down or the network holds it.
    pub(super) fn deliver(&mut self) {
        if self.faults.down || self.faults.hold_sends {
            return;
        }
        let mut outboxes = std::mem::take(&mut self.outboxes);
        for outbox in outboxes.values_mut() {
            while let Some(send) = outbox.sends.pop_front() {
                let report = self.arrive(send);
                outbox.held.push_back(report);
            }
            if !self.faults.hold_reports {
                outbox.release(usize::MAX);
            }
        }
        outboxes.retain(|_, outbox| !outbox.dead);
        self.outboxes = outboxes;
        self.transact();
    }

    fn arrive(&mut self, send: Send) -> Report {
        let lost = if self.faults.lost_reports.is_empty() {
            None
        } else {
            Some(self.faults.lost_reports.remove(0))
        };
        let ticket = send.ticket;
        let outcome = match lost {
            Some(false) => Err(unknown()),
            Some(true) => self.store(send, None).and(Err(unknown())),
            None => self.store(send, None).map(drop),
        };
        Report {
            ticket,
            place: None,
            outcome,
        }
    }

    /// `writer`: in whose transaction.
    pub(super) fn store(&mut self, send: Send, writer: Option<u64>) -> Result<Partition, Failure> {
        let now = self.clock.now();
        let Send {
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
            .size_max
            .is_some_and(|size_max| record.size() > size_max)
        {
            return Err(failure(
                FailureKind::Refused,
                Reason::TooLarge,
                "the record is larger than the topic takes",
            ));
        }
        let index = partition.unwrap_or_else(|| topic.partition_of(record.key.as_deref()));
        let partition = Partition::new(name, index);
        if topic
            .window
            .as_mut()
            .zip(id)
            .is_some_and(|(window, id)| window.knows(id))
        {
            return Ok(partition);
        }
        let missing = || not_now("the topic has no such partition");
        record.arrive(now);
        match writer {
            Some(writer) => self
                .log(&partition)
                .ok_or_else(missing)?
                .append_openly(record, writer),
            None => self.append(&partition, record).ok_or_else(missing)?,
        };
        Ok(partition)
    }
}

impl Topic {
    /// As librdkafka's `murmur2_random`, but without the randomness.
    fn partition_of(&mut self, key: Option<&[u8]>) -> i32 {
        let count = self.partitions.len();
        let index = match key {
            Some(key) => (murmur2(key) & 0x7fff_ffff) as usize % count,
            None => {
                self.turn += 1;
                self.turn % count
            }
        };
        i32::try_from(index).expect("fewer partitions than that")
    }
}

/// The hash of Kafka's own partitioner.
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

pub(super) fn failure(kind: FailureKind, reason: Reason, detail: &str) -> Failure {
    Failure {
        kind,
        reason,
        detail: detail.to_owned(),
    }
}

fn not_now(detail: &str) -> Failure {
    failure(FailureKind::NotNow, Reason::UnknownTarget, detail)
}

fn unknown() -> Failure {
    failure(
        FailureKind::Unknown,
        Reason::TimedOut,
        "the answer was lost",
    )
}

/// What Kafka takes for a topic's name.
pub(super) fn is_name(topic: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=249).contains(&topic.len()) && topic.bytes().all(fits) && topic != "." && topic != ".."
}

impl MemoryTarget {
    pub(super) fn open(cluster: MemoryCluster, in_flight_max: usize) -> Self {
        let id = cluster.change(|state| {
            let id = state.count();
            state.outboxes.insert(id, Outbox::default());
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
        self.cluster.change(|state| {
            // What a client still holds dies with it; what the network holds does not.
            let in_network = state.faults.hold_sends && !state.faults.down;
            match state.outboxes.get_mut(&self.id) {
                Some(outbox) if in_network => outbox.dead = true,
                _ => drop(state.outboxes.remove(&self.id)),
            }
        });
    }
}

#[async_trait(?Send)]
impl Target for MemoryTarget {
    fn send(&mut self, record: &Outgoing<'_>, ticket: u64) -> Sent {
        if self.closed || self.cluster.state().faults.producers_failed {
            return Sent::Failed(failure(
                FailureKind::Closed,
                Reason::TimedOut,
                "the producer is closed",
            ));
        }
        if self.in_flight >= self.in_flight_max {
            return Sent::Full;
        }
        if !is_name(record.topic) {
            return Sent::Failed(failure(
                FailureKind::Refused,
                Reason::InvalidTarget,
                "no topic can have that name",
            ));
        }
        self.in_flight += 1;
        self.cluster.change(|state| {
            let now = state.clock.now();
            let stored = Stored::new(
                now,
                Some(now),
                (record.key, record.payload),
                record.out_headers(),
            );
            let send = Send {
                topic: record.topic.into(),
                partition: record.partition,
                record: stored,
                ticket,
                id: record.message_id(),
            };
            state
                .outboxes
                .entry(self.id)
                .or_default()
                .sends
                .push_back(send);
            state.deliver();
        });
        Sent::Taken
    }

    /// Dropping it loses nothing: reports leave only with the answer.
    async fn reports(&mut self) -> Vec<Report> {
        let id = self.id;
        let taken = self.cluster.wait(|state| {
            let outbox = state.outboxes.get_mut(&id)?;
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
