//! The [`TransactionalProducers`] port on Kafka: one librdkafka producer per `transactional.id`.
//!
//! librdkafka's transaction calls block, so each producer has a thread (`producer_thread`).

mod producer_handle;
mod producer_thread;
mod single_record_mode;

use super::admin::AdminWorker;
use super::error::{client_failed, delivery_failure};
use super::ffi::PersistStatus;
use super::hanging_txn::RecoveryState;
use super::health::ClusterHealth;
use super::options::Cluster;
use super::topic_name::invalid_topic_name;
use crate::broker::event_queue::EventQueue;
use crate::broker::{
    Error, OutgoingRecord, ProducerEvent, ProducerIdentity, SendResult, TransactionalProducers,
    TxnOffset,
};
use crate::health::HealthPart;
use crate::limit::{HANDOVER_ACQUIRE_DURATION, PRECONNECTIONS_MAX};
use crate::model::Reason;
use async_trait::async_trait;
use futures_util::future::{join_all, pending};
use producer_handle::ProducerHandle;
use producer_thread::Command;
use rdkafka::types::RDKafkaErrorCode as Code;
use single_record_mode::SingleRecordMode;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::time::Instant;

/// The port for one cluster.
pub(crate) struct KafkaTransactionalProducers {
    context: ClusterContext,
    /// Producers by the caller's number.
    producers: BTreeMap<u64, ProducerHandle>,
    /// Connected producers by `transactional.id`, each with its expiry.
    preconnected: BTreeMap<String, (Instant, ProducerHandle)>,
    /// Waiting for a place in `preconnected`, each with its expiry. At most one per shard.
    preconnect_queue: VecDeque<(Instant, ProducerIdentity)>,
    /// Retired producers whose threads have not ended.
    retired: Vec<ProducerHandle>,
    /// Declared after the producers, because their threads use it.
    admin: AdminWorker,
}

/// State that all producers of one cluster share.
#[derive(Clone)]
struct ClusterContext {
    cluster: Cluster,
    health: ClusterHealth,
    events: Arc<EventQueue<(u64, ProducerEvent)>>,
    single_record_mode: Arc<SingleRecordMode>,
    recovery_state: Arc<RecoveryState>,
}

impl ClusterContext {
    fn report(&self, number: u64, event: ProducerEvent) {
        self.events.push(&mut vec![(number, event)]);
    }
}

impl KafkaTransactionalProducers {
    /// Committed offsets of `group` are read without waiting for a connection.
    pub(crate) fn new(
        cluster: &Cluster,
        group: Option<&str>,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let health = ClusterHealth::new(&cluster.name, part);
        let admin = AdminWorker::with_own_client(cluster, group, health.clone())?;
        Ok(Self {
            context: ClusterContext {
                cluster: cluster.clone(),
                health,
                events: Arc::default(),
                single_record_mode: Arc::default(),
                recovery_state: Arc::default(),
            },
            producers: BTreeMap::new(),
            preconnected: BTreeMap::new(),
            preconnect_queue: VecDeque::new(),
            retired: Vec::new(),
            admin,
        })
    }

    fn connect(&self, identity: &ProducerIdentity) -> Result<ProducerHandle, Error> {
        let admin = self
            .admin
            .handle()
            .ok_or_else(|| Error::Fatal("the Kafka adapter is closed".to_owned()))?;
        ProducerHandle::connect(&self.context, identity, admin)
    }

    /// A preconnected producer, unless its batch mode has changed since.
    fn take_preconnected(&mut self, transactional_id: &str) -> Option<ProducerHandle> {
        let (_, producer) = self.preconnected.remove(transactional_id)?;
        let mode = &self.context.single_record_mode;
        if producer.is_single_record == mode.until(transactional_id).is_some() {
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
        self.retired.retain(|producer| !producer.is_closed());
    }

    /// Retires preconnected producers that were not opened in time.
    fn expire_preconnected(&mut self) {
        let now = Instant::now();
        let expired: Vec<_> = self
            .preconnected
            .extract_if(.., |_, (expiry, _)| *expiry <= now)
            .collect();
        for (_, (_, producer)) in expired {
            self.retire(producer);
        }
        self.drop_closed();
        self.preconnect_next();
    }

    /// Preconnects waiting identities while there is room.
    fn preconnect_next(&mut self) {
        let now = Instant::now();
        while self.preconnected.len() < PRECONNECTIONS_MAX
            && let Some((expiry, identity)) = self.preconnect_queue.pop_front()
        {
            if expiry > now
                && let Ok(producer) = self.connect(&identity)
            {
                self.preconnected
                    .insert(identity.transactional_id, (expiry, producer));
            }
        }
    }

    fn command(&mut self, number: u64, command: Command) {
        if let Some(producer) = self.producers.get(&number) {
            producer.command(command);
        }
    }

    /// Removes events of discarded producers, and updates the records in flight. Keeps failures,
    /// because the number of a producer that could not be opened is unknown.
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

fn send_error(code: Code, topic: &str, in_flight: usize) -> SendResult {
    let failed = |code, text: String| delivery_failure(code, PersistStatus::NotPersisted, &text);
    match code {
        Code::QueueFull if in_flight > 0 => SendResult::QueueFull,
        // The empty queue is too small for the record.
        Code::QueueFull => SendResult::Failed(failed(Code::MessageSizeTooLarge, String::new())),
        Code::InvalidTopic => SendResult::Failed(failed(code, invalid_topic_name(topic))),
        _ => {
            let failure = failed(code, String::new());
            // The transaction must be aborted or the client has failed: no fault of the record.
            if failure.reason == Reason::TimedOut {
                SendResult::Failed(client_failed(failure.detail))
            } else {
                SendResult::Failed(failure)
            }
        }
    }
}

#[async_trait(?Send)]
impl TransactionalProducers for KafkaTransactionalProducers {
    /// Connecting takes as long as the rest of opening.
    fn preconnect(&mut self, identity: &ProducerIdentity) {
        self.drop_closed();
        let id = &identity.transactional_id;
        if !self.preconnected.contains_key(id) {
            self.preconnect_queue
                .retain(|(_, waiting)| waiting.transactional_id != *id);
            let expiry = Instant::now() + HANDOVER_ACQUIRE_DURATION;
            self.preconnect_queue.push_back((expiry, identity.clone()));
        }
        self.preconnect_next();
    }

    fn open(&mut self, number: u64, identity: &ProducerIdentity) {
        self.drop_closed();
        let id = &identity.transactional_id;
        self.preconnect_queue
            .retain(|(_, waiting)| waiting.transactional_id != *id);
        let producer = match self.take_preconnected(id) {
            Some(producer) => Ok(producer),
            None => self.connect(identity),
        };
        match producer {
            Ok(producer) => {
                producer.command(Command::Open(number));
                self.producers.insert(number, producer);
            }
            Err(error) => self.context.report(
                number,
                ProducerEvent::Failed {
                    is_fenced: false,
                    reason: error.to_string(),
                },
            ),
        }
        self.preconnect_next();
    }

    fn send(&mut self, number: u64, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        let Some(producer) = self.producers.get_mut(&number) else {
            return SendResult::Failed(client_failed("the producer is closed".to_owned()));
        };
        match producer.send(record, ticket) {
            Ok(()) => {
                producer.in_flight += 1;
                SendResult::Accepted
            }
            Err(code) => send_error(code, record.topic, producer.in_flight),
        }
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
            self.admin.close()
        );
    }
}
