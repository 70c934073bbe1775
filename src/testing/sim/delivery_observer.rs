//! Records the deliveries of a simulated process, and whether it was allowed to make them.

use crate::broker::{
    DeliveryReport, OutgoingRecord, ProducerEvent, ProducerIdentity, SendResult, Target,
    TransactionalProducers, TxnOffset,
};
use crate::model::ShardId;
use crate::model::header_name::ORIGIN;
use crate::testing::sim::process_control::ProcessControl;
use crate::testing::sim::world::{ROUTE, World};
use async_trait::async_trait;
use std::collections::BTreeMap;

/// A producer that records each delivery, and whether the process was allowed to make it.
pub(crate) struct DeliveryObserver<T: ?Sized> {
    world: World,
    control: ProcessControl,
    inner: Box<T>,
    /// Message ids in open transactions, by producer number.
    open_transactions: BTreeMap<u64, Vec<String>>,
}

impl<T: ?Sized> DeliveryObserver<T> {
    pub(crate) fn new(world: &World, control: &ProcessControl, target: Box<T>) -> Self {
        Self {
            world: world.clone(),
            control: control.clone(),
            inner: target,
            open_transactions: BTreeMap::new(),
        }
    }

    /// Records the delivery. Returns the id of the message.
    fn record_send(&self, record: &OutgoingRecord<'_>) -> String {
        let text = |wanted: &str| {
            let value = record
                .all_headers()
                .find(|(name, _)| *name == wanted.as_bytes())?
                .1?;
            std::str::from_utf8(value).ok()
        };
        let uid = String::from_utf8_lossy(record.payload.unwrap_or_default()).into_owned();
        if let Some(partition) =
            text(ORIGIN).and_then(|origin| origin.split('/').nth(3)?.parse().ok())
        {
            self.world.record_delivery(
                uid.clone(),
                partition,
                (self.control.number, self.control.own_time()),
            );
        } else {
            self.world.note_message(
                &uid,
                format!(
                    "process {} retries {uid} via the source",
                    self.control.number
                ),
            );
        }
        uid
    }

    /// Records the end of a transaction for each of its messages.
    fn record_end(&mut self, number: u64, end: &str) {
        for uid in self.open_transactions.remove(&number).unwrap_or_default() {
            self.world.note_message(
                &uid,
                format!(
                    "process {}: the transaction of {uid} {end}",
                    self.control.number
                ),
            );
        }
    }
}

#[async_trait(?Send)]
impl Target for DeliveryObserver<dyn Target> {
    fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        let sent = self.inner.send(record, ticket);
        if sent == SendResult::Accepted {
            self.record_send(record);
        }
        sent
    }

    async fn next_reports(&mut self) -> Vec<DeliveryReport> {
        self.inner.next_reports().await
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

#[async_trait(?Send)]
impl TransactionalProducers for DeliveryObserver<dyn TransactionalProducers> {
    fn preconnect(&mut self, name: &ProducerIdentity) {
        self.inner.preconnect(name);
    }

    fn open(&mut self, number: u64, name: &ProducerIdentity) {
        self.world.note(format!(
            "process {} opens producer {number} of {}",
            self.control.number, name.partition
        ));
        // Opening a producer fences the previous owner of its id, which may still hold the shard.
        if let Some(objection) = self
            .control
            .leases
            .objection(&ShardId::new(ROUTE, name.partition.clone()))
        {
            let process = self.control.number;
            self.world.report_violation(format!(
                "process {process} opens a producer of {}, {objection}",
                name.partition
            ));
        }
        self.inner.open(number, name);
    }

    fn send(&mut self, number: u64, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        let sent = self.inner.send(number, record, ticket);
        if sent == SendResult::Accepted {
            let uid = self.record_send(record);
            self.open_transactions.entry(number).or_default().push(uid);
        }
        sent
    }

    fn commit(&mut self, number: u64, marker: TxnOffset) {
        self.inner.commit(number, marker);
    }

    fn abort(&mut self, number: u64) {
        self.inner.abort(number);
    }

    fn discard(&mut self, number: u64) {
        self.record_end(number, "is discarded");
        self.inner.discard(number);
    }

    async fn next_events(&mut self) -> Vec<(u64, ProducerEvent)> {
        let happened = self.inner.next_events().await;
        for (number, happened) in &happened {
            match happened {
                ProducerEvent::Opened(_) | ProducerEvent::Reports(_) => {}
                ProducerEvent::Committed => self.record_end(*number, "is committed"),
                ProducerEvent::Aborted => self.record_end(*number, "is aborted"),
                ProducerEvent::Failed { reason, .. } => {
                    self.world.note(format!(
                        "process {} has lost producer {number}: {reason}",
                        self.control.number
                    ));
                    self.record_end(*number, "has an unknown outcome");
                }
            }
        }
        happened
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}
