//! Kafka's transactions: a producer for each transactor, named by its transactional id, which the brokers let only the latest bearer use.
//!
//! The calls that make, commit and abort transactions block, so each producer has a thread (`transactor`). Which record of a refused batch
//! was at fault the broker does not say, and within a transaction no other producer can try: so the producer is lost, and the next ones of
//! its name send each record in a batch of its own for [`KAFKA_SINGLE_RECORD_BATCHES_DURATION`](crate::limit::KAFKA_ALONE).

use super::catalog;
use super::client_thread::ClientThread;
use super::health::ClusterHealth;
use super::inquiry::AdminWorker;
use super::mending::RecoveryState;
use super::raw::{NativeProducer, PersistStatus, ProduceRequest};
use super::topics::Topics;
use super::transactor::{Command, EventQueue, ProducerThread, SingleRecordMode};
use super::{
    ClientOptions, Cluster, PRODUCER_ENFORCED, client_creation_error, failure, invalid_topic_name,
    kbytes, millis,
};
use crate::broker::{
    Error, OutgoingRecord, ProducerEvent, ProducerIdentity, SendResult, TransactionalProducers,
    TxnOffset,
};
use crate::health::HealthPart;
use crate::limit::{
    BULK_LANE_MESSAGES_MAX, HANDOVER_ACQUIRE_DURATION, KAFKA_PRODUCER_QUEUE_BYTES_MAX,
    KAFKA_SEND_LINGER, KAFKA_TRANSACTION_NEW_TOPIC_TIMEOUT, KAFKA_TRANSACTION_TIMEOUT,
    PRECONNECTIONS_MAX,
};
use crate::model::Reason;
use async_trait::async_trait;
use futures_util::future::{join_all, pending};
use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use tokio::time::Instant;

const SIDE: ClientOptions = ClientOptions {
    defaults: &[
        ("socket.nagle.disable", "true"),
        // As of a target.
        ("max.in.flight.requests.per.connection", "1"),
        // While the coordinator ends the last transaction it answers the first request of the next that it is busy.
        ("retry.backoff.ms", "5"),
    ],
    limits: &[("queue.buffering.max.ms", millis(KAFKA_SEND_LINGER))],
    enforced: PRODUCER_ENFORCED,
};

/// The port of transactions on one cluster.
pub(crate) struct KafkaTransactionalProducers {
    cluster: Cluster,
    health: ClusterHealth,
    heard: Arc<EventQueue>,
    alone: Arc<SingleRecordMode>,
    memory: Arc<RecoveryState>,
    lines: BTreeMap<u64, ProducerHandle>,
    /// Connected for names that may be opened soon, and until when each is kept.
    expected: BTreeMap<String, (Instant, ProducerHandle)>,
    /// Those that follow, when there is room. As many as there are shards.
    next: VecDeque<(Instant, ProducerIdentity)>,
    /// Ended, and not gone yet.
    retired: Vec<ProducerHandle>,
    /// Declared after the lines, which ask it.
    inquiry: AdminWorker,
}

/// One producer. Dropping it joins its thread.
struct ProducerHandle {
    topics: Topics,
    /// Given up before the thread is waited for: the last to hold it ends the client, which blocks.
    sender: Option<Arc<NativeProducer>>,
    orders: Option<SyncSender<Command>>,
    stop: Arc<AtomicBool>,
    /// As of its desk.
    is_used: Arc<AtomicBool>,
    thread: ClientThread,
    /// Sends each record in a batch of its own.
    is_alone: bool,
    in_flight: usize,
}

impl KafkaTransactionalProducers {
    /// `part` tells of the cluster. Of `group` the markers are asked without waiting for a connection.
    pub(crate) fn new(
        cluster: &Cluster,
        group: Option<&str>,
        part: HealthPart,
    ) -> Result<Self, Error> {
        let health = ClusterHealth::new(&cluster.name, part);
        let inquiry = catalog::inquiry(cluster, group, health.clone())?;
        let (heard, alone, memory, lines, expected, next) = Default::default();
        Ok(Self {
            cluster: cluster.clone(),
            health,
            heard,
            alone,
            memory,
            lines,
            expected,
            next,
            retired: Vec::new(),
            inquiry,
        })
    }

