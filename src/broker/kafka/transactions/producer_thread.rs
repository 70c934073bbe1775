//! The thread of one transactional producer: opens it, makes the blocking calls, serves its
//! reports.
//!
//! Opening has these steps: connect, wait for [`Command::Open`], look up the last transaction,
//! fence the predecessor, end what a broker left open, commit an empty transaction, and read the
//! committed offset's metadata. Other owners of the `transactional.id` notice only the fence and
//! what follows.

use super::ClusterContext;
use crate::broker::kafka::admin::{AdminHandle, WorkerThread};
use crate::broker::kafka::error::{
    client_failed, delivery_failure, delivery_report, is_batch_rejection,
};
use crate::broker::kafka::ffi::{ClientEvent, Delivery, NativeProducer, NextStep, TxnError};
use crate::broker::kafka::hanging_txn::{Recovery, RecoveryFailed, colocated_group};
use crate::broker::kafka::health::ClusterHealth;
use crate::broker::kafka::partition_list;
use crate::broker::{DeliveryReport, Error, ProducerEvent, ProducerIdentity, TxnOffset};
use crate::limit::{
    KAFKA_CLIENT_WAKE_INTERVAL, KAFKA_MARKER_POLL_INTERVAL, KAFKA_MARKER_TIMEOUT,
    KAFKA_MARKER_WARN_AFTER, KAFKA_TRANSACTION_CALL_TIMEOUT,
};
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
    /// The caller has sent a record since the last commit, abort or opening was reported.
    pub(super) has_sent: Arc<AtomicBool>,
    /// The end of the single record mode, if this producer was created in it.
    pub(super) single_record_until: Option<Instant>,
    /// A broker rejected a batch, so the record at fault is unknown.
    pub(super) batch_was_rejected: bool,
    /// The opening was reported.
    pub(super) is_open: bool,
    /// All brokers were unreachable at some time since [`Command::Open`].
    pub(super) lost_all_brokers: bool,
    /// Some broker was unreachable at some time since [`Command::Open`].
    pub(super) lost_a_broker: bool,
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

impl From<RecoveryFailed> for ExitReason {
    fn from(RecoveryFailed(reason): RecoveryFailed) -> Self {
        failed(reason)
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
        self.is_open = true;
        self.report(ProducerEvent::Opened(metadata));
        loop {
            self.check_usable()?;
            self.check_recovery_while_idle()?;
            match self.commands.try_recv() {
                Ok(Command::Commit(offset)) => self.commit(&offset)?,
                Ok(Command::Abort) => self.abort()?,
                Ok(Command::Open(_)) => return Err(failed("the producer was opened twice")),
                Err(TryRecvError::Empty) => _ = self.poll(KAFKA_CLIENT_WAKE_INTERVAL),
                Err(TryRecvError::Disconnected) => return Err(ExitReason::Stopped),
            }
        }
    }

