//! The port of transactions: records that readers of what is committed see all at once along with a marker, or never.
//!
//! One adapter has many *transactors*, a number each, which the caller gives and never uses twice. A transactor bears a name that outlives
//! it: opening one under a name fences whoever bore it before, ends that one's transaction, and only then reads the marker. So of two that
//! bear one name the later knows what the earlier committed, and the earlier commits nothing more.

use super::{DeliveryReport, OutgoingRecord, SendResult};
use crate::model::{Offset, Partition};
use async_trait::async_trait;
use std::sync::Arc;

/// See the module's page. Nothing here waits but [`Transactors::happened`]: what was asked for is told by it.
#[async_trait(?Send)]
pub(crate) trait TransactionalProducers {
    /// One of this name may be opened soon: whatever that takes and another bearer of the name does not notice may be done in advance. Nothing
    /// is told of it.
    fn preconnect(&mut self, name: &ProducerIdentity);

    /// [`Happened::Opened`] or [`Happened::Lost`] follows.
    fn open(&mut self, number: u64, name: &ProducerIdentity);

    /// Takes a record over into the transaction of an open transactor, copying it; `ticket` comes back with the report. Once one of its
    /// records was not delivered, a transaction can only be aborted, and reports of the others in it mean nothing.
    fn send(&mut self, number: u64, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult;

    /// Commits what was sent since the last commit or abort, all of which was reported as delivered, along with `marker`. So it can be after an
    /// outage, too, if that does not last: what comes after it may need another transactor.
    /// [`Happened::Committed`], [`Happened::Aborted`] or [`Happened::Lost`] follows: lost, nobody knows whether it was committed.
    fn commit(&mut self, number: u64, marker: TxnOffset);

    /// Undoes what was sent since the last commit or abort. Reports of it come before [`Happened::Aborted`], or not at all.
    fn abort(&mut self, number: u64);

    /// Gives a transactor up, and with it what is not committed, which is undone by the next of its name or by the broker's own timeout.
    /// Nothing is told of it from here on.
    fn discard(&mut self, number: u64);

    /// What happened, in order for each transactor; waits until there is something. Safe to drop.
    async fn next_events(&mut self) -> Vec<(u64, ProducerEvent)>;

    /// Ends all. Nothing may be called after it.
    async fn close(&mut self);
}

/// The name of a transactor, and where its marker lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProducerIdentity {
    pub(crate) transactional_id: String,
    /// A group without members.
    pub(crate) offset_group: String,
    pub(crate) partition: Partition,
    /// The topics that it may write to besides its partition, as far as they are known in advance.
    pub(crate) target_topics: Arc<[String]>,
}

/// What is committed along with records: a position of the group, with a text that says more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TxnOffset {
    pub(crate) offset: Offset,
    pub(crate) metadata: String,
}

/// What happened to a transactor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProducerEvent {
    /// It may be sent by; the text of the marker that was committed last, if there is one.
    Opened(Option<String>),
    Reports(Vec<DeliveryReport>),
    Committed,
    /// None of what was sent is, or ever will be, seen; it may be sent by again.
    Aborted,
    /// Nothing can be done by it any more; another one of its name can be opened.
    Failed {
        is_fenced: bool,
        reason: String,
    },
}
