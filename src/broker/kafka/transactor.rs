//! One transactional producer, and the thread that serves its reports and makes the calls that block. What is in its transactions is the
//! caller's affair.

use super::Cluster;
use super::failure;
use super::health::ClusterHealth;
use super::inquiry::AdminHandle;
use super::mending::RecoveryState;
use super::namesake::colocated_group;
use super::raw::{ClientEvent, Delivery, NativeProducer, NextStep, TxnError};
use crate::broker::{DeliveryReport, Error, ProducerEvent, ProducerIdentity, TxnOffset};
use crate::limit::{
    KAFKA_CLIENT_WAKE_INTERVAL, KAFKA_MARKER_POLL_INTERVAL, KAFKA_MARKER_TIMEOUT,
    KAFKA_MARKER_WARN_AFTER, KAFKA_SINGLE_RECORD_BATCHES_DURATION, KAFKA_TRANSACTION_CALL_TIMEOUT,
};
use crate::model::Offset;
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What happened to transactors, on its way to the port's caller. Bounded by what the caller hands over and asks for.
#[derive(Default)]
pub(super) struct EventQueue {
    waiting: Mutex<Vec<(u64, ProducerEvent)>>,
    came: Notify,
}

impl EventQueue {
    pub(super) fn put(&self, number: u64, happened: ProducerEvent) {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((number, happened));
        self.came.notify_one();
    }

    /// Dropped early, it loses nothing: what happened leaves only with the answer.
    pub(super) async fn take(&self) -> Vec<(u64, ProducerEvent)> {
        loop {
            let happened =
                std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if !happened.is_empty() {
                return happened;
            }
            self.came.notified().await;
        }
    }
}

/// Names whose records are sent one a batch until an instant, for a batch of theirs was refused: only so it is known which record was it.
#[derive(Default)]
pub(super) struct SingleRecordMode(Mutex<BTreeMap<String, Instant>>);

impl SingleRecordMode {
    /// Until when, if it is now.
    pub(super) fn until(&self, id: &str) -> Option<Instant> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        names.retain(|_, until| *until > now);
        names.get(id).copied()
    }

    fn begin(&self, id: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(
                id.to_owned(),
                Instant::now() + KAFKA_SINGLE_RECORD_BATCHES_DURATION,
            );
    }
}

/// What the thread is asked to do.
pub(super) enum Command {
    /// First of all, under this number.
    Open(u64),
    Commit(TxnOffset),
    Abort,
}

/// What runs on the thread.
pub(super) struct ProducerThread {
    /// Nothing is told before it is opened.
    pub(super) number: Option<u64>,
    pub(super) name: ProducerIdentity,
    pub(super) sender: Arc<NativeProducer>,
    pub(super) orders: Receiver<Command>,
    pub(super) stop: Arc<AtomicBool>,
    /// Something was sent since it was opened, or the last commit or abort was told.
    pub(super) is_used: Arc<AtomicBool>,
    pub(super) heard: Arc<EventQueue>,
    pub(super) health: ClusterHealth,
    pub(super) cluster: Cluster,
    pub(super) asker: AdminHandle,
    pub(super) alone: Arc<SingleRecordMode>,
    /// Its batches hold one record, until then.
    pub(super) alone_until: Option<Instant>,
    /// Some record of a batch was refused.
    pub(super) is_mixed: bool,
    /// Its opening was told.
    pub(super) is_open: bool,
    /// All brokers that it was connected to are gone, or were since it began to be opened.
    pub(super) is_cut: bool,
    /// Some broker was out of reach since then.
    pub(super) is_shaken: bool,
    pub(super) memory: Arc<RecoveryState>,
}

/// Why the thread ends.
pub(super) enum ExitReason {
    Stopped,
    Failed { is_fenced: bool, reason: String },
}

pub(super) fn failed(reason: impl Into<String>) -> ExitReason {
    ExitReason::Failed {
        is_fenced: false,
        reason: reason.into(),
    }
}

