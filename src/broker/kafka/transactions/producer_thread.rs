//! The thread of one transactional producer: opens it, makes the blocking calls, serves its
//! reports.
//!
//! Opening has these steps: connect, wait for [`Command::Open`], fence the predecessor, commit an
//! empty transaction, and read the committed offset's metadata. Other owners of the
//! `transactional.id` notice only the fence and the steps after it.

use super::ClusterContext;
use super::colocated_group::colocated_group;
use crate::broker::kafka::admin::{AdminHandle, WorkerThread};
use crate::broker::kafka::error::{
    client_failed, delivery_failure, delivery_report, is_batch_rejection,
};
use crate::broker::kafka::ffi::{Delivery, NativeProducer, NextStep, TxnError};
use crate::broker::kafka::health::ClusterHealth;
use crate::broker::kafka::limit::{
    KAFKA_CLIENT_WAKE_INTERVAL, KAFKA_MARKER_POLL_INTERVAL, KAFKA_MARKER_TIMEOUT,
    KAFKA_MARKER_WARN_AFTER, KAFKA_TRANSACTION_CALL_TIMEOUT,
};
use crate::broker::kafka::partition_list;
use crate::broker::{DeliveryReport, Error, ProducerEvent, ProducerIdentity, TxnOffset};
use crate::model::Offset;
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub(super) enum Command {
    /// The first command. The producer reports its events under this number.
    Open(u64),
    Commit(TxnOffset),
    Abort,
}

pub(super) struct ProducerThread {
    /// `None` until the producer is opened; then it reports no events.
    pub(super) number: Option<u64>,
    pub(super) context: ClusterContext,
    pub(super) identity: ProducerIdentity,
    pub(super) native: Arc<NativeProducer>,
    pub(super) commands: Receiver<Command>,
    pub(super) admin: AdminHandle,
    pub(super) stop: Arc<AtomicBool>,
    /// The end of the single record mode, if this producer was created in it.
    pub(super) single_record_until: Option<Instant>,
    /// A broker rejected a batch, so the record at fault is unknown.
    pub(super) batch_was_rejected: bool,
}

/// Why the thread ends.
enum ExitReason {
    Stopped,
    Failed { is_fenced: bool, reason: String },
}

fn failed(reason: impl Into<String>) -> ExitReason {
    ExitReason::Failed {
        is_fenced: false,
        reason: reason.into(),
    }
}

impl From<TxnError> for ExitReason {
    fn from(TxnError { code, text, .. }: TxnError) -> Self {
        Self::Failed {
            is_fenced: is_fenced(code),
            reason: text,
        }
    }
}

fn is_fenced(code: Code) -> bool {
    matches!(
        code,
        Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch
    )
}

impl ProducerThread {
    pub(super) fn serve(mut self) {
        if let Err(ExitReason::Failed { is_fenced, reason }) = self.run() {
            if self.number.is_none()
                && let Ok(Command::Open(number)) = self.commands.recv()
            {
                self.number = Some(number);
            }
            self.report(ProducerEvent::Failed { is_fenced, reason });
        }
        self.native.purge();
        while self.native.queued_events() > 0 && self.poll(KAFKA_CLIENT_WAKE_INTERVAL) {}
    }

    fn run(&mut self) -> Result<(), ExitReason> {
        let metadata = self.open()?;
        self.report(ProducerEvent::Opened(metadata));
        loop {
            match self.next_command()? {
                Command::Commit(offset) => self.commit(&offset)?,
                Command::Abort => self.abort()?,
                Command::Open(_) => return Err(failed("the producer was opened twice")),
            }
        }
    }

    /// Serves the client until there is a command.
    fn next_command(&mut self) -> Result<Command, ExitReason> {
        loop {
            self.check_usable()?;
            match self.commands.try_recv() {
                Ok(command) => return Ok(command),
                Err(TryRecvError::Empty) => _ = self.poll(KAFKA_CLIENT_WAKE_INTERVAL),
                Err(TryRecvError::Disconnected) => return Err(ExitReason::Stopped),
            }
        }
    }

