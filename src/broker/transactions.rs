//! The port of transactional producers. Records and an offset are committed together:
//! `read_committed` consumers see all of them, or none.
//!
//! The caller chooses the number of each producer and never reuses it. Opening a producer fences the
//! previous one with the same `transactional.id`, aborts its transaction, and only then reads the
//! committed offset. So the previous one can commit nothing that the new one does not know.

use super::{DeliveryReport, OutgoingRecord, SendResult};
use crate::model::{Offset, Partition};
use async_trait::async_trait;
use std::sync::Arc;

/// Only `next_events` and `close` wait. `next_events` returns the results of the other calls.
#[async_trait(?Send)]
pub(crate) trait TransactionalProducers {
    /// Connects in advance for a producer that may be opened soon, without fencing the current owner
    /// of the id. Causes no event. Safe to repeat.
    fn preconnect(&mut self, identity: &ProducerIdentity);

    /// Opens a producer. [`ProducerEvent::Opened`] or [`ProducerEvent::Failed`] follows.
    fn open(&mut self, number: u64, identity: &ProducerIdentity);

    /// Adds a record to the transaction of an open producer, and copies it. `ticket` returns with
    /// the report. If one record was not delivered, the transaction can only be aborted, and the
    /// reports on its other records have no meaning.
    fn send(&mut self, number: u64, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult;

    /// Commits the records sent since the last commit or abort, with `offset`, atomically. All of
    /// them must be reported as delivered. Succeeds also after a short outage; then the next
    /// transaction may need another producer.
    ///
    /// [`ProducerEvent::Committed`], [`ProducerEvent::Aborted`] or [`ProducerEvent::Failed`]
    /// follows. After `Failed`, the transaction may or may not be committed.
    fn commit(&mut self, number: u64, offset: TxnOffset);

    /// Aborts the records sent since the last commit or abort. [`ProducerEvent::Aborted`] or
    /// [`ProducerEvent::Failed`] follows. Reports on the records precede that event, or never come.
    fn abort(&mut self, number: u64);

    /// Closes a producer without a commit. The next producer of the id, or the broker's transaction
    /// timeout, aborts its open transaction. The producer causes no more events.
    fn discard(&mut self, number: u64);

    /// Waits until there is an event. The events of each producer are in order. Cancel-safe.
    async fn next_events(&mut self) -> Vec<(u64, ProducerEvent)>;

    /// Closes all producers. No call may follow.
    async fn close(&mut self);
}

/// A `transactional.id`, and the group and source partition for which it commits an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProducerIdentity {
    pub(crate) transactional_id: String,
    /// This group has no members.
    pub(crate) offset_group: String,
    pub(crate) partition: Partition,
    /// The known topics that the producer may write to, besides its partition's topic.
    pub(crate) target_topics: Arc<[String]>,
}

/// The offset that is committed with a transaction, and its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TxnOffset {
    pub(crate) offset: Offset,
    pub(crate) metadata: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProducerEvent {
    /// Records may be sent. Contains the metadata of the committed offset, if there is one.
    Opened(Option<String>),
    Reports(Vec<DeliveryReport>),
    /// Records of the next transaction may be sent.
    Committed,
    /// No consumer will see the aborted records. Records of the next transaction may be sent.
    Aborted,
    /// The producer is unusable. Another one with the same identity may be opened.
    Failed {
        is_fenced: bool,
        reason: String,
    },
}