impl ProducerThread {
    pub(super) fn serve(mut self) {
        if let Err(ExitReason::Failed { is_fenced, reason }) = self.work() {
            if self.number.is_none()
                && let Ok(Command::Open(number)) = self.orders.recv()
            {
                self.number = Some(number);
            }
            self.tell(ProducerEvent::Failed { is_fenced, reason });
        }
        self.sender.purge();
        while self.sender.queued_events() > 0 && self.poll(KAFKA_CLIENT_WAKE_INTERVAL) > 0 {}
    }

    fn work(&mut self) -> Result<(), ExitReason> {
        self.connect()?;
        self.await_opening()?;
        (self.is_cut, self.is_shaken) = (false, false);
        let mending = self.ask_for_last()?;
        self.insist(NativeProducer::init_transactions)?;
        mending.map_or(Ok(()), |mending| self.end_what_hangs(mending))?;
        self.settle()?;
        let marker = self.marker()?;
        self.begin()?;
        self.is_open = true;
        self.tell(ProducerEvent::Opened(marker));
        loop {
            self.check_usable()?;
            self.stay()?;
            match self.orders.try_recv() {
                Ok(Command::Commit(marker)) => self.commit(&marker)?,
                Ok(Command::Abort) => self.abort()?,
                Ok(Command::Open(_)) => return Err(failed("it was opened twice")),
                Err(TryRecvError::Empty) => _ = self.poll(KAFKA_CLIENT_WAKE_INTERVAL),
                Err(TryRecvError::Disconnected) => return Err(ExitReason::Stopped),
            }
        }
    }

    fn tell(&self, happened: ProducerEvent) {
        if let Some(number) = self.number {
            self.heard.put(number, happened);
        }
    }

    /// Up to here no other of its name notices anything.
    fn await_opening(&mut self) -> Result<(), ExitReason> {
        loop {
            self.check_usable()?;
            match self.orders.try_recv() {
                Ok(Command::Open(number)) => {
                    self.number = Some(number);
                    return Ok(());
                }
                Ok(Command::Commit(_) | Command::Abort) => return Err(failed("it was not opened")),
                Err(TryRecvError::Empty) => _ = self.poll(KAFKA_CLIENT_WAKE_INTERVAL),
                Err(TryRecvError::Disconnected) => return Err(ExitReason::Stopped),
            }
        }
    }