    fn config(&self, id: &str, is_alone: bool) -> ClientConfig {
        let lasts = millis(KAFKA_TRANSACTION_TIMEOUT).to_string();
        let mut config = self.cluster.config(
            &SIDE,
            &[
                ("transactional.id", id.to_owned()),
                ("transaction.timeout.ms", lasts.clone()),
                ("message.timeout.ms", lasts),
                (
                    "topic.metadata.propagation.max.ms",
                    millis(KAFKA_TRANSACTION_NEW_TOPIC_TIMEOUT).to_string(),
                ),
                (
                    "queue.buffering.max.messages",
                    BULK_LANE_MESSAGES_MAX.to_string(),
                ),
                (
                    "queue.buffering.max.kbytes",
                    kbytes(KAFKA_PRODUCER_QUEUE_BYTES_MAX).to_string(),
                ),
            ],
        );
        if is_alone {
            config
                .set("batch.num.messages", "1")
                .set("queue.buffering.max.ms", "0")
                .set("max.in.flight.requests.per.connection", "5");
        }
        config
    }

    /// One that connects, and waits to be opened.
    fn line(&self, name: &ProducerIdentity) -> Result<ProducerHandle, Error> {
        let alone_until = self.alone.until(&name.transactional_id);
        let is_alone = alone_until.is_some();
        let sender = NativeProducer::new(&self.config(&name.transactional_id, is_alone))
            .map_err(|error| client_creation_error(&error))?;
        let (sender, stop, is_used) = (
            Arc::new(sender),
            Arc::<AtomicBool>::default(),
            Arc::<AtomicBool>::default(),
        );
        // One is asked for at a time; a second of room, so that asking never waits.
        let (orders, asked) = sync_channel(2);
        let asker = self
            .inquiry
            .asker()
            .ok_or_else(|| Error::Fatal("the transactors are closed".to_owned()))?;
        let desk = ProducerThread {
            number: None,
            name: name.clone(),
            sender: sender.clone(),
            orders: asked,
            stop: stop.clone(),
            is_used: is_used.clone(),
            heard: self.heard.clone(),
            health: self.health.clone(),
            cluster: self.cluster.clone(),
            is_open: false,
            is_cut: false,
            is_shaken: false,
            memory: self.memory.clone(),
            asker,
            alone: self.alone.clone(),
            alone_until,
            is_mixed: false,
        };
        let thread = ClientThread::start("kafka-transact", move || desk.serve())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(ProducerHandle {
            topics: Topics::new(),
            sender: Some(sender),
            orders: Some(orders),
            stop,
            is_used,
            thread,
            is_alone,
            in_flight: 0,
        })
    }

    /// The one that is ready for the name, if it is still as it should be.
    fn take_expected(&mut self, id: &str) -> Option<ProducerHandle> {
        let (_, line) = self.expected.remove(id)?;
        if line.is_alone == self.alone.until(id).is_some() {
            return Some(line);
        }
        self.give_up(line);
        None
    }

    fn give_up(&mut self, mut line: ProducerHandle) {
        line.retire();
        self.retired.push(line);
    }

    /// Those that were expected, and were not opened in time, go.
    fn expire(&mut self) {
        let now = Instant::now();
        let expired: Vec<_> = self
            .expected
            .extract_if(.., |_, (until, _)| *until <= now)
            .collect();
        expired
            .into_iter()
            .for_each(|(_, (_, line))| self.give_up(line));
        self.prune();
        self.connect_next();
    }

    /// Connects for names that are expected, as many as there is room for.
    fn connect_next(&mut self) {
        let now = Instant::now();
        while self.expected.len() < PRECONNECTIONS_MAX
            && let Some((until, name)) = self.next.pop_front()
        {
            if until > now
                && let Ok(line) = self.line(&name)
            {
                self.expected.insert(name.transactional_id, (until, line));
            }
        }
    }

    fn order(&mut self, number: u64, order: Command) {
        if let Some(line) = self.lines.get(&number) {
            line.order(order);
        }
    }

    fn prune(&mut self) {
        self.retired.retain(|line| !line.thread.is_finished());
    }
}

impl ProducerHandle {
    fn order(&self, order: Command) {
        let (Some(orders), Some(sender)) = (&self.orders, &self.sender) else {
            return;
        };
        // Its thread has ended, and that was told.
        let _told = orders.try_send(order);
        sender.wake_poll();
    }

    fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> Result<(), Code> {
        let Some(sender) = &self.sender else {
            return Err(Code::DestroyBroker);
        };
        // Before it is: nobody gives up meanwhile what is about to be written.
        self.is_used.store(true, Ordering::Release);
        let outbound = ProduceRequest {
            partition: record.partition,
            key: record.key,
            payload: record.payload,
            ticket,
        };
        sender.send(
            self.topics.of_sender(sender, record.topic)?,
            &outbound,
            record.all_headers(),
        )
    }

