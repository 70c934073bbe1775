//! Kafka's transactions: a producer for each transactor, named by its transactional id, which the brokers let only the latest bearer use.
//!
//! The calls that make, commit and abort transactions block, so each producer has a thread (`transactor`). Which record of a refused batch
//! was at fault the broker does not say, and within a transaction no other producer can try: so the producer is lost, and the next ones of
//! its name send each record in a batch of its own for [`KAFKA_ALONE`](crate::limit::KAFKA_ALONE).

use super::catalog;
use super::health::Health;
use super::inquiry::Inquiry;
use super::mending::Memory;
use super::raw::{Outbound, Sender, Status};
use super::thread::Thread;
use super::topics::Topics;
use super::transactor::{Alone, Desk, Heard, Order};
use super::{Cluster, SENDING, Side, failure, kbytes, millis, no_topic_name, unmade};
use crate::broker::{Error, Happened, Marker, Outgoing, Sent, Transactional, Transactors};
use crate::health::Part;
use crate::limit::{
    HANDED_LONG_MAX, KAFKA_SEND_BYTES_MAX, KAFKA_SEND_LINGER, KAFKA_TRANSACTION_MAX,
    KAFKA_TRANSACTION_NEW_TOPIC_MAX, TRANSACTOR_EXPECTED_MAX, TRANSACTORS_EXPECTED_MAX,
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

const SIDE: Side = Side {
    defaults: &[
        ("socket.nagle.disable", "true"),
        // As of a target.
        ("max.in.flight.requests.per.connection", "1"),
        // While the coordinator ends the last transaction it answers the first request of the next that it is busy.
        ("retry.backoff.ms", "5"),
    ],
    bounds: &[("queue.buffering.max.ms", millis(KAFKA_SEND_LINGER))],
    owned: SENDING,
};

/// The port of transactions on one cluster.
pub(crate) struct KafkaTransactors {
    cluster: Cluster,
    health: Health,
    heard: Arc<Heard>,
    alone: Arc<Alone>,
    memory: Arc<Memory>,
    lines: BTreeMap<u64, Line>,
    /// Connected for names that may be opened soon, and until when each is kept.
    expected: BTreeMap<String, (Instant, Line)>,
    /// Those that follow, when there is room. As many as there are shards.
    next: VecDeque<(Instant, Transactional)>,
    /// Ended, and not gone yet.
    retired: Vec<Line>,
    /// Declared after the lines, which ask it.
    inquiry: Inquiry,
}

/// One producer. Dropping it joins its thread.
struct Line {
    topics: Topics,
    /// Given up before the thread is waited for: the last to hold it ends the client, which blocks.
    sender: Option<Arc<Sender>>,
    orders: Option<SyncSender<Order>>,
    stop: Arc<AtomicBool>,
    /// As of its desk.
    is_used: Arc<AtomicBool>,
    thread: Thread,
    /// Sends each record in a batch of its own.
    is_alone: bool,
    in_flight: usize,
}

impl KafkaTransactors {
    /// `part` tells of the cluster. Of `group` the markers are asked without waiting for a connection.
    pub(crate) fn new(cluster: &Cluster, group: Option<&str>, part: Part) -> Result<Self, Error> {
        let health = Health::new(&cluster.name, part);
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
        let lasts = millis(KAFKA_TRANSACTION_MAX).to_string();
        let mut config = self.cluster.config(
            &SIDE,
            &[
                ("transactional.id", id.to_owned()),
                ("transaction.timeout.ms", lasts.clone()),
                ("message.timeout.ms", lasts),
                (
                    "topic.metadata.propagation.max.ms",
                    millis(KAFKA_TRANSACTION_NEW_TOPIC_MAX).to_string(),
                ),
                ("queue.buffering.max.messages", HANDED_LONG_MAX.to_string()),
                (
                    "queue.buffering.max.kbytes",
                    kbytes(KAFKA_SEND_BYTES_MAX).to_string(),
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
    fn line(&self, name: &Transactional) -> Result<Line, Error> {
        let alone_until = self.alone.until(&name.id);
        let is_alone = alone_until.is_some();
        let sender =
            Sender::new(&self.config(&name.id, is_alone)).map_err(|error| unmade(&error))?;
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
        let desk = Desk {
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
        let thread = Thread::start("kafka-transact", move || desk.serve())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Line {
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
    fn take_expected(&mut self, id: &str) -> Option<Line> {
        let (_, line) = self.expected.remove(id)?;
        if line.is_alone == self.alone.until(id).is_some() {
            return Some(line);
        }
        self.give_up(line);
        None
    }

    fn give_up(&mut self, mut line: Line) {
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
        while self.expected.len() < TRANSACTORS_EXPECTED_MAX
            && let Some((until, name)) = self.next.pop_front()
        {
            if until > now
                && let Ok(line) = self.line(&name)
            {
                self.expected.insert(name.id, (until, line));
            }
        }
    }

    fn order(&mut self, number: u64, order: Order) {
        if let Some(line) = self.lines.get(&number) {
            line.order(order);
        }
    }

    fn prune(&mut self) {
        self.retired.retain(|line| !line.thread.has_ended());
    }
}

impl Line {
    fn order(&self, order: Order) {
        let (Some(orders), Some(sender)) = (&self.orders, &self.sender) else {
            return;
        };
        // Its thread has ended, and that was told.
        let _told = orders.try_send(order);
        sender.interrupt();
    }

    fn send(&mut self, record: &Outgoing<'_>, ticket: u64) -> Result<(), Code> {
        let Some(sender) = &self.sender else {
            return Err(Code::DestroyBroker);
        };
        // Before it is: nobody gives up meanwhile what is about to be written.
        self.is_used.store(true, Ordering::Release);
        let outbound = Outbound {
            partition: record.partition,
            key: record.key,
            payload: record.payload,
            ticket,
        };
        sender.send(
            self.topics.of_sender(sender, record.topic)?,
            &outbound,
            record.out_headers(),
        )
    }

    fn retire(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.topics.clear();
        self.orders = None;
        if let Some(sender) = self.sender.take() {
            sender.interrupt();
        }
    }

    async fn end(&mut self) {
        self.retire();
        self.thread.end().await;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.retire();
    }
}

#[async_trait(?Send)]
impl Transactors for KafkaTransactors {
    /// Connects, which takes as long as the rest of an opening.
    fn expect(&mut self, name: &Transactional) {
        self.prune();
        if !self.expected.contains_key(&name.id) {
            self.next.retain(|(_, next)| next.id != name.id);
            self.next
                .push_back((Instant::now() + TRANSACTOR_EXPECTED_MAX, name.clone()));
        }
        self.connect_next();
    }

    fn open(&mut self, number: u64, name: &Transactional) {
        self.prune();
        self.next.retain(|(_, next)| next.id != name.id);
        match self
            .take_expected(&name.id)
            .map_or_else(|| self.line(name), Ok)
        {
            Ok(line) => {
                line.order(Order::Open(number));
                self.lines.insert(number, line);
            }
            Err(error) => self.heard.put(
                number,
                Happened::Lost {
                    is_fenced: false,
                    reason: error.to_string(),
                },
            ),
        }
        self.connect_next();
    }

    fn send(&mut self, number: u64, record: &Outgoing<'_>, ticket: u64) -> Sent {
        let closed = |detail: String| Sent::Failed(failure::closed(detail));
        let Some(line) = self.lines.get_mut(&number) else {
            return closed("the transactor is gone".to_owned());
        };
        match line.send(record, ticket) {
            Ok(()) => {
                line.in_flight += 1;
                Sent::Taken
            }
            Err(Code::QueueFull) if line.in_flight > 0 => Sent::Full,
            Err(Code::QueueFull) => Sent::Failed(failure::of_record(
                Code::MessageSizeTooLarge,
                Status::NotPersisted,
                String::new(),
            )),
            Err(code @ Code::InvalidTopic) => Sent::Failed(failure::of_record(
                code,
                Status::NotPersisted,
                no_topic_name(record.topic),
            )),
            Err(code) => {
                let failure = failure::of_record(code, Status::NotPersisted, String::new());
                // Of a transaction that is to be aborted, or a client that has failed, nothing is known of the record.
                if failure.reason == Reason::TimedOut {
                    closed(failure.detail)
                } else {
                    Sent::Failed(failure)
                }
            }
        }
    }

    fn commit(&mut self, number: u64, marker: Marker) {
        self.order(number, Order::Commit(marker));
    }

    fn abort(&mut self, number: u64) {
        self.order(number, Order::Abort);
    }

    fn end(&mut self, number: u64) {
        self.prune();
        if let Some(line) = self.lines.remove(&number) {
            self.give_up(line);
        }
    }

    /// Dropping it loses nothing: what happened leaves only with the answer.
    async fn happened(&mut self) -> Vec<(u64, Happened)> {
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
            let is_failed_opening = |happened: &Happened| matches!(happened, Happened::Lost { .. });
            happened.retain(|(number, happened)| {
                self.lines.contains_key(number) || is_failed_opening(happened)
            });
            for (number, happened) in &happened {
                if let (Happened::Reports(reports), Some(line)) =
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
            join_all(lines.iter_mut().map(Line::end)),
            self.inquiry.end()
        );
    }
}