    /// Whether it can go on.
    pub(super) fn check_usable(&self) -> Result<(), ExitReason> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ExitReason::Stopped);
        }
        if let Some((code, words)) = self.sender.fatal_error() {
            return Err(ExitReason::Failed {
                is_fenced: is_fenced(code),
                reason: words,
            });
        }
        if self.is_mixed {
            self.alone.begin(&self.name.transactional_id);
            return Err(failed(
                "a batch was refused for one of its records: they are sent one by one for a while, to see which",
            ));
        }
        Ok(())
    }

    /// Whether it can be gone on with, once what is under way is committed. A broker that comes back may have forgotten to end the last transaction:
    /// that is to be mended before the next one takes part in anything, lest what was committed is undone along with it.
    fn go_on(&self) -> Result<(), ExitReason> {
        if self.is_open && (self.is_cut || self.health.outage_reason().is_some()) {
            return Err(failed(
                "its brokers are away, or were: what they may have left open is ended before another begins",
            ));
        }
        Ok(())
    }

    /// The same, while something may be under way. Where the last one was forgotten and this one has written, they end in one: undone, what was
    /// committed is lost; committed by another, without the marker that only this one has, what is under way is delivered twice. So it has to come to
    /// its own end.
    fn stay(&self) -> Result<(), ExitReason> {
        if self.is_used.load(Ordering::Acquire) {
            Ok(())
        } else {
            self.go_on()
        }
    }

    fn connect(&mut self) -> Result<(), ExitReason> {
        let source = self
            .sender
            .topic(&self.name.partition.topic)
            .ok_or_else(|| failed("its source has no name that a topic can have"))?;
        self.insist(|sender, patience| sender.connect(&source, patience))
    }

    /// Commits an empty transaction, for two things that brokers were seen to do. One that ended under load noted a transaction as complete and
    /// never told the partitions: there it ends with the next of the same producer, as this one does, and where the marker lies this is the
    /// next. One that was killed under load answered with a marker that was long superseded, until something was written where it lies.
    fn settle(&mut self) -> Result<(), ExitReason> {
        self.begin()?;
        let (group, nothing) = (
            colocated_group(&self.name.offset_group),
            TxnOffset {
                offset: Offset(0),
                metadata: String::new(),
            },
        );
        let refusal = self.conclude(&group, &nothing)?;
        refusal.map_or(Ok(()), |refusal| {
            Err(failed(format!(
                "an empty transaction with the group {group} is refused: {refusal}"
            )))
        })
    }

    /// What was committed last; waits for what is about to be.
    fn marker(&mut self) -> Result<Option<String>, ExitReason> {
        let (long, mut is_told) = (Instant::now() + KAFKA_MARKER_WARN_AFTER, false);
        loop {
            match self.ask_for_marker()? {
                Ok(marker) => return Ok(marker),
                Err(Error::Unavailable(reason)) => {
                    if !is_told && long <= Instant::now() && self.health.outage_reason().is_none() {
                        is_told = true;
                        tracing::warn!(partition = %self.name.partition, group = self.name.offset_group, transactional_id = self.name.transactional_id, reason,
                            "nothing of a partition is delivered, for the broker does not tell what was: it is slow, or the last transaction \
                            hangs, and only an operator can end it (docs/operate.md: a transaction that hangs)");
                    }
                    self.poll(KAFKA_TRANSACTION_CALL_TIMEOUT);
                }
                Err(error) => return Err(failed(format!("its marker cannot be read: {error}"))),
            }
        }
    }

    fn ask_for_marker(&mut self) -> Result<Result<Option<String>, Error>, ExitReason> {
        let mut awaited = match self
            .asker
            .committed(&self.name.offset_group, &self.name.partition)
        {
            Ok(awaited) => awaited,
            Err(error) => return Ok(Err(error)),
        };
        loop {
            self.check_usable()?;
            if let Some(answer) = awaited.answer() {
                return Ok(answer);
            }
            self.poll(KAFKA_MARKER_POLL_INTERVAL);
        }
    }

    fn begin(&self) -> Result<(), ExitReason> {
        self.sender.begin_transaction().map_err(end)
    }

    fn commit(&mut self, marker: &TxnOffset) -> Result<(), ExitReason> {
        let group = self.name.offset_group.clone();
        if let Some(refusal) = self.conclude(&group, marker)? {
            tracing::warn!(
                transactional_id = self.name.transactional_id,
                group,
                reason = refusal,
                "a commit was refused: what is in it is delivered again"
            );
            return self.abort();
        }
        self.health.record_response();
        let has_been_alone = self
            .alone_until
            .is_some_and(|until| until <= Instant::now());
        let begun = if has_been_alone {
            Err(failed("records are sent in batches again"))
        } else {
            self.go_on().and_then(|()| self.begin())
        };
        // Who hears it may send at once.
        self.is_used.store(false, Ordering::Release);
        self.tell(ProducerEvent::Committed);
        begun
    }

    /// Commits what was sent along with a marker of a group; else it can only be aborted, for this reason.
    fn conclude(&mut self, group: &str, marker: &TxnOffset) -> Result<Option<String>, ExitReason> {
        let offsets = offsets(&self.name, marker);
        let refusal =
            self.call(|sender, _| sender.send_offsets(group, &offsets, KAFKA_MARKER_TIMEOUT))?;
        if refusal.is_some() {
            Ok(refusal)
        } else {
            self.call(NativeProducer::commit_transaction)
        }
    }

    fn abort(&mut self) -> Result<(), ExitReason> {
        while self.poll(Duration::ZERO) > 0 {}
        self.go_on()?;
        if self.is_shaken {
            // Afterwards nobody could tell it from what a broker forgot to end before; who fences it knows where it has written.
            return Err(failed(
                "a broker was out of reach: what is under way is undone by the next one",
            ));
        }
        self.insist(NativeProducer::abort_transaction)?;
        while self.poll(Duration::ZERO) > 0 {}
        self.begin()?;
        // That a batch was refused is told only now: what was in it may have been the least of it.
        self.check_usable()?;
        self.is_used.store(false, Ordering::Release);
        self.tell(ProducerEvent::Aborted);
        Ok(())
    }

    fn insist(
        &mut self,
        call: impl FnMut(&NativeProducer, Duration) -> Result<(), TxnError>,
    ) -> Result<(), ExitReason> {
        let refusal = self.call(call)?;
        refusal.map_or(Ok(()), |words| {
            Err(failed(format!(
                "a transaction that should be aborted cannot be: {words}"
            )))
        })
    }

    /// Calls until it is done, or the transaction can only be aborted, for this reason.
    fn call(
        &mut self,
        mut call: impl FnMut(&NativeProducer, Duration) -> Result<(), TxnError>,
    ) -> Result<Option<String>, ExitReason> {
        loop {
            match call(&self.sender, KAFKA_TRANSACTION_CALL_TIMEOUT) {
                Ok(()) => return Ok(None),
                Err(TxnError {
                    after: NextStep::Abort,
                    words,
                    ..
                }) => return Ok(Some(words)),
                Err(TxnError {
                    after: NextStep::Retry,
                    ..
                }) => {
                    if self.stop.load(Ordering::Relaxed) {
                        return Err(ExitReason::Stopped);
                    }
                    self.stay()?;
                    while self.poll(Duration::ZERO) > 0 {}
                }
                Err(undone) => return Err(end(undone)),
            }
        }
    }

    pub(super) fn poll(&mut self, patience: Duration) -> usize {
        let Self {
            sender,
            health,
            alone_until,
            is_mixed,
            is_cut,
            is_shaken,
            ..
        } = self;
        let mut reports = Vec::new();
        let mut heard = |notice: ClientEvent| {
            if let ClientEvent::Error { code, .. } = &notice {
                *is_cut |= *code == Code::AllBrokersDown;
                *is_shaken |= matches!(
                    code,
                    Code::BrokerTransportFailure
                        | Code::Resolve
                        | Code::OperationTimedOut
                        | Code::AllBrokersDown
                );
            }
            health.on_client_event(notice);
        };
        let served = sender.poll(patience, &mut heard, |delivery| {
            reports.push(judge(delivery, health, alone_until.is_some(), is_mixed));
        });
        if !reports.is_empty() {
            self.tell(ProducerEvent::Reports(reports));
        }
        served
    }
}

