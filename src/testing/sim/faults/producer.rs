//! Producers behind the network.
//!
//! While the network is cut, sent records wait here and reports do not arrive. When the producers
//! fail, the outcome of their records is unknown.

use crate::broker::{
    DeliveryFailure, DeliveryReport, FailureKind, OutgoingRecord, ProducerEvent, ProducerIdentity,
    SendResult, Target, TransactionalProducers, TxnOffset,
};
use crate::model::{DeadLetterReason, Headers};
use crate::testing::broker::memory::{MemoryTarget, MemoryTransactions};
use crate::testing::sim::faults::network::Network;
use crate::testing::sim::world::World;
use async_trait::async_trait;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// Records that a client accepts before it reports the first of them.
const IN_CLIENT_MAX: usize = 1_000;

/// A copy of an outgoing record.
struct WaitingRecord {
    topic: String,
    partition: Option<i32>,
    key: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
    headers: Vec<u8>,
    stays: fn(&[u8]) -> bool,
    extra: Vec<(String, Vec<u8>)>,
}

impl WaitingRecord {
    fn new(record: &OutgoingRecord<'_>) -> Self {
        Self {
            topic: record.topic.to_owned(),
            partition: record.partition,
            key: record.key.map(<[u8]>::to_vec),
            payload: record.payload.map(<[u8]>::to_vec),
            headers: record.headers.as_block().to_vec(),
            stays: record.keep_header,
            extra: record
                .extra_headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.to_vec()))
                .collect(),
        }
    }

    fn send(&self, send: impl FnOnce(&OutgoingRecord<'_>) -> SendResult) -> SendResult {
        let extra: Vec<(&str, &[u8])> = self
            .extra
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_slice()))
            .collect();
        send(&OutgoingRecord {
            topic: &self.topic,
            partition: self.partition,
            key: self.key.as_deref(),
            payload: self.payload.as_deref(),
            headers: Headers::from_block(&self.headers),
            keep_header: self.stays,
            extra_headers: &extra,
        })
    }
}

fn closed() -> DeliveryFailure {
    DeliveryFailure {
        kind: FailureKind::ClientFailed,
        reason: DeadLetterReason::TimedOut,
        detail: "the producer has failed permanently".to_owned(),
    }
}

fn failed(ticket: u64, failure: DeliveryFailure) -> DeliveryReport {
    DeliveryReport {
        ticket,
        position: None,
        outcome: Err(failure),
    }
}

/// A producer without transactions.
pub(crate) struct NetworkProducer {
    world: World,
    network: Rc<Network>,
    target: MemoryTarget,
    /// The failure count of the network when the target was created.
    failures: u64,
    waiting: VecDeque<(WaitingRecord, u64)>,
    /// Tickets of records that were sent and not reported yet.
    sent: BTreeSet<u64>,
    reports: Vec<DeliveryReport>,
}

impl NetworkProducer {
    pub(crate) fn new(world: &World, network: &Rc<Network>) -> Self {
        Self {
            world: world.clone(),
            network: network.clone(),
            target: world.cluster().target(IN_CLIENT_MAX),
            failures: network.failures(),
            waiting: VecDeque::new(),
            sent: BTreeSet::new(),
            reports: Vec::new(),
        }
    }

    /// Replaces a failed target, then sends waiting records if the network is up.
    fn resume(&mut self) {
        if self.failures != self.network.failures() {
            self.failures = self.network.failures();
            self.target = self.world.cluster().target(IN_CLIENT_MAX);
            let lost = std::mem::take(&mut self.sent)
                .into_iter()
                .chain(self.waiting.drain(..).map(|(_, ticket)| ticket));
            self.reports
                .extend(lost.map(|ticket| failed(ticket, closed())));
        }
        while !self.network.is_cut()
            && let Some((record, ticket)) = self.waiting.pop_front()
        {
            match record.send(|record| self.target.send(record, ticket)) {
                SendResult::Accepted => _ = self.sent.insert(ticket),
                SendResult::Failed(failure) => self.reports.push(failed(ticket, failure)),
                SendResult::QueueFull => {
                    unreachable!("it holds at most as many records as its target accepts")
                }
            }
        }
    }
}

#[async_trait(?Send)]
impl Target for NetworkProducer {
    fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        self.resume();
        if self.network.have_producers_failed() {
            return SendResult::Failed(closed());
        }
        if self.waiting.len() + self.sent.len() >= IN_CLIENT_MAX {
            return SendResult::QueueFull;
        }
        if self.network.is_cut() {
            self.waiting.push_back((WaitingRecord::new(record), ticket));
            return SendResult::Accepted;
        }
        let sent = self.target.send(record, ticket);
        if sent == SendResult::Accepted {
            self.sent.insert(ticket);
        }
        sent
    }

    /// Safe to drop: reports leave only with the return value.
    async fn next_reports(&mut self) -> Vec<DeliveryReport> {
        loop {
            self.resume();
            if !self.reports.is_empty() {
                return std::mem::take(&mut self.reports);
            }
            let is_cut = self.network.is_cut();
            tokio::select! {
                biased;
                () = self.network.changed() => {}
                reports = self.target.next_reports(), if !is_cut => {
                    reports.iter().for_each(|report| _ = self.sent.remove(&report.ticket));
                    return reports;
                }
            }
        }
    }

    async fn close(&mut self) {
        self.target.close().await;
    }
}

