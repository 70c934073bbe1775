//! One producer, and the thread that serves its reports. Which records it is given, and what follows from a failure, is the target's affair.

use super::health::{Health, Probe};
use super::raw::{Delivery, Outbound, Sender, Topic};
use super::thread::Thread;
use super::{failure, is_topic_name, unmade};
use crate::broker::{Error, Report};
use crate::limit::{KAFKA_IDLE, KAFKA_TOPICS_MAX};
use crate::model::header::Header;
use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Reports on their way to the port's caller. As many at most as records were taken over.
#[derive(Default)]
pub(super) struct Reports {
    waiting: Mutex<Vec<Report>>,
    came: Notify,
}

impl Reports {
    pub(super) fn put(&self, reports: &mut Vec<Report>) {
        if !reports.is_empty() {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).append(reports);
            self.came.notify_one();
        }
    }

    /// Dropped early, it loses nothing: reports leave only with the answer.
    pub(super) async fn take(&self) -> Vec<Report> {
        loop {
            let reports = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if !reports.is_empty() {
                return reports;
            }
            self.came.notified().await;
        }
    }
}

/// Dropping it gives up what is under way and joins the thread.
pub(super) struct Lane {
    topics: BTreeMap<Box<str>, Topic>,
    /// Given up before the thread is waited for: the last to hold it ends the client, which blocks, and that is to be the thread.
    sender: Option<Arc<Sender>>,
    stop: Arc<AtomicBool>,
    thread: Thread,
}

impl Lane {
    /// `alone`: the options of a second lane, whose batches hold one record. What this lane's broker refuses with its whole batch goes
    /// there once more, and is refused only if it is refused there.
    pub(super) fn open(config: &ClientConfig, alone: Option<ClientConfig>, reports: Arc<Reports>, health: Health) -> Result<Self, Error> {
        let sender = Arc::new(Sender::new(config).map_err(|error| unmade(&error))?);
        let stop = Arc::new(AtomicBool::new(false));
        let pump = Pump {
            sender: sender.clone(),
            stop: stop.clone(),
            reports,
            health,
            batch: Vec::new(),
            alone: alone.map(|config| Alone { config, lane: None }),
        };
        let name = if pump.alone.is_some() { "kafka-target" } else { "kafka-alone" };
        let thread = Thread::start(name, move || pump.serve()).map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self { topics: BTreeMap::new(), sender: Some(sender), stop, thread })
    }

    pub(super) fn send<'h>(&mut self, topic: &str, record: &Outbound<'_>, headers: impl Iterator<Item = Header<'h>>) -> Result<(), Code> {
        let Some(sender) = &self.sender else { return Err(Code::DestroyBroker) };
        if !self.topics.contains_key(topic) {
            if !is_topic_name(topic) {
                return Err(Code::InvalidTopic);
            }
            if self.topics.len() >= KAFKA_TOPICS_MAX {
                self.topics.clear();
            }
            let handle = sender.topic(topic).ok_or(Code::InvalidTopic)?;
            self.topics.insert(topic.into(), handle);
        }
        sender.send(&self.topics[topic], record, headers)
    }

    /// Why nothing can be sent by this lane any more.
    pub(super) fn fatal(&self) -> Option<String> {
        self.sender.as_ref()?.fatal()
    }

    /// Gives up what is under way, and takes nothing any more; reports still come.
    pub(super) fn retire(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.topics.clear();
        if let Some(sender) = self.sender.take() {
            sender.interrupt();
        }
    }

    pub(super) async fn end(&mut self) {
        self.retire();
        self.thread.end().await;
    }

    #[cfg(any(test, feature = "test-support"))]
    pub(super) fn fail_for_good(&self) {
        if let Some(sender) = &self.sender {
            sender.fail_for_good();
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.retire();
    }
}

/// What runs on the lane's thread.
struct Pump {
    sender: Arc<Sender>,
    stop: Arc<AtomicBool>,
    reports: Arc<Reports>,
    health: Health,
    batch: Vec<Report>,
    alone: Option<Alone>,
}

/// The second lane; opened when it is first needed.
struct Alone {
    config: ClientConfig,
    lane: Option<Lane>,
}

impl Pump {
    fn serve(mut self) {
        let mut probe = Probe::new();
        while !self.stop.load(Ordering::Relaxed) {
            self.turn(KAFKA_IDLE);
            probe.serve(&self.health, |ping| self.sender.native().ping(ping));
        }
        self.sender.purge();
        while self.sender.waiting() > 0 && self.turn(KAFKA_IDLE) > 0 {}
    }

    fn turn(&mut self, patience: Duration) -> usize {
        let Self { sender, reports, health, batch, alone, .. } = self;
        let served = sender.serve(patience, &mut |notice| health.heard(notice), |delivery| {
            if let Some(report) = judge(delivery, alone.as_mut(), reports, health) {
                batch.push(report);
            }
        });
        reports.put(batch);
        served
    }
}

/// `None`: tried again alone, which will report.
fn judge(delivery: &Delivery<'_>, alone: Option<&mut Alone>, reports: &Arc<Reports>, health: &Health) -> Option<Report> {
    let Some(code) = delivery.error else {
        health.answered();
        return Some(Report { ticket: delivery.ticket, outcome: Ok(()) });
    };
    if let Some(alone) = alone
        && failure::is_of_batch(code)
        && alone.send(delivery, reports, health)
    {
        return None;
    }
    let failure = failure::of_record(code, delivery.status(), delivery.words());
    Some(Report { ticket: delivery.ticket, outcome: Err(failure) })
}

impl Alone {
    /// `false`: it could not be sent again, so the first answer stands.
    fn send(&mut self, delivery: &Delivery<'_>, reports: &Arc<Reports>, health: &Health) -> bool {
        let message = &delivery.message;
        let record = Outbound {
            partition: Some(message.partition()).filter(|partition| *partition >= 0),
            key: message.key(),
            payload: message.payload(),
            ticket: delivery.ticket,
        };
        let Self { config, lane } = self;
        if lane.is_none() {
            match Lane::open(config, None, reports.clone(), health.clone()) {
                Ok(opened) => *lane = Some(opened),
                Err(error) => tracing::error!(%error, "records that were refused with their batch cannot be tried alone"),
            }
        }
        lane.as_mut().is_some_and(|lane| lane.send(message.topic(), &record, message.headers()).is_ok())
    }
}