    /// Returns the metadata of the committed offset.
    fn open(&mut self) -> Result<Option<String>, ExitReason> {
        self.connect()?;
        self.wait_for_open_command()?;
        self.lost_all_brokers = false;
        self.lost_a_broker = false;
        // The coordinator forgets the last transaction with the fence, so look it up before.
        let recovery = self.look_up_last_transaction()?;
        self.call_until_done(NativeProducer::init_transactions)?;
        if let Some(recovery) = recovery {
            let state = self.context.recovery_state.clone();
            recovery.end_hanging(&state, &mut |patience| self.serve_opening(patience))?;
        }
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

    fn wait_for_open_command(&mut self) -> Result<(), ExitReason> {
        loop {
            self.check_usable()?;
            match self.commands.try_recv() {
                Ok(Command::Open(number)) => {
                    self.number = Some(number);
                    return Ok(());
                }
                Ok(Command::Commit(_) | Command::Abort) => {
                    return Err(failed("the producer was not opened"));
                }
                Err(TryRecvError::Empty) => _ = self.poll(KAFKA_CLIENT_WAKE_INTERVAL),
                Err(TryRecvError::Disconnected) => return Err(ExitReason::Stopped),
            }
        }
    }

    fn look_up_last_transaction(&mut self) -> Result<Option<Recovery>, ExitReason> {
        let context = self.context.clone();
        let identity = self.identity.clone();
        let stop = self.stop.clone();
        Recovery::prepare(
            &context.recovery_state,
            &context.cluster,
            &identity,
            stop,
            &mut |patience| self.serve_opening(patience),
        )
    }

    /// Serves the client while the recovery waits.
    fn serve_opening(&mut self, patience: Duration) -> Result<(), ExitReason> {
        self.poll(patience);
        self.check_usable()
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

    /// Fails an open producer after an outage. A broker that comes back may have forgotten to end
    /// the last transaction. Only a new opening repairs that, and it must come before the next
    /// transaction: otherwise an abort would also undo the last, committed one.
    fn check_no_recovery_needed(&self) -> Result<(), ExitReason> {
        if self.is_open && (self.lost_all_brokers || self.context.health.outage_reason().is_some())
        {
            return Err(failed(
                "the brokers were unreachable: a new producer ends what they may have left open",
            ));
        }
        Ok(())
    }

    /// The same, but only if no record was sent. A forgotten transaction and one with records end
    /// together: an abort loses committed messages, and a commit by another producer, without this
    /// producer's offset, duplicates the records. So a transaction with records must finish first.
    fn check_recovery_while_idle(&self) -> Result<(), ExitReason> {
        if self.has_sent.load(Ordering::Acquire) {
            Ok(())
        } else {
            self.check_no_recovery_needed()
        }
    }

    /// Commits an empty transaction with an offset of a group in the same offsets partition, for
    /// two broker faults. A broker may complete a transaction without telling its partitions; the
    /// next transaction ends it there. A broker that was killed under load may return an outdated
    /// committed offset until something is written to the offsets partition.
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
        // The caller may send as soon as it sees the event.
        self.has_sent.store(false, Ordering::Release);
        self.report(ProducerEvent::Committed);
        next
    }

    fn begin_next(&self) -> Result<(), ExitReason> {
        if self
            .single_record_until
            .is_some_and(|until| until <= Instant::now())
        {
            return Err(failed("a new producer sends records in batches again"));
        }
        self.check_no_recovery_needed()?;
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
        self.check_no_recovery_needed()?;
        if self.lost_a_broker {
            // After this abort, an unfinished part could not be told from an older forgotten
            // transaction. The next producer looks up where this one has written, and fences it.
            return Err(failed(
                "a broker was unreachable: the next producer aborts the transaction",
            ));
        }
        self.call_until_done(NativeProducer::abort_transaction)?;
        self.poll_all();
        self.native.begin_transaction()?;
        // A batch rejection is reported only now, because the abort had to come first.
        self.check_usable()?;
        self.has_sent.store(false, Ordering::Release);
        self.report(ProducerEvent::Aborted);
        Ok(())
    }

    fn call_until_done(
        &mut self,
        call: impl FnMut(&NativeProducer, Duration) -> Result<(), TxnError>,
    ) -> Result<(), ExitReason> {
        match self.call(call)? {
            None => Ok(()),
            Some(error) => Err(failed(format!("cannot abort the transaction: {error}"))),
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
            self.check_recovery_while_idle()?;
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
            lost_all_brokers,
            lost_a_broker,
            ..
        } = self;
        let health = &context.health;
        let mut on_event = |event: ClientEvent| {
            if let ClientEvent::Error { code, .. } = &event {
                *lost_all_brokers |= *code == Code::AllBrokersDown;
                *lost_a_broker |= matches!(
                    code,
                    Code::BrokerTransportFailure
                        | Code::Resolve
                        | Code::OperationTimedOut
                        | Code::AllBrokersDown
                );
            }
            health.on_client_event(event);
        };
        let is_single_record = single_record_until.is_some();
        let mut reports = Vec::new();
        let served = native.poll(patience, &mut on_event, |delivery| {
            let is_rejected_batch =
                !is_single_record && delivery.error.is_some_and(is_batch_rejection);
            *batch_was_rejected |= is_rejected_batch;
            reports.push(to_report(delivery, is_rejected_batch, health));
        });
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