enum QueuedRequest {
    Open(ProducerIdentity),
    Send(WaitingRecord, u64),
    Commit(TxnOffset),
    Abort,
}

/// The transactional producers of one process.
pub(crate) struct NetworkTransactions {
    network: Rc<Network>,
    producers: MemoryTransactions,
    failures: u64,
    waiting: VecDeque<(u64, QueuedRequest)>,
    /// Producers that were opened and neither failed nor were discarded.
    open: BTreeSet<u64>,
    events: Vec<(u64, ProducerEvent)>,
}

impl NetworkTransactions {
    pub(crate) fn new(world: &World, network: &Rc<Network>) -> Self {
        Self {
            network: network.clone(),
            producers: world.cluster().transactional_producers(),
            failures: network.failures(),
            waiting: VecDeque::new(),
            open: BTreeSet::new(),
            events: Vec::new(),
        }
    }

    fn fail(&mut self, number: u64) {
        self.producers.discard(number);
        self.events.push((
            number,
            ProducerEvent::Failed {
                is_fenced: false,
                reason: closed().detail,
            },
        ));
    }

    fn resume(&mut self) {
        if self.failures != self.network.failures() {
            self.failures = self.network.failures();
            self.waiting.clear();
            std::mem::take(&mut self.open)
                .into_iter()
                .for_each(|number| self.fail(number));
        }
        while !self.network.is_cut()
            && let Some((number, asked)) = self.waiting.pop_front()
        {
            self.forward(number, asked);
        }
    }

    fn forward(&mut self, number: u64, asked: QueuedRequest) {
        match asked {
            QueuedRequest::Open(name) => self.producers.open(number, &name),
            QueuedRequest::Send(record, ticket) => {
                if let SendResult::Failed(failure) =
                    record.send(|record| self.producers.send(number, record, ticket))
                {
                    self.events.push((
                        number,
                        ProducerEvent::Reports(vec![failed(ticket, failure)]),
                    ));
                }
            }
            QueuedRequest::Commit(marker) => self.producers.commit(number, marker),
            QueuedRequest::Abort => self.producers.abort(number),
        }
    }

    fn request(&mut self, number: u64, asked: QueuedRequest) {
        self.resume();
        if !self.open.contains(&number) {
            return;
        }
        if self.network.is_cut() {
            self.waiting.push_back((number, asked));
        } else {
            self.forward(number, asked);
        }
    }
}

#[async_trait(?Send)]
impl TransactionalProducers for NetworkTransactions {
    fn preconnect(&mut self, name: &ProducerIdentity) {
        self.producers.preconnect(name);
    }

    fn open(&mut self, number: u64, name: &ProducerIdentity) {
        self.resume();
        if self.network.have_producers_failed() {
            return self.fail(number);
        }
        self.open.insert(number);
        self.request(number, QueuedRequest::Open(name.clone()));
    }

    fn send(&mut self, number: u64, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        self.resume();
        if !self.open.contains(&number) {
            return SendResult::Failed(closed());
        }
        if !self.network.is_cut() {
            return self.producers.send(number, record, ticket);
        }
        self.waiting.push_back((
            number,
            QueuedRequest::Send(WaitingRecord::new(record), ticket),
        ));
        SendResult::Accepted
    }

    fn commit(&mut self, number: u64, marker: TxnOffset) {
        self.request(number, QueuedRequest::Commit(marker));
    }

    fn abort(&mut self, number: u64) {
        self.request(number, QueuedRequest::Abort);
    }

    /// The brokers keep its open transaction until the next producer with the same id.
    fn discard(&mut self, number: u64) {
        self.open.remove(&number);
        self.waiting.retain(|(of, _)| *of != number);
        self.events.retain(|(of, _)| *of != number);
        self.producers.discard(number);
    }

    /// Safe to drop: events leave only with the return value.
    async fn next_events(&mut self) -> Vec<(u64, ProducerEvent)> {
        loop {
            self.resume();
            if !self.events.is_empty() {
                return std::mem::take(&mut self.events);
            }
            let is_cut = self.network.is_cut();
            tokio::select! {
                biased;
                () = self.network.changed() => {}
                happened = self.producers.next_events(), if !is_cut => {
                    for (number, _) in happened.iter().filter(|(_, happened)| matches!(happened, ProducerEvent::Failed { .. })) {
                        self.open.remove(number);
                    }
                    return happened;
                }
            }
        }
    }

    async fn close(&mut self) {
        self.producers.close().await;
    }
}