fn judge(
    delivery: &Delivery<'_>,
    health: &ClusterHealth,
    is_alone: bool,
    is_mixed: &mut bool,
) -> DeliveryReport {
    let Some(code) = delivery.error else {
        health.record_response();
        let offset = u64::try_from(delivery.message.offset()).ok().map(Offset);
        return DeliveryReport {
            ticket: delivery.ticket,
            position: offset.map(|offset| (delivery.message.partition(), offset)),
            outcome: Ok(()),
        };
    };
    let mut failure = failure::delivery_failure(code, delivery.status(), delivery.words());
    if !is_alone && failure::is_batch_rejection(code) {
        *is_mixed = true;
        failure =
            failure::client_failed(format!("it was refused with its batch: {}", failure.detail));
    }
    DeliveryReport {
        ticket: delivery.ticket,
        position: None,
        outcome: Err(failure),
    }
}

fn end(TxnError { code, words, .. }: TxnError) -> ExitReason {
    ExitReason::Failed {
        is_fenced: is_fenced(code),
        reason: words,
    }
}

fn is_fenced(code: Code) -> bool {
    matches!(
        code,
        Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch
    )
}

fn offsets(name: &ProducerIdentity, marker: &TxnOffset) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(1);
    let mut element = list.add_partition(&name.partition.topic, name.partition.index);
    let offset = i64::try_from(marker.offset.0).unwrap_or(i64::MAX);
    element
        .set_offset(rdkafka::Offset::Offset(offset))
        .expect("an offset that is not negative");
    element.set_metadata(&marker.metadata);
    list
}
