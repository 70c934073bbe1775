//! One transactional producer, and the thread that serves its reports and makes the calls that block. What is in its transactions is the
//! caller's affair.

use super::Cluster;
use super::failure;
use super::health::Health;
use super::inquiry::Asker;
use super::mending::Memory;
use super::namesake::namesake;
use super::raw::{After, Delivery, Notice, Sender, Undone};
use crate::broker::{Error, Happened, Marker, Report, Transactional};
use crate::limit::{
    KAFKA_ALONE, KAFKA_IDLE, KAFKA_MARKER_LONG, KAFKA_MARKER_TURN, KAFKA_OFFSETS_MAX,
    KAFKA_TRANSACTION_TURN,
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
pub(super) struct Heard {
    waiting: Mutex<Vec<(u64, Happened)>>,
    came: Notify,
}

impl Heard {
    pub(super) fn put(&self, number: u64, happened: Happened) {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((number, happened));
        self.came.notify_one();
    }

    /// Dropped early, it loses nothing: what happened leaves only with the answer.
    pub(super) async fn take(&self) -> Vec<(u64, Happened)> {
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
pub(super) struct Alone(Mutex<BTreeMap<String, Instant>>);

impl Alone {
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
            .insert(id.to_owned(), Instant::now() + KAFKA_ALONE);
    }
}

/// What the thread is asked to do.
pub(super) enum Order {
    /// First of all, under this number.
    Open(u64),
    Commit(Marker),
    Abort,
}

/// What runs on the thread.
pub(super) struct Desk {
    /// Nothing is told before it is opened.
    pub(super) number: Option<u64>,
    pub(super) name: Transactional,
    pub(super) sender: Arc<Sender>,
    pub(super) orders: Receiver<Order>,
    pub(super) stop: Arc<AtomicBool>,
    /// Something was sent since it was opened, or the last commit or abort was told.
    pub(super) is_used: Arc<AtomicBool>,
    pub(super) heard: Arc<Heard>,
    pub(super) health: Health,
    pub(super) cluster: Cluster,
    pub(super) asker: Asker,
    pub(super) alone: Arc<Alone>,
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
    pub(super) memory: Arc<Memory>,
}

/// Why the thread ends.
pub(super) enum End {
    Asked,
    Lost { is_fenced: bool, reason: String },
}

pub(super) fn lost(reason: impl Into<String>) -> End {
    End::Lost {
        is_fenced: false,
        reason: reason.into(),
    }
}

impl Desk {
    pub(super) fn serve(mut self) {
        if let Err(End::Lost { is_fenced, reason }) = self.work() {
            if self.number.is_none()
                && let Ok(Order::Open(number)) = self.orders.recv()
            {
                self.number = Some(number);
            }
            self.tell(Happened::Lost { is_fenced, reason });
        }
        self.sender.purge();
        while self.sender.waiting() > 0 && self.turn(KAFKA_IDLE) > 0 {}
    }

    fn work(&mut self) -> Result<(), End> {
        self.connect()?;
        self.await_opening()?;
        (self.is_cut, self.is_shaken) = (false, false);
        let mending = self.ask_for_last()?;
        self.insist(Sender::init_transactions)?;
        mending.map_or(Ok(()), |mending| self.end_what_hangs(mending))?;
        self.settle()?;
        let marker = self.marker()?;
        self.begin()?;
        self.is_open = true;
        self.tell(Happened::Opened(marker));
        loop {
            self.look()?;
            self.stay()?;
            match self.orders.try_recv() {
                Ok(Order::Commit(marker)) => self.commit(&marker)?,
                Ok(Order::Abort) => self.abort()?,
                Ok(Order::Open(_)) => return Err(lost("it was opened twice")),
                Err(TryRecvError::Empty) => _ = self.turn(KAFKA_IDLE),
                Err(TryRecvError::Disconnected) => return Err(End::Asked),
            }
        }
    }

    fn tell(&self, happened: Happened) {
        if let Some(number) = self.number {
            self.heard.put(number, happened);
        }
    }

    /// Up to here no other of its name notices anything.
    fn await_opening(&mut self) -> Result<(), End> {
        loop {
            self.look()?;
            match self.orders.try_recv() {
                Ok(Order::Open(number)) => {
                    self.number = Some(number);
                    return Ok(());
                }
                Ok(Order::Commit(_) | Order::Abort) => return Err(lost("it was not opened")),
                Err(TryRecvError::Empty) => _ = self.turn(KAFKA_IDLE),
                Err(TryRecvError::Disconnected) => return Err(End::Asked),
            }
        }
    }

    /// Whether it can go on.
    pub(super) fn look(&self) -> Result<(), End> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(End::Asked);
        }
        if let Some((code, words)) = self.sender.fatal_error() {
            return Err(End::Lost {
                is_fenced: is_fenced(code),
                reason: words,
            });
        }
        if self.is_mixed {
            self.alone.begin(&self.name.id);
            return Err(lost(
                "a batch was refused for one of its records: they are sent one by one for a while, to see which",
            ));
        }
        Ok(())
    }

    /// Whether it can be gone on with, once what is under way is committed. A broker that comes back may have forgotten to end the last transaction:
    /// that is to be mended before the next one takes part in anything, lest what was committed is undone along with it.
    fn go_on(&self) -> Result<(), End> {
        if self.is_open && (self.is_cut || self.health.outage().is_some()) {
            return Err(lost(
                "its brokers are away, or were: what they may have left open is ended before another begins",
            ));
        }
        Ok(())
    }

    /// The same, while something may be under way. Where the last one was forgotten and this one has written, they end in one: undone, what was
    /// committed is lost; committed by another, without the marker that only this one has, what is under way is delivered twice. So it has to come to
    /// its own end.
    fn stay(&self) -> Result<(), End> {
        if self.is_used.load(Ordering::Acquire) {
            Ok(())
        } else {
            self.go_on()
        }
    }

    fn connect(&mut self) -> Result<(), End> {
        let source = self
            .sender
            .topic(&self.name.partition.topic)
            .ok_or_else(|| lost("its source has no name that a topic can have"))?;
        self.insist(|sender, patience| sender.connect(&source, patience))
    }

    /// Commits an empty transaction, for two things that brokers were seen to do. One that ended under load noted a transaction as complete and
    /// never told the partitions: there it ends with the next of the same producer, as this one does, and where the marker lies this is the
    /// next. One that was killed under load answered with a marker that was long superseded, until something was written where it lies.
    fn settle(&mut self) -> Result<(), End> {
        self.begin()?;
        let (group, nothing) = (
            namesake(&self.name.group),
            Marker {
                offset: Offset(0),
                text: String::new(),
            },
        );
        let refusal = self.conclude(&group, &nothing)?;
        refusal.map_or(Ok(()), |refusal| {
            Err(lost(format!(
                "an empty transaction with the group {group} is refused: {refusal}"
            )))
        })
    }

    /// What was committed last; waits for what is about to be.
    fn marker(&mut self) -> Result<Option<String>, End> {
        let (long, mut is_told) = (Instant::now() + KAFKA_MARKER_LONG, false);
        loop {
            match self.ask_for_marker()? {
                Ok(marker) => return Ok(marker),
                Err(Error::Unavailable(reason)) => {
                    if !is_told && long <= Instant::now() && self.health.outage().is_none() {
                        is_told = true;
                        tracing::warn!(partition = %self.name.partition, group = self.name.group, transactional_id = self.name.id, reason,
                            "nothing of a partition is delivered, for the broker does not tell what was: it is slow, or the last transaction \
                            hangs, and only an operator can end it (docs/operate.md: a transaction that hangs)");
                    }
                    self.turn(KAFKA_TRANSACTION_TURN);
                }
                Err(error) => return Err(lost(format!("its marker cannot be read: {error}"))),
            }
        }
    }

    fn ask_for_marker(&mut self) -> Result<Result<Option<String>, Error>, End> {
        let mut awaited = match self.asker.committed(&self.name.group, &self.name.partition) {
            Ok(awaited) => awaited,
            Err(error) => return Ok(Err(error)),
        };
        loop {
            self.look()?;
            if let Some(answer) = awaited.answer() {
                return Ok(answer);
            }
            self.turn(KAFKA_MARKER_TURN);
        }
    }

    fn begin(&self) -> Result<(), End> {
        self.sender.begin_transaction().map_err(end)
    }

    fn commit(&mut self, marker: &Marker) -> Result<(), End> {
        let group = self.name.group.clone();
        if let Some(refusal) = self.conclude(&group, marker)? {
            tracing::warn!(
                transactional_id = self.name.id,
                group,
                reason = refusal,
                "a commit was refused: what is in it is delivered again"
            );
            return self.abort();
        }
        self.health.answered();
        let has_been_alone = self
            .alone_until
            .is_some_and(|until| until <= Instant::now());
        let begun = if has_been_alone {
            Err(lost("records are sent in batches again"))
        } else {
            self.go_on().and_then(|()| self.begin())
        };
        // Who hears it may send at once.
        self.is_used.store(false, Ordering::Release);
        self.tell(Happened::Committed);
        begun
    }

    /// Commits what was sent along with a marker of a group; else it can only be aborted, for this reason.
    fn conclude(&mut self, group: &str, marker: &Marker) -> Result<Option<String>, End> {
        let offsets = offsets(&self.name, marker);
        let refusal =
            self.call(|sender, _| sender.send_offsets(group, &offsets, KAFKA_OFFSETS_MAX))?;
        if refusal.is_some() {
            Ok(refusal)
        } else {
            self.call(Sender::commit_transaction)
        }
    }

    fn abort(&mut self) -> Result<(), End> {
        while self.turn(Duration::ZERO) > 0 {}
        self.go_on()?;
        if self.is_shaken {
            // Afterwards nobody could tell it from what a broker forgot to end before; who fences it knows where it has written.
            return Err(lost(
                "a broker was out of reach: what is under way is undone by the next one",
            ));
        }
        self.insist(Sender::abort_transaction)?;
        while self.turn(Duration::ZERO) > 0 {}
        self.begin()?;
        // That a batch was refused is told only now: what was in it may have been the least of it.
        self.look()?;
        self.is_used.store(false, Ordering::Release);
        self.tell(Happened::Aborted);
        Ok(())
    }

    fn insist(
        &mut self,
        call: impl FnMut(&Sender, Duration) -> Result<(), Undone>,
    ) -> Result<(), End> {
        let refusal = self.call(call)?;
        refusal.map_or(Ok(()), |words| {
            Err(lost(format!(
                "a transaction that should be aborted cannot be: {words}"
            )))
        })
    }

    /// Calls until it is done, or the transaction can only be aborted, for this reason.
    fn call(
        &mut self,
        mut call: impl FnMut(&Sender, Duration) -> Result<(), Undone>,
    ) -> Result<Option<String>, End> {
        loop {
            match call(&self.sender, KAFKA_TRANSACTION_TURN) {
                Ok(()) => return Ok(None),
                Err(Undone {
                    after: After::Abort,
                    words,
                    ..
                }) => return Ok(Some(words)),
                Err(Undone {
                    after: After::Again,
                    ..
                }) => {
                    if self.stop.load(Ordering::Relaxed) {
                        return Err(End::Asked);
                    }
                    self.stay()?;
                    while self.turn(Duration::ZERO) > 0 {}
                }
                Err(undone) => return Err(end(undone)),
            }
        }
    }

    pub(super) fn turn(&mut self, patience: Duration) -> usize {
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
        let mut heard = |notice: Notice| {
            if let Notice::Error { code, .. } = &notice {
                *is_cut |= *code == Code::AllBrokersDown;
                *is_shaken |= matches!(
                    code,
                    Code::BrokerTransportFailure
                        | Code::Resolve
                        | Code::OperationTimedOut
                        | Code::AllBrokersDown
                );
            }
            health.heard(notice);
        };
        let served = sender.serve(patience, &mut heard, |delivery| {
            reports.push(judge(delivery, health, alone_until.is_some(), is_mixed));
        });
        if !reports.is_empty() {
            self.tell(Happened::Reports(reports));
        }
        served
    }
}

fn judge(delivery: &Delivery<'_>, health: &Health, is_alone: bool, is_mixed: &mut bool) -> Report {
    let Some(code) = delivery.error else {
        health.answered();
        let offset = u64::try_from(delivery.message.offset()).ok().map(Offset);
        return Report {
            ticket: delivery.ticket,
            place: offset.map(|offset| (delivery.message.partition(), offset)),
            outcome: Ok(()),
        };
    };
    let mut failure = failure::of_record(code, delivery.status(), delivery.words());
    if !is_alone && failure::is_of_batch(code) {
        *is_mixed = true;
        failure = failure::closed(format!("it was refused with its batch: {}", failure.detail));
    }
    Report {
        ticket: delivery.ticket,
        place: None,
        outcome: Err(failure),
    }
}

fn end(Undone { code, words, .. }: Undone) -> End {
    End::Lost {
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

fn offsets(name: &Transactional, marker: &Marker) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(1);
    let mut element = list.add_partition(&name.partition.topic, name.partition.index);
    let offset = i64::try_from(marker.offset.0).unwrap_or(i64::MAX);
    element
        .set_offset(rdkafka::Offset::Offset(offset))
        .expect("an offset that is not negative");
    element.set_metadata(&marker.text);
    list
}
