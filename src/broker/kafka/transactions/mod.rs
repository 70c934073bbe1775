//! The [`TransactionalProducers`] port on Kafka: one librdkafka producer per `transactional.id`.
//!
//! librdkafka's transaction calls block, so each producer has a thread (`producer_thread`).

mod colocated_group;
mod producer_handle;
mod producer_thread;
mod stuck_transactions;

use super::admin::AdminWorker;
use super::error::{client_failed, refused_send};
use super::health::ClusterHealth;
use super::options::Cluster;
use crate::broker::event_queue::EventQueue;
use crate::broker::kafka::limit::KAFKA_SINGLE_RECORD_BATCHES_DURATION;
use crate::broker::send_budget::SendBudget;
use crate::broker::{
    Error, OutgoingRecord, ProducerEvent, ProducerIdentity, SendResult, TransactionalProducers,
    TxnOffset,
};
use crate::health::HealthPart;
use crate::limit::{HANDOVER_ACQUIRE_DURATION, PRECONNECTIONS_MAX};
use async_trait::async_trait;
use futures_util::future::{join_all, pending};
use producer_handle::ProducerHandle;
use producer_thread::Command;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stuck_transactions::StuckTransactionCheck;
use tokio::time::Instant;

/// The port for one cluster.
pub(crate) struct KafkaTransactionalProducers {
    context: ClusterContext,
    /// Producers by the caller's number.
    producers: BTreeMap<u64, ProducerHandle>,
    /// Connected producers by `transactional.id`, each with its expiry.
    preconnected: BTreeMap<String, (Instant, ProducerHandle)>,
    /// Retired producers whose threads have not ended.
    retired: Vec<ProducerHandle>,
    /// Declared after the producers, because their threads use it.
    admin: AdminWorker,
    stuck_check: StuckTransactionCheck,
}

/// State that all producers of one cluster share.
#[derive(Clone)]
struct ClusterContext {
    cluster: Cluster,
    budget: Arc<SendBudget>,
    health: ClusterHealth,
    events: Arc<EventQueue<(u64, ProducerEvent)>>,
    /// Transactional ids whose producers send each record in a batch of its own, until a time. If a
    /// broker rejects a batch, it does not say which record is at fault, and no other producer can
    /// take part in the transaction. So the producer fails, and its successors send single records.
    single_record_ids: Arc<Mutex<BTreeMap<String, Instant>>>,
}

impl ClusterContext {
    fn report(&self, number: u64, event: ProducerEvent) {
        self.events.push(&mut vec![(number, event)]);
    }

    /// The end of the single record mode of this id, or `None` if it is not active.
    fn single_record_until(&self, transactional_id: &str) -> Option<Instant> {
        let now = Instant::now();
        let mut ids = self.single_record_ids();
        ids.retain(|_, until| *until > now);
        ids.get(transactional_id).copied()
    }

    fn start_single_records(&self, transactional_id: &str) {
        let until = Instant::now() + KAFKA_SINGLE_RECORD_BATCHES_DURATION;
        let id = transactional_id.to_owned();
        self.single_record_ids().insert(id, until);
    }

    fn single_record_ids(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        let ids = self.single_record_ids.lock();
        ids.unwrap_or_else(PoisonError::into_inner)
    }
}

impl KafkaTransactionalProducers {
    /// Committed offsets of `group` are read without waiting for a connection.
    pub(crate) fn new(
        cluster: &Cluster,
        budget: Arc<SendBudget>,
        group: Option<&str>,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let health = ClusterHealth::new(&cluster.name, part);
        let admin = AdminWorker::with_own_client(cluster, group, health.clone())?;
        let stuck_check = StuckTransactionCheck::new(cluster, health.clone())?;
        Ok(Self {
            context: ClusterContext {
                cluster: cluster.clone(),
                budget,
                health,
                events: Arc::default(),
                single_record_ids: Arc::default(),
            },
            producers: BTreeMap::new(),
            preconnected: BTreeMap::new(),
            retired: Vec::new(),
            admin,
            stuck_check,
        })
    }

    fn connect(&self, identity: &ProducerIdentity) -> Result<ProducerHandle, Error> {
        ProducerHandle::connect(&self.context, identity, self.admin.handle()?)
    }

    /// A preconnected producer, unless its batch mode has changed since.
    fn take_preconnected(&mut self, transactional_id: &str) -> Option<ProducerHandle> {
        let (_, producer) = self.preconnected.remove(transactional_id)?;
        let until = self.context.single_record_until(transactional_id);
        if producer.is_single_record == until.is_some() {
            return Some(producer);
        }
        self.retire(producer);
        None
    }

    fn retire(&mut self, mut producer: ProducerHandle) {
        producer.retire();
        self.retired.push(producer);
    }