    fn retire(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.topics.clear();
        self.orders = None;
        if let Some(sender) = self.sender.take() {
            sender.wake_poll();
        }
    }

    async fn end(&mut self) {
        self.retire();
        self.thread.join().await;
    }
}

impl Drop for ProducerHandle {
    fn drop(&mut self) {
        self.retire();
    }
}

#[async_trait(?Send)]
impl TransactionalProducers for KafkaTransactionalProducers {
    /// Connects, which takes as long as the rest of an opening.
    fn preconnect(&mut self, name: &ProducerIdentity) {
        self.prune();
        if !self.expected.contains_key(&name.transactional_id) {
            self.next
                .retain(|(_, next)| next.transactional_id != name.transactional_id);
            self.next
                .push_back((Instant::now() + HANDOVER_ACQUIRE_DURATION, name.clone()));
        }
        self.connect_next();
    }

    fn open(&mut self, number: u64, name: &ProducerIdentity) {
        self.prune();
        self.next
            .retain(|(_, next)| next.transactional_id != name.transactional_id);
        match self
            .take_expected(&name.transactional_id)
            .map_or_else(|| self.line(name), Ok)
        {
            Ok(line) => {
                line.order(Command::Open(number));
                self.lines.insert(number, line);
            }
            Err(error) => self.heard.put(
                number,
                ProducerEvent::Failed {
                    is_fenced: false,
                    reason: error.to_string(),
                },
            ),
        }
        self.connect_next();
    }

    fn send(&mut self, number: u64, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        let closed = |detail: String| SendResult::Failed(failure::client_failed(detail));
        let Some(line) = self.lines.get_mut(&number) else {
            return closed("the transactor is gone".to_owned());
        };
        match line.send(record, ticket) {
            Ok(()) => {
                line.in_flight += 1;
                SendResult::Accepted
            }
            Err(Code::QueueFull) if line.in_flight > 0 => SendResult::QueueFull,
            Err(Code::QueueFull) => SendResult::Failed(failure::delivery_failure(
                Code::MessageSizeTooLarge,
                PersistStatus::NotPersisted,
                String::new(),
            )),
            Err(code @ Code::InvalidTopic) => SendResult::Failed(failure::delivery_failure(
                code,
                PersistStatus::NotPersisted,
                invalid_topic_name(record.topic),
            )),
            Err(code) => {
                let failure =
                    failure::delivery_failure(code, PersistStatus::NotPersisted, String::new());
                // Of a transaction that is to be aborted, or a client that has failed, nothing is known of the record.
                if failure.reason == Reason::TimedOut {
                    closed(failure.detail)
                } else {
                    SendResult::Failed(failure)
                }
            }
        }
    }

    fn commit(&mut self, number: u64, marker: TxnOffset) {
        self.order(number, Command::Commit(marker));
    }

    fn abort(&mut self, number: u64) {
        self.order(number, Command::Abort);
    }

    fn discard(&mut self, number: u64) {
        self.prune();
        if let Some(line) = self.lines.remove(&number) {
            self.give_up(line);
        }
    }

    /// Dropping it loses nothing: what happened leaves only with the answer.
    async fn next_events(&mut self) -> Vec<(u64, ProducerEvent)> {
        loop {
            let expiry = self.expected.values().map(|(until, _)| *until).min();
            let expiry = async {
                if let Some(until) = expiry {
                    tokio::time::sleep_until(until).await
                } else {
                    pending().await
                }
            };
            // Both arms are safe to drop.
            let mut happened = tokio::select! {
                happened = self.heard.take() => happened,
                () = expiry => {
                    self.expire();
                    continue;
                }
            };
            let is_failed_opening =
                |happened: &ProducerEvent| matches!(happened, ProducerEvent::Failed { .. });
            happened.retain(|(number, happened)| {
                self.lines.contains_key(number) || is_failed_opening(happened)
            });
            for (number, happened) in &happened {
                if let (ProducerEvent::Reports(reports), Some(line)) =
                    (happened, self.lines.get_mut(number))
                {
                    line.in_flight -= reports.len();
                }
            }
            if !happened.is_empty() {
                return happened;
            }
        }
    }

    async fn close(&mut self) {
        let expected = std::mem::take(&mut self.expected)
            .into_values()
            .map(|(_, line)| line);
        let lines = std::mem::take(&mut self.lines)
            .into_values()
            .chain(expected)
            .chain(self.retired.drain(..));
        let mut lines: Vec<_> = lines.collect();
        // At the same time, for each may have to wait for a broker that is away.
        tokio::join!(
            join_all(lines.iter_mut().map(ProducerHandle::end)),
            self.inquiry.end()
        );
    }
}