    /// Returns the metadata of the committed offset.
    fn open(&mut self) -> Result<Option<String>, ExitReason> {
        self.connect()?;
        let Command::Open(number) = self.next_command()? else {
            return Err(failed("the producer was not opened"));
        };
        self.number = Some(number);
        self.call_until_done(NativeProducer::init_transactions)?;
        self.commit_empty_transaction()?;
        let metadata = self.read_committed_metadata()?;
        self.native.begin_transaction()?;
        Ok(metadata)
    }

    fn report(&self, event: ProducerEvent) {
        if let Some(number) = self.number {
            self.context.report(number, event);
        }
    }

    /// Waits for a broker connection.
    fn connect(&mut self) -> Result<(), ExitReason> {
        let source = self
            .native
            .topic(&self.identity.partition.topic)
            .ok_or_else(|| failed("the source topic has an invalid name"))?;
        self.call_until_done(|native, timeout| native.connect(&source, timeout))
    }

    fn check_usable(&self) -> Result<(), ExitReason> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ExitReason::Stopped);
        }
        if let Some((code, text)) = self.native.client().fatal_error() {
            return Err(ExitReason::Failed {
                is_fenced: is_fenced(code),
                reason: text,
            });
        }
        if self.batch_was_rejected {
            let id = &self.identity.transactional_id;
            self.context.start_single_records(id);
            return Err(failed(
                "a broker rejected a batch: sending single records for a while to find the one at \
                 fault",
            ));
        }
        Ok(())
    }

    /// Commits an empty transaction with an offset of a group in the same offsets partition, for
    /// two broker faults. A broker may complete a transaction without telling the offsets partition,
    /// and then never returns the committed offset; the next transaction ends it there. A broker
    /// that was killed under load may return an outdated committed offset until something is
    /// written to the offsets partition.
    fn commit_empty_transaction(&mut self) -> Result<(), ExitReason> {
        self.native.begin_transaction()?;
        let group = colocated_group(&self.identity.offset_group);
        let offset = TxnOffset {
            offset: Offset(0),
            metadata: String::new(),
        };
        match self.commit_with_offset(&group, &offset)? {
            None => Ok(()),
            Some(error) => Err(failed(format!(
                "cannot commit an empty transaction with the group {group}: {error}"
            ))),
        }
    }

    /// The metadata that was committed last. Waits for a transaction that is being committed.
    fn read_committed_metadata(&mut self) -> Result<Option<String>, ExitReason> {
        let warn_at = Instant::now() + KAFKA_MARKER_WARN_AFTER;
        let mut has_warned = false;
        loop {
            match self.ask_for_metadata()? {
                Ok(metadata) => return Ok(metadata),
                Err(Error::Unavailable(reason)) => {
                    let is_late = warn_at <= Instant::now();
                    if is_late && !has_warned && self.context.health.outage_reason().is_none() {
                        has_warned = true;
                        tracing::warn!(
                            partition = %self.identity.partition,
                            group = self.identity.offset_group,
                            transactional_id = self.identity.transactional_id,
                            reason,
                            "partition is not delivered: the broker does not return its committed \
                             offset (docs/exactly-once.md: a transaction that hangs)"
                        );
                    }
                    self.poll(KAFKA_TRANSACTION_CALL_TIMEOUT);
                }
                Err(error) => {
                    return Err(failed(format!("cannot read the committed offset: {error}")));
                }
            }
        }
    }

    fn ask_for_metadata(&mut self) -> Result<Result<Option<String>, Error>, ExitReason> {
        let group = self.identity.offset_group.clone();
        let partitions = [self.identity.partition.clone()];
        // A short timeout: the broker does not answer while a transaction is open, and other
        // requests wait behind this one.
        let request = move |worker: &mut WorkerThread| {
            worker.committed_metadata(&group, &partitions, Duration::from_secs(1))
        };
        let mut answer = match self.admin.start(request) {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(error)),
        };
        loop {
            self.check_usable()?;
            match answer.try_recv() {
                Ok(found) => return Ok(found.map(|found| found.into_iter().next().flatten())),
                Err(oneshot::error::TryRecvError::Empty) => self.poll(KAFKA_MARKER_POLL_INTERVAL),
                Err(oneshot::error::TryRecvError::Closed) => {
                    return Ok(Err(Error::Fatal("the admin thread has ended".into())));
                }
            };
        }
    }

    fn commit(&mut self, offset: &TxnOffset) -> Result<(), ExitReason> {
        let group = self.identity.offset_group.clone();
        if let Some(reason) = self.commit_with_offset(&group, offset)? {
            tracing::warn!(
                transactional_id = self.identity.transactional_id,
                group,
                reason,
                "commit was rejected: aborting the transaction and sending its messages again"
            );
            return self.abort();
        }
        self.context.health.record_response();
        let next = self.begin_next();
        self.report(ProducerEvent::Committed);
        next
    }

    fn begin_next(&self) -> Result<(), ExitReason> {
        if self
            .single_record_until
            .is_some_and(|until| until <= Instant::now())
        {
            return Err(failed("single record mode ended: opening a new producer"));
        }
        Ok(self.native.begin_transaction()?)
    }

    /// Commits the sent records with the group's offset. Returns why the transaction can only be
    /// aborted, if so.
    fn commit_with_offset(
        &mut self,
        group: &str,
        offset: &TxnOffset,
    ) -> Result<Option<String>, ExitReason> {
        let mut offsets = TopicPartitionList::with_capacity(1);
        partition_list::add(
            &mut offsets,
            &self.identity.partition,
            offset.offset,
            Some(&offset.metadata),
        );
        let error =
            self.call(|native, _| native.send_offsets(group, &offsets, KAFKA_MARKER_TIMEOUT))?;
        if error.is_some() {
            return Ok(error);
        }
        self.call(NativeProducer::commit_transaction)
    }

    fn abort(&mut self) -> Result<(), ExitReason> {
        self.poll_all();
        self.call_until_done(NativeProducer::abort_transaction)?;
        self.poll_all();
        self.native.begin_transaction()?;
        // A batch rejection is reported only now, because the abort had to come first.
        self.check_usable()?;
        self.report(ProducerEvent::Aborted);
        Ok(())
    }

    fn call_until_done(
        &mut self,
        call: impl FnMut(&NativeProducer, Duration) -> Result<(), TxnError>,
    ) -> Result<(), ExitReason> {
        match self.call(call)? {
            None => Ok(()),
            Some(error) => Err(failed(format!("librdkafka demands an abort: {error}"))),
        }
    }

    /// Repeats a call until it succeeds. Returns why the transaction can only be aborted, if so.
    fn call(
        &mut self,
        mut call: impl FnMut(&NativeProducer, Duration) -> Result<(), TxnError>,
    ) -> Result<Option<String>, ExitReason> {
        loop {
            let Err(error) = call(&self.native, KAFKA_TRANSACTION_CALL_TIMEOUT) else {
                return Ok(None);
            };
            match error.next_step {
                NextStep::Abort => return Ok(Some(error.text)),
                NextStep::Fatal => return Err(error.into()),
                NextStep::Retry => {}
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(ExitReason::Stopped);
            }
            self.poll_all();
        }
    }

    fn poll_all(&mut self) {
        while self.poll(Duration::ZERO) {}
    }

    /// Serves one event of the client. Returns whether there was one.
    fn poll(&mut self, patience: Duration) -> bool {
        let Self {
            native,
            context,
            single_record_until,
            batch_was_rejected,
            ..
        } = self;
        let health = &context.health;
        let is_single_record = single_record_until.is_some();
        let mut reports = Vec::new();
        let served = native.poll(
            patience,
            &mut |event| health.on_client_event(event),
            |delivery| {
                let is_rejected_batch =
                    !is_single_record && delivery.error.is_some_and(is_batch_rejection);
                *batch_was_rejected |= is_rejected_batch;
                reports.push(to_report(delivery, is_rejected_batch, health));
            },
        );
        if !reports.is_empty() {
            self.report(ProducerEvent::Reports(reports));
        }
        served
    }
}

fn to_report(
    delivery: &Delivery<'_>,
    is_rejected_batch: bool,
    health: &ClusterHealth,
) -> DeliveryReport {
    let Some(code) = delivery.error else {
        health.record_response();
        return delivery_report(delivery, Ok(()));
    };
    let mut failure = delivery_failure(code, delivery.may_be_stored(), &delivery.text());
    if is_rejected_batch {
        // Another record of the batch may be at fault.
        failure = client_failed(format!("the broker rejected its batch: {}", failure.detail));
    }
    delivery_report(delivery, Err(failure))
}