    fn drop_closed(&mut self) {
        self.retired.retain(|producer| !producer.client.is_closed());
    }

    /// Retires preconnected producers that were not opened in time.
    fn expire_preconnected(&mut self) {
        let now = Instant::now();
        let preconnected = &mut self.preconnected;
        let expired = preconnected.extract_if(.., |_, (expiry, _)| *expiry <= now);
        let expired: Vec<_> = expired.collect();
        for (_, (_, producer)) in expired {
            self.retire(producer);
        }
        self.drop_closed();
    }

    fn command(&mut self, number: u64, command: Command) {
        if let Some(producer) = self.producers.get(&number) {
            producer.command(command);
        }
    }

    /// Removes events of discarded producers, and updates the records in flight. Keeps failures,
    /// because a producer that could not be opened is not in `producers`.
    fn apply_events(&mut self, events: &mut Vec<(u64, ProducerEvent)>) {
        events.retain(|(number, event)| {
            self.producers.contains_key(number) || matches!(event, ProducerEvent::Failed { .. })
        });
        for (number, event) in events {
            if let ProducerEvent::Reports(reports) = event
                && let Some(producer) = self.producers.get_mut(number)
            {
                producer.in_flight -= reports.len();
            }
        }
    }
}

#[async_trait(?Send)]
impl TransactionalProducers for KafkaTransactionalProducers {
    /// Connecting takes as long as the rest of opening. Without room, the producer connects when it
    /// is opened.
    fn preconnect(&mut self, identity: &ProducerIdentity) {
        self.drop_closed();
        let id = &identity.transactional_id;
        if self.preconnected.len() < PRECONNECTIONS_MAX
            && !self.preconnected.contains_key(id)
            && let Ok(producer) = self.connect(identity)
        {
            let expiry = Instant::now() + HANDOVER_ACQUIRE_DURATION;
            self.preconnected.insert(id.clone(), (expiry, producer));
        }
    }

    fn open(&mut self, number: u64, identity: &ProducerIdentity) {
        self.drop_closed();
        self.stuck_check.add_topics(identity);
        let preconnected = self.take_preconnected(&identity.transactional_id);
        match preconnected.map_or_else(|| self.connect(identity), Ok) {
            Ok(producer) => {
                producer.command(Command::Open(number));
                self.producers.insert(number, producer);
            }
            Err(error) => {
                let reason = error.to_string();
                let is_fenced = false;
                let failed = ProducerEvent::Failed { is_fenced, reason };
                self.context.report(number, failed);
            }
        }
    }

    fn send(&mut self, number: u64, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        let Some(producer) = self.producers.get_mut(&number) else {
            return SendResult::Failed(client_failed("the producer is closed".to_owned()));
        };
        // A record leaves the budget when a broker has stored it, before its transaction ends.
        if !self.context.budget.has_room() {
            return SendResult::QueueFull;
        }
        let Err(code) = producer.send(record, ticket) else {
            producer.in_flight += 1;
            return SendResult::Accepted;
        };
        // The transaction must be aborted or the client has failed: no fault of the record.
        refused_send(code, record.topic, producer.in_flight, || {
            Some(code.to_string())
        })
    }

    fn commit(&mut self, number: u64, offset: TxnOffset) {
        self.command(number, Command::Commit(offset));
    }

    fn abort(&mut self, number: u64) {
        self.command(number, Command::Abort);
    }

    fn discard(&mut self, number: u64) {
        self.drop_closed();
        if let Some(producer) = self.producers.remove(&number) {
            self.retire(producer);
        }
    }

    /// Cancel-safe: events leave only with the result.
    async fn next_events(&mut self) -> Vec<(u64, ProducerEvent)> {
        loop {
            // The caller calls this often, so no timer is needed.
            self.stuck_check.start_if_due();
            let next_expiry = self.preconnected.values().map(|(expiry, _)| *expiry).min();
            let expiry = async {
                match next_expiry {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => pending().await,
                }
            };
            // Both branches are safe to drop.
            let mut events = tokio::select! {
                events = self.context.events.take() => events,
                () = expiry => {
                    self.expire_preconnected();
                    continue;
                }
            };
            self.apply_events(&mut events);
            if !events.is_empty() {
                return events;
            }
        }
    }

    async fn close(&mut self) {
        let mut producers = std::mem::take(&mut self.retired);
        producers.extend(std::mem::take(&mut self.producers).into_values());
        let preconnected = std::mem::take(&mut self.preconnected).into_values();
        producers.extend(preconnected.map(|(_, producer)| producer));
        // Concurrently, because each may wait for an unreachable broker.
        tokio::join!(
            join_all(producers.iter_mut().map(ProducerHandle::close)),
            self.admin.close(),
            self.stuck_check.close()
        );
    }
}
